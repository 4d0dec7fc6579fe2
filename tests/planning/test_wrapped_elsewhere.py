"""The reason for a project whose models something else wraps."""

from __future__ import annotations

import pytest

from fsdp_migrate.planning.outcome import Outcome
from tests.helpers.migrating import migrate

SAVE = """\
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP


def save(model: FSDP):
    model.clip_grad_norm_(1.0)
"""
PLUGIN = """\
from accelerate import Accelerator, FullyShardedDataParallelPlugin

accelerator = Accelerator(fsdp_plugin=FullyShardedDataParallelPlugin())
"""
STRATEGY = """\
from lightning.fabric.strategies import FSDPStrategy

strategy = FSDPStrategy()
"""


@pytest.mark.parametrize(
    ("other", "library"),
    [(PLUGIN, "accelerate"), (STRATEGY, "Lightning")],
    ids=["plugin", "fabric"],
)
def test_the_library_that_wraps_is_named(other: str, library: str) -> None:
    result, after = migrate({"save.py": SAVE, "run.py": other})
    left = [d for d in result.decisions if d.outcome is Outcome.LEFT]
    assert any(d.message.startswith(f"{library} wraps the models") for d in left)
    assert all("path that wraps" not in d.help for d in left)
    assert after["run.py"] == other


def test_without_one_the_path_is_asked_for() -> None:
    result, _ = migrate({"save.py": SAVE})
    left = [d for d in result.decisions if d.outcome is Outcome.LEFT]
    assert any(d.help == "give the path that wraps it as well" for d in left)


def test_a_project_that_wraps_itself_names_none() -> None:
    own = f"{SAVE}\n\nmodel = FSDP(net)\n"
    result, after = migrate({"save.py": own, "run.py": PLUGIN})
    assert "fully_shard(net)" in after["save.py"]
    assert not any("wraps the models" in d.message for d in result.decisions)
