"""Store what the tool makes of its inputs, and compare with what it makes now.

A record is a directory: ``digests.txt`` has a line for each output, ``contents.zip`` the outputs by
their digests, so that a difference can be shown, and ``about.json`` what it was made with.
"""

from __future__ import annotations

import difflib
import gc
import hashlib
import json
import multiprocessing
import os
import platform
import shutil
import sys
import tempfile
import time
import zipfile
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from importlib import metadata
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import Any
from unittest import mock

from tests.ruler import package
from tests.ruler.inputs import Input, matches
from tests.ruler.running import INPUT, outputs

LIBRARIES = ("libcst", "packaging", "pathspec", "rich", "typer")
SHOWN = 20  # differences of which an excerpt is printed

Tell = Callable[[str], None]


@dataclass(frozen=True)
class Made:
    """What the tool made of one input."""

    given: Input
    outputs: Mapping[str, bytes]
    seconds: float


def record(directory: Path, inputs: Sequence[Input], *, only: str | None, jobs: int) -> Clock:
    """Write the record of ``inputs``."""
    directory.mkdir(parents=True, exist_ok=True)
    (directory / ".gitignore").write_text("*\n")
    clock, digests = Clock(), {}
    contents = directory / "contents.zip"
    unfinished = contents.with_suffix(".unfinished")
    with zipfile.ZipFile(unfinished, "w", zipfile.ZIP_DEFLATED) as archive:
        for made in clock.timed(run(inputs, jobs)):
            for name, data in made.outputs.items():
                digest = _digest(data)
                if digest not in archive.NameToInfo:
                    archive.writestr(digest, data)
                digests[made.given.name, name] = digest
    unfinished.replace(contents)
    lines = ("\t".join((digest, *key)) for key, digest in sorted(digests.items()))
    text = "".join(f"{line}\n" for line in lines)
    (directory / "digests.txt").write_text(text, encoding="utf-8", errors="surrogateescape")
    made_with = json.dumps({"only": only, "made with": _made_with()}, indent=1)
    (directory / "about.json").write_text(f"{made_with}\n")
    return clock


def about(directory: Path) -> dict[str, Any]:
    """What a record was made with, and of which inputs."""
    try:
        found: dict[str, Any] = json.loads((directory / "about.json").read_text())
    except FileNotFoundError:
        sys.exit(f"{directory}: no record; make one with python -m tests.ruler record")
    return found


def compare(
    directory: Path, inputs: Sequence[Input], *, only: str | None, jobs: int, tell: Tell = print
) -> Compared:
    """Run over ``inputs`` again and tell what is not as it was recorded."""
    now = _made_with()
    for what, version in about(directory)["made with"].items():
        if now[what] != version:
            tell(f"note: recorded with {what} {version}, compared with {now[what]}")
    recorded = _digests(directory)
    compared = Compared(missing=[name for name in recorded if matches(name, only)])
    with zipfile.ZipFile(directory / "contents.zip") as archive:
        for made in compared.clock.timed(run(inputs, jobs)):
            name = made.given.name
            if name not in recorded:
                compared.different[name] += 1
                tell(f"{name}: is not in the record")
                continue
            compared.missing.remove(name)
            old, new = recorded[name], {n: _digest(data) for n, data in made.outputs.items()}
            for what in sorted({*old, *new}, key=lambda n: (n != INPUT, n)):
                if old.get(what) == new.get(what):
                    continue
                tell(f"{name}: {what}")
                if compared.different.total() < SHOWN:
                    before = archive.read(old[what]) if what in old else None
                    for line in excerpt(before, made.outputs.get(what)):
                        tell(f"    {line}")
                compared.different[name] += 1
    return compared


def _digests(directory: Path) -> dict[str, dict[str, str]]:
    """Input -> output -> digest."""
    recorded: dict[str, dict[str, str]] = {}
    text = (directory / "digests.txt").read_text(encoding="utf-8", errors="surrogateescape")
    for line in text.split("\n")[:-1]:
        digest, given, name = line.split("\t")
        recorded.setdefault(given, {})[name] = digest
    return recorded


def excerpt(before: bytes | None, after: bytes | None, most: int = 16) -> list[str]:
    """The first lines of the difference between two outputs."""
    if before is None or after is None:
        return ["is new" if before is None else "is not made any more"]
    told = list(difflib.unified_diff(_lines(before), _lines(after), "recorded", "now", n=2))
    more = [f"... {len(told) - most} more lines"] if len(told) > most else []
    return [line.rstrip("\n") for line in told[:most]] + more


def _lines(data: bytes) -> list[str]:
    """Lines in which every byte can be told from every other."""
    text = data.decode("utf-8", "backslashreplace")
    shown = [line.replace("\r", "\\r").replace("\t", "\\t") for line in text.split("\n")]
    return [f"{line}\n" for line in shown[:-1]] + [f"{shown[-1]}\\ no newline"] * bool(shown[-1])


def _digest(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def _made_with() -> dict[str, str]:
    return {"Python": platform.python_version()} | {n: metadata.version(n) for n in LIBRARIES}


# -- running --------------------------------------------------------------------------------------


def run(inputs: Sequence[Input], jobs: int) -> Iterator[Made]:
    """What the tool makes of each input, in a process of its own, as they come."""
    environment = {
        "PATH": os.environ.get("PATH", os.defpath),
        "NO_COLOR": "1",
        "TERM": "xterm",
        "COLUMNS": "100",
        "LC_ALL": "C.UTF-8",
        "GIT_CONFIG_NOSYSTEM": "1",
    }
    context = multiprocessing.get_context("fork")
    with tempfile.TemporaryDirectory(prefix="ruler-") as made:
        top = Path(made).resolve()
        for name in ("pyproject.toml", ".git"):
            found = [d / name for d in (top, *top.parents) if (d / name).exists()]
            if found:
                sys.exit(f"{found[0]}: temporary files must not lie in a project; set TMPDIR")
        with mock.patch.dict(os.environ, environment | {"HOME": made}, clear=True):
            package.warm_up()
            running: dict[Connection, tuple[Input, multiprocessing.Process]] = {}
            waiting = list(reversed(list(enumerate(inputs))))
            while waiting or running:
                while waiting and len(running) < jobs:
                    number, given = waiting.pop()
                    ours, theirs = context.Pipe(duplex=False)
                    arguments = (given, top / f"{number:05}", theirs)
                    process = context.Process(target=_make, args=arguments)
                    process.start()
                    theirs.close()
                    running[ours] = given, process
                for ours in wait(list(running)):
                    given, process = running.pop(ours)
                    try:
                        yield Made(given, *ours.recv())
                    except EOFError:
                        process.join()
                        sys.exit(f"{given.name}: its process ended with {process.exitcode}")
                    process.join()


def _make(given: Input, scratch: Path, theirs: Connection) -> None:
    gc.disable()  # the process ends before its memory does
    os.umask(0o022)
    scratch.mkdir()
    found = outputs(given, scratch)
    os.chdir("/")
    shutil.rmtree(scratch)
    theirs.send((found, sum(os.times()[:4])))


@dataclass
class Clock:
    """How many inputs and outputs each part has, and how long a processor works on it."""

    inputs: Counter[str] = field(default_factory=Counter)
    outputs: Counter[str] = field(default_factory=Counter)
    seconds: Counter[str] = field(default_factory=Counter)
    whole: float = 0.0

    def timed(self, every: Iterable[Made]) -> Iterator[Made]:
        started = time.perf_counter()
        for made in every:
            part = made.given.part
            self.inputs[part] += 1
            self.outputs[part] += len(made.outputs)
            self.seconds[part] += made.seconds
            yield made
        self.whole = time.perf_counter() - started

    def table(self) -> str:
        rows = [(part, self.outputs[part], self.seconds[part]) for part in self.inputs]
        lines = [f"{p:<10}{self.inputs[p]:>6} inputs{n:>8} outputs{s:>8.1f} s" for p, n, s in rows]
        totals = f"{self.inputs.total():>6} inputs{self.outputs.total():>8} outputs"
        return "\n".join([*lines, f"{'in all':<10}{totals}{self.whole:>8.1f} s"])


@dataclass
class Compared:
    """What a comparison found: differences by input, and what was recorded and not compared."""

    missing: list[str]
    different: Counter[str] = field(default_factory=Counter)
    clock: Clock = field(default_factory=Clock)

    @property
    def equal(self) -> bool:
        """Whether everything that was recorded is as it was, and nothing is new."""
        return not (self.missing or self.different)

    @property
    def verdict(self) -> str:
        if self.equal:
            return "no difference"
        found = f"{self.different.total()} differences in {len(self.different)} inputs"
        return f"{found}, {len(self.missing)} inputs not compared"
