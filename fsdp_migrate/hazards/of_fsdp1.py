"""FSDP1's questions and methods for models that ``fully_shard`` shards."""

from __future__ import annotations

import ast
from collections.abc import Iterator, Mapping
from typing import NamedTuple

from fsdp_migrate.analysis.module import Module
from fsdp_migrate.fsdp1.references import enclosing_function
from fsdp_migrate.hazards.misfits import is_meant_to_fail
from fsdp_migrate.hazards.order import is_surely_sharded
from fsdp_migrate.hazards.parameters import holds_all
from fsdp_migrate.planning.context import Study
from fsdp_migrate.planning.edits import Edit, ReplaceExpression, code
from fsdp_migrate.syntax.expressions import first_argument, last_name
from fsdp_migrate.syntax.trees import walk

PACKAGE = "torch.distributed.fsdp."
FSDP1, FSDP2 = "FullyShardedDataParallel", "FSDPModule"
CLIP = "clip_grad_norm_"
STATE = "get_model_state_dict() with StateDictOptions(full_state_dict=True, cpu_offload=True)"
MOMENTS = "get_optimizer_state_dict(model, optimizer)"
RAISES = "raises an AttributeError"
# What each does to a model of FSDP2, and what is to be written; measured on torch 2.13.
CLASS: Mapping[str, tuple[str, str]] = {
    "summon_full_params": (
        "gathers nothing: parameters stay this rank's shards",
        "full_tensor() of each parameter, or unshard() and reshard() around it",
    ),
    "set_state_dict_type": ("changes nothing: states stay each rank's shards", STATE),
    "state_dict_type": ("raises a KeyError when it is left", STATE),
    "fsdp_modules": (
        "gives an empty list",
        "[m for m in model.modules() if isinstance(m, FSDPModule)]",
    ),
    "optim_state_dict": (RAISES, MOMENTS),
    "optim_state_dict_to_load": (RAISES, "set_optimizer_state_dict(model, optimizer, state)"),
    "full_optim_state_dict": ("raises an IndexError", MOMENTS),
    "sharded_optim_state_dict": ("raises an IndexError", MOMENTS),
    CLIP: (RAISES, "torch.nn.utils.clip_grad_norm_(model.parameters(), ...)"),
}
METHODS: Mapping[str, tuple[str, str]] = {
    "no_sync": (
        "there is not: it raises an AttributeError",
        "set_requires_gradient_sync(False), and True before the last backward of a step",
    ),
    CLIP: (
        "there is not: it raises an AttributeError",
        "torch.nn.utils.clip_grad_norm_(model.parameters(), ...)",
    ),
    "summon_full_params": (
        "there is not: it raises an AttributeError",
        CLASS["summon_full_params"][1],
    ),
}
NOT_ONE = ("is False of it", "isinstance(..., FSDPModule)")


class Mistaken(NamedTuple):
    """A call of FSDP1's that is given a model of FSDP2."""

    call: ast.Call
    name: str
    does: str
    help: str
    edits: tuple[Edit, ...] = ()


def find(study: Study, module: Module) -> Iterator[Mistaken]:
    """The calls of a file."""
    calls = module.table.calls_by_name
    asked = {"isinstance"} if module.mentions(FSDP1) else set()  # names cost more than text
    for call in calls.of({*asked, *CLASS, *METHODS}):
        found = _asked(call, study, module)
        if found is None or is_meant_to_fail(call, module):
            continue
        model, mistaken = found
        if is_surely_sharded(model, call, module, study):
            yield mistaken


def _asked(call: ast.Call, study: Study, module: Module) -> tuple[ast.expr, Mistaken] | None:
    match call:
        case ast.Call(func=ast.Name(id="isinstance"), args=[model, cls]):
            wrong = [each for each in _classes(cls) if _is_fsdp1(each, study, module)]
            if not wrong or _knows_both(call, module):
                return None
            return model, Mistaken(call, f"isinstance(..., {last_name(wrong[0])})", *NOT_ONE)
        case ast.Call(func=ast.Attribute(value=owner, attr=method)):
            if _is_fsdp1(owner, study, module):
                given = first_argument(call)
                if given is None or method not in CLASS:
                    return None
                return given, Mistaken(call, f"{last_name(owner)}.{method}", *CLASS[method])
            if method in METHODS and not study.external(call.func, module):
                edits_ = _clipped(call, owner, study, module) if method == CLIP else ()
                return owner, Mistaken(call, method, *METHODS[method], edits_)
    return None


def _classes(cls: ast.expr) -> list[ast.expr]:
    return cls.elts if isinstance(cls, ast.Tuple) else [cls]


def _is_fsdp1(node: ast.expr, study: Study, module: Module) -> bool:
    if not isinstance(node, (ast.Name, ast.Attribute)):
        return False
    names = study.external(node, module)
    return bool(names) and all(n.startswith(PACKAGE) and n.endswith(f".{FSDP1}") for n in names)


def _knows_both(call: ast.Call, module: Module) -> bool:
    """Whether the function asks for FSDP2's class as well."""
    function = enclosing_function(module, call)
    return any(last_name(node) == FSDP2 for node in walk(function))


def _clipped(call: ast.Call, model: ast.expr, study: Study, module: Module) -> tuple[Edit, ...]:
    """``clip_grad_norm_(model.parameters(), ...)``, where all of these are sharded."""
    arguments = [*call.args, *(k.value for k in call.keywords)]
    if any(k.arg not in {"max_norm", "norm_type"} for k in call.keywords) or not arguments:
        return ()
    if any(isinstance(each, ast.Starred) for each in arguments) or not holds_all(
        model, module, study
    ):
        return ()
    namer = study.proposal()
    name = namer.name(module, "torch.nn.utils", CLIP, call)
    texts = [f"{{a{i}}}" for i in range(len(call.args))]
    texts += [f"{k.arg}={{a{len(call.args) + i}}}" for i, k in enumerate(call.keywords)]
    parts = {f"a{i}": each for i, each in enumerate(arguments)}
    new = code(f"{name}({{m}}.parameters(), {', '.join(texts)})", m=model, **parts)
    return (*namer.edits, ReplaceExpression(module, call, new))
