"""What ``rewrite`` does: run, ask, write, show."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import TYPE_CHECKING

from fsdp_migrate import report, shown
from fsdp_migrate.cli import config, console, next_step, session, summary
from fsdp_migrate.cli.exit_codes import BAD, GOOD, SEE
from fsdp_migrate.cli.options import SCREEN, Rewrite
from fsdp_migrate.cli.session import Run
from fsdp_migrate.cli.uncommitted import require_committed
from fsdp_migrate.discovery import project_paths
from fsdp_migrate.errors import InputError
from fsdp_migrate.planning.outcome import Outcome
from fsdp_migrate.planning.result import Problem, Result
from fsdp_migrate.report import text

if TYPE_CHECKING:
    from fsdp_migrate.migration.engine import Key

REFUSED = "refused in review"


def rewrite(asked: Rewrite) -> int:
    return session.trusting(asked.paths, asked.trust_rules, lambda: _rewrite(asked))


def _rewrite(asked: Rewrite) -> int:
    if asked.review and (problem := _no_review(dry_run=asked.dry_run)):
        console.problem(problem)
        return BAD
    try:
        describe = _describer(asked)
        with console.waiting("rewriting"):
            run = session.run(
                asked.paths,
                select=asked.select,
                ignore=asked.ignore,
                leave=asked.leave,
                target=asked.target,
                partial=asked.partial,
                jobs=asked.jobs or session.cores(),
                trust_rules=asked.trust_rules,
                configs=asked.configs,
                mend=asked.hazards,
            )
        if asked.dry_run:
            _format(run, asked)
            describe(run)
            return _show_patch(run, asked)
        if not asked.allow_dirty:
            require_committed(run.changed, run.found.display)
        if asked.review and run.result.changes:
            _review(run)
        _leave_unwritable(run)
        _format(run, asked)
        from fsdp_migrate.rewriting import write

        if not run.result.changes:
            write.clean_up(run.config.root)
        else:
            write.write(run.config.root, run.result.changes, run.before, trees=run.found.trees)
        describe(run)
    except InputError as error:
        console.problem(str(error))
        return BAD
    except (KeyboardInterrupt, EOFError):
        console.note("interrupted: nothing was written")
        return BAD
    if asked.quiet or asked.summary == SCREEN:
        summary.tell_problems(summary.summary(run))
    else:
        show_run(run, verbose=asked.verbose)
        if run.result.changes:
            console.out(f"Next: {next_step.command(run, asked.paths)}")
            console.out(f"Undo: {undo_command(run)}")
    return exit_code(run)


def _describer(asked: Rewrite) -> Callable[[Run], None]:
    """What writes the description of a pull request, if one is asked for.

    Raises:
        InputError: it could not be written, or what should go into it cannot be read.
    """
    if asked.summary is None and asked.verdict is None:
        return lambda run: None
    from fsdp_migrate.cli import pull_request

    verdict = pull_request.check_options(asked)
    target = asked.summary
    return lambda run: pull_request.write(run, target, verdict) if target is not None else None


def _format(run: Run, asked: Rewrite) -> None:
    if asked.format and run.result.changes:
        from fsdp_migrate.cli import formatting

        with console.waiting("formatting"):
            formatting.format_changes(run)


def _leave_unwritable(run: Run) -> None:
    """Leave what belongs to files that cannot be written, and say which; the rest is done."""
    if not run.result.changes:
        return
    from fsdp_migrate.migration.selection import key
    from fsdp_migrate.rewriting import write

    refused: dict[Key, str] = {}
    problems: list[Problem] = []
    while bad := write.unwritable(run.result.changes):
        new = {
            key(decision): f"its file {bad[path]}"
            for decision in run.result.proposed
            if (path := decision.site.module.source.file) in bad
        }
        for hazard in run.result.hazards:
            if hazard.module.source.file in bad:
                new[hazard.key] = f"its file {bad[hazard.module.source.file]}"
        if run.configs is not None:
            new |= {k: f"its file {bad[p]}" for k, p in run.configs.places() if p in bad}
        if not new.keys() - refused.keys():
            return  # writing will say so: it is a file that all need, or a requirement
        refused |= new
        problems += [Problem(run.found.display(p), why) for p, why in bad.items()]
        with console.waiting("rewriting"):
            run.result = run.without(refused)
    run.result.problems += problems


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
            return run.without(dict.fromkeys(refused, REFUSED), settle=False)

    refused = review.ask_about_changes(
        run.units,
        again,
        run.before,
        display=lambda path: shown.path(run.found.display(path)),
        show=console.diff,
        say=console.out,
        ask=console.ask,
    )
    if refused:
        with console.waiting("rewriting"):
            run.result = run.without(dict.fromkeys(refused, REFUSED))


def exit_code(run: Run) -> int:
    """The exit code of a run whose changes are written."""
    if run.result.problems:
        return BAD
    if run.incomplete:
        return SEE
    if any(h.is_reported and not h.is_mended for h in run.result.hazards):
        return SEE
    return SEE if run.result.count(Outcome.LEFT) > run.result.ignored else GOOD


def _show_patch(run: Run, asked: Rewrite) -> int:
    if asked.summary != SCREEN:
        print_patch(run)
    total = report.printable_summary(summary.summary(run))
    if not asked.quiet:
        found = report.printable(report.events(run.result))
        columns = console.columns(sys.stderr)
        lines = [
            *text.rewrite_lines(found, every=asked.verbose, columns=columns),
            *text.hazard_lines(total, columns=columns),
            *text.requirement_lines(total, columns=columns),
            *text.guard_lines(found),
        ]
        for line in lines:
            console.note(line)
    summary.tell_problems(total)
    if not asked.quiet:
        for line in (text.counts(total), *text.open_lines(total)):
            console.note(line)
        summary.tell_notes(run)
    code = exit_code(run)
    return SEE if code == GOOD and run.result.changes else code


def print_patch(run: Run) -> None:
    """Print the changes of a run as one patch that ``git apply`` accepts."""
    # git would see links as what they are, so the patch names what they lead to.
    after = {path.resolve(): data for path, data in run.result.changes.items()}
    before = {p.resolve(): d for p, d in run.before.items() if p in run.result.changes}
    if after:
        from fsdp_migrate.rewriting import patch

        console.diff(patch.patch(_patch_root(after), before, after))


def _patch_root(paths: Iterable[Path]) -> Path:
    """What a patch names its files relative to, so that ``git apply`` here finds them."""
    here = Path.cwd().resolve()
    top = Path(os.path.commonpath([path.parent for path in paths]))
    for root in (project_paths.git_root(here), here, project_paths.git_root(top)):
        if root is not None and top.is_relative_to(root):
            return root
    return top


def show_run(run: Run, *, verbose: bool) -> None:
    """Say what was done to each site, and how much that is in all."""
    total = report.printable_summary(summary.summary(run))
    found = report.printable(report.events(run.result))
    columns = console.columns(sys.stdout)
    lines = [
        *text.rewrite_lines(found, every=verbose, columns=columns),
        *text.hazard_lines(total, columns=columns),
        *text.requirement_lines(total, columns=columns),
    ]
    console.sites(lines)
    summary.tell_problems(total)
    if lines:
        console.out("\n")
    for line in (*text.guard_lines(found), *text.files(total)):
        console.out(line)
    console.out(text.counts(total))
    for line in text.open_lines(total):
        console.out(line)
    summary.tell_notes(run)


def undo_command(run: Run) -> str:
    """What puts the files back that the run wrote."""
    from fsdp_migrate.rewriting import journal

    here = config.project_root(Path.cwd()) == run.config.root
    others = journal.outside(run.found.trees, run.config.root.resolve())
    named = [] if here and not others else [run.config.root, *others]
    return " ".join(["fsdp-migrate undo", *map(config.shown, named)])
