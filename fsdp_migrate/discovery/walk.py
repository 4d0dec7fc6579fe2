"""The Python files below directories."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from fsdp_migrate.discovery import configuration_files, ignore_patterns
from fsdp_migrate.discovery.configuration_files import is_configuration

if TYPE_CHECKING:  # imported where there is something to ignore
    from pathspec import GitIgnoreSpec

NOTEBOOK = ".ipynb"
SUFFIXES = (".py", ".pyi", NOTEBOOK)
SKIPPED = frozenset(
    {
        ".bzr",
        ".direnv",
        ".eggs",
        ".fsdp-migrate",
        ".git",
        ".hg",
        ".ipynb_checkpoints",
        ".mypy_cache",
        ".nox",
        ".pytest_cache",
        ".pytype",
        ".ruff_cache",
        ".svn",
        ".tox",
        ".venv",
        "__pycache__",
        "__pypackages__",
        "node_modules",
        "site-packages",
        "venv",
    }
)
PROGRAMS = frozenset({"bin", "lib", "Lib", "Scripts"})  # a virtual environment has one of these


class Walk:
    """The Python files of directories and of explicit paths, each once, in a fixed order."""

    def __init__(
        self,
        excluded: GitIgnoreSpec | None,
        base: str,
        unread: list[tuple[Path, str]],
        *,
        configurations: bool = False,
    ) -> None:
        self._excluded = excluded
        self._base = base
        self._unread = unread
        self._files: dict[str, str] = {}  # real path -> the path it is shown by
        self._links: dict[str, str] = {}
        self._looks_for_configurations = configurations
        self.configurations: dict[Path, bytes] = {}  # those that have the word

    def add(self, path: Path) -> None:
        shown = str(path)
        real = os.path.realpath(shown)
        if path.is_dir():
            for file in self._python(shown, real):
                self._files.setdefault(real + file[len(shown) :], file)
        elif _is_python(path):
            self._files.setdefault(real, shown)
            if self._looks_for_configurations and shown.endswith(NOTEBOOK):
                self._configuration(shown)
        elif self._looks_for_configurations and is_configuration(path.name):
            self._configuration(shown)
        else:
            self._unread.append((path, "is not a Python file"))

    def files(self) -> list[str]:
        for real, link in self._links.items():
            self._files.setdefault(real, link)
        return list(self._files.values())

    def _python(self, top: str, real_top: str) -> Iterator[str]:
        stack = [(top, ignore_patterns.specs_around(Path(top)))]
        while stack:
            directory, specs = stack.pop()
            try:
                entries = sorted(os.scandir(directory), key=lambda e: e.name)
            except OSError as error:
                self._unread.append((Path(directory), error.strerror or str(error)))
                continue
            names = {entry.name for entry in entries}
            if directory != top and _is_environment(directory, names):
                continue
            if ".gitignore" in names:
                specs = ignore_patterns.add_ignore_file(specs, directory, f"{directory}/.gitignore")
            below = []
            for entry in entries:
                if entry.is_dir(follow_symlinks=False):
                    if entry.name not in SKIPPED and not self._left_out(entry.path, specs, "/"):
                        below.append((entry.path, specs))
                elif not entry.name.endswith(SUFFIXES):
                    looked_for = self._looks_for_configurations and is_configuration(entry.name)
                    if looked_for and entry.is_file(follow_symlinks=False):
                        self._configuration(entry.path, specs)
                elif self._left_out(entry.path, specs):
                    continue
                elif entry.is_file(follow_symlinks=False):
                    yield entry.path
                    if self._looks_for_configurations and entry.name.endswith(NOTEBOOK):
                        self._configuration(entry.path)
                elif entry.is_symlink():
                    self._link(entry.path, real_top)
                else:
                    self._unread.append((Path(entry.path), "is neither a file nor a directory"))
            stack += reversed(below)

    def _configuration(self, path: str, specs: ignore_patterns.Specs | None = None) -> None:
        """Keep a configuration that has the word; what is ignored is asked last, being dearer."""
        try:
            data = configuration_files.contents(path)
        except OSError as error:
            self._unread.append((Path(path), error.strerror or str(error)))
            return
        if data is not None and (specs is None or not self._left_out(path, specs)):
            self.configurations[Path(path)] = data

    def _link(self, path: str, real_top: str) -> None:
        """Follow a link to a file in the same tree; leave out every other link."""
        try:
            real = os.path.realpath(path, strict=True)
        except OSError:  # it dangles, or leads to itself
            return
        if real.startswith(real_top.rstrip("/") + "/") and os.path.isfile(real):
            self._links.setdefault(real, path)

    def _left_out(self, path: str, specs: ignore_patterns.Specs, slash: str = "") -> bool:
        if self._excluded is not None:
            relative = os.path.relpath(path, self._base)
            if not relative.startswith("..") and self._excluded.match_file(relative + slash):
                return True
        return ignore_patterns.is_ignored(path, specs, slash)


def _is_environment(directory: str, names: set[str]) -> bool:
    """Whether a directory is a virtual environment, whatever its name."""
    if PROGRAMS.isdisjoint(names):
        return False
    try:
        if "conda-meta" in names and os.listdir(f"{directory}/conda-meta"):
            return True
        with open(f"{directory}/pyvenv.cfg", "rb") as file:
            return re.search(rb"(?m)^home[ \t]*=", file.read(10_000)) is not None
    except OSError:
        return False


def _is_python(path: Path) -> bool:
    """Whether a file is Python by its suffix, or, without one, by its ``#!`` line."""
    if path.suffix:
        return path.suffix in SUFFIXES
    try:
        with path.open("rb") as file:
            first = file.readline(200)
    except OSError:
        return True  # reading it will say why it cannot be read
    return first.startswith(b"#!") and b"python" in first
