"""Small programs that a test writes itself, and verifying one against an altered copy."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from fsdp_migrate.verify.launch.warm import WarmServer
from fsdp_migrate.verify.plan import Plan
from fsdp_migrate.verify.report.model import Report
from fsdp_migrate.verify.run import verify

FSDP1 = """\
import torch
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP


def wrap(model):
    return FSDP(model, device_id=torch.device("cpu"), use_orig_params=True)
"""
FSDP2 = """\
from torch.distributed.fsdp import fully_shard


def wrap(model):
    return fully_shard(model)
"""
HEAD = """\
import json
import logging
import os
import time

import torch
import torch.distributed as dist
from parallel import wrap
from torch import nn

dist.init_process_group("gloo")
rank, world = dist.get_rank(), dist.get_world_size()
torch.manual_seed(0)


def net():
    return nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 4))


"""


def judged(
    folder: Path,
    source: str,
    *replaced: tuple[str, str],
    before: str = FSDP1,
    after: str = FSDP2,
    files: Mapping[str, str] | None = None,
    server: WarmServer | None = None,
    **changes: Any,
) -> Report:
    """The verdict on a program that imports ``wrap`` from ``parallel``, against itself migrated and
    with statements of the script ``replaced``, each of which must stand there exactly once."""
    sources = {"before": source, "after": source}
    for old, new in replaced:
        assert source.count(old) == 1, f"{old!r} must stand exactly once"
        sources["after"] = sources["after"].replace(old, new)
    for side, parallel in (("before", before), ("after", after)):
        tree = folder / side
        tree.mkdir()
        (tree / "train.py").write_text(HEAD + sources[side])
        (tree / "parallel.py").write_text(parallel)
        for name, text in (files or {}).items():
            (tree / name).parent.mkdir(parents=True, exist_ok=True)
            (tree / name).write_text(text)
    settings = {"script": "train.py", "max_steps": 8, "timeout": 60.0, **changes}
    plan = Plan(before=folder / "before", after=folder / "after", **settings)
    return verify(plan, server=server)
