"""Renew what is generated in docs/: ``python -m tests.tools.documents [PART ...]``.

``rules`` are the tables of rules, ``coverage`` those of ``tests/coverage``, ``torchtitan`` is the
code that is set beside torchtitan's, ``guide`` that of the guide from FSDP1 to FSDP2,
``first-contact`` the table of all first runs, ``measure`` that of ``make measure``.
``configurations`` are settings of accelerate, which is run on each. ``corpus`` runs the tool on the
published packages of ``tests/corpus/requirements.txt`` and takes minutes;
``FSDP_MIGRATE_CORPUS`` names a directory to keep the downloads in.
"""

from __future__ import annotations

import ast
import re
import sys
import tempfile
from collections.abc import Sequence
from itertools import groupby
from pathlib import Path

from fsdp_migrate.planning.pages import Page, pages
from tests import measure
from tests.configurations import axolotl_table, lightning_table, table, trainer_table
from tests.corpus import packages
from tests.coverage import OUTCOMES, Row, construct, runtime, silent
from tests.helpers.migrating import migrate, migrated
from tests.tools import first_contact

ROOT = Path(__file__).parents[2]
README = ROOT / "README.md"
GUIDE = ROOT / "docs" / "fsdp1-to-fsdp2.md"
CONFIGURATIONS = ROOT / "docs" / "configurations.md"
CORPUS = ROOT / "docs" / "corpus.md"
COVERAGE = ROOT / "docs" / "coverage.md"
FIRST_CONTACT = ROOT / "docs" / "first-contact.md"
MEASURE = ROOT / "docs" / "measure.md"
RULES = ROOT / "docs" / "rules.md"
TORCHTITAN = ROOT / "docs" / "torchtitan.md"
GUIDED = """\
from torch import nn


class Block(nn.Module):
    def forward(self, x):
        return x.float()


class Net(nn.Sequential):
    def __init__(self):
        super().__init__(nn.Linear(4, 4), Block())
"""
DECODER = ROOT / "fixtures" / "by_hand" / "lm_pretrain" / "before"


def between(name: str, text: str, new: str) -> str:
    """``text`` with what stands between the markers of ``name`` replaced.

    Raises:
        ValueError: there are no such markers.
    """
    pattern = rf"(<!-- {name}: .*? -->\n).*?(<!-- /{name} -->)"
    result, count = re.subn(
        pattern, lambda m: f"{m.group(1)}{new}\n{m.group(2)}", text, flags=re.DOTALL
    )
    if count != 1:
        raise ValueError(f"{name} is marked {count} times")
    return result


def rules() -> str:
    """A table of rules for every family, each with a link to its page."""
    families: dict[str, list[Page]] = {}
    for page in pages():
        families.setdefault(page.path.parent.name, []).append(page)
    parts = []
    for family, found in sorted(families.items()):
        rows = [f"| [{p.code}]({_link(p)}) | {p.summary} |" for p in found]
        title = family.replace("_", " ").capitalize()
        parts.append("\n".join([f"## {title}", "", "| rule | what it does |", "|---|---|", *rows]))
    return "\n\n".join(parts)


def _link(page: Page) -> str:
    return f"../{page.path.with_suffix('.md').relative_to(ROOT).as_posix()}"


def with_rules(document: str) -> str:
    return between("rules", document, rules())


def coverage(rows: Sequence[Row], sections: dict[str, str]) -> str:
    """A table a section, and how many rows end how."""
    counted = [f"{sum(r.outcome == o for r in rows)} {o}" for o in OUTCOMES]
    parts = [f"{len(rows)} rows: {', '.join(counted)}."]
    for section, listed in groupby(rows, key=lambda row: row.section):
        parts.append(f"### {section} {sections[section]}")
        lines = ["| FSDP1 | what becomes of it | outcome | shown by | trained by |"]
        lines += ["|---|---|---|---|---|", *map(_coverage_row, listed)]
        parts.append("\n".join(lines))
    return "\n\n".join(parts)


def _coverage_row(row: Row) -> str:
    shown = f"{row.rule}: {row.example.removeprefix('tests/')}" if row.rule else ""
    _, _, case = row.trained.partition("::test_")
    cells = (row.fsdp1, row.becomes, row.outcome, shown, case)
    return f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in cells)} |"


def silent_failures() -> str:
    """The table of what the obvious code gets wrong without an error."""
    lines = ["| the obvious code | what comes of it | seen in | ours in |", "|---|---|---|---|"]
    for row in silent.ROWS:
        shown = [test.partition("::test_")[2] for test in (row.fails, row.ours or row.fails)]
        lines.append(f"| {' | '.join((row.naive, row.happens, *shown))} |")
    return "\n".join(lines)


def with_coverage(document: str) -> str:
    document = between("silent", document, silent_failures())
    document = between("construct", document, coverage(construct.ROWS, construct.SECTIONS))
    return between("runtime", document, coverage(runtime.ROWS, runtime.SECTIONS))


def with_configurations(document: str) -> str:
    """Settings of accelerate, and what it does with each result; a minute of running it."""
    return between("configurations", document, table.document(table.ROWS))


def with_lightning(document: str) -> str:
    """The table of Lightning's settings; ``tests/configurations/test_lightning_runs.py`` trains
    what its rows say."""
    return between("lightning", document, lightning_table.document(lightning_table.ROWS))


def with_trainer(document: str) -> str:
    """The table of transformers' settings; ``tests/configurations/test_trainer_table.py`` trains
    what its rows say."""
    return between("trainer", document, trainer_table.document(trainer_table.ROWS))


def with_axolotl(document: str) -> str:
    """The table of axolotl's settings; ``tests/configurations/test_released.py`` asks axolotl."""
    return between("axolotl", document, axolotl_table.document(axolotl_table.ROWS))


def corpus_table(rows: Sequence[packages.Row]) -> str:
    head = "| package | files | sites | rewritten | review | left | migrated | seconds |"
    lines = [head, "|---|--:|--:|--:|--:|--:|--:|--:|"]
    for row in rows:
        share = f"{row.share} %" if row.sites else "none to migrate"
        lines.append(
            f"| {row.name} {row.version} | {row.files:,} | {row.sites} | {row.rewritten} "
            f"| {row.review} | {row.left} | {share} | {row.seconds:.1f} |"
        )
    return "\n".join(lines)


def corpus_reasons(rows: Sequence[packages.Row]) -> str:
    """Why sites were left, package by package, most frequent first."""
    parts = []
    for row in rows:
        if row.reasons:
            listed = [f"- {count} x {reason}" for reason, count in row.reasons]
            parts.append("\n".join([f"### {row.name}", "", *listed]))
    return "\n\n".join(parts)


def with_torchtitan(document: str) -> str:
    """What the migration of a decoder's program writes, without the rest of the program."""
    source = migrated(DECODER)["train.py"]
    functions = {n.name: n for n in ast.parse(source).body if isinstance(n, ast.FunctionDef)}
    names = ("build_model", "save_checkpoint", "load_checkpoint")
    shown = [ast.get_source_segment(source, functions[name]) or "" for name in names]
    return between("torchtitan", document, "```python\n" + "\n\n\n".join(shown) + "\n```")


def with_guide(document: str) -> str:
    """What becomes of each program of the guide, in the place of what stood there."""

    def renewed(pair: re.Match[str]) -> str:
        _, after = migrate({"example.py": pair[1], "model.py": GUIDED})
        return (
            f"Before:\n\n```python\n{pair[1]}```\n\nAfter:\n\n```python\n{after['example.py']}```"
        )

    pattern = r"Before:\n\n```python\n(.*?)```\n\nAfter:\n\n```python\n.*?```"
    return re.sub(pattern, renewed, document, flags=re.DOTALL)


def with_first_contact(document: str) -> str:
    return between("first-contact", document, first_contact.summary())


def with_measure(document: str) -> str:
    """How long the migrations of the programs are that were migrated by hand as well."""
    with tempfile.TemporaryDirectory() as scratch:
        rows = list(measure.programs(Path(scratch).resolve(), ""))
    return between("measure after", document, f"{measure.table(rows)}\n\n{measure.summary(rows)}")


def renew_corpus() -> None:
    with tempfile.TemporaryDirectory() as scratch:
        wheels = packages.download(Path(scratch))
        rows = [
            packages.measure(package, packages.unpack(package, wheels, Path(scratch)))
            for package in packages.PINNED
        ]
    document = CORPUS.read_text(encoding="utf-8")
    document = between("corpus", document, corpus_table(rows))
    document = between("reasons", document, corpus_reasons(rows))
    CORPUS.write_text(document, encoding="utf-8")


def main(parts: Sequence[str]) -> None:
    if not parts or "rules" in parts:
        RULES.write_text(with_rules(RULES.read_text(encoding="utf-8")), encoding="utf-8")
    if not parts or "coverage" in parts:
        COVERAGE.write_text(with_coverage(COVERAGE.read_text(encoding="utf-8")), encoding="utf-8")
    if not parts or "configurations" in parts:
        text = with_configurations(CONFIGURATIONS.read_text(encoding="utf-8"))
        text = with_axolotl(with_trainer(with_lightning(text)))
        CONFIGURATIONS.write_text(text, encoding="utf-8")
    if not parts or "torchtitan" in parts:
        text = with_torchtitan(TORCHTITAN.read_text(encoding="utf-8"))
        TORCHTITAN.write_text(text, encoding="utf-8")
    if not parts or "guide" in parts:
        GUIDE.write_text(with_guide(GUIDE.read_text(encoding="utf-8")), encoding="utf-8")
    if not parts or "first-contact" in parts:
        text = with_first_contact(FIRST_CONTACT.read_text(encoding="utf-8"))
        FIRST_CONTACT.write_text(text, encoding="utf-8")
    if not parts or "measure" in parts:
        MEASURE.write_text(with_measure(MEASURE.read_text(encoding="utf-8")), encoding="utf-8")
    if not parts or "corpus" in parts:
        renew_corpus()


if __name__ == "__main__":
    main(sys.argv[1:])
