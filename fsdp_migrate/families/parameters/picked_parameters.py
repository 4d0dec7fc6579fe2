"""Loops over modules that pick parameters by the kind of their module, or by their names in it.

``for m in model.modules(): if isinstance(m, nn.LayerNorm): rest.append(m.weight)``. Without
``use_orig_params=True`` FSDP1 had one flat parameter a unit, which such a loop took whole or not at
all, or not at the place where it looks.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator, Sequence

from fsdp_migrate.analysis.module import Module
from fsdp_migrate.analysis.tracing.project_index import ADDING
from fsdp_migrate.families.parameters.parameter_loops import METHODS, PLACE, loop_over
from fsdp_migrate.families.parameters.parameter_names import tests_of
from fsdp_migrate.families.parameters.parameter_owners import is_flat, may_be_flat, models_of_list
from fsdp_migrate.families.wrapping.gathered import is_gathered
from fsdp_migrate.fsdp1.construct import Construct
from fsdp_migrate.fsdp1.site import Site
from fsdp_migrate.planning.context import Study
from fsdp_migrate.syntax.expressions import names_in
from fsdp_migrate.syntax.trees import walk

PICKED = Construct.parse("parameter of a kind of module")
MODULES = frozenset({"modules", "named_modules", "children", "named_children"})
COLLECTING = ADDING | {"extend", "update"}
OWN = frozenset({"weight", "bias", "_parameters"})


def find_picked_parameters(study: Study, module: Module) -> Iterator[Site]:
    """A site for every loop over a model's modules that picks some of their parameters."""
    for call in module.table.calls_by_name.of(MODULES):
        method, loop = call.func, loop_over(call, module)
        if loop is None or not isinstance(method, ast.Attribute):
            continue
        target, region, whole = loop
        if not _picks(names_in(target), region, is_list=isinstance(whole, ast.expr)):
            continue
        model = method.value
        if is_flat(model, module, study) and not is_gathered(call, study, module):
            yield Site(PICKED, module, whole, whole, model)


def find_places(study: Study, module: Module) -> Iterator[Site]:
    """A site for every part of a list of parameters that is taken by its place in it."""
    if not may_be_flat(study.every_constructor):
        return
    for item in module.table.subscripts:
        taken, whole = module.table.parents[item], item.value
        if not isinstance(item.ctx, ast.Load) or isinstance(taken, ast.Attribute):
            continue  # ``params[0].device``
        if not isinstance(whole, (ast.Name, ast.Call)):
            continue
        match item.slice:
            case ast.Slice() | ast.UnaryOp() | ast.Constant(value=int()):
                models = models_of_list(whole, study, module)
                if may_be_flat(models) and not is_gathered(item, study, module):
                    yield Site(PLACE, module, item, item, whole)


def _picks(names: set[str], region: Sequence[ast.AST], *, is_list: bool) -> bool:
    """Whether the body of a loop collects parameters of its modules under a condition."""
    held = set(names)
    nodes = [node for part in region for node in walk(part)]
    reads = collects = False
    for node in nodes:
        match node:
            case ast.For(target=target, iter=given) | ast.comprehension(target=target, iter=given):
                held |= names_in(target) if _of_modules(given, names) else set()
            case ast.AugAssign() | ast.Subscript(ctx=ast.Store()):
                collects = True
            case ast.Call(func=ast.Attribute(attr=attr)) if attr in COLLECTING:
                collects = True
        reads |= _of_modules(node, names)
    tested = any(held & names_in(test) for node in nodes for test in tests_of(node))
    return reads and tested and (collects or is_list)


def _of_modules(node: ast.AST, names: set[str]) -> bool:
    """Whether an expression reads parameters of one of the loop's modules."""
    return any(
        isinstance(inner, ast.Attribute)
        and inner.attr in METHODS | OWN
        and isinstance(inner.value, ast.Name)
        and inner.value.id in names
        for inner in walk(node)
    )
