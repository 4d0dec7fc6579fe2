"""Build models from snippets and say which parameters each unit gathers: run on every rank."""

from __future__ import annotations

import importlib
import json
import sys
import traceback
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch.utils._python_dispatch import TorchDispatchMode

from tests.training import observe


def build_all(directory: str, out: str) -> None:
    """For every snippet below a directory: its units, a few losses, and the trained parameters."""
    dist.init_process_group("gloo")
    found = {}
    for snippet in sorted(p for p in Path(directory).iterdir() if p.is_dir()):
        print(snippet.name, flush=True)
        try:
            found[snippet.name] = build(snippet)
        except Exception:
            found[snippet.name] = {"error": traceback.format_exc()}
    if dist.get_rank() == 0:
        Path(out).write_text(json.dumps(found))
    dist.destroy_process_group()


def hold_all(directory: str, out: str) -> None:
    """For every snippet: what this rank holds after construction, its parameters gathered."""
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    found: dict[str, Any] = {}
    for snippet in sorted(p for p in Path(directory).iterdir() if p.is_dir()):
        try:
            seen = observe.snapshot(construct(snippet, seed=10 * rank))
            state = seen["parameters"] | seen["buffers"]
            found[snippet.name] = {"state": state, "units": seen["units"]}
        except Exception:
            found[snippet.name] = {"error": traceback.format_exc()}
    torch.save(found, f"{out}.{rank}")
    dist.destroy_process_group()


def construct(directory: Path, seed: int) -> Any:
    sys.path.insert(0, str(directory))
    torch.manual_seed(seed)
    try:
        return importlib.import_module("snippet").build()
    finally:
        sys.path.remove(str(directory))
        for name in ("snippet", "models", "fsdp2_support"):
            sys.modules.pop(name, None)


def build(directory: Path) -> dict[str, Any]:
    model = construct(directory, seed=0)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, foreach=False)
    losses = []
    counts = []
    for step in range(2):
        torch.manual_seed(2 * step + dist.get_rank())
        with Collectives() as forward:
            loss = model(torch.randn(8, 4)).float().square().mean()
        with Collectives() as backward:
            loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.item())
        counts.append({"forward": forward.counts, "backward": backward.counts})
    return {"units": observe.units(model), "losses": losses, "collectives": counts}


class Collectives(TorchDispatchMode):
    """Counts collectives by what they do; ``CommDebugMode`` trips over some modules."""

    def __init__(self) -> None:
        super().__init__()
        self.counts: dict[str, int] = {}

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Any = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        if func.namespace in {"c10d", "_c10d_functional"}:
            name = func._opname.strip("_").removesuffix("_base")  # FSDP1 on CPU gathers lists
            self.counts[name] = self.counts.get(name, 0) + 1
        return func(*args, **(kwargs or {}))
