"""Functions of other libraries that ask a model for its state, or load one into it."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.training.programs import Launcher, compare, written

pytestmark = pytest.mark.train

LIBRARY = """\
def lora_state_dict(model):
    return {name: value for name, value in model.state_dict().items() if "lora_" in name}
"""

PROGRAM = """\
import sys
import loralib
import safetensors.torch
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.fsdp import FullStateDictConfig, FullyShardedDataParallel as FSDP
from torch.distributed.fsdp import StateDictType
from torch.distributed.fsdp.wrap import ModuleWrapPolicy


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.w = nn.Linear(6, 6)
        self.lora_A = nn.Linear(6, 3, bias=False)
        self.lora_B = nn.Linear(3, 6, bias=False)

    def forward(self, x):
        return self.w(x) + self.lora_B(self.lora_A(x))


def show(state):
    for name, value in state.items():
        print(name, type(value).__name__, tuple(value.shape), value.double().sum().item())


def adapter(model):
    state = loralib.lora_state_dict(model)  # of every rank
    return state


def main(directory, kind):
    dist.init_process_group("gloo")
    torch.manual_seed(0)
    policy = ModuleWrapPolicy({nn.Linear})
    model = FSDP(
        Net(), auto_wrap_policy=policy, device_id=torch.device("cpu"), use_orig_params=True
    )
SETTING
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.1)
    for step in range(2):
        loss = model(torch.ones(2, 6) + dist.get_rank()).pow(2).mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        print("loss", loss.item())
    kept = adapter(model)
    show(kept)
    if kind != "rank0":
        path = f"{directory}/{dist.get_rank()}.safetensors"
        safetensors.torch.save_model(model, path)
        show(safetensors.torch.load_file(path))
    model(torch.ones(2, 6)).sum().backward()
    optimizer.step()
    show(kept)
    if kind != "rank0":
        print(safetensors.torch.load_model(model, path))
        with torch.no_grad():
            print("loaded", model(torch.ones(2, 6)).sum().item())
    show(loralib.lora_state_dict(model))
    dist.destroy_process_group()


main(*sys.argv[1:])
"""

SETTINGS = {
    "default": "",
    "rank0": """\
    FSDP.set_state_dict_type(
        model,
        StateDictType.FULL_STATE_DICT,
        FullStateDictConfig(rank0_only=True),
    )
""",
}


@pytest.mark.parametrize("kind", SETTINGS)
def test_they_get_whole_states(kind: str, launcher: Launcher, tmp_path: Path) -> None:
    text = PROGRAM.replace("SETTING\n", SETTINGS[kind])
    both = written({"train.py": text.encode()}, tmp_path)
    runs = []
    for version in (both.before, both.after):
        (version.parent / "loralib.py").write_text(LIBRARY)
        runs.append(launcher.script(version, str(version.parent), kind))
    assert compare(*runs, tolerance=1e-5, atol=1e-6) > 9


PEFT = """\
def get_peft_model_state_dict(model, state_dict=None):
    state = model.state_dict() if state_dict is None else state_dict
    return {name: value for name, value in state.items() if "lora_" in name}
"""
WHOLE = """\
    model(torch.ones(2, 6)).sum().backward()
    optimizer.step()
    with FSDP.state_dict_type(
        model,
        StateDictType.FULL_STATE_DICT,
        FullStateDictConfig(rank0_only=kind == "rank0"),
    ):
        show(get_peft_model_state_dict(model))
"""


@pytest.mark.parametrize("rank0_only", [True, False])
def test_a_function_that_takes_the_state_is_given_it(
    rank0_only: bool, launcher: Launcher, tmp_path: Path
) -> None:
    start, end = PROGRAM.index("    kept = adapter"), PROGRAM.index("    dist.destroy")
    text = PROGRAM[:start] + WHOLE + PROGRAM[end:]
    text = text.replace("SETTING\n", "").replace('kind == "rank0"', str(rank0_only))
    text = text.replace("import loralib\n", "from peft import get_peft_model_state_dict\n")
    both = written({"train.py": text.replace("loralib.lora", "none").encode()}, tmp_path)
    assert "state_dict=get_model_state_dict(" in both.text()
    assert ("cpu_offload=True" in both.text()) is rank0_only
    runs = []
    for version in (both.before, both.after):
        (version.parent / "peft.py").write_text(PEFT)
        runs.append(launcher.script(version, str(version.parent), "kind"))
    assert compare(*runs, tolerance=1e-5, atol=1e-6) > 5
