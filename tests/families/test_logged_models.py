"""What a logger is given is written down and not run: nothing is gathered behind it."""

from __future__ import annotations

import pytest

from tests.helpers.migrating import rewritten

PROGRAM = """\
import logging

import torch
from torch import nn
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP

logger = logging.getLogger("train")


def train(batches):
    model = FSDP(nn.Linear(8, 8))
    TELL
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for batch in batches:
        model(batch).sum().backward()
        optimizer.step()
        optimizer.zero_grad()
"""


def test_a_model_that_is_logged_has_not_run() -> None:
    assert "reshard" not in rewritten(PROGRAM.replace("TELL", 'logger.info("%s", model)'))


@pytest.mark.parametrize("tell", ["library.check(model)", 'tracker.info("%s", model)'])
def test_what_another_object_is_given_may_have_run(tell: str) -> None:
    text = PROGRAM.replace("TELL", tell)
    text = text.replace("import torch\n", "import library\nimport torch\n", 1)
    text = text.replace("\n\nlogger =", "\nfrom library import tracker\n\nlogger =")
    assert "model.reshard()" in rewritten(text)
