"""Loads by torch's own functions, which FSDP1's models took as FSDP2's do.

What they are given may be what FSDP1 wrote. One ``step`` for all parameters of a flat parameter is
then counted once for each, as where FSDP1's conversion stood between (see FSDP305).
"""

from __future__ import annotations

import ast
from collections.abc import Iterator

from fsdp_migrate.analysis.module import Module
from fsdp_migrate.analysis.values import Made, Unknown
from fsdp_migrate.families.checkpoints import optimizer_states, sharded_files
from fsdp_migrate.fsdp1.construct import Construct
from fsdp_migrate.fsdp1.site import Site
from fsdp_migrate.planning.context import Study
from fsdp_migrate.planning.model import Constructor
from fsdp_migrate.planning.shard_plan import DCP
from fsdp_migrate.syntax.expressions import bind_arguments
from fsdp_migrate.syntax.kinds import present

LOAD = Construct.parse("torch's load of an optimizer's state")
STATE = "optim_state_dict"
SETTERS = {
    "set_optimizer_state_dict": ("model", "optimizers", STATE, "options"),
    "set_state_dict": ("model", "optimizers", "model_state_dict", STATE, "options"),
}
DEEPEST = 4  # functions that hand a state on


def find_torchs_loads(study: Study, module: Module) -> Iterator[Site]:
    """A site for every state of an optimizer that comes from a file with shared steps, maybe."""
    if not study.constructors or not module.mentions(*SETTERS):
        return
    for call in module.table.calls:
        bound = _bound(call, module, study)
        if bound is None or not bound.keys() >= {"model", "optimizers", STATE}:
            continue
        optimizer, state = bound["optimizers"], bound[STATE]
        models = models_of(bound["model"], module, study)
        shared = models and optimizer_states.may_share_steps(models, study)
        if not shared or not comes_from_file(state, module, study):
            continue
        if optimizer_states.kinds(study.values(optimizer, module), study).counts_steps:
            yield Site(LOAD, module, state, state, bound["model"])


def models_of(model: ast.expr, module: Module, study: Study) -> frozenset[Constructor]:
    """The FSDP1 models that are loaded into: any, where that cannot be followed."""
    if not study.traced(model, module):
        return frozenset()
    return study.models(model, module).constructors or study.every_constructor


def _bound(call: ast.Call, module: Module, study: Study) -> dict[str, ast.expr] | None:
    for name in study.external(call.func, module):
        owner, _, last = name.rpartition(".")
        if owner == DCP and last in SETTERS:
            return bind_arguments(call, SETTERS[last])
    return None


def comes_from_file(node: ast.expr, module: Module, study: Study, depth: int = DEEPEST) -> bool:
    """Whether ``torch.load`` has read a state; where nothing tells, whether the project reads its
    files so. DCP reads into what the optimizer has."""
    while True:
        match node:
            case ast.Subscript(value=inner):
                node = inner
            case ast.Call(func=ast.Attribute(value=inner, attr="get" | "pop")):
                node = inner
            case _:
                break
    for value in study.values(node, module):
        if isinstance(value, Made) and value.made_by in sharded_files.FILES:
            return True
        if isinstance(value, Unknown) and isinstance(value.node, ast.arg):
            return sharded_files.are_torchs(value.module, study)
        part = value.node if isinstance(value.node, ast.Subscript) else None
        is_other = depth and part is not None and part is not node
        if is_other and comes_from_file(present(part), value.module, study, depth - 1):
            return True
    return False
