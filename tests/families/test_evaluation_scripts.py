"""Scripts that only evaluate have nothing to judge about gradients on the CPU, or prefetching."""

from __future__ import annotations

import pytest

from tests.helpers.migrating import migrate

PROGRAM = """\
import torch
from torch.distributed.fsdp import BackwardPrefetch, CPUOffload
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP

from helpers import report


def main(model, batches):
    model = FSDP(
        model,
        cpu_offload=CPUOffload(offload_params=True),
        backward_prefetch=BackwardPrefetch.BACKWARD_POST,
    )
    with torch.no_grad():
        for batch in batches:
            report(model(batch))
{more}

if __name__ == "__main__":
    main(torch.nn.Linear(4, 4), [torch.ones(4)])
"""
REPORT = "def report(loss):\n    print(loss)\n"


@pytest.mark.parametrize(
    ("more", "helpers", "other", "is_marked"),
    [
        ("", REPORT, "", False),
        ("", REPORT, "import train\n\ntrain.main\n", True),
        ("", REPORT, "from train import main\n", True),
        ("    model(batches[0]).sum().backward()\n", REPORT, "", True),
        ("    torch.save(model.state_dict(), 'model.pt')\n", REPORT, "", True),
        ("", "def report(loss):\n    loss.backward()\n", "", True),
        ("", "from more import report\n", "def report(loss):\n    loss.backward()\n", True),
    ],
)
def test_only_what_trains_or_saves_is_marked(
    more: str, helpers: str, other: str, is_marked: bool
) -> None:
    files = {"train.py": PROGRAM.format(more=more), "helpers.py": helpers, "more.py": other}
    text = migrate(files)[1]["train.py"]
    said = " ".join(text.replace("#", "").split())
    assert ("need a CPU backend" in said) is is_marked
    assert ("FSDP2 always prefetches" in said) is is_marked
