"""Which module a call of FSDP1's constructor is given, and which models an expression may be."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from typing import TYPE_CHECKING

from fsdp_migrate.analysis.module import Module
from fsdp_migrate.analysis.values import Made, Value, Values
from fsdp_migrate.fsdp1.model_values import models
from fsdp_migrate.planning.model import Constructor
from fsdp_migrate.syntax.expressions import first_argument

if TYPE_CHECKING:
    from fsdp_migrate.planning.context import Study
INNER = frozenset({"module", "_fsdp_wrapped_module"})  # the wrapped module, by its wrapper
COPYING = frozenset({"copy.copy", "copy.deepcopy"})


def wrapped_by(constructor: Constructor, study: Study) -> Iterator[tuple[ast.expr, Module]]:
    """What a constructor wraps; of a partial, what the calls of it are given."""
    if constructor.has_module:
        yield constructor.wrapped, constructor.module
    elif constructor.reference in constructor.call.args:
        for module in study.project.modules:
            for call in module.table.calls:
                wrapped = first_argument(call)
                if wrapped is None or isinstance(call.func, ast.Call):
                    continue
                if any(v.node is constructor.call for v in study.values(call.func, module)):
                    yield wrapped, module


def originals(values: Values, study: Study) -> Values:
    """The values, with what was copied in the place of its copies: both are of one class."""
    seen, waiting = set(), list(values)
    for value in waiting:
        if value in seen:
            continue
        seen.add(value)
        if given := _copied(value):
            waiting += study.tracer.evaluate(given, value.module, value.frame)
    return frozenset(v for v in seen if not _copied(v))


def _copied(value: Value) -> ast.expr | None:
    is_copy = isinstance(value, Made) and value.made_by in COPYING
    return first_argument(value.node) if is_copy and isinstance(value.node, ast.Call) else None


def unwrapped(node: ast.expr) -> ast.expr:
    """``model`` of ``model.module``."""
    while isinstance(node, ast.Attribute) and node.attr in INNER:
        node = node.value
    return node


def models_made(receiver: ast.expr, module: Module, study: Study) -> list[Made]:
    """The sharded models that an expression may be, as far as their making is seen.

    Not those of a class of the project's own around the module: its methods are no part of that,
    and what it hands on to the module runs past its hooks, as it did in FSDP1.
    """
    found = models(study.values(unwrapped(receiver), module), study.tracer)
    made = ((m, list(study.made_by(m))) for m in found if isinstance(m.node, ast.Call))
    return [m for m, by in made if by and not any(c.keeps_class for c in by)]
