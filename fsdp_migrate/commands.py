"""What ``rewrite`` and ``check`` do: run, show, write."""

from __future__ import annotations

import os
import subprocess
from collections import Counter
from collections.abc import Iterable, Sequence
from pathlib import Path

from fsdp_migrate import config, gate, pool, report, rule, session, ui
from fsdp_migrate.errors import InputError
from fsdp_migrate.report import text
from fsdp_migrate.session import Run

GOOD, SEE, BAD = 0, 1, 2


def rewrite(
    paths: Sequence[Path],
    *,
    dry_run: bool,
    select: Sequence[str],
    ignore: Sequence[str],
    target: str | None,
    jobs: int | None,
    allow_dirty: bool,
    verbose: bool,
    quiet: bool,
) -> int:
    try:
        with ui.waiting("rewriting"):
            run = session.run(
                paths, select=select, ignore=ignore, target=target, jobs=jobs or pool.usable()
            )
        if dry_run:
            return _show_patch(run, verbose=verbose, quiet=quiet)
        dirty = [] if allow_dirty else _dirty(run.changed)
        if dirty:
            listed = ", ".join(run.found.display(p) for p in dirty[:3])
            more = f" and {len(dirty) - 3} more" if len(dirty) > 3 else ""
            ui.problem(f"uncommitted changes in {listed}{more}: commit them, or --allow-dirty")
            return BAD
        if run.result.changes:
            from fsdp_migrate import write

            write.write(run.config.root, run.result.changes, run.before)
    except InputError as error:
        ui.problem(str(error))
        return BAD
    except KeyboardInterrupt:
        ui.note("interrupted: nothing was written")
        return BAD
    if quiet:
        _tell_problems(_summary(run))
    else:
        _show_run(run, verbose=verbose)
    return _code(run)


def _code(run: Run) -> int:
    if run.result.problems:
        return BAD
    return SEE if any(d.outcome is rule.Outcome.LEFT for d in run.result.decisions) else GOOD


def _summary(run: Run) -> report.Summary:
    return report.summary(
        run.result,
        changed=tuple(run.found.display(p) for p in run.changed),
        created=tuple(run.found.display(p) for p in run.created),
        files=run.found.seen,
        seconds=run.seconds,
        notes=run.config.notes,
    )


def _show_patch(run: Run, *, verbose: bool, quiet: bool) -> int:
    # git would see links as what they are, so the patch names what they lead to.
    after = {path.resolve(): data for path, data in run.result.changes.items()}
    before = {p.resolve(): d for p, d in run.before.items() if p in run.result.changes}
    if after:
        from fsdp_migrate import patch

        ui.diff(patch.patch(_patch_root(after), before, after))
    total = _summary(run)
    if not quiet:
        for line in text.rewrite_lines(report.events(run.result), every=verbose):
            ui.note(line)
    _tell_problems(total)
    if not quiet:
        ui.note(text.counts(total))
        _tell_notes(total)
    code = _code(run)
    return SEE if code == GOOD and run.result.changes else code


def _patch_root(paths: Iterable[Path]) -> Path:
    """What a patch names its files relative to, so that ``git apply`` here finds them."""
    here = Path.cwd().resolve()
    top = Path(os.path.commonpath([path.parent for path in paths]))
    for root in (gate.git_root(here), here, gate.git_root(top)):
        if root is not None and top.is_relative_to(root):
            return root
    return top


def _show_run(run: Run, *, verbose: bool) -> None:
    total = _summary(run)
    lines = text.rewrite_lines(report.events(run.result), every=verbose)
    ui.sites(lines)
    _tell_problems(total)
    if lines:
        ui.out("\n")
    for line in text.files(total):
        ui.out(line)
    ui.out(text.counts(total))
    _tell_notes(total)
    if run.result.changes:
        ui.out(f"Next: fsdp-migrate verify SCRIPT      Undo: {_undo_command(run)}")


def _undo_command(run: Run) -> str:
    here = config.project_root(Path.cwd()) == run.config.root
    return "fsdp-migrate undo" if here else f"fsdp-migrate undo {config.shown(run.config.root)}"


def _tell_notes(total: report.Summary) -> None:
    for note in total.notes if total.sites else ():
        ui.note(f"note: {note}")


def _tell_problems(total: report.Summary) -> None:
    for line in text.problem_lines(total):
        ui.problem(line)


def _dirty(paths: Sequence[Path]) -> list[Path]:
    """Those of ``paths`` that git tracks and that have uncommitted changes."""
    found: list[Path] = []
    by_root: dict[Path, list[Path]] = {}
    for path in paths:
        root = gate.git_root(path.parent)
        if root is not None:
            by_root.setdefault(root, []).append(path)
    for root, members in by_root.items():
        command = ["git", "-C", str(root), "status", "--porcelain", "-z", "--untracked-files=no"]
        try:
            answer = subprocess.run(command, capture_output=True, check=True)
        except (OSError, subprocess.CalledProcessError):
            continue  # no git, or no repository after all: nothing to lose
        names = [os.fsdecode(entry[3:]) for entry in answer.stdout.split(b"\0") if entry]
        changed = {os.path.realpath(root / name) for name in names}
        found += [p for p in members if os.path.realpath(p) in changed]
    return found


def check(
    paths: Sequence[Path],
    *,
    format_: str,
    output: Path | None,
    select: Sequence[str],
    ignore: Sequence[str],
    target: str | None,
    jobs: int | None,
    min_coverage: float | None,
    statistics: bool,
    exit_zero: bool,
    quiet: bool,
) -> int:
    if format_ not in report.FORMATS:
        ui.problem(f"--format must be one of {', '.join(report.FORMATS)}, not {format_!r}")
        return BAD
    try:
        with ui.waiting("checking"):
            run = session.run(
                paths,
                select=select,
                ignore=ignore,
                target=target,
                edit=False,
                jobs=jobs or pool.usable(),
            )
    except InputError as error:
        ui.problem(str(error))
        return BAD
    total = _summary(run)
    found = report.events(run.result)
    rendered = _statistics(found) if statistics else report.render(format_, found, total)
    if output is not None:
        try:
            output.write_text(rendered, encoding="utf-8")
        except OSError as error:
            ui.problem(f"{output}: {error.strerror or error}")
            return BAD
        if not quiet:
            ui.note(text.counts(total))
    elif not quiet:
        ui.out(rendered)
    _tell_problems(total)
    if not quiet:
        _tell_notes(total)
    if run.result.problems:
        return BAD
    if exit_zero or not found:
        return GOOD
    if min_coverage is not None:
        return GOOD if 100 * total.coverage >= min_coverage else SEE
    return SEE


def _statistics(found: Sequence[report.Event]) -> str:
    """Sites per rule, most frequent first; ``[*]`` marks what ``rewrite`` does."""
    counted = Counter((e.code, e.outcome is not rule.Outcome.LEFT) for e in found)
    rows = sorted(counted.items(), key=lambda item: (-item[1], item[0]))
    width = max((len(str(n)) for _, n in rows), default=1)
    return "".join(f"{n:>{width}}  {c}  {'[*]' if r else '[ ]'}\n" for (c, r), n in rows)
