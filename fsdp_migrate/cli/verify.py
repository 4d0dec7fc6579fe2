"""The ``verify`` command: two trees or git revisions, or one tree and its rewritten copy."""

from __future__ import annotations

import dataclasses
import gc
import json
import sys
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fsdp_migrate.cli import console, process
from fsdp_migrate.cli.exit_codes import BAD, GOOD, SEE
from fsdp_migrate.cli.options import Verify
from fsdp_migrate.cli.trees import (
    AlreadySaid,
    check_out,
    make_rewritten_copy,
    not_in_git,
    scratch_directory,
)
from fsdp_migrate.discovery import project_paths
from fsdp_migrate.errors import ConfigError, InputError
from fsdp_migrate.shown import path as shown_path

if TYPE_CHECKING:
    from fsdp_migrate.verify.plan import Plan
    from fsdp_migrate.verify.report.model import Report

_STYLES = {
    "PASS": "green",
    "FAIL": "bold red",
    "VOID": "yellow",
    "COST": "yellow",
    "UNDECIDED": "bold yellow",
}


def verify(asked: Verify) -> int:
    """Verify and show the verdict; the exit code."""
    from fsdp_migrate.verify.plan import PlanError
    from fsdp_migrate.verify.report import RENDERERS
    from fsdp_migrate.verify.report.text import render

    gc.enable()  # recordings come and go for as long as programs train
    with ExitStack() as stack:
        stack.enter_context(process.terminated_like_interrupted())
        try:
            formats = _formats(asked)
            plan, shown = _plan(asked, stack)
            report = _verify(plan, shown, strict_cost=asked.strict_cost)
        except (InputError, PlanError) as error:
            console.problem(str(error))
            return BAD
        except AlreadySaid:
            return BAD
        except KeyboardInterrupt:
            console.note("interrupted: nothing was decided; the trees are untouched")
            return BAD
        for name, path in formats:
            if path is None and name == "text":
                wide = console.columns(sys.stdout)
                _show(render(report, wide), name, quiet=asked.quiet)
                continue
            text = RENDERERS[name](report)
            if path is None:
                _show(text, name, quiet=asked.quiet)
            elif not _written(path, text):
                return BAD
        if asked.observed is not None:
            saved = json.dumps(report.observed.to_dict(), indent=2) + "\n"
            if not _written(asked.observed, saved):
                return BAD
        if asked.fsdp2_config is not None and not _configured(asked.fsdp2_config, report):
            return BAD
    if report.exit_code == GOOD and "notes" in shown:
        console.note("note: exit code 1, for rules of the project's own were not loaded")
        return SEE
    return report.exit_code


# --- what is asked -------------------------------------------------------------------------------


def _formats(asked: Verify) -> list[tuple[str, Path | None]]:
    """Formats to render and where to, the screen being None."""
    from fsdp_migrate.verify.report import RENDERERS, SUFFIXES

    if asked.format not in RENDERERS:
        raise ConfigError(f"--format must be one of {', '.join(RENDERERS)}, not {asked.format!r}")
    found: list[tuple[str, Path | None]] = [(asked.format, None)]
    for path in asked.outputs:
        name = SUFFIXES.get(path.suffix.lower()) or (asked.format if asked.format != "text" else "")
        if not name:
            raise ConfigError(
                f"--output {path}: the name must end in one of {', '.join(SUFFIXES)}, or --format "
                "must say what it gets"
            )
        if not path.absolute().parent.is_dir():
            raise ConfigError(f"--output {path}: {path.parent} is not a directory")
        found.append((name, path))
    for option, file in (("--observed", asked.observed), ("--fsdp2-config", asked.fsdp2_config)):
        if file is not None and not file.absolute().parent.is_dir():
            raise ConfigError(f"{option} {file}: its folder is not a directory")
    return found


def _plan(asked: Verify, stack: ExitStack) -> tuple[Plan, dict[str, Any]]:
    """The plan, and how to call its trees on the screen."""
    from fsdp_migrate.cli import programs

    given = {side: getattr(asked, side) for side in ("before", "after")}
    trees = {side: Path(name) for side, name in given.items() if name and Path(name).is_dir()}
    revisions = {side: name for side, name in given.items() if name and side not in trees}
    home = trees.get("before") or (trees.get("after") if revisions else None)
    program = programs.find(asked.script, asked, home, stack)
    tree = program.tree
    shown: dict[str, Any] = {}
    for side, revision in revisions.items():
        trees[side] = check_out(revision, tree, scratch_directory(stack) / side, side, asked.share)
        shown[side] = f"{tree} at {revision}"
    if "before" in revisions and (ignored := not_in_git(tree, asked.share)):
        shown["ignored"] = ignored
    if revisions and len(trees) == 1:
        # A revision is compared with what the working tree holds now.
        trees["before" if "after" in trees else "after"] = tree
    trees.setdefault("before", tree)
    if "after" not in trees:
        # Not "." but the name of the directory, which is that of a package perhaps.
        trees["after"] = scratch_directory(stack) / (trees["before"].absolute().name or "after")
        missing = make_rewritten_copy(trees["before"].absolute(), trees["after"], asked.trust_rules)
        if missing:
            shown["notes"] = (missing,)
        shown["after"] = "the same, rewritten in a scratch copy"
    if program.shown:
        shown["program"] = program.shown
    return program.plan(asked, before=trees["before"], after=trees["after"]), shown


# --- the answer ----------------------------------------------------------------------------------


def _verify(plan: Plan, shown: dict[str, Any], *, strict_cost: bool) -> Report:
    from fsdp_migrate.cli.headroom import beside
    from fsdp_migrate.cli.study import study
    from fsdp_migrate.verify import run
    from fsdp_migrate.verify.report.against_sites import against_sites
    from fsdp_migrate.verify.report.model import Verdict
    from fsdp_migrate.verify.report.progress import Progress

    studied = beside(lambda: study(plan.before))  # while the program trains
    with Progress(plan.max_steps) as progress:
        report = run.verify(plan, on_event=progress)
    notes = shown.get("notes", ())
    ignored = shown.pop("ignored", [])
    if ignored and report.verdict in (Verdict.BEFORE_FAILED, Verdict.BEFORE_HUNG):
        notes = (*notes, _absent(ignored))
    try:
        report = against_sites(report, studied())
    except InputError as error:  # which was none for the programs: the verdict stands
        notes = (*notes, f"which sites the original has could not be studied: {error}")
    notes = (*report.notes, *notes)
    return dataclasses.replace(report, **{**shown, "notes": notes}, strict_cost=strict_cost)


def _configured(path: Path, report: Report) -> bool:
    """Whether MindSpeed-MM's file was written, or one that is there says what the original did."""
    from fsdp_migrate.cli import mindspeed

    try:
        if not path.exists():
            return _written(path, mindspeed.document(report.observed))
        mindspeed.check(path.read_text(encoding="utf-8"), report.observed)
    except (InputError, OSError, UnicodeDecodeError) as error:
        console.problem(f"{path}: {error}")
        return False
    console.note(f"{path} makes the units that the original has")
    return True


def _written(path: Path, text: str) -> bool:
    """Whether ``text`` could be written; if not, why was said."""
    try:
        project_paths.check_output(path)
        path.write_text(text, encoding="utf-8")
    except OSError as error:
        console.problem(f"{path}: cannot be written: {error.strerror or error}")
        return False
    return True


def _show(text: str, name: str, *, quiet: bool) -> None:
    if quiet and name == "text":
        text = text[text.rindex("\nVERDICT") + 1 :]
    if name != "text":
        console.out(text)
        return
    console.words(text, _STYLES)


def _absent(ignored: list[str]) -> str:
    """That a revision lacks what git ignores, which a program may need."""
    more = f" and {len(ignored) - 3} more" if len(ignored) > 3 else ""
    names = ", ".join(map(shown_path, ignored[:3]))
    return (
        "the original comes from git, without what git ignores: name with --share what the program "
        f"needs of {names}{more}"
    )
