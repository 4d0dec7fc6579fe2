"""What ranks do with the functions of the MindSpeed-like trainer, for its tests."""

from __future__ import annotations

import sys
from typing import Any

import torch.distributed as dist


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
