"""Members of FSDP1's enums that a trainer out of sight is given: they stay what it takes."""

from __future__ import annotations

import pytest

from fsdp_migrate.planning.outcome import Outcome
from tests.helpers.migrating import migrate

HEAD = """\
import os

from ext_trainer import Trainer
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP, ShardingStrategy


def build(net):
    return FSDP(net, use_orig_params=True)


"""
WAYS = {
    "a table, and the default of its lookup": (
        'TABLE = {"a": ShardingStrategy.FULL_SHARD, "b": ShardingStrategy.SHARD_GRAD_OP}\n'
        "strategy = TABLE.get(os.environ['S'], ShardingStrategy.NO_SHARD)\n"
        "Trainer(net, sharding_strategy=strategy)\n",
        3,
    ),
    "getattr": (
        "s = getattr(ShardingStrategy, os.environ['S'], ShardingStrategy.SHARD_GRAD_OP)\n"
        "Trainer(net, strategy=s)\n",
        2,
    ),
    "the default of a parameter": (
        "def fit(net, s=ShardingStrategy.SHARD_GRAD_OP):\n"
        "    Trainer(net, sharding_strategy=s).fit()\n"
        "fit(net)\n",
        1,
    ),
    "an argument": (
        "def fit(net, strategy):\n    Trainer(net, strategy).fit()\n"
        "fit(net, ShardingStrategy.NO_SHARD)\n",
        1,
    ),
    "a field, with its type": (
        "class Config:\n    strategy: ShardingStrategy = ShardingStrategy.NO_SHARD\n"
        "cfg = Config()\nTrainer(net, sharding_strategy=cfg.strategy)\n",
        2,
    ),
    "what a function looks up, and a comparison with it": (
        "def pick(name) -> ShardingStrategy:\n"
        '    table = {"a": ShardingStrategy.FULL_SHARD}\n'
        "    return table.get(name, ShardingStrategy.SHARD_GRAD_OP)\n"
        "s = pick(os.environ['S'])\n"
        "rate = 2 if s == ShardingStrategy.NO_SHARD else 1\n"
        "Trainer(net, sharding_strategy=s, rate=rate)\n",
        4,
    ),
    "a lookup, or": (
        "TABLE = dict(a=ShardingStrategy.FULL_SHARD, b=ShardingStrategy.NO_SHARD)\n"
        "s = TABLE.get(os.environ['S']) or ShardingStrategy.SHARD_GRAD_OP\n"
        "Trainer(net, sharding_strategy=s)\n",
        3,
    ),
    "next of a list": (
        "CHOICES = [ShardingStrategy.FULL_SHARD, ShardingStrategy.NO_SHARD]\n"
        "s = next((c for c in CHOICES if c.name == name), ShardingStrategy.SHARD_GRAD_OP)\n"
        "Trainer(net, sharding_strategy=s)\n",
        3,
    ),
    "what is spread": (
        'opts = json.load(f)\nopts.setdefault("sharding_strategy", ShardingStrategy.NO_SHARD)\n'
        "Trainer(net, **opts)\n",
        1,
    ),
    "a lookup by name that may fail": (
        "def of(name):\n    try:\n        return ShardingStrategy[name]\n"
        "    except KeyError:\n        return ShardingStrategy.FULL_SHARD\n"
        "Trainer(net, sharding_strategy=of(os.environ['S']))\n",
        2,
    ),
}


@pytest.mark.parametrize("way", WAYS)
def test_what_a_library_is_given_stays(way: str) -> None:
    rest, count = WAYS[way]
    result, after = migrate({"train.py": HEAD + rest})
    left = [d for d in result.decisions if d.outcome is Outcome.LEFT]
    assert len(left) == count
    assert all("ext_trainer.Trainer, which is outside" in d.message for d in left)
    assert "fsdp2_support" not in "".join(after.values())
    assert "fully_shard" in after["train.py"]


def test_a_table_of_another_file_stays() -> None:
    """It has no call of the library's in it."""
    tables = (
        "from torch.distributed.fsdp import ShardingStrategy\n"
        'TABLE = {"a": ShardingStrategy.FULL_SHARD, "b": ShardingStrategy.SHARD_GRAD_OP}\n'
    )
    rest = (
        "from tables import TABLE\n"
        "strategy = TABLE.get(os.environ['S'], ShardingStrategy.NO_SHARD)\n"
        "Trainer(net, sharding_strategy=strategy)\n"
    )
    result, after = migrate({"train.py": HEAD + rest, "tables.py": tables})
    assert len([d for d in result.decisions if d.outcome is Outcome.LEFT]) == 3
    assert after.get("tables.py", "").count("ShardingStrategy.") in {0, 2}
    assert "fsdp2_support" not in "".join(after.values())


NOT_GIVEN = {
    "what is compared": (
        "s = ShardingStrategy[os.environ['S']]\n"
        "Trainer(net, use_shard=s is ShardingStrategy.NO_SHARD)\n"
    ),
    "a text": "s = ShardingStrategy[os.environ['S']]\nTrainer(net, strategy=s.name)\n",
    "a number, by a test": (
        "s = ShardingStrategy[os.environ['S']]\n"
        "Trainer(net, shards=2 if s is ShardingStrategy.NO_SHARD else 1)\n"
    ),
    "something else": (
        "s = ShardingStrategy[os.environ['S']]\nprint(s is ShardingStrategy.NO_SHARD)\n"
        'Trainer(net, strategy="fsdp")\n'
    ),
    "Python's own functions": (
        "s = ShardingStrategy[os.environ['S']]\nimport logging\n"
        'logging.info("%s", s is ShardingStrategy.NO_SHARD, extra={"strategy": s})\n'
    ),
}


@pytest.mark.parametrize("way", NOT_GIVEN)
def test_what_no_library_is_given_becomes_the_projects(way: str) -> None:
    result, after = migrate({"train.py": HEAD + NOT_GIVEN[way]})
    assert not [d.message for d in result.decisions if d.outcome is Outcome.LEFT]
    assert "fsdp2_support" in after["train.py"] or "class ShardingStrategy" in after["train.py"]
