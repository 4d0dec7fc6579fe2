"""What a Trainer of transformers trained its model as, asked of the model itself."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from torch import nn
from torch.distributed.fsdp import CPUOffloadPolicy, FSDPModule, FullyShardedDataParallel


def tell(trainer: Any) -> None:
    """Print the losses, and what the model was trained and saved as."""
    for each in trainer.state.log_history:
        if "loss" in each:
            print("loss", each["loss"])
    saved = Path(trainer.args.output_dir, f"checkpoint-{trainer.state.max_steps}")
    print("trained as", *_sharded(trainer.model_wrapped), _kind(saved))


def _sharded(model: nn.Module) -> list[str]:
    """The version, what becomes of parameters after a forward, how many units there are."""
    if isinstance(model, FullyShardedDataParallel):
        found = ["1", model.sharding_strategy.name]
        offloads = model.cpu_offload.offload_params
        units = len(FullyShardedDataParallel.fsdp_modules(model))
    else:
        sharded = [m for m in model.modules() if isinstance(m, FSDPModule)]
        if not sharded:
            return ["no FSDP"]
        states: list[Any] = [m._get_fsdp_state() for m in sharded]
        groups = [s._fsdp_param_group for s in states if s._fsdp_param_group is not None]
        layers = [g for g in groups if any(map(str.isdecimal, g._module_fqn.split(".")))]
        kept = all(group.post_forward_mesh_info is None for group in layers)
        found = ["2", "keep" if kept else "reshard"]
        offloads = all(isinstance(g.offload_policy, CPUOffloadPolicy) for g in groups)
        units = len(sharded)
    return [*found, *(["offload"] if offloads else []), f"{units} units"]


def _kind(saved: Path) -> str:
    if (saved / "pytorch_model_fsdp_0").is_dir():
        return "SHARDED"
    if (saved / "pytorch_model_fsdp_rank0.bin").exists():
        return "LOCAL"
    return "FULL" if (saved / "pytorch_model_fsdp.bin").exists() else "no checkpoint"
