"""``python -m fsdp_migrate`` and the ``fsdp-migrate`` script."""

from __future__ import annotations

import io
import os
import sys

TRACEBACK = "FSDP_MIGRATE_TRACEBACK"


def main() -> None:
    """Run the command line; whatever goes wrong ends in a sentence and exit code 2."""
    # A terminal that cannot show a character is no reason to fail.
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")
    try:
        code = run(sys.argv[1:])
        sys.stdout.flush()
    except BrokenPipeError:  # fsdp-migrate check . | head
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(1)
    except KeyboardInterrupt:
        sys.stderr.write("interrupted\n")
        sys.exit(2)
    except Exception as error:
        if os.environ.get(TRACEBACK):
            raise
        sys.stderr.write(f"error: {defect(error)}\n")
        sys.exit(2)
    sys.exit(code)


def run(arguments: list[str]) -> int:
    """The exit code of a command. What needs no parser does not wait for typer to load."""
    match arguments:
        case ["-V" | "--version"]:
            from fsdp_migrate import __version__, ui

            ui.out(f"fsdp-migrate {__version__}")
            return 0
        case ["explain", *topic] if len(topic) < 2 and not "".join(topic).startswith("-"):
            from fsdp_migrate import commands_light

            return commands_light.explain(topic[0] if topic else None)
        case ["check", *paths] if paths and not any(path.startswith("-") for path in paths):
            from pathlib import Path

            from fsdp_migrate import commands

            return commands.check([Path(path) for path in paths])
    from fsdp_migrate import cli

    return cli.run(arguments)


def defect(error: Exception) -> str:
    """What an exception that nobody expected looks like: one line, not a trace."""
    import traceback

    frame = traceback.extract_tb(error.__traceback__)[-1]
    return (
        f"{frame.filename}:{frame.lineno}: {type(error).__name__}: {error} (this is a defect of "
        f"fsdp-migrate, please report it; {TRACEBACK}=1 shows the traceback)"
    )


if __name__ == "__main__":
    if not sys.flags.safe_path:
        # -m puts the working directory first, where a user's file may be called like a library.
        del sys.path[0]
    main()
