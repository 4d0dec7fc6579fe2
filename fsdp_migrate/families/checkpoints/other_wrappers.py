"""Models that may be sharded, under DDP or neither, in one line: they are told apart."""

from __future__ import annotations

import ast
from typing import NamedTuple

from fsdp_migrate.analysis.module import Module
from fsdp_migrate.analysis.values import Value
from fsdp_migrate.families.checkpoints.compiled_models import may_be_compiled
from fsdp_migrate.fsdp1 import model_values
from fsdp_migrate.fsdp1.api import PACKAGE
from fsdp_migrate.planning.context import Study
from fsdp_migrate.planning.edits import Code, code
from fsdp_migrate.planning.model import Constructor, Models
from fsdp_migrate.planning.proposal import Proposal


class Choice(NamedTuple):
    test: Code
    where_true: Code
    otherwise: Code


def choice(
    sharded: Code,
    own: Code,
    model: Code | ast.expr | str,
    module: Module,
    near: ast.AST,
    study: Study,
    proposal: Proposal,
    *,
    models: frozenset[Constructor],
    is_whole: bool,
) -> Choice:
    """What is done with a sharded model, and with any other.

    A model that is neither sharded nor under DDP often has no process group, which DCP's functions
    may need: it is treated as before. Only where such a model may be compiled, or where
    its parts are sharded and not the whole, it has no class that says so, and DDP's is asked for.

    sharded: the code for a sharded model; own: the model's own method, as it was.
    models: the sharded ones that it may be.
    is_whole: the model itself is sharded, not only parts of it.
    """
    if is_whole and not may_be_compiled(models, study):
        name = proposal.name(module, PACKAGE, "FSDPModule", near)
        return Choice(code("isinstance({m}, {n})", m=model, n=name), sharded, own)
    name = proposal.name(module, "torch.nn.parallel", "DistributedDataParallel", near)
    return Choice(code("isinstance({m}, {n})", m=model, n=name), own, sharded)


def own_states(found: Models, method: str, study: Study) -> bool:
    """Whether a model may also be of a class of the project's that has such a method itself. What
    only holds sharded parts is no model."""
    return bool(found) and any(
        model_values.look_alike(v, method, study.tracer) for v in found.others
    )


def are_told_apart(found: Models, method: str, study: Study) -> bool:
    """Whether FSDP2's class tells sharded models from all that a model may be besides, and has such
    a method itself: what is of the project's own classes, or under another library's FSDP."""
    alike = {v: model_values.look_alike(v, method, study.tracer) for v in found.others}
    if any(name and is_wrapped(value, found, study) for value, name in alike.items()):
        return False
    return not may_be_compiled(found.constructors, study)


def by_group(sharded: Code, own: Code, module: Module, near: ast.AST, proposal: Proposal) -> Choice:
    """What is done where there is a process group, and where there is none and so no FSDP."""
    dist = proposal.module_name(module, "torch.distributed", "dist", near)
    return Choice(code("{d}.is_initialized()", d=dist), sharded, own)


def is_wrapped(value: Value, found: Models, study: Study) -> bool:
    """Whether a value is what one of the models is made of: ``fully_shard`` makes one object of a
    model and the module inside, which no class tells apart."""
    return any(
        c.has_module and value in study.values(c.wrapped, c.module) for c in found.constructors
    )


def replace_by(chosen: Choice, module: Module, call: ast.Call, proposal: Proposal) -> None:
    """Put a choice in the place of a call: a statement of its own becomes two branches."""
    written: dict[str, Code | ast.expr | str] = {
        "a": chosen.where_true,
        "t": chosen.test,
        "b": chosen.otherwise,
    }
    if isinstance(module.table.parents[call], ast.Expr):
        branches = Code("if {t}:\n    {a}\nelse:\n    {b}", written)
        proposal.replace_statement(module, module.table.statement(call), branches)
    else:
        proposal.replace(module, call, Code("({a} if {t} else {b})", written))
