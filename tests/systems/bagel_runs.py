"""What ranks do with the migrated functions of the BAGEL-like trainer, for its tests."""

from __future__ import annotations

import sys
from copy import deepcopy
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed.fsdp import FSDPModule
from torch.distributed.tensor import DTensor


def modules(directory: str, strategy: str = "FULL_SHARD") -> tuple[Any, Any, Any]:
    """Its modules, and settings for a strategy."""
    sys.path.insert(0, directory)
    import fsdp_utils  # type: ignore[import-not-found]
    import modeling  # type: ignore[import-not-found]

    dist.init_process_group("gloo")
    torch.manual_seed(0)
    settings = fsdp_utils.FSDPConfig(strategy, "BACKWARD_PRE", False, 2, 2, torch.float32)
    return fsdp_utils, modeling, settings


def wrapped(directory: str, strategy: str) -> None:
    """Print a unit's mesh, and whether its parameters are sharded again after a forward."""
    utils, modeling, settings = modules(directory, strategy)
    model = utils.fsdp_wrapper(modeling.Bagel(), settings)
    unit = model.layers[0]
    assert isinstance(unit, FSDPModule)
    mesh = unit.mlp[0].weight.device_mesh
    group: Any = unit._get_fsdp_state()._fsdp_param_group
    print(tuple(mesh.shape), group.post_forward_mesh_info is not None)
    dist.destroy_process_group()


def averaged(directory: str) -> None:
    """Three updates of an average are those of a single process; what is frozen stays."""
    utils, modeling, settings = modules(directory)
    plain = modeling.Bagel()
    plain.connector.fc1.weight.requires_grad_(False)
    expected = deepcopy(plain)
    model = deepcopy(plain)
    ema = utils.fsdp_ema_setup(deepcopy(plain), settings)
    model = utils.fsdp_wrapper(model, settings)
    for step in range(3):
        models = (plain, model, expected)
        pairs = list(zip(*(m.parameters() for m in models), strict=True))
        with torch.no_grad():
            for number, (one, sharded, mean) in enumerate(pairs):
                change = torch.full_like(one, 0.01 * (step + 1) * (number + 1))
                one.add_(change)
                whole = sharded.full_tensor()
                sharded.copy_(_like(whole + change, sharded))
                if one.requires_grad:
                    mean.mul_(0.9).add_(one, alpha=0.1)
        utils.fsdp_ema_update(ema, model, decay=0.9)
    named = dict(ema.named_parameters())
    for name, mean in expected.named_parameters():
        assert (named[name].full_tensor() - mean).abs().max() <= 1e-6, name
    dist.destroy_process_group()


def _like(whole: torch.Tensor, sharded: DTensor) -> DTensor:
    from torch.distributed.tensor import distribute_tensor

    return distribute_tensor(whole, sharded.device_mesh, sharded.placements)


def tables(directory: str) -> None:
    """Tables of positions are what they were before wrapping, and no part is on meta."""
    utils, modeling, settings = modules(directory)
    model = modeling.Bagel()
    expected = {n: p.clone() for n, p in model.named_parameters() if "pos_embed" in n}
    model = utils.fsdp_wrapper(model, settings)
    for name, parameter in model.named_parameters():
        assert not parameter.is_meta
        if "pos_embed" in name:
            assert torch.equal(parameter.full_tensor(), expected[name])
    dist.destroy_process_group()
