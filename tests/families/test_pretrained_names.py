"""What ``save_pretrained`` writes names the model's class, which ``fully_shard`` makes another."""

from __future__ import annotations

import pytest

from fsdp_migrate.planning.outcome import Outcome
from tests.helpers.migrating import migrate, worst

HEAD = "from torch.distributed.fsdp import FullyShardedDataParallel as FSDP\n\nmodel = FSDP(net)\n"
SAID = "save_pretrained writes the class's name"


@pytest.mark.parametrize(
    "save",
    [
        "model.save_pretrained(path, state_dict=state)",
        "model.module.save_pretrained(path, state_dict=state)",
        "inner = model.module\ninner.save_pretrained(path, state_dict=state)",
        "inner = model.module if hasattr(model, 'module') else model\n"
        "inner.save_pretrained(path, state_dict=state)",
        "def save(inner):\n    inner.save_pretrained(path, state_dict=state)\n\n\n"
        "save(model.module)",
    ],
)
def test_the_name_is_said_where_a_model_is_saved(save: str) -> None:
    result, after = migrate({"example.py": f"{HEAD}{save}\n"})
    assert worst(result) is Outcome.REVIEW
    assert after["example.py"].count(SAID) == 1


@pytest.mark.parametrize(
    "save",
    [
        "tokenizer.save_pretrained(path)",
        "model.config.save_pretrained(path)",
        "model.module.config.save_pretrained(path)",
        "net.save_pretrained(path, state_dict=state)",
    ],
)
def test_it_is_not_said_of_other_things(save: str) -> None:
    source = f"{HEAD}{save}\n"
    if save.startswith("net."):
        source = HEAD.replace("\nmodel", f"\n{save}\nmodel")
    _, after = migrate({"example.py": source})
    assert SAID not in after["example.py"]


SHIM = """\
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP


class Shim:
    def __init__(self, model, state):
        self.model, self.state = model, state

    def save_pretrained(self, path, **kwargs):
        {given}
        self.model.save_pretrained(path, **kwargs)


def save(model, path, state):
    model.save_pretrained(path{state})


def main(net, state):
    model = FSDP(net)
    save(model, "x", {{}})
    save(Shim(net, state), "x", state)
    Shim(model, state).save_pretrained("x")
"""
SET = 'kwargs.setdefault("state_dict", self.state)'


@pytest.mark.parametrize("given", [SET, 'kwargs["state_dict"] = self.state'])
def test_what_is_given_its_state_may_be_of_any_class(given: str) -> None:
    text = SHIM.format(given=given, state=", state_dict=state")
    result, after = migrate({"example.py": text})
    assert worst(result) is Outcome.REVIEW
    assert "fully_shard(net)" in after["example.py"]
    assert "model.save_pretrained(path, state_dict=state)" in after["example.py"]


def test_what_is_not_given_it_is_told_apart_by_its_class() -> None:
    result, after = migrate({"example.py": SHIM.format(given=SET, state="")})
    assert worst(result) is Outcome.REVIEW
    assert "    if isinstance(model, FSDPModule):\n" in after["example.py"]
    assert "    else:\n        model.save_pretrained(path)\n" in after["example.py"]


def test_what_passes_none_on_may_not_be_given_it() -> None:
    result, after = migrate({"example.py": SHIM.format(given="pass", state=", state_dict=state")})
    assert worst(result) is Outcome.LEFT
    assert "FSDP(net)" in after["example.py"]
