"""What a run decides and writes does not depend on orders that mean nothing."""

from __future__ import annotations

import pytest

from tests.helpers.migrating import files
from tests.tools import orders

FILLED = """\
import torch
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP


class Trainer:
    def fit(self, model, optimizer):
        state = {"model": model, "optimizer": optimizer}
        state.update(self.load(state, "last"))
        self.save(state)

    def load(self, state, path):
        if state is None:
            state = {}
        read = torch.load(path)
        state["model"].load_state_dict(read["model"])
        state["optimizer"].load_state_dict(read["optimizer"])
        return state

    def save(self, state):
        if state is None:
            state = {}
        torch.save(state["model"].state_dict(), "model.pt")
        if hasattr(state["optimizer"], "module"):
            torch.save(state["optimizer"].module.state_dict(), "optimizer.pt")
        else:
            torch.save(state["optimizer"].state_dict(), "optimizer.pt")


net = FSDP(torch.nn.Linear(2, 2))
Trainer().fit(net, torch.optim.AdamW(net.parameters()))
"""


@pytest.fixture(scope="module")
def projects() -> orders.Projects:
    """A few examples, and a dictionary that is filled where it is empty."""
    every = orders.examples()
    chosen = {name: every[name] for name in sorted(every)[::40]}
    fixture = files(orders.TOP / "fixtures" / "programs" / "lifecycle" / "before")
    return {
        **chosen,
        "filled": {"example.py": FILLED},
        "lifecycle": fixture,
    }


def test_every_order_gives_the_same(projects: orders.Projects) -> None:
    assert len(projects) > 15
    assert orders.differing(projects, ("", "another", "a third", "one more")) == {}


def test_a_difference_is_shown(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is compared is not empty, and tells processes apart."""
    said = {"a": iter(["one\ntwo", "one\nthree"]), "b": iter(["same", "same"])}
    monkeypatch.setattr(
        orders, "_in_a_process", lambda *_: {name: next(texts) for name, texts in said.items()}
    )
    [(name, lines)] = orders.differing({}, ("", "")).items()
    assert name == "a"
    assert "-two\n+three" in lines


def test_an_empty_dictionary_hides_no_entry_of_another() -> None:
    text = orders.told({"filled": {"example.py": FILLED}}, "")["filled"]
    assert "is not followed" not in text
    assert "FSDP312" in text
