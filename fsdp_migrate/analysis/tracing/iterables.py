"""Calls that give the elements of what they are given: ``list(xs)``, ``enumerate(xs)``, ``zip``."""

from __future__ import annotations

import ast

from fsdp_migrate.analysis.flow import Definition
from fsdp_migrate.analysis.module import Module
from fsdp_migrate.analysis.values import Computed, Frame, Made, Value

# Calls whose result has the elements of what they are given.
CONTAINERS = frozenset(
    (
        *("torch.nn.ModuleList", "torch.nn.modules.container.ModuleList"),
        *(f"builtins.{name}" for name in ("list", "tuple", "set", "iter", "reversed", "sorted")),
    )
)


def element_of(
    definition: Definition, iterated: Value, module: Module, frame: Frame | None
) -> Computed:
    """An element that nothing more is known of: of ``zip``, one of the container in its place."""
    assert definition.value is not None
    node = iterated.node
    if isinstance(node, ast.Call) and isinstance(iterated, Made) and definition.unpack:
        within = iterated_in(node, iterated.made_by, definition.unpack)
        if within is not None:
            return Computed(within, iterated.module, iterated.frame)
    return Computed(definition.value, module, frame)


def iterated_in(call: ast.Call, name: str, unpack: tuple[int, ...]) -> ast.expr | None:
    """The container whose elements a call gives: ``xs`` of ``list(xs)`` and ``enumerate(xs)``."""
    given = call.args
    match unpack:
        case () if name in CONTAINERS and len(given) == 1:
            return given[0]
        case (1,) if name == "builtins.enumerate" and given:
            return given[0]
        case (index,) if name == "builtins.zip" and 0 <= index < len(given):
            return None if any(isinstance(g, ast.Starred) for g in given) else given[index]
    return None
