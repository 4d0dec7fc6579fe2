"""Name the ranks with a device mesh instead of a process group."""

import ast
from collections.abc import Set

from fsdp_migrate.analysis.values import Constant, Unknown
from fsdp_migrate.families.wrapping import device_code, devices, meshes, strategies
from fsdp_migrate.fsdp1.construct import Construct
from fsdp_migrate.fsdp1.site import Site
from fsdp_migrate.planning.context import Study
from fsdp_migrate.planning.edits import Code, code
from fsdp_migrate.planning.model import Constructor, Decision
from fsdp_migrate.planning.rule import Rule
from fsdp_migrate.planning.shard_plan import ShardPlan

RULE = Rule(
    code="FSDP114",
    name="mesh",
    handles=(
        "FullyShardedDataParallel(device_mesh=)",
        "FullyShardedDataParallel(process_group=)",
        "unnamed mesh",
    ),
)

PAIR = 2  # groups: one that shards and one that replicates


def decide(site: Site, study: Study) -> Decision:
    if site.construct == Construct.parse("unnamed mesh"):
        return study.converted(site, RULE.code, study.conversions[site.node])
    plan, value, name = study.argument(site)
    if isinstance(value, ast.Constant) and value.value is None:
        return study.dropped(site, RULE.code, "dropped, it was None")
    other = _other(name, plan)
    if other is not None:
        certain = not any(_may_be_none(each, site, study) for each in (value, other))
        reason = "both process_group and device_mesh are given, which FSDP1 refuses"
        if not certain:  # in the run-time form the running program tells
            reason = "both process_group and device_mesh may be given, of which FSDP1 takes one"
        return study.left(site, RULE.code, reason, "give one of them", final=certain)
    return _mesh(site, study) if name == "device_mesh" else _group(site, study)


def _other(name: str, plan: ShardPlan) -> ast.expr | None:
    """The other of both arguments, where it is not None as written."""
    (other,) = {"process_group", "device_mesh"} - {name}
    given = plan.constructor.arguments.get(other)
    return None if isinstance(given, ast.Constant) and given.value is None else given


def _mesh(site: Site, study: Study) -> Decision:
    plan, value, _ = study.argument(site)
    chosen = strategies.strategies_of(plan.constructor, study)
    found = meshes.read(value, site.module, study)
    if found.dimensions == {2} and strategies.is_over_all(plan.constructor, study):
        return study.left(
            site,
            RULE.code,
            f"{' or '.join(sorted(chosen))} on a 2-D mesh used only its first dimension in FSDP1",
            "pass the 1-D slice that is meant, mesh['name']",
        )
    if found.dimensions and max(found.dimensions) > 2:
        reason = "the mesh has more than two dimensions"
        return study.left(site, RULE.code, reason, "pass a slice of it", final=True)
    if found.dimensions == {1} and chosen and chosen <= strategies.HYBRID:
        reason = f"{' or '.join(chosen)} on a mesh of one dimension is an error in FSDP1"
        help_ = "build a 2-D mesh, or shard over the one that is given"
        return study.left(site, RULE.code, reason, help_, final=True)
    if chosen == {"NO_SHARD"}:
        if plan.constructor.may_lack("device_mesh"):
            reason = "a condition decides whether there is a mesh, and the strategy needs one"
            return study.left(site, RULE.code, reason, "give a mesh in any case")
        replicas = _first_group(value, site, plan, study)
        _replicate(plan, replicas, device_code.type_code(plan, study))
        return study.rewritten(site, RULE.code, "mesh that replicates over its first dimension")
    for call, module in found.unnamed:
        meshes.name_dimensions(call, module, plan, study)
    if chosen:  # a run-time strategy hands the mesh to sharding_kwargs itself
        plan.everywhere["mesh"] = code("{m}", m=value)
    return study.rewritten(site, RULE.code, "mesh")


def _group(site: Site, study: Study) -> Decision:
    plan, value, _ = study.argument(site)
    if study.external(value, site.module) & meshes.WORLD:
        return study.dropped(site, RULE.code, "dropped, the default mesh is WORLD")
    chosen = strategies.strategies_of(plan.constructor, study)
    if plan.constructor.may_lack("process_group"):
        problem = _problem_without(plan.constructor, chosen, study)
        if problem:
            return study.left(site, RULE.code, problem, "give a group in any case")
    if chosen.isdisjoint(strategies.HYBRID) and isinstance(value, ast.Tuple) and chosen:
        reason = f"{' or '.join(sorted(chosen))} takes one process group in FSDP1, and no pair"
        return study.left(site, RULE.code, reason, "pass the group that is meant", final=True)
    kind = device_code.type_code(plan, study)
    if chosen == {"NO_SHARD"}:
        _replicate(plan, _group_code(value, site, plan, study), kind)
        return study.rewritten(site, RULE.code, "mesh that replicates over the same ranks")
    name = plan.fresh("mesh")
    if plan.constructor.may_lack("process_group"):
        kind = code(kind.preview())  # the device's own entry gets to be something else
    plan.everywhere["mesh"] = code("{n}", n=name)
    if meshes.may_be_pair(plan.constructor, study):
        if isinstance(value, ast.Tuple) and len(value.elts) == PAIR:
            pair = dict(zip(("s", "r"), value.elts, strict=True))
            function = plan.support("mesh_of_pair")
            _make(plan, name, code("{f}({s}, {r}, {k})", f=function, k=kind, **pair))
            return study.rewritten(site, RULE.code, "mesh over the same ranks")
        function = plan.support("mesh_of_groups")
        _make(plan, name, code("{f}({g}, {k})", f=function, g=value, k=kind))
        return study.rewritten(site, RULE.code, "mesh over the same ranks")
    mesh_class = plan.name("torch.distributed.device_mesh", "DeviceMesh")
    group = _group_code(value, site, plan, study)
    _make(plan, name, code("{c}.from_group({g}, {k})", c=mesh_class, g=group, k=kind))
    return study.rewritten(site, RULE.code, "mesh over the same ranks")


def _make(plan: ShardPlan, name: str, mesh: Code) -> None:
    """Make a mesh before sharding; where a dictionary has the group, or not, in its place there."""
    if plan.constructor.may_lack("process_group"):
        plan.everywhere["mesh"] = mesh
    else:
        plan.setup.append(code("{n} = {m}", n=name, m=mesh))


def _problem_without(constructor: Constructor, chosen: Set[str], study: Study) -> str:
    """Why a dictionary that has a group under a condition cannot have a mesh there instead, as one
    that has none means all ranks."""
    if not chosen or not (chosen <= strategies.OVER_ALL or len(chosen) > 1):
        return "a condition decides whether there is a group, and the strategy needs a mesh"
    if devices.read(constructor, study).is_accelerator:
        return ""
    # The device's entry makes a mesh of all ranks, in the place of which that of the group stands.
    entries = constructor.entries
    lines = {name: e.statement.lineno for e in entries if not e.is_conditional for name in [e.name]}
    groups = [e.statement.lineno for e in entries if e.name == "process_group"]
    if lines.get("device_id", max(groups)) < min(groups):
        return ""
    return "a condition decides whether there is a group, and the mesh has a device of its own"


def _group_code(value: ast.expr, site: Site, plan: ShardPlan, study: Study) -> Code:
    """The group that FSDP1 was given; all ranks where that may be None."""
    if _may_be_none(value, site, study):
        return code("{g} or {d}.group.WORLD", g=value, d=plan.dist())
    return code("{g}", g=value)


def _first_group(value: ast.expr, site: Site, plan: ShardPlan, study: Study) -> Code:
    """The group of a mesh's first dimension, which is all that FSDP1 took of it where nothing is
    sharded (``_init_process_group_state``)."""
    if not _may_be_none(value, site, study):
        return code("{m}.get_group(0)", m=value)
    given = code("{m}", m=value)
    if not isinstance(value, ast.Name):
        name = plan.fresh("given_mesh")
        plan.setup.append(code("{n} = {m}", n=name, m=value))
        given = code("{n}", n=name)
    none = code("{m} is None", m=given)
    return code("{d}.group.WORLD if {n} else {m}.get_group(0)", d=plan.dist(), n=none, m=given)


def _may_be_none(value: ast.expr, site: Site, study: Study) -> bool:
    return any(isinstance(v, (Constant, Unknown)) for v in study.values(value, site.module))


def _replicate(plan: ShardPlan, group: Code, kind: Code) -> None:
    """A mesh whose first dimension is a group that replicates; each rank shards by itself."""
    name = plan.fresh("mesh")
    mesh_class = plan.name("torch.distributed.device_mesh", "DeviceMesh")
    plan.everywhere["mesh"] = code("{n}", n=name)
    ranks, own, dist = plan.fresh("replicas"), plan.fresh("own_group"), plan.dist()
    plan.setup += [
        code("{r} = {g}", r=ranks, g=group),
        code(
            "{o} = {d}.new_group([{d}.get_rank()], use_local_synchronization=True)", o=own, d=dist
        ),
        code(
            "{n} = {c}.from_group([{r}, {o}], {k}, "
            "[[rank] for rank in {d}.get_process_group_ranks({r})], "
            'mesh_dim_names=("replicate", "shard"))',
            n=name,
            c=mesh_class,
            r=ranks,
            o=own,
            k=kind,
            d=dist,
        ),
    ]
