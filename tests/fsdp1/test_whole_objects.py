"""Models among all that an object or a call has: what is asked of each is marked."""

from __future__ import annotations

import pytest

from tests.helpers.migrating import migrate

HEAD = """\
from types import SimpleNamespace

import torch
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP


class Saver:
    def __init__(self, {parameters}):
        {kept}

    def save(self, path):
        torch.save({saved}, path)


def main(net, meter, path):
    model = FSDP(net)
    {used}
"""
ITEMS = "{{k: v.state_dict() for k, v in {}.items()}}"
OPENED = ITEMS.format("self.objects").replace("{{", "{").replace("}}", "}")
OWN = OPENED.replace("self.objects", "vars(self)")


def said(parameters: str, kept: str, saved: str, used: str) -> list[str]:
    source = HEAD.format(parameters=parameters, kept=kept, saved=saved, used=used)
    result, after = migrate({"train.py": source})
    assert after["train.py"].count("TODO") == sum(d.code != "FSDP101" for d in result.decisions)
    return [d.code for d in result.decisions if d.code != "FSDP101"]


@pytest.mark.parametrize(
    ("parameters", "kept", "saved", "used"),
    [
        ("**objects", "self.objects = objects", OPENED, "Saver(model=model).save(path)"),
        (
            "*objects",
            "self.objects = objects",
            "[o.state_dict() for o in self.objects]",
            "Saver(model).save(path)",
        ),
        ("model", "self.model = model", OWN, "Saver(model).save(path)"),
        (
            "model",
            "self.model = model",
            OWN.replace("vars(self)", "self.__dict__"),
            "Saver(model).save(path)",
        ),
        ("model", "self.held: object = model", OWN, "Saver(model).save(path)"),
        (
            "state",
            "self.state = state",
            OWN.replace("vars(self)", "vars(self.state)"),
            "Saver(SimpleNamespace(model=model)).save(path)",
        ),
        (
            "**objects",
            "self.objects = objects",
            "[self.objects[k].state_dict() for k in self.objects]",
            "Saver(model=model).save(path)",
        ),
        (
            "**objects",
            "self.objects = objects",
            OPENED.replace("v.state", "getattr(v, 'ema', v).state"),
            "Saver(model=model).save(path)",
        ),
    ],
)
def test_a_model_among_all_is_marked(parameters: str, kept: str, saved: str, used: str) -> None:
    assert said(parameters, kept, saved, used) == ["FSDP302"]


@pytest.mark.parametrize(
    ("parameters", "kept", "saved", "used"),
    [
        ("**objects", "self.objects = objects", OPENED, "Saver(loss=meter).save(path)"),
        (
            "*objects",
            "self.objects = objects",
            "[o.state_dict() for o in self.objects]",
            "Saver(meter, meter).save(path)",
        ),
        ("meter", "self.meter = meter", OWN, "Saver(meter).save(path)"),
        (
            "model, *objects",
            "self.objects = objects",
            "[o.state_dict() for o in self.objects]",
            "Saver(model=model).save(path)",
        ),
    ],
)
def test_what_no_model_gets_into_is_not(parameters: str, kept: str, saved: str, used: str) -> None:
    assert said(parameters, kept, saved, used) == []


def test_loads_are_marked_as_well() -> None:
    loads = """\
    def load(self, state):
        for name, each in self.objects.items():
            each.load_state_dict(state[name])


def main("""
    source = HEAD.format(
        parameters="**objects",
        kept="self.objects = objects",
        saved=OPENED,
        used="Saver(model=model).load(torch.load(path))",
    )
    result, _ = migrate(
        {
            "train.py": source.replace("def main(", loads.lstrip(" "), 1).replace(
                "\n\n\ndef load", "\n\n    def load"
            )
        }
    )
    assert {"FSDP302", "FSDP303"} <= {d.code for d in result.decisions}
