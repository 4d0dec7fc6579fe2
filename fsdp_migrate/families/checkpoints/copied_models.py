"""Code that copies or pickles a whole model, which ``fully_shard`` forbids."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from typing import TypeGuard

from fsdp_migrate.analysis.module import Module
from fsdp_migrate.fsdp1.construct import Construct
from fsdp_migrate.fsdp1.site import Site
from fsdp_migrate.fsdp1.unwrapping import INNER
from fsdp_migrate.planning.context import Study
from fsdp_migrate.syntax.expressions import given_arguments

COPY = Construct.parse("copy of a model")
PICKLE = Construct.parse("pickled model")
COPIERS = frozenset(
    {
        "copy.deepcopy",
        "torch.optim.swa_utils.AveragedModel",
        *(f"timm.utils.{n}" for n in ("ModelEma", "ModelEmaV2", "ModelEmaV3")),
        *(f"timm.utils.model_ema.{n}" for n in ("ModelEma", "ModelEmaV2", "ModelEmaV3")),
        "ema_pytorch.EMA",
    }
)
PICKLERS = frozenset(
    f"{module}.{name}"
    for module, names in {
        "torch": ("save",),
        "pickle": ("dump", "dumps"),
        "cloudpickle": ("dump", "dumps"),
        "dill": ("dump", "dumps"),
        "joblib": ("dump",),
    }.items()
    for name in names
)
LAST_NAMES = {name.rpartition(".")[2] for name in COPIERS | PICKLERS}


def find_copied_models(study: Study, module: Module) -> Iterator[Site]:
    """Sites for calls that copy an FSDP model, or write one to a file as it is."""
    for call, construct in copying_calls(study, module):
        for given in _given(call):
            whole = given.value if _is_inside(given) else given
            if study.traced(given, module) or study.traced(whole, module):
                yield Site(construct, module, call, call, given)
                break


def copying_calls(study: Study, module: Module) -> Iterator[tuple[ast.Call, Construct]]:
    """Calls that copy what they are given, or write it to a file as it is."""
    renamed = {b.name for b in module.table.imports if b.qualified.rpartition(".")[2] in LAST_NAMES}
    for call in module.table.calls_by_name.of(LAST_NAMES | renamed):
        names = study.external(call.func, module)
        if names & COPIERS:
            yield call, COPY
        elif names & PICKLERS:
            yield call, PICKLE


def _is_inside(node: ast.expr) -> TypeGuard[ast.Attribute]:
    """``model.module``, which is the sharded model itself in FSDP2."""
    return isinstance(node, ast.Attribute) and node.attr in INNER


def _given(call: ast.Call) -> Iterator[ast.expr]:
    """What is copied, or the parts of a dictionary that is pickled."""
    first = given_arguments(call)[:1]
    for given in first:
        parts = given.values if isinstance(given, ast.Dict) else [given]
        yield from (p for p in parts if isinstance(p, (ast.Name, ast.Attribute, ast.Subscript)))
