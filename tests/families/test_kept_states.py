"""Sharded states are the parameters themselves: who keeps one is given a copy."""

from __future__ import annotations

import pytest

from tests.helpers.migrating import rewritten

PROGRAM = """\
import copy
from collections import OrderedDict

import torch
import torch.distributed.checkpoint as dcp
from torch.distributed.fsdp import CPUOffload, FullyShardedDataParallel as FSDP, StateDictType

kept = []


def hold(state):
    kept.append(state)


def passed_on(state, keep):
    keep.put(sifted(state))


def sifted(state):
    for name in list(state):
        if "expert" in name:
            state.pop(name)
    return state


def later(state):
    return lambda: torch.save(state, "net.pt")


def write_out(path, state):
    chosen = sifted(state)
    torch.save({"model": chosen}, path)


def on_cpu(payload):
    if isinstance(payload, dict):
        return {key: on_cpu(value) for key, value in payload.items()}
    return payload.detach().clone()


def run(net, loader, keep):
    model = FSDP(net)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    FSDP.set_state_dict_type(model, StateDictType.KIND)
    for x in loader:
        model(x).sum().backward()
        optimizer.step()
        STATEMENT
"""


def emitted(statement: str, kind: str = "SHARDED_STATE_DICT", wrap: str = "FSDP(net)") -> str:
    given = PROGRAM.replace("STATEMENT", statement).replace("KIND", kind)
    return rewritten(given.replace("FSDP(net)", wrap))


@pytest.mark.parametrize(
    "statement",
    [
        "keep.put(model.state_dict())",
        "keep.put(state=model.state_dict())",
        "keep.good = OrderedDict(model.state_dict())",
        "keep.good = dict(model.state_dict())",
        "keep.good = copy.copy(model.state_dict())",
        "keep.good = model.state_dict().copy()",
        "keep.good = {k: v for k, v in model.state_dict().items()}",
        "keep.good = list(model.state_dict().values())",
        "keep.good = {k: v.detach() for k, v in model.state_dict().items()}",
        "keep.good = [(k, v.data) for k, v in model.state_dict().items()]",
        "for k, v in model.state_dict().items():\n            keep.good[k] = v.detach()",
        "for v in model.state_dict().values():\n            kept.append(v)",
        'setattr(keep, "good", model.state_dict())',
        "keep.__dict__.update(good=model.state_dict())",
        "hold(model.state_dict())",
        "passed_on(model.state_dict(), keep)",
        "keep.good = sifted(model.state_dict())",
        "later(model.state_dict())",
    ],
)
def test_a_copy(statement: str) -> None:
    assert "copy.deepcopy(" in emitted(statement)


@pytest.mark.parametrize(
    "statement",
    [
        'torch.save(model.state_dict(), "net.pt")',
        'dcp.save({"model": model.state_dict()}, checkpoint_id="net")',
        'keep.save_checkpoint(model.state_dict(), "net.pt")',
        "print(len(model.state_dict()))",
        "keep.good = {k: v.cpu() for k, v in model.state_dict().items()}",
        "keep.good = {k: v.detach().clone() for k, v in model.state_dict().items()}",
        "keep.good = [(k, v.numel()) for k, v in model.state_dict().items()]",
        "for k, v in model.state_dict().items():\n            keep.good[k] = v.detach().clone()",
        "for k, v in model.state_dict().items():\n            keep.good[k].lerp_(v, 0.1)",
        "for k, v in model.state_dict().items():\n            kept.append((k, v.sum()))",
        "model.load_state_dict(model.state_dict())",
        "assert check_state_dict_eq(model.state_dict(), model.state_dict())",
        'torch.save(sifted(model.state_dict()), "net.pt")',
        'write_out(state=model.state_dict(), path="net.pt")',
        'torch.save(on_cpu(model.state_dict()), "net.pt")',
    ],
)
def test_no_copy(statement: str) -> None:
    assert "deepcopy(" not in emitted(statement)


ON_CPU = (
    'FSDP(net, device_id=torch.device("cpu"))',
    "FSDP(net, cpu_offload=CPUOffload(offload_params=True))",
    "FSDP(net, device_id=net.device)",
)
ON_ACCELERATOR = ("FSDP(net)", "FSDP(net, device_id=torch.cuda.current_device())")


@pytest.mark.parametrize("wrap", [*ON_CPU, *ON_ACCELERATOR])
@pytest.mark.parametrize(
    "value", ["v.cpu()", 'v.to("cpu")', 'v.detach().to(device=torch.device("cpu"))']
)
def test_what_is_taken_to_the_cpu(wrap: str, value: str) -> None:
    """It is a copy of what is elsewhere."""
    statement = f"keep.good = {{k: {value} for k, v in model.state_dict().items()}}"
    text = emitted(statement, wrap=wrap)
    assert ("copy.deepcopy(" in text) is (wrap in ON_CPU)


@pytest.mark.parametrize("value", ["v.cpu().clone()", 'v.to("cpu", copy=True)', "v.cpu() * 0.5"])
def test_what_is_copied_on_the_cpu(value: str) -> None:
    statement = f"keep.good = {{k: {value} for k, v in model.state_dict().items()}}"
    assert "deepcopy(" not in emitted(statement, wrap=ON_CPU[0])


@pytest.mark.parametrize(
    ("value", "copied"),
    [("v.float()", True), ("v.to(torch.float32)", True), ("v.float().norm()", False)],
)
def test_what_is_converted_may_be_the_same(value: str, copied: bool) -> None:
    statement = f"keep.good = {{k: {value} for k, v in model.state_dict().items()}}"
    assert ("copy.deepcopy(" in emitted(statement)) is copied


def test_a_copy_of_ones_own_is_enough() -> None:
    assert emitted("keep.good = copy.deepcopy(model.state_dict())").count("deepcopy(") == 1


def test_a_whole_state_that_is_handed_on_is_new() -> None:
    assert "deepcopy(" not in emitted("keep.put(model.state_dict())", kind="FULL_STATE_DICT")


PUT_IN = """\
import torch
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP, StateDictType


def taken(model, optimizer):
    state = {"epoch": 0}
    with FSDP.state_dict_type(model, StateDictType.SHARDED_STATE_DICT):
        state["optimizer"] = FSDP.optim_state_dict(model, optimizer)
    return state


def run(net, loader):
    model = FSDP(net)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.1)
    for x in loader:
        model(x).sum().backward()
        optimizer.step()
    state = taken(model, optimizer)
    USE
"""


@pytest.mark.parametrize(
    ("use", "kept"),
    [
        ("optimizer.step()\n    print(state)", True),
        ("torch.save(state, 'state.pt')", False),
    ],
)
@pytest.mark.parametrize("key", ['"optimizer"', '"all"]["optimizer"'])
def test_what_is_put_under_a_key_is_kept_with_the_rest(use: str, key: str, kept: bool) -> None:
    source = PUT_IN.replace("USE", use).replace('state["optimizer"]', f"state[{key}]")
    assert ("deepcopy(get_optimizer_state_dict(" in rewritten(source)) is kept


@pytest.mark.parametrize(
    ("use", "kept"),
    [
        ("optimizer.step()\n    print(state)", True),
        ("torch.save(state, 'state.pt')", False),
    ],
)
@pytest.mark.parametrize("made", ["dict(epoch=0, optimizer=MADE)", 'dict({"optimizer": MADE})'])
def test_a_dictionary_that_is_called_for_holds_it_as_one_that_is_written(
    made: str, use: str, kept: bool
) -> None:
    source = PUT_IN.replace("USE", use).replace('state["optimizer"] = ', "state = ")
    asked = "FSDP.optim_state_dict(model, optimizer)"
    source = source.replace(asked, made.replace("MADE", asked))
    assert ("deepcopy(" in rewritten(source)) is kept
