"""Device meshes that reach FSDP1 constructors."""

from __future__ import annotations

import ast
from dataclasses import dataclass, field

from fsdp_migrate.analysis.module import Module
from fsdp_migrate.analysis.values import Constant, Made
from fsdp_migrate.families.wrapping import strategies
from fsdp_migrate.fsdp1.construct import Construct
from fsdp_migrate.fsdp1.site import Site
from fsdp_migrate.planning.context import Study
from fsdp_migrate.planning.edits import code
from fsdp_migrate.planning.model import Constructor
from fsdp_migrate.planning.shard_plan import ShardPlan
from fsdp_migrate.syntax.kinds import of_kind

WORLD = frozenset(
    {
        "torch.distributed.group.WORLD",
        "torch.distributed.GroupMember.WORLD",
        "torch.distributed.distributed_c10d.group.WORLD",
    }
)


@dataclass(eq=False)
class Mesh:
    """What is known of the meshes an expression may be."""

    dimensions: set[int] = field(default_factory=set)
    unnamed: list[tuple[ast.Call, Module]] = field(default_factory=list)  # 2-D, without names


def read(node: ast.expr, module: Module, study: Study) -> Mesh:
    """Follow a mesh to where it is made; ``mesh["dp"]`` is 1-D, ``mesh["dp", "tp"]`` 2-D."""
    result = Mesh()
    if isinstance(node, ast.Subscript):
        if isinstance(node.slice, ast.Tuple):
            result.dimensions.add(len(node.slice.elts))
        elif isinstance(node.slice, ast.Constant):
            result.dimensions.add(1)
        return result
    for value in study.values(node, module):
        if not isinstance(value, Made) or value.made_by.rpartition(".")[2] not in MAKERS:
            continue
        call = of_kind(value.node, ast.Call)
        second = call.args[1] if len(call.args) > 1 else None
        given = {k.arg: k.value for k in call.keywords}
        if value.made_by.endswith(".DeviceMesh"):
            count = _depth(given.get("mesh", second))
            named = "mesh_dim_names" in given
        else:
            shape = given.get("mesh_shape", second)
            count = len(shape.elts) if isinstance(shape, (ast.Tuple, ast.List)) else 0
            named = "mesh_dim_names" in given or len(call.args) > 2
        if count:
            result.dimensions.add(count)
        if count == 2 and not named:
            result.unnamed.append((call, value.module))
    return result


MAKERS = frozenset({"init_device_mesh", "DeviceMesh"})


def _depth(ranks: ast.expr | None) -> int:
    """How many dimensions a nested list of ranks has that is written out, or 0."""
    if not isinstance(ranks, (ast.List, ast.Tuple)) or not ranks.elts:
        return 0
    first = ranks.elts[0]
    if isinstance(first, (ast.List, ast.Tuple)):
        inner = _depth(first)
        return inner + 1 if inner else 0
    return 1


def is_sharded_by_all(constructor: Constructor, study: Study) -> bool:
    """Whether every rank of the program is known to hold a part of the model.

    FSDP1's rank 0 of a model is the first of those that shard it, so that with groups, slices and
    hybrid strategies there are several, and without sharding every rank is one.
    """
    if constructor.is_open:
        words = ("process_group", "device_mesh", "HYBRID_SHARD", "NO_SHARD")
        return not study.project.mentions(*words)
    if not strategies.is_over_all(constructor, study):
        return False
    for name in ("process_group", "device_mesh"):
        node = constructor.arguments.get(name)
        if node is None or study.external(node, constructor.module) & WORLD:
            continue
        for value in study.values(node, constructor.module):
            if isinstance(value, Constant) and value.value is None:
                continue
            made = value.made_by.rpartition(".")[2] if isinstance(value, Made) else ""
            if made != "init_device_mesh" or read(node, constructor.module, study).dimensions != {
                1
            }:
                return False
    return True


def may_be_pair(constructor: Constructor, study: Study) -> bool:
    """Whether a process group may be a pair of them, for hybrid sharding, which takes no other."""
    given = constructor.arguments["process_group"]
    chosen = strategies.strategies_of(constructor, study)
    if chosen and chosen.isdisjoint(strategies.HYBRID):
        return False
    values = study.values(given, constructor.module)
    groups = (isinstance(v, Made) and v.made_by == "torch.distributed.new_group" for v in values)
    return not all(groups)


def has_one_first_rank(constructor: Constructor, study: Study) -> bool:
    """Whether the program's rank 0 is the one that FSDP1 took a model's weights from.

    Weights were broadcast within the ranks that share a model's parameters. Those are all ranks
    but for groups and slices of meshes: there every group had a first rank of its own.
    """
    if constructor.has("process_group"):
        group = constructor.arguments["process_group"]
        if not study.external(group, constructor.module) & WORLD:
            return False
    mesh = constructor.arguments.get("device_mesh")
    if mesh is None:
        return True
    replicates = strategies.strategies_of(constructor, study) == {"NO_SHARD"}
    if replicates and read(mesh, constructor.module, study).dimensions != {1}:
        return False  # only the first dimension shared weights
    dimensions: set[object] | None = None
    if isinstance(mesh, ast.Subscript):
        names = mesh.slice.elts if isinstance(mesh.slice, ast.Tuple) else [mesh.slice]
        dimensions = {n.value for n in names if isinstance(n, ast.Constant)}
        mesh = mesh.value
    for value in study.values(mesh, constructor.module):
        if isinstance(value, Constant) and value.value is None:
            continue
        if not isinstance(value, Made) or value.made_by.rpartition(".")[2] != "init_device_mesh":
            return False
        if dimensions is not None and dimensions != set(_names(value)):
            return False
    return True


def _names(mesh: Made) -> list[object]:
    """The names of a mesh's dimensions where it is made, as far as they are written out."""
    call = of_kind(mesh.node, ast.Call)
    given = {k.arg: k.value for k in call.keywords}
    names = given.get("mesh_dim_names", call.args[2] if len(call.args) > 2 else None)
    elements = names.elts if isinstance(names, (ast.Tuple, ast.List)) else []
    return [n.value for n in elements if isinstance(n, ast.Constant)]


def name_dimensions(call: ast.Call, module: Module, plan: ShardPlan, study: Study) -> None:
    """Give a 2-D mesh the names FSDP2 insists on, where it is made."""
    proposal = study.proposal()
    proposal.add_keyword(module, call, "mesh_dim_names", code('("replicate", "shard")'))
    study.convert(call, None, "mesh_dim_names", plan.constructor, proposal)
    plan.further.append(Site(Construct.parse("unnamed mesh"), module, call, call))
