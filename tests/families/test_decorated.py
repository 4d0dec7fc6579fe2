"""States gathered in functions that a decorator may keep from some ranks."""

from __future__ import annotations

import pytest

from fsdp_migrate.planning.outcome import Outcome
from tests.helpers.migrating import migrate

HEAD = """\
from functools import wraps

import torch.distributed as dist
from torch import nn
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP

"""
REST = """\


{decorator}
def save(model):
    return model.state_dict()


save(FSDP(nn.Linear(8, 8)))
"""
ON_EVERY_RANK = {
    "a factory that logs on one": """\
def timed(rank):
    def decorator(func):
        @wraps(func)
        def wrapper(*args, **kwargs):
            result = func(*args, **kwargs)
            if rank == 0:
                print("done")
            return result
        return wrapper
    return decorator
""",
    "one that waits for another": """\
def timed(rank):
    def decorator(func):
        def wrapper(*args):
            if rank != 0:
                dist.barrier()
            result = func(*args)
            if rank == 0:
                dist.barrier()
            return result
        return wrapper
    return decorator
""",
}
ON_SOME = {
    "a condition": """\
def timed(rank):
    def decorator(func):
        def wrapper(*args):
            if rank == 0:
                return func(*args)
        return wrapper
    return decorator
""",
    "an early return": """\
def timed(rank):
    def decorator(func):
        def wrapper(*args):
            if rank != 0:
                return None
            return func(*args)
        return wrapper
    return decorator
""",
    "one that hands the function on": """\
def timed(rank):
    def decorator(func):
        return registered(func, rank)
    return decorator
""",
    "another library's": "from somewhere import timed\n",
}


def migrated(definition: str) -> tuple[str, set[Outcome]]:
    decorator = "@timed(dist.get_rank())"
    source = HEAD + definition + REST.format(decorator=decorator)
    result, after = migrate({"train.py": source})
    return after["train.py"], {d.outcome for d in result.decisions}


@pytest.mark.parametrize("definition", ON_EVERY_RANK.values(), ids=ON_EVERY_RANK)
def test_a_decorator_that_calls_on_every_rank_is_no_guard(definition: str) -> None:
    text, outcomes = migrated(definition)
    assert "return get_model_state_dict(" in text
    assert outcomes == {Outcome.REWRITTEN}


@pytest.mark.parametrize("definition", ON_SOME.values(), ids=ON_SOME)
def test_a_decorator_that_may_not_call_is_one(definition: str) -> None:
    text, outcomes = migrated(definition)
    assert "every rank must make the call" in " ".join(text.replace("#", "").split())
    assert Outcome.REVIEW in outcomes
