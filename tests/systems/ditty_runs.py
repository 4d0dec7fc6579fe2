"""What ranks do with the wrapped model of the ditty-like trainer, for its tests."""

from __future__ import annotations

import runpy
import sys
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed.fsdp import FSDPModule, MixedPrecisionPolicy, fully_shard


def bytes_of(directory: str) -> None:
    """Print for three dtypes whether packed bytes come back as they were."""
    sys.path.insert(0, directory)
    import train  # type: ignore[import-not-found]

    dist.init_process_group("gloo")
    for dtype in (None, torch.bfloat16, torch.float16):
        torch.manual_seed(0)
        model = train.LM(storage=torch.bfloat16)
        weights = [m for m in model.modules() if hasattr(m, "width")]
        expected = [m.weight.detach().clone().view(torch.uint8) for m in weights]
        wrapped = train.get_wrapping_policy()
        for module in reversed([m for m in model.modules() if m is not model and wrapped(m)]):
            fully_shard(module, mp_policy=MixedPrecisionPolicy(param_dtype=dtype))
        same = True
        for module, whole in zip(weights, expected, strict=True):
            [unit] = [m for m in model.modules() if getattr(m, "base_layer", None) is module]
            assert isinstance(unit, FSDPModule)
            unit.unshard()
            gathered = module.weight.detach().view(torch.uint8)
            same = same and torch.equal(gathered, whole)
            unit.reshard()
        print(dtype, same)
    dist.destroy_process_group()


def scaled(script: str) -> None:
    """Run the program with a scaler; in each step print whether this rank's part of all gradients
    is finite, and whether the step changed its part of any parameter."""
    step = torch.amp.GradScaler.step

    def told(scaler: torch.amp.GradScaler, optimizer: torch.optim.Optimizer) -> Any:
        parts: list[Any] = [p for group in optimizer.param_groups for p in group["params"]]
        before = [p.detach().to_local().clone() for p in parts]
        finite = all(p.grad.to_local().isfinite().all() for p in parts if p.grad is not None)
        result = step(scaler, optimizer)
        pairs = zip(parts, before, strict=True)
        moved = any(not torch.equal(p.detach().to_local(), old) for p, old in pairs)
        print("finite", finite, "moved", moved)
        return result

    torch.amp.GradScaler.step = told  # type: ignore[assignment]
    sys.argv = [script]
    runpy.run_path(script, run_name="__main__")
