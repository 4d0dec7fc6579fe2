"""Files that hold one rank's shards, and loads that load nothing (FSDP909, FSDP910)."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.helpers.hazards import codes, mended
from tests.training.programs import Launcher

pytestmark = pytest.mark.train

PROGRAM = """\
import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch import nn
from torch.distributed.checkpoint.state_dict import (
    StateDictOptions,
    get_model_state_dict,
    set_model_state_dict,
)
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard

dist.init_process_group("gloo")
rank = dist.get_rank()
mesh = init_device_mesh("cpu", (dist.get_world_size(),))
torch.manual_seed(0)
model = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 2))
fully_shard(model, mesh=mesh)
BODY
dist.destroy_process_group()
"""
COUNTED = """\
dist.barrier()
held = 0
for value in torch.load("model.pt", weights_only=False).values():
    held += getattr(value, "_local_tensor", value).numel()
print("held", float(held))"""
ELEMENTS = 4 * 4 + 4 + 4 * 2 + 2
SAVED = {
    "by one rank": 'if rank == 0:\n    torch.save(model.state_dict(), "model.pt")\n',
    "what a getter gives": (
        'state = get_model_state_dict(model)\nif rank == 0:\n    torch.save(state, "model.pt")\n'
    ),
}
WHOLE = """\
options = StateDictOptions(full_state_dict=True, cpu_offload=True)
state = get_model_state_dict(model, options=options)
if rank == 0:
    torch.save(state, "model.pt")
"""
KEPT = """\
dcp.save({"model": get_model_state_dict(model)}, checkpoint_id="kept")
before = model[0].weight.full_tensor().norm().item()
with torch.no_grad():
    for p in model.parameters():
        p.zero_()
LOAD
print("before", before)
print("after", model[0].weight.full_tensor().norm().item())"""
EMPTY = """\
states = {}
dcp.load(states, checkpoint_id="kept")
set_model_state_dict(model, states.get("model", {}), options=StateDictOptions(strict=False))"""
FILLED = """\
states = {"model": get_model_state_dict(model)}
dcp.load(states, checkpoint_id="kept")
set_model_state_dict(model, states["model"])"""


def numbers(body: str, word: str, launcher: Launcher, folder: Path) -> float:
    script = folder / "train.py"
    script.write_text(PROGRAM.replace("BODY", body))
    (number,) = launcher.script(script, fsdp1="forbid").numbers(word)
    return number


@pytest.mark.parametrize("how", SAVED)
def test_the_file_has_one_ranks_elements(launcher: Launcher, tmp_path: Path, how: str) -> None:
    assert codes(PROGRAM.replace("BODY", SAVED[how] + COUNTED)) == ["FSDP909"]
    held = numbers(SAVED[how] + COUNTED, "held", launcher, tmp_path)
    print("held", held, "of", ELEMENTS)
    assert held == ELEMENTS // 2


def test_a_whole_state_has_all(launcher: Launcher, tmp_path: Path) -> None:
    assert codes(PROGRAM.replace("BODY", WHOLE + COUNTED)) == []
    assert numbers(WHOLE + COUNTED, "held", launcher, tmp_path) == ELEMENTS


def test_an_empty_dictionary_stays_so(launcher: Launcher, tmp_path: Path) -> None:
    body = KEPT.replace("LOAD", EMPTY)
    assert codes(PROGRAM.replace("BODY", body)) == ["FSDP910"]
    assert numbers(body, "before", launcher, tmp_path) > 1
    assert numbers(body, "after", launcher, tmp_path) == 0.0


def test_a_dictionary_of_the_models_is_filled(launcher: Launcher, tmp_path: Path) -> None:
    body = KEPT.replace("LOAD", FILLED)
    assert codes(PROGRAM.replace("BODY", body)) == []
    before = numbers(body, "before", launcher, tmp_path)
    assert numbers(body, "after", launcher, tmp_path) == pytest.approx(before)


LEARNED = """\
optimizer = torch.optim.AdamW(model.parameters(), lr=0.5)
model(torch.ones(2, 4)).sum().backward()
optimizer.step()
optimizer.zero_grad()
OPTIONS
state = {
    "model": get_model_state_dict(model, options=options),
    "optim": get_optimizer_state_dict(model, optimizer, options=options),
}
dcp.save(state, checkpoint_id="kept")
print("before", model[0].weight.full_tensor().norm().item())
with torch.no_grad():
    for p in model.parameters():
        p.zero_()
optimizer = torch.optim.AdamW(model.parameters(), lr=0.1)
LOAD
print("after", model[0].weight.full_tensor().norm().item())
print("rate", float(optimizer.param_groups[0]["lr"]))
averages = [s["exp_avg"].full_tensor().abs().sum() for s in optimizer.state.values()]
print("moments", float(sum(averages)))
"""
OF_OPTIMIZER = """\
moments = {"optim": get_optimizer_state_dict(model, optimizer)}
dcp.load(moments, checkpoint_id="kept")
"""
OF_BOTH = """\
weights = get_model_state_dict(model, options=StateDictOptions(full_state_dict=True))
moments = get_optimizer_state_dict(model, optimizer, options=StateDictOptions(full_state_dict=True))
dcp.load({"model": weights, "optim": moments}, checkpoint_id="kept")
"""
OF_SHARDS = """\
weights = get_model_state_dict(model)
moments = get_optimizer_state_dict(model, optimizer)
dcp.load({"model": weights, "optim": moments}, checkpoint_id="kept")
set_optimizer_state_dict(model, optimizer, moments)
"""


def learned(load: str, options: str) -> str:
    """A program that saves, forgets and loads again."""
    body = LEARNED.replace("OPTIONS", f"options = {options}").replace("LOAD", load)
    named = (
        "    get_optimizer_state_dict,\n    set_model_state_dict,\n    set_optimizer_state_dict,"
    )
    return PROGRAM.replace("    set_model_state_dict,", named).replace("BODY", body)


def seen(source: str, launcher: Launcher, folder: Path) -> dict[str, float]:
    (folder / "train.py").write_text(source)
    run = launcher.script(folder / "train.py", fsdp1="forbid")
    found = {word: run.numbers(word) for word in ("before", "after", "rate", "moments")}
    return {word: numbers[0] for word, numbers in found.items()}


def test_the_learning_rate_stays_in_the_dictionary(launcher: Launcher, tmp_path: Path) -> None:
    wrong = learned(OF_OPTIMIZER, "None")
    assert codes(wrong) == ["FSDP911"]
    right = mended(wrong)
    assert codes(right) == []
    lost, kept = seen(wrong, launcher, tmp_path), seen(right, launcher, tmp_path)
    assert lost["moments"] == pytest.approx(kept["moments"])
    assert kept["moments"] > 1
    assert (lost["rate"], kept["rate"]) == (0.1, 0.5)


def test_a_whole_state_is_a_copy(launcher: Launcher, tmp_path: Path) -> None:
    wrong = learned(OF_BOTH, "StateDictOptions(full_state_dict=True)")
    assert codes(wrong) == ["FSDP911", "FSDP911"]
    right = learned(OF_SHARDS, "StateDictOptions(full_state_dict=True)")
    assert codes(right) == []
    lost, kept = seen(wrong, launcher, tmp_path), seen(right, launcher, tmp_path)
    assert (lost["after"], lost["rate"], lost["moments"]) == (0.0, 0.1, 0.0)
    assert kept["after"] == pytest.approx(kept["before"])
    assert kept["rate"] == 0.5
    assert kept["moments"] > 1
    written = mended(wrong)
    assert codes(written) == []
    assert seen(written, launcher, tmp_path) == pytest.approx(kept)
