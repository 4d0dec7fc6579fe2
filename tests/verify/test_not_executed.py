"""Changed statements that no run came by, and how it is noticed which lines a program executes."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from fsdp_migrate.verify.compare.not_executed import (
    changed_and_not_executed,
    changed_statements,
)
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
from __future__ import annotations
import threading
import helper

def work():
    'says'
    if helper.no:
        print(1)
    elif not helper.no:
        pass
    return (
        2
    )

@helper.same
class Kept:
    __private = 1
    def get(self):
        try:
            return self.__private
        finally:
            done = 1

assert work.__doc__ == 'says'
thread = threading.Thread(target=work)
thread.start()
thread.join()
raise SystemExit(2 + Kept().get())
"""
HELPER = "no = False\ndef same(kind): return kind\n"

WAYS = {
    "plain": ["train.py"],
    "module": ["-m", "train"],
    "imported": ["-c", "import train"],
    "run-by-path": ["-c", "import runpy; runpy.run_path('train.py')"],
    "spawned": [
        "-c",
        "import multiprocessing as m, sys, types\n"
        "sys.modules['__main__'].__file__ = 'train.py'\n"
        "m.get_context('spawn').Process(target=print).start()\n"
        "sys.exit(3)",
    ],
}


def executed(
    watched: dict[str, list[tuple[int, int]]], folder: Path, words: list[str]
) -> tuple[int, list[str]]:
    """Run Python in the folder: its exit status, and what was written down of what is watched."""
    (folder / WATCHED).write_text(json.dumps(watched))
    start = folder / "start"
    start.mkdir()
    (start / "sitecustomize.py").write_text(
        f"import pathlib, sys; sys.path.insert(0, {PACKAGE_ROOT!r})\n"
        "from fsdp_migrate.verify.inject import executed\n"
        "del sys.path[0]\n"
        f"executed.write_down(pathlib.Path({str(folder)!r}), {str(folder)!r})\n"
    )
    done = subprocess.run(
        [sys.executable, *words],
        cwd=folder,
        check=False,
        env={**os.environ, "PYTHONPATH": str(start)},
        capture_output=True,
    )
    written = [line for each in folder.glob("executed-*.txt") for line in each.open()]
    return done.returncode, sorted({line.strip() for line in written})


def everything(source: str) -> list[tuple[int, int]]:
    return changed_statements(b"", source.encode())


@pytest.mark.parametrize("way", WAYS)
def test_statements_are_written_of_all_threads_and_watched_files(way: str, tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(PROGRAM)
    (tmp_path / "helper.py").write_text(HELPER)
    status, lines = executed({"train.py": everything(PROGRAM)}, tmp_path, WAYS[way])
    assert status == 3
    ran = {int(line.split()[0]) for line in lines if line.endswith(" train.py")}
    assert changed_and_not_executed(b"", PROGRAM.encode(), ran) == [(8, 8)]
    assert 0 in ran
    assert not [line for line in lines if "helper" in line]


def test_what_did_not_run_of_a_file_that_was_loaded_is_known(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text("import one\n")
    (tmp_path / "one.py").write_text("def work():\n    return 2\n")
    _, lines = executed({"one.py": [(2, 2)]}, tmp_path, ["train.py"])
    assert lines == ["0 one.py"]


def test_copies_of_a_file_have_lines_of_their_own(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text("import one, two\none.work()\ntwo.work()\n")
    text = "def work():\n    return 2\n"
    for name in ("one.py", "two.py"):
        (tmp_path / name).write_text(text)
    watched = {name: everything(text) for name in ("one.py", "two.py")}
    _, lines = executed(watched, tmp_path, ["train.py"])
    assert lines == [f"{line} {name}.py" for line in (0, 1, 2) for name in ("one", "two")]


def test_nothing_is_traced_once_all_has_run(tmp_path: Path) -> None:
    text = "import sys\ndef work(): pass\nwork()\nwork()\nsys.exit(sys.gettrace() is None)\n"
    (tmp_path / "train.py").write_text(text)
    status, _ = executed({"train.py": [(1, 1), (3, 3)]}, tmp_path, ["train.py"])
    assert status == 1


def test_torch_compile_makes_one_graph_as_before(tmp_path: Path) -> None:
    text = (
        "import torch\n"
        "def work(x):\n"
        "    y = x + 1\n"
        "    if y.shape[0] > 9:\n"
        "        y = y * 2\n"
        "    return y * 3\n"
    )
    (tmp_path / "one.py").write_text(text)
    (tmp_path / "train.py").write_text(
        "import torch, one\n"
        "work = torch.compile(one.work, backend='eager', fullgraph=True)\n"
        "for _ in range(4):\n"
        "    print(work(torch.ones(2)))\n"
        "frames = torch._dynamo.utils.counters['stats']['unique_graphs']\n"
        "raise SystemExit(frames)\n"
    )
    status, lines = executed({"one.py": [(n, n) for n in (3, 4, 5, 6)]}, tmp_path, ["train.py"])
    assert status == 1
    if sys.version_info < (3, 12):
        assert lines == [f"{n} one.py" for n in (0, 3, 4, 6)]
