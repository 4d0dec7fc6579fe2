"""The command line, on typer: options in, exit code out. No logic lives here.

Exit codes are the same for every command: 0 nothing to do or all good; 1 something to see (would
change, sites left, parity failed); 2 bad input or a failure of ours.
"""

from collections.abc import Callable, Iterable, Sequence
from copy import copy
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Annotated, Any, cast

import typer
from typer.core import TyperCommand
from typer.main import get_group
from typer.models import CommandInfo

from fsdp_migrate import __version__
from fsdp_migrate.cli import console
from fsdp_migrate.cli.exit_codes import BAD

NAME = "fsdp-migrate"

# What click raises for wrong usage, which typer has under no name of its own in every version.
_UsageError = cast("type[Exception]", typer.BadParameter.__base__)


def run(arguments: Sequence[str]) -> int:
    """Run one command; the exit code. What is wrong with its options is said in one line."""
    known = {info.callback.__name__: info for info in app.registered_commands if info.callback}
    named = known.get(arguments[0]) if arguments else None
    # To read the options of every command takes longer than to look for FSDP1 in most projects.
    program = get_group(_with([named] if named else map(_without_options, known.values())))
    outer = typer.Context(program, info_name=NAME, **program.context_settings)
    if not arguments:
        console.note(outer.get_help())
        return BAD
    first, *rest = arguments
    command = program.commands.get(first)
    if command is None and not first.startswith("-"):
        import difflib

        near = difflib.get_close_matches(first, program.commands, n=1)
        hint = f"did you mean {near[0]}?" if near else f"see {NAME} --help"
        console.problem(f"no command {first!r}; {hint}")
        return BAD
    # Not main(): it has opinions of its own on interruptions and closed pipes. And not by way of
    # the program when there is a command: typer would load pydantic for the program's options.
    try:
        if command is None:
            with program.make_context(NAME, list(arguments)) as context:
                return int(program.invoke(context))
        with command.make_context(first, rest, parent=outer) as context:
            return int(command.invoke(context))
    except typer.Exit as stop:
        return stop.exit_code
    except _UsageError as error:
        where = outer.command_path if command is None else f"{outer.command_path} {first}"
        console.problem(f"{_one_line(error)} (see {where} --help)")
        return BAD


def _with(commands: Iterable[CommandInfo]) -> typer.Typer:
    """The program with some commands."""
    made = copy(app)
    made.registered_commands = list(commands)
    return made


def _without_options(command: CommandInfo) -> CommandInfo:
    """A command as the program's own help lists it: its name and what it does."""

    def listed() -> None:
        """Nothing is run by it."""

    assert command.callback is not None
    listed.__name__, listed.__doc__ = command.callback.__name__, command.callback.__doc__
    made = copy(command)
    made.callback = listed
    return made


def _one_line(error: Any) -> str:
    said = " ".join(error.format_message().split()).rstrip(".")
    return said[:1].lower() + said[1:]


# --- how options are read ------------------------------------------------------------------------


def _split(arguments: Sequence[str]) -> tuple[list[str], list[str]]:
    """What stands before and after the first ``--``."""
    listed = list(arguments)
    end = listed.index("--") if "--" in listed else len(listed)
    return listed[:end], listed[end + 1 :]


@dataclass(frozen=True)
class _Reader:
    """Makes the value of an option from words, in the place of typer's ``RuntimeParam``."""

    read: Callable[[Any], Any]

    def coerce(self, value: Any, param: Any, ctx: Any) -> Any:
        if param.multiple or param.nargs == -1:
            return [self.read(each) for each in value] if value is not None else ()
        return None if value is None else self.read(value)


def _read_by_hand(param: Any) -> None:
    """Words, paths and what has a parser need no pydantic, on which typer would spend more time
    than a run on a project without FSDP1 takes. Another release of typer may not ask here."""
    descriptor = getattr(param, "type_descriptor", None)
    if descriptor is None or getattr(param, "_runtime_param", param) is not None:
        return
    kind = descriptor.annotation
    kind = kind.__args__[0] if getattr(kind, "__origin__", None) is list else kind
    read = descriptor.parameter_info.parser or (kind if kind in (bool, str, Path) else None)
    if read is not None:
        param._runtime_param = _Reader(read)


class _Command(TyperCommand):
    """A command whose options never take another option, or ``--``, for their value."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        for param in self.get_params(ctx):
            _read_by_hand(param)
        own, rest = _split(args)
        options = [p for p in self.get_params(ctx) if p.param_type_name == "option"]
        names = {name for p in options for name in (*p.opts, *p.secondary_opts)}
        valued = {name for p in options if not getattr(p, "is_flag", False) for name in p.opts}
        for option, value in pairwise([*own, "--"]):
            if option in valued and (value == "--" or value.partition("=")[0] in names):
                ctx.fail(f"option {option} needs a value")
        separated: list[str] = []
        for word in own:  # click would read -o=FILE as a file called =FILE
            short = word[:2] in valued and word[2:3] == "="
            separated += (word[:2], word[3:]) if short else (word,)
        return self.read(ctx, separated, rest)

    def read(self, ctx: Any, own: list[str], rest: list[str]) -> list[str]:
        return super().parse_args(ctx, [*own, "--", *rest])

    def format_options(self, ctx: Any, formatter: Any) -> None:
        """As in click, but an argument is a PATH and not a ``PATH <list[Path]>``."""
        for kind in ("argument", "option"):
            params = [p for p in self.get_params(ctx) if p.param_type_name == kind]
            records = filter(None, (p.get_help_record(ctx) for p in params))
            if rows := [(name.partition(" <")[0], text) for name, text in records]:
                with formatter.section(f"{kind.title()}s"):
                    formatter.write_dl(rows)


class _Verify(_Command):
    """What stands after ``--`` is for the script, and only that."""

    def read(self, ctx: Any, own: list[str], rest: list[str]) -> list[str]:
        super().read(ctx, own, [])
        ctx.args = rest
        return rest

    def collect_usage_pieces(self, ctx: Any) -> list[str]:
        return [*super().collect_usage_pieces(ctx), "[-- ARGUMENT...]"]


def _number(kind: type, low: float = float("-inf"), high: float = float("inf")) -> Any:
    def parse(given: Any) -> Any:
        try:
            value = kind(given)
        except ValueError:
            what = "a whole number" if kind is int else "a number"
            raise typer.BadParameter(f"{given!r} is not {what}") from None
        if not low <= value <= high:
            raise typer.BadParameter(f"{given} is not between {low:g} and {high:g}")
        return value

    return parse


def _one_of(*allowed: str) -> Callable[[str], str]:
    def parse(given: str) -> str:
        if given not in allowed:
            raise typer.BadParameter(f"{given!r} is none of {', '.join(allowed)}")
        return given

    return parse


def _codes(given: Iterable[str] | None) -> list[str]:
    """``FSDP101,FSDP2`` -> both, however often the option was given."""
    words = (word.strip() for text in given or () for word in text.split(","))
    return [word for word in words if word]


def _option(*names: str, metavar: str | None = None, help: str, parser: Any = None) -> Any:
    """An option whose text says its default."""
    return typer.Option(*names, metavar=metavar, help=help, parser=parser, show_default=False)


def _argument(metavar: str, help: str) -> Any:
    return typer.Argument(metavar=metavar, help=help, show_default=False)


Paths = Annotated[list[Path], _argument("PATH", "files and directories")]
Select = Annotated[
    list[str] | None,
    _option(
        "--select",
        metavar="CODE",
        help="only these rules: codes or their beginnings, with commas or repeated",
    ),
]
Ignore = Annotated[
    list[str] | None,
    _option(
        "--ignore",
        metavar="CODE",
        help="not these rules: codes or their beginnings, with commas or repeated",
    ),
]
Target = Annotated[
    str | None,
    _option(
        "--target-torch",
        metavar="VERSION",
        help="oldest torch the new code must run on [what the project requires, or 2.7]",
    ),
]
Jobs = Annotated[
    int | None,
    _option(
        "--jobs",
        metavar="N",
        help="processes for large trees; 1 is this one alone [one per core]",
        parser=_number(int, 1),
    ),
]
TrustRules = Annotated[
    bool,
    _option(
        "--trust-rules",
        help="run the Python rules in the directories that the project's rule-paths name [only "
        "if your own configuration trusts the project]",
    ),
]
Quiet = Annotated[bool, _option("-q", "--quiet", help="only the exit code, and errors")]

# --- the commands --------------------------------------------------------------------------------

app = typer.Typer(
    name=NAME,
    help="Take a PyTorch code base from FSDP1 (FullyShardedDataParallel) to FSDP2 (fully_shard), "
    "and prove that it still trains the same.",
    epilog="Exit codes: 0 nothing to do or all good; 1 something to see; 2 bad input or our "
    "failure.",
    subcommand_metavar="COMMAND ...",
    add_completion=False,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)


def _version(wanted: bool) -> None:
    if wanted:
        console.out(f"{NAME} {__version__}")
        raise typer.Exit


@app.callback()
def _program(
    version: Annotated[
        bool,
        typer.Option("-V", "--version", help="show the version", callback=_version, is_eager=True),
    ] = False,
) -> None:
    pass


@app.command(cls=_Command)
def rewrite(
    paths: Paths,
    dry_run: Annotated[
        bool, _option("--dry-run", help="write nothing: print one patch that git apply accepts")
    ] = False,
    select: Select = None,
    ignore: Ignore = None,
    target_torch: Target = None,
    jobs: Jobs = None,
    allow_dirty: Annotated[
        bool, _option("--allow-dirty", help="also change files with uncommitted changes")
    ] = False,
    partial: Annotated[
        bool,
        _option(
            "--partial",
            help="where a site that is left would make a migrated model train or save wrongly, "
            "migrate the rest and raise an error at the site [leave that model FSDP1]",
        ),
    ] = False,
    review: Annotated[
        bool,
        _option(
            "--review",
            help="ask for every change whether to take it, as git add -p does; a migration is "
            "taken whole or not at all",
        ),
    ] = False,
    verbose: Annotated[
        bool, _option("-v", "--verbose", help="list every site, not only those for you")
    ] = False,
    quiet: Quiet = False,
    trust_rules: TrustRules = False,
) -> int:
    """Rewrite FSDP1 into FSDP2 in place."""
    from fsdp_migrate.cli.rewrite import rewrite as command

    return command(
        paths,
        dry_run=dry_run,
        select=_codes(select),
        ignore=_codes(ignore),
        target=target_torch,
        jobs=jobs,
        allow_dirty=allow_dirty,
        partial=partial,
        review=review,
        verbose=verbose,
        quiet=quiet,
        trust_rules=trust_rules,
    )


@app.command(cls=_Command)
def check(
    paths: Paths,
    format_: Annotated[
        str | None,
        _option(
            "--format",
            metavar="NAME",
            help="full, concise, json, github, sarif, markdown or html [what the suffix of the "
            "output file says, else full]",
        ),
    ] = None,
    output: Annotated[
        Path | None, _option("-o", "--output", metavar="FILE", help="write the report to a file")
    ] = None,
    select: Select = None,
    ignore: Ignore = None,
    target_torch: Target = None,
    jobs: Jobs = None,
    min_coverage: Annotated[
        float | None,
        _option(
            "--min-coverage",
            metavar="PERCENT",
            help="fail only when less than this share of the sites could be rewritten",
            parser=_number(float, 0, 100),
        ),
    ] = None,
    statistics: Annotated[
        bool, _option("--statistics", help="only the number of sites per rule")
    ] = False,
    exit_zero: Annotated[
        bool, _option("--exit-zero", help="exit 0 even when there is FSDP1")
    ] = False,
    quiet: Quiet = False,
    trust_rules: TrustRules = False,
) -> int:
    """Say what is left of FSDP1 and what it would become."""
    from fsdp_migrate.cli.check import check as command

    return command(
        paths,
        format_=format_,
        output=output,
        select=_codes(select),
        ignore=_codes(ignore),
        target=target_torch,
        jobs=jobs,
        min_coverage=min_coverage,
        statistics=statistics,
        exit_zero=exit_zero,
        quiet=quiet,
        trust_rules=trust_rules,
    )


@app.command(cls=_Command)
def explain(
    topic: Annotated[
        str | None,
        _argument("TOPIC", "a rule's code, an FSDP1 name, or a place such as train.py:41"),
    ] = None,
    trust_rules: TrustRules = False,
) -> int:
    """Show the page of a rule; alone, the table of rules."""
    from fsdp_migrate.cli.explain import explain as command

    return command(topic, trust_rules=trust_rules)


@app.command(cls=_Command)
def undo(
    paths: Annotated[
        list[Path] | None,
        _argument("PATH", "a file or directory of the project [here]; others it was run with"),
    ] = None,
) -> int:
    """Put the last rewrite back."""
    from fsdp_migrate.cli.undo import undo as command

    return command(paths or [Path()])


@app.command(
    cls=_Verify,
    short_help="Train before and after, compare, and give one verdict. Runs your script.",
    epilog="After -- come the arguments for the script.",
)
def verify(
    context: typer.Context,
    script: Annotated[
        str | None,
        _argument(
            "SCRIPT",
            "the training script, or module:pkg.name for python -m; without one, the functions "
            "in [tool.fsdp-migrate.verify] are trained",
        ),
    ] = None,
    before: Annotated[
        str | None,
        _option(
            "--before",
            metavar="TREE",
            help="the FSDP1 version: a directory or a git revision [here]",
        ),
    ] = None,
    after: Annotated[
        str | None,
        _option(
            "--after",
            metavar="TREE",
            help="the migrated version, likewise [a rewritten scratch copy; with a revision as "
            "--before, the working tree]",
        ),
    ] = None,
    nproc: Annotated[
        str | None,
        _option("--nproc", metavar="N", help="ranks; 1,2,4 gives a table of world sizes [2]"),
    ] = None,
    steps: Annotated[
        int | None,
        _option(
            "--steps", metavar="N", help="optimizer steps to compare [10]", parser=_number(int)
        ),
    ] = None,
    seed: Annotated[
        int | None,
        _option("--seed", metavar="N", help="seed of scripts that set none", parser=_number(int)),
    ] = None,
    timeout: Annotated[
        float,
        _option(
            "--timeout",
            metavar="SECONDS",
            help="without any progress, what counts as a hang [120]",
            parser=_number(float),
        ),
    ] = 120.0,
    launcher: Annotated[
        str,
        _option(
            "--launcher",
            metavar="COMMAND",
            help="torchrun, python (for scripts that make their own ranks), fork (from one warm "
            "process), or a command line such as 'srun -n 8' [what suits script and machine]",
        ),
    ] = "auto",
    python: Annotated[
        str | None,
        _option("--python", metavar="PATH", help="interpreter of the project [this one]"),
    ] = None,
    device: Annotated[
        str,
        _option(
            "--device",
            metavar="auto|native|simulate",
            help="simulate: imitate CUDA and NCCL on CPUs; auto: only for a script that fails for "
            "want of a GPU [auto]",
            parser=_one_of("auto", "native", "simulate"),
        ),
    ] = "auto",
    precision: Annotated[
        str,
        _option(
            "--precision",
            metavar="both|native",
            help="both: 16-bit programs are also compared in float32; native: only as they are "
            "[both]",
            parser=_one_of("both", "native"),
        ),
    ] = "both",
    resume_check: Annotated[
        str | None,
        _option(
            "--resume-check",
            metavar="ARGUMENTS",
            help="compare checkpoints as well: what makes the script resume from one that it "
            "writes within the steps, as in --resume-check='--resume out/last.pt'",
        ),
    ] = None,
    timing: Annotated[
        bool,
        _option(
            "--timing",
            help="run both once more, unrecorded, and report step times and peak memory",
        ),
    ] = False,
    twin: Annotated[
        bool,
        _option(
            "--twin/--no-twin", help="measure the noise floor with a twin of the original [yes]"
        ),
    ] = True,
    cache: Annotated[
        bool,
        _option(
            "--cache/--no-cache",
            help="reuse recordings of an unchanged original; data outside its tree must be "
            "unchanged too [no]",
        ),
    ] = False,
    env: Annotated[
        list[str] | None,
        _option("--env", metavar="NAME=VALUE", help="for every run; repeatable"),
    ] = None,
    share: Annotated[
        list[str] | None,
        _option(
            "--share",
            metavar="PATH",
            help="large data in the tree, to be linked to instead of copied; repeatable",
        ),
    ] = None,
    keep: Annotated[
        Path | None,
        _option("--keep", metavar="DIR", help="keep recordings and logs in this directory"),
    ] = None,
    format_: Annotated[
        str,
        _option("--format", metavar="NAME", help="text, json, junit, markdown or html [text]"),
    ] = "text",
    output: Annotated[
        list[Path] | None,
        _option(
            "-o",
            "--output",
            metavar="FILE",
            help="write the report to a file as well, as its suffix says (.txt, .json, .xml, .md, "
            ".html); repeatable",
        ),
    ] = None,
    quiet: Annotated[bool, _option("-q", "--quiet", help="only the verdict")] = False,
    trust_rules: TrustRules = False,
) -> int:
    """Train before and after, compare, and give one verdict. Runs your script."""
    from fsdp_migrate.cli import verify as verification

    return verification.command(
        verification.Asked(
            script=script,
            args=tuple(context.args),
            before=before,
            after=after,
            nproc=nproc,
            steps=steps,
            timeout=timeout,
            seed=seed,
            launcher=launcher,
            python=python,
            device=device,
            precision=precision,
            twin=twin,
            resume=resume_check,
            timing=timing,
            cache=cache,
            env=tuple(env or ()),
            share=tuple(share or ()),
            keep=keep,
            format_=format_,
            outputs=tuple(output or ()),
            quiet=quiet,
            trust_rules=trust_rules,
        )
    )
