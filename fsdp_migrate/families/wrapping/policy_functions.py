"""What the body of a function tells that FSDP1 asks as a policy."""

from __future__ import annotations

import ast
import itertools
from collections.abc import Sequence

from fsdp_migrate.analysis.flow import access_path
from fsdp_migrate.analysis.values import Function, Made, Values
from fsdp_migrate.fsdp1 import api as fsdp1
from fsdp_migrate.planning.context import Study
from fsdp_migrate.syntax.expressions import last_name, names_in

ASKED = frozenset({"module", "recurse", "nonwrapped_numel"})  # what FSDP1 gives a policy
SIZES = frozenset({"nonwrapped_numel"})
# Calls that change what the next answer may be.
CHANGES = frozenset({"add", "append", "discard", "extend", "next", "pop", "remove", "update"})
# Calls that answer a question.
QUESTIONS = frozenset(
    {"isinstance", "issubclass", "hasattr", "callable", "bool", "any", "all"}
    | {"startswith", "endswith", "issubset", "issuperset", "isdisjoint"}
)


def answers(function: Function) -> list[ast.expr]:
    """What a function or lambda returns; a bare ``return`` is left out."""
    node = function.node
    if isinstance(node, ast.Lambda):
        return [node.body]
    return [r.value for r in ast.walk(node) if isinstance(r, ast.Return) and r.value is not None]


def looks_everywhere(function: Function) -> bool:
    """Whether a policy looks into every module, and counts no parameters.

    ``if recurse: return True``, then a test of the module; or ``return recurse or ...``. What it
    writes down first at the parts of a module is there when it is asked for these.
    """
    node, statements = function.node, _statements(function)
    match statements[len(_labels(statements)) :]:
        case [ast.If(test=ast.Name(id="recurse"), body=[ast.Return(value=answer)]), *_]:
            looks = isinstance(answer, ast.Constant) and answer.value is True
        case [ast.Return(value=ast.BoolOp(op=ast.Or(), values=[ast.Name(id="recurse"), *_]))]:
            looks = True
        case [ast.BoolOp(op=ast.Or(), values=[ast.Name(id="recurse"), *_])]:
            looks = True
        case _:
            looks = False
    arguments = node.args
    accepted = {a.arg for a in (*arguments.args, *arguments.kwonlyargs)} - {"self", "cls"}
    known = accepted <= ASKED and (accepted == ASKED or arguments.kwarg is not None)
    asked = [n.id for n in ast.walk(node) if isinstance(n, ast.Name) and n.id in SIZES]
    once = sum(isinstance(n, ast.Name) and n.id == "recurse" for n in ast.walk(node)) == 1
    kept = arguments.kwarg is None or arguments.kwarg.arg not in names_in(node)
    return looks and known and once and kept and not asked


def gives_labels(function: Function) -> bool:
    """Whether a policy function first gives parts of the module attributes."""
    return bool(_labels(_statements(function)))


def _statements(function: Function) -> Sequence[ast.AST]:
    """The statements of a function behind its docstring, or the expression of a lambda."""
    node = function.node
    match [node.body] if isinstance(node, ast.Lambda) else node.body:
        case [ast.Expr(value=ast.Constant()), *rest] | rest:
            return rest


def _labels(statements: Sequence[ast.AST]) -> list[ast.AST]:
    """What comes first of a policy function if it gives a part of the module a constant attribute:
    ``if isinstance(module, Decoder): module.output.is_unit = True``."""

    def is_label(node: ast.AST) -> bool:
        match node:
            case ast.If(test=ast.Call(func=ast.Name(id="isinstance")), body=body, orelse=[]):
                return all(map(is_label, body))
            case ast.Assign(targets=[ast.Attribute() as target], value=ast.Constant()):
                return (access_path(target) or "").startswith("module.")
        return False

    return list(itertools.takewhile(is_label, statements))


def asks_for_classes(function: ast.AST) -> bool:
    """Whether a policy function asks nothing of a module but its class."""
    asked = [n for n in ast.walk(function) if isinstance(n, ast.Name) and n.id == "module"]
    classes = [
        n.args[0]
        for n in ast.walk(function)
        if isinstance(n, ast.Call) and getattr(n.func, "id", "") == "isinstance" and n.args
    ]
    return all(name in classes for name in asked)


def minds_order(function: Function, study: Study) -> bool:
    """Whether a policy function's answers depend on what was asked or sharded before."""
    for node in ast.walk(function.node):
        if isinstance(node, (ast.Global, ast.Nonlocal)):
            return True
        if isinstance(node, ast.Call) and last_name(node.func) in CHANGES:
            return True
        if isinstance(node, (ast.Name, ast.Attribute)):
            names = study.external(node, function.module)
            if fsdp1.FSDP in {fsdp1.canonical(n) for n in names}:
                return True
    return False


def is_truth(node: ast.expr) -> bool:
    """Whether an expression is certainly True or False."""
    match node:
        case ast.Constant(value=value):
            return isinstance(value, bool) or value is None
        case ast.Compare() | ast.UnaryOp(op=ast.Not()):
            return True
        case ast.BoolOp(values=values):
            return all(map(is_truth, values))
        case ast.IfExp(body=body, orelse=orelse):
            return is_truth(body) and is_truth(orelse)
        case ast.Call(func=ast.Name(id=name)) | ast.Call(func=ast.Attribute(attr=name)):
            return name in QUESTIONS
    return False


def doubt_of_parameters(values: Values, study: Study) -> str:
    """What to say of a policy function that lacks a parameter which it is asked with by name.

    Those of torch 1 had ``unwrapped_params``, which is ``nonwrapped_numel`` since.
    """
    for value in values:
        match value:
            case Made(made_by="functools.partial", node=ast.Call(args=[bound, *_])):
                asked = study.tracer.evaluate(bound, value.module, value.frame)
            case _:
                asked = frozenset({value})
        for function in (f for f in asked if isinstance(f, Function)):
            arguments = function.node.args
            lacking = ASKED - {a.arg for a in (*arguments.args, *arguments.kwonlyargs)}
            if lacking and arguments.kwarg is None:
                names = " and ".join(sorted(lacking))
                return (
                    f"the policy has no parameter {names}, with which it is asked, as FSDP1 does "
                    "since torch 2.0 (before, nonwrapped_numel was unwrapped_params): rename it"
                )
    return ""
