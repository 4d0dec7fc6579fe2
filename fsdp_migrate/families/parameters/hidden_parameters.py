"""What may be a parameter of a sharded model, or a list of some, since one went into what made it.

``next(iter([p])).norm()`` measures a parameter, where no finder sees the variable of a loop. What
is computed of one is another thing: functions of the project are followed, torch's are known.
"""

from __future__ import annotations

import ast
from collections.abc import Container, Iterator
from dataclasses import dataclass
from functools import partial

from fsdp_migrate.analysis.module import Module
from fsdp_migrate.analysis.values import Class, External, Function, Generated, Made, Unknown, Value
from fsdp_migrate.families.parameters import clips, vectors
from fsdp_migrate.families.parameters.elements import lists_of
from fsdp_migrate.families.parameters.parameter_changes import NO_WRITES
from fsdp_migrate.families.parameters.parameter_loops import (
    COUNTS,
    OF_WHOLE,
    SHAPES,
    STORAGES,
    loop_over,
)
from fsdp_migrate.families.parameters.parameter_owners import models_of_list, models_of_states
from fsdp_migrate.families.training_loop import applied_functions
from fsdp_migrate.families.training_loop.listed_parts import PARTS
from fsdp_migrate.families.training_loop.reductions import (
    EXTREMES,
    REDUCERS,
    REDUCING,
    TOTALS,
)
from fsdp_migrate.families.training_loop.sharded_alike import ELEMENTWISE
from fsdp_migrate.fsdp1.model_values import definitions
from fsdp_migrate.fsdp1.unfollowed import Ways, reason
from fsdp_migrate.planning.context import Study
from fsdp_migrate.syntax.expressions import given_arguments, last_name
from fsdp_migrate.syntax.kinds import of_kind
from fsdp_migrate.syntax.scopes import Kind
from fsdp_migrate.syntax.trees import walk

ASKED = SHAPES | COUNTS | OF_WHOLE | STORAGES | REDUCING | PARTS | {"data_ptr", "element_size"}
# What asks the same of its arguments: ``torch.numel(p)``.
FUNCTIONS = REDUCING | REDUCERS | COUNTS | OF_WHOLE
TAKING_LISTS = clips.SINGLY | {
    name.rpartition(".")[2] for name in clips.TORCH_CLIP | vectors.FUNCTIONS
}
OF_LISTS = "_foreach_"
# What builtins hand on of what they are given; of all others the result is something new.
HANDING_ON = frozenset({"next", "iter", "list", "tuple", "set", "dict", "zip", "enumerate", "vars"})
HANDING_ON |= {"max", "min", "sorted", "reversed", "getattr", "filter", "map"}
COMPUTING = ("torch.", "numpy.", "math.", "operator.", "functools.reduce")
CHOICES = (ast.IfExp, ast.BoolOp, ast.NamedExpr)
WRITTEN = (ast.List, ast.Tuple, ast.Dict)
DEEP = 4  # expressions and names that lead to one another


def hidden_parameters(
    module: Module, study: Study, ways: ParameterWays, sites: Container[ast.AST | None]
) -> Iterator[tuple[ast.expr, str]]:
    """What is measured, changed or gone over outside of sites, and may be a parameter or a list of
    some, with what is not followed on the way."""
    single = {node: partial(is_parameter, study) for node in _measured(module, study)}
    gone_over = (node for node in _gone_over(module) if node not in single)
    lists = {node: partial(is_list, study) for node in (*gone_over, *_applied(module))}
    for node, is_seen in (single | lists).items():
        if not ways.hands_on(node, module) or is_seen(node, module):
            continue
        if any(parent in sites for parent in module.table.ancestors(node)):
            continue
        if why := ways.made_of(node, module):
            yield node, why


def are_parameters(study: Study, node: ast.expr, module: Module) -> bool:
    """Whether an expression is a variable for parameters of a sharded model, or a list of some, or
    for a tensor of an optimizer's state, which is sharded as they are."""
    return (
        is_list(study, node, module)
        or is_parameter(study, node, module)
        or bool(models_of_states(node, study, module))
    )


def is_list(study: Study, node: ast.expr, module: Module) -> bool:
    """Whether an expression is a list of a sharded model's parameters."""
    return bool(models_of_list(node, study, module))


def is_parameter(study: Study, node: ast.expr, module: Module) -> bool:
    """Whether an expression is a variable for one of a sharded model's parameters: none is what is
    taken out of something that is written there, ``{"p": p}["p"]``."""
    if isinstance(node, ast.Subscript) and isinstance(node.value, WRITTEN):
        return False
    lists = lists_of(node, study, module)
    return any(models_of_list(each, study, where) for each, where in lists)


def _measured(module: Module, study: Study) -> Iterator[ast.expr]:
    """What has numbers, memory or a gradient taken of it, is changed in place or put into a
    vector."""
    table = module.table
    for attribute in table.attributes_by_name.of(_names(module)):
        yield from _wholes(attribute.value)
    for call in table.calls_by_name.of(FUNCTIONS):
        is_builtin = isinstance(call.func, ast.Name) and call.func.id in TOTALS | EXTREMES
        for given in () if is_builtin else given_arguments(call):
            yield from _wholes(given)
    for call in table.calls_by_name.of(("len",)):
        tensor = vectors.flattened_tensor(call.args[0]) if call.args else None
        yield from _wholes(tensor) if tensor is not None else ()
    for call in table.calls_by_name.of(vectors.JOINING):
        each = (e for given in call.args[:1] for e, _ in vectors.listed(given, study, module))
        for part in (*vectors.joined_parts(call), *each):
            if part in table.parents:  # not of another file
                yield from _wholes(part)


def _applied(module: Module) -> Iterator[ast.expr]:
    """What has a function called for each of its elements."""
    for call in module.table.calls_by_name.of(applied_functions.APPLYING):
        for given in given_arguments(call):
            yield from _wholes(given)


def _gone_over(module: Module) -> Iterator[ast.expr]:
    """Lists of what is measured or changed, in a loop or by a function of torch's."""
    table, names = module.table, _names(module)
    calls = table.calls_by_name
    for call in calls.of(TAKING_LISTS | {n for n in calls.names if n.startswith(OF_LISTS)}):
        for given in given_arguments(call):
            yield from _wholes(given)
    for loop in table.loops:
        found = loop_over(loop.iter, module)
        region = found[1] if found is not None else ()
        if any(getattr(node, "attr", "") in names for part in region for node in walk(part)):
            yield loop.iter


def _names(module: Module) -> set[str]:
    found = module.table.attributes_by_name.names
    return {name for name in found if name in ASKED or _changes(name)}


def _changes(name: str) -> bool:
    return name.endswith("_") and not name.endswith("__") and name not in NO_WRITES


def _wholes(node: ast.expr) -> Iterator[ast.expr]:
    """``p`` of ``p.grad.detach().float()`` and ``p`` and ``q`` of ``p.grad * q``: what has the same
    elements."""
    match node:
        case ast.Attribute(value=inner, attr=attr) if attr in PARTS:
            yield from _wholes(inner)
        case ast.Call(func=ast.Attribute(value=ast.Name(id="torch"), attr=attr), args=[inner, *_]):
            yield from _wholes(inner) if attr in ELEMENTWISE else (node,)
        case ast.Call(func=ast.Attribute(value=inner, attr=attr)) if attr in ELEMENTWISE:
            yield from _wholes(inner)
        case ast.BinOp(left=left, right=right):
            yield from _wholes(left)
            yield from _wholes(right)
        case ast.UnaryOp(operand=inner):
            yield from _wholes(inner)
        case _:
            yield node


def _is_measured(node: ast.AST) -> bool:
    """Whether an expression is what a tensor's own methods give."""
    match node:
        case ast.Call(func=ast.Attribute(attr=attr)):
            return attr in ASKED or attr in ELEMENTWISE
    return False


def _is_not_followed(value: Value) -> bool:
    """Whether nothing tells what a function gives, or it keeps its arguments, as one that yields
    does."""
    is_open = isinstance(value, (Function, Generated, Unknown))
    return is_open and not _is_measured(value.node)


@dataclass(frozen=True)
class ParameterWays(Ways):
    """How parameters get through what is not followed."""

    def hands_on(self, node: ast.expr, module: Module, depth: int = DEEP) -> bool:
        """Whether an expression, as it is written, may be what something in it was given."""
        match node:
            case ast.Name() if depth:
                given = [d.value for d in definitions(node, module) if d.kind is Kind.ASSIGN]
                return any(each and self.hands_on(each, module, depth - 1) for each in given)
            case ast.Call():
                return self._may_give_back(node, module)
            case ast.Attribute(value=owner) | ast.Subscript(value=owner) if depth:
                return isinstance(owner, WRITTEN) or self.hands_on(owner, module, depth - 1)
        return isinstance(node, CHOICES)

    def made_of(self, node: ast.expr, module: Module) -> str:
        """Why an expression may be one: as ever, or since a function that is followed gives it."""
        if why := super().made_of(node, module):
            return why
        is_one = any(
            v.node is not node and self._is_one(v) for v in self.tracer.evaluate(node, module)
        )
        return reason(node) if is_one else ""

    def _is_one(self, value: Value) -> bool:
        """Whether a value is an element of a list of parameters, or the list."""
        node = value.node
        is_own = isinstance(node, ast.expr) and not _is_measured(node)
        return is_own and self.wanted(of_kind(node, ast.expr), value.module)

    def _hold(self, node: ast.expr, module: Module, depth: int, *, taken: bool) -> bool:
        wholes = _wholes(node)  # passed(p.grad.view(-1))
        return any(super(ParameterWays, self)._hold(e, module, depth, taken=taken) for e in wholes)

    def _given(self, call: ast.Call, called: ast.expr, module: Module) -> list[ast.expr]:
        return super()._given(call, called, module) if self._may_give_back(call, module) else []

    def _may_give_back(self, call: ast.Call, module: Module) -> bool:
        """Whether a call may give what it was given: a function of the project's does where it is
        not followed, what computes does not."""
        called = call.func
        if isinstance(called, ast.Lambda):
            return True
        if isinstance(called, ast.Attribute) and isinstance(called.value, WRITTEN):
            return True
        for function in self.tracer.evaluate(called, module):
            match function:
                case Class() | Made(callee=External()) if not isinstance(called, ast.Attribute):
                    return True
                case External(name=name) if name.startswith("builtins."):
                    if last_name(called) in HANDING_ON:
                        return True
                case External(name=name) if not name.startswith(COMPUTING):
                    return True
                case Function():
                    found = self.tracer.evaluate(call, module)
                    if any(self._is_one(v) or _is_not_followed(v) for v in found):
                        return True
                case Unknown() if isinstance(called, ast.Name):
                    return True
        return False
