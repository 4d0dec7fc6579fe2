"""Questions about FSDP1's handles that guard what frees parameters."""

from __future__ import annotations

import pytest

from tests.helpers.migrating import migrate, unmarked

PROGRAM = """\
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP, ShardingStrategy


def is_fsdp(x):
    \"\"\"Whether it is sharded.\"\"\"
    return isinstance(x, FSDP)


def free(x):
{body}

def run(net, which):
    model = FSDP(net{strategy})
    for m in model.modules():
        free(m)
"""

ASKED = {
    "a function that tells": (
        "    if is_fsdp(x) and x._handle is not None:\n        x._handle.reshard(True)\n",
        "    if is_fsdp(x):\n        x.reshard()\n",
    ),
    "isinstance": (
        "    if isinstance(x, FSDP) and x._has_params:\n        x._handle.reshard(True)\n",
        "    if isinstance(x, FSDPModule):\n        x.reshard()\n",
    ),
    "a flag as well": (
        """\
    if isinstance(x, FSDP) and x.training and x._handle:
        print("freed")
        x._handle.reshard(free_unsharded_flat_param=True)
""",
        """\
    if isinstance(x, FSDPModule) and x.training:
        print("freed")
        x.reshard()
""",
    ),
    "nothing else": (
        "    if x._handle is not None:\n        x._handle.reshard(True)\n",
        "    if isinstance(x, FSDPModule):\n        x.reshard()\n",
    ),
    "two of them": (
        "    if x._has_params and x._handle is not None:\n        x._handle.reshard(True)\n",
        "    if isinstance(x, FSDPModule):\n        x.reshard()\n",
    ),
    "the strategy": (
        """\
    if is_fsdp(x) and x.sharding_strategy != ShardingStrategy.NO_SHARD:
        x._handle.reshard(True)
""",
        "    if is_fsdp(x):\n        x.reshard()\n",
    ),
    "the strategy, which it is": (
        """\
    if is_fsdp(x) and x.sharding_strategy is ShardingStrategy.FULL_SHARD and x._has_params:
        x._handle.reshard(True)
""",
        "    if is_fsdp(x):\n        x.reshard()\n",
    ),
}


@pytest.mark.parametrize("case", ASKED)
def test_what_is_so_of_every_model_goes(case: str) -> None:
    before, wanted = ASKED[case]
    result, after = migrate({"train.py": PROGRAM.format(body=before, strategy="")})
    assert not result.problems
    assert all(d.outcome.name == "REWRITTEN" for d in result.decisions)
    assert f"def free(x):\n{wanted}\n" in after["train.py"]


LEFT = {
    "more is done with it": """\
    if is_fsdp(x) and x._handle is not None:
        print(x._handle.flat_param.numel())
""",
    "another's handle": """\
    if is_fsdp(x) and x._handle is not None:
        x.child._handle.reshard(True)
""",
    "there is an else": """\
    if x._handle is not None:
        x._handle.reshard(True)
    else:
        print("none")
""",
    "it is not freed": """\
    if is_fsdp(x) and x._handle is not None:
        x._handle.reshard(False)
""",
    "it is one of two": """\
    if is_fsdp(x) or x._handle is not None:
        print(x)
""",
}


@pytest.mark.parametrize("body", LEFT.values(), ids=LEFT)
def test_other_questions_stay(body: str) -> None:
    result, after = migrate({"train.py": PROGRAM.format(body=body, strategy="")})
    assert not result.problems
    asked = body.split(":\n", maxsplit=1)[0]
    assert f"def free(x):\n{asked}:\n" in unmarked(after["train.py"])
    assert any(d.outcome.name == "LEFT" for d in result.decisions)


@pytest.mark.parametrize("strategy", ["which", "ShardingStrategy.NO_SHARD"])
def test_a_strategy_that_may_be_another_stays(strategy: str) -> None:
    body = (
        "    if is_fsdp(x) and x.sharding_strategy is not ShardingStrategy.NO_SHARD:\n        x()\n"
    )
    given = f", sharding_strategy={strategy}"
    _, after = migrate({"train.py": PROGRAM.format(body=body, strategy=given)})
    assert f"def free(x):\n{body}" in unmarked(after["train.py"])
