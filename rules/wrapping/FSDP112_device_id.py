"""Take the device from the mesh instead of `device_id`."""

import ast

from fsdp_migrate.families.wrapping import device_code, devices
from fsdp_migrate.fsdp1.site import Site
from fsdp_migrate.planning.context import Study
from fsdp_migrate.planning.edits import code
from fsdp_migrate.planning.model import Decision
from fsdp_migrate.planning.rule import Rule
from fsdp_migrate.planning.shard_plan import ShardPlan

RULE = Rule(code="FSDP112", name="device_id", handles=("FullyShardedDataParallel(device_id=)",))


def decide(site: Site, study: Study) -> Decision:
    plan, value, _ = study.argument(site)
    if isinstance(value, ast.Constant) and value.value is None:
        return study.dropped(site, RULE.code, "dropped, it was None")
    device = devices.read(plan.constructor, study)
    may_lack = plan.constructor.may_lack("process_group")
    grouped = plan.constructor.has("process_group") and "mesh" in plan.everywhere and not may_lack
    has_mesh = plan.constructor.has("device_mesh") or grouped
    made_current = device_code.make_current(plan, study)
    if not device.is_accelerator and not has_mesh:
        if may_lack or not plan.everywhere.keys() & {
            "mesh",
            "**",
        }:  # each strategy may have its own
            _explicit_mesh(plan, study)
        return study.rewritten(site, RULE.code, "the mesh says which device")
    if made_current:
        return study.rewritten(site, RULE.code, made_current)
    device_code.keep_effects(plan, study)
    return study.dropped(site, RULE.code, "dropped, the current device is used")


def _explicit_mesh(plan: ShardPlan, study: Study) -> None:
    init = plan.name("torch.distributed.device_mesh", "init_device_mesh")
    kind = device_code.type_code(plan, study)
    shape = f"({plan.dist()}.get_world_size(),)"
    make = code("{i}({k}, {s})", i=init, k=kind, s=shape)
    name = study.made_before(plan.constructor, make)
    if not name:
        name = plan.fresh("mesh")
        plan.setup.append(code("{n} = {m}", n=name, m=make))
        study.make(plan.constructor, make, name)
    plan.everywhere["mesh"] = code("{n}", n=name)
