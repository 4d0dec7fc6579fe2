"""``python -m fsdp_migrate`` and the ``fsdp-migrate`` script."""

from __future__ import annotations

import os
import sys


def main() -> None:
    """Run the command line; whatever goes wrong ends in a sentence and exit code 2."""
    arguments = sys.argv[1:]
    try:
        if arguments[:1] == ["explain"] and not any(a.startswith("-") for a in arguments):
            # Typer loads pydantic to parse any command at all, which takes longer than the answer.
            from fsdp_migrate import commands_light

            sys.exit(commands_light.explain(arguments[1:]))
        from fsdp_migrate.cli import app

        app()
    except BrokenPipeError:  # fsdp-migrate check . | head
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(1)
    except KeyboardInterrupt:
        sys.stderr.write("interrupted: nothing was written\n")
        sys.exit(2)


if __name__ == "__main__":
    main()
