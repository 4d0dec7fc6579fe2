"""``python -m tests.verify.attacks`` attacks verify and renews the tables in ``docs/attacks.md``;
with words after it, only the attacks whose names hold one of them, and nothing is written."""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from fsdp_migrate.verify.launch.start import warm_server
from tests.verify.attacks.attack import Answer, Attack, answer
from tests.verify.attacks.pages import ATTACKS
from tests.verify.attacks.tables import counted, renew


def answers(attacks: Sequence[Attack]) -> list[Answer]:
    """One after the other, each told as it is answered."""
    found = []
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        with warm_server(sys.executable, folder) as server:
            for number, attack in enumerate(attacks):
                (folder / str(number)).mkdir()
                found.append(answer(attack, folder / str(number), server))
                print(f"{found[-1].result:<14} {attack}", flush=True)
                if found[-1].result != "right":
                    print(f"    {found[-1].verdict}: {found[-1].says}", flush=True)
    return found


def main(words: Sequence[str]) -> int:
    chosen = [a for a in ATTACKS if not words or any(word in str(a) for word in words)]
    found = answers(chosen)
    print(counted(found))
    if not words:
        renew(found)
    return int(any(each.result != "right" for each in found))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
