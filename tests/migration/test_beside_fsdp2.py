"""Models of FSDP2's beside those of FSDP1: what is asked of either."""

from __future__ import annotations

import pytest

from fsdp_migrate.planning.outcome import Outcome
from tests.helpers.migrating import migrate

HEAD = """\
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP
from torch.distributed.fsdp import StateDictType, fully_shard


"""
FUNCTION = """\
def wrap(net, version):
    if version == 1:
        return FSDP(net)
    fully_shard(net)
    return net


def save(model):
    torch.save(model.state_dict(), "model.pt")


def run(args):
    model = wrap(nn.Linear(4, 4), args.version)
    {asked}
"""
STRATEGIES = """\
class One:
    def wrap_model(self, model):
        return FSDP(model)


class Two:
    def wrap_model(self, model):
        return fully_shard(model)


class Worker:
    def __init__(self, cfg):
        self.strategy = One() if cfg.strategy == "fsdp" else Two()
        self.model = self.strategy.wrap_model(nn.Linear(4, 4))

    def load(self, path):
        self.model.load_state_dict(torch.load(path))
"""
WRITTEN = """\
def run(args):
    net = nn.Linear(4, 4)
    if args.version == 1:
        model = FSDP(net)
    else:
        model = fully_shard(net)
    {asked}
"""
SAID = "a model that this project gives fully_shard itself may come here as well"


@pytest.mark.parametrize(
    "source",
    [
        FUNCTION.format(asked="save(model)"),
        STRATEGIES,
        WRITTEN.format(asked="torch.save(model.state_dict(), 'model.pt')"),
    ],
    ids=["a function", "strategies", "branches"],
)
def test_a_state_that_may_be_of_either_is_marked(source: str) -> None:
    result, after = migrate({"example.py": HEAD + source})
    assert not result.problems
    marked = [d for d in result.decisions if SAID in d.help]
    assert [d.outcome for d in marked] == [Outcome.REVIEW]
    assert marked[0].code in {"FSDP302", "FSDP303"}
    text = " ".join(after["example.py"].replace("#", "").split())
    assert f"{marked[0].code}): A{SAID[1:]}" in text


@pytest.mark.parametrize(
    "source",
    [
        WRITTEN.format(
            asked="if args.version == 1:\n        torch.save(model.state_dict(), 'a.pt')"
        ),
        FUNCTION.format(asked="print(model)").replace("def save(model)", "def save(model: FSDP)"),
        "def run(student, teacher):\n    fully_shard(teacher)\n    model = FSDP(student)\n"
        "    torch.save(model.state_dict(), 'model.pt')\n    return model, teacher\n",
        "def run(net):\n    for block in net.blocks:\n        fully_shard(block)\n"
        "    other = nn.Linear(4, 4)\n    model = FSDP(other)\n"
        "    torch.save(model.state_dict(), 'model.pt')\n",
        WRITTEN.format(asked="torch.save(model.state_dict(), 'model.pt')").replace(
            "FSDP(net)",
            "FSDP(net)\n        FSDP.set_state_dict_type(model, StateDictType.SHARDED_STATE_DICT)",
        ),
    ],
    ids=["the flag is asked", "a type", "another model", "parts of another", "sharded"],
)
def test_a_state_of_fsdp1s_models_alone_is_not(source: str) -> None:
    result, _ = migrate({"example.py": HEAD + source})
    assert not result.problems
    assert not any(SAID in d.help for d in result.decisions)
    assert any(d.code == "FSDP302" for d in result.decisions)
