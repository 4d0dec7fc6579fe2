"""How programs are run: the options of ``verify`` that a plan takes over as they are."""

from __future__ import annotations

import os
import shlex
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated

from fsdp_migrate.errors import ConfigError
from fsdp_migrate.options import number, one_of, option

DEVICES = ("auto", "native", "simulate")
PRECISIONS = ("both", "native")

ALL_STEPS = 10**9
"""As a number of steps: the whole program."""

LEAST_STEPS, MOST_STEPS = 10, 100
"""Of a program of which nobody said how many steps to compare."""


def _cache_folder(wanted: bool) -> Path | None:
    """Where recordings are kept for later runs."""
    if not wanted:
        return None
    home = os.environ.get("XDG_CACHE_HOME")
    return (Path(home) if home else Path.home() / ".cache") / "fsdp-migrate" / "verify"


def _words(text: str) -> tuple[str, ...]:
    try:
        return tuple(shlex.split(text))
    except ValueError as error:
        raise ConfigError(f"--resume-check {text!r} cannot be read: {error}") from None


def _environment(pairs: Sequence[str]) -> dict[str, str]:
    found = {}
    for pair in pairs:
        name, equals, value = pair.partition("=")
        if not equals or not name:
            raise ConfigError(f"--env must be NAME=VALUE, not {pair!r}")
        found[name] = value
    return found


@dataclass(frozen=True, kw_only=True)
class Settings:
    """The only list of these options: the command line and :class:`Plan` both derive from it."""

    args: tuple[str, ...] = ()
    """Arguments for the script: on the command line, what stands after ``--``."""
    seed: Annotated[
        int, option("--seed", metavar="N", help="seed of scripts that set none", read=number(int))
    ] = 20240601
    """Rank r starts with ``seed + 1000 * r``."""
    timeout: Annotated[
        float,
        option(
            "--timeout",
            metavar="SECONDS",
            help="without any progress, what counts as a hang [120]",
            read=number(float),
        ),
    ] = 120.0
    """Progress is a collective, a backward, an optimizer step or output, on any rank. A migrated
    run is given less once it trains: ten times the slowest gap seen in the original, but never
    under thirty seconds."""
    launcher: Annotated[
        str,
        option(
            "--launcher",
            metavar="COMMAND",
            help="torchrun, python (for scripts that make their own ranks), fork (from one warm "
            "process), or a command line such as 'srun -n 8' [what suits script and machine]",
        ),
    ] = "auto"
    python: Annotated[
        str,
        option(
            "--python",
            metavar="PATH",
            help="interpreter of the project [this one]",
            read=lambda path: path or sys.executable,
        ),
    ] = sys.executable
    """It must have torch."""
    device: Annotated[
        str,
        option(
            "--device",
            metavar="|".join(DEVICES),
            help="simulate: imitate CUDA and NCCL on CPUs; auto: only for a script that fails for "
            "want of a GPU [auto]",
            read=one_of(*DEVICES),
        ),
    ] = "auto"
    precision: Annotated[
        str,
        option(
            "--precision",
            metavar="|".join(PRECISIONS),
            help="both: 16-bit programs are also compared in float32; native: only as they are "
            "[both]",
            read=one_of(*PRECISIONS),
        ),
    ] = "both"
    """In float32, differences are not hidden by rounding."""
    resume: Annotated[
        tuple[str, ...] | None,
        option(
            "--resume-check",
            metavar="ARGUMENTS",
            help="compare checkpoints as well: what makes the script resume from one that it "
            "writes within the steps, as in --resume-check='--resume out/last.pt'",
            read=_words,
        ),
    ] = None
    """They are added to ``args``."""
    to_the_end: Annotated[
        bool,
        option(
            "--to-the-end",
            help="after the steps that are compared both run on to their end, unrecorded: crashes, "
            "hangs, exit status and final parameters",
        ),
    ] = False
    timing: Annotated[
        bool,
        option(
            "--timing",
            help="run both once more, unrecorded, and report step times and peak memory",
        ),
    ] = False
    twin: Annotated[
        bool,
        option(
            "--twin/--no-twin", help="measure the noise floor with a twin of the original [yes]"
        ),
    ] = True
    """The twin is the original with rounding-size noise."""
    cache: Annotated[
        Path | None,
        option(
            "--cache/--no-cache",
            help="reuse recordings of an unchanged original; data outside its tree must be "
            "unchanged too [no]",
            read=_cache_folder,
        ),
    ] = None
    """The folder of recordings, which are looked up by content."""
    env: Annotated[
        Mapping[str, str],
        option(
            "--env",
            metavar="NAME=VALUE",
            help="for every run; repeatable",
            read=_environment,
            repeated=True,
        ),
    ] = field(default_factory=dict)
    share: Annotated[
        tuple[str, ...],
        option(
            "--share",
            metavar="PATH",
            help="large data in the tree, to be linked to instead of copied; repeatable",
            read=tuple,
            repeated=True,
        ),
    ] = ()
    keep: Annotated[
        Path | None,
        option(
            "--keep",
            metavar="DIR",
            help="keep recordings and logs in this directory",
            read=Path,
        ),
    ] = None
