"""Parameters that are written to a file one by one, put together by functions in between."""

from __future__ import annotations

import pytest

from fsdp_migrate.planning.outcome import Outcome
from tests.helpers.migrating import migrate

HEAD = """\
import torch
from safetensors.torch import save_file
from torch import nn
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP

model = FSDP(nn.Linear(4, 4))
other = nn.Linear(4, 4)


def on_cpu(p):
    if hasattr(p, "ds_id"):
        p = p.data.detach().cpu().clone()
    else:
        p = p.detach().cpu().clone()
    return p


def taken(named, trained=True):
    found = {n: p for n, p in named}
    if trained:
        found = {n: p for n, p in found.items() if p.requires_grad}
    return {n: on_cpu(p).cpu() for n, p in found.items()}


def prefixed(prefix):
    return {prefix + n: p.cpu() for n, p in model.named_parameters()}


def summed(named):
    return {n: p.sum().item() for n, p in named}


class Writer:
    def __init__(self, net):
        self.net = net

    def taken(self, prefix):
        return {prefix + n: p.cpu() for n, p in self.net.named_parameters()}

    def write(self):
        torch.save(self.taken(""), "f")


"""
WRITES = {
    "of a function": 'torch.save(taken(model.named_parameters()), "f")\n',
    "of a function, under a name": (
        'found = taken(model.named_parameters())\ntorch.save({"model": found}, "f")\n'
    ),
    "of a function, one by one": (
        'torch.save({n: on_cpu(p) for n, p in model.named_parameters()}, "f")\n'
    ),
    "of a function that knows the model": 'torch.save(prefixed("model."), "f")\n',
    "of a method": "Writer(model).write()\n",
    "to safetensors": (
        'save_file({n: p.cpu().contiguous() for n, p in model.named_parameters()}, "f")\n'
    ),
}


@pytest.mark.parametrize("use", WRITES.values(), ids=WRITES)
def test_parameters_in_a_file_are_marked(use: str) -> None:
    result, _ = migrate({"example.py": HEAD + use})
    found = [d for d in result.decisions if d.site.construct.name == "saved parameters"]
    assert [d.outcome for d in found] == [Outcome.REVIEW]


OTHERS = {
    "of another model, by the same function": 'torch.save(taken(other.named_parameters()), "f")\n',
    "of another model, by the same method": "Writer(other).write()\n",
    "other tensors": 'save_file({"x": on_cpu(torch.ones(2))}, "f")\n',
}


@pytest.mark.parametrize("use", OTHERS.values(), ids=OTHERS)
def test_what_others_give_the_function_is_not_in_this_file(use: str) -> None:
    both = "print(taken(model.named_parameters()))\n"
    result, after = migrate({"example.py": HEAD + both + use})
    assert use in after["example.py"]
    assert not [d for d in result.decisions if d.site.construct.name == "saved parameters"]


def test_safetensors_takes_no_dtensor() -> None:
    _, after = migrate({"example.py": HEAD + WRITES["to safetensors"]})
    assert "safetensors takes no DTensor" in " ".join(after["example.py"].replace("#", "").split())


COPIES = "{n: p.detach().cpu().clone() for n, p in model.named_parameters()}"
LOADS = {
    "at once": f"other.load_state_dict({COPIES}, strict=False)\n",
    "by keyword": f"other.load_state_dict(state_dict={COPIES}, strict=False)\n",
    "of what was asked for another": f"""\
if hasattr(net, "load_state_dict"):
    other.load_state_dict({COPIES}, strict=False)
""",
    "as they are": "other.load_state_dict(dict(model.named_parameters()), strict=False)\n",
    "under other names": f"""\
state = {COPIES}
cleaned = {{}}
for k, v in state.items():
    clean_key = k.replace("_fsdp_wrapped_module.", "")
    cleaned[clean_key] = v
other.load_state_dict(cleaned, strict=False)
""",
}


@pytest.mark.parametrize("use", LOADS.values(), ids=LOADS)
def test_a_plain_model_that_gets_parameters_is_marked(use: str) -> None:
    result, after = migrate({"example.py": HEAD + use})
    found = [d for d in result.decisions if d.site.construct.name == "saved parameters"]
    assert [d.outcome for d in found] == [Outcome.REVIEW]
    said = " ".join(after["example.py"].replace("#", "").split())
    assert "a model that is not sharded does not take" in said


PLAIN_LOADS = {
    "of another model": "other.load_state_dict(dict(other.named_parameters()))\n",
    "of a file": 'other.load_state_dict(torch.load("f"))\n',
    "of numbers": "other.load_state_dict(summed(model.named_parameters()))\n",
    "of parameters that are whole": f"""\
with FSDP.summon_full_params(model):
    other.load_state_dict({COPIES})
""",
    "of a scheduler's": "scheduler.load_state_dict(dict(model.named_parameters()))\n",
    "of an optimizer's": "opt.load_state_dict(dict(model.named_parameters()))\n",
    "of a state": "other.load_state_dict(model.state_dict())\n",
    "of what may have no state": f"""\
if hasattr(other, "load_state_dict") and callable(other.load_state_dict):
    other.load_state_dict({COPIES})
""",
    "of the model itself": f"model.load_state_dict({COPIES})\n",
}


@pytest.mark.parametrize("use", PLAIN_LOADS.values(), ids=PLAIN_LOADS)
def test_a_load_of_anything_else_is_not(use: str) -> None:
    result, _ = migrate({"example.py": HEAD + use})
    assert not [d for d in result.decisions if d.site.construct.name == "saved parameters"]
