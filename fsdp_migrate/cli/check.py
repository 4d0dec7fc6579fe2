"""What ``check`` does: run, and report in the format that was asked for."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace

from fsdp_migrate import report
from fsdp_migrate.cli import console, session, summary
from fsdp_migrate.cli.exit_codes import BAD, GOOD, SEE
from fsdp_migrate.cli.options import Check
from fsdp_migrate.cli.session import Run
from fsdp_migrate.discovery import project_paths
from fsdp_migrate.errors import InputError
from fsdp_migrate.planning.outcome import Outcome
from fsdp_migrate.report import text


def check(asked: Check) -> int:
    return session.trusting(asked.paths, asked.trust_rules, lambda: _check(asked))


def _check(asked: Check) -> int:
    name = report.chosen(asked.format, asked.output)
    if name not in report.FORMATS:
        console.problem(f"--format must be one of {', '.join(report.FORMATS)}, not {name!r}")
        return BAD
    edit = name in report.WITH_CONTENTS and not asked.statistics
    try:
        with console.waiting("checking"):
            run = session.run(
                asked.paths,
                select=asked.select,
                ignore=asked.ignore,
                target=asked.target,
                edit=edit,
                jobs=asked.jobs or session.cores(),
                trust_rules=asked.trust_rules,
                configs=asked.configs,
            )
    except InputError as error:
        console.problem(str(error))
        return BAD
    total = _with_comments(
        summary.summary(run), run, whole=any(path.is_dir() for path in asked.paths)
    )
    if edit:
        total = replace(total, contents=summary.contents(run))
    found = report.events(run.result)
    rendered = _statistics(found, total) if asked.statistics else report.render(name, found, total)
    if asked.output is not None:
        try:
            project_paths.check_output(asked.output)
            # Names of files need not be text; half a surrogate is not UTF-8.
            asked.output.write_text(rendered, encoding="utf-8", errors="backslashreplace")
        except OSError as error:
            console.problem(f"{asked.output}: {error.strerror or error}")
            return BAD
        if not asked.quiet:
            console.note(text.counts(total))
    elif not asked.quiet:
        console.out(rendered)
    summary.tell_problems(total)
    if not asked.quiet:
        summary.tell_notes(run)
    if run.result.problems:
        return BAD
    if run.incomplete:
        return SEE
    if asked.exit_zero or not (total.counted or total.unused):
        return GOOD
    if asked.min_coverage is not None:
        return GOOD if total.reaches(asked.min_coverage) else SEE
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
