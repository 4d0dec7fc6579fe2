"""What a method of a model builds before the model is wrapped moves behind that; others stay."""

from __future__ import annotations

import pytest

from fsdp_migrate.planning.model import Outcome
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


OF_A_CLASS = """\
class Trainer:
    def __init__(self, net):
        self.net = net
        self.optimizer = self.net.configure_optimizers()
        self.shard()

    def shard(self):
        self.net = FSDP(self.net, use_orig_params=True)

    def step(self, x):
        self.net(x).sum().backward()
        self.optimizer.step()


Trainer(Net()).step(torch.ones(2))
"""
OF_A_FUNCTION = """\
def train(net, optimizer):
    net = FSDP(net, use_orig_params=True)
    net(torch.ones(2)).sum().backward()
    optimizer.step()


def main():
    net = Net()
    optimizer = net.configure_optimizers()
    train(net, optimizer)


main()
"""
BY_THE_BASE = OF_A_FUNCTION.replace("net = Net()", "net = Small()")
IN_BETWEEN = OF_A_FUNCTION.replace("net.configure_optimizers()", "made(net)").replace(
    "def main", "def made(model):\n    return model.configure_optimizers()\n\n\ndef main"
)


def is_left(program: str) -> bool:
    """Whether the optimizer of ``configure_optimizers`` is left, and its model with it."""
    result, files = migrate({"train.py": HEAD + program})
    left = [d for d in result.decisions if d.outcome is Outcome.LEFT]
    assert ("fully_shard(" in files["train.py"]) is not bool(left)
    return any(d.code == "FSDP403" for d in left)


@pytest.mark.parametrize(
    "program",
    [
        OF_A_CLASS,
        OF_A_FUNCTION,
        "class Small(Net):\n    pass\n\n\n" + BY_THE_BASE,
        IN_BETWEEN,
        OF_A_CLASS.replace("self.net.configure", "net.configure"),
    ],
)
def test_is_left_where_another_function_wraps(program: str) -> None:
    assert is_left(program)


SHARD_FIRST = "        self.shard()\n"
BUILD = "        self.optimizer = self.net.configure_optimizers()\n"


@pytest.mark.parametrize(
    "program",
    [
        OF_A_CLASS.replace(BUILD + SHARD_FIRST, SHARD_FIRST + BUILD),
        OF_A_FUNCTION.replace(
            "    net(torch", "    optimizer = net.configure_optimizers()\n    net(torch"
        )
        .replace(
            "    optimizer = net.configure_optimizers()\n    train(net, optimizer)",
            "    train(net)",
        )
        .replace("train(net, optimizer):", "train(net):"),
        OF_A_FUNCTION.replace(
            "train(net, optimizer)\n\n\nmain", "train(Net(), optimizer)\n\n\nmain"
        ),
        OF_A_CLASS.replace(", use_orig_params=True", ""),
    ],
    ids=["wrapped first", "built behind", "of another model", "flat parameters alone"],
)
def test_stays_where_it_is_built_for_what_is_sharded(program: str) -> None:
    assert not is_left(program)
