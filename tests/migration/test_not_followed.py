"""Models that get somewhere by a name, a table or another file: followed, marked or named."""

from __future__ import annotations

import pytest
from packaging.version import Version

from fsdp_migrate.migration.engine import Options
from fsdp_migrate.report import event, text
from tests.helpers.migrating import migrate

TOP = """\
import torch
from threading import Thread
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP

"""
ANYTHING = "A state is asked of what may be a model, or anything else: see"


def run(program: str, **files: str) -> tuple[dict[str, str], list[str]]:
    """The files after a run, and what the report says of places that are not followed."""
    given = {"train.py": TOP + program, **{f"{name}.py": source for name, source in files.items()}}
    result, after = migrate(given)
    assert "fully_shard(" in after["train.py"]
    return after, text.not_followed_lines(event.summary(result))


def test_a_model_is_kept_in_another_module() -> None:
    after, said = run(
        "import state\n\nstate.model = FSDP(net)\nstate.model.clip_grad_norm_(1.0)\n",
        state="model = None\n",
        save="import torch\nimport state\n\n\ndef save():\n"
        "    torch.save(state.model.state_dict(), 'a')\n",
    )
    assert "clip_grad_norm_(state.model.parameters(), 1.0)" in after["train.py"]
    assert "get_model_state_dict(state.model" in after["save.py"]
    assert not said


def test_another_modules_attribute_of_that_name_is_another() -> None:
    after, _ = run(
        "import other\nimport state\n\nstate.model = FSDP(net)\n"
        "torch.save(other.model.state_dict(), 'a')\n",
        state="model = None\n",
        other="from torch import nn\n\nmodel = nn.Linear(2, 2)\n",
    )
    assert "other.model.state_dict()" in after["train.py"]


@pytest.mark.parametrize(
    ("program", "line"),
    [
        ("save = lambda m: torch.save(m.state_dict(), 'a')\nmodel = FSDP(net)\nsave(model)\n", 5),
        ("model = FSDP(net)\n(lambda m: torch.save(m.state_dict(), 'a'))(model)\n", 6),
    ],
)
def test_what_a_lambda_is_given_is_named(program: str, line: int) -> None:
    """A statement for its parameter has no place: what would stand before it knows no such name."""
    after, said = run(program)
    assert "m.state_dict()" in after["train.py"]
    assert said == [f"{ANYTHING} train.py:{line}"]


def test_nothing_is_done_to_a_name_that_a_lambdas_parameter_has_too() -> None:
    after, _ = run(
        "def main(net, batch):\n    model = FSDP(net)\n    with torch.no_grad():\n"
        "        model(batch)\n    clip = lambda net: net.clip_grad_norm_(1.0)\n"
        "    model(batch).sum().backward()\n    clip(model)\n"
    )
    assert "net.reshard()" not in after["train.py"]
    assert "TODO(fsdp-migrate FSDP401)" in after["train.py"]


DELEGATING = """\
class Agent:
    def __init__(self, model):
        self._model = model

    def __getattr__(self, name):
        return getattr(self._model, name)
{own}

agent = Agent(FSDP(net))
torch.save(agent.state_dict(), "a")
"""


def test_an_object_that_hands_out_what_its_model_has_is_marked() -> None:
    after, _ = run(DELEGATING.format(own=""))
    assert "TODO(fsdp-migrate FSDP302): Agent hands out what its model has" in after["train.py"]
    assert "agent.state_dict()" in after["train.py"]


def test_what_such_an_object_has_itself_is_its_own() -> None:
    own = "\n    def state_dict(self):\n        return {}\n"
    after, said = run(DELEGATING.format(own=own))
    assert "TODO" not in after["train.py"]
    assert not said


@pytest.mark.parametrize(
    ("program", "line"),
    [
        (
            "class Checkpoint:\n    def on_save(self, trainer):\n"
            "        torch.save(trainer.model.state_dict(), 'a')\n\n\n"
            "def fire(trainer, callbacks, name):\n    for callback in callbacks:\n"
            "        getattr(callback, name)(trainer)\n\n\nmodel = FSDP(net)\n",
            7,
        ),
        (
            "class Run:\n    def __init__(self):\n        self.model = FSDP(net)\n\n"
            "    def save(self, names):\n"
            "        return {n: getattr(self, n).state_dict() for n in names}\n",
            10,
        ),
        (
            "def save(m, path):\n    torch.save(m.state_dict(), path)\n\n\nmodel = FSDP(net)\n"
            "Thread(None, save, 'writer', (model, 'a')).start()\n",
            6,
        ),
        (
            "def save(m):\n    torch.save(m.state_dict(), 'a')\n\n\n"
            "model = FSDP(net)\nglobals()[command](model)\n",
            6,
        ),
    ],
    ids=["by name", "attributes by name", "a thread", "a table of names"],
)
def test_what_may_be_anything_is_named(program: str, line: int) -> None:
    after, said = run(program)
    if "trainer.model" in program:  # it is called one: marked
        assert "its state has this rank's pieces" in " ".join(after["train.py"].split())
    else:
        assert said == [f"{ANYTHING} train.py:{line}"]


@pytest.mark.parametrize(
    "asked", ["self.optimizer", "scheduler", "self.lr_scheduler", "grad_scaler", "loss_fn"]
)
def test_optimizers_and_their_like_are_not_named(asked: str) -> None:
    _, said = run(
        f"model = FSDP(net)\n\n\ndef save(self, scheduler, grad_scaler, loss_fn):\n"
        f"    torch.save({asked}.state_dict(), 'a')\n"
    )
    assert not said


def test_where_everything_stays_nothing_is_named() -> None:
    given = TOP + "model = FSDP(net)\n\n\ndef save(m):\n    torch.save(m.state_dict(), 'a')\n"
    result, after = migrate({"train.py": given}, Options(target=Version("2.3")))
    assert after["train.py"] == given
    assert not text.not_followed_lines(event.summary(result))


def test_objects_of_other_classes_are_not_the_model_they_were_given() -> None:
    after, _ = run(
        "import elsewhere\n\nmodel = FSDP(net)\noptimizer = torch.optim.AdamW(model.parameters())\n"
        "steps = [elsewhere.StepLR(optimizer, 1)]\nfor s, m in zip(steps, [model]):\n"
        "    s.load_state_dict({})\n"
    )
    assert "TODO" not in after["train.py"]


def test_lists_have_no_state() -> None:
    """``x`` may be the dictionary, the model in it, or its optimizer."""
    after, _ = run(
        "def state_of(x):\n    if isinstance(x, dict):\n"
        "        return {k: state_of(v) for k, v in x.items()}\n    return x.state_dict()\n\n\n"
        "model = FSDP(net)\nstate_of({'model': model, 'optimizer': optimizer})\n"
    )
    assert "return x.state_dict()" in after["train.py"]


def test_a_long_expression_in_an_f_string_stays_on_its_line() -> None:
    after, _ = run("model = FSDP(net)\nprint(f'{len(model.state_dict())} tensors of the whole')\n")
    [line] = [each for each in after["train.py"].splitlines() if "print(" in each]
    assert line.endswith("tensors of the whole')")
    compile(after["train.py"], "train.py", "exec")


def test_a_function_that_builds_an_optimizer_gives_no_model() -> None:
    after, said = run(
        "import elsewhere\n\nmodel = FSDP(net)\nchosen = elsewhere.build_optimizer(model)\n"
        "torch.save(chosen.state_dict(), 'a')\n"
    )
    assert "TODO" not in after["train.py"]
    assert not said


def test_a_field_of_a_namespace_may_be_set_again() -> None:
    """So that a strategy in one is not written out as if it were the only one."""
    after, _ = run(
        "import types\nfrom torch.distributed.fsdp import ShardingStrategy\n"
        "settings = types.SimpleNamespace(strategy=ShardingStrategy.SHARD_GRAD_OP)\n"
        "for name, value in given.items():\n    setattr(settings, name, value)\n"
        "plain = FSDP(net)\nmodel = FSDP(other, sharding_strategy=settings.strategy)\n"
    )
    assert "reshard_after_forward=False" not in after["train.py"]


def test_a_model_that_a_star_brings_is_known_to_run() -> None:
    after, _ = run(
        "model = FSDP(net)\n",
        evaluating="import torch\nfrom train import *\n\nwith torch.no_grad():\n    model(batch)\n"
        "optimizer = torch.optim.AdamW(model.parameters())\n",
    )
    assert "model.reshard()" in after["evaluating.py"]


@pytest.mark.parametrize(
    ("call", "named"),
    [
        ("self.checkpointer.load_optim_during_init(model, optimizer)", "load_optim_during_init()"),
        ("self.ema.update_average(model, twin)", "update_average()"),
        ("self.tools.save(1, net=model)", "save()"),
        ("other.save_checkpoint(model)", "save_checkpoint()"),
        ("clip_gradients(model)", "clip_gradients()"),
    ],
)
def test_code_out_of_sight_that_handles_a_model_is_named(call: str, named: str) -> None:
    _, said = run(
        "from pack import missing as other\nfrom pack.missing import clip_gradients\n"
        "from pack.here import build\n\n\n"
        f"def train(self, optimizer, twin):\n    model = FSDP(build())\n    {call}\n",
        **{"pack/__init__": "", "pack/here": "def build():\n    return net\n"},
    )
    assert [line.partition(" does")[0] for line in said] == [f"What {named}"]


@pytest.mark.parametrize(
    "call",
    [
        "self.logger.watch(model)",
        "self.checkpointer.save(net)",
        "known.save(model)",
        "torch.save(model, 'a')",
        "wandb.save(model)",
        "torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)",
    ],
)
def test_of_other_code_nothing_is_said(call: str) -> None:
    _, said = run(
        "import wandb\nfrom pack import known\nfrom pack.known import build\n\n\n"
        f"def train(self):\n    net = build()\n    model = FSDP(build())\n    {call}\n",
        **{
            "pack/__init__": "",
            "pack/known": "def build():\n    return object()\n\n\ndef save(m):\n    print(m)\n",
        },
    )
    assert not said


@pytest.mark.parametrize("strict", ["", ", strict=False"])
def test_a_load_into_what_may_be_a_model_is_named_at_its_own_line(strict: str) -> None:
    load = (
        "def load(path, model):\n    state = model.state_dict()\n"
        f"    missing = model.load_state_dict(torch.load(path){strict})\n"
        "    return state, missing\n\n\nmodel = FSDP(net)\n"
        "globals()[name](path, model)\n"
    )
    after, said = run(load)  # in a file that shards models, of what is called one: marked
    text = " ".join(after["train.py"].replace("#", " ").split())
    assert "its state has this rank's pieces now" in text
    assert "it takes no whole tensors now" in text
    assert not said
    after, said = run(load.replace("model.", "it.").replace(", model):", ", it):"))
    assert "TODO" not in after["train.py"]
    assert f"{ANYTHING} train.py:6" in said
    assert any("whole tensors" in line.lower() and "train.py:7" in line for line in said)


def test_a_load_into_something_else_is_not() -> None:
    _, said = run(
        "def load(path, optimizer, part):\n    optimizer.load_state_dict(torch.load(path))\n"
        "    part.load_state_dict({})\n\n\n"
        "load(path, make(), torch.nn.Linear(2, 2))\nmodel = FSDP(net)\n"
    )
    assert not any("whole tensors" in line.lower() for line in said)


@pytest.mark.parametrize(("sharded", "is_named"), [("part", False), ("part.head", True)])
def test_a_load_into_what_the_function_shards_with_fsdp2_is_not(
    sharded: str, is_named: bool
) -> None:
    _, said = run(
        "from torch.distributed.fsdp import fully_shard\n\n\n"
        "def build(parts):\n    for part in parts:\n"
        f"        fully_shard({sharded})\n        part.load_state_dict(read(part))\n\n\n"
        "model = FSDP(net)\nglobals()[name](model)\n"
    )
    assert any("whole tensors" in line.lower() for line in said) is is_named


STRATEGY = """\
class Strategy:
    def wrap(self, net):
        return FSDP(net)

    @property
    def module(self):
        return {given}
"""
INNER = "If this is a sharded model, it has no inner module now"


@pytest.mark.parametrize("given", ["self.runner.model.module", "self.net.module"])
def test_an_inner_module_of_what_nothing_tells_is_marked(given: str) -> None:
    after, _ = run(STRATEGY.format(given=given))
    assert INNER in " ".join(after["train.py"].replace("#", " ").split())


@pytest.mark.parametrize("given", ["self.runner.module", "self.spec.module", "node.module"])
def test_a_module_of_another_object_is_not(given: str) -> None:
    after, _ = run(STRATEGY.format(given=given))
    assert INNER not in " ".join(after["train.py"].replace("#", " ").split())


HOLDER = """\
import types
from elsewhere import passed


class Net(torch.nn.Linear):
    pass


class Holder:
    def __init__(self, **parts):
        for name, part in parts.items():
            setattr(self, name, part)

    def nets(self):
        return [name for name in vars(self) if isinstance({asked})]


holder = Holder(model=FSDP(Net(4, 4)), rate=0.1)
"""


@pytest.mark.parametrize(
    "asked",
    [
        "passed(getattr(self, name)), Net",
        "max([getattr(self, name)], key=id), Net",
        "passed(self.__dict__[name]), (int, Net)",
    ],
)
def test_the_class_of_what_may_be_a_part_is_named(asked: str) -> None:
    _, said = run(HOLDER.format(asked=asked))
    name = asked.partition("(")[0]
    assert said == [f"What {name}() does with a model is not followed: see train.py:19"]


@pytest.mark.parametrize(
    "asked",
    [
        "getattr(self, name), Net",  # rewritten
        "passed(getattr(self, name)), dict",
        "passed(name), Net",
        "len(getattr(self, name)), Net",
    ],
)
def test_a_question_that_no_model_answers_otherwise_is_not(asked: str) -> None:
    assert not run(HOLDER.format(asked=asked))[1]
