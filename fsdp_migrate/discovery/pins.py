"""The releases of frameworks that a project pins: ``accelerate==1.4.0`` in files that people write.

The nearest directory that has a pin counts, from a file upwards to the project's root. Scripts that
install packages count as requirements do: shell, images, workflows and notebooks. What is no
pin, such as a lower bound, says nothing.
"""

from __future__ import annotations

import re
from pathlib import Path

from fsdp_migrate.discovery import project_paths, torch_requirements

INSTALLING = (  # files with commands, seen from a directory
    "*.sh", "*.bash", "Makefile", "*.ipynb", "[Dd]ockerfile*", "*.[Dd]ockerfile", "Containerfile*",
    "environment*.y*ml", "conda*.y*ml", ".github/workflows/*.y*ml", "scripts/*.sh",
    "[Dd]ocker/*ockerfile*", ".devcontainer/*ockerfile*", "install/*.sh",
)  # fmt: skip
LARGEST = 1_000_000  # characters of one
LONGEST = 4_000  # characters of a line
_INSTALL = re.compile(r"(?![ \t]*#).*?\b(?:pip3?|uv|conda|mamba)\b.*\binstall\b(.*)")
_CONDA = re.compile(r"([ \t]*-[ \t]+[\"']?[\w.-]+={1,2}[\w.]+.*)")
_JOINED = re.compile(r"\\\r?\n|\\{2}\\n\",\s*\"")  # lines, in shell and in a notebook's cell
_IN_COMMAND = r"(?i)(?<![\w.-])%s(?:\[[\w, .-]*\])?={1,3}v?(\d{1,4}(?:\.\d{1,4})+)(?![\w.*])"
Release = tuple[int, ...]
_PIN = (
    r"""(?im)(?:^[ \t]*|["'])%s[ \t]*(?:\[[\w, .-]*\])?"""
    r"""[ \t]*={2,3}[ \t]*v?(\d{1,4}(?:\.\d{1,4})+)"""
)


def pinned(name: str, path: Path, top: Path) -> frozenset[Release]:
    """The releases of a distribution that are pinned for a file, by whatever is nearest to it."""
    directories = [path.parent, *path.parent.parents]
    if top not in directories:
        return frozenset()
    for directory in directories[: directories.index(top) + 1]:
        found = _pins(name, directory, top)
        if found:
            return found
    return frozenset()


def _pins(name: str, directory: Path, top: Path) -> frozenset[Release]:
    pattern = re.compile(_PIN % re.escape(name))
    texts = (_text(path, top) for path in torch_requirements.files(directory))
    found = [match[1] for text in texts for match in pattern.finditer(text)]
    in_command = re.compile(_IN_COMMAND % re.escape(name))
    for path in sorted({p for shape in INSTALLING for p in directory.glob(shape)}):
        text = _JOINED.sub(" ", _text(path, top)[:LARGEST])
        pattern = _CONDA if path.name.startswith(("environment", "conda")) else _INSTALL
        for line in text.splitlines():
            match = pattern.match(line) if len(line) <= LONGEST else None
            if match is not None:
                found += [each[1] for each in in_command.finditer(match[1].partition(" #")[0])]
    return frozenset(tuple(map(int, each.split("."))) for each in found)


def _text(path: Path, top: Path) -> str:
    try:
        return project_paths.read_regular_file(path, (top,)).decode("utf-8", "replace")
    except OSError:
        return ""
