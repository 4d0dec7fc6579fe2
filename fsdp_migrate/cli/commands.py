"""What ``rewrite`` and ``check`` do: run, show, write."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from fsdp_migrate import report, shown
from fsdp_migrate.cli import config, console, session, trust
from fsdp_migrate.cli.session import Run
from fsdp_migrate.discovery import project_paths
from fsdp_migrate.errors import InputError
from fsdp_migrate.planning.outcome import Outcome
from fsdp_migrate.planning.result import Result
from fsdp_migrate.report import text

if TYPE_CHECKING:
    from fsdp_migrate.migration.engine import Key

GOOD, SEE, BAD = 0, 1, 2
# Each changed file in one entry; submodules are repositories of their own.
_STATUS = (
    *("status", "--porcelain", "-z", "--untracked-files=no", "--no-renames"),
    "--ignore-submodules=all",
)


def rewrite(
    paths: Sequence[Path],
    *,
    dry_run: bool,
    select: Sequence[str],
    ignore: Sequence[str],
    target: str | None,
    jobs: int | None,
    allow_dirty: bool,
    partial: bool,
    review: bool,
    verbose: bool,
    quiet: bool,
    trust_rules: bool,
) -> int:
    return _trusting(
        paths,
        trust_rules,
        lambda: _rewrite(
            paths,
            dry_run=dry_run,
            select=select,
            ignore=ignore,
            target=target,
            jobs=jobs,
            allow_dirty=allow_dirty,
            partial=partial,
            review=review,
            verbose=verbose,
            quiet=quiet,
            trust_rules=trust_rules,
        ),
    )


def _trusting(paths: Sequence[Path], trust_rules: bool, work: Callable[[], int]) -> int:
    """The exit code of ``work``, done apart where it runs rules of the project's own."""
    try:
        start = session.start(paths)
    except InputError as error:
        console.problem(str(error))
        return BAD
    return trust.command(start, trust_rules, work)


def _rewrite(
    paths: Sequence[Path],
    *,
    dry_run: bool,
    select: Sequence[str],
    ignore: Sequence[str],
    target: str | None,
    jobs: int | None,
    allow_dirty: bool,
    partial: bool,
    review: bool,
    verbose: bool,
    quiet: bool,
    trust_rules: bool,
) -> int:
    if review and (problem := _no_review(dry_run=dry_run)):
        console.problem(problem)
        return BAD
    try:
        with console.waiting("rewriting"):
            run = session.run(
                paths,
                select=select,
                ignore=ignore,
                target=target,
                partial=partial,
                jobs=jobs or _cores(),
                trust_rules=trust_rules,
            )
        if dry_run:
            return _show_patch(run, verbose=verbose, quiet=quiet)
        dirty = [] if allow_dirty else _dirty(run.changed)
        if dirty:
            listed = ", ".join(run.found.display(p) for p in dirty[:3])
            more = f" and {len(dirty) - 3} more" if len(dirty) > 3 else ""
            console.problem(f"uncommitted changes in {listed}{more}: commit them, or --allow-dirty")
            return BAD
        if review and run.result.changes:
            _review(run)
        if run.result.changes:
            from fsdp_migrate.rewriting import write

            write.write(run.config.root, run.result.changes, run.before, trees=run.found.trees)
    except InputError as error:
        console.problem(str(error))
        return BAD
    except (KeyboardInterrupt, EOFError):
        console.note("interrupted: nothing was written")
        return BAD
    if quiet:
        _tell_problems(_summary(run))
    else:
        _show_run(run, verbose=verbose)
    return _code(run)


def _cores() -> int:
    """How many cores this process may run on."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def _no_review(*, dry_run: bool) -> str:
    """Why nothing can be asked, or an empty text."""
    if dry_run:
        return "--review writes what is taken: leave --dry-run out"
    return "" if console.answers() else "--review asks, and standard input is no terminal"


def _review(run: Run) -> None:
    """Ask what is to be taken, and make ``run`` a run that changes just that."""
    from fsdp_migrate.cli import review

    def again(refused: frozenset[Key]) -> Result:
        with console.waiting("rewriting"):
            return run.without(refused, settle=False)

    refused = review.walk(
        review.units(run.result.decisions),
        again,
        run.before,
        display=lambda path: shown.path(run.found.display(path)),
        show=console.diff,
        say=console.out,
        ask=console.ask,
    )
    if refused:
        with console.waiting("rewriting"):
            run.result = run.without(refused)


def _code(run: Run) -> int:
    if run.result.problems:
        return BAD
    if run.incomplete:
        return SEE
    left = (d for d in run.result.decisions if d.outcome is Outcome.LEFT)
    return SEE if any(d.ignored is None for d in left) else GOOD


def _summary(run: Run) -> report.Summary:
    return report.summary(
        run.result,
        changed=tuple(run.found.display(p) for p in run.changed),
        created=tuple(run.found.display(p) for p in run.created),
        files=run.found.seen,
        seconds=run.seconds,
        notes=(*run.config.notes, *filter(None, [run.trust.note])),
        root=project_paths.git_root(run.found.root) or run.config.root,
        rule_paths=run.config.rule_paths,
    )


def _show_patch(run: Run, *, verbose: bool, quiet: bool) -> int:
    # git would see links as what they are, so the patch names what they lead to.
    after = {path.resolve(): data for path, data in run.result.changes.items()}
    before = {p.resolve(): d for p, d in run.before.items() if p in run.result.changes}
    if after:
        from fsdp_migrate.rewriting import patch

        console.diff(patch.patch(_patch_root(after), before, after))
    total = report.printable_summary(_summary(run))
    if not quiet:
        found = report.printable(report.events(run.result))
        for line in (*text.rewrite_lines(found, every=verbose), *text.guard_lines(found)):
            console.note(line)
    _tell_problems(total)
    if not quiet:
        console.note(text.counts(total))
        _tell_notes(run)
    code = _code(run)
    return SEE if code == GOOD and run.result.changes else code


def _patch_root(paths: Iterable[Path]) -> Path:
    """What a patch names its files relative to, so that ``git apply`` here finds them."""
    here = Path.cwd().resolve()
    top = Path(os.path.commonpath([path.parent for path in paths]))
    for root in (project_paths.git_root(here), here, project_paths.git_root(top)):
        if root is not None and top.is_relative_to(root):
            return root
    return top


def _show_run(run: Run, *, verbose: bool) -> None:
    total = report.printable_summary(_summary(run))
    found = report.printable(report.events(run.result))
    lines = text.rewrite_lines(found, every=verbose)
    console.sites(lines)
    _tell_problems(total)
    if lines:
        console.out("\n")
    for line in (*text.guard_lines(found), *text.files(total)):
        console.out(line)
    console.out(text.counts(total))
    _tell_notes(run)
    if run.result.changes:
        console.out(f"Next: fsdp-migrate verify SCRIPT      Undo: {_undo_command(run)}")


def _undo_command(run: Run) -> str:
    from fsdp_migrate.rewriting import journal

    here = config.project_root(Path.cwd()) == run.config.root
    others = journal.outside(run.found.trees, run.config.root.resolve())
    named = [] if here and not others else [run.config.root, *others]
    return " ".join(["fsdp-migrate undo", *map(config.shown, named)])


def _tell_notes(run: Run) -> None:
    """What the configuration brings with it; about rules of the project's own was told before."""
    for note in run.config.notes if run.result.decisions else ():
        console.note(f"note: {shown.line(note)}")


def _tell_problems(total: report.Summary) -> None:
    for line in text.problem_lines(total):
        console.problem(line)


def _dirty(paths: Sequence[Path]) -> list[Path]:
    """Those of ``paths`` that git tracks and that have uncommitted changes.

    Raises:
        InputError: git cannot say.
    """
    from fsdp_migrate import git

    found: list[Path] = []
    by_root: dict[Path, list[Path]] = {}
    for path in paths:
        root = project_paths.git_root(path.parent)
        while root is not None and not git.is_repository(root):
            root = project_paths.git_root(root.parent) if root != root.parent else None
        if root is not None:
            by_root.setdefault(root, []).append(path)
    for root, members in by_root.items():
        try:
            changed = _changed(root, {os.path.realpath(path) for path in members})
        except git.NoGitError:
            console.note("note: there is no git, so nobody looked for uncommitted changes")
            break
        except git.GitError as error:
            raise InputError(
                f"git cannot say whether the files have uncommitted changes: {error}; "
                "--allow-dirty rewrites them all the same"
            ) from error
        found += [p for p in members if os.path.realpath(p) in changed]
    return found


def _changed(root: Path, among: set[str]) -> set[str]:
    """Where files with uncommitted changes really are; of those that git was told not to look at,
    the ones in ``among``."""
    from fsdp_migrate import git

    answer = git.ask(root, *_STATUS)
    names = [os.fsdecode(entry[3:]) for entry in answer.split(b"\0") if entry]
    changed = {os.path.realpath(root / name) for name in names}
    for entry in git.ask(root, "ls-files", "--stage", "-v", "-z").split(b"\0")[:-1]:
        told, _, name = entry.partition(b"\t")
        flag, _, digest, _ = told.split()
        path = os.path.realpath(root / os.fsdecode(name))
        # Lower case: assumed to be unchanged; S: not in the work tree.
        if (flag.islower() or flag == b"S") and path in among - changed:
            held = git.ask(root, "hash-object", "--", os.fsdecode(name)).strip()
            if held != digest:
                changed.add(path)
    return changed


def check(
    paths: Sequence[Path],
    *,
    format_: str | None = None,
    output: Path | None = None,
    select: Sequence[str] = (),
    ignore: Sequence[str] = (),
    target: str | None = None,
    jobs: int | None = None,
    min_coverage: float | None = None,
    statistics: bool = False,
    exit_zero: bool = False,
    quiet: bool = False,
    trust_rules: bool = False,
) -> int:
    return _trusting(
        paths,
        trust_rules,
        lambda: _check(
            paths,
            format_=format_,
            output=output,
            select=select,
            ignore=ignore,
            target=target,
            jobs=jobs,
            min_coverage=min_coverage,
            statistics=statistics,
            exit_zero=exit_zero,
            quiet=quiet,
            trust_rules=trust_rules,
        ),
    )


def _check(
    paths: Sequence[Path],
    *,
    format_: str | None,
    output: Path | None,
    select: Sequence[str],
    ignore: Sequence[str],
    target: str | None,
    jobs: int | None,
    min_coverage: float | None,
    statistics: bool,
    exit_zero: bool,
    quiet: bool,
    trust_rules: bool,
) -> int:
    name = report.chosen(format_, output)
    if name not in report.FORMATS:
        console.problem(f"--format must be one of {', '.join(report.FORMATS)}, not {name!r}")
        return BAD
    edit = name in report.WITH_CONTENTS and not statistics
    try:
        with console.waiting("checking"):
            run = session.run(
                paths,
                select=select,
                ignore=ignore,
                target=target,
                edit=edit,
                jobs=jobs or _cores(),
                trust_rules=trust_rules,
            )
    except InputError as error:
        console.problem(str(error))
        return BAD
    total = _with_comments(_summary(run), run, whole=any(path.is_dir() for path in paths))
    if edit:
        total = replace(total, contents=_contents(run))
    found = report.events(run.result)
    rendered = _statistics(found, total) if statistics else report.render(name, found, total)
    if output is not None:
        try:
            project_paths.check_output(output)
            # Names of files need not be text; half a surrogate is not UTF-8.
            output.write_text(rendered, encoding="utf-8", errors="backslashreplace")
        except OSError as error:
            console.problem(f"{output}: {error.strerror or error}")
            return BAD
        if not quiet:
            console.note(text.counts(total))
    elif not quiet:
        console.out(rendered)
    _tell_problems(total)
    if not quiet:
        _tell_notes(run)
    if run.result.problems:
        return BAD
    if run.incomplete:
        return SEE
    if exit_zero or not (total.counted or total.unused):
        return GOOD
    if min_coverage is not None:
        return GOOD if total.reaches(min_coverage) else SEE
    return SEE


def _with_comments(total: report.Summary, run: Run, *, whole: bool) -> report.Summary:
    """``total`` with the comments of ours that stand in the files.

    What single files do not show, others of the project may: what a comment ignores is told only
    for a ``whole`` tree.
    """
    if not run.found.commented:
        return total
    from fsdp_migrate.report import standing

    files = {run.found.display(path): data for path, data in run.found.commented.items()}
    markers, unused = standing.standing(run.result, files)
    return replace(total, markers=tuple(markers), unused=tuple(unused) if whole else ())


def _contents(run: Run) -> dict[str, tuple[str, str]]:
    """The text of every file with sites or changes, before and after."""
    from fsdp_migrate.report import standing

    paths = dict.fromkeys(d.site.module.path for d in run.result.decisions)
    paths.update(dict.fromkeys(sorted(run.result.changes)))
    found: dict[str, tuple[str, str]] = {}
    for path in paths:
        before = run.before.get(path, b"")
        after = run.result.changes.get(path, before)
        texts = [standing.text(data) or "" for data in (before, after)]
        found[run.found.display(path)] = (texts[0], texts[1])
    return found


def _statistics(found: Sequence[report.Event], total: report.Summary) -> str:
    """Sites per rule, most frequent first; ``[*]`` marks what ``rewrite`` does."""
    from fsdp_migrate.syntax.suppressions import UNUSED

    counted = Counter((e.code, e.outcome is not Outcome.LEFT) for e in found if not e.ignored)
    rows = sorted(counted.items(), key=lambda item: (-item[1], item[0]))
    listed = [(n, f"{code}  {'[*]' if done else '[ ]'}") for (code, done), n in rows]
    for number, what in (
        (len(total.unused), f"{UNUSED}  [ ]"),
        (total.ignored, "ignored"),
        (len(total.markers), "markers in code"),
    ):
        if number:
            listed.append((number, what))
    width = max((len(str(n)) for n, _ in listed), default=1)
    return "".join(f"{n:>{width}}  {what}\n" for n, what in listed)
