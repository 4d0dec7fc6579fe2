"""What every attack starts from."""

from __future__ import annotations

from pathlib import Path

import pytest

from fsdp_migrate.rewriting import journal
from tests.helpers.commandline import answering
from tests.security.hostile import SECRET, WRAPS, World


@pytest.fixture
def world(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfdbinary: pytest.CaptureFixture[bytes]
) -> World:
    """A repository that is the working directory, with one file to migrate."""
    world = World(tmp_path, answering(capfdbinary))
    (world.repo / ".git" / "info").mkdir(parents=True)
    (world.repo / "train.py").write_text(WRAPS)
    world.outside.mkdir()
    (world.outside / "secret.py").write_bytes(SECRET)
    (world.outside / "train.py").write_text(WRAPS)
    monkeypatch.chdir(world.repo)
    monkeypatch.setenv(journal.VARIABLE, str(world.state))
    return world
