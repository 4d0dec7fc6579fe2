"""Which device an FSDP1 constructor put its model on, as far as the code says.

``fully_shard`` takes the device from the mesh: by default the current accelerator's type, even
under gloo. FSDP1 took ``device_id``.
"""

from __future__ import annotations

import ast
from collections.abc import Iterable
from dataclasses import dataclass

from fsdp_migrate.construct.sharding import ShardPlan
from fsdp_migrate.planning.model import Constructor
from fsdp_migrate.proposal import Code, code
from fsdp_migrate.study import Study
from fsdp_migrate.trace.flow import access_path
from fsdp_migrate.trace.values import Constant, External, Made, Value, Values

CURRENT_DEVICE = frozenset(
    {"torch.cuda.current_device", "torch.xpu.current_device", "torch.npu.current_device"}
)
SET_DEVICE = frozenset(
    {
        "torch.cuda.set_device",
        "torch.cuda.device",
        "torch.xpu.set_device",
        "torch.npu.set_device",
        "torch.accelerator.set_device_index",
        "torch.accelerator.set_device_idx",
    }
)


@dataclass(frozen=True)
class Device:
    """``kinds``: the device types the code names; ``is_object``: it is a ``torch.device``."""

    kinds: frozenset[str]
    is_object: bool
    is_current: bool  # what ``torch.cuda.current_device()`` says anyway

    @property
    def certain(self) -> str:
        """The only possible type, or nothing."""
        return next(iter(self.kinds)) if len(self.kinds) == 1 else ""


def read(constructor: Constructor, study: Study) -> Device:
    """What ``device_id`` says; a bare index or nothing means CUDA."""
    node = constructor.arguments.get("device_id")
    if node is None:
        return Device(frozenset({"cuda"}), is_object=False, is_current=True)
    return of(study.values(node, constructor.module), study)


def of(values: Values, study: Study) -> Device:
    kinds: set[str] = set()
    objects = 0
    current = 0
    for value in values:
        made = value.made_by if isinstance(value, Made) else ""
        current += made in CURRENT_DEVICE
        if made == "torch.device":
            objects += 1
            kinds |= _named(value, study)
        elif made in CURRENT_DEVICE:
            kinds.add(made.split(".")[1])
        elif isinstance(value, Constant) and isinstance(value.value, str):
            kinds.add(value.value.split(":", maxsplit=1)[0])
        elif not isinstance(value, Constant):
            kinds.add("cuda")  # an index worked out somewhere: FSDP1 took it as the GPU's
    every = len(values)
    return Device(frozenset(kinds) or frozenset({"cuda"}), objects == every > 0, current == every)


def _named(value: Value, study: Study) -> set[str]:
    """The type in ``torch.device("cuda", 0)``, ``torch.device(f"cuda:{rank}")``, ..."""
    call = value.node
    assert isinstance(call, ast.Call)
    if not call.args:
        return {"?"}
    first = call.args[0]
    if isinstance(first, ast.JoinedStr) and first.values:
        first = first.values[0] if isinstance(first.values[0], ast.Constant) else first
    if isinstance(first, ast.Constant):
        return (
            {str(first.value).split(":", maxsplit=1)[0]}
            if isinstance(first.value, str)
            else {"cuda"}
        )
    found: set[str] = set()
    for each in study.tracer.evaluate(first, value.module, value.frame):
        literal = isinstance(each, Constant) and isinstance(each.value, str)
        found.add(str(each.value).split(":", maxsplit=1)[0] if literal else "?")  # type: ignore[attr-defined]
    return found


def type_code(plan: ShardPlan, study: Study) -> Code:
    """An expression for the mesh's device type: a literal, or ``device.type`` at run time."""
    device = read(plan.constructor, study)
    if device.certain and device.certain != "?":
        return code('"{k}"', k=device.certain)
    node = plan.constructor.arguments.get("device_id")
    if device.is_object and node is not None and access_path(node) is not None:
        return code("{d}.type", d=ast.unparse(node))
    return code('"cuda"')


def sets_device(study: Study) -> bool:
    """Whether the project chooses the current device anywhere (``torch.cuda.set_device``)."""
    return any(
        study.external(call.func, module) & SET_DEVICE
        for module in study.project.modules
        for call in _named_like(module.table.calls, {"set_device", "device", "set_device_index"})
    )


def _named_like(calls: Iterable[ast.Call], names: set[str]) -> Iterable[ast.Call]:
    for call in calls:
        func = call.func
        last = func.attr if isinstance(func, ast.Attribute) else getattr(func, "id", "")
        if last in names:
            yield call


def externals(values: Values) -> frozenset[str]:
    """The outside names among some values."""
    return frozenset(v.name for v in values if isinstance(v, External))
