"""States that rank 0 asks for alone: FSDP1 hangs, the rewritten program saves them."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.training.programs import Launcher, compare, pair

pytestmark = pytest.mark.train
KINDS = ("direct", "return", "context")


@pytest.mark.parametrize("kind", KINDS)
def test_one_rank_saves_the_same(kind: str, launcher: Launcher, tmp_path: Path) -> None:
    both = pair("rewriting/guarded", tmp_path)
    before = launcher.script(both.before, "--kind", kind, ranks=1, fsdp1="allow")
    after = launcher.script(both.after, "--kind", kind, ranks=1, fsdp1="forbid")
    assert compare(before, after) >= 20


@pytest.mark.parametrize("kind", KINDS)
def test_two_ranks_save_whole_tensors(kind: str, launcher: Launcher, tmp_path: Path) -> None:
    both = pair("rewriting/guarded", tmp_path)
    after = launcher.script(both.after, "--kind", kind, fsdp1="forbid")
    saved = [n for n in after.output[0].splitlines() if n.startswith("saved 3 model ")]
    now = [n for n in after.output[0].splitlines() if n.startswith("now ")]
    assert len(now) == 8
    assert [n.removeprefix("saved 3 model ") for n in saved] == [
        n.removeprefix("now ") for n in now
    ]


def test_two_ranks_hang_as_it_was(launcher: Launcher, tmp_path: Path) -> None:
    both = pair("rewriting/guarded", tmp_path)
    before = launcher.script(both.before, fsdp1="allow", fails=True, timeout=40)
    assert any(before.codes)
    assert "loss 1" in before.output[0]
    assert "saved" not in before.output[0]
    assert not list(both.before.parent.glob("*.pt"))


def test_gathered_where_it_stands_two_ranks_hang(launcher: Launcher, tmp_path: Path) -> None:
    both = pair("rewriting/guarded", tmp_path)
    text = both.after.read_text()
    naive = text.replace("if self.rank != 0 or step % 2 == 0:\n            return\n", "", 1)
    gather = "        if step % 2 != 0:\n"
    assert gather in naive
    naive = naive.replace(gather, "        if self.rank == 0 and step % 2 != 0:\n", 1)
    assert naive != text
    both.after.write_text(naive)
    after = launcher.script(both.after, "--kind", "return", fails=True, timeout=40)
    assert any(after.codes)
    assert "saved" not in after.output[0]
