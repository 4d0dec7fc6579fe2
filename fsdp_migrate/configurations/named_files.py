"""Files that a call of transformers' ``TrainingArguments`` names: one run with that call.

``fsdp`` stands in the call and the rest in the file, so that both are read as one. Only the file
changes: ``fsdp="full_shard"`` means the same under version 2. Where the call is not plain enough
for that, its own rule says so, and the file waits.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Callable, Iterator, Sequence
from collections.abc import Mapping as Mapped
from dataclasses import dataclass, field
from pathlib import Path
from typing import ClassVar

from fsdp_migrate.configurations import recognise
from fsdp_migrate.configurations.block import Block, File
from fsdp_migrate.configurations.entries import Entries
from fsdp_migrate.configurations.formats import json_
from fsdp_migrate.configurations.formats.text import Edit, Span, Text
from fsdp_migrate.configurations.formats.tree import Mapping
from fsdp_migrate.configurations.frameworks import transformers
from fsdp_migrate.configurations.recognise import SECTION, TRANSFORMERS
from fsdp_migrate.configurations.run import Run
from fsdp_migrate.configurations.settings import Change, Setting
from fsdp_migrate.planning.outcome import Outcome
from fsdp_migrate.syntax.expressions import last_name

LOOKS = re.compile(rb"\bfsdp_config[ \t]*=[ \t]*[\"'(]")
BESIDE = ("fsdp", "bf16", "fp16")
JSON = ".json"

Place = tuple[Path, int]  # of a call: its file, and its line


@dataclass(eq=False)
class Call(Block):
    """What a call says beside the file that it names; it stays as it is."""

    is_fixed: ClassVar[bool] = True

    def edit(self, changes: Sequence[Change], width: int) -> list[Edit]:
        return []

    def mark(self, name: str, sentence: str, width: int) -> list[Edit]:
        return []


@dataclass
class Named:
    """The runs of such files, and the calls that are no sites of their own."""

    runs: list[Run] = field(default_factory=list)
    calls: set[Place] = field(default_factory=set)

    def blocks(self) -> set[Block]:
        return {block for run in self.runs for block in run.blocks}


def read(
    files: Mapped[Path, bytes],
    sources: Mapped[Path, bytes],
    blocks: Sequence[Block],
    display: Callable[[Path], str],
    root: Path,
    pinned: Callable[[Path], tuple[int, ...]],
) -> Named:
    """The files that calls in ``sources`` name; those of ``blocks`` are used again."""
    found = Named()
    of_files = {
        b.file.path: b
        for b in blocks
        if isinstance(b, Entries) and b.code == TRANSFORMERS and b.file.path.suffix == JSON
    }
    for path, data in sorted(sources.items()):
        for call, name in _calls(path, data):
            named = _file(name, path, files, root)
            block = of_files.get(named) if named is not None else None
            if named is not None and block is None:
                block = _block(named, files[named], display)
            if named is None or block is None:
                continue
            of_files[named] = block
            run = _run(block, call, path, data, display)
            changes = transformers.migrate(run.settings(), pinned(path))
            nested = any(isinstance(pair.value, Mapping) for pair in block.top.pairs)
            if nested or any(change.outcome is Outcome.LEFT for change in changes):
                place = f"{display(path)}:{call.lineno}"
                run.reason = f"stays with {last_name(call.func)}() at {place}, which is left"
                run.blocks = [block]
            else:
                found.calls.add((path, call.lineno))
            found.runs.append(run)
    return found


def _calls(path: Path, data: bytes) -> Iterator[tuple[ast.Call, str]]:
    if path.suffix != ".py" or LOOKS.search(data) is None or b"transformers" not in data:
        return
    try:
        tree = ast.parse(data)
    except (SyntaxError, ValueError, RecursionError):
        return  # said of its Python
    for node in ast.walk(tree):
        if not isinstance(node, ast.Call) or any(k.arg is None for k in node.keywords):
            continue
        if (last_name(node.func) or "") not in transformers.ARGUMENTS:
            continue
        given = next((k.value for k in node.keywords if k.arg == SECTION), None)
        name = given.value if isinstance(given, ast.Constant) else None
        if isinstance(name, str) and name.endswith(JSON):
            yield node, name


def _file(name: str, path: Path, files: Mapped[Path, bytes], root: Path) -> Path | None:
    """A file that a program names from its own directory or from the top."""
    for directory in (path.parent, root):
        found = Path(directory / name)
        if found in files:
            return found
    return None


def _block(path: Path, data: bytes, display: Callable[[Path], str]) -> Entries | None:
    """A file whose keys alone would not say what it is."""
    try:
        file = File(path, display(path), Text(data.decode()))
        return recognise.named_section(file, json_.read(file.text.text))
    except (UnicodeDecodeError, json_.NotJson):
        return None


def _run(
    block: Block, call: ast.Call, path: Path, data: bytes, display: Callable[[Path], str]
) -> Run:
    file = File(path, display(path), Text(data.decode()))
    at = file.text.start_of(call.lineno) + call.col_offset
    beside = Call(TRANSFORMERS, file, Span(at, at + 1))
    for keyword in call.keywords:
        if keyword.arg in BESIDE:
            start = file.text.start_of(keyword.lineno) + keyword.col_offset
            beside.spans[keyword.arg] = Span(start, start + len(keyword.arg))
            beside.settings[keyword.arg] = _setting(keyword.arg, keyword.value)
    beside.settings.setdefault("fsdp", Setting("fsdp", None))
    return Run([block, beside])


def _setting(name: str, node: ast.expr) -> Setting:
    try:
        value = ast.literal_eval(node)
    except ValueError:
        return Setting(name, None, f"it is {ast.unparse(node)}")
    return Setting(name, tuple(value) if isinstance(value, list) else value)
