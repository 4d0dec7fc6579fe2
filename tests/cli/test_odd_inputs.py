"""Odd files beside a good one: each is reported or read as what it is, and the good one is done.

``docs/odd-inputs.md`` is the table of these.
"""

from __future__ import annotations

import os
import re
import socket
import subprocess
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.helpers.commandline import ROOT, Command

GOOD = "from torch.distributed.fsdp import FullyShardedDataParallel as FSDP\n\nmodel = FSDP(net)\n"
DONE = "from torch.distributed.fsdp import fully_shard\n\nmodel = fully_shard(net)\n"
PAGE = ROOT / "docs" / "odd-inputs.md"
REWRITTEN = ""  # in the place of what is reported


def text(content: str | bytes, name: str = "odd.py") -> Callable[[Path], None]:
    def make(directory: Path) -> None:
        data = content.encode() if isinstance(content, str) else content
        (directory / name).write_bytes(data)

    return make


def unreadable(directory: Path) -> None:
    (directory / "odd.py").write_text(GOOD)
    (directory / "odd.py").chmod(0)


def unreadable_directory(directory: Path) -> None:
    (directory / "odd").mkdir()
    (directory / "odd").chmod(0)


def read_only(directory: Path) -> None:
    (directory / "odd.py").write_text(GOOD)
    (directory / "odd.py").chmod(0o444)


def read_only_directory(directory: Path) -> None:
    (directory / "odd").mkdir()
    (directory / "odd" / "a.py").write_text(GOOD)
    (directory / "odd").chmod(0o555)


def undecodable_name(directory: Path) -> None:
    with open(os.fsencode(directory) + b"/odd\xff.py", "w") as file:
        file.write(GOOD)


def hard_links(directory: Path) -> None:
    (directory / "odd.py").hardlink_to(directory / "good.py")


def two_links(directory: Path) -> None:
    for name in ("a.py", "b.py"):
        (directory / name).symlink_to("good.py")


def socket_(directory: Path) -> None:
    with socket.socket(socket.AF_UNIX) as bound:
        bound.bind(str(directory / "odd.py"))


def pipe(name: str) -> Callable[[Path], None]:
    return lambda directory: os.mkfifo(directory / name)


@dataclass(frozen=True)
class Odd:
    """An odd input; what is said of it (``REWRITTEN``: it is rewritten as any other), the exit
    code of ``rewrite``, and what it is in its own bytes."""

    make: Callable[[Path], None]
    said: str
    code: int = 2


CALL = f"{GOOD}y = "
ODD = {
    "codec rot13": Odd(text(f"# coding: rot13\n{GOOD}"), "odd.py: cannot be decoded"),
    "codec hex": Odd(text(f"# coding: hex\n{GOOD}"), "odd.py: cannot be decoded"),
    "codec base64": Odd(text(f"# coding: base64\n{GOOD}"), "odd.py: cannot be decoded"),
    "codec zlib": Odd(text(f"# coding: zlib\n{GOOD}"), "odd.py: cannot be decoded"),
    "codec punycode": Odd(text(f"# coding: punycode\n{GOOD}"), "odd.py: cannot be decoded"),
    "codec that nobody has": Odd(text(f"# coding: nothing\n{GOOD}"), "odd.py: cannot be decoded"),
    "latin-1 without a cookie": Odd(
        text(f"{GOOD}# \xe9\n".encode("latin-1")), "odd.py:4: cannot be decoded as utf-8"
    ),
    "latin-1 with its cookie": Odd(
        text(f"# coding: latin-1\n{GOOD}# \xe9\n".encode("latin-1")), REWRITTEN, 0
    ),
    "byte order mark": Odd(text(b"\xef\xbb\xbf" + GOOD.encode()), REWRITTEN, 0),
    "CRLF": Odd(text(GOOD.replace("\n", "\r\n")), REWRITTEN, 0),
    "no newline at the end": Odd(text(GOOD.rstrip()), REWRITTEN, 0),
    "a NUL byte": Odd(text(f"{GOOD}\0"), "odd.py: does not parse"),
    "a syntax error": Odd(text(f"{GOOD}m = FSDP(\n"), "odd.py:4: does not parse"),
    "1,000 attributes deep": Odd(text(f"{CALL}model{'.b' * 1000}\n"), REWRITTEN, 0),
    "1,000 times not": Odd(text(f"{CALL}{'not ' * 1000}model\n"), REWRITTEN, 0),
    "1,000 calls in a row": Odd(text(f"{CALL}model{'.f()' * 1000}\n"), REWRITTEN, 0),
    "1,000 operands": Odd(text(f"{CALL}1{' + model' * 1000}\n"), REWRITTEN, 0),
    "brackets too deep for Python": Odd(
        text(f"{CALL}{'(' * 500}{')' * 500}\n"), "odd.py:4: does not parse"
    ),
    "50 MB": Odd(text(GOOD + "x = 1\n" * 8_500_000), "odd.py: is larger than 8 MiB"),
    "a name with undecodable bytes": Odd(undecodable_name, REWRITTEN, 0),
    "two names of one file (hard links)": Odd(hard_links, REWRITTEN, 0),
    "two links to one file": Odd(two_links, REWRITTEN, 0),
    "a link to nothing": Odd(lambda d: (d / "odd.py").symlink_to("nowhere"), REWRITTEN, 0),
    "a link to itself": Odd(lambda d: (d / "odd.py").symlink_to("odd.py"), REWRITTEN, 0),
    "a file that may not be read": Odd(unreadable, "odd.py: cannot be read: Permission denied"),
    "a directory that may not be read": Odd(
        unreadable_directory, "odd: cannot be read: Permission denied"
    ),
    "a read-only file": Odd(read_only, "odd.py: is read-only"),
    "a read-only directory": Odd(read_only_directory, "odd/a.py: its directory is read-only"),
    "a FIFO named like a module": Odd(pipe("odd.py"), "odd.py: cannot be read: is neither"),
    "a socket named like a module": Odd(socket_, "odd.py: cannot be read: is neither"),
    "a FIFO named like a requirements file": Odd(
        pipe("requirements.txt"), "requirements.txt is not read: is not a regular file", 0
    ),
    "a directory named like a module": Odd(lambda d: (d / "odd.py").mkdir(), REWRITTEN, 0),
    "a notebook that is none": Odd(
        text('{"cells": [ torch.distributed.fsdp', "odd.ipynb"), "odd.ipynb: is not JSON"
    ),
    "YAML that is none": Odd(text("fsdp_config: [\n", "odd.yaml"), "odd.yaml:2"),
}


def may_be_read(path: Path) -> bool:
    return path.stat().st_mode & 0o400 != 0


def skip_where_all_may_be_read(odd: Odd) -> None:
    if "Permission denied" in odd.said and os.geteuid() == 0:
        pytest.skip("the superuser reads everything")


@pytest.mark.parametrize("odd", ODD.values(), ids=ODD)
def test_the_good_file_is_done_and_the_odd_one_is_reported(
    odd: Odd, here: Path, run: Command
) -> None:
    (here / "good.py").write_text(GOOD)
    odd.make(here)
    skip_where_all_may_be_read(odd)
    before = {p: p.read_bytes() for p in here.rglob("odd*") if p.is_file() and may_be_read(p)}
    checked = run("check", ".")
    assert "good.py:3:9" in checked.out
    rewritten = run("rewrite", ".")
    assert (here / "good.py").read_text() == DONE
    assert rewritten.code == odd.code, rewritten.err
    assert "defect" not in checked.err + rewritten.err
    assert odd.said in rewritten.err
    if odd.said != REWRITTEN and "read-only" not in odd.said:
        assert odd.said in checked.err
    for path, data in before.items():
        assert (path.read_bytes() == data) is (odd.said != REWRITTEN)
    undone = run("undo")
    assert undone.code == 0
    assert (here / "good.py").read_text() == GOOD
    assert not list(here.glob(".fsdp-migrate-*"))


ALONE = {name: odd for name, odd in ODD.items() if odd.code and "read-only" not in odd.said}


@pytest.mark.parametrize("odd", ALONE.values(), ids=ALONE)
def test_what_cannot_be_read_is_not_said_to_have_nothing(
    odd: Odd, here: Path, run: Command
) -> None:
    odd.make(here)
    skip_where_all_may_be_read(odd)
    for form in ("full", "concise", "github", "markdown", "html"):
        answer = run("check", "--format", form, ".")
        assert answer.code == 2
        assert "no FSDP1 found" not in answer.out
    assert "1 file could not be read" in run("check", ".").out


def test_a_patch_names_undecodable_bytes_as_git_does(here: Path, run: Command) -> None:
    undecodable_name(here)
    patch = os.fsencode(run("rewrite", "--dry-run", ".").out)
    assert b'+++ "b/odd\\377.py"\n' in patch
    subprocess.run(["git", "apply", "-p1"], input=patch, check=True, cwd=here)
    assert Path(os.fsdecode(os.fsencode(here) + b"/odd\xff.py")).read_text() == DONE


def test_what_a_killed_process_left_goes_with_the_next_run(here: Path, run: Command) -> None:
    subprocess.run(["git", "init", "-q"], check=True, cwd=here)
    (here / "good.py").write_text(GOOD)
    run("rewrite", ".")
    for command in (["undo"], ["rewrite", "."], ["rewrite", "."]):
        left = here / ".fsdp-migrate-abcdefgh"
        left.mkdir()
        (left / ".gitignore").write_text("*\n")
        (left / "new").write_text("half")
        status = ["git", "status", "--porcelain", "--untracked-files=all"]
        seen = subprocess.run(status, check=True, cwd=here, capture_output=True).stdout
        assert b".fsdp-migrate" not in seen
        run(*command)
        assert not left.exists(), command
    mine = here / ".fsdp-migrate-mine"
    mine.mkdir()
    (mine / "notes").write_text("")
    run("rewrite", ".")
    assert mine.exists()


def test_the_page_has_a_row_for_each() -> None:
    inputs = PAGE.read_text().partition("\n## ")[0]
    rows = re.findall(r"(?m)^\| (.+?) \| (.+?) \| (\d) \|$", inputs)
    assert rows == [
        (name, f"`{o.said}`" if o.said else "rewritten as any other, or passed over", str(o.code))
        for name, o in ODD.items()
    ]
