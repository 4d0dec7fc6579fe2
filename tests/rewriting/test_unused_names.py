"""What nothing in the new file uses: variables that an argument or a test of FSDP1's asked for, and
imports for code that went with other code."""

from __future__ import annotations

import pytest

from tests.helpers.migrating import migrate, rewritten

HEAD = """\
import torch
import torch.distributed as dist
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP


"""
GIVEN = """\
def build(net, setup):
    flag = {}
    return FSDP(net, limit_all_gathers=flag)
"""


@pytest.mark.parametrize(
    "made",
    [
        "torch.cuda.current_device()",
        'bool(torch.device("cuda", dist.get_rank()))',
        "int(setup.rank) % 8",
        "setup.flag if setup else None",
    ],
)
def test_a_mere_value_goes(made: str) -> None:
    after = rewritten(HEAD + GIVEN.format(made))
    assert "flag" not in after
    assert ("import torch.distributed as dist" in after) == ("dist." not in made)
    assert "def build(net, setup):\n    return fully_shard(net)\n" in after


@pytest.mark.parametrize("made", ["setup()", "setup.next()", "(yield)", "[d := setup][0]"])
def test_what_does_something_stays_without_a_name(made: str) -> None:
    after = rewritten(HEAD + GIVEN.format(made))
    assert "flag = " not in after
    assert f"\n    {made.removeprefix('(').removesuffix(')') if 'yield' in made else made}\n" in (
        after.replace("(yield)", "yield")
    )


def test_a_chain_goes_as_a_whole() -> None:
    chain = "    rank = dist.get_rank()\n    flag = bool(rank)\n"
    after = rewritten(
        f"{HEAD}def build(net):\n{chain}    return FSDP(net, limit_all_gathers=flag)\n"
    )
    assert after.endswith("def build(net):\n    return fully_shard(net)\n")


def test_each_branch_loses_its_own() -> None:
    given = "    if cuda:\n        flag = 0\n    else:\n        flag = 1\n"
    after = rewritten(
        f"{HEAD}def build(net, cuda):\n{given}    return FSDP(net, limit_all_gathers=flag)\n"
    )
    assert "flag" not in after
    compile(after, "example.py", "exec")


def test_a_model_that_nothing_asks_any_more_loses_its_name() -> None:
    uses = "    dist.all_reduce(loss, group=model.process_group)\n"
    after = rewritten(f"{HEAD}def mean(net, loss):\n    model = FSDP(net)\n{uses}")
    assert "\n    fully_shard(net)\n" in after


@pytest.mark.parametrize(
    "other",
    [
        "    print(flag)\n",
        "    print(locals())\n",
        "    def inside():\n        return flag\n",
        "    del flag\n",
        "    flag += 1\n",
    ],
)
def test_what_something_else_may_read_stays(other: str) -> None:
    body = "    flag = 0\n    model = FSDP(net, limit_all_gathers=flag)\n"
    after = rewritten(f"{HEAD}def build(net):\n{body}{other}    return model\n")
    assert "    flag = 0\n" in after


def test_names_of_a_module_stay() -> None:
    after = rewritten(f"{HEAD}flag = 0\nmodel = FSDP(net, limit_all_gathers=flag)\n")
    assert "flag = 0\n" in after


def test_an_unused_variable_of_the_users_own_stays() -> None:
    after = rewritten(f"{HEAD}def build(net):\n    spare = 1\n    return FSDP(net)\n")
    assert "spare = 1" in after


def test_imports_are_those_that_the_new_file_reads() -> None:
    """The state in the call goes with the call, and what would have asked for it too."""
    _, after = migrate(
        {
            "a.py": """\
import torch.distributed.checkpoint as dcp
from torch.distributed.checkpoint import load_sharded_optimizer_state_dict
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP


def resume(net, optimizer, reader, key):
    model = FSDP(net)
    state = load_sharded_optimizer_state_dict(model.state_dict(), key, reader)[key]
    flat = FSDP.optim_state_dict_to_load(model=model, optim=optimizer, optim_state_dict=state)
    optimizer.load_state_dict(flat)
"""
        }
    )
    for name in ("get_model_state_dict", "StateDictOptions"):
        assert name not in after["a.py"]
    assert "get_optimizer_state_dict" in after["a.py"]
