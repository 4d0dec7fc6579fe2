"""Parameters that a forward writes to, as those of an encoder that follows another one.

``for a, b in zip(self.q.parameters(), self.k.parameters()): b.data = 0.9 * b.data + 0.1 * a.data``

What is assigned to ``.data`` of a ``DTensor`` is dropped, and of a parameter that is gathered it
takes the parameter out of the gathered memory for good. In FSDP1 it was kept, or lost, like what is
written in place, which is so with ``fully_shard`` too: measured with units around the parameters
and without. Under NO_SHARD, FSDP1 kept also what was written to the root's.
"""

from __future__ import annotations

import ast
from collections.abc import Collection, Iterator

from fsdp_migrate.analysis.flow import access_path
from fsdp_migrate.analysis.module import Module
from fsdp_migrate.families.parameters import writes
from fsdp_migrate.families.parameters.parameter_changes import (
    data_assignments,
    has_data_assignments,
)
from fsdp_migrate.families.parameters.parameter_loops import METHODS
from fsdp_migrate.families.parameters.told_in_forwards import models_running
from fsdp_migrate.families.wrapping import strategies
from fsdp_migrate.families.wrapping.computing_methods import LEAVES
from fsdp_migrate.families.wrapping.gathered import is_gathered
from fsdp_migrate.families.wrapping.module_values import Kind, ModuleValues
from fsdp_migrate.fsdp1.construct import Construct
from fsdp_migrate.fsdp1.site import Site
from fsdp_migrate.planning.context import Study
from fsdp_migrate.planning.model import Constructor, Decision
from fsdp_migrate.syntax.scopes import Kind as BindingKind
from fsdp_migrate.syntax.trees import walk

ASSIGNED = Construct.parse("parameter data in a forward")
CHANGED = Construct.parse("parameter write in a forward")
CONSTRUCTS = frozenset({ASSIGNED, CHANGED})
FREED = (
    "in a forward, what is written to parameters of the unit that runs is lost as soon as they are "
    "freed, as it was in FSDP1, and of other units' it is kept: write in front of the forward to "
    "keep all of it"
)
REPLICAS = (
    "under NO_SHARD, FSDP1 kept what a forward writes to parameters; now that of the unit that "
    "runs is lost as soon as they are freed: write in front of the forward"
)


def find_written_in_forwards(study: Study, module: Module) -> Iterator[Site]:
    """A site for every statement that writes to a parameter where a forward may run; in place,
    only where models may be replicas."""
    if not study.constructors:
        return
    found: dict[ast.stmt, tuple[Construct, ast.expr]] = {}
    for written in writes.written(study, module):
        found.setdefault(module.table.statement(written), (CHANGED, writes.parameter_of(written)))
    assigned = data_assignments(module.source.tree) if has_data_assignments(module) else ()
    for statement, owner in assigned:
        found[statement] = ASSIGNED, owner
    for statement, (construct, parameter) in found.items():
        if is_gathered(statement, study, module) or not _is_parameter(parameter, study, module):
            continue
        models = models_running(statement, study, module)
        if models and (construct == ASSIGNED or _may_be_replicas(models, study)):
            yield Site(construct, module, statement, statement, parameter)


def _may_be_replicas(models: Collection[Constructor], study: Study) -> bool:
    return any("NO_SHARD" in strategies.possible(model, study) for model in models)


def _is_parameter(node: ast.expr, study: Study, module: Module) -> bool:
    kinds = ModuleValues(study)
    if kinds.kind(study.values(node, module)) is Kind.PARAMETER:
        return True
    match node:
        case ast.Attribute(value=owner, attr=attr) if attr in LEAVES:
            return kinds.kind(study.values(owner, module)) is Kind.MODULE
        case ast.Name():
            return any(
                _gives_parameters(_taken(d.value, d.unpack), study, module)
                for d in study.defined_by(node, module)
                if d.kind is BindingKind.ELEMENT and d.value is not None
            )
        case ast.Call(args=[*parts]) | ast.List(elts=parts) | ast.Tuple(elts=parts):
            return any(_is_parameter(part, study, module) for part in parts)  # not followed
        case ast.Subscript(value=inside) | ast.NamedExpr(value=inside):
            return _is_parameter(inside, study, module)
        case ast.BoolOp(values=parts):
            return any(_is_parameter(part, study, module) for part in parts)
        case ast.IfExp(body=one, orelse=other):
            return any(_is_parameter(part, study, module) for part in (one, other))
    return False


def _taken(iterated: ast.expr, unpack: tuple[int, ...]) -> ast.expr:
    """``self.k.parameters()`` for ``b`` of ``for a, b in zip(self.q.parameters(), ...)``."""
    match iterated:
        case ast.Call(func=ast.Name(id="zip"), args=given) if unpack and unpack[0] < len(given):
            return given[unpack[0]]
    return iterated


def _gives_parameters(iterated: ast.expr, study: Study, module: Module) -> bool:
    """Whether it goes over the parameters of a part of the model, no model of its own."""
    for node in walk(iterated):
        method = node.func if isinstance(node, ast.Call) else None
        if isinstance(method, ast.Attribute) and method.attr in METHODS:
            owner = method.value
            if study.traced(owner, module):
                continue
            path = access_path(owner) or ""
            part = ModuleValues(study).kind(study.values(owner, module)) is Kind.MODULE
            if part or path.partition(".")[0] == "self":
                return True
    return False


def decide_changed(site: Site, study: Study, code: str) -> Decision:
    """Writes in place are kept, or lost, as in FSDP1; but for those of replicas."""
    models = models_running(site.node, study, site.module)
    return study.rewritten(site, code, "kept, in a forward", models=models, review=REPLICAS)
