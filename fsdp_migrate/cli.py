"""The command line: options in, exit code out. No logic lives here.

Exit codes are the same for every command: 0 nothing to do or all good; 1 something to see (would
change, sites left, parity failed); 2 bad input or a failure of ours.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from fsdp_migrate import __version__

if TYPE_CHECKING:
    pass

app = typer.Typer(
    name="fsdp-migrate",
    help="Take a PyTorch code base from FSDP1 (FullyShardedDataParallel) to FSDP2 (fully_shard), "
    "and prove that it still trains the same.",
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)

Paths = Annotated[list[Path], typer.Argument(help="Files and directories.", show_default=False)]
Select = Annotated[
    list[str] | None, typer.Option("--select", help="Only these rules (code or prefix).")
]
Ignore = Annotated[
    list[str] | None, typer.Option("--ignore", help="Not these rules (code or prefix).")
]
Target = Annotated[
    str | None,
    typer.Option(
        "--target-torch", help="Oldest torch the new code must run on. [default: the project's]"
    ),
]


def _version(value: bool | None) -> None:
    if value:
        typer.echo(f"fsdp-migrate {__version__}")
        raise typer.Exit


@app.callback()
def main(
    version: Annotated[
        bool | None,
        typer.Option("--version", "-V", callback=_version, is_eager=True, help="Show the version."),
    ] = None,
) -> None:
    """Commands work on files and directories; nothing is ever imported or run but by verify."""


@app.command()
def rewrite(
    paths: Paths,
    dry_run: Annotated[
        bool,
        typer.Option("--dry-run", help="Write nothing: print one patch that git apply accepts."),
    ] = False,
    select: Select = None,
    ignore: Ignore = None,
    target_torch: Target = None,
    allow_dirty: Annotated[
        bool, typer.Option("--allow-dirty", help="Also change files with uncommitted changes.")
    ] = False,
    verbose: Annotated[
        bool, typer.Option("--verbose", "-v", help="List every site, not only those for you.")
    ] = False,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="Only the exit code.")] = False,
) -> None:
    """Rewrite FSDP1 into FSDP2 in place."""
    from fsdp_migrate import commands

    raise typer.Exit(
        commands.rewrite(
            paths,
            dry_run=dry_run,
            select=select or (),
            ignore=ignore or (),
            target=target_torch,
            allow_dirty=allow_dirty,
            verbose=verbose,
            quiet=quiet,
        )
    )


@app.command()
def check(
    paths: Paths,
    format_: Annotated[
        str, typer.Option("--format", help="full, concise, json or github.")
    ] = "full",
    output: Annotated[
        Path | None, typer.Option("--output", "-o", help="Write the report to a file.")
    ] = None,
    select: Select = None,
    ignore: Ignore = None,
    target_torch: Target = None,
    min_coverage: Annotated[
        float | None,
        typer.Option(
            "--min-coverage",
            min=0,
            max=100,
            help="Fail only when less than this share of the sites could be rewritten, in %.",
        ),
    ] = None,
    statistics: Annotated[
        bool, typer.Option("--statistics", help="Only the number of sites per rule.")
    ] = False,
    exit_zero: Annotated[
        bool, typer.Option("--exit-zero", help="Exit 0 even when there is FSDP1.")
    ] = False,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="Only the exit code.")] = False,
) -> None:
    """Say what is left of FSDP1 and what it would become."""
    from fsdp_migrate import commands

    raise typer.Exit(
        commands.check(
            paths,
            format_=format_,
            output=output,
            select=select or (),
            ignore=ignore or (),
            target=target_torch,
            min_coverage=min_coverage,
            statistics=statistics,
            exit_zero=exit_zero,
            quiet=quiet,
        )
    )


@app.command()
def explain(
    topic: Annotated[
        list[str] | None,
        typer.Argument(help="A rule's code, an FSDP1 name, or a place such as train.py:41."),
    ] = None,
) -> None:
    """Show the page of a rule; alone, the table of rules."""
    from fsdp_migrate import commands_light

    raise typer.Exit(commands_light.explain(topic or []))


@app.command()
def undo(
    path: Annotated[Path, typer.Argument(help="Where the last rewrite ran.")] = Path(),
) -> None:
    """Put the last rewrite back."""
    from fsdp_migrate import commands_light

    raise typer.Exit(commands_light.undo(path))


@app.command(context_settings={"ignore_unknown_options": False})
def verify(
    script: Annotated[
        str, typer.Argument(help="The training script, or module:pkg.name for python -m.")
    ],
    args: Annotated[
        list[str] | None, typer.Argument(help="After --: arguments for the script.")
    ] = None,
    before: Annotated[
        Path | None, typer.Option("--before", help="Tree of the FSDP1 version. [default: here]")
    ] = None,
    after: Annotated[
        Path | None,
        typer.Option(
            "--after", help="Tree of the migrated version. [default: a rewritten scratch copy]"
        ),
    ] = None,
    nproc: Annotated[int, typer.Option("--nproc", help="Ranks.")] = 2,
    steps: Annotated[int, typer.Option("--steps", help="Optimizer steps to compare.")] = 10,
    timeout: Annotated[
        float, typer.Option("--timeout", help="Seconds without progress that count as a hang.")
    ] = 120.0,
    seed: Annotated[
        int | None, typer.Option("--seed", help="Seed of scripts that set none.")
    ] = None,
    env: Annotated[
        list[str] | None, typer.Option("--env", help="NAME=VALUE for both runs.")
    ] = None,
    keep: Annotated[
        Path | None, typer.Option("--keep", help="Keep recordings and logs in this directory.")
    ] = None,
    format_: Annotated[str, typer.Option("--format", help="text or json.")] = "text",
    output: Annotated[
        Path | None, typer.Option("--output", "-o", help="Write the report to a file as well.")
    ] = None,
) -> None:
    """Train before and after, compare, and give one verdict. Runs your script."""
    from fsdp_migrate import verification

    raise typer.Exit(
        verification.command(
            script,
            args=args or [],
            before=before,
            after=after,
            nproc=nproc,
            steps=steps,
            timeout=timeout,
            seed=seed,
            env=env or [],
            keep=keep,
            format_=format_,
            output=output,
        )
    )
