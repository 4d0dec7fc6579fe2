"""All that the ruler knows of the package. When modules move, this file follows, and no other."""

from __future__ import annotations

import io
import re
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import chdir, contextmanager
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any
from unittest import mock

from fsdp_migrate import __main__, __version__
from fsdp_migrate.cli import session
from fsdp_migrate.planning import rule

VERSION = __version__


@dataclass(frozen=True)
class Ruled:
    """What a rule shows of itself."""

    code: str
    topics: tuple[str, ...]  # the names of FSDP1 that it answers for
    programs: Mapping[str, Mapping[str, str]]  # title -> relative path -> source


@cache
def rules() -> list[Ruled]:
    """Every rule with its examples and with what it must keep."""
    return [_ruled(loaded) for loaded in rule.load().rules.values()]


def _ruled(loaded: rule.LoadedRule) -> Ruled:
    programs = {
        example.title: {
            "example.py": example.before,
            **{path: before for path, (before, _) in example.files.items()},
        }
        for example in loaded.examples
    }
    programs |= {keep.title: {"example.py": keep.source} for keep in loaded.keep}
    words = {word for construct in loaded.rule.handles for word in re.findall(r"\w+", construct)}
    return Ruled(loaded.code, tuple(sorted(words)), programs)


@dataclass(frozen=True)
class Answer:
    """What a command said."""

    code: int
    out: bytes
    err: bytes


class _Typed(io.StringIO):
    """Standard input on which somebody types."""

    def isatty(self) -> bool:
        return True


def command(arguments: Sequence[str], typed: str | None = None) -> Answer:
    """Run a command line in this process, as the installed script runs it.

    ``typed`` is what somebody answers at a terminal; without it there is no terminal.
    """
    out, err = io.BytesIO(), io.BytesIO()
    streams = {
        "stdin": io.StringIO() if typed is None else _Typed(typed),
        "stdout": io.TextIOWrapper(out, "utf-8", newline=""),
        "stderr": io.TextIOWrapper(err, "utf-8", newline="", write_through=True),
    }
    with mock.patch.multiple(sys, argv=["fsdp-migrate", *arguments], **streams):
        try:
            __main__.main()
            code = 0
        except SystemExit as stop:
            code = stop.code if isinstance(stop.code, int) else int(stop.code is not None)
        sys.stdout.flush()
    return Answer(code, out.getvalue(), err.getvalue())


def warm_up() -> None:
    """Load what processes that are forked from this one will need."""
    rules()
    with tempfile.TemporaryDirectory() as made, chdir(made):
        Path("example.py").write_text("from torch.distributed.fsdp import MixedPrecision\n")
        for line in (["check", "--format", "html"], ["rewrite", "--dry-run", "-v"]):
            command([*line, "example.py"])


@contextmanager
def shared_runs() -> Iterator[Callable[[], None]]:
    """Within it, commands that ask the engine the same question share one run of it.

    It gives a function that forgets the runs, for when a file was written.
    """
    real, known = session.run, {}

    def run(paths: Any, **options: Any) -> Any:
        question = repr((list(map(str, paths)), sorted(options.items())))
        if question not in known:
            known[question] = real(paths, **options)
        return known[question]

    with mock.patch.object(session, "run", run):
        yield known.clear
