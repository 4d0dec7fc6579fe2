"""Imports that nothing uses, in files that ask ``globals()`` for names."""

from __future__ import annotations

import pytest

from fsdp_migrate.planning.outcome import Outcome
from tests.helpers.migrating import migrate

HEAD = """\
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP, StateDictType


model = FSDP(net)
"""
GOES = {
    "another key": 'seed = globals()["SEED"]\n',
    "another key, if there is one": 'seed = globals().get("SEED", 1)\n',
    "whether there is another": 'has_numpy = "numpy" in globals()\n',
    "in a function": "def has(name):\n    return name in globals()\n\n\nprint(has('numpy'))\n",
    "a name is bound": "def add(name, value):\n    globals()[name] = value\n",
    "a name is deleted": "def remove(name):\n    del globals()[name]\n",
    "twice imported": "",
}
STAYS = {
    "its name": 'kind = globals()["StateDictType"]\n',
    "any name": "def has(name):\n    return name in globals()\n",
    "its name by a function": "def has(name):\n    return name in globals()\n\n\n"
    "print(has('numpy'), has('StateDictType'))\n",
    "a name put together": 'kind = globals()[f"State{rest}Type"]\n',
    "all names": "for name in globals():\n    print(name)\n",
    "handed on": "exec(text, globals())\n",
    "a method": "print(globals().keys())\n",
}


def _import(code: str) -> tuple[Outcome, str]:
    source = HEAD + code
    if not code:
        again = "from torch.distributed.fsdp.api import StateDictType\n"
        source = HEAD.replace("\n\n\n", f"\n{again}\n\n")
    result, after = migrate({"example.py": source})
    found = [d for d in result.decisions if str(d.site.construct) == "import(StateDictType)"]
    assert not migrate(after)[0].changes
    outcomes = {d.outcome for d in found}
    assert len(outcomes) == 1
    return outcomes.pop(), after["example.py"]


@pytest.mark.parametrize("code", GOES.values(), ids=GOES)
def test_an_import_goes_that_nothing_asks_for(code: str) -> None:
    outcome, after = _import(code)
    assert outcome is Outcome.REWRITTEN
    assert "StateDictType" not in after


@pytest.mark.parametrize("code", STAYS.values(), ids=STAYS)
def test_an_import_stays_that_text_may_name(code: str) -> None:
    outcome, after = _import(code)
    assert outcome is Outcome.LEFT
    assert "import StateDictType" in after
