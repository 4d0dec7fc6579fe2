"""Write down what the engine now emits: ``python -m tests.tools.accept [CODE ...]``.

Renews the *After* blocks of the rules' pages and, without CODE, the fixtures' ``after``, and prints
what changed. For whoever changes emission: run it, then read the difference as a reviewer. A new
example needs a title and *Before*; the rest is written here.
"""

from __future__ import annotations

import difflib
import sys
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

from fsdp_migrate.planning import pages
from fsdp_migrate.planning.outcome import Outcome
from fsdp_migrate.planning.rule import PYTHON, Example, Keep, LoadedRule
from tests.configurations.writing import NAMES, write
from tests.helpers.migrating import (
    REGISTRY,
    files,
    migrate,
    migrated,
    support_functions,
    without_support,
    worst,
)

LANGUAGES = {"py": "python", "yaml": "yaml", "json": "json", "sh": "sh"}  # by suffix
PROJECTS = (Path(__file__).parents[2] / "fixtures" / "demo",)


def accepted(example: Example) -> Example:
    """An example with what its sources become now."""
    if example.language != PYTHON:
        return _accepted_configuration(example)
    sources = {"example.py": example.before}
    sources |= {path: before for path, (before, _) in example.files.items()}
    result, after = migrate(sources)
    kept = without_support(after)
    outcome = worst(result)
    if outcome is None:
        raise SystemExit(f"{example.title}: has no site")
    return replace(
        example,
        after=kept["example.py"],
        outcome=outcome,
        files={path: (before, kept[path]) for path, (before, _) in example.files.items()},
        support=tuple(sorted(support_functions(after))),
    )


def _accepted_configuration(example: Example) -> Example:
    name = NAMES[example.language]
    found = write({name: example.before} | {p: b for p, (b, _) in example.files.items()}, None)
    outcome = found.worst()
    if outcome is None:
        raise SystemExit(f"{example.title}: has no site")
    files = {path: (before, found.after[path]) for path, (before, _) in example.files.items()}
    return replace(example, after=found.after[name], outcome=outcome, files=files)


def page(document: str, examples: Sequence[Example], keeps: Sequence[Keep]) -> str:
    """A rule's page, which :mod:`fsdp_migrate.planning.pages` reads."""
    summary, _, rest = document.partition("\n")
    parts = [f"# {summary.rstrip('.')}\n{rest}".rstrip()]
    for heading, blocks in (
        (pages.EXAMPLES, [line for example in examples for line in _example(example)]),
        (pages.KEEPS, [line for keep in keeps for line in _keep(keep)]),
    ):
        if blocks:
            parts += [f"## {heading}", *blocks]
    return "\n\n".join(parts) + "\n"


def _example(example: Example) -> Iterator[str]:
    yield f"### {example.title}"
    if example.outcome is not Outcome.REWRITTEN:
        yield f"Outcome: {example.outcome.value}"
    if example.support:
        yield f"Support: {', '.join(example.support)}"
    own = example.language
    yield from ("Before:", _fenced(example.before, own), "After:", _fenced(example.after, own))
    for path, (before, after) in example.files.items():
        language = LANGUAGES.get(path.rpartition(".")[2], own)
        yield from (f"`{path}` before:", _fenced(before, language))
        yield from (f"`{path}` after:", _fenced(after, language))


def _keep(keep: Keep) -> Iterator[str]:
    yield f"### {keep.title}"
    if keep.left:
        yield f"Outcome: {Outcome.LEFT.value}"
    yield _fenced(keep.source, keep.language)


def _fenced(code: str, language: str) -> str:
    return f"```{language}\n{code}```"


def accept(rule: LoadedRule) -> str:
    """Renew one rule's page; the difference it makes."""
    path = rule.path.with_suffix(".md")
    document = pages.page_of(rule.path).document
    return _written(path, page(document, [accepted(e) for e in rule.all_examples], rule.all_keeps))


def accept_project(project: Path) -> str:
    """Renew ``after`` of a fixture made by the tool; the difference it makes."""
    new = migrated(project / "before")
    old = files(project / "after")
    said = [_written(project / "after" / name, text) for name, text in new.items()]
    for name in set(old) - set(new):
        (project / "after" / name).unlink()
        said.append(f"{name} is gone\n")
    return "".join(said)


def _written(path: Path, new: str) -> str:
    old = path.read_text(encoding="utf-8") if path.exists() else ""
    if old == new:
        return ""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(new, encoding="utf-8")
    lines = (old.splitlines(keepends=True), new.splitlines(keepends=True))
    return "".join(difflib.unified_diff(*lines, path.name, path.name))


def main(codes: Sequence[str]) -> None:
    for rule in REGISTRY.rules.values():
        if rule.rule.hazards is None and (not codes or rule.code in codes):
            sys.stdout.write(accept(rule))
    for project in () if codes else PROJECTS:
        sys.stdout.write(accept_project(project))


if __name__ == "__main__":
    main(sys.argv[1:])
