"""Objects that hold an optimizer, and are given to FSDP1 where torch takes an optimizer."""

from __future__ import annotations

from textwrap import dedent

import pytest

from fsdp_migrate.planning.outcome import Outcome
from tests.helpers.migrating import migrate, worst

HEAD = """\
import torch
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP


"""
FORWARDING = """\
    @property
    def param_groups(self):
        return self.inner.param_groups

    def state_dict(self):
        \"\"\"Its state.\"\"\"
        return self.inner.state_dict()

    def load_state_dict(self, state):
        self.inner.load_state_dict(state)
"""
TAIL = """

def main(net, path, saved):
    model = FSDP(net)
    optimizer = Holder(torch.optim.AdamW(model.parameters()), model)
    full = FSDP.full_optim_state_dict(model, optimizer)
    some = FSDP.shard_full_optim_state_dict(saved, model)
    optimizer.load_state_dict(some)
    return full
"""
CLASS = f"""\
class Holder:
    def __init__(self, optimizer, model):
        self.inner = optimizer
        self.model = model

    def wrapped(self):
        return self.model

{FORWARDING}"""
HOLDERS = {
    "plain": CLASS,
    "derived": CLASS.replace("class Holder:", "class Base:")
    + "\n\nclass Holder(Base):\n"
    + "    def __init__(self, optimizer, model):\n        super().__init__(optimizer, model)\n",
    "abstract": CLASS.replace("class Holder:", "from abc import ABC\n\n\nclass Holder(ABC):"),
    "object": CLASS.replace("class Holder:", "class Holder(object):"),
    "handed on by getattr": CLASS.split("    @property", maxsplit=1)[0]
    + "    def __getattr__(self, name):\n        return getattr(self.inner, name)\n",
    "dataclass": "from dataclasses import dataclass\n\n\n@dataclass\nclass Holder:\n"
    "    inner: torch.optim.Optimizer\n    model: torch.nn.Module\n\n" + FORWARDING,
}


@pytest.mark.parametrize("kind", HOLDERS)
def test_torch_is_given_what_is_held(kind: str) -> None:
    result, after = migrate({"train.py": HEAD + HOLDERS[kind] + TAIL})
    text = "".join(after["train.py"].split())
    assert worst(result) is Outcome.REWRITTEN
    assert "get_optimizer_state_dict(model,optimizer.inner,options" in text
    assert "set_optimizer_state_dict(model,optimizer.inner,separate_steps(saved)" in text


def test_an_object_that_hands_itself_over_hands_over_what_it_holds() -> None:
    method = """
    def saved(self):
        return FSDP.sharded_optim_state_dict(self.model, self)
"""
    _, after = migrate({"train.py": HEAD + CLASS + method + TAIL})
    assert "get_optimizer_state_dict(self.model, self.inner)" in after["train.py"]


EITHER = """

def build(net, wrap):
    model = FSDP(net)
    optimizer = torch.optim.AdamW(model.parameters())
    if wrap:
        optimizer = Holder(optimizer, model)
    return model, optimizer


def save(optimizer):
    {first}
    return FSDP.full_optim_state_dict({model}, optimizer)


def main(net, wrap):
    model, optimizer = build(net, wrap)
    {call}
"""


def test_what_is_asked_for_more_than_an_optimizer_has_is_none() -> None:
    parts = {"first": "model = optimizer.wrapped()", "model": "model"}
    tail = EITHER.format(**parts, call="return save(optimizer)")
    result, after = migrate({"train.py": HEAD + CLASS + tail})
    assert worst(result) is not Outcome.LEFT
    assert "optimizer.inner, options" in " ".join(after["train.py"].split())


@pytest.mark.parametrize(
    "first",
    [
        "model = optimizer.param_groups and GIVEN",
        "model = optimizer.wrapped() if GIVEN else None",
        "model = GIVEN\n    if GIVEN:\n        model = optimizer.wrapped()",
        "model = GIVEN\n    optimizer.register_step_post_hook(print)",
    ],
)
def test_what_may_be_an_optimizer_stays(first: str) -> None:
    call = "return save(optimizer, model)"
    tail = EITHER.format(first=first.replace("GIVEN", "given"), model="model", call=call)
    tail = tail.replace("def save(optimizer)", "def save(optimizer, given)")
    result, after = migrate({"train.py": HEAD + CLASS + tail})
    assert worst(result) is Outcome.LEFT
    assert "which is no torch.optim.Optimizer, and may be one of torch's" in " ".join(
        after["train.py"].replace("#", "").split()
    )


PROBLEMS = {
    "two": (
        CLASS.replace("self.model = model", "self.other = torch.optim.SGD(model.parameters())"),
        "which it holds is not plain to see",
    ),
    "none": (
        CLASS.replace("self.inner = optimizer", "self.inner = make(optimizer)"),
        "which it holds is not plain to see",
    ),
    "private": (CLASS.replace("inner", "__inner"), "which it holds is not plain to see"),
    "more state": (
        CLASS.replace(
            "return self.inner.state_dict()", 'return {"step": 1, **self.inner.state_dict()}'
        ),
        "does more with its state than hand it on",
    ),
}


@pytest.mark.parametrize("kind", PROBLEMS)
def test_other_objects_keep_their_states_and_load_them_by_themselves(kind: str) -> None:
    text, reason = PROBLEMS[kind]
    result, after = migrate({"train.py": HEAD + text + TAIL})
    assert [d.code for d in result.decisions if d.outcome is Outcome.LEFT] == ["FSDP304"]
    assert reason in " ".join(after["train.py"].replace("#", "").split())
    given = "optimizer.load_state_dict(optimizer_state_to_load(model, optimizer, saved))"
    assert given in after["train.py"]


OPTIMIZERS = {
    "torch's": "class Holder(torch.optim.Optimizer):\n" + CLASS.split("\n", 1)[1],
    "of a library": "from lib import Base\n\n\nclass Holder(Base):\n" + CLASS.split("\n", 1)[1],
    "unknown": "class Holder(make_base()):\n" + CLASS.split("\n", 1)[1],
    "a function": "def Holder(optimizer, model):\n    return optimizer\n",
    "imported": "from lib import Holder\n",
}


@pytest.mark.parametrize("kind", OPTIMIZERS)
def test_what_is_or_may_be_an_optimizer_is_given_as_it_is(kind: str) -> None:
    _, after = migrate({"train.py": HEAD + OPTIMIZERS[kind] + TAIL})
    text = "".join(after["train.py"].split())
    assert "get_optimizer_state_dict(model,optimizer,options" in text
    assert "set_optimizer_state_dict(model,optimizer,separate_steps(saved)" in text


def test_a_problem_is_said_in_one_sentence() -> None:
    text, _ = PROBLEMS["two"]
    result, _ = migrate({"train.py": HEAD + text + dedent(TAIL)})
    (left,) = [d for d in result.decisions if d.outcome is Outcome.LEFT]
    assert left.message == (
        "the optimizer is of the class Holder, which is no torch.optim.Optimizer, and which it "
        "holds is not plain to see"
    )


LOOKED_UP = """\
class Samples:
    {has}


def look_up(kind, parameters):
    return Samples() if kind == "data" else torch.optim.AdamW(parameters)


def main(net, kind):
    model = FSDP(net)
    optimizer = look_up(kind, model.parameters())
    return FSDP.optim_state_dict(model, optimizer)
"""


@pytest.mark.parametrize(
    ("has", "outcome"),
    [
        ("size = 3", Outcome.REWRITTEN),
        ("def state_dict(self):\n        return {}", Outcome.REWRITTEN),
        ("param_groups = []", Outcome.LEFT),
        ("def __getattr__(self, name):\n        return name", Outcome.LEFT),
    ],
)
def test_what_has_no_state_is_not_asked_for_one(has: str, outcome: Outcome) -> None:
    result, _ = migrate({"example.py": HEAD + LOOKED_UP.format(has=has)})
    assert [d.outcome for d in result.decisions if d.code == "FSDP304"] == [outcome]


TOLD = """\
def save(optimizer, model):
    TEST
    return FSDP.full_optim_state_dict(model, optim=optimizer)


def main(net):
    model = FSDP(net)
    optimizer = torch.optim.AdamW(model.parameters())
    save(optimizer, model)
    save(Holder(optimizer, model), model)
"""
TESTS = {
    "an assertion": "assert isinstance(optimizer, Holder), 'no holder'",
    "an early return": "if not isinstance(optimizer, Holder):\n        return None",
    "of the class above": "assert isinstance(optimizer, Base)",
}
NO_TESTS = {
    "of both": "assert isinstance(optimizer, (Holder, torch.optim.Optimizer))",
    "of another object": "assert isinstance(model, Holder)",
    "a branch that goes on": "if not isinstance(optimizer, Holder):\n        print('no holder')",
}


@pytest.mark.parametrize("test", TESTS.values(), ids=TESTS)
def test_a_test_tells_that_it_is_no_optimizer(test: str) -> None:
    source = HEAD + HOLDERS["derived"] + "\n\n" + TOLD.replace("TEST", test)
    result, after = migrate({"example.py": source})
    assert Outcome.LEFT not in {d.outcome for d in result.decisions}
    assert "optimizer.inner" in after["example.py"].split("def save", maxsplit=1)[1]


@pytest.mark.parametrize("test", NO_TESTS.values(), ids=NO_TESTS)
def test_without_one_it_may_be_either(test: str) -> None:
    source = HEAD + HOLDERS["derived"] + "\n\n" + TOLD.replace("TEST", test)
    result, _ = migrate({"example.py": source})
    problems = [d.message for d in result.decisions if d.outcome is Outcome.LEFT]
    assert any("may be of the class Holder" in each for each in problems)


def test_a_test_tells_that_it_is_not_held() -> None:
    test = "assert not isinstance(optimizer, Holder)"
    source = HEAD + HOLDERS["derived"] + "\n\n" + TOLD.replace("TEST", test)
    result, after = migrate({"example.py": source})
    assert Outcome.LEFT not in {d.outcome for d in result.decisions}
    assert "optimizer.inner" not in after["example.py"].split("def save", maxsplit=1)[1]


ANOTHER = """class Scaled(Base):
    def __init__(self, optimizer, model):
        super().__init__(optimizer, model)

    def state_dict(self):
        return {"scale": 1.0, **self.inner.state_dict()}


"""


# As where every plugin of a framework has an optimizer of its own, and one function saves them.
@pytest.mark.parametrize(
    ("test", "left"),
    [("assert isinstance(optimizer, Holder)", False), ("assert optimizer is not None", True)],
)
def test_another_holder_is_not_met_behind_a_test(test: str, left: bool) -> None:
    told = TOLD.replace("TEST", test) + "    save(Scaled(optimizer, model), model)\n"
    source = f"{HEAD}{HOLDERS['derived']}\n\n{ANOTHER}{told}"
    result, _ = migrate({"example.py": source})
    problems = [d for d in result.decisions if d.code == "FSDP304" and d.outcome is Outcome.LEFT]
    assert bool(problems) is left


CHOSEN = """\
class Clock:
    def state_dict(self):
        return {}

    def load_state_dict(self, state):
        pass


class State:
    def __init__(self, model, optimizer):
        self.model, self.optimizer, self.clock = model, optimizer, Clock()

    def save(self):
        found = {}
        for name in ("optimizer", "clock"):
            value = getattr(self, name)
            if name == "optimizer":
                found[name] = FSDP.full_optim_state_dict(self.model, value)
            else:
                found[name] = value.state_dict()
        return found


def main(net):
    model = FSDP(net)
    return State(model, torch.optim.AdamW(model.parameters())).save()
"""


def test_an_object_without_an_optimizer_is_none_of_those_that_are_given() -> None:
    result, after = migrate({"train.py": HEAD + CHOSEN})
    assert worst(result) is not Outcome.LEFT
    assert "get_optimizer_state_dict(" in after["train.py"]
