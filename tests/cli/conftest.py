"""What tests of commands start from."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.helpers.commandline import Command, answering


@pytest.fixture
def run(capfdbinary: pytest.CaptureFixture[bytes]) -> Command:
    return answering(capfdbinary)


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty project that is the working directory."""
    (tmp_path / "pyproject.toml").write_text("")
    monkeypatch.chdir(tmp_path)
    for name in ("NO_COLOR", "FORCE_COLOR"):
        monkeypatch.delenv(name, raising=False)
    return tmp_path
