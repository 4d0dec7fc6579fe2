"""The ``migrate`` command: rewrite, train both versions, mend what differs, write what passed."""

from __future__ import annotations

import dataclasses
import gc
import time
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path

from fsdp_migrate import shown
from fsdp_migrate.attempts import html
from fsdp_migrate.attempts.report import Migration, answer_lines, as_json, as_text, markdown
from fsdp_migrate.attempts.search import Forms, Limits, Search
from fsdp_migrate.cli import (
    console,
    observing,
    process,
    programs,
    pull_request,
    rewrite,
    session,
    trial,
)
from fsdp_migrate.cli.exit_codes import BAD, SEE
from fsdp_migrate.cli.options import Migrate
from fsdp_migrate.cli.programs import Program
from fsdp_migrate.cli.session import Run
from fsdp_migrate.cli.trees import scratch_directory
from fsdp_migrate.cli.trial import Trial
from fsdp_migrate.cli.uncommitted import require_committed
from fsdp_migrate.discovery import project_paths
from fsdp_migrate.errors import ConfigError, InputError
from fsdp_migrate.planning.seen import Seen
from fsdp_migrate.rewriting import write
from fsdp_migrate.verify.launch.start import warm_server
from fsdp_migrate.verify.plan import PlanError

_RENDERERS = {".txt": as_text, ".json": as_json, ".md": markdown, ".html": html.render}


def migrate(asked: Migrate) -> int:
    """Search, write and show what came of it; the exit code."""
    gc.enable()  # recordings come and go for as long as programs train
    with ExitStack() as stack:
        stack.enter_context(process.terminated_like_interrupted())
        try:
            found = _find_programs(asked, stack)
            tree, scratch = found[0].tree, scratch_directory(stack)
            return session.trusting(
                [tree], asked.trust_rules, lambda: _migrate(asked, found, scratch)
            )
        except (InputError, PlanError) as error:
            console.problem(str(error))
        except KeyboardInterrupt:
            console.note("interrupted: nothing was written")
    return BAD


def _find_programs(asked: Migrate, stack: ExitStack) -> list[Program]:
    """The programs, all of one tree.

    Raises:
        InputError: one is not there, or they belong to several projects.
    """
    for path in asked.outputs:
        if path.suffix.lower() not in _RENDERERS:
            raise ConfigError(f"--output {path}: must end in one of {', '.join(_RENDERERS)}")
        if not path.absolute().parent.is_dir():
            raise ConfigError(f"--output {path}: {path.parent} is not a directory")
    found = [programs.find(script, asked, None, stack) for script in asked.scripts or (None,)]
    trees = list(dict.fromkeys(program.tree for program in found))
    if len(trees) > 1:
        listed = " and ".join(shown.path(str(tree)) for tree in trees)
        raise ConfigError(f"the scripts belong to several projects, {listed}: run on each alone")
    return found


def _migrate(asked: Migrate, found: Sequence[Program], scratch: Path) -> int:
    began = time.monotonic()
    tree, seen = found[0].tree, Seen()
    run = _rewritten(asked, tree, seen)
    if not (run.result.changes or seen.wanted):
        return _nothing(run)
    if not asked.dry_run:  # said before anything is trained
        write.require_journal(run.config.root)
        if not asked.allow_dirty:
            require_committed(run.changed, run.found.display)
    with warm_server(asked.python, scratch, asked.env) as server:
        found = observing.asking(found, seen, tree)
        kept = trial.cache(asked, scratch)
        observed = observing.observe(found, asked, run, seen, kept, server)
        if observed is not None:
            run, seen = _rewritten(asked, tree, observed), observed
        if not run.result.changes:
            return _nothing(run)
        tried = Trial(asked, run, found, scratch, server, seen)
        search = Search(
            units=tried.searched,
            train=tried.train,
            suspect=tried.suspect,
            limits=Limits(asked.attempts, asked.budget),
            further=tried.further,
            on_code=tried.on_code,
            alike=tried.alike,
            tell=tried.tell,
        )
        try:
            search.run()
        except KeyboardInterrupt:
            if search.best is None or not search.best.reports:
                raise
            search.stopped = "interrupted"
    if not tried.made_models:
        search.best = None
    migration = Migration(
        programs=tuple(tried.names),
        titles=tuple(unit.title for unit in tried.units),
        search=search,
        seconds=time.monotonic() - began,
        notes=tuple(tried.notes(search)),
    )
    return _finish(asked, run, tried, seen, migration)


def _rewritten(asked: Migrate, tree: Path, seen: Seen) -> Run:
    """What is written first, with guards in front of what is left: training shows which of them
    the program reaches."""
    with console.waiting("rewriting"):
        return session.run(
            [tree], target=asked.target, partial=True, trust_rules=asked.trust_rules, seen=seen
        )


def _nothing(run: Run) -> int:
    console.note("nothing to rewrite, so nothing was trained")
    rewrite.show_run(run, verbose=False)
    return rewrite.exit_code(run)


def _finish(asked: Migrate, run: Run, tried: Trial, seen: Seen, migration: Migration) -> int:
    """Write what passed, if something did, and show the answer; the exit code."""
    best = migration.best
    forms = best.forms if best is not None else Forms()
    if forms.others:
        with console.waiting("rewriting"):
            run.result = tried.result(forms, migration.left)
    migration = dataclasses.replace(migration, seen=tuple(observing.rests_on(run, seen, forms)))
    taken = best is not None or asked.anyway
    if taken and not asked.dry_run:
        if not asked.allow_dirty:
            require_committed(run.changed, run.found.display)  # another form changes other files
        write.write(run.config.root, run.result.changes, run.before, trees=run.found.trees)
        written = [run.found.display(path) for path in (*run.changed, *run.created)]
        migration = dataclasses.replace(migration, written=tuple(written))
    if taken and asked.outputs:
        migration = dataclasses.replace(migration, code=pull_request.sections(run))
    for path in asked.outputs:
        _save(path, migration)
    if not asked.quiet:
        console.out("")
        if taken and asked.dry_run:
            rewrite.print_patch(run)
        elif taken:
            rewrite.show_run(run, verbose=False)
            console.out(f"Undo: {rewrite.undo_command(run)}")
        else:
            console.out("nothing was written")
    console.out("\n".join(answer_lines(migration)))
    if best is not None:
        return rewrite.exit_code(run)
    reports = [a.report for a in migration.search.attempts if a.report is not None]
    undecided = not tried.made_models or reports[-1].exit_code == BAD
    return BAD if undecided else SEE


def _save(path: Path, migration: Migration) -> None:
    """
    Raises:
        InputError: it cannot be written.
    """
    text = _RENDERERS[path.suffix.lower()](migration)
    try:
        project_paths.check_output(path)
        path.write_text(text, encoding="utf-8", errors="backslashreplace")
    except OSError as error:
        raise InputError(f"{path}: cannot be written: {error.strerror or error}") from None
