"""How long the tool's changes are, beside those that a person makes: ``python -m tests.measure``.

Every program in ``fixtures/by_hand`` was migrated by a person who did not look at what the tool
writes. Its FSDP1 version is its ``before/``, or the program of the same name elsewhere in
``fixtures/``. Lines are those that ``git diff --no-index --numstat`` counts, the added and the
removed together, blank lines and support files included.
"""

from __future__ import annotations

import argparse
import ast
import difflib
import json
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Iterator, Sequence, Set
from dataclasses import asdict, dataclass
from pathlib import Path
from shutil import copytree, ignore_patterns

from fsdp_migrate.cli import config, session
from fsdp_migrate.planning import support_library
from fsdp_migrate.planning.outcome import Outcome
from fsdp_migrate.syntax import name_table_builder
from fsdp_migrate.syntax.name_table import NameTable
from tests.corpus import packages

FIXTURES = Path(__file__).parents[1] / "fixtures"
BY_HAND = FIXTURES / "by_hand"
MARKER = "# TODO(fsdp-migrate"

# Functions of the support module that take what FSDP1 took, and decide when the program runs.
RUN_TIME_FORMS = {
    "ShardedModule",
    "get_state_dict_type",
    "load_model_state_dict",
    "model_state_dict",
    "optim_state_dict",
    "optim_state_dict_to_load",
    "set_state_dict_type",
    "shard",
    "shard_by_policy",
    "sharding_kwargs",
    "state_dict_type",
}


@dataclass(frozen=True)
class Figures:
    """What became of one tree."""

    name: str
    before: int  # lines of Python in the FSDP1 version
    hand: int | None  # lines that a person changed
    tool: int  # lines that the tool changed
    support: int  # of those, lines of support files
    inside: int  # and lines of support functions in the program's own files
    forms: int  # uses of run-time forms
    markers: int
    longest: int  # columns of the longest new line outside of support files
    long: int  # new lines beyond the tree's own limit, and longer than what they replace
    left: int  # sites that the tool did not migrate

    @property
    def ratio(self) -> float | None:
        """The tool's lines by the person's, if the tool migrated all that the person did."""
        return None if self.hand is None or self.left else self.tool / self.hand


HEAD = (
    "| program | before | hand | tool | ratio | support | inside | run-time forms | markers "
    "| longest line | too long | left |\n|---|--:|--:|--:|--:|--:|--:|--:|--:|--:|--:|--:|"
)


# -- measuring ------------------------------------------------------------------------------------


def version_before(name: str) -> Path:
    """The FSDP1 version of a program that was migrated by hand."""
    places = (BY_HAND / name, FIXTURES / name, FIXTURES / "programs" / name)
    found = [place / "before" for place in places] + [FIXTURES / "rewriting" / name]
    return next(place for place in found if place.is_dir())


def measure(
    name: str, tree: Path, scratch: Path, *, hand: Path | None = None, target: str = ""
) -> Figures:
    """Run the tool on a copy of ``tree``, which it leaves in ``scratch``, and count."""
    before, after = copied(tree, scratch / "before"), copied(tree, scratch / "after")
    run = session.run([after], target=target or None)
    for path, data in run.result.changes.items():
        path.write_bytes(data)
    texts = {after / name: text for name, text in packages.texts(after).items()}
    support = {p for p in run.created if p.stem.startswith(support_library.NAME)}
    own = {path: text for path, text in texts.items() if path not in support}
    origin = {after / name: text for name, text in packages.texts(before).items()}
    defined = {path: new_definitions(origin.get(path, ""), text) for path, text in own.items()}
    old = {line for text in origin.values() for line in text.splitlines()}
    new = [line for text in own.values() for line in text.splitlines() if line not in old]
    limit = config.load(after).line_length
    kept, grown = long_lines(((origin.get(path, ""), text) for path, text in own.items()), limit)
    return Figures(
        name,
        before=sum(len(text.splitlines()) for text in origin.values()),
        hand=changed_lines(before, copied(hand, scratch / "hand")) if hand else None,
        tool=changed_lines(before, after),
        support=sum(len(texts[path].splitlines()) for path in support),
        inside=sum(sum(found.values()) for found in defined.values()),
        forms=sum(run_time_forms(text, set(defined[path])) for path, text in own.items()),
        markers=sum(line.lstrip().startswith(MARKER) for line in new),
        longest=max((len(line) for line in new if line not in kept), default=0),
        long=len(grown),
        left=run.result.count(Outcome.LEFT),
    )


def copied(tree: Path, target: Path) -> Path:
    return Path(copytree(tree, target, ignore=ignore_patterns("__pycache__")))


def difference(before: Path, after: Path, *options: str) -> str:
    command = ["git", "--no-pager", "diff", "--no-index", "--no-renames", "--no-ext-diff", *options]
    command += [before.name, after.name]
    done = subprocess.run(command, cwd=before.parent, capture_output=True, text=True, check=False)
    if done.returncode not in {0, 1}:
        raise RuntimeError(done.stderr)
    return done.stdout


def changed_lines(before: Path, after: Path) -> int:
    """Added and removed lines; ``before`` and ``after`` stand in one directory."""
    counts = [line.split("\t")[:2] for line in difference(before, after, "--numstat").splitlines()]
    return sum(int(count) for pair in counts for count in pair if count != "-")  # "-": not text


def long_lines(files: Iterable[tuple[str, str]], limit: int) -> tuple[set[str], list[str]]:
    """The new lines of more than ``limit`` columns, by what stood there before: those that were as
    long (something in them became shorter, or what is around them was taken off), and the rest."""
    kept: set[str] = set()
    grown: list[str] = []
    for before, after in files:
        if before == after:
            continue
        old, new = before.splitlines(), after.splitlines()
        matcher = difflib.SequenceMatcher(None, old, new, autojunk=False)
        for kind, first, last, start, end in matcher.get_opcodes():
            gone = old[first:last]
            for line in new[start:end] if kind != "equal" else ():
                if len(line) > limit:
                    alike = difflib.get_close_matches(line, gone, n=1)
                    if alike and len(alike[0]) >= len(line):
                        kept.add(line)
                    else:
                        grown.append(line)
    return kept, grown


def new_definitions(before: str, after: str) -> dict[str, int]:
    """The support functions that a file defines since it was rewritten, and the lines of each."""
    if before == after:
        return {}
    there = {node.name for node in ast.parse(before).body if isinstance(node, ast.FunctionDef)}
    return {
        node.name: (node.end_lineno or 0) - node.lineno + 1
        for node in ast.parse(after).body
        if isinstance(node, ast.FunctionDef)
        if node.name in support_library.definitions() and node.name not in there
    }


def run_time_forms(source: str, defined: Set[str] = frozenset()) -> int:
    """How often a file names what it imports from the support module, or defines of it, to decide
    at run time."""
    if support_library.NAME not in source and not defined:
        return 0
    tree = ast.parse(source)
    table = name_table_builder.build(tree)
    imported = {
        alias
        for node in ast.walk(tree)
        if isinstance(node, ast.ImportFrom)
        and (node.module or "").rpartition(".")[2].startswith(support_library.NAME)
        for alias in node.names
        if alias.name in RUN_TIME_FORMS
    }
    forms = RUN_TIME_FORMS & defined
    return sum(_means(name, imported, forms, table) for name in table.names)


def _means(name: ast.Name, imported: Set[ast.AST], forms: Set[str], table: NameTable) -> bool:
    """Whether a name stands for an import, or for a function of the file's own: not for a local
    variable of the same name."""
    owner = table.within[name].lookup(name.id)
    bound = owner.bindings[name.id] if owner is not None else []
    if name.id in forms and owner in {None, table.module}:
        return True
    return any(binding.node in imported for binding in bound)


def programs(scratch: Path, target: str) -> Iterator[Figures]:
    """Every program that was migrated by hand."""
    for hand in sorted(BY_HAND.glob("*/after")):
        name = hand.parent.name
        yield measure(name, version_before(name), scratch / name, hand=hand, target=target)


def corpus(scratch: Path, target: str) -> Iterator[Figures]:
    """The published packages that ``FSDP_MIGRATE_CORPUS`` holds, or that can be downloaded."""
    wheels = packages.directory(scratch)
    if not all(packages.wheel(each, wheels) for each in packages.PINNED):
        packages.download(scratch)
    for each in packages.PINNED:
        root = packages.unpack(each, wheels, scratch / "packages")
        yield measure(each.name, root, scratch / each.name, target=target)


# -- telling --------------------------------------------------------------------------------------


def table(rows: Sequence[Figures]) -> str:
    """A table of Markdown, with the sums below."""
    lines = [HEAD]
    for row in (*rows, total(rows)):
        ratio = "-" if row.ratio is None else f"{row.ratio:.2f}"
        hand = "-" if row.hand is None else row.hand
        lines.append(
            f"| {row.name} | {row.before} | {hand} | {row.tool} | {ratio} | {row.support} "
            f"| {row.inside} | {row.forms} | {row.markers} | {row.longest} | {row.long} "
            f"| {row.left} |"
        )
    return "\n".join(lines)


def total(rows: Sequence[Figures]) -> Figures:
    """The sums of all rows, and the longest line. Where sites are left, there is no ratio."""
    columns = {name: [getattr(row, name) for row in rows] for name in Figures.__annotations__}
    sums = {name: sum(n or 0 for n in found) for name, found in columns.items() if name != "name"}
    hand = sums["hand"] or None
    return Figures("all", **{**sums, "hand": hand, "longest": max(columns["longest"])})


def summary(rows: Sequence[Figures]) -> str:
    """The figures beside what they should be."""
    whole = [row for row in rows if row.ratio is not None]
    ratios = {row.name: row.ratio or 0.0 for row in whole}
    worst = max(ratios, key=ratios.__getitem__)
    sums = total(whole)
    hand = sums.hand or 1
    bare = sum(not row.support for row in rows)
    long = sum(row.long for row in rows)
    lines = [
        f"migrated whole: {len(whole)} of {len(rows)} programs; ratios are of those",
        f"the tool's lines by the hand's, in all: {sums.tool / hand:.2f} (should be 1.5 or less)",
        f"in the worst program, {worst}: {ratios[worst]:.2f} (should be 2 or less; "
        f"{sum(ratio > 2 for ratio in ratios.values())} are above)",
        f"without support files, in all: {(sums.tool - sums.support) / hand:.2f}",
        f"programs without a support file: {bare} of {len(rows)}, {100 * bare // len(rows)} % "
        "(should be 60 % or more)",
        f"noise: {sum(row.markers for row in rows)} markers, {sum(row.forms for row in rows)} "
        f"run-time forms, {long} lines longer than the project's own limit",
    ]
    return "\n".join(f"- {line}" for line in lines)


def main(arguments: Sequence[str]) -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.measure", description=__doc__)
    parser.add_argument("--tree", nargs="+", type=Path, help="measure these trees instead")
    parser.add_argument("--corpus", action="store_true", help="measure published packages instead")
    parser.add_argument("--show", metavar="NAME", help="print both changes of one program instead")
    parser.add_argument("--target", default="", help="the release of torch [the tool's default]")
    parser.add_argument("--json", metavar="FILE", type=Path, help="write the figures there as well")
    asked = parser.parse_args(arguments)
    with tempfile.TemporaryDirectory() as made:
        scratch = Path(made).resolve()
        if asked.show:
            hand = BY_HAND / asked.show / "after"
            before = version_before(asked.show)
            measure(asked.show, before, scratch, hand=hand, target=asked.target)
            for side in ("hand", "after"):
                print(f"\n==== {'tool' if side == 'after' else side} ====\n")
                print(difference(scratch / "before", scratch / side))
            return
        if asked.tree:
            rows = [
                measure(str(path), path, scratch / str(number), target=asked.target)
                for number, path in enumerate(asked.tree)
            ]
        else:
            rows = list((corpus if asked.corpus else programs)(scratch, asked.target))
    print(table(rows))
    if not asked.tree and not asked.corpus:
        print(f"\n{summary(rows)}")
    if asked.json:
        asked.json.write_text(json.dumps([asdict(row) for row in rows], indent=1) + "\n")


if __name__ == "__main__":
    main(sys.argv[1:])
