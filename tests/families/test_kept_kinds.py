"""Methods ask their object for the kind of state that it keeps, where that is the one that is set.

And a method of a base class does not meet what a class makes that has another in its place.
"""

from __future__ import annotations

import pytest

from tests.helpers.migrating import migrate, outcomes

PROGRAM = """\
import sys

import torch
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP, StateDictType


class Base:
    def weights(self):
        return self.model.state_dict()


class Trainer(Base):
    def __init__(self, args):
        self.kind = StateDictType[args.kind]
        self.name = args.name

    def wrap(self, net):
        self.model = FSDP(net)
        FSDP.set_state_dict_type(self.model, self.kind)

    def weights(self):
        return self.model.state_dict()


def main(args, net):
    trainer = Trainer(args)
    trainer.wrap(net)
    torch.save(trainer.weights(), "weights.pt")


if __name__ == "__main__":
    main(sys.argv[1:], torch.nn.Linear(2, 2))
"""
SET = "        FSDP.set_state_dict_type(self.model, self.kind)\n"
ASKED = "        return self.model.state_dict()\n\n\ndef main"
STAY = {
    "set from outside": (
        "    trainer.wrap(net)\n",
        "    trainer.kind = args.other\n    trainer.wrap(net)\n",
    ),
    "set by a method": (ASKED, "        self.kind = None\n" + ASKED),
    "set under any name": (
        "        self.name = args.name\n",
        "        setattr(self, *args.pair)\n",
    ),
    "set by a dictionary": (
        "        self.name = args.name\n",
        "        self.__dict__.update(args.all)\n",
    ),
    "set below the call": (
        "        self.kind = StateDictType[args.kind]\n        self.name = args.name\n",
        "        self.wrap(args.net)\n        self.kind = StateDictType[args.kind]\n",
    ),
    "a kind that is not kept": (SET, SET.replace("self.kind)", "StateDictType[sys.argv[1]])")),
    "a function that asks": ("trainer.weights(), ", "trainer.model.state_dict(), "),
    "sometimes": (SET, "        if net.large:\n    " + SET),
    "the base's method": (ASKED, ASKED.replace("self.model.state_dict()", "super().weights()")),
}


def test_the_kind_is_asked_for_at_the_call() -> None:
    result, after = migrate({"train.py": PROGRAM})
    text = after["train.py"]
    assert "set_state_dict_type" not in text + after["fsdp2_support.py"]
    assert 'full_state_dict=self.kind.name == "FULL_STATE_DICT"' in text
    assert all(outcome.value != "left" for _, outcome in outcomes(result))


def test_it_may_be_kept_by_what_the_object_has() -> None:
    source = PROGRAM.replace("self.kind = StateDictType[args.kind]", "self.args = args")
    _, after = migrate({"train.py": source.replace("self.kind)", "self.args.kind)")})
    text = after["train.py"]
    assert "set_state_dict_type" not in text
    assert 'full_state_dict=self.args.kind.name == "FULL_STATE_DICT"' in text
    again = source.replace("self.kind)", "self.args.kind)").replace(
        "    trainer.wrap(net)\n",
        "    args.kind = StateDictType.FULL_STATE_DICT\n    trainer.wrap(net)\n",
    )
    _, after = migrate({"train.py": again})
    assert "self.args.kind.name" not in after["train.py"]


@pytest.mark.parametrize(
    ("config", "is_native"),
    [
        ("FullStateDictConfig(offload_to_cpu=True, rank0_only=True)", True),
        ("FullStateDictConfig()", True),
        ("FullStateDictConfig(offload_to_cpu=True)", False),
        ("args.config", True),
    ],
)
def test_a_whole_state_on_the_cpu_of_every_rank_keeps_its_form(
    config: str, is_native: bool
) -> None:
    source = PROGRAM.replace("import FullyShardedDataParallel", "import FullStateDictConfig")
    source = source.replace(" as FSDP, StateDictType", ", StateDictType").replace(
        "import torch\n",
        "import torch\nfrom torch.distributed.fsdp import FullyShardedDataParallel as FSDP\n",
    )
    source = source.replace("self.name = args.name", f"self.config = {config}")
    _, after = migrate({"train.py": source.replace("self.kind)", "self.kind, self.config)")})
    assert ("self.kind.name ==" in after["train.py"]) is is_native
    assert ("set_state_dict_type(" in after["train.py"]) is not is_native


def test_the_method_of_the_base_stays() -> None:
    _, after = migrate({"train.py": PROGRAM})
    base = after["train.py"].split("class Base:")[1].split("class Trainer")[0]
    assert "return self.model.state_dict()" in base


@pytest.mark.parametrize("way", STAY)
def test_the_model_keeps_the_kind_where_the_object_may_not(way: str) -> None:
    old, new = STAY[way]
    assert old in PROGRAM
    result, after = migrate({"train.py": PROGRAM.replace(old, new)})
    assert "set_state_dict_type" in after.get("fsdp2_support.py", "set_state_dict_type")
    assert "self.kind.name ==" not in after.get("train.py", "")
    assert result.decisions


@pytest.mark.parametrize(
    "more",
    [
        "\n\nclass Other(Base):\n    pass\n\n\ndef hand(trainer):\n"
        "    other = Other()\n    other.model = trainer.model\n    return other.weights()\n",
        "\n\nclass Other(Base):\n    def __init__(self, model):\n        self.model = model\n\n\n"
        "def hand(args, net):\n    trainer = Trainer(args)\n    trainer.wrap(net)\n"
        "    return Other(trainer.model).weights()\n",
        "\n\ndef hand(trainer):\n    return Base.weights(trainer)\n",
    ],
    ids=["an attribute", "an argument", "by the class"],
)
def test_the_base_meets_what_it_is_handed(more: str) -> None:
    _, after = migrate({"train.py": PROGRAM + more})
    base = after["train.py"].split("class Base:")[1].split("class Trainer")[0]
    stays = "set_state_dict_type" in after["train.py"]
    assert stays or "return self.model.state_dict()" not in base


def test_a_model_of_its_own_gives_the_default() -> None:
    more = (
        "\n\nclass Runner:\n    def __init__(self, net):\n        self.model = FSDP(net)\n\n"
        "    def save(self):\n        torch.save(self.model.state_dict(), 'whole.pt')\n"
    )
    _, after = migrate({"train.py": PROGRAM + more})
    assert "set_state_dict_type" not in after["train.py"]
    assert "options=StateDictOptions(full_state_dict=True)" in after["train.py"]


def test_what_an_optimizers_wrapper_loads_is_converted_for_it() -> None:
    source = PROGRAM.replace(
        ASKED,
        "        return self.model.state_dict()\n\n"
        "    def load(self, wrapper, state):\n"
        "        state = FSDP.optim_state_dict_to_load(self.model, wrapper.optimizer, state)\n"
        "        wrapper.load_state_dict(state)\n\n\ndef main",
    )
    _, after = migrate({"train.py": source})
    assert "wrapper.load_state_dict(state)" in after["train.py"]
    assert "state = optimizer_state_to_load(" in after["train.py"]
