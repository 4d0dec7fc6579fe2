"""The command line: words in, exit code out. No logic lives here.

typer finds options and arguments among the words and writes the help texts. What a word means is
said by the options themselves (``options.py``): typer would load pydantic to read a value, which
takes longer than a run on a project without FSDP1.

Exit codes are the same for every command: 0 nothing to do or all good; 1 something to see (would
change, sites left, parity failed); 2 bad input or a failure of ours.
"""

import os
from collections.abc import Callable, Sequence
from dataclasses import MISSING
from functools import cached_property
from importlib import import_module
from inspect import Parameter, Signature
from itertools import pairwise
from typing import Annotated, Any

import typer
from typer.core import TyperCommand
from typer.main import get_command

from fsdp_migrate import __version__, shown
from fsdp_migrate.cli import console, options
from fsdp_migrate.cli.exit_codes import BAD
from fsdp_migrate.errors import InputError
from fsdp_migrate.options import Option, options_of

NAME = "fsdp-migrate"
COMPLETE = "_FSDP_MIGRATE_COMPLETE"
# Each is carried out by the function of this name in the module of this name.
COMMANDS: dict[str, type] = {
    "rewrite": options.Rewrite,
    "check": options.Check,
    "explain": options.Explain,
    "undo": options.Undo,
    "verify": options.Verify,
    "migrate": options.Migrate,
}


def run(arguments: Sequence[str]) -> int:
    """Run one command; the exit code. What is wrong with its options is said in one line."""
    program: Any = get_command(app)
    if COMPLETE in os.environ:  # a shell asks what may stand next
        program.main(prog_name=NAME, args=list(arguments), complete_var=COMPLETE)
    outer = typer.Context(program, info_name=NAME, **program.context_settings)
    if not arguments:
        console.note(outer.get_help())
        return BAD
    first, *rest = arguments
    if first not in COMMANDS and not first.startswith("-"):
        import difflib

        near = difflib.get_close_matches(first, COMMANDS, n=1)
        hint = f"did you mean {near[0]}?" if near else f"see {NAME} --help"
        console.problem(f"no command {first!r}; {hint}")
        return BAD
    # Not main(): it has opinions of its own on interruptions and closed pipes. And not by way of
    # the program when there is a command: typer would load pydantic for the program's options.
    try:
        if first in COMMANDS:
            command = program.commands[first]
            with command.make_context(first, rest, parent=outer) as context:
                return int(command.invoke(context))
        with program.make_context(NAME, list(arguments)) as context:
            return int(program.invoke(context))
    except typer.Exit as stop:
        return stop.exit_code
    except InputError as error:
        console.problem(str(error))
        return BAD
    except Exception as error:
        # Wrong usage, for which not every release of typer has a public class.
        if not hasattr(error, "format_message"):
            raise
        said = " ".join(error.format_message().split()).rstrip(".")
        where = f"{NAME} {first}" if first in COMMANDS else NAME
        console.problem(f"{said[:1].lower()}{said[1:]} (see {where} --help)")
        return BAD


# --- how words are read --------------------------------------------------------------------------


class _Command(TyperCommand):
    """A command whose options never take another option, or ``--``, for their value."""

    @cached_property
    def known(self) -> dict[str, Option]:
        """Its options by the names of their fields."""
        return {field.name: option for field, option in options_of(COMMANDS[str(self.name)])}

    @cached_property
    def takes_rest(self) -> bool:
        """Whether what stands after ``--`` is for a program, and only that."""
        return hasattr(COMMANDS[str(self.name)], "args")

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        end = args.index("--") if "--" in args else len(args)
        own, rest = args[:end], args[end + 1 :]
        names, valued = set(ctx.help_option_names), set()
        for option in self.known.values():
            named = {name for pair in option.names for name in pair.split("/")}
            names |= named
            valued |= named if option.metavar else set()
        for word, value in pairwise([*own, "--"]):
            if word in valued and (value == "--" or value.partition("=")[0] in names):
                ctx.fail(f"option {word} needs a value")
        separated: list[str] = []
        for word in own:  # typer would read -o=FILE as a file called =FILE
            short = word[:2] in valued and word[2:3] == "="
            separated += (word[:2], word[3:]) if short else (word,)
        if self.takes_rest:
            ctx.params["args"], rest = tuple(rest), []
        given, unexpected, order = self.make_parser(ctx).parse_args([*separated, "--", *rest])
        said = list(dict.fromkeys(order))
        if any(param.name not in self.known for param in said):  # the one that typer adds
            typer.echo(ctx.get_help())
            ctx.exit()
        for param in said:
            self._read(ctx, param, given[param.name])
        if unexpected:
            words = " ".join(map(shown.line, unexpected))
            ctx.fail(f"Got unexpected extra argument(s) ({words})")
        return []

    def _read(self, ctx: Any, param: Any, given: Any) -> None:
        """Put the value of what was given into the context."""
        option = self.known[param.name]
        # For an argument that is not there, releases of typer have several values.
        if not isinstance(given, bool | str | list | tuple) or given == ():
            if param.required:
                ctx.fail(f"Missing argument '{option.metavar}'")
            return
        try:
            ctx.params[param.name] = option.read(given)
        except ValueError as error:
            raise typer.BadParameter(str(error), ctx=ctx, param=param) from None

    def invoke(self, ctx: Any) -> int:
        name = str(self.name)
        work = getattr(import_module(f"fsdp_migrate.cli.{name}"), name)
        return int(work(COMMANDS[name](**ctx.params)))

    def format_options(self, ctx: Any, formatter: Any) -> None:
        """As typer does it, but an argument is a PATH and not a ``PATH <list[str]>``."""
        for kind in ("argument", "option"):
            params = [p for p in self.get_params(ctx) if p.param_type_name == kind]
            records = filter(None, (p.get_help_record(ctx) for p in params))
            if rows := [(name.partition(" <")[0], text) for name, text in records]:
                with formatter.section(f"{kind.title()}s"):
                    formatter.write_dl(rows)

    def collect_usage_pieces(self, ctx: Any) -> list[str]:
        rest = ["[-- ARGUMENT...]"] if self.takes_rest else []
        return [*super().collect_usage_pieces(ctx), *rest]


# --- what typer is told --------------------------------------------------------------------------

app = typer.Typer(
    name=NAME,
    help="Take a PyTorch code base from FSDP1 (FullyShardedDataParallel) to FSDP2 (fully_shard), "
    "and prove that it still trains the same.",
    epilog="Exit codes: 0 nothing to do or all good; 1 something to see; 2 bad input or our "
    "failure.",
    subcommand_metavar="COMMAND ...",
    add_completion=True,
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


def _signature(kind: type) -> Callable[..., None]:
    """A function with the options of a command for parameters, which is what typer reads."""

    def command(**_: object) -> None:
        """It is never called: see ``_Command.invoke``."""

    parameters = []
    for field, option in options_of(kind):
        said: dict[str, Any] = {"help": option.help, "metavar": option.metavar}
        make = typer.Option if option.names else typer.Argument
        type_: Any = list[str] if option.repeated else str if option.metavar else bool
        default = None if option.metavar else bool(field.default)
        required = field.default is MISSING and field.default_factory is MISSING
        parameters.append(
            Parameter(
                field.name,
                Parameter.KEYWORD_ONLY,
                default=Parameter.empty if required else default,
                annotation=Annotated[type_, make(*option.names, **said, show_default=False)],
            )
        )
    command.__signature__ = Signature(parameters)  # type: ignore[attr-defined]
    return command


for _name, _kind in COMMANDS.items():
    # typer would make its own short text of a help text by cutting it after one sentence.
    _said: dict[str, Any] = {"help": _kind.__doc__, "short_help": _kind.__doc__}
    if hasattr(_kind, "args"):
        _said["epilog"] = "After -- come the arguments for the script."
    app.command(_name, cls=_Command, **_said)(_signature(_kind))
