"""Run the engine on sources given as text."""

from __future__ import annotations

import ast
import re
from collections.abc import Mapping
from functools import lru_cache
from pathlib import Path

from fsdp_migrate.migration import engine
from fsdp_migrate.migration.engine import Options, Result
from fsdp_migrate.planning import rule
from fsdp_migrate.planning.outcome import Outcome

ROOT = Path("/project")
REGISTRY = rule.load()


def migrate(
    files: Mapping[str, str | bytes],
    options: Options | None = None,
    registry: rule.Registry | None = None,
    *,
    edit: bool = True,
) -> tuple[Result, dict[str, str]]:
    """The result of a run over ``files`` (relative path -> source), and every file after it; as
    they are without ``edit``, which only decides."""
    data = {ROOT / n: t.encode() if isinstance(t, str) else t for n, t in files.items()}
    sources, problems = engine.read(data, {ROOT / name: name for name in files})
    assert not problems, problems
    result = engine.rewrite(sources, options, registry or REGISTRY, edit=edit)
    after = {name: text if isinstance(text, str) else text.decode() for name, text in files.items()}
    for path, new in result.changes.items():
        after[path.relative_to(ROOT).as_posix()] = new.decode()
    return result, after


def migrate_once(
    files: Mapping[str, str], options: Options | None = None
) -> tuple[Result, dict[str, str]]:
    """What :func:`migrate` answers, from the run that another test made of the same files. The
    result is for all of them: to look at only."""
    if options is not None:
        return migrate(files, options)
    result, after = _migrated_once(tuple(files.items()))
    return result, dict(after)


@lru_cache(maxsize=32)  # tests of the same files stand together
def _migrated_once(files: tuple[tuple[str, str], ...]) -> tuple[Result, dict[str, str]]:
    return migrate(dict(files))


def rewritten(source: str, **files: str) -> str:
    """``source`` after a run, as the file ``example.py``."""
    named = {f"{name}.py": text for name, text in files.items()}
    _, after = migrate({"example.py": source, **named})
    return after["example.py"]


def files(directory: Path) -> dict[str, str]:
    """Every Python file below a directory, by relative path."""
    found = sorted(directory.rglob("*.py"))
    return {p.relative_to(directory).as_posix(): p.read_text(encoding="utf-8") for p in found}


def migrated(directory: Path) -> dict[str, str]:
    """Every Python file below a directory after a run over it."""
    _, after = migrate(files(directory))
    return after


def outcomes(result: Result) -> list[tuple[str, Outcome]]:
    return [(d.code, d.outcome) for d in result.decisions]


def worst(result: Result) -> Outcome | None:
    order = [Outcome.REWRITTEN, Outcome.REVIEW, Outcome.LEFT]
    found = [d.outcome for d in result.decisions]
    return max(found, key=order.index) if found else None


def without_support(after: Mapping[str, str]) -> dict[str, str]:
    return {p: t for p, t in after.items() if not p.startswith("fsdp2_support")}


def support_functions(after: Mapping[str, str]) -> set[str]:
    """What the files import from the support module."""
    return {
        alias.name
        for text in without_support(after).values()
        for node in ast.walk(ast.parse(text))
        if isinstance(node, ast.ImportFrom) and node.module == "fsdp2_support"
        for alias in node.names
    }


def unmarked(text: str) -> str:
    """``text`` without markers."""
    return re.sub(r"(?m)^[ \t]*# TODO\(fsdp-migrate .*\n(?:[ \t]*#     .*\n)*", "", text)
