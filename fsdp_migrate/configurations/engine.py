"""Configurations from bytes to what becomes of them; pure, like the engine for Python."""

from __future__ import annotations

import os
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from fsdp_migrate.configurations import (
    bases,
    commands,
    comments,
    named_files,
    prepared,
    recognise,
    secrets,
    unread,
    vendored,
)
from fsdp_migrate.configurations.block import Block, File
from fsdp_migrate.configurations.entries import Entries
from fsdp_migrate.configurations.formats import cells, json_, steps, yaml
from fsdp_migrate.configurations.formats.text import Refused, Text, applied
from fsdp_migrate.configurations.frameworks import accelerate
from fsdp_migrate.configurations.run import (
    Decided,
    Group,
    Run,
    decide,
    framework,
    groups,
    waits_for,
)
from fsdp_migrate.configurations.settings import Migrate
from fsdp_migrate.configurations.words import Words
from fsdp_migrate.discovery.configuration_files import TEMPLATES
from fsdp_migrate.fsdp1.construct import Construct
from fsdp_migrate.fsdp1.site import Key
from fsdp_migrate.planning.outcome import Outcome
from fsdp_migrate.planning.result import Configured, Problem
from fsdp_migrate.syntax.notebook import Cell, Notebook
from fsdp_migrate.syntax.suppressions import Remarks

Pinned = Callable[[str, Path], tuple[int, ...]]  # of a distribution, for a file
PINNED = {  # distributions whose release decides what becomes of their settings
    recognise.ACCELERATE: "accelerate",
    recognise.TRANSFORMERS: "transformers",
    recognise.COMPOSER: "mosaicml",
}
YAML = (".yaml", ".yml")
JSON = (".json",)
PRECISION = "mixed_precision"
LARGEST = 100_000  # characters that are looked at closely; what is longer is data
RETURNS = "its lines end in a carriage return alone"


@dataclass
class Configurations:
    """The configurations of a tree, in groups that are changed together."""

    groups: list[Group] = field(default_factory=list)
    problems: list[Problem] = field(default_factory=list)
    remarks: dict[str, Remarks] = field(default_factory=dict)  # by the name that files are shown by
    pinned: Pinned = lambda name, path: ()
    calls: frozenset[named_files.Place] = frozenset()  # that are decided with the file they name

    def decide(
        self,
        width: int,
        refusal: Callable[[str, Key], str],
        migrate: Callable[[str], Migrate] | None = None,
        programs: Mapping[str, str] | None = None,
        rewritten: Collection[Path] = (),
    ) -> tuple[list[Configured], dict[Path, bytes]]:
        """What becomes of each setting, and the new contents of the files; ``programs`` says, by
        codes, why a program's side stays, and all that is set beside it with it; ``rewritten`` are
        the notebooks whose Python changes."""
        for group in self.groups:
            code, frameworks = group.runs[0].code, migrate or self._by_pins(group)
            refused = refusal(code, key(group)) or _twice(group, rewritten)
            decide(group, width, refused, frameworks)
            waits = (programs or {}).get(code, "")
            if waits and any(d.outcome is not Outcome.LEFT for d in group.decided):
                decide(group, width, waits, frameworks)
        files = dict.fromkeys(b.file for g in self.groups for b in g.blocks())
        for file in files:
            try:
                self._written(file)
            except Refused as refused:
                for group in self.groups:
                    if any(block.file is file for block in group.blocks()):
                        decide(group, width, str(refused), migrate or self._by_pins(group))
        written = {file: self._written(file) for file in files}
        new = {file: text for file, text in written.items() if text != file.text.text}
        changes = {f.path: text.encode() for f, text in new.items() if f.notebook is None}
        changes |= _renewed(new)
        found = [_configured(decided) for group in self.groups for decided in group.decided]
        return sorted(found, key=lambda c: (str(c.path), c.line, c.column)), changes

    def _by_pins(self, group: Group) -> Callable[[str], Migrate]:
        """What frameworks make of settings, in the releases that the project pins."""
        path = group.runs[0].blocks[0].file.path

        def migrate(code: str) -> Migrate:
            installed = self.pinned(PINNED[code], path) if code in PINNED else ()
            return framework(code, installed)

        return migrate

    def accelerate(self, root: Path) -> dict[str, dict[str, object]]:
        """What accelerate's FSDP is configured with, by the paths of files from ``root``."""
        found: dict[str, dict[str, object]] = {}
        for group in self.groups:
            for run in group.runs:
                settings = run.settings()
                if run.code == recognise.ACCELERATE and accelerate.is_fsdp(settings):
                    for block in run.blocks:
                        values = {name: s.value for name, s in block.settings.items()}
                        path = os.path.relpath(block.file.path, root)
                        found.setdefault(Path(path).as_posix(), {}).update(values)
        return found

    def what_holds_programs(self, width: int) -> str:
        """Why a program's side of accelerate stays where all that is set beside it does."""
        found = []
        for group in self.groups:
            if any(
                run.code == recognise.ACCELERATE and accelerate.is_fsdp(run.settings())
                for run in group.runs
            ):
                decide(group, width, "", self._by_pins(group))
                found.append(waits_for(group))
        return found[0] if found and all(found) else ""

    def _written(self, file: File) -> str:
        edits = [
            edit
            for group in self.groups
            for block, made in group.edits.items()
            if block.file is file
            for edit in made
        ]
        return applied(file.text.text, edits)


def _twice(group: Group, rewritten: Collection[Path]) -> str:
    """Why settings wait that stand in a notebook whose Python changes."""
    waits = any(b.file.notebook is not None and b.file.home in rewritten for b in group.blocks())
    return "the Python of this notebook changes first: run again" if waits else ""


def _renewed(new: Mapping[File, str]) -> dict[Path, bytes]:
    """The notebooks with new text in some of their cells."""
    found: dict[Notebook, dict[Cell, str]] = {}
    for file, text in new.items():
        if file.notebook is not None and file.part is not None:
            found.setdefault(file.notebook, {})[file.part.cell] = file.part.magic + text
    return {notebook.path: notebook.renewed(changed) for notebook, changed in found.items()}


def key(group: Group) -> Key:
    """What tells a group from others, in the way of a decision about code."""
    block = group.runs[0].blocks[0]
    line, column = block.file.text.place(block.head.start)
    return block.file.home, (block.file.line(line), column), Construct.parse(block.code)


def read(
    files: Mapping[Path, bytes],
    display: Callable[[Path], str],
    root: Path,
    pinned: Pinned = lambda name, path: (),
    sources: Mapping[Path, bytes] | None = None,
    python: Callable[[], Iterable[tuple[Path, bytes]]] = tuple,
) -> Configurations:
    """Read everything that may be a configuration.

    Args:
        pinned: knows the releases of the frameworks.
        sources: the Python files beside it that may meet FSDP1.
        python: gives all Python files, for what is asked of them once, if at all.
    """
    found = Configurations(pinned=pinned)
    blocks: list[Block] = []
    for path, data in sorted(files.items()):
        shown = display(path)
        try:
            text = data.decode()
        except UnicodeDecodeError:
            if path.suffix != cells.SUFFIX and recognise.LOOKS.search(data):
                found.problems.append(Problem(shown, "is not UTF-8"))
            continue
        if path.suffix == cells.SUFFIX:
            looked_at = list(_cells(data, path, shown))
        else:
            looked_at = [File(path, shown, Text(text))]
        for file in looked_at:
            try:
                blocks += _blocks(file, file.text.text.encode() if file.part else data)
            except (yaml.NotYaml, json_.NotJson) as error:
                what = "JSON" if isinstance(error, json_.NotJson) else "YAML"
                message = f"is not {what}: {error.message} (column {error.column})"
                line, cell = file.of_cell(error.line)
                found.problems.append(Problem(shown, message, line, cell=cell))
                continue
            if not file.part and (file.remarks.ignores or file.remarks.markers):
                found.remarks[shown] = file.remarks
    sound = []
    for block in blocks:
        twice = _repeated(block)
        if twice is None:
            sound.append(block)
        elif twice not in found.problems:
            found.problems.append(twice)
    named = named_files.read(
        files, sources or {}, sound, display, root, lambda path: pinned("transformers", path)
    )
    found.calls = frozenset(named.calls)
    runs = [*named.runs, *_runs(sound, root, named.blocks())]
    old = vendored.too_old(sources or {}, display)
    of_accelerate = [run for run in runs if run.code == recognise.ACCELERATE]
    precise = [run for run in of_accelerate if PRECISION in run.settings()]
    stored = vendored.storage(python, display) if precise else []
    for run in precise:
        cast = accelerate.DTYPES.get(str(run.settings()[PRECISION].value).upper(), "")
        run.beside += [s for s in stored if not str(s.value).startswith(cast)][:1]
    apart = prepared.apart(python, display) if of_accelerate else None
    for run in of_accelerate:
        run.beside += [apart] if apart is not None else []
    for run in runs:
        run.reason = run.reason or old.get(run.code, "")
    found.groups = groups(runs)
    return found


def _cells(data: bytes, path: Path, shown: str) -> Iterator[File]:
    notebook, parts = cells.parts(data, path) if cells.LOOKS.search(data) else (None, [])
    for part in parts:
        yield File(part.path, shown, Text(part.text), notebook=notebook, part=part)


def _blocks(file: File, data: bytes) -> Sequence[Block]:
    text = file.text
    suffix = file.path.suffix.lower()
    if suffix in TEMPLATES:
        return unread.block(file, unread.TEMPLATE)
    if suffix not in YAML + JSON:
        return commands.blocks(file)
    looks = recognise.is_called_fsdp(file) or recognise.LOOKS.search(data) is not None
    if not looks:
        return ()
    if len(text.text) > LARGEST:
        return unread.block(file, f"a file of more than {LARGEST:,} characters is not read")
    if suffix in JSON:
        document = json_.read(text.text)
        return recognise.blocks_of_json(file, document)
    try:
        documents = yaml.read(text.text)
    except yaml.NotYaml:
        if yaml.is_template(text.text):
            return unread.block(file, unread.TEMPLATE)
        raise
    file.remarks = comments.remarks(text, comments.words_of(documents))
    found = recognise.blocks_of_yaml(file, documents)
    if steps.has_steps(documents):
        found += _in_steps(file, found)
    found = found or recognise.flag_elsewhere(file, documents)
    if "\r" in text.text.replace("\r\n", ""):
        for block in found:
            block.reason = block.reason or RETURNS
    return found


def _in_steps(file: File, found: Sequence[Block]) -> list[Block]:
    """The commands of a workflow; one that has the same variables in YAML and in shell is left."""
    inside = commands.blocks(file)
    settings = [block for block in found if block.code == recognise.ACCELERATE]
    for block in (*settings, *inside) if settings and inside else ():
        block.reason = block.reason or "this file sets FSDP in its steps and beside them"
    return inside


def _repeated(block: Block) -> Problem | None:
    """What is wrong with a block that has a key twice."""
    if not isinstance(block, Entries):
        return None
    for mapping in (block.top, *filter(None, map(block.top.below, block.sections))):
        pair = mapping.repeated()
        if pair is not None:
            text = block.file.text
            line, column = text.place(pair.at.start)
            first = mapping.get(pair.key)
            before = text.line_at(first.at.start) if first is not None else line
            message = f"{pair.key} stands there twice, in line {before} and here (column {column})"
            return Problem(block.file.display, message, line)
    return None


def _runs(blocks: Sequence[Block], root: Path, used: set[Block]) -> Iterator[Run]:
    """The runs of all blocks: each file by itself, and with what names it; those that are ``used``
    have one already."""
    files: dict[Path, list[Block]] = {}
    for block in blocks:
        files.setdefault(block.file.path, []).append(block)
    for block in blocks:
        if not isinstance(block, Words) or block.is_base:
            continue
        for base, reason in bases.of_command(block, files, root):
            used.update(base if block.code != recognise.ACCELERATE else ())
            yield Run([*base, block], reason)
    for block in blocks:
        inner = bases.of_recipe(block, files, root) if isinstance(block, Entries) else []
        if inner:
            used.update([*inner, block])
            yield Run([*inner, block])
    for block in blocks:
        if block not in used and not isinstance(block, Words):
            yield Run([block])


def _configured(decided: Decided) -> Configured:
    block = decided.block
    text = block.file.text
    change = decided.change
    span = block.span(change.old)
    line, column = text.place(span.start)
    first, cell = block.file.of_cell(line)
    end = text.line_at(max(span.start, span.end - 1))
    width = (span.end if end == line else text.start_of(line) + len(text.line(line))) - span.start
    return Configured(
        path=block.file.home,
        display=block.file.display,
        cell=cell,
        file_line=block.file.line(line) if cell else 0,
        line=first,
        column=column,
        width=max(1, width),
        end_line=first - line + end,
        code=block.code,
        outcome=change.outcome,
        name=change.old or (change.new[0] if change.new else "settings"),
        message=_message(decided),
        help=change.help,
        source=secrets.masked_line(text.line(line)),
        held=decided.held,
        ignore=decided.ignore,
        ignoring=decided.ignoring,
    )


def _message(decided: Decided) -> str:
    """What is said of a change: with what comes in its place, where something does."""
    change = decided.change
    if change.outcome is Outcome.LEFT:
        return change.message
    if change.new is None:
        return f"gone: {change.message}"
    name, value = change.new
    shown = str(value).lower() if isinstance(value, bool) else str(value)
    if not change.old:
        return f"added as {shown}: {change.message}"
    setting = decided.block.settings[change.old]
    if (name, value) == (change.old, setting.value):
        return f"stays: {change.message}"
    return f"{shown if name == change.old else f'{name}: {shown}'}: {change.message}"
