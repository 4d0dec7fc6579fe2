"""What ranks do with the functions of the MindSpeed-like trainer, for its tests."""

from __future__ import annotations

import sys
from itertools import pairwise
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from ruamel.yaml import YAML
from torch import nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard

from fsdp_migrate.configurations.brace_paths import expanded

DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}


def over_group(directory: str) -> None:
    """The mesh of a model that two of four ranks share is over these two."""
    sys.path.insert(0, directory)
    import pretrain_vlm  # type: ignore[import-not-found]
    from mindspeed_mm.models.vl_model import VLModel  # type: ignore[import-not-found]
    from mindspeed_mm.patchs.fsdp1_patches import wrap_model  # type: ignore[import-not-found]

    dist.init_process_group("gloo")
    ranks = pretrain_vlm.data_parallel_ranks()
    group = dist.new_group(ranks)
    if dist.get_rank() in ranks:
        sys.argv = ["pretrain_vlm.py"]
        model = wrap_model(VLModel(), pretrain_vlm.parse(), group)
        for parameter in model.parameters():
            mesh: Any = parameter.device_mesh  # type: ignore[attr-defined]
            assert mesh.mesh.tolist() == ranks == [0, 2]
    dist.barrier()
    dist.destroy_process_group()


def by_file(directory: str, file: str, *arguments: str) -> None:
    """Train with the units that a file of MindSpeed-MM's has, as its FSDP2 makes them: from the
    inside out, then the root, with the next ones gathered beforehand."""
    sys.path.insert(0, directory)
    import pretrain_vlm

    def wrap(model: nn.Module, args: Any, group: Any) -> nn.Module:
        given = YAML(typ="safe").load(Path(file).read_text(encoding="utf-8"))
        modules = dict(model.named_modules())
        units, ignored = (
            [name for path in given.get(key, ()) for name in expanded(path, modules)]
            for key in ("sub_modules_to_wrap", "ignored_modules")
        )
        settings = {
            "mesh": DeviceMesh.from_group(group, "cpu"),
            "reshard_after_forward": given["reshard_after_forward"],
            "mp_policy": MixedPrecisionPolicy(
                param_dtype=DTYPES[given["param_dtype"]],
                reduce_dtype=DTYPES[given["reduce_dtype"]],
            ),
            "ignored_params": {p for name in ignored for p in modules[name].parameters()},
        }
        for name in sorted(units, key=lambda name: -name.count(".")):
            fully_shard(modules[name], **settings)
        fully_shard(model, **settings)
        for now, following in pairwise(units) if given.get("num_to_forward_prefetch") else ():
            modules[now].set_modules_to_forward_prefetch([modules[following]])
        return model

    pretrain_vlm.wrap_model = wrap
    sys.argv = ["pretrain_vlm.py", *arguments]
    pretrain_vlm.main()
