"""``shard`` takes the arguments of FSDP1 and does what FSDP1 did; see :mod:`.arguments`."""

from __future__ import annotations

import pytest

from tests.training import arguments
from tests.training.programs import Launcher

pytestmark = pytest.mark.train


@pytest.mark.parametrize("how", ["whole", "specialized"])
@pytest.mark.parametrize("name", arguments.CASES)
def test_trains_the_same(name: str, how: str, launcher: Launcher) -> None:
    launcher.function("tests.training.arguments", "run", name, how, ranks=arguments.RANKS[name])
