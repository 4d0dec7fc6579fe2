"""Programs written to mislead verify: nothing wrong passes, nothing right fails."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest

from fsdp_migrate.verify.launch.warm import WarmServer

from .attacks.attack import FIXTURES, Attack, answer
from .attacks.pages import ATTACKS
from .programs import altered

SAMPLE = (
    "What ran: wrong: learning rate doubled, the package installed editable",
    "DDP: wrong: the head is not trained",
    "After the last step: right: eight steps, evaluation and a file",
    "Own launchers: right: torch.multiprocessing.spawn",
)


@pytest.mark.train
@pytest.mark.attacks
@pytest.mark.parametrize("attack", ATTACKS, ids=str)
def test_an_attack_is_answered_rightly(attack: Attack, tmp_path: Path, server: WarmServer) -> None:
    found = answer(attack, tmp_path, server)
    assert found.result == "right", f"{found.verdict}: {found.says}"


@pytest.mark.train
@pytest.mark.parametrize("attack", [a for a in ATTACKS if str(a) in SAMPLE], ids=str)
def test_a_sample_is_answered_rightly(attack: Attack, tmp_path: Path, server: WarmServer) -> None:
    found = answer(attack, tmp_path, server)
    assert found.result == "right", f"{found.verdict}: {found.says}"


def test_every_class_is_attacked_three_times_in_each_direction() -> None:
    counted = Counter((attack.family, attack.wrong) for attack in ATTACKS)
    families = {family for family, _ in counted}
    few = [(f, wrong) for f in families for wrong in (True, False) if counted[f, wrong] < 3]
    assert not few
    names = Counter(map(str, ATTACKS))
    assert {*SAMPLE} <= names.keys()
    assert [name for name, times in names.items() if times > 1] == []


@pytest.mark.parametrize("attack", ATTACKS, ids=str)
def test_an_attack_can_be_made(attack: Attack, tmp_path: Path) -> None:
    for side in ("before", "after"):
        tree = altered(FIXTURES / attack.program / side, tmp_path / side, getattr(attack, side))
        for path in tree.rglob("*.py"):
            compile(path.read_text(encoding="utf-8"), str(path), "exec")
