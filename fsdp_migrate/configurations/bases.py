"""The file that a command or a recipe reads before its own settings."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence
from fnmatch import fnmatchcase
from pathlib import Path

from fsdp_migrate.configurations.block import Block
from fsdp_migrate.configurations.entries import Entries
from fsdp_migrate.configurations.formats.shell import FROM_VARIABLE, Kind, Script
from fsdp_migrate.configurations.formats.tree import Scalar
from fsdp_migrate.configurations.recognise import SECTION, TRANSFORMERS
from fsdp_migrate.configurations.words import Words

_FILLED_IN = re.compile(r"\$\w+|\$\{[^{}]*\}|\$\([^()]*\)")


def of_command(
    block: Words, files: Mapping[Path, Sequence[Block]], root: Path
) -> list[tuple[list[Block], str]]:
    """The blocks of the file that a command reads before its own flags; or why it is not known,
    with each that it may be: the flags and the file have one version."""
    named = next((b.base for b in (block, *block.beside) if b.base is not None), None)
    if named is None:
        return [(list(block.beside), "")]
    name, unknown = named
    if not unknown and "$" not in name:
        found, reason = _named(block, name, files, root)
        if not found and not block.is_sure:
            return []
        return [([*found, *block.beside], reason)]
    if not block.is_sure:
        return []
    reason = f"which configuration {block.file.place(block.head.start)} reads is not known: "
    reason += unknown or FROM_VARIABLE
    version = block.settings.get("fsdp_version")
    done = version is not None and str(version.value) == "2"
    held = [] if done else _possible(block, name, files)
    return [([*each, *block.beside], reason) for each in held or [[]]]


def filled_in(name: str, unknown: str, block: Words, script: Script) -> tuple[str, str]:
    """The name of a file with its variables, where one plain assignment above says what each is."""
    text = block.file.text.text
    for statement in script.statements:
        if statement.kind is not Kind.VARIABLES or statement.span.start > block.head.start:
            continue
        for word in statement.words:
            variable, _, value = word.value.partition("=")
            bare = re.findall(rf"(?<![$\w{{.-]){re.escape(variable)}(?![\w.-])", text)
            if word.unknown or len(bare) != 1:
                continue
            shape = rf"\$(?:{variable}\b|{{{variable}}})"
            name = re.sub(shape, value.replace("\\", r"\\"), name)
    return (name, unknown) if "$" in name or "`" in name else (name, "")


def _possible(block: Words, name: str, files: Mapping[Path, Sequence[Block]]) -> list[list[Block]]:
    """What a name with variables may stand for: whatever its other letters fit."""
    shape = f"*/{_FILLED_IN.sub('*', os.path.normpath(name))}"
    fitting = [path for path in files if fnmatchcase(path.as_posix(), shape)]
    found = (
        [b for b in files[path] if b.code == block.code and not isinstance(b, Words)]
        for path in fitting
    )
    return [blocks[:1] for blocks in found if blocks]


def of_recipe(block: Entries, files: Mapping[Path, Sequence[Block]], root: Path) -> list[Block]:
    """The block of the file that a recipe names as its ``fsdp_config``."""
    pair = block.top.get(SECTION) if block.code == TRANSFORMERS else None
    value = pair.value if pair is not None else None
    if not isinstance(value, Scalar) or value.unknown or not isinstance(value.value, str):
        return []
    return _named(block, value.value, files, root)[0]


def _named(
    block: Block, name: str, files: Mapping[Path, Sequence[Block]], root: Path
) -> tuple[list[Block], str]:
    directory = block.file.path.parent
    parts = Path(os.path.normpath(name)).parts
    for top in (directory, *directory.parents):
        path = Path(os.path.normpath(top / name))
        if path in files:
            return _of_code(files[path], block.code), ""
        if top == root:
            break
    same = [p for p in files if p.parts[-len(parts) :] == parts]
    if len(same) == 1:
        return _of_code(files[same[0]], block.code), ""
    return [], f"the configuration that it reads, {name}, is not among the files that were read"


def _of_code(blocks: Sequence[Block], code: str) -> list[Block]:
    return [block for block in blocks if block.code == code][:1]
