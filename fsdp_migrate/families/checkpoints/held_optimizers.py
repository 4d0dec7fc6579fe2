"""Optimizers that are held by an object of a class of the project's.

FSDP1's calls took anything with ``state_dict()`` and ``param_groups``. torch's functions take an
``Optimizer`` and nothing else, so they are given the one that the object holds.
"""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import TypeGuard

from fsdp_migrate.analysis.flow import access_path
from fsdp_migrate.analysis.module import Module
from fsdp_migrate.analysis.values import Class, Constant, Made, Unknown, Value, Values
from fsdp_migrate.families.training_loop.early_optimizers import is_optimizer, is_optimizer_name
from fsdp_migrate.fsdp1.model_values import is_plain_class
from fsdp_migrate.planning.context import Study
from fsdp_migrate.planning.edits import Code, code
from fsdp_migrate.syntax.trees import COMPREHENSIONS, FUNCTIONS, block_of, walk

OF_OPTIMIZERS = frozenset(
    {"defaults", "param_groups", "state", "step", "zero_grad", "add_param_group"}
    | {"state_dict", "load_state_dict"}
)
STATES = ("state_dict", "load_state_dict")
GROUPS = ("param_groups", "__getattr__", "__getattribute__")  # or what may give them


@dataclass(frozen=True, eq=False)
class Held:
    """The attribute that holds the optimizer: empty where the object is one itself, as far as seen.

    ``problem`` says why no attribute can be named.
    """

    attribute: str
    values: Values
    problem: str = ""

    def of(self, given: ast.expr | str | Code) -> Code:
        """The optimizer, as an expression."""
        return (
            code("{o}.{a}", o=given, a=self.attribute) if self.attribute else code("{o}", o=given)
        )


def held_optimizer(optimizer: ast.expr, module: Module, study: Study) -> Held:
    """Where the optimizer is that an FSDP1 call is given."""
    values = frozenset(v for v in study.values(optimizer, module) if _may_have_state(v, study))
    holders = [v for v in values if _is_holder(v, study)]
    if not holders:
        return Held("", values)
    others = [v for v in values if v not in holders and not isinstance(v, (Constant, Unknown))]
    if others:  # FSDP1 refuses what has no groups of parameters
        holders = [holder for holder in holders if _has_one_of(GROUPS, holder, study)]
        if not holders:
            return Held("", values)
    name = min(_class_of(holder).node.name for holder in holders)
    problem = f"the optimizer is of the class {name}, which is no torch.optim.Optimizer"
    if others and not (
        _is_told(optimizer, holders, module, study)
        or _is_asked_for_more(optimizer, holders, module, study)
    ):
        may = f"the optimizer may be of the class {name}, which is no torch.optim.Optimizer"
        return Held("", values, f"{may}, and may be one of torch's")
    found: set[str] = set()
    inside: set[Value] = set()
    for holder in holders:
        held = dict(_optimizers_of(holder, study))
        if len(held) != 1:
            return Held("", values, f"{problem}, and which it holds is not plain to see")
        found |= held.keys()
        inside |= {v for given in held.values() for v in given if not isinstance(v, Constant)}
        if not all(isinstance(v, Unknown) or is_given_optimizer(v, study) for v in inside):
            return Held("", values, f"{problem}, and what it holds may be something else")
        if not _hands_on(_class_of(holder), next(iter(held)), study):
            return Held("", values, f"{problem}, and does more with its state than hand it on")
    if len(found) != 1:
        return Held("", values, f"{problem}, and which it holds is not plain to see")
    return Held(found.pop(), frozenset(inside))


def _is_told(optimizer: ast.expr, holders: list[Value], module: Module, study: Study) -> bool:
    """Whether ``isinstance`` tells that it is of a class that is no ``Optimizer``: an assertion, or
    a branch around."""
    classes = {cls for holder in holders for cls in study.tracer.lineage(_class_of(holder))}
    for asked in study.narrowing.classes_told(optimizer, module):
        found = [value for node in asked for value in study.values(node, module)]
        if found and all(value in classes for value in found):
            return True
    return False


def _is_asked_for_more(
    optimizer: ast.expr, holders: list[Value], module: Module, study: Study
) -> bool:
    """Whether code that has surely run asks the object for what its class has, and no
    ``Optimizer``."""
    path = access_path(optimizer)
    classes = [_class_of(holder) for holder in holders]
    asked = {
        module.table.statement(attribute)
        for attribute in module.table.attributes
        if attribute.attr not in OF_OPTIMIZERS
        and not _is_perhaps_run(attribute, module)
        and not attribute.attr.startswith(("_", "register_"))
        and all(study.tracer.has_attribute(cls, attribute.attr) for cls in classes)
        and access_path(attribute.value) == path
        and study.defined_by(attribute.value, module) == study.defined_by(optimizer, module)
    }
    statement = module.table.statement(optimizer)
    for parent in module.table.ancestors(statement):
        if not isinstance(parent, ast.stmt) or not isinstance(statement, ast.stmt):
            continue
        block = block_of(parent, statement)
        for before in block[: block.index(statement) + 1] if path else ():
            if before in asked and isinstance(before, (ast.Assign, ast.Expr, ast.Return)):
                return True
        if isinstance(parent, FUNCTIONS):
            break
        statement = parent
    return False


def _is_perhaps_run(node: ast.expr, module: Module) -> bool:
    """Whether a part of a statement runs under a condition in it, or later."""
    for parent in module.table.ancestors(node):
        if isinstance(parent, ast.stmt):
            return False
        if isinstance(parent, (ast.IfExp, ast.BoolOp, ast.Lambda, *COMPREHENSIONS)):
            return True
    return False


def _class_of(value: Value) -> Class:
    assert isinstance(value, Made)
    assert isinstance(value.callee, Class)
    return value.callee


def _is_holder(value: Value, study: Study) -> bool:
    """Whether a value is of a class of the project's that is surely no ``Optimizer``."""
    if not isinstance(value, Made) or not isinstance(value.callee, Class):
        return False
    return is_plain_class(value.callee, study.tracer)


def _may_have_state(value: Value, study: Study) -> bool:
    """Whether an object can be what an FSDP1 call is given: it asks for these."""
    if not _is_holder(value, study):
        return True
    return _has_one_of(("state_dict", *GROUPS), value, study)


def _has_one_of(names: Iterable[str], holder: Value, study: Study) -> bool:
    return any(study.tracer.has_attribute(_class_of(holder), name) for name in names)


def _optimizers_of(holder: Value, study: Study) -> Iterator[tuple[str, Values]]:
    """The attributes of an object that are given an optimizer."""
    cls = _class_of(holder)
    names: set[str] = set()
    for related in study.tracer.family(cls):
        for part in related.node.body:
            if isinstance(part, ast.AnnAssign) and isinstance(part.target, ast.Name):
                names.add(part.target.id)
            elif isinstance(part, ast.FunctionDef) and part.args.args:
                stored = {n.attr for n in walk(part) if _is_stored(n, part.args.args[0].arg)}
                names |= stored
    for name in sorted(n for n in names if not n.startswith("__")):
        values = study.tracer.attribute(holder, name, holder.node, holder.module)
        if any(is_given_optimizer(v, study) for v in values):
            yield name, values


def _is_stored(node: ast.AST, own: str) -> TypeGuard[ast.Attribute]:
    """``self.name = ...``, whatever ``self`` is called."""
    if not isinstance(node, ast.Attribute) or not isinstance(node.ctx, ast.Store):
        return False
    return isinstance(node.value, ast.Name) and node.value.id == own


def is_given_optimizer(value: Value, study: Study) -> bool:
    """Whether a value is an optimizer, by what makes it, or as a parameter by its type or name."""
    if isinstance(value, Made) and value.callee is not None:
        return is_optimizer(value.callee, study)
    if not isinstance(value, Unknown) or not isinstance(value.node, ast.arg):
        return False
    if value.node.annotation is None:
        return is_optimizer_name(value.node.arg)
    names = study.external(value.node.annotation, value.module)
    return any(name.startswith("torch.optim.") for name in names)


def _hands_on(cls: Class, attribute: str, study: Study) -> bool:
    """Whether the class's own ``state_dict`` and ``load_state_dict`` are the optimizer's."""
    for related in study.tracer.family(cls):
        for method in related.node.body:
            if getattr(method, "name", "") not in STATES:
                continue
            assert isinstance(method, ast.FunctionDef | ast.AsyncFunctionDef)
            body = method.body[1:] if ast.get_docstring(method) is not None else method.body
            match body:
                case [ast.Return(value=ast.Call(func=func)) | ast.Expr(value=ast.Call(func=func))]:
                    own = method.args.args[0].arg if method.args.args else ""
                    if access_path(func) != f"{own}.{attribute}.{method.name}":
                        return False
                case _:
                    return False
    return True
