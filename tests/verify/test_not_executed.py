"""Changed statements that no run came by, and how it is noticed which lines a program executes."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from fsdp_migrate.verify.compare.not_executed import changed_and_not_executed
from fsdp_migrate.verify.inject.config import PACKAGE_ROOT, WATCHED

BEFORE = b"""\
import torch

def step(norm):
    if norm.isfinite():
        go()
    else:
        skip()
    if norm > 9:
        save()
"""


@pytest.mark.parametrize(
    ("old", "new", "executed", "blocks"),
    [
        pytest.param(b"save()", b"keep()", {1, 3, 4, 5, 8}, [(9, 9)], id="another-statement"),
        pytest.param(b"save()", b"keep()", {1, 3, 4, 5, 8, 9}, [], id="it-ran"),
        pytest.param(b"save()", b"save( )  # all", {1, 3, 4, 5, 8}, [], id="layout-and-comments"),
        pytest.param(b"norm.isfinite()", b"norm < 8", {1, 3, 4, 5, 8}, [(7, 7)], id="a-condition"),
        pytest.param(b"> 9:\n", b"> 9:\n        a()\n        b()\n", {1, 8}, [(9, 10)], id="block"),
        pytest.param(
            b"        save()",
            b"        if main:\n            save()",
            {1, 8},
            [(9, 10)],
            id="within",
        ),
        pytest.param(b"import torch", b"'''doc'''\nimport torch", {2, 9}, [], id="docstring"),
        pytest.param(b"step(norm)", b"step(norm, n=1)", {1, 3}, [], id="signature"),
        pytest.param(b"import torch", b"import (", {1}, [], id="no-python"),
        pytest.param(
            b"import torch", b"if TYPE_CHECKING:\n    import torch", {1}, [], id="for-types-only"
        ),
    ],
)
def test_only_what_was_changed_and_never_ran_is_listed(
    old: bytes, new: bytes, executed: set[int], blocks: list[tuple[int, int]]
) -> None:
    assert changed_and_not_executed(BEFORE, BEFORE.replace(old, new), executed) == blocks


def test_a_file_that_is_new_is_changed_altogether() -> None:
    assert changed_and_not_executed(b"", BEFORE, {1, 3}) == [(4, 9)]


PROGRAM = """\
import threading
import helper

def work():
    if helper.no:
        print(1)
    return 2

thread = threading.Thread(target=work)
thread.start()
thread.join()
raise SystemExit(3)
"""


def executed(watched: list[str], folder: Path) -> tuple[int, list[str]]:
    """Run ``train.py``: its exit status, and what was written down of the files watched."""
    (folder / WATCHED).write_text(json.dumps(watched))
    start = (
        "import pathlib, runpy, sys;"
        f"sys.path.append({PACKAGE_ROOT!r});"
        "from fsdp_migrate.verify.inject import executed;"
        "executed.write_down(pathlib.Path('.'), '.');"
        "sys.path.insert(0, '.');"
        "runpy.run_path('train.py')"
    )
    done = subprocess.run([sys.executable, "-c", start], cwd=folder, check=False)
    (written,) = folder.glob("executed-*.txt")
    return done.returncode, sorted(written.read_text().splitlines())


def test_lines_are_written_once_of_all_threads_and_watched_files(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(PROGRAM)
    (tmp_path / "helper.py").write_text("no = False\n")
    status, lines = executed(["train.py"], tmp_path)
    assert status == 3
    assert lines == sorted(f"{n} train.py" for n in (1, 2, 4, 5, 7, 9, 10, 11, 12))


def test_copies_of_a_file_have_lines_of_their_own(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text("import one, two\none.work()\ntwo.work()\n")
    for name in ("one.py", "two.py"):
        (tmp_path / name).write_text("def work():\n    return 2\n")
    _, lines = executed(["one.py", "two.py"], tmp_path)
    assert lines == ["1 one.py", "1 two.py", "2 one.py", "2 two.py"]
