"""A strategy from elsewhere, in a project that names none but those over all ranks."""

from __future__ import annotations

import pytest
from packaging.version import Version

from fsdp_migrate.migration.engine import Options
from tests.helpers.migrating import migrate, support_functions

EARLIER, LATER = Options(target=Version("2.7")), Options(target=Version("2.8"))
CONFIG = """\
from dataclasses import dataclass

from torch.distributed.fsdp import ShardingStrategy


@dataclass
class Config:
    strategy: ShardingStrategy = ShardingStrategy.FULL_SHARD
"""
TRAIN = """\
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP
from torch.distributed.fsdp.wrap import ModuleWrapPolicy

from config import Config
from net import Block


def build(net):
    config = Config()
    return FSDP(
        net, auto_wrap_policy=ModuleWrapPolicy({Block}), sharding_strategy=config.strategy
    )
"""
ASKED = "reshard_after_forward = config.strategy != ShardingStrategy.SHARD_GRAD_OP"


def files(train: str = TRAIN, config: str = CONFIG, **more: str) -> dict[str, str]:
    net = "from torch import nn\n\n\nclass Block(nn.Module):\n    pass\n"
    given = {f"{name}.py": text for name, text in more.items()}
    return {"config.py": config, "net.py": net, "train.py": train, **given}


def test_the_call_asks_which_of_two_it_is() -> None:
    _, after = migrate(files(), EARLIER)
    assert ASKED in after["train.py"]
    assert "fully_shard(net, reshard_after_forward=reshard_after_forward)" in after["train.py"]
    assert support_functions(after) == {"ShardingStrategy"}
    again, _ = migrate(after, EARLIER)
    assert not again.changes


def test_none_is_the_default_of_later_releases() -> None:
    """There True would make the root reshard as well."""
    _, after = migrate(files(), LATER)
    assert ASKED.replace("config.", "False if config.").replace("!=", "==") in after["train.py"]
    assert "SHARD_GRAD_OP else None" in after["train.py"]


def test_one_call_says_it_itself() -> None:
    train = TRAIN.replace("auto_wrap_policy=ModuleWrapPolicy({Block}), ", "")
    _, after = migrate(files(train), EARLIER)
    call = "reshard_after_forward=config.strategy != ShardingStrategy.SHARD_GRAD_OP"
    assert f"return fully_shard(net, {call})" in after["train.py"]


def test_the_enum_has_the_name_that_it_had() -> None:
    """The class of the settings stands in the same file."""
    head, _, body = TRAIN.partition("from config import Config\n")
    _, after = migrate({**files(f"{CONFIG}\n{head}{body}"), "config.py": ""}, EARLIER)
    assert ASKED in after["train.py"]
    assert "fsdp2_ShardingStrategy" not in after["train.py"]


@pytest.mark.parametrize(
    "more",
    [
        "from torch.distributed.fsdp import ShardingStrategy\n\n"
        "other = ShardingStrategy.NO_SHARD\n",
        "import sys\n\nfrom torch.distributed.fsdp import ShardingStrategy\n\n"
        "other = ShardingStrategy[sys.argv[1]]\n",
        "from torch.distributed.fsdp import ShardingStrategy as Strategy\n\n"
        "other = getattr(Strategy, 'FULL_SHARD')\n",
        "import torch.distributed.fsdp as fsdp\n\nother = [*fsdp.ShardingStrategy]\n",
        "from config import Config\n\n\ndef more(name):\n    Config.strategy = name\n",
    ],
)
def test_what_may_be_another_is_for_the_running_program(more: str) -> None:
    _, after = migrate(files(other=more), EARLIER)
    assert "sharding_kwargs(config.strategy)" in after["train.py"]


def test_a_call_may_give_another() -> None:
    train = TRAIN.replace("config.strategy", "config.chosen(net).strategy")
    _, after = migrate(files(train), EARLIER)
    assert "SHARD_GRAD_OP" not in after["train.py"]


def test_a_mesh_needs_the_strategy() -> None:
    train = TRAIN.replace("build(net)", "build(net, mesh)")
    train = train.replace("        net, auto", "        net, device_mesh=mesh, auto")
    _, after = migrate(files(train), EARLIER)
    assert "sharding_kwargs(config.strategy, mesh=mesh)" in after["train.py"]


GIVEN = """\
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP
from torch.distributed.fsdp import ShardingStrategy


def build(net, name):
    strategy = getattr(ShardingStrategy, name)
    return FSDP(net, sharding_strategy=strategy)


def main(net, args):
    return build(net, "FULL_SHARD")
"""
TABLE = 'reshard_after_forward = {"FULL_SHARD": True, "SHARD_GRAD_OP": False}[name]'


def test_a_name_that_callers_give_is_looked_up_as_before() -> None:
    """A caller out of sight may give the other; what is not in the table is an error."""
    _, after = migrate({"train.py": GIVEN}, EARLIER)
    assert list(after) == ["train.py"]
    assert TABLE in after["train.py"]
    assert "reshard_after_forward=reshard_after_forward" in after["train.py"]
    _, after = migrate({"train.py": GIVEN}, LATER)
    assert TABLE.replace("True", "None") in after["train.py"]
    again, _ = migrate(after, LATER)
    assert not again.changes


def test_a_name_of_what_shards_nothing_makes_its_mesh() -> None:
    direct = GIVEN.replace("sharding_strategy=strategy", "sharding_strategy=ShardingStrategy[name]")
    direct = direct.replace("    strategy = getattr(ShardingStrategy, name)\n", "")
    _, after = migrate({"train.py": direct.replace('"FULL_SHARD")', '"NO_SHARD")')}, EARLIER)
    assert list(after) == ["train.py"]
    assert '{"FULL_SHARD": True, "NO_SHARD": True, "SHARD_GRAD_OP": False}' in after["train.py"]
    assert 'if name == "NO_SHARD":' in after["train.py"]


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ('"FULL_SHARD")', "args.name)"),
        ('"FULL_SHARD")', '"full")'),
        ('"FULL_SHARD")', "2)"),
        ('"FULL_SHARD")\n', '"FULL_SHARD") or build(net, args.name)\n'),
        ("name)\n    return", "name.upper())\n    return"),
    ],
)
def test_a_name_from_elsewhere_is_for_the_running_program(old: str, new: str) -> None:
    source = GIVEN.replace(old, new)
    _, after = migrate({"train.py": source}, EARLIER)
    assert "**sharding_kwargs(strategy)" in after["train.py"]


def test_a_function_that_nothing_calls_may_be_given_any() -> None:
    _, after = migrate({"train.py": GIVEN.partition("def main")[0]}, EARLIER)
    assert "**sharding_kwargs(strategy)" in after["train.py"]
