"""What asks first whether an object is as FSDP1 made it passes over an FSDP2 model in silence."""

from __future__ import annotations

import pytest

from fsdp_migrate.planning.outcome import Outcome
from tests.helpers.migrating import migrate

PROGRAM = """\
import contextlib

from torch.distributed.fsdp import FullyShardedDataParallel as FSDP


def shard(net):
    return FSDP(net)


def use(modules):
    found = []
    for module in modules:
{lines}
    return found
"""
QUIET = {
    "asked": "if hasattr(module, '_handle'):\n    found.append(module._handle)",
    "asked in one": "if hasattr(module, '_handle') and module._handle:\n    found.append(module)",
    "got": "if getattr(module, '_handle', None):\n    found.append(module)",
    "got for later": "handle = getattr(module, '_handle', None)\nfound.append(handle)",
    "another": "if hasattr(module, '_fsdp_wrapped_module'):\n    found.append(module._handle)",
    "a flag": "has = hasattr(module, '_handle')\nif has:\n    found.append(module._handle)",
    "left": "if not hasattr(module, '_handle'):\n    continue\nfound.append(module._handle)",
    "in an expression": "found.append(module._handle if hasattr(module, '_handle') else None)",
    "collected": "found += [m._handle for m in module.modules() if hasattr(m, '_handle')]",
    "caught": "try:\n    found.append(module._handle)\nexcept AttributeError:\n    pass",
    "caught with all": "try:\n    found.append(module._handle)\nexcept Exception:\n    pass",
    "suppressed": "with contextlib.suppress(AttributeError):\n    found.append(module._handle)",
}
LOUD = {
    "plain": "found.append(module._handle)",
    "of the class": "if isinstance(module, FSDP):\n    found.append(module._handle)",
    "caught and raised": "try:\n    found.append(module._handle)\nexcept Exception:\n    raise",
    "another error": "try:\n    found.append(module._handle)\nexcept KeyError:\n    pass",
    "of another": "if hasattr(module, 'weight'):\n    found.append(module._handle)",
    "got for sure": "found.append(getattr(module, '_handle'))",
    "said": "if hasattr(module, '_handle'):\n    print(module._handle)",
}


def _first(lines: str) -> Outcome:
    body = "\n".join(f"        {line}" for line in lines.split("\n"))
    result, _ = migrate({"a.py": PROGRAM.format(lines=body)})
    assert not result.problems
    assert any(d.outcome is Outcome.LEFT and "_handle" in d.message for d in result.decisions)
    return next(d.outcome for d in result.decisions if str(d.site.construct).endswith("Parallel()"))


@pytest.mark.parametrize("lines", QUIET.values(), ids=QUIET)
def test_what_passes_over_a_model_holds_it_back(lines: str) -> None:
    assert _first(lines) is Outcome.LEFT


@pytest.mark.parametrize("lines", LOUD.values(), ids=LOUD)
def test_what_fails_does_not(lines: str) -> None:
    assert _first(lines) is Outcome.REWRITTEN
