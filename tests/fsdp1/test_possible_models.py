"""Methods that only FSDP1's models have, on objects of which nothing else tells what they are."""

from __future__ import annotations

import pytest

from fsdp_migrate.planning.outcome import Outcome
from tests.helpers.migrating import migrate, rewritten

MODEL = """\
from torch import nn
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP

model = FSDP(nn.Linear(3, 3))
"""
MAY_BE_MODELS = {
    "a parameter that no caller gives": "def step(net):\n    net.clip_grad_norm_(1.0)\n",
    "a part of it": "def step(state):\n    state.net.clip_grad_norm_(max_norm=1.0)\n",
    "an element of it": "def step(nets):\n    for net in nets:\n        net.clip_grad_norm_(1.0)\n",
    "a result of it": "def step(task):\n    task.get_model().clip_grad_norm_(task.limit)\n",
    "one of a dict": "def step(nets, key):\n    nets[key].clip_grad_norm_(1.0, norm_type=2)\n",
    "of the type of modules": (
        "from torch import nn\n\n\ndef step(net: nn.Module):\n    net.clip_grad_norm_(1.0)\n"
    ),
    "an attribute that others set": (
        "class Task:\n    def step(self):\n        self.net.clip_grad_norm_(1.0)\n"
    ),
    "what a star hands on": (
        "import sys\n\n\ndef step(net):\n    net.clip_grad_norm_(1.0)\n\n\nstep(*sys.argv)\n"
    ),
    "in a method of that name": (
        "class Task:\n    def clip_grad_norm_(self, limit):\n"
        "        return self.net.clip_grad_norm_(limit)\n"
    ),
}


def kept(made: str, put: str, taken: str) -> str:
    """A model that a function puts somewhere, from where another takes it."""
    return (
        f"import queue, threading, types\n\n{made}\n\n\ndef put(name, value):\n    {put}\n\n\n"
        f"def step():\n    {taken}.clip_grad_norm_(1.0)\n"
    )


MAY_BE_MODELS |= {
    "set on a namespace": kept(
        "state = types.SimpleNamespace()", "setattr(state, name, value)", "state.net"
    ),
    "set on what a thread has": kept(
        "state = threading.local()", "setattr(state, name, value)", "state.net"
    ),
    "set on a class": kept("class State:\n    pass", "setattr(State, name, value)", "State.net"),
    "in a dict that is updated": kept("state = {}", "state.update({name: value})", "state['net']"),
    "in a list that is extended": kept("state = []", "state.extend([value])", "state[0]"),
    "an element of an object": (
        "class Nets:\n    def __iter__(self):\n        return iter(self.nets)\n\n\n"
        "for net in Nets():\n    net.clip_grad_norm_(1.0)\n"
    ),
    "a part of an element": (
        "nets = [(build(), 1)]\nfor net, _ in nets:\n    net.clip_grad_norm_(1.0)\n"
    ),
    "the rest of a list": (
        "first, *rest = build()\nfor net in rest:\n    net.clip_grad_norm_(1.0)\n"
    ),
    "what is captured": ("match build():\n    case (net, _):\n        net.clip_grad_norm_(1.0)\n"),
    "what an async function gives": (
        "async def make():\n    return await build()\n\n\nasync def step():\n"
        "    (await make()).clip_grad_norm_(1.0)\n"
    ),
    "in a queue": kept("state = queue.Queue()", "state.put(value)", "state.get()"),
}


@pytest.mark.parametrize("source", MAY_BE_MODELS.values(), ids=MAY_BE_MODELS)
def test_what_may_be_a_model_is_clipped_as_one_and_marked(source: str) -> None:
    result, after = migrate({"model.py": MODEL, "steps.py": source})
    found = [d for d in result.decisions if d.site.doubt]
    assert [d.outcome for d in found] == [Outcome.REVIEW]
    assert "# TODO(fsdp-migrate FSDP401): Nothing tells whether" in after["steps.py"]
    assert ".clip_grad_norm_(" in after["steps.py"]
    assert ".parameters()" in after["steps.py"]


def test_no_sync_of_any_model_needs_no_review() -> None:
    source = "def step(net, loss):\n    with net.no_sync():\n        loss.backward()\n"
    result, after = migrate({"model.py": MODEL, "steps.py": source})
    assert "with no_sync_of_any(net):" in after["steps.py"]
    assert [d.outcome for d in result.decisions if d.site.doubt] == [Outcome.REWRITTEN]


EITHER = """\
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP, ShardingStrategy
from torch.nn.parallel import DistributedDataParallel as DDP


def build(net, sharded):
    return FSDP(net, sharding_strategy=ShardingStrategy.{strategy}) if sharded else DDP(net)


def accumulate(net, sharded, first, second):
    model = build(net, sharded)
    with model.no_sync():
        model(first).sum().backward()
    model(second).sum().backward()
"""


@pytest.mark.parametrize(
    ("strategy", "context"),
    [("FULL_SHARD", "no_sync_of_any"), ("SHARD_GRAD_OP", "no_sync_of_any_unsharded")],
)
def test_ddp_has_its_own_no_sync(strategy: str, context: str) -> None:
    _, after = migrate({"steps.py": EITHER.format(strategy=strategy)})
    assert f"    with {context}(model):" in after["steps.py"]
    assert f"def {context}(model: nn.Module)" in after["steps.py"]
    assert ("set_reshard_after_backward" in after["steps.py"]) is (strategy != "FULL_SHARD")


@pytest.mark.parametrize(
    "call", ["net.summon_full_params()", "net.check_is_root()", "net.fsdp_modules(net, alone)"]
)
def test_what_has_no_form_for_any_is_left_and_holds_nothing_back(call: str) -> None:
    source = f"def look(net):\n    return {call}\n"
    result, after = migrate({"model.py": MODEL, "steps.py": source})
    assert [d.outcome for d in result.decisions if d.site.doubt] == [Outcome.LEFT]
    assert call in after["steps.py"]
    assert "# TODO(fsdp-migrate" in after["steps.py"]
    assert "fully_shard" in after["model.py"]


def test_beside_a_model_that_is_held_back_nothing_is_clipped_as_if_it_were_migrated() -> None:
    source = "def step(net):\n    net.clip_grad_norm_(1.0)\n"
    stays = MODEL.replace("FSDP(nn.Linear(3, 3))", "FSDP(nn.Linear(3, 3), unheard_of=True)")
    _, after = migrate({"model.py": stays, "steps.py": source})
    assert "FSDP(nn.Linear(3, 3), unheard_of=True)" in after["model.py"]
    assert "    net.clip_grad_norm_(1.0)\n" in after["steps.py"]


OTHERS = {
    "a kind of state by its name": (
        'def save(trainer):\n    trainer.state.fsdp_plugin.set_state_dict_type("FULL_STATE_DICT")\n'
    ),
    "clipped parameters": "def step(acc, net):\n    acc.clip_grad_norm_(net.parameters())\n",
    "parameters under a name": "def step(acc, params):\n    acc.clip_grad_norm_(params, 1.0)\n",
    "a model given to no_sync": (
        "def step(acc, net, loss):\n    with acc.no_sync(net):\n        loss.backward()\n"
    ),
    "DistributedDataParallel": (
        "from torch.nn.parallel import DistributedDataParallel as DDP\n\n\n"
        "def step(net):\n    net = DDP(net)\n    with net.no_sync():\n        net(1).backward()\n"
    ),
    "an instance of it": (
        "from torch.nn.parallel import DistributedDataParallel as DDP\n\n\n"
        "def step(net, loss):\n    if isinstance(net, DDP):\n        with net.no_sync():\n"
        "            loss.backward()\n"
    ),
    "of its type": (
        "from torch.nn.parallel import DistributedDataParallel as DDP\n\n\n"
        "def step(net: DDP, loss):\n    with net.no_sync():\n        loss.backward()\n"
    ),
    "an engine": (
        "import deepspeed\n\n\ndef step(net):\n    engine, *_ = deepspeed.initialize(model=net)\n"
        "    engine.clip_grad_norm_(1.0)\n"
    ),
    "a part of an engine": (
        "import deepspeed\n\nengine = deepspeed.Engine()\nengine.inner.clip_grad_norm_(1.0)\n"
    ),
    "an object of a class of the project": (
        "class Scaler:\n    def clip_grad_norm_(self, limit):\n        self.limit = limit\n\n\n"
        "def step(scaler):\n    scaler.clip_grad_norm_(1.0)\n"
    ),
    "what is asked for its methods": (
        "def step(opt):\n    if hasattr(opt, 'clip_grad_norm_'):\n        opt.clip_grad_norm_(1)\n"
    ),
    "torch's own": (
        "import torch\n\n\ndef step(net):\n    torch.nn.utils.clip_grad_norm_(net.values, 1.0)\n"
    ),
    "a setting of that name": "def read(config):\n    return config.state_dict_type\n",
    "a method of the base class": (
        "class Task(Base):\n    def step(self):\n        super().clip_grad_norm_(1.0)\n"
    ),
}


@pytest.mark.parametrize("source", OTHERS.values(), ids=OTHERS)
def test_what_is_something_else_stays(source: str) -> None:
    _, after = migrate({"model.py": MODEL, "steps.py": source})
    assert after["steps.py"] == source
    assert "fully_shard" in after["model.py"]


def test_nothing_is_taken_for_a_model_where_none_is_made() -> None:
    source = "def step(net):\n    net.clip_grad_norm_(1.0)\n"
    assert rewritten(source) == source


OTHER_WAY = """\
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP, StateDictType


def whole(net, flag):
    if flag:
        with FSDP.state_dict_type(net, StateDictType.FULL_STATE_DICT):
            return net.state_dict()
    {rest}
"""


@pytest.mark.parametrize(
    "rest",
    [
        "elif hasattr(net, 'module'):\n        return net.module.state_dict()\n    return net",
        "else:\n        return net.state_dict()",
        "else:\n        return {k: v for k, v in net.state_dict().items()}",
    ],
)
def test_what_is_a_model_in_another_branch_is_marked_and_holds_nothing_back(rest: str) -> None:
    files = {"model.py": MODEL, "states.py": OTHER_WAY.format(rest=rest)}
    result, after = migrate(files)
    assert "fully_shard" in after["model.py"]
    assert "get_model_state_dict(net" in after["states.py"]
    found = [d for d in result.decisions if d.site.doubt]
    assert {d.outcome for d in found} == {Outcome.REVIEW}
    assert after["states.py"].count("is given it in another branch") == len(found) == 1


OTHER_METHOD = """\
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP, StateDictType


class Trainer:
    def save(self):
        with FSDP.state_dict_type(self.model, StateDictType.FULL_STATE_DICT):
            return self.model.state_dict()

    def load(self, state):
        {load}
{more}"""


def test_what_is_a_model_in_another_method_is_marked() -> None:
    load = "self.model.load_state_dict(state)\n        self.model.load_state_dict(state)"
    source = OTHER_METHOD.format(load=load, more="")
    _, after = migrate({"model.py": MODEL, "states.py": source})
    assert "get_model_state_dict(" in after["states.py"]
    assert after["states.py"].count("FSDP.state_dict_type is given it in save()") == 1


@pytest.mark.parametrize(
    ("load", "more"),
    [
        ("self.optimizer.load_state_dict(state)", ""),
        ("if not isinstance(self.model, FSDP):\n            self.model.load_state_dict(state)", ""),
        ("pass", "\n\nclass Other:\n    def load(self, state):\n        self.model.state_dict()\n"),
    ],
)
def test_what_no_other_method_tells_of_is_not_marked(load: str, more: str) -> None:
    source = OTHER_METHOD.format(load=load, more=more)
    _, after = migrate({"model.py": MODEL, "states.py": source})
    assert "is given it" not in after["states.py"]


TRAINERS = """\
import torch
from torch import nn


class Trainer:
    def __init__(self, net):
        self.net = net.to("cpu")

    def step(self):
        torch.nn.utils.clip_grad_norm_(self.net.parameters(), 1.0)


class Other(Trainer):
    def __init__(self, policy, judge):
        super().__init__(policy)
        self.judge = judge


def clip(net):
    torch.nn.utils.clip_grad_norm_(net.parameters(), 1.0)


def step(net):
    clip(net)


clip(nn.Linear(2, 2))
Trainer(nn.Linear(2, 2)).step()
"""


@pytest.mark.parametrize(("made", "marks"), [("", 1), ("Other(nn.Linear(2, 2), None).step()\n", 0)])
def test_what_users_of_a_class_give_it_may_be_a_model(made: str, marks: int) -> None:
    """Nothing here makes the other trainer, so that others do."""
    _, after = migrate({"model.py": MODEL, "trainers.py": TRAINERS + made})
    assert after["trainers.py"].count("TODO(fsdp-migrate FSDP401)") == marks
    if marks:
        assert "policy is a parameter of __init__" in after["trainers.py"]
        inside = after["trainers.py"].index("TODO(fsdp-migrate FSDP401)")
        assert inside < after["trainers.py"].index("class Other")
