"""What a finished run amounts to, and what is told at its end, whatever the command."""

from __future__ import annotations

from dataclasses import replace

from fsdp_migrate import report, shown
from fsdp_migrate.cli import console
from fsdp_migrate.cli.session import Run
from fsdp_migrate.discovery import project_paths
from fsdp_migrate.report import text


def summary(run: Run) -> report.Summary:
    return replace(
        report.summary(run.result),
        changed=tuple(run.found.display(p) for p in run.changed),
        created=tuple(run.found.display(p) for p in run.created),
        files=run.found.seen,
        seconds=run.seconds,
        notes=(*run.config.notes, *filter(None, [run.trust.note])),
        root=project_paths.git_root(run.found.root) or run.config.root,
        rule_paths=run.config.rule_paths,
    )


def tell_notes(run: Run) -> None:
    """What the configuration brings with it; about rules of the project's own was told before."""
    for note in run.config.notes if run.result.decisions else ():
        console.note(f"note: {shown.line(note)}")


def tell_problems(total: report.Summary) -> None:
    for line in text.problem_lines(total):
        console.problem(line)
