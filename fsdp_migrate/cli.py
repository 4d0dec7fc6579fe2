"""The command line: options in, exit code out. No logic lives here.

Exit codes are the same for every command: 0 nothing to do or all good; 1 something to see (would
change, sites left, parity failed); 2 bad input or a failure of ours.

NOTE TO THE ENGINEER EDITING THIS FILE, FROM THE LEAD: typer is prescribed by the client and must
stay the command-line library (dependencies in pyproject.toml too). Go back to typer for parsing;
a light path for --help/--version/explain before typer is imported is fine. Remove this note then.
"""

from __future__ import annotations

import argparse
import difflib
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NoReturn

from fsdp_migrate import __version__, ui

GOOD, BAD = 0, 2
NAME = "fsdp-migrate"
PURPOSE = """\
Take a PyTorch code base from FSDP1 (FullyShardedDataParallel) to FSDP2 (fully_shard), and prove
that it still trains the same."""
CODES = "Exit codes: 0 nothing to do or all good; 1 something to see; 2 bad input or our failure."


def run(arguments: Sequence[str]) -> int:
    """Run one command; the exit code. ``--help`` and wrong usage raise SystemExit, as argparse."""
    first = arguments[0] if arguments else None
    if first in {"-V", "--version"}:
        ui.out(f"{NAME} {__version__}")
        return GOOD
    if first in {"-h", "--help"}:
        ui.out(_help())
        return GOOD
    if first is None:
        ui.note(_help().rstrip("\n"))
        return BAD
    command = COMMANDS.get(first)
    if command is None:
        what = "option" if first.startswith("-") else "command"
        near = difflib.get_close_matches(first, COMMANDS, n=1)
        hint = f"did you mean {near[0]}?" if near else f"see {NAME} --help"
        ui.problem(f"no {what} {first!r}; {hint}")
        return BAD
    return command(arguments[1:])


def rewrite(arguments: Sequence[str]) -> int:
    """Rewrite FSDP1 into FSDP2 in place."""
    parser = _Parser("rewrite", rewrite.__doc__)
    parser.paths()
    parser.flag("--dry-run", "write nothing: print one patch that git apply accepts")
    parser.rules()
    parser.flag("--allow-dirty", "also change files with uncommitted changes")
    parser.flag("--verbose", "list every site, not only those for you", short="-v")
    parser.flag("--quiet", "only the exit code, and errors", short="-q")
    given = parser.given(arguments)

    from fsdp_migrate import commands

    return commands.rewrite(
        given.paths,
        dry_run=given.dry_run,
        select=given.select,
        ignore=given.ignore,
        target=given.target_torch,
        allow_dirty=given.allow_dirty,
        verbose=given.verbose,
        quiet=given.quiet,
    )


def check(arguments: Sequence[str]) -> int:
    """Say what is left of FSDP1 and what it would become."""
    parser = _Parser("check", check.__doc__)
    parser.paths()
    parser.option("--format", "NAME", "full, concise, json or github [full]", default="full")
    parser.option("--output", "FILE", "write the report to a file", short="-o", type=Path)
    parser.rules()
    parser.option(
        "--min-coverage",
        "PERCENT",
        "fail only when less than this share of the sites could be rewritten",
        type=_percent,
    )
    parser.flag("--statistics", "only the number of sites per rule")
    parser.flag("--exit-zero", "exit 0 even when there is FSDP1")
    parser.flag("--quiet", "only the exit code, and errors", short="-q")
    given = parser.given(arguments)

    from fsdp_migrate import commands

    return commands.check(
        given.paths,
        format_=given.format,
        output=given.output,
        select=given.select,
        ignore=given.ignore,
        target=given.target_torch,
        min_coverage=given.min_coverage,
        statistics=given.statistics,
        exit_zero=given.exit_zero,
        quiet=given.quiet,
    )


def explain(arguments: Sequence[str]) -> int:
    """Show the page of a rule; alone, the table of rules."""
    parser = _Parser("explain", explain.__doc__)
    parser.add_argument(
        "topic", nargs="?", help="a rule's code, an FSDP1 name, or a place such as train.py:41"
    )
    given = parser.parse_args(arguments)

    from fsdp_migrate import commands_light

    return commands_light.explain(given.topic)


def undo(arguments: Sequence[str]) -> int:
    """Put the last rewrite back."""
    parser = _Parser("undo", undo.__doc__)
    parser.add_argument(
        "path",
        nargs="?",
        type=Path,
        default=Path(),
        help="a file or directory of the project [here]",
    )
    given = parser.parse_args(arguments)

    from fsdp_migrate import commands_light

    return commands_light.undo(given.path)


def verify(arguments: Sequence[str]) -> int:
    """Train before and after, compare, and give one verdict. Runs your script."""
    own, passed_on = _split(arguments)
    parser = _Parser("verify", verify.__doc__)
    parser.usage = f"{NAME} verify [options] [SCRIPT] [-- ARGUMENT ...]"
    parser.epilog = "After -- come the arguments for the script."
    parser.add_argument(
        "script",
        metavar="SCRIPT",
        nargs="?",
        help="the training script, or module:pkg.name for python -m; without one, the functions "
        "in [tool.fsdp-migrate.verify] are trained",
    )
    parser.option("--before", "TREE", "the FSDP1 version: a directory or a git revision [here]")
    parser.option(
        "--after",
        "TREE",
        "the migrated version, likewise [a rewritten scratch copy; with a revision as --before, "
        "the working tree]",
    )
    parser.option("--nproc", "N", "ranks; 1,2,4 gives a table of world sizes [2]")
    parser.option("--steps", "N", "optimizer steps to compare [10]", type=int)
    parser.option("--seed", "N", "seed of scripts that set none", type=int)
    parser.option(
        "--timeout",
        "SECONDS",
        "without any progress, what counts as a hang [120]",
        type=float,
        default=120.0,
    )
    parser.option(
        "--launcher",
        "COMMAND",
        "torchrun, python (for scripts that make their own ranks), fork (from one warm process), "
        "or a command line such as 'srun -n 8' [what suits script and machine]",
        default="auto",
    )
    parser.option("--python", "PATH", "interpreter of the project [this one]")
    parser.add_argument(
        "--device",
        choices=("auto", "native", "simulate"),
        default="auto",
        help="simulate: imitate CUDA and NCCL on CPUs; auto: only for a script that fails for want "
        "of a GPU [auto]",
    )
    parser.add_argument(
        "--precision",
        choices=("both", "native"),
        default="both",
        help="both: 16-bit programs are also compared in float32; native: only as they are [both]",
    )
    parser.option(
        "--resume-check",
        "ARGUMENTS",
        "compare checkpoints as well: what makes the script resume from one that it writes within "
        "the steps, as in --resume-check='--resume out/last.pt'",
    )
    parser.negatable("--twin", "measure the noise floor with a twin of the original", default=True)
    parser.negatable(
        "--cache",
        "reuse recordings of an unchanged original; data outside its tree must be unchanged too",
        default=False,
    )
    parser.add_argument(
        "--env",
        metavar="NAME=VALUE",
        action="append",
        default=[],
        help="for every run; repeatable",
    )
    parser.add_argument(
        "--share",
        metavar="PATH",
        action="append",
        default=[],
        help="large data in the tree, to be linked to instead of copied; repeatable",
    )
    parser.option("--keep", "DIR", "keep recordings and logs in this directory", type=Path)
    parser.option("--format", "NAME", "text, json, junit, markdown or html [text]", default="text")
    parser.add_argument(
        "-o",
        "--output",
        metavar="FILE",
        action="append",
        default=[],
        type=Path,
        help="write the report to a file as well, as its suffix says (.txt, .json, .xml, .md, "
        ".html); repeatable",
    )
    parser.flag("--quiet", "only the verdict", short="-q")
    given = parser.parse_intermixed_args(own)

    from fsdp_migrate import verification

    return verification.command(
        verification.Asked(
            script=given.script,
            args=passed_on,
            before=given.before,
            after=given.after,
            nproc=given.nproc,
            steps=given.steps,
            timeout=given.timeout,
            seed=given.seed,
            launcher=given.launcher,
            python=given.python,
            device=given.device,
            precision=given.precision,
            twin=given.twin,
            resume=given.resume_check,
            cache=given.cache,
            env=given.env,
            share=given.share,
            keep=given.keep,
            format_=given.format,
            outputs=given.output,
            quiet=given.quiet,
        )
    )


COMMANDS: dict[str, Callable[[Sequence[str]], int]] = {
    "rewrite": rewrite,
    "check": check,
    "explain": explain,
    "undo": undo,
    "verify": verify,
}


def _help() -> str:
    listed = "\n".join(f"  {name:<9} {command.__doc__}" for name, command in COMMANDS.items())
    return f"""\
usage: {NAME} COMMAND ...

{PURPOSE}

commands:
{listed}

options:
  -h, --help     show this, or after a command its options
  -V, --version  show the version

{CODES}
"""


def _split(arguments: Sequence[str]) -> tuple[list[str], list[str]]:
    """What stands before and after the first ``--``."""
    listed = list(arguments)
    end = listed.index("--") if "--" in listed else len(listed)
    return listed[:end], listed[end + 1 :]


def _codes(text: str) -> list[str]:
    """``FSDP101,FSDP2`` -> both."""
    return [code for code in (part.strip() for part in text.split(",")) if code]


def _percent(text: str) -> float:
    value = float(text)
    if not 0 <= value <= 100:
        raise argparse.ArgumentTypeError(f"{text} is not between 0 and 100")
    return value


class _Parser(argparse.ArgumentParser):
    """The options of one command. What is wrong with them is said in one line."""

    def __init__(self, command: str, purpose: str | None) -> None:
        super().__init__(prog=f"{NAME} {command}", description=purpose, allow_abbrev=False)

    def error(self, message: str) -> NoReturn:
        ui.problem(f"{message} (see {self.prog} --help)")
        sys.exit(BAD)

    def paths(self) -> None:
        self.add_argument(
            "paths", metavar="PATH", nargs="*", type=Path, help="files and directories"
        )

    def given(self, arguments: Sequence[str]) -> argparse.Namespace:
        """Options and paths in any order; what stands after ``--`` is a path."""
        own, paths = _split(arguments)
        found = self.parse_intermixed_args(own)
        found.paths += map(Path, paths)
        if not found.paths:
            self.error("give at least one PATH")
        return found

    def rules(self) -> None:
        for name, what in (("--select", "only"), ("--ignore", "not")):
            self.add_argument(
                name,
                metavar="CODE",
                action="extend",
                type=_codes,
                default=[],
                help=f"{what} these rules: codes or their beginnings, with commas or repeated",
            )
        self.option(
            "--target-torch",
            "VERSION",
            "oldest torch the new code must run on [what the project requires, or 2.7]",
        )

    def flag(self, name: str, text: str, *, short: str = "") -> None:
        self.add_argument(*filter(None, (short, name)), action="store_true", help=text)

    def negatable(self, name: str, text: str, *, default: bool) -> None:
        self.add_argument(
            name,
            action=argparse.BooleanOptionalAction,
            default=default,
            help=f"{text} [{'yes' if default else 'no'}]",
        )

    def option(
        self,
        name: str,
        metavar: str,
        text: str,
        *,
        short: str = "",
        type: Callable[[str], object] = str,
        default: object = None,
    ) -> None:
        self.add_argument(
            *filter(None, (short, name)), metavar=metavar, type=type, default=default, help=text
        )
