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
        look_alikes=run.found.look_alikes,
        seconds=run.seconds,
        notes=(*run.notes, *filter(None, [run.trust.note])),
        root=project_paths.git_root(run.found.root) or run.config.root,
        rule_paths=run.config.rule_paths,
    )


def contents(run: Run) -> dict[str, tuple[str, str]]:
    """The text of every file with sites or changes, before and after."""
    from fsdp_migrate.configurations.secrets import masked
    from fsdp_migrate.report import edits

    paths = dict.fromkeys(d.site.module.path for d in run.result.decisions)
    paths.update(dict.fromkeys(each.path for each in run.result.configured))
    paths.update(dict.fromkeys(sorted(run.result.changes)))
    found: dict[str, tuple[str, str]] = {}
    for path in paths:
        before = run.before.get(path, b"")
        after = run.result.changes.get(path, before)
        texts = [edits.text(data) or "" for data in (before, after)]
        if path in run.found.configurations:
            texts = [masked(text, path) for text in texts]
        found[run.found.display(path)] = (texts[0], texts[1])
    return found


def tell_notes(run: Run) -> None:
    """What the configuration brings with it; about rules of the project's own was told before."""
    for note in run.notes if run.result.sites else ():
        console.note(f"note: {shown.line(note)}")


def tell_problems(total: report.Summary) -> None:
    for line in text.problem_lines(total):
        console.problem(line)
