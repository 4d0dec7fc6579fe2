"""One process that starts all the ranks."""

from collections.abc import Iterator

import pytest

from tests.training.programs import Launcher


@pytest.fixture(scope="session")
def launcher(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Launcher]:
    launcher = Launcher(tmp_path_factory.mktemp("runs"))
    yield launcher
    launcher.close()
