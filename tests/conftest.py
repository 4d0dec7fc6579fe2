"""What the tests of one session share: recordings of originals, and a process that forks ranks."""

from __future__ import annotations

import gc
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from fsdp_migrate.rewriting import journal
from fsdp_migrate.verify.launch.start import warm_server
from fsdp_migrate.verify.launch.warm import WarmServer
from tests.helpers.commandline import Command, answering


def pytest_collection_finish() -> None:
    """Garbage is not looked for among thousands of tests that are there to the end."""
    gc.freeze()
    gc.set_threshold(20_000, 20, 20)


@pytest.fixture(scope="session", autouse=True)
def _state(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """No test, and no process that one starts, keeps journals where the user's are."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv(journal.VARIABLE, str(tmp_path_factory.mktemp("state") / "journals"))
        yield


@pytest.fixture
def run(capfdbinary: pytest.CaptureFixture[bytes]) -> Command:
    """Runs one command, and gives what it said."""
    return answering(capfdbinary)


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty project that is the working directory."""
    (tmp_path / "pyproject.toml").write_text("")
    monkeypatch.chdir(tmp_path)
    for name in ("NO_COLOR", "FORCE_COLOR"):
        monkeypatch.delenv(name, raising=False)
    return tmp_path


@pytest.fixture(scope="session")
def baselines(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Recordings of originals."""
    return tmp_path_factory.mktemp("baselines")


@pytest.fixture(scope="session")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[WarmServer]:
    """Forks ranks for every verification that leaves the launcher to verify."""
    with warm_server(sys.executable, tmp_path_factory.mktemp("server")) as server:
        yield server
