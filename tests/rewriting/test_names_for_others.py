"""Imports that others used as well go when the others are done with them."""

from __future__ import annotations

import pytest

from fsdp_migrate.planning.outcome import Outcome
from tests.helpers.migrating import migrate

IMPORT = "from torch.distributed.fsdp import FullyShardedDataParallel as FSDP\n"
WRAPPING = f"""\
{IMPORT}

def wrap(net):
    return FSDP(net)


def average(model):
    {IMPORT}
    with FSDP.summon_full_params(model):
        print(model)
"""
BLOCK = "with {0}.summon_full_params(model):\n    model.show()\n"
DONE = {
    "by name": "from wrapping import wrap, FSDP\n\nmodel = wrap(net)\n" + BLOCK.format("FSDP"),
    "as an attribute": "import wrapping\n\nmodel = wrapping.wrap(net)\n"
    + BLOCK.format("wrapping.FSDP"),
    "under another name": "from wrapping import wrap, FSDP as Wrapper\n\nmodel = wrap(net)\n"
    + BLOCK.format("Wrapper"),
    "for nothing": "from wrapping import wrap\n\nmodel = wrap(net)\n",
}


@pytest.mark.parametrize("user", DONE.values(), ids=DONE)
def test_they_go_with_the_last_use_in_any_file(user: str) -> None:
    result, after = migrate({"wrapping.py": WRAPPING, "train.py": user})
    assert "FullyShardedDataParallel" not in "".join(after.values())
    assert {d.outcome for d in result.decisions} == {Outcome.REWRITTEN}
    again, _ = migrate(after)
    assert not again.changes
    assert not again.decisions


ASKING = {
    "promised": "from wrapping import wrap, FSDP\n\n__all__ = ['FSDP']\nmodel = wrap(net)\n",
    "printed": "from wrapping import wrap, FSDP\n\nmodel = wrap(net)\nprint(FSDP)\n",
    "an attribute that stays": "import wrapping\n\nmodel = wrapping.wrap(net)\n"
    "print(wrapping.FSDP)\n",
    "handed on": "from wrapping import FSDP\nfrom wrapping import wrap\n\nmodel = wrap(net)\n"
    "build(FSDP)\n",
}


@pytest.mark.parametrize("user", ASKING.values(), ids=ASKING)
def test_they_stay_where_somebody_asks_for_them(user: str) -> None:
    _, after = migrate({"wrapping.py": WRAPPING, "train.py": user})
    top, *_ = after["wrapping.py"].partition("def ")
    assert "FullyShardedDataParallel" in top
