"""What a method of a model builds before the model is wrapped moves behind that; others stay."""

from __future__ import annotations

import pytest

from tests.helpers.migrating import migrate

HEAD = """\
import torch
from torch import nn
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP


class Net(nn.Module):
    def configure_optimizers(self):
        return torch.optim.AdamW(self.parameters())

    def optimizer_settings(self):
        return {"lr": 0.1}


"""
MOVED = """\
def main(net: Net, made):
    optimizer = net.configure_optimizers()
    net = FSDP(net, use_orig_params=True)
    optimizer.step()
    return net
"""
STAYING = {
    "of something else": MOVED.replace("net.configure", "made.configure"),
    "of what holds it": MOVED.replace("net.configure", "made.net.maker.configure"),
    "used by nothing": MOVED.replace("    optimizer.step()\n", ""),
}


def after(program: str) -> str:
    """The function ``main`` as it becomes."""
    _, files = migrate({"train.py": HEAD + program})
    return files["train.py"].partition("def main")[2]


def test_moves_behind() -> None:
    text = after(MOVED)
    assert text.index("fully_shard(net)") < text.index("configure_optimizers()")
    assert "raise" not in text


@pytest.mark.parametrize("program", STAYING.values(), ids=STAYING.keys())
def test_stays(program: str) -> None:
    text = after(program)
    assert text.index("configure_optimizers()") < text.index("fully_shard(net)")


def test_is_left_where_something_uses_it_before() -> None:
    """As a checkpoint that is loaded into it does."""
    text = after(MOVED.replace("rs()\n", "rs()\n    optimizer.load_state_dict(made)\n"))
    assert "TODO(fsdp-migrate FSDP403)" in text
    assert text.index("configure_optimizers()") < text.index("FSDP(net, use_orig_params=True)")
