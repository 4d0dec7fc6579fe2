"""What the ruler runs the tool over, and with which commands."""

from __future__ import annotations

import subprocess
import zipfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from functools import partial
from pathlib import Path

from tests.corpus import packages
from tests.ruler import odd, package

FIXTURES = Path(__file__).parents[2] / "fixtures"
TARGETS = ("2.7", "2.13")
FORMATS = ("full", "concise", "json", "github", "sarif", "markdown", "html")

LOOK = [
    *(f"check . @ --format {name}" for name in FORMATS),
    "check . @ --statistics",
    "rewrite . @ --dry-run -v",
    "rewrite . @ --dry-run --partial",
]
REWRITE = ["rewrite . @ -v", "check . @", "rewrite . @ -v"]  # the last finds nothing to do
UNDO = ["undo .", "rewrite . @ --partial", "check . @ --format json", "undo ."]
ALONE = [  # without a target
    "check .",
    "check . --quiet",
    "check . --format concise --exit-zero --jobs 1",
    "check . --min-coverage 90 --jobs 1",
    "check . -o report.html --jobs 1",
    "rewrite . --quiet",
    "undo",
]
COMMANDS = ("rewrite", "check", "explain", "undo", "verify")


@dataclass(frozen=True)
class Input:
    """A tree of files, and the commands that run over a fresh copy of it, in their order.

    Commands of a plan for a release of torch share what the engine answers to the same question;
    those of other plans are run from end to end.
    """

    name: str
    read: Callable[[], Mapping[str, bytes]]
    plans: Mapping[str, Sequence[str]]  # a release of torch, for ``@``, or another name -> commands

    @property
    def part(self) -> str:
        return self.name.partition("/")[0]


def every(home: Path, only: str | None = None) -> tuple[list[Input], list[str]]:
    """The inputs whose names begin like the pattern, those that take longest first; and what to
    tell about those that are missing. ``home`` is where wheels are kept.
    """
    notes: list[str] = []
    parts = corpus(home, only, notes), fixtures(), odd_inputs(), screens(), examples()
    return [each for part in parts for each in part if matches(each.name, only)], notes


def matches(name: str, only: str | None) -> bool:
    return only is None or fnmatchcase(name, f"{only}*")


def examples() -> Iterator[Input]:
    for ruled in package.rules():
        for title, sources in ruled.programs.items():
            files = {path: text.encode() for path, text in sources.items()}
            name = f"examples/{ruled.code}/{title}"
            yield Input(name, files.copy, dict.fromkeys(TARGETS, LOOK + REWRITE))


def fixtures() -> Iterator[Input]:
    everything = FIXTURES / "rewriting"
    plans = {"alone": ["rewrite . --target-torch 2.13 --jobs 2 -v"]}  # the dearest of all
    yield Input("fixtures/rewriting as one tree", partial(_below, everything), plans)
    befores = {*FIXTURES.glob("*/before"), *FIXTURES.glob("*/*/before")}
    directories = {before.parent: before for before in befores}
    directories |= {each: each for each in everything.iterdir() if each.is_dir()}
    directories[FIXTURES / "grouping"] = FIXTURES / "grouping"
    for named, directory in sorted(directories.items()):
        name = named.relative_to(FIXTURES).as_posix()
        plans = dict.fromkeys(TARGETS, LOOK + REWRITE + UNDO)
        alone = [*(f"explain {place}" for place in _places(directory)), *ALONE]
        read = partial(_below, directory)
        yield Input(f"fixtures/{name}", read, plans | {"alone": alone})


def _below(directory: Path) -> dict[str, bytes]:
    """The files of a directory; not what Python and the tools leave there."""
    return {
        path.relative_to(directory).as_posix(): path.read_bytes()
        for path in sorted(directory.rglob("*"))
        if path.is_file() and "__pycache__" not in path.parts
    }


def _places(directory: Path) -> Iterator[str]:
    """The first constructor of every file."""
    for path in sorted(directory.rglob("*.py")):
        lines = path.read_text(encoding="utf-8").splitlines()
        found = (number for number, line in enumerate(lines, 1) if "FSDP(" in line)
        yield from (f"{path.relative_to(directory)}:{number}" for number in list(found)[:1])


def corpus(home: Path, only: str | None, notes: list[str]) -> Iterator[Input]:
    """The pinned packages that are there or can be had."""
    pinned = {f"corpus/{p.name} {p.version}": p for p in packages.PINNED}
    wanted = {name: each for name, each in pinned.items() if matches(name, only)}
    wheels = packages.directory(home)
    if not all(packages.wheel(each, wheels) for each in wanted.values()):
        try:
            packages.download(home)
        except (OSError, subprocess.CalledProcessError) as error:
            notes.append(f"packages could not be downloaded: {error}")
    for name, each in wanted.items():
        wheel = packages.wheel(each, wheels)
        if wheel is None:
            notes.append(f"{name} is left out: there is no wheel")
        else:
            yield Input(name, partial(_unpacked, wheel), dict.fromkeys(TARGETS, LOOK + REWRITE))


def _unpacked(wheel: Path) -> dict[str, bytes]:
    with zipfile.ZipFile(wheel) as archive:
        return {
            entry.filename: archive.read(entry)
            for entry in archive.infolist()
            if not entry.is_dir()
        }


def odd_inputs() -> Iterator[Input]:
    for name, (files, more) in odd.INPUTS.items():
        plans = dict.fromkeys(TARGETS, LOOK + REWRITE + UNDO) | {"alone": ALONE}
        yield Input(f"odd/{name}", files.copy, plans)
        if more:
            yield Input(f"odd/{name}, more", files.copy, {"more": more})


def screens() -> Iterator[Input]:
    """What the tool says of itself."""
    for ruled in package.rules():
        pages = [f"explain {topic}" for topic in (ruled.code, *ruled.topics)]
        yield Input(f"screens/explain {ruled.code}", dict, {"alone": pages})
    helps = [
        "explain",
        "",
        "--help",
        "-h",
        "--version",
        *(f"{command} --help" for command in COMMANDS),
    ]
    yield Input("screens/help", dict, {"alone": helps + odd.USAGE})
