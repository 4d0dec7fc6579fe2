"""Settings that a program keeps in variables of its file, as functions do in their own."""

import ast

import pytest

from tests.helpers.migrating import migrate

HEAD = """\
from torch.distributed.fsdp import BackwardPrefetch, CPUOffload, ShardingStrategy
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP

from model import net, use_fsdp

"""


@pytest.mark.parametrize(
    ("body", "written"),
    [
        ("strategy = ShardingStrategy.FULL_SHARD\nmodel = FSDP(net, sharding_strategy=strategy)\n",
         "model = fully_shard(net)\n"),
        ("if use_fsdp:\n    strategy = ShardingStrategy.SHARD_GRAD_OP\n"
         "    model = FSDP(net, sharding_strategy=strategy)\n",
         "    model = fully_shard(net, reshard_after_forward=False)\n"),
        ("offload = CPUOffload(offload_params=False)\nmodel = FSDP(net, cpu_offload=offload)\n",
         "model = fully_shard(net)\n"),
        ("early = BackwardPrefetch.BACKWARD_PRE\nmodel = FSDP(net, backward_prefetch=early)\n",
         "model = fully_shard(net)\n"),
    ],
)  # fmt: skip
def test_a_variable_that_only_takes_a_setting_to_the_call_goes(body: str, written: str) -> None:
    _, after = migrate({"train.py": HEAD + body})
    assert after.keys() == {"train.py"}
    assert after["train.py"].endswith(written)
    assert " = ShardingStrategy" not in after["train.py"]
    assert " = CPUOffload" not in after["train.py"]


@pytest.mark.parametrize(
    "reader",
    [
        {"other.py": "from train import strategy\n\nprint(strategy)\n"},
        {"other.py": "import train\n\nprint(train.strategy)\n"},
        {"other.py": "import train\n\nprint(getattr(train, 'strategy'))\n"},
        {"other.py": "from train import strategy as chosen\n\nprint(chosen)\n"},
    ],
)
def test_one_that_another_file_may_read_stays(reader: dict[str, str]) -> None:
    body = "strategy = ShardingStrategy.FULL_SHARD\nmodel = FSDP(net, sharding_strategy=strategy)\n"
    _, after = migrate({"train.py": HEAD + body, **reader})
    assert "strategy = ShardingStrategy.FULL_SHARD\n" in after["train.py"]


def test_one_that_a_function_of_the_file_reads_stays() -> None:
    body = "strategy = ShardingStrategy.FULL_SHARD\nmodel = FSDP(net, sharding_strategy=strategy)\n"
    _, after = migrate({"train.py": f"{HEAD}{body}\n\ndef shown():\n    return strategy\n"})
    assert "strategy = ShardingStrategy.FULL_SHARD\n" in after["train.py"]
    ast.parse(after["train.py"])
