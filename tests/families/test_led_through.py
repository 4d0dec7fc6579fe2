"""Names that lead through FSDP1's wrapper."""

from __future__ import annotations

import pytest

from tests.helpers.migrating import migrate

SOURCE = """\
import functools
import importlib
from operator import attrgetter

from torch.distributed.fsdp import FullyShardedDataParallel as FSDP


def find(model, name):
    for part in name.split("."):
        model = getattr(model, part)
    return model


class Hook:
    def __init__(self, name):
        self.name = name

    def put(self, model):
        return functools.reduce(getattr, self.name.split("."), model)


def plain(name):
    return name.upper()


def main(net, state, other):
    model = FSDP(net)
    {line}
"""


def told(line: str) -> tuple[int, str]:
    result, after = migrate({"train.py": SOURCE.format(line=line)})
    found = [d for d in result.decisions if "leads through" in str(d.site.construct)]
    return len(found), after["train.py"]


@pytest.mark.parametrize(
    "line",
    [
        'functools.reduce(getattr, "module.fc1".split("."), model)',
        'find(model, "module.fc1")',
        'find(model, name="module.blocks.0")',
        'Hook("module.fc1").put(model)',
        '[Hook(name) for name in find(model, "module.names")]',
        'model.get_submodule("module.fc1")',
        'attrgetter("module.fc1")(model)',
    ],
)
def test_a_name_that_is_followed_is_marked(line: str) -> None:
    count, after = told(line)
    assert count == 1
    assert "TODO(fsdp-migrate FSDP406)" in after


def test_the_module_by_its_name_is_the_model() -> None:
    count, after = told('print(getattr(model, "module").fc1)')
    assert count == 1
    assert "    print(model.fc1)\n" in after


@pytest.mark.parametrize(
    "line",
    [
        'print(state["module.fc1"], plain("module.fc1"))',
        '[k for k in state if k.startswith("module.fc1")]',
        'importlib.import_module("module.fc1")',
        'find(model, "fc1")',
        'print(getattr(other, "module"), getattr(model, "module", model))',
        '{k.replace("module.", ""): v for k, v in state.items()}',
    ],
)
def test_other_names_are_not(line: str) -> None:
    assert told(line)[0] == 0
