"""Device meshes that reach FSDP1 constructors."""

from __future__ import annotations

import ast
from dataclasses import dataclass, field

from fsdp_migrate.proposal import code
from fsdp_migrate.sharding import ShardPlan
from fsdp_migrate.sites import Site
from fsdp_migrate.study import Study
from fsdp_migrate.trace.project import Module
from fsdp_migrate.trace.values import Made

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
    """Follow a mesh to its ``init_device_mesh`` calls; a slice ``mesh["dp"]`` is 1-D."""
    result = Mesh()
    if isinstance(node, ast.Subscript):
        result.dimensions.add(1)
        return result
    for value in study.values(node, module):
        if not isinstance(value, Made) or not value.made_by.endswith(".init_device_mesh"):
            continue
        call = value.node
        assert isinstance(call, ast.Call)
        shape = call.args[1] if len(call.args) > 1 else None
        for keyword in call.keywords:
            if keyword.arg == "mesh_shape":
                shape = keyword.value
        if not isinstance(shape, (ast.Tuple, ast.List)):
            continue
        result.dimensions.add(len(shape.elts))
        named = len(call.args) > 2 or any(k.arg == "mesh_dim_names" for k in call.keywords)
        if len(shape.elts) == 2 and not named:
            result.unnamed.append((call, value.module))
    return result


def name_dimensions(call: ast.Call, module: Module, plan: ShardPlan, study: Study) -> None:
    """Give a 2-D mesh the names FSDP2 insists on, where it is made."""
    proposal = study.proposal()
    proposal.add_keyword(module, call, "mesh_dim_names", code('("replicate", "shard")'))
    study.convert(call, None, "mesh_dim_names", plan.constructor, proposal)
    plan.further.append(Site("unnamed mesh", module, call, call))
