"""``python -m fsdp_migrate`` and the ``fsdp-migrate`` script."""

from __future__ import annotations

import gc
import os
import sys


def main() -> None:
    """Run the command line; whatever goes wrong ends in a sentence and exit code 2."""
    _leave_out_working_directory()
    from fsdp_migrate.cli import process

    gc.disable()  # what a run makes lives to its end, and looking through it takes long
    sys.exit(process.run_to_end(lambda: run(sys.argv[1:])))


def _leave_out_working_directory() -> None:
    """Import nothing of ours from where the user works.

    ``-m`` puts the working directory first, and so may an entry of PYTHONPATH; a file there may be
    called like a library.
    """
    try:
        here = os.path.realpath(os.getcwd())
    except OSError:  # it is gone, and with it what was there
        return
    named = os.environ.get("PYTHONPATH", "").split(os.pathsep)
    users = {real for real in map(os.path.realpath, named) if real.startswith(here + os.sep)}
    kept = {os.path.dirname(os.path.realpath(os.__file__))}

    def is_users(entry: str) -> bool:
        real = os.path.realpath(entry) if entry else here
        if real in kept or os.path.basename(real) in {"site-packages", "dist-packages"}:
            return False
        return real == here or real in users

    sys.path[:] = [entry for entry in sys.path if not is_users(entry)]


def run(arguments: list[str]) -> int:
    """The exit code of a command. What needs no parser does not wait for typer to load."""
    match arguments:
        case ["-V" | "--version"]:
            from fsdp_migrate import __version__
            from fsdp_migrate.cli import console

            console.out(f"fsdp-migrate {__version__}")
            return 0
        case ["explain", *topic] if len(topic) < 2 and not "".join(topic).startswith("-"):
            from fsdp_migrate.cli.explain import explain
            from fsdp_migrate.cli.options import Explain

            return explain(Explain(topic=topic[0] if topic else None))
        case ["check", *paths] if not any(path.startswith("-") for path in paths):
            from pathlib import Path

            from fsdp_migrate.cli.check import check
            from fsdp_migrate.cli.options import Check

            return check(Check(paths=[Path(path) for path in paths or (".",)]))
    from fsdp_migrate.cli import parser

    return parser.run(arguments)


if __name__ == "__main__":
    main()
