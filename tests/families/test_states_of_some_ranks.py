"""A state that only some ranks ask for, where nothing can be moved above the condition.

FSDP1 waited for the other ranks there, or never got there. It is gathered where it stands, and
marked.
"""

from __future__ import annotations

import pytest

from fsdp_migrate.planning.outcome import Outcome
from tests.helpers.migrating import migrate, worst

HEAD = """\
import torch
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP

model = FSDP(net)
"""
PLACES = {
    "a function": """

def save(path):
    torch.save(model.state_dict(), path)


if rank == 0:
    save("model.pt")
""",
    "a branch of the engine": """

def save(model, engine):
    if engine == "torch_fsdp":
        return
    elif rank == 0:
        write(model)


def write(model):
    torch.save(model.state_dict(), "model.pt")


save(model, engine)
""",
    "a decorator": """

@rank_zero_only
def save(path):
    torch.save(model.state_dict(), path)
""",
    "several models": """
if rank == 0:
    for one in [model]:
        torch.save(one.state_dict(), "model.pt")
""",
    "a comprehension": """
if rank == 0:
    states = [one.state_dict() for one in (model,)]
""",
    "a task": """
if rank == 0:
    saver.submit(lambda: torch.save(model.state_dict(), "model.pt"))
""",
    "an optimizer": """
if rank == 0:
    optimizer = make()
    torch.save(FSDP.optim_state_dict(model, optimizer), "optimizer.pt")
""",
}


@pytest.mark.parametrize("place", PLACES)
def test_is_gathered_where_it_stands_and_marked(place: str) -> None:
    result, after = migrate({"main.py": HEAD + PLACES[place]})
    assert worst(result) is Outcome.REVIEW
    text = " ".join(after["main.py"].replace("#", "").split())
    assert "every rank must make the call" in text
    assert "_state_dict(" in text
    assert "FSDP." not in text
    assert "fully_shard(net)" in text


@pytest.mark.parametrize("place", [p for p in PLACES if p != "an optimizer"])
def test_of_a_model_of_ddp_nothing_is_marked(place: str) -> None:
    sharded = "from torch.distributed.fsdp import fully_shard\n\n"
    head = HEAD.replace(
        "torch.distributed.fsdp import FullyShardedDataParallel",
        "torch.nn.parallel import DistributedDataParallel",
    )
    source = head + PLACES[place]
    _, after = migrate({"main.py": source, "other.py": HEAD})
    assert sharded.strip() in after["other.py"]
    assert after["main.py"] == source


VARIABLE = """\
import torch
import torch.distributed as tdist
from torch.distributed.fsdp import FullStateDictConfig, StateDictType
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP, ShardingStrategy
from torch.distributed.fsdp.wrap import ModuleWrapPolicy

_rank = BEFORE


def start():
    global _rank
    tdist.init_process_group("nccl")
    _rank = AFTER


def is_master():
    return _rank == 0


def save(net, path):
    policy = ModuleWrapPolicy({torch.nn.Linear})
    hybrid = ShardingStrategy.HYBRID_SHARD
    model = FSDP(net, auto_wrap_policy=policy, sharding_strategy=hybrid)
    config = FullStateDictConfig(rank0_only=True)
    with FSDP.state_dict_type(model, StateDictType.FULL_STATE_DICT, config):
        state = model.state_dict()
        if is_master():
            torch.save(state, path)
"""


def test_a_variable_for_the_rank_is_0_before_the_processes_start() -> None:
    def after(before: str, then: str) -> str:
        source = VARIABLE.replace("BEFORE", before).replace("AFTER", then)
        return migrate({"train.py": source})[1]["train.py"]

    assert "full_model_state" not in after("0", "tdist.get_rank()")
    for before, then in [("1", "tdist.get_rank()"), ("0", "other.rank()"), ("0", "0")]:
        assert "full_model_state(model" in after(before, then)
