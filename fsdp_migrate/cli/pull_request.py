"""``rewrite --summary``: the description of a pull request for what the run changes."""

from __future__ import annotations

import json
import re
import shlex
from dataclasses import replace
from pathlib import Path

from fsdp_migrate import report
from fsdp_migrate.cli import config, console, summary
from fsdp_migrate.cli.options import SCREEN, Rewrite
from fsdp_migrate.cli.session import Run
from fsdp_migrate.discovery import project_paths
from fsdp_migrate.errors import ConfigError, InputError
from fsdp_migrate.planning import pages
from fsdp_migrate.report.pull_request import Verdict, details, render

MOST_SCRIPTS = 3
_STARTS = re.compile(rb"""^if __name__ == ["']__main__["']""", re.MULTILINE)


def check_options(asked: Rewrite) -> Verdict | None:
    """The verdict that goes into the text, if there is one.

    Raises:
        InputError: the text cannot be written where it should be, or there is no verdict in the
            file.
    """
    if asked.summary is None:
        if asked.verdict is not None:
            raise ConfigError("--verdict goes into the text that --summary writes")
        return None
    if asked.summary != SCREEN:
        try:
            project_paths.check_output(asked.summary)
        except OSError as error:
            raise _unwritable(asked.summary, error) from None
        if not asked.summary.absolute().parent.is_dir():
            raise ConfigError(f"--summary {asked.summary}: {asked.summary.parent} is no directory")
    return read_verdict(asked.verdict) if asked.verdict is not None else None


def read_verdict(path: Path) -> Verdict:
    """What ``verify -o verdict.json`` wrote.

    Raises:
        InputError: it is something else.
    """
    from fsdp_migrate.verify.report.model import Verdict as Found

    try:
        said = json.loads(path.read_text(encoding="utf-8"))
        found = Found(said["verdict"])
        stamp = ", in a CPU simulation of CUDA" if said["simulated"] is True else ""
        title = f"{found.word}, {found.title}{stamp}"
        return Verdict(title, str(said["says"]), str(said["setting"]))
    except OSError as error:
        raise InputError(f"{path}: {error.strerror or error}") from None
    except (ValueError, KeyError, TypeError, RecursionError):
        raise InputError(
            f"{path}: is no verdict; fsdp-migrate verify SCRIPT -o verdict.json writes one"
        ) from None


def sections(run: Run) -> str:
    """What the text says of the code, for one that tells of the training by itself."""
    return "\n".join(details(*_facts(run))) + "\n"


def _facts(run: Run) -> tuple[list[report.Event], report.Summary, list[pages.Page]]:
    total = replace(summary.summary(run), contents=summary.contents(run))
    return report.events(run.result), total, pages.pages(run.config.rule_paths)


def write(run: Run, target: Path, verdict: Verdict | None) -> None:
    """Write the text to a file, or to standard output.

    Raises:
        InputError: it cannot be written.
    """
    text = render(*_facts(run), _commands(run), verdict)
    if target == SCREEN:
        console.out(text)
        return
    try:
        target.write_text(text, encoding="utf-8", errors="backslashreplace")
    except OSError as error:
        raise _unwritable(target, error) from None


def _unwritable(path: Path, error: OSError) -> InputError:
    return InputError(f"--summary {path}: {error.strerror or error}")


def _commands(run: Run) -> list[str]:
    """How the change can be verified: the project's own entry, else the scripts that it is in."""
    commit = revision(run.config.root)
    table = config.verify_table(run.config.root)
    if "model" in table and "shard" in table:
        programs = [""]
    else:
        programs = [f" {shlex.quote(run.found.display(path))}" for path in _scripts(run)]
        programs = programs or [" SCRIPT"]
    before = commit or "OLD_TREE"
    return [f"fsdp-migrate verify{program} --before {before}" for program in programs]


def _scripts(run: Run) -> list[Path]:
    """Files that start a program: changed ones, else those that may meet a migrated model."""
    scripts = [
        path
        for path, data in sorted(run.before.items())
        if path.suffix == ".py" and _STARTS.search(data) is not None
    ]
    changed = [path for path in scripts if path in run.result.changes]
    return (changed or scripts)[:MOST_SCRIPTS]


def revision(root: Path) -> str:
    """The commit that the change was made on; empty where nobody knows."""
    from fsdp_migrate import git

    top = project_paths.git_root(root)
    try:
        answer = git.ask(top, "rev-parse", "--short", "HEAD") if top is not None else b""
    except git.GitError:
        return ""
    commit = answer.decode("ascii", "replace").strip()
    return commit if re.fullmatch(r"[0-9a-f]{4,64}", commit) else ""
