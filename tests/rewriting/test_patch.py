"""Patches are what git says a patch is."""

from __future__ import annotations

import random
import subprocess
from itertools import pairwise
from pathlib import Path

import pytest

from fsdp_migrate.rewriting import patch

LINES = [
    b"a",
    b"b",
    b"",
    b"  c",
    b"\td\r",
    b"\xff\xfe",
    b"-x",
    b"+y",
    b"\\ No newline",
    b"@@ -1 +1 @@",
]


def applied(root: Path, before: dict[str, bytes], after: dict[str, bytes]) -> dict[str, bytes]:
    """What ``git apply`` makes of ``before`` with our patch to ``after``."""
    subprocess.run(["git", "init", "-q", str(root)], check=True)
    for name, data in before.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_bytes(data)
    text = patch.patch(
        root,
        {root / name: data for name, data in before.items()},
        {root / name: data for name, data in after.items()},
    )
    settings = ["-c", "core.autocrlf=false", "-c", "apply.whitespace=nowarn"]
    subprocess.run(["git", *settings, "apply", "-"], input=text, cwd=root, check=True)
    return {name: (root / name).read_bytes() for name in after}


def drawn(choose: random.Random, like: bytes | None = None) -> bytes:
    """A file of a few odd lines, or another with some of its lines changed."""
    lines = like.split(b"\n") if like is not None else []
    if like is None:
        lines = [choose.choice(LINES) for _ in range(choose.randrange(1, 30))]
    else:
        for _ in range(choose.randrange(1, 5)):
            position = choose.randrange(len(lines) + 1)
            lines[position : position + choose.randrange(3)] = [choose.choice(LINES)]
    return b"\n".join(lines)


@pytest.mark.parametrize("seed", range(5))
def test_random_changes_survive_git_apply(tmp_path: Path, seed: int) -> None:
    choose = random.Random(seed)
    before = {f"f{number}": drawn(choose) for number in range(200)}
    after = {name: drawn(choose, data) for name, data in before.items()}
    after = {name: data for name, data in after.items() if data != before[name]}
    before = {name: data for name, data in before.items() if name in after}
    assert applied(tmp_path, before, after) == after


@pytest.mark.parametrize(
    "name",
    [
        "a.py",
        "with space.py",
        "größe.py",
        'quote".py',
        "back\\slash.py",
        "tab\t.py",
        "deep/er/a.py",
    ],
)
def test_names_are_quoted_like_git_does(tmp_path: Path, name: str) -> None:
    before = {name: b"x\n"}
    after = {name: b"y\n", f"new {name.replace('/', '_')}": b"z"}
    assert applied(tmp_path, before, after) == after


def test_files_are_sorted_and_unchanged_ones_left_out(tmp_path: Path) -> None:
    before = {tmp_path / n: b"x\n" for n in ("b", "a", "c")}
    after = {tmp_path / "b": b"y\n", tmp_path / "a": b"y\n", tmp_path / "c": b"x\n"}
    listed = [line for line in patch.patch(tmp_path, before, after).split(b"\n") if b"diff" in line]
    assert listed == [b"diff --git a/a b/a", b"diff --git a/b b/b"]


def test_an_empty_new_file(tmp_path: Path) -> None:
    assert applied(tmp_path, {}, {"empty": b"", "full": b"x\n"}) == {"empty": b"", "full": b"x\n"}


def test_hunks_hold_changes() -> None:
    choose = random.Random(7)
    for _ in range(300):
        before = drawn(choose)
        after = drawn(choose, before)
        lines = patch.hunks(before, after)
        starts = [n for n, line in enumerate(lines) if line.startswith(b"@@ ")]
        for start, stop in pairwise([*starts, len(lines)]):
            assert any(line[:1] in b"+-" for line in lines[start + 1 : stop])
        assert bool(lines) == (before != after)
        assert patch.hunks(before, before) == []
