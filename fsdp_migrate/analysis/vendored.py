"""Which programs of a tree can import a package that one of them has a copy of.

An absolute import is answered by a directory on ``sys.path``. A package that is a project of its
own (it has a ``setup.py`` or the like) is on the path of nothing else until it is installed, so
that where it lies tells little: ``third_party/core`` may be meant to be installed for all that the
repository holds. But where scripts lie beside the package and import it, it is theirs. A program
in another folder, which would have to be told where that copy is, means what it has installed
itself, unless a path into that folder is written somewhere outside of it.
"""

from __future__ import annotations

import os
import re
from collections import defaultdict
from collections.abc import Iterator, Mapping, Set
from functools import cached_property
from pathlib import Path

from fsdp_migrate.analysis.installed_packages import METADATA

# What may say that a package is installed, or put on the path; and files without an ending.
TELLING = frozenset(
    (
        *(".py", ".ipynb", ".sh", ".bash", ".slurm", ".sbatch", ".bat", ".ps1", ".env"),
        *(".toml", ".cfg", ".ini", ".txt", ".in", ".yml", ".yaml", ".lock", ".json", ".pth"),
        *(".md", ".rst", ".dockerfile", ".mk", ""),
    )
)
LARGEST = 4_000_000  # bytes; what is larger is data
INIT = "__init__.py"
NO_SOURCES = frozenset({".git", "node_modules", "__pycache__"})


class Vendored:
    """The packages that lie beside the scripts which import them."""

    def __init__(
        self, files: Mapping[Path, Set[str]], top: Path, named: dict[Path, bool] | None = None
    ) -> None:
        """``files`` are all that are known, each with the first parts of the names that it imports
        absolutely; ``top`` is the directory that holds all that is looked at; ``named`` keeps what
        is found out about directories by reading the whole tree."""
        self._files = files
        self._top = top
        self._projects: dict[Path, Path | None] = {}
        self._owners: dict[tuple[Path, str], Path | None] = {}
        self._answers: dict[tuple[Path, str, Path], bool] = {}
        self._lying: dict[tuple[str, Path], bool] = {}
        self._led: dict[Path, list[Path]] = {}
        self._named = {} if named is None else named

    def may_mean(self, target: Path, package: str, importer: Path) -> bool:
        """Whether an absolute import in ``importer`` may mean a file, to which no name leads from
        the directories above it; ``package`` is the first part of its name."""
        project = self._project(target.parent)
        if project is None:
            return True
        key = project, package, importer.parent
        if key not in self._answers:
            self._answers[key] = importer.is_relative_to(project) or self._may_have(*key)
        return self._answers[key]

    def _may_have(self, project: Path, package: str, importing: Path) -> bool:
        """Whether files of a directory may import a package of a project that is not theirs."""
        owner = self._owner(project, package)
        if owner is None:
            return True
        for place in self._led_to(owner):
            if importing.is_relative_to(place) or (
                place in self._files and importing == place.parent
            ):
                return True
        return self._is_named_outside(owner)

    def _project(self, directory: Path) -> Path | None:
        """The project below the top that a directory is in."""
        if directory not in self._projects:
            above = directory.parent if directory != self._top else directory
            if not above.is_relative_to(self._top) or directory == above:
                found = None
            elif any((directory / name).is_file() for name in METADATA):
                found = directory
            else:
                found = self._project(above)
            self._projects[directory] = found
        return self._projects[directory]

    def _owner(self, project: Path, package: str) -> Path | None:
        """The innermost directory around a project with a script that imports a package of it."""
        key = project, package
        if key not in self._owners:
            around = [d for d in project.parents if d != self._top and d.is_relative_to(self._top)]
            owners = (d for d in around if package in self._beside[d])
            self._owners[key] = next((d for d in owners if not (d / INIT).is_file()), None)
        return self._owners[key]

    @cached_property
    def _beside(self) -> Mapping[Path, Set[str]]:
        """What is imported by the files of every directory."""
        found: dict[Path, set[str]] = defaultdict(set)
        for path, imported in self._files.items():
            found[path.parent] |= imported
        return found

    def _led_to(self, owner: Path) -> list[Path]:
        """A directory of scripts, and what around it they import, and so on: all of that may run
        in one program with them, which finds the packages that they find."""
        if owner not in self._led:
            around = [d for d in owner.parents if d.is_relative_to(self._top)]
            found = self._led[owner] = [owner]
            for place in found:  # which grows
                within = (i for path, i in self._files.items() if path.is_relative_to(place))
                words = sorted(frozenset().union(*within))
                names = [name for word in words for name in (word, f"{word}.py")]
                named = [d / name for d in around for name in names]
                found += [p for p in named if p in self._places and p not in found]
        return self._led[owner]

    def leads_to(self, package: str, directory: Path) -> bool:
        """Whether a directory, or one above it, has a file or a directory of a package's name."""
        key = package, directory
        if key not in self._lying:
            lies = not self._places.isdisjoint({directory / package, directory / f"{package}.py"})
            above = directory != directory.parent and self.leads_to(package, directory.parent)
            self._lying[key] = lies or above
        return self._lying[key]

    @cached_property
    def _places(self) -> frozenset[Path]:
        """Every file, and every directory around one."""
        directories = {path.parent for path in self._files}
        return frozenset({*self._files, *(d for p in directories for d in (p, *p.parents))})

    def _is_named_outside(self, directory: Path) -> bool:
        """Whether a path into a directory is written anywhere outside of it."""
        if directory not in self._named:
            plain = os.fsencode(directory.name)
            name = re.escape(plain)
            written = rb"(?<![\w.-])%s(?:[/\\]|[\"'])|\b(?:cd|pushd)[ \t]+[^\s;&|]*%s(?![\w-])"
            path = re.compile(written % (name, name))
            texts = self._texts(str(directory))
            self._named[directory] = any(plain in text and path.search(text) for text in texts)
        return self._named[directory]

    def _texts(self, without: str) -> Iterator[bytes]:
        """The files below the top, but for a directory, that may say what is installed."""
        for around, directories, files in os.walk(self._top):
            directories[:] = [
                d for d in directories if d not in NO_SOURCES and os.path.join(around, d) != without
            ]
            for file in files:
                path = os.path.join(around, file)
                if os.path.splitext(file)[1].lower() in TELLING and not os.path.islink(path):
                    yield _contents(path)


def _contents(path: str) -> bytes:
    try:
        if not os.path.isfile(path) or os.path.getsize(path) > LARGEST:
            return b""
        with open(path, "rb") as stream:
            return stream.read()
    except OSError:
        return b""
