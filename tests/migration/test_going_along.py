"""Imports that nothing uses go with a migration, and stay where nothing is migrated."""

from __future__ import annotations

from pathlib import Path

import pytest

from fsdp_migrate.cli import session
from fsdp_migrate.planning.outcome import Outcome
from fsdp_migrate.report import summary
from tests.helpers.migrating import migrate

UNUSED = "from torch.distributed.fsdp import FullStateDictConfig\n"
USED = "from torch.distributed.fsdp import FullyShardedDataParallel as FSDP\n"
GOES = f"{USED}model = FSDP(net)\n"
STAYS = f"{USED}model = FSDP(net, unknown=1)\n"
AGAIN = "from torch.distributed.fsdp import FullStateDictConfig\nFullStateDictConfig = None\n"


@pytest.mark.parametrize("unused", [UNUSED, AGAIN])
def test_where_all_else_is_left_they_stay_unmarked_and_are_not_counted(unused: str) -> None:
    result, after = migrate({"train.py": STAYS, "other.py": unused})
    assert after["other.py"] == unused
    assert result.count(Outcome.LEFT) == len(result.decisions)
    (left,) = [d for d in result.decisions if d.site.module.display == "other.py"]
    assert left.code == "FSDP100"
    assert "goes with the migration" in left.message
    assert not migrate(after)[0].changes


@pytest.mark.parametrize("unused", [UNUSED, AGAIN])
def test_they_go_with_a_model(unused: str) -> None:
    _, after = migrate({"train.py": GOES, "blocked.py": STAYS, "other.py": unused})
    assert UNUSED not in after["other.py"]


def test_they_go_where_fsdp1_is_in_nothing_else() -> None:
    result, after = migrate({"train.py": "print(1)\n", "other.py": UNUSED})
    assert not after["other.py"].strip()
    assert summary(result).coverage == 1.0


def test_each_project_of_a_tree_is_asked_for_itself(tmp_path: Path) -> None:
    (tmp_path / "pyproject.toml").write_text("")
    for name, text in {"goes": GOES, "stays": STAYS}.items():
        (tmp_path / name).mkdir()
        (tmp_path / name / "train.py").write_text(text)
        (tmp_path / name / "other.py").write_text(UNUSED)
    run = session.run([tmp_path])
    changed = {
        path.relative_to(tmp_path).as_posix(): new for path, new in run.result.changes.items()
    }
    assert not changed["goes/other.py"].strip()
    assert "stays/other.py" not in changed
