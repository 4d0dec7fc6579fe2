"""Code that a repository hides from us is found all the same."""

from __future__ import annotations

import pytest

from tests.security.hostile import World


@pytest.mark.parametrize(
    "source",
    [
        "from torch.distributed.\\\nfsdp import FullyShardedDataParallel as F\nm = F(net)\n",
        "from torch.distributed\\\r\n.fsdp import FullyShardedDataParallel as F\nm = F(net)\n",
        "from torch.distributed\\\n import fsdp\nm = fsdp.FullyShardedDataParallel(net)\n",
        "import torch.distributed as d\nm = (d  # x\n .fsdp  # y\n .FullyShardedDataParallel(net))\n",
    ],
)
def test_fsdp1_is_found_across_line_breaks(world: World, source: str) -> None:
    (world.repo / "train.py").write_bytes(source.encode())
    answer = world.run("check", ".")
    assert answer.code == 1
    assert "no FSDP1" not in answer.out
