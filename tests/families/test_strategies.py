"""A table of strategies becomes one of what they mean only if nothing else can feel it."""

from __future__ import annotations

import pytest
from packaging.version import Version

from fsdp_migrate.migration.engine import Options
from fsdp_migrate.planning.outcome import Outcome
from tests.helpers.migrating import migrate, outcomes

HEAD = """\
import argparse

from torch.distributed.fsdp import FullyShardedDataParallel as FSDP, ShardingStrategy

"""
TABLE = """\
STRATEGIES = {"full": ShardingStrategy.FULL_SHARD, "grads": ShardingStrategy.SHARD_GRAD_OP}


def build(net, cfg):
    return FSDP(net, sharding_strategy=STRATEGIES[cfg.strategy])
"""
BY_NAME = """\
parser = argparse.ArgumentParser()
parser.add_argument("--strategy", choices=["FULL_SHARD", "SHARD_GRAD_OP"], default="FULL_SHARD")
args = parser.parse_args()


def build(net):
    return FSDP(net, sharding_strategy=ShardingStrategy[args.strategy])
"""
FUNCTION = """\
def strategy_of(cfg) -> ShardingStrategy:
    if cfg.strategy == "full":
        return ShardingStrategy.FULL_SHARD
    if cfg.strategy == "grads":
        return ShardingStrategy.SHARD_GRAD_OP
    raise ValueError(cfg.strategy)


def build(net, cfg):
    return FSDP(net, sharding_strategy=strategy_of(cfg))
"""
ONLY_KEYS = {
    "nothing else": TABLE,
    "a test": TABLE.replace("    return", "    assert cfg.strategy in STRATEGIES\n    return"),
    "a list": TABLE.replace(
        "    return", "    print(sorted(STRATEGIES), len(STRATEGIES))\n    return"
    ),
    "a loop": TABLE.replace(
        "    return", "    for name in STRATEGIES:\n        print(name)\n    return"
    ),
    "a default": TABLE.replace(
        "STRATEGIES[cfg.strategy]", "STRATEGIES.get(cfg.strategy, ShardingStrategy.FULL_SHARD)"
    ),
    "a variable": TABLE.replace(
        "return FSDP(net, sharding_strategy=STRATEGIES[cfg.strategy])",
        "chosen = STRATEGIES[cfg.strategy]\n    return FSDP(net, sharding_strategy=chosen)",
    ),
    "choices of a parser": TABLE + "parser = argparse.ArgumentParser()\n"
    'parser.add_argument("--strategy", choices=STRATEGIES)\n',
    "a list of the command line": BY_NAME,
    "a function": FUNCTION,
    "a function whose answer has a name": FUNCTION.replace(
        "return FSDP(net, sharding_strategy=strategy_of(cfg))",
        "chosen = strategy_of(cfg)\n    return FSDP(net, sharding_strategy=chosen)",
    ),
    "a function with a table": TABLE.replace(
        "def build",
        "def strategy_of(name):\n    return STRATEGIES[name]\n\n\ndef build",
    ).replace("=STRATEGIES[cfg.strategy]", "=strategy_of(cfg.strategy)"),
    "a function with a variable": TABLE.replace(
        "def build",
        "def strategy_of(name):\n    chosen = STRATEGIES[name]\n    return chosen\n\n\ndef build",
    ).replace("=STRATEGIES[cfg.strategy]", "=strategy_of(cfg.strategy)"),
    "getattr": BY_NAME.replace(
        "ShardingStrategy[args.strategy]", "getattr(ShardingStrategy, args.strategy)"
    ),
}
OTHERWISE = {
    "a reader of values": TABLE.replace("    return", "    print(STRATEGIES.values())\n    return"),
    "a reader of one value": TABLE.replace(
        "    return", '    print(STRATEGIES["full"].name)\n    return'
    ),
    "another name": TABLE + "CHOICES = STRATEGIES\n",
    "a second value": TABLE + "STRATEGIES = dict(STRATEGIES)\n",
    "a change": TABLE + 'STRATEGIES["none"] = ShardingStrategy.NO_SHARD\n',
    "a change by a method": TABLE + "STRATEGIES.update(none=ShardingStrategy.NO_SHARD)\n",
    "a call that it is handed to": TABLE.replace(
        "    return", "    cfg.check(STRATEGIES)\n    return"
    ),
    "a public name": TABLE + '__all__ = ["STRATEGIES", "build"]\n',
    "a default of None": TABLE.replace("STRATEGIES[cfg.strategy]", "STRATEGIES.get(cfg.strategy)"),
    "a row that is None": TABLE.replace('"full": ShardingStrategy.FULL_SHARD', '"full": None'),
    "a row from elsewhere": TABLE.replace('"full": ShardingStrategy.FULL_SHARD', '"full": cfg'),
    "a name that is not written": TABLE.replace('"full":', "full:"),
    "strategies that need a mesh by a key that is computed": TABLE.replace(
        "SHARD_GRAD_OP", "NO_SHARD"
    ).replace("cfg.strategy]", "cfg.strategy()]"),
    "a default that needs a mesh": TABLE.replace(
        "STRATEGIES[cfg.strategy]", "STRATEGIES.get(cfg.strategy, ShardingStrategy.NO_SHARD)"
    ),
    "a name that is set after the lookup": TABLE.replace("SHARD_GRAD_OP", "NO_SHARD").replace(
        "return FSDP(net, sharding_strategy=STRATEGIES[cfg.strategy])",
        'chosen = STRATEGIES[cfg.strategy]\n    cfg.strategy = "full"\n'
        "    return FSDP(net, sharding_strategy=chosen)",
    ),
    "a function that is asked for something else": FUNCTION + "print(strategy_of(None).name)\n",
    "a function that is handed on": FUNCTION + "hooks = [strategy_of]\n",
    "a function that may return nothing": FUNCTION.replace(
        "    raise ValueError(cfg.strategy)\n", "    print(cfg.strategy)\n"
    ),
    "a function that may return None": FUNCTION.replace(
        "raise ValueError(cfg.strategy)", "return None"
    ),
    "a function that returns what needs a mesh": FUNCTION.replace("SHARD_GRAD_OP", "NO_SHARD"),
    "a function that changes its answers": FUNCTION.replace(
        "def strategy_of", "@cached\ndef strategy_of"
    ),
    "any name": BY_NAME.replace('choices=["FULL_SHARD", "SHARD_GRAD_OP"], ', ""),
    "a default that is no choice": BY_NAME.replace('default="FULL_SHARD"', 'default="NO_SHARD"'),
    "an argument that is set later": BY_NAME.replace(
        "\n\ndef build", '\nargs.strategy = "NO_SHARD"\n\n\ndef build'
    ),
    "arguments from a file": BY_NAME.replace(
        "args =", 'parser.set_defaults(strategy="NO_SHARD")\nargs ='
    ),
    "arguments of an object": BY_NAME.replace("parse_args()", "parse_args(namespace=settings)"),
    "arguments of a second parser": BY_NAME
    + 'argparse.ArgumentParser().add_argument("--strategy", default="NO_SHARD")\n',
    "an object of another kind": BY_NAME.replace("(net)", "(net, args)"),
}


@pytest.mark.parametrize("way", ONLY_KEYS)
def test_what_only_constructors_look_up_is_written_out(way: str) -> None:
    result, after = migrate({"train.py": HEAD + ONLY_KEYS[way]})
    assert list(after) == ["train.py"]
    assert "ShardingStrategy" not in after["train.py"]
    assert all(outcome.value == "rewritten" for _, outcome in outcomes(result))


@pytest.mark.parametrize("way", OTHERWISE)
def test_what_may_be_read_otherwise_keeps_its_strategies(way: str) -> None:
    _, after = migrate({"train.py": HEAD + OTHERWISE[way]})
    text = after["train.py"]
    assert "ShardingStrategy" in text
    assert "fully_shard(" not in text or "sharding_kwargs(" in text


def test_a_table_of_another_file_is_written_out_there() -> None:
    table, build = TABLE.split("\n\n\n")
    loader = "from tables import STRATEGIES\n"
    _, after = migrate({"tables.py": HEAD + table, "train.py": HEAD + loader + build})
    assert set(after) == {"tables.py", "train.py"}
    assert '{"full": True, "grads": False}' in after["tables.py"]
    assert "reshard_after_forward=STRATEGIES[cfg.strategy]" in after["train.py"]


@pytest.mark.parametrize(
    "reader",
    [
        "from tables import STRATEGIES\nprint(STRATEGIES)\n",
        "from tables import STRATEGIES as ways\nprint(ways)\n",
        "import tables\nprint(tables.STRATEGIES)\n",
        "from tables import *\nprint(STRATEGIES)\n",
        "from tables import STRATEGIES\n",
    ],
)
def test_a_table_that_another_file_reads_keeps_its_strategies(reader: str) -> None:
    table, build = TABLE.split("\n\n\n")
    loader = "from tables import STRATEGIES\n"
    sources = {"tables.py": HEAD + table, "train.py": HEAD + loader + build, "show.py": reader}
    _, after = migrate(sources)
    assert "ShardingStrategy.FULL_SHARD" in after["tables.py"]


RUN_TIME = """\
import torch
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP, ShardingStrategy


def shard_strategy(args):
    return ShardingStrategy.NO_SHARD if args.copies else getattr(ShardingStrategy, args.strategy)


def build(net, args, mesh, settings):
    return FSDP(net, sharding_strategy=shard_strategy(args), MESH**settings)
"""


def test_what_may_be_no_shard_is_said_of_the_run_time_form() -> None:
    source = RUN_TIME.replace("MESH", "")
    result, after = migrate({"train.py": source}, Options(target=Version("2.7")))
    assert "shard(net" in after["train.py"]
    messages = [d for d in result.decisions if d.code == "FSDP201"]
    assert Outcome.REVIEW in {d.outcome for d in messages}
    assert "(world_size, 1)" in " ".join(after["train.py"].replace("#", " ").split())


def test_over_a_mesh_that_is_given_no_shard_is_not_said() -> None:
    """It shards over that mesh, which trains the same."""
    source = RUN_TIME.replace("MESH", "device_mesh=mesh, ")
    _, after = migrate({"train.py": source}, Options(target=Version("2.7")))
    assert "shard(net" in after["train.py"]
    assert "TODO" not in after["train.py"]


def test_what_is_never_no_shard_is_not_said() -> None:
    source = RUN_TIME.replace("MESH", "").replace("ShardingStrategy.NO_SHARD", "args.other")
    _, after = migrate({"train.py": source}, Options(target=Version("2.7")))
    assert "NO_SHARD" not in after["train.py"]


@pytest.mark.parametrize(
    ("device", "asks"),
    [
        ('device_id=torch.device("cpu")', False),
        ("device_id=where", False),
        ("device_id=torch.cuda.current_device()", True),
        ("", True),
    ],
)
def test_the_accelerator_is_asked_for_only_where_no_other_device_is_told(
    device: str, asks: bool
) -> None:
    source = (
        "import torch\n"
        "from torch.distributed.fsdp import FullyShardedDataParallel as FSDP, ShardingStrategy\n"
        "\n\ndef build(net, name, where: torch.device):\n"
        f"    return FSDP(net, sharding_strategy=ShardingStrategy[name], {device})\n"
    )
    other = source.replace(device, "") if device else source
    for files, is_asked in (({"a.py": source}, asks), ({"a.py": source, "b.py": other}, True)):
        _, after = migrate(files)
        assert ("_accelerator()" in "".join(after.values())) is is_asked
