"""The ``verify`` command: two trees, or one that is rewritten into a scratch copy."""

from __future__ import annotations

import shutil
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from fsdp_migrate import config, gate, session, ui, write
from fsdp_migrate.commands import BAD, INPUT_ERRORS


def command(
    script: str,
    *,
    args: Sequence[str],
    before: Path | None,
    after: Path | None,
    nproc: int,
    steps: int,
    timeout: float,
    seed: int | None,
    env: Sequence[str],
    keep: Path | None,
    format_: str,
    output: Path | None,
) -> int:
    if format_ not in {"text", "json"}:
        ui.problem(f"--format must be text or json, not {format_!r}")
        return BAD
    scratch: Path | None = None
    try:
        tree, relative, workdir = _locate(script, before)
        if after is None:
            scratch = Path(tempfile.mkdtemp(prefix="fsdp-migrate-"))
            after = _rewritten(tree, scratch / tree.name)
            if after is None:
                return BAD
        extra = {} if seed is None else {"seed": seed}
        return _judge(
            before=tree,
            after=after,
            script=relative,
            args=tuple(args),
            nproc=nproc,
            max_steps=steps,
            timeout=timeout,
            env=_environment(env),
            workdir=workdir,
            keep=keep,
            format_=format_,
            output=output,
            **extra,
        )
    except INPUT_ERRORS as error:
        ui.problem(str(error))
        return BAD
    finally:
        if scratch is not None:
            shutil.rmtree(scratch, ignore_errors=True)


def _locate(script: str, before: Path | None) -> tuple[Path, str, str]:
    """The original's tree, the script in it, and the directory it is run from, relative to it.

    Raises:
        gate.PathProblem: there is no such script or tree.
    """
    here = Path.cwd()
    if before is not None:
        if not before.is_dir():
            raise gate.PathProblem(f"{before}: is not a directory")
        return before.absolute(), script, "."
    if script.startswith("module:"):
        return config.project_root(here), script, "."
    path = Path(script).absolute()
    if not path.is_file():
        raise gate.PathProblem(f"{script}: no such script")
    tree = config.project_root(path)
    workdir = here if here.is_relative_to(tree) else tree
    return tree, path.relative_to(tree).as_posix(), workdir.relative_to(tree).as_posix()


def _rewritten(tree: Path, copy: Path) -> Path | None:
    """A copy of ``tree`` with its FSDP1 rewritten; None (after saying why) when that failed."""
    skipped = shutil.ignore_patterns(*gate.SKIPPED, "*.pyc")
    shutil.copytree(tree, copy, symlinks=True, ignore=skipped)
    run = session.run([copy])
    for problem in run.result.problems:
        ui.problem(f"{problem.display}: {problem.message}")
    if run.result.problems:
        return None
    if not run.result.changes:
        ui.problem(f"{tree}: nothing to rewrite, so there is nothing to compare; give --after")
        return None
    write.write(copy, run.result.changes)
    left = sum(d.outcome.value == "left" for d in run.result.decisions)
    ui.note(
        f"rewrote a scratch copy: {len(run.result.decisions)} sites, {left} left"
        + (" (see fsdp-migrate check)" if left else "")
    )
    return copy


def _environment(pairs: Sequence[str]) -> dict[str, str]:
    found = {}
    for pair in pairs:
        name, equals, value = pair.partition("=")
        if not equals or not name:
            raise config.ConfigError(f"--env must be NAME=VALUE, not {pair!r}")
        found[name] = value
    return found


def _judge(*, format_: str, output: Path | None, **plan: object) -> int:
    from fsdp_migrate.verify.plan import Plan, PlanError
    from fsdp_migrate.verify.report import json as as_json
    from fsdp_migrate.verify.report import text as as_text
    from fsdp_migrate.verify.run import verify

    try:
        report = verify(Plan(**plan), on_event=_progress)  # type: ignore[arg-type]
    except PlanError as error:
        ui.problem(str(error))
        return BAD
    rendered = (as_json if format_ == "json" else as_text).render(report)
    ui.out(rendered)
    if output is not None:
        text = as_json.render(report) if output.suffix == ".json" else as_text.render(report)
        output.write_text(text, encoding="utf-8")
    return report.exit_code


def _progress(event: object) -> None:
    if sys.stderr.isatty():
        ui.note(str(event))
