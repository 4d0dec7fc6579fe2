"""What is called out of a table, or by something else that it is given to, meets the model."""

from __future__ import annotations

import pytest

from tests.helpers.migrating import migrate

MAIN = """\
import asyncio
import random
import threading
from concurrent.futures import ThreadPoolExecutor
import torch
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP
from sizes import BY_NAME, ORDERED, Sizes, Other, measure


def main(net, event, pool):
    model = FSDP(net, use_orig_params=True)
    other = torch.nn.Linear(2, 2)
    CALL
"""
SIZES = """\
class Base:
    def __init__(self, model):
        self.model = model


class Sizes(Base):
    def tell(self):
        return sum(p.std() for p in self.model.parameters())


class Other(Base):
    def tell(self):
        return 0


def measure(model):
    return sum(p.std() for p in model.parameters())


def nothing(model):
    return 0


def empty(model):
    return None


BY_NAME = {"sizes": Sizes, "measure": measure}
ORDERED = [nothing, empty]
"""
MARKER = "# TODO(fsdp-migrate FSDP408)"
OUT_OF_TABLES = {
    "an item": "BY_NAME[event](model)",
    "an item by name": "BY_NAME['sizes'](model=model).tell()",
    "a variable": "made = BY_NAME[event]\n    made(model)",
    "with a default": "made = BY_NAME.get(event)\n    made(model)",
    "there": "BY_NAME.get(event, print)(model)",
    "a loop": "for made in BY_NAME.values():\n        made(model)",
    "in a comprehension": "[made(model) for name, made in BY_NAME.items() if name in event]",
    "a choice": "(Sizes if event else Other)(model)",
    "a choice of functions": "(measure if event else print)(model)",
}
BY_OTHERS = {
    "a pool": "ThreadPoolExecutor(1).submit(measure, model)",
    "a pool that is given": "pool.submit(measure, model=model)",
    "a thread": "threading.Thread(target=measure, args=(model,)).start()",
    "a thread of a list": "threading.Thread(args=[model], target=measure, daemon=True).start()",
    "a loop of events": "asyncio.get_event_loop().run_in_executor(None, measure, model)",
    "another thread": "asyncio.run(asyncio.to_thread(measure, model))",
}
NONE = {
    "another model": "BY_NAME[event](other)",
    "another function": "ORDERED[0](model)",
    "a thread of another": "threading.Thread(target=measure, args=(other,)).start()",
    "a thread of nothing": "threading.Thread(target=print, args=(measure, model)).start()",
    "a pool of another": "pool.submit(print, measure, model)",
}


def after(call: str, model: str = "FSDP(net, use_orig_params=True)") -> str:
    text = MAIN.replace("FSDP(net, use_orig_params=True)", model).replace("CALL", call)
    return migrate({"main.py": text, "sizes.py": SIZES})[1]["sizes.py"]


@pytest.mark.parametrize("call", OUT_OF_TABLES.values(), ids=OUT_OF_TABLES)
def test_what_is_called_out_of_a_table_meets_the_model(call: str) -> None:
    assert MARKER in after(call)


@pytest.mark.parametrize("call", BY_OTHERS.values(), ids=BY_OTHERS)
def test_what_something_else_calls_meets_the_model(call: str) -> None:
    measured = after(call).partition("def measure")[2]
    assert MARKER in measured


@pytest.mark.parametrize("call", NONE.values(), ids=NONE)
def test_what_gets_another_model_stays(call: str) -> None:
    assert after(call) == SIZES


@pytest.mark.parametrize("call", [OUT_OF_TABLES["an item"], BY_OTHERS["a pool"]])
def test_a_model_that_is_not_sharded_stays(call: str) -> None:
    assert after(call, "torch.nn.parallel.DistributedDataParallel(net)") == SIZES
