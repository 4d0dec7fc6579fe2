"""The options of every command, which takes them whole. Nothing heavy is imported here.

Fields stand in the order of the help text; of several bases, those of the last one come first.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from fsdp_migrate.cli.shared_options import (
    Configs,
    Ignore,
    Jobs,
    Leave,
    Partial,
    Paths,
    Quiet,
    Select,
    Target,
    TrustRules,
    as_paths,
)
from fsdp_migrate.errors import ConfigError
from fsdp_migrate.options import argument, number, option
from fsdp_migrate.verify.settings import ALL_STEPS, Settings

SCREEN = Path("-")  # standard output in the place of a file


def _ranks(text: str) -> tuple[int, ...]:
    """``1,2,4`` -> the three, each once."""
    if not re.fullmatch(r"(\d+(,\d+)*)?", text):
        raise ConfigError(f"--nproc must be a number, or several as in 1,2,4; not {text!r}")
    return tuple(dict.fromkeys(int(word) for word in text.split(",") if word))


def _steps(text: str) -> int:
    steps: int = ALL_STEPS if text == "all" else number(int)(text)
    return steps


@dataclass(frozen=True, kw_only=True)
class Rewrite:
    """Rewrite FSDP1 into FSDP2 in place."""

    paths: Paths
    dry_run: Annotated[
        bool, option("--dry-run", help="write nothing: print one patch that git apply accepts")
    ] = False
    select: Select = ()
    ignore: Ignore = ()
    leave: Leave = ()
    target: Target = None
    jobs: Jobs = None
    configs: Configs = None
    allow_dirty: Annotated[
        bool, option("--allow-dirty", help="also change files with uncommitted changes")
    ] = False
    partial: Partial = None
    hazards: Annotated[
        bool,
        option(
            "--hazards",
            help="also put right what is wrong in code that uses FSDP2, where one form is surely "
            "right (FSDP9); check marks these places with [*]",
        ),
    ] = False
    review: Annotated[
        bool,
        option(
            "--review",
            help="ask for every change whether to take it, as git add -p does; a migration is "
            "taken whole or not at all",
        ),
    ] = False
    format: Annotated[
        bool,
        option(
            "--format",
            help="run the project's own formatter, ruff or black, on the files that are changed",
        ),
    ] = False
    summary: Annotated[
        Path | None,
        option(
            "--summary",
            metavar="FILE",
            help="write the description of a pull request, in Markdown; - is standard output, in "
            "the place of all else that is written there",
            read=Path,
        ),
    ] = None
    verdict: Annotated[
        Path | None,
        option(
            "--verdict",
            metavar="FILE",
            help="what verify -o verdict.json wrote, for the summary",
            read=Path,
        ),
    ] = None
    verbose: Annotated[
        bool, option("-v", "--verbose", help="list every site, not only those for you")
    ] = False
    quiet: Quiet = False
    trust_rules: TrustRules = False


@dataclass(frozen=True, kw_only=True)
class Check:
    """Say what is left of FSDP1 and what it would become."""

    paths: Annotated[
        Sequence[Path],
        argument(
            "PATH",
            "files and directories, or - for standard input [here]",
            read=as_paths,
            repeated=True,
        ),
    ] = (Path(),)
    format: Annotated[
        str | None,
        option(
            "--format",
            metavar="NAME",
            help="full, concise, json, github, sarif, markdown or html [what the suffix of the "
            "output file says, else full]",
        ),
    ] = None
    outputs: Annotated[
        tuple[Path, ...],
        option(
            "-o",
            "--output",
            metavar="FILE",
            help="write the report to a file, as its suffix says (.json, .sarif, .md, .html), and "
            "not to the screen; repeatable",
            read=as_paths,
            repeated=True,
        ),
    ] = ()
    select: Select = ()
    ignore: Ignore = ()
    leave: Leave = ()
    target: Target = None
    jobs: Jobs = None
    configs: Configs = None
    partial: Partial = None
    min_coverage: Annotated[
        float | None,
        option(
            "--min-coverage",
            metavar="PERCENT",
            help="fail only when less than this share of the sites could be rewritten",
            read=number(float, 0, 100),
        ),
    ] = None
    notes: Annotated[
        bool,
        option("--notes", help="also what may be wrong in code that uses FSDP2, or may not"),
    ] = False
    statistics: Annotated[
        bool, option("--statistics", help="only the number of sites per rule")
    ] = False
    exit_zero: Annotated[bool, option("--exit-zero", help="exit 0 even when there is FSDP1")] = (
        False
    )
    quiet: Quiet = False
    trust_rules: TrustRules = False


@dataclass(frozen=True, kw_only=True)
class Explain:
    """Show the page of a rule; alone, the table of rules."""

    topic: Annotated[
        str | None,
        argument("TOPIC", "a rule's code, an FSDP1 name, or a place such as train.py:41"),
    ] = None
    trust_rules: TrustRules = False


@dataclass(frozen=True, kw_only=True)
class Undo:
    """Put the last rewrite back."""

    paths: Annotated[
        Sequence[Path],
        argument(
            "PATH",
            "a directory of the project [here], and others it was run with; or files: nothing but "
            "these is put back",
            read=as_paths,
            repeated=True,
        ),
    ] = (Path(),)
    force: Annotated[
        bool,
        option("--force", help="also put back what was changed since, and lose those changes"),
    ] = False


@dataclass(frozen=True, kw_only=True)
class _Program:
    """Which programs are compared."""

    script: Annotated[
        str | None,
        argument(
            "SCRIPT",
            "the training script, or module:pkg.name for python -m; without one, the functions "
            "in [tool.fsdp-migrate.verify] are trained",
        ),
    ] = None
    before: Annotated[
        str | None,
        option(
            "--before",
            metavar="TREE",
            help="the FSDP1 version: a directory or a git revision [here]",
        ),
    ] = None
    after: Annotated[
        str | None,
        option(
            "--after",
            metavar="TREE",
            help="the migrated version, likewise [a rewritten scratch copy; with a revision as "
            "--before, the working tree]",
        ),
    ] = None


@dataclass(frozen=True, kw_only=True)
class Extent(Settings):
    """How programs are run, and how far."""

    nproc: Annotated[
        tuple[int, ...],
        option(
            "--nproc",
            metavar="N",
            help="ranks; 1,2,4 gives a table of world sizes [2]",
            read=_ranks,
        ),
    ] = ()
    steps: Annotated[
        int | None,
        option(
            "--steps",
            metavar="N|all",
            help="optimizer steps to compare, or all of them [10, and up to 100 while the original "
            "trains no longer than 5 seconds]",
            read=_steps,
        ),
    ] = None


@dataclass(frozen=True, kw_only=True)
class _Answer:
    """How the verdict is shown."""

    format: Annotated[
        str,
        option("--format", metavar="NAME", help="text, json, junit, markdown or html [text]"),
    ] = "text"
    outputs: Annotated[
        tuple[Path, ...],
        option(
            "-o",
            "--output",
            metavar="FILE",
            help="write the report to a file as well, as its suffix says (.txt, .json, .xml, .md, "
            ".html); repeatable",
            read=as_paths,
            repeated=True,
        ),
    ] = ()
    observed: Annotated[
        Path | None,
        option(
            "--observed",
            metavar="FILE",
            help="save as JSON what the original did with FSDP1: places, arguments, units",
            read=Path,
        ),
    ] = None
    fsdp2_config: Annotated[
        Path | None,
        option(
            "--fsdp2-config",
            metavar="FILE",
            help="write the original's units as MindSpeed-MM's FSDP2 reads them; a file that is "
            "there is held against them",
            read=Path,
        ),
    ] = None
    strict_cost: Annotated[
        bool,
        option(
            "--strict-cost",
            help="exit 1 also for the same training at another cost: other units, other gathers",
        ),
    ] = False
    quiet: Annotated[bool, option("-q", "--quiet", help="only the verdict")] = False
    trust_rules: TrustRules = False


@dataclass(frozen=True, kw_only=True)
class Verify(_Answer, Extent, _Program):
    """Train before and after, compare, and give one verdict. Runs your script."""


def _seconds(text: str) -> float:
    """``90``, ``90s``, ``10m``, ``1.5h`` -> seconds."""
    found = re.fullmatch(r"(\d+(?:\.\d+)?)([smh]?)", text)
    if found is None:
        raise ConfigError(f"--budget must be a time such as 90s, 10m or 1h, not {text!r}")
    return float(found[1]) * {"": 1, "s": 1, "m": 60, "h": 3600}[found[2]]


@dataclass(frozen=True, kw_only=True)
class _Programs:
    """Which programs have to train the same."""

    scripts: Annotated[
        tuple[str, ...],
        argument(
            "SCRIPT",
            "training scripts, or module:pkg.name for python -m; all of them must train the same. "
            "Without one, the functions in [tool.fsdp-migrate.verify] are trained",
            read=tuple,
            repeated=True,
        ),
    ] = ()
    attempts: Annotated[
        int,
        option("--attempts", metavar="N", help="most migrations to train [8]", read=number(int, 1)),
    ] = 8
    budget: Annotated[
        float,
        option(
            "--budget",
            metavar="TIME",
            help="begin no attempt that would not be done within this time, as in 90s, 10m or 1h "
            "[no limit]",
            read=_seconds,
        ),
    ] = float("inf")
    anyway: Annotated[
        bool,
        option(
            "--anyway",
            help="write what was tried first where no attempt trained the same [nothing is "
            "written then]",
        ),
    ] = False
    dry_run: Annotated[
        bool, option("--dry-run", help="write nothing: print the patch of what passed")
    ] = False
    allow_dirty: Annotated[
        bool, option("--allow-dirty", help="also change files with uncommitted changes")
    ] = False
    target: Target = None
    outputs: Annotated[
        tuple[Path, ...],
        option(
            "-o",
            "--output",
            metavar="FILE",
            help="write the report to a file as well, as its suffix says (.txt, .json, .md, "
            ".html); repeatable",
            read=as_paths,
            repeated=True,
        ),
    ] = ()
    strict_cost: Annotated[
        bool,
        option("--strict-cost", help="the same training at another cost does not pass either"),
    ] = False
    quiet: Annotated[bool, option("-q", "--quiet", help="only the answer, and errors")] = False
    trust_rules: TrustRules = False


@dataclass(frozen=True, kw_only=True)
class Migrate(Extent, _Programs):
    """Rewrite, train before and after, and mend what differs, until it is the same training. Runs
    your scripts; only what trained the same is written."""
