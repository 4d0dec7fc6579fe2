"""States of optimizers in the branch of models that are none of FSDP1's."""

from __future__ import annotations

import pytest

from tests.helpers.migrating import migrate

PROGRAM = """\
import torch
import torch.distributed as dist
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP


def is_sharded(model):
    return isinstance(model, FSDP)


def build(net, enabled):
    if not enabled:
        return net
    return FSDP(net)


def on_cpu(payload):
    if torch.is_tensor(payload):
        return payload.detach().cpu()
    return {key: on_cpu(value) for key, value in payload.items()}


def save(model, optimizer, other, whole, path):
    SAVED
    if dist.get_rank() == 0:
        torch.save({"optimizer": on_cpu(state)}, path)


def load(model, optimizer, path):
    saved = torch.load(path)["optimizer"]
    LOADED


def main(net, other, enabled, whole):
    model = build(net, enabled)
    optimizer = torch.optim.AdamW(model.parameters())
    CHANGED
    load(model, optimizer, "old.pt")
    for batch in range(4):
        model(batch).sum().backward()
        optimizer.step()
    for state in optimizer.state.values():
        print(state["step"])
    save(model, optimizer, other, whole, "new.pt")
"""
SAVED = """if TEST:
        state = FSDP.optim_state_dict(model, optimizer)
    else:
        state = optimizer.state_dict()"""
TURNED = """if not TEST:
        state = optimizer.state_dict()
    else:
        state = FSDP.optim_state_dict(model, optimizer)"""
LOADED = """if isinstance(model, FSDP):
        saved = FSDP.optim_state_dict_to_load(model, optimizer, saved)
        optimizer.load_state_dict(saved)
    else:
        optimizer.load_state_dict(saved)"""
LEFT = """if isinstance(model, FSDP):
        saved = FSDP.optim_state_dict_to_load(model, optimizer, saved)
        optimizer.load_state_dict(saved)
        return
    optimizer.load_state_dict(saved)"""
IN_A_CONTEXT = """with open("log.txt", "a"):
            saved = FSDP.optim_state_dict_to_load(model, optimizer, saved)
            optimizer.load_state_dict(saved)
            return"""
LEFT_IN_A_CONTEXT = f"""if isinstance(model, FSDP):
        {IN_A_CONTEXT}
    optimizer.load_state_dict(saved)"""
KINDS = {
    "isinstance": (SAVED.replace("TEST", "isinstance(model, FSDP)"), LOADED),
    "a function that asks": (SAVED.replace("TEST", "is_sharded(model)"), LOADED),
    "the other way round": (TURNED.replace("TEST", "isinstance(model, FSDP)"), LOADED),
    "a branch that leaves": (SAVED.replace("TEST", "isinstance(model, FSDP)"), LEFT),
    "a context that leaves": (
        SAVED.replace("TEST", "isinstance(model, FSDP)"),
        LEFT_IN_A_CONTEXT,
    ),
}


def migrated(saved: str, loaded: str, changed: str = "pass") -> str:
    text = PROGRAM.replace("SAVED", saved).replace("LOADED", loaded).replace("CHANGED", changed)
    return migrate({"train.py": text})[1]["train.py"]


@pytest.mark.parametrize(("saved", "loaded"), KINDS.values(), ids=KINDS)
def test_they_are_whole(saved: str, loaded: str) -> None:
    after = migrated(saved, loaded)
    assert "get_optimizer_state_dict(" in after
    assert "TODO" not in after
    assert "= optimizer.state_dict()" in after
    assert "optimizer.load_state_dict(saved)" in after


OTHERS = {
    "a setting": (SAVED.replace("TEST", "whole"), "pass"),
    "one more condition": (SAVED.replace("TEST", "isinstance(model, FSDP) and whole"), "pass"),
    "a test of another model": (SAVED.replace("TEST", "isinstance(other, FSDP)"), "pass"),
    "another optimizer": (
        SAVED.replace("TEST", "isinstance(model, FSDP)").replace(
            "(model, optimizer)", "(model, other)"
        ),
        "pass",
    ),
    "a compiled model": (
        SAVED.replace("TEST", "isinstance(model, FSDP)"),
        "model = torch.compile(model)",
    ),
}


@pytest.mark.parametrize(("saved", "changed"), OTHERS.values(), ids=OTHERS)
def test_they_may_be_this_ranks(saved: str, changed: str) -> None:
    assert "TODO(fsdp-migrate FSDP312)" in migrated(saved, LOADED, changed)


OWN = """\
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP


class ByHand(nn.Module):
    def __init__(self, module):
        super().__init__()
        self.module = module


def save(model, optimizer, path):
    if isinstance(model, ASKED):
        model_state = model.state_dict()
        state = optimizer.state_dict()
    else:
        model_state = model.state_dict()
        state = FSDP.optim_state_dict(model, optimizer)
    if dist.get_rank() == 0:
        torch.save({"model": model_state, "optimizer": state}, path)


def main(net, by_hand):
    model = ByHand(net) if by_hand else FSDP(net)
    optimizer = torch.optim.AdamW(model.parameters())
    for batch in range(4):
        model(batch).sum().backward()
        optimizer.step()
    save(model, optimizer, "new.pt")
"""


@pytest.mark.parametrize(("asked", "is_marked"), [("ByHand", False), ("nn.Module", True)])
def test_a_class_of_the_projects_own_says_that_the_model_is_another(
    asked: str, *, is_marked: bool
) -> None:
    after = migrate({"train.py": OWN.replace("ASKED", asked)})[1]["train.py"]
    assert ("FSDP312" in after) is is_marked
