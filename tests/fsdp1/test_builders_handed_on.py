"""Models that something out of sight makes, by a function it is handed, and what asks by name."""

from __future__ import annotations

import pytest

from tests.helpers.migrating import migrate, rewritten

TOP = """\
import functools
import operator
import torch
from concurrent.futures import ThreadPoolExecutor
from elsewhere import call
from operator import attrgetter
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP


def build(net):
    return FSDP(net)


def other(net):
    return net


pool = ThreadPoolExecutor()
known = FSDP(net)
"""
MARKED = "TODO(fsdp-migrate"
MADE = [
    "model = call(build, net)",
    "model = call(lambda: build(net))",
    "model = call(functools.partial(build, net))",
    "model = pool.submit(build, net).result()",
    "job = pool.submit(build, net)\nmodel = job.result()",
    "model, = pool.map(build, [net])",
    "model = next(iter(pool.map(build, [net])))",
    "model = functools.lru_cache()(build)(net)",
    "model = functools.reduce(lambda net, f: f(net), [build], net)",
    "for model in map(build, [net]):\n    pass",
    "with ThreadPoolExecutor() as executor:\n    model = executor.submit(build, net).result()",
]


@pytest.mark.parametrize("made", MADE)
def test_what_is_handed_a_builder_may_give_a_model(made: str) -> None:
    after = rewritten(f"{TOP}{made}\nmodel.clip_grad_norm_(1.0)\n")
    assert "clip_grad_norm_(model.parameters(), 1.0)" in after
    assert MARKED in after


@pytest.mark.parametrize("made", MADE)
def test_what_is_handed_another_function_does_not(made: str) -> None:
    changed = made.replace("build", "other")
    after = rewritten(f"{TOP}{changed}\ntorch.save(model.state_dict(), 'a')\n")
    assert MARKED not in after


DECORATED = [
    "def timed(f):\n    @functools.wraps(f)\n    def inner(*a, **k):\n        return f(*a, **k)\n"
    "    return inner\n\n\n@timed\ndef make():\n    return FSDP(net)\n",
    "def timed(f):\n    def inner(*a):\n        made = f(*a)\n        return made\n"
    "    return inner\n\n\n@timed\ndef make():\n    return FSDP(net)\n",
    "@functools.lru_cache(None)\ndef make():\n    return FSDP(net)\n",
    "@functools.cache\ndef make():\n    return FSDP(net)\n",
]


@pytest.mark.parametrize("made", DECORATED)
def test_decorated_builders_are_followed(made: str) -> None:
    after = rewritten(f"{TOP}{made}\n\nmodel = make()\nmodel.clip_grad_norm_(1.0)\n")
    assert "clip_grad_norm_(model.parameters(), 1.0)" in after


@pytest.mark.parametrize(
    "asked",
    [
        'operator.methodcaller("clip_grad_norm_", 1.0)(known)',
        'clip = operator.methodcaller("clip_grad_norm_", 1.0, 2.0)',
        'operator.attrgetter("module")(known)',
        'attrgetter("module.head.weight")(known)',
        'list(map(attrgetter("module"), [known]))',
    ],
)
def test_what_operators_ask_models_for_is_left(asked: str) -> None:
    after = rewritten(f"{TOP}{asked}\n")
    assert "fully_shard" in after
    assert f"{MARKED} FSDP499): An FSDP2 model has no " in after


def test_a_state_that_is_asked_for_by_an_operator_holds_its_model_back() -> None:
    source = f'{TOP}state = operator.methodcaller("state_dict")(known)\n'
    result, after = migrate({"train.py": source})
    assert "known = FSDP(net)" in after["train.py"]
    assert any("is another of an FSDP2 model" in d.message for d in result.decisions)


@pytest.mark.parametrize(
    "asked",
    [
        'operator.methodcaller("train")(known)',
        'operator.attrgetter("head.weight")(known)',
        'operator.itemgetter("module")({"module": 1})',
        'operator.attrgetter("module")(torch.nn.Linear(2, 2))',
        'table.attrgetter("module")(known)',
        'sorted(rows, key=attrgetter("name"))',
    ],
)
def test_other_questions_are_not(asked: str) -> None:
    after = rewritten(f"{TOP}{asked}\n")
    assert MARKED not in after
    assert asked in after


MANAGERS = """\
import contextlib


@contextlib.contextmanager
def training():
    yield MADE


class Training:
    def __enter__(self):
        return MADE

    def __exit__(self, *given):
        pass


"""
ENTERED = [
    "with contextlib.ExitStack() as stack:\n    model = stack.enter_context(training())\n    USE",
    "with contextlib.ExitStack() as stack:\n    model = stack.enter_context(Training())\n    USE",
    "stack = contextlib.ExitStack()\nmodel = stack.enter_context(training())\nUSE",
    "model = contextlib.ExitStack().enter_context(contextlib.nullcontext(MADE))\nUSE",
]


@pytest.mark.parametrize("entered", ENTERED)
def test_what_a_stack_of_contexts_gives_is_followed(entered: str) -> None:
    program = (MANAGERS + entered).replace("USE", "model.clip_grad_norm_(1.0)")
    after = rewritten(TOP + program.replace("MADE", "build(net)") + "\n")
    assert "clip_grad_norm_(model.parameters(), 1.0)" in after
    assert MARKED not in after


@pytest.mark.parametrize("entered", ENTERED)
def test_other_contexts_give_no_model(entered: str) -> None:
    program = (MANAGERS + entered).replace("USE", "print(model.state_dict())")
    after = rewritten(TOP + program.replace("MADE", "torch.nn.Linear(2, 2)") + "\n")
    assert "print(model.state_dict())" in after
    assert MARKED not in after
