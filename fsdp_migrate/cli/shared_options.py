"""Options that several commands have. Nothing heavy is imported here."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Annotated

from fsdp_migrate.options import Option, argument, number, option


def _codes(given: Iterable[str]) -> tuple[str, ...]:
    """``FSDP101,FSDP2`` -> both, however often the option was given."""
    words = (word.strip().upper() for text in given for word in text.split(","))
    return tuple(word for word in words if word)


def _rules(name: str, which: str) -> Option:
    help = f"{which} these rules: codes or their beginnings, with commas or repeated"
    return option(name, metavar="CODE", help=help, read=_codes, repeated=True)


def as_paths(given: Iterable[str]) -> tuple[Path, ...]:
    return tuple(map(Path, given))


Paths = Annotated[
    Sequence[Path], argument("PATH", "files and directories", read=as_paths, repeated=True)
]
Select = Annotated[tuple[str, ...], _rules("--select", "report and change only")]
Ignore = Annotated[tuple[str, ...], _rules("--ignore", "report nothing of")]
Leave = Annotated[tuple[str, ...], _rules("--leave", "leave as it is what belongs to")]
Target = Annotated[
    str | None,
    option(
        "--target-torch",
        metavar="VERSION",
        help="oldest torch the new code must run on [what the project requires, or 2.7]",
    ),
]
Jobs = Annotated[
    int | None,
    option(
        "--jobs",
        metavar="N",
        help="processes for large trees; 1 is this one alone [one per core]",
        read=number(int, 1),
    ),
]
Configs = Annotated[
    bool | None,
    option(
        "--configs/--no-configs",
        help="settings of frameworks, in YAML, JSON and shell scripts, too [configs]",
    ),
]
TrustRules = Annotated[
    bool,
    option(
        "--trust-rules",
        help="run the Python rules in the directories that the project's rule-paths name [only "
        "if your own configuration trusts the project]",
    ),
]
Partial = Annotated[
    bool | None,
    option(
        "--partial/--no-partial",
        help="where a site that is left would make a migrated model train or save wrongly, "
        "migrate the rest and raise an error at the site, or leave that model FSDP1 [partial]",
    ),
]
Quiet = Annotated[bool, option("-q", "--quiet", help="only the exit code, and errors")]
