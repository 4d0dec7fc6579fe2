"""The releases of frameworks that a project pins: ``accelerate==1.4.0`` in files that people write.

The nearest directory that has a pin counts, from a file upwards to the project's root. Scripts that
install packages count as requirements do: shell, images, workflows and notebooks. An upper bound
says what the release is at most, and a lower bound says nothing. A workflow counts where nothing
that people install from names the framework: beside ``accelerate>=1.4`` it tests that with the
oldest release.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from pathlib import Path

from fsdp_migrate.discovery import project_paths, torch_requirements

INSTALLING = (  # files with commands, seen from a directory
    "*.sh", "*.bash", "Makefile", "*.ipynb", "[Dd]ockerfile*", "*.[Dd]ockerfile", "Containerfile*",
    "env*.y*ml", "conda*.y*ml", "scripts/*.sh",
    "[Dd]ocker/*ockerfile*", ".devcontainer/*ockerfile*", "install/*.sh",
)  # fmt: skip
WORKFLOWS = (".github/workflows/*.y*ml",)
LARGEST = 1_000_000  # characters of one
LONGEST = 4_000  # characters of a line
_INSTALL = re.compile(r"(?![ \t]*#).*?\b(?:pip3?|uv|conda|mamba)\b.*\binstall\b(.*)")
_CONDA = re.compile(r"([ \t]*-[ \t]+[\"']?[\w.-]+={1,2}[\w.]+.*)")
_JOINED = re.compile(r"\\\r?\n|\\{2}\\n\",\s*\"")  # lines, in shell and in a notebook's cell
_IN_COMMAND = r"(?i)(?<![\w.-])%s(?:\[[\w, .-]*\])?={1,3}v?(\d{1,4}(?:\.\d{1,4})+)(?![\w.*])"
_NAMED = r"""(?im)(?:^[ \t]*|["'])%s(?![\w.-])"""
Release = tuple[int, ...]
_PIN = (
    r"""(?im)(?:^[ \t]*|["'])%s[ \t]*(?:\[[\w, .-]*\])?"""
    r"""[ \t]*={2,3}[ \t]*v?(\d{1,4}(?:\.\d{1,4})+)"""
)
_OF_POETRY = r"""(?m)^%s[ \t]*=[ \t]*(?:\{.*?version[ \t]*=[ \t]*)?["']([\^~<>=!\d][^"'\n]*)["']"""
_BOUND = r"""(?im)(?:^[ \t]*|["'])%s[ \t]*(?:\[[\w, .-]*\])?[ \t]*\(?([<>=!~][^"'#;\n()]*)"""
_BOUND_IN_COMMAND = r"""(?i)(?<![\w.-])%s(?:\[[\w, .-]*\])?([<>=!~][^"'#;\s]*)"""
_CLAUSE = re.compile(r"\s*(<=|<|~=|==|\^|~)\s*v?(\d{1,4}(?:\.\d{1,4})*)(\.\*)?\s*")
_IN_LOCK = r"""(?m)^name = ["']%s["']\r?\nversion = ["'](\d{1,4}(?:\.\d{1,4})+)["']"""
LOCKS = ("uv.lock", "poetry.lock", "pdm.lock")
ANY = 9_999  # the part of a release that may be any


def pinned(name: str, path: Path, top: Path) -> frozenset[Release]:
    """The releases of a distribution that are pinned for a file, by whatever is nearest to it."""
    return _nearest(path, top, lambda directory: _pins(name, directory, top))


def at_most(name: str, path: Path, top: Path) -> frozenset[Release]:
    """The highest releases that upper bounds allow for a file: ``<5`` is 4.ANY."""
    return _nearest(path, top, lambda directory: _bounds(name, directory, top))


def _nearest(
    path: Path, top: Path, found_in: Callable[[Path], frozenset[Release]]
) -> frozenset[Release]:
    directories = [path.parent, *path.parent.parents]
    if top not in directories:
        return frozenset()
    for directory in directories[: directories.index(top) + 1]:
        found = found_in(directory)
        if found:
            return found
    return frozenset()


def _bounds(name: str, directory: Path, top: Path) -> frozenset[Release]:
    texts = [_text(path, top) for path in torch_requirements.files(directory)]
    patterns = [re.compile(shape % re.escape(name)) for shape in (_BOUND, _OF_POETRY)]
    found = [match[1] for text in texts for each in patterns for match in each.finditer(text)]
    in_command = re.compile(_BOUND_IN_COMMAND % re.escape(name))
    for command in _commands(directory, top, _shapes(name, texts)):
        found += [match[1] for match in in_command.finditer(command)]
    ceilings = [_ceiling(clauses) for clauses in found]
    return frozenset(each for each in ceilings if each)


def _ceiling(clauses: str) -> Release:
    """The highest release that clauses allow; empty where they set none."""
    found: list[Release] = []
    for clause in clauses.split(","):
        match = _CLAUSE.fullmatch(clause)
        if match is None:
            continue
        sign, release = match[1], tuple(map(int, match[2].split(".")))
        if sign == "<":
            while release and not release[-1]:
                release = release[:-1]
            found += [(*release[:-1], release[-1] - 1, ANY)] if release else []
        elif sign == "^":
            fixed = next((n for n, part in enumerate(release) if part), len(release) - 1)
            found.append((*release[: fixed + 1], ANY))
        elif sign == "~=":
            found.append((*release[:-1], ANY))
        elif sign == "~":
            found.append((*release[:2], ANY))
        else:
            found.append((*release, ANY) if match[3] else release)
    return min(found, default=())


def _pins(name: str, directory: Path, top: Path) -> frozenset[Release]:
    pattern = re.compile(_PIN % re.escape(name))
    texts = [_text(path, top) for path in torch_requirements.files(directory)]
    found = [match[1] for text in texts for match in pattern.finditer(text)]
    in_command = re.compile(_IN_COMMAND % re.escape(name))
    for command in _commands(directory, top, _shapes(name, texts)):
        found += [each[1] for each in in_command.finditer(command)]
    if not found:  # what people write says nothing: a lock does
        in_lock = re.compile(_IN_LOCK % re.escape(name))
        for lock in LOCKS:
            found += [each[1] for each in in_lock.finditer(_text(directory / lock, top))]
    return frozenset(tuple(map(int, each.split("."))) for each in found)


def _shapes(name: str, requirements: list[str]) -> tuple[str, ...]:
    """The files whose commands count for a distribution, beside files of requirements."""
    named = re.compile(_NAMED % re.escape(name))
    return INSTALLING if any(map(named.search, requirements)) else INSTALLING + WORKFLOWS


def _commands(directory: Path, top: Path, shapes: tuple[str, ...]) -> Iterator[str]:
    """What is behind each command of a directory that installs packages."""
    for path in sorted({p for shape in shapes for p in directory.glob(shape)}):
        text = _JOINED.sub(" ", _text(path, top)[:LARGEST])
        pattern = _CONDA if path.name.startswith(("env", "conda")) else _INSTALL
        for line in text.splitlines():
            match = pattern.match(line) if len(line) <= LONGEST else None
            if match is not None:
                yield match[1].partition(" #")[0]


def _text(path: Path, top: Path) -> str:
    try:
        return project_paths.read_regular_file(path, (top,)).decode("utf-8", "replace")
    except OSError:
        return ""
