"""Read FSDP1's ``CPUOffload``."""

from __future__ import annotations

import ast

from fsdp_migrate.analysis.flow import access_path
from fsdp_migrate.analysis.module import Module
from fsdp_migrate.analysis.values import Constant, Made, Value
from fsdp_migrate.families.wrapping.evaluation_scripts import only_evaluates
from fsdp_migrate.fsdp1 import api as fsdp1
from fsdp_migrate.planning.context import Study
from fsdp_migrate.planning.model import Constructor

INIT = "init_process_group"
NEEDS_CPU_BACKEND = (
    "parameters live on the CPU: clipping and checkpoints need a CPU backend, "
    'init_process_group("cpu:gloo,cuda:nccl")'
)


class Unreadable(Exception):
    """It cannot be converted; the message says why."""


def flag(value: Value, study: Study) -> bool | ast.expr:
    """Whether a value offloads: known, or the expression that says so at run time.

    Raises:
        Unreadable: it may be something else, or its flag is read or set later.
    """
    if isinstance(value, Constant) and value.value is None:
        return False
    if not isinstance(value, Made) or fsdp1.canonical(value.made_by) != "CPUOffload":
        raise Unreadable(study.unknown([value]) or "cpu_offload is not a CPUOffload value")
    if _is_used(value, study):
        raise Unreadable("its offload_params is used later, which an FSDP2 policy does not have")
    node = None
    if isinstance(value.node, ast.Call):
        node = value.node.args[0] if value.node.args else None
        for keyword in value.node.keywords:
            if keyword.arg != "offload_params":
                raise Unreadable("the arguments of CPUOffload cannot be read")
            node = keyword.value
    if node is None:
        return False
    constant = study.literal(node, value.module)
    if constant is None:
        return node
    return bool(constant.value) or _is_its_own_condition(node, value)


def _is_its_own_condition(flag: ast.expr, value: Value) -> bool:
    """Whether a value is made where its flag is true alone, whatever callers in sight give:
    ``CPUOffload(offload_params=offload) if offload else None``."""
    path, inside = access_path(flag), value.node
    for parent in value.module.table.ancestors(value.node) if path else ():
        match parent:
            case ast.IfExp(test=test, body=first) if first is inside and access_path(test) == path:
                return True
            case ast.If(test=test, body=body) if inside in body and access_path(test) == path:
                return True
        inside = parent
    return False


def _is_used(value: Made, study: Study) -> bool:
    """Whether something asks the object for its flag, or sets it."""
    return any(
        each.node is value.node
        for module in study.project.modules
        for attribute in module.table.attributes_by_name.named("offload_params")
        for each in study.values(attribute.value, module)
    )


def may_offload(constructor: Constructor, study: Study) -> bool:
    """Whether parameters of a model may be kept on the CPU."""
    given = constructor.arguments.get("cpu_offload")
    if given is None:
        return constructor.is_open
    try:
        flags = [flag(value, study) for value in study.values(given, constructor.module)]
    except Unreadable:
        return True
    return any(each is not False for each in flags)


def doubt(constructor: Constructor, study: Study) -> str:
    """What has to be judged of models whose parameters are on the CPU: a process group of the
    project may be made for other devices alone. A file that makes its groups itself has those. A
    script that evaluates a model and no more reduces nothing there."""
    if only_evaluates(constructor.module, study):
        return ""
    found = [
        (call, module)
        for module in study.project.modules
        if module.mentions(INIT)
        for call in module.table.calls_by_name.named(INIT)
    ]
    found = [each for each in found if each[1] is constructor.module] or found
    lacks = not found or any(_names_other_devices(call, module, study) for call, module in found)
    return NEEDS_CPU_BACKEND if lacks else ""


def _names_other_devices(call: ast.Call, module: Module, study: Study) -> bool:
    named = [k.value for k in call.keywords if k.arg == "backend"] or call.args[:1]
    if not named:  # then there is one for each kind of device
        return any(keyword.arg is None for keyword in call.keywords)
    if isinstance(named[0], ast.JoinedStr):  # f"cpu:gloo,{device}:{backend}"
        texts = [each.value for each in named[0].values if isinstance(each, ast.Constant)]
        return not any("cpu:" in str(text) for text in texts)
    backends = {v.value if isinstance(v, Constant) else "" for v in study.values(named[0], module)}
    return not all(b is None or "cpu:" in str(b) or b in {"gloo", "mpi"} for b in backends)
