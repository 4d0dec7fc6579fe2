"""Parameters that are looked for by what they were before they were sharded (FSDP912)."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.helpers.hazards import codes, mended
from tests.training.programs import Launcher

pytestmark = pytest.mark.train

PROGRAM = """\
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard


def main():
    dist.init_process_group("gloo")
    mesh = init_device_mesh("cpu", (dist.get_world_size(),))
    model = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 2))
    BODY
    print("found", float(len(found)))
    dist.destroy_process_group()


main()
"""
SHARD = "fully_shard(model, mesh=mesh)"
WAYS = {
    "identities": (
        "plain = {id(p) for p in model.parameters() if p.ndim < 2}",
        "found = [p for p in model.parameters() if id(p) in plain]",
    ),
    "attributes": (
        "for p in model.parameters():\n        p.plain = p.ndim < 2",
        'found = [p for p in model.parameters() if getattr(p, "plain", False)]',
    ),
}


def told(parts: tuple[str, ...], launcher: Launcher, folder: Path) -> tuple[list[str], float]:
    """The codes that are found, and how many parameters are."""
    text = PROGRAM.replace("BODY", "\n    ".join(parts))
    script = folder / "train.py"
    script.write_text(text)
    (number,) = launcher.script(script, fsdp1="forbid").numbers("found")
    return codes(text), number


@pytest.mark.parametrize("way", WAYS)
def test_none_is_found_behind(launcher: Launcher, tmp_path: Path, way: str) -> None:
    made, asked = WAYS[way]
    assert told((made, SHARD, asked), launcher, tmp_path) == (["FSDP912"], 0)


@pytest.mark.parametrize("way", WAYS)
def test_the_mended_program_finds_both(launcher: Launcher, tmp_path: Path, way: str) -> None:
    made, asked = WAYS[way]
    assert told((SHARD, made, asked), launcher, tmp_path) == ([], 2)


def test_a_set_is_moved_below() -> None:
    made, asked = WAYS["identities"]
    wrong = PROGRAM.replace("BODY", "\n    ".join((made, SHARD, asked)))
    assert mended(wrong) == PROGRAM.replace("BODY", "\n    ".join((SHARD, made, asked)))
