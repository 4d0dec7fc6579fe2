"""What ``check`` does: run, and report in the format that was asked for."""

from __future__ import annotations

import shlex
import sys
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from fsdp_migrate import report
from fsdp_migrate.cli import console, session, summary
from fsdp_migrate.cli.exit_codes import BAD, GOOD, SEE
from fsdp_migrate.cli.options import Check
from fsdp_migrate.cli.session import Run
from fsdp_migrate.discovery import project_paths
from fsdp_migrate.errors import InputError
from fsdp_migrate.planning.outcome import Outcome
from fsdp_migrate.report import text

STDIN = Path("-")
LINKED = frozenset({"full", "concise"})


def check(asked: Check) -> int:
    given = [path for path in asked.paths if path != STDIN]
    if len(given) < len(asked.paths) and len(asked.paths) > 1:
        console.problem("- is standard input, and stands alone")
        return BAD
    return session.trusting(given or (Path(),), asked.trust_rules, lambda: _check(asked))


def _check(asked: Check) -> int:
    formats = _formats(asked)
    wrong = next((name for name in formats.values() if name not in report.FORMATS), None)
    if wrong is not None:
        console.problem(f"--format must be one of {', '.join(report.FORMATS)}, not {wrong!r}")
        return BAD
    edit = not (report.WITH_CONTENTS.isdisjoint(formats.values()) or asked.statistics)
    piped = sys.stdin.buffer.read() if STDIN in asked.paths else None
    try:
        with console.waiting("checking"):
            run = session.run(
                asked.paths,
                select=asked.select,
                ignore=asked.ignore,
                leave=asked.leave,
                target=asked.target,
                edit=edit,
                partial=asked.partial,
                jobs=asked.jobs or session.cores(),
                trust_rules=asked.trust_rules,
                configs=asked.configs,
                piped=piped,
                hazards=True,
            )
    except InputError as error:
        console.problem(str(error))
        return BAD
    total = _with_comments(
        summary.summary(run), run, whole=any(path.is_dir() for path in asked.paths)
    )
    total = replace(total, rewrite="" if piped is not None else _rewriting(asked))
    if not asked.notes:
        total = replace(total, possible=(), untold=len(total.possible))
    if edit:
        total = replace(total, contents=summary.contents(run))
    found = report.events(run.result)
    if "json" in formats.values():
        total = replace(total, checks=_checks([*found, *total.markers]))
    for output, name in formats.items():
        one = _statistics(found, total) if asked.statistics else report.render(name, found, total)
        if output is None:
            if not asked.quiet:
                console.out(one, links=_links(found, total, run) if name in LINKED else {})
        elif not _written(output, one):
            return BAD
    if asked.outputs and not asked.quiet:
        console.note("\n".join([text.to_do(total), *text.settle(total)]))
    summary.tell_problems(total)
    if not asked.quiet:
        summary.tell_notes(run)
    if run.result.problems:
        return BAD
    if run.incomplete:
        return SEE
    if asked.exit_zero or not (total.counted or total.unused or total.hazards):
        return GOOD
    if asked.min_coverage is not None:
        return GOOD if total.reaches(asked.min_coverage) else SEE
    return SEE


def _formats(asked: Check) -> dict[Path | None, str]:
    """Where the report goes, None being the screen, and in which format. Of one file ``--format``
    decides, of several first their suffixes."""
    if len(asked.outputs) < 2:
        output = asked.outputs[0] if asked.outputs else None
        return {output: report.chosen(asked.format, output)}
    known = {path: report.SUFFIXES.get(path.suffix.lower()) for path in asked.outputs}
    return {path: name or asked.format or "full" for path, name in known.items()}


def _written(output: Path, rendered: str) -> bool:
    try:
        project_paths.check_output(output)
        # Names of files need not be text; half a surrogate is not UTF-8.
        output.write_text(rendered, encoding="utf-8", errors="backslashreplace")
    except OSError as error:
        console.problem(f"{output}: {error.strerror or error}")
        return False
    return True


def _rewriting(asked: Check) -> str:
    """The command that does what this one shows."""
    words = ["fsdp-migrate", "rewrite", *map(str, asked.paths)]
    for option, codes in (
        ("--select", asked.select),
        ("--ignore", asked.ignore),
        ("--leave", asked.leave),
    ):
        words += [option, ",".join(codes)] if codes else []
    words += ["--target-torch", asked.target] if asked.target else []
    for option, given in (("partial", asked.partial), ("configs", asked.configs)):
        if given is not None:
            words.append(f"--{option}" if given else f"--no-{option}")
    words += ["--trust-rules"] if asked.trust_rules else []
    return shlex.join(words)


def _checks(found: Sequence[report.Event | report.Remark]) -> dict[str, tuple[str, ...]]:
    """The checks of ``verify`` that decide about the sites of each rule."""
    from fsdp_migrate.verify.compare import blame

    return {code: blame.deciding(code) for code in {event.code for event in found}}


def _links(found: Sequence[report.Event], total: report.Summary, run: Run) -> dict[str, str]:
    """Where places and codes of a text lead to, for terminals that have links."""
    from fsdp_migrate.planning import pages

    told: list[report.Event | report.Remark] = [*found, *text.remarks(total)]
    links = {each.place: (Path.cwd() / each.path).as_uri() for each in told}
    return links | {each.code: pages.url(each.code, run.config.rule_paths) for each in told}


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
    """Sites per rule, most frequent first; ``[*]`` marks what ``rewrite`` does, ``[review]`` what
    it does and somebody has to judge."""
    from fsdp_migrate.syntax.suppressions import UNUSED

    marks = {Outcome.REWRITTEN: "[*]", Outcome.REVIEW: "[review]", Outcome.LEFT: "[ ]"}
    counted = Counter((e.code, marks[e.outcome]) for e in found if not e.ignored)
    rows = sorted(counted.items(), key=lambda item: (-item[1], item[0]))
    listed = [(n, f"{code}  {mark}") for (code, mark), n in rows]
    hazards = Counter(hazard.code for hazard in total.hazards)
    listed += [(n, f"{code}  [hazard]") for code, n in sorted(hazards.items())]
    possible = Counter(each.code for each in total.possible)
    listed += [(n, f"{code}  [note]") for code, n in sorted(possible.items())]
    for number, what in (
        (len(total.unused), f"{UNUSED}  [ ]"),
        (total.ignored, "ignored"),
        (len(total.markers), "markers in code"),
    ):
        if number:
            listed.append((number, what))
    width = max((len(str(n)) for n, _ in listed), default=1)
    return "".join(f"{n:>{width}}  {what}\n" for n, what in listed)
