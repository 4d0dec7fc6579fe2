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
from collections.abc import Iterator, Mapping, Sequence
from functools import cached_property
from pathlib import Path

from fsdp_migrate.analysis.installed_packages import METADATA
from fsdp_migrate.analysis.module import Module

# What may say that a package is installed, or put on the path; and files without an ending.
TELLING = frozenset(
    (
        *(".py", ".ipynb", ".sh", ".bash", ".slurm", ".sbatch", ".bat", ".ps1", ".env"),
        *(".toml", ".cfg", ".ini", ".txt", ".in", ".yml", ".yaml", ".lock", ".json", ".pth"),
        *(".md", ".rst", ".dockerfile", ".mk", ""),
    )
)
LARGEST = 4_000_000  # bytes; what is larger is data
NO_SOURCES = frozenset({".git", "node_modules", "__pycache__"})


class Vendored:
    """The packages that lie beside the scripts which import them."""

    def __init__(self, modules: Sequence[Module], top: Path) -> None:
        """``top`` is the directory that holds all that is looked at."""
        self._modules = modules
        self._top = top
        self._projects: dict[Path, Path | None] = {}
        self._owners: dict[tuple[Path, str], Path | None] = {}
        self._led: dict[Path, list[Path]] = {}
        self._named: dict[Path, bool] = {}

    def may_mean(self, target: Module, importer: Module) -> bool:
        """Whether an absolute import in ``importer``, from whose directory no name leads to
        ``target``, may mean it all the same."""
        project = self._project(target.path.parent)
        if project is None or importer.path.is_relative_to(project):
            return True
        owner = self._owner(project, target.name.partition(".")[0])
        if owner is None or any(map(importer.path.is_relative_to, self._led_to(owner))):
            return True
        return self._is_named_outside(owner)

    def _project(self, directory: Path) -> Path | None:
        """The project below the top that a directory is in."""
        if directory == self._top or not directory.is_relative_to(self._top):
            return None
        if directory not in self._projects:
            here = any((directory / name).is_file() for name in METADATA)
            self._projects[directory] = directory if here else self._project(directory.parent)
        return self._projects[directory]

    def _owner(self, project: Path, package: str) -> Path | None:
        """The innermost directory around a project with a script that imports a package of it."""
        key = project, package
        if key not in self._owners:
            around = [d for d in project.parents if d != self._top and d.is_relative_to(self._top)]
            owners = (d for d in around if any(_imports(m, package) for m in self._beside[d]))
            self._owners[key] = next(owners, None)
        return self._owners[key]

    @cached_property
    def _beside(self) -> Mapping[Path, list[Module]]:
        """The modules of every directory that is no package."""
        found: dict[Path, list[Module]] = defaultdict(list)
        for module in self._modules:
            if module.home[0] == module.home[1]:
                found[module.path.parent].append(module)
        return found

    def _led_to(self, owner: Path) -> list[Path]:
        """A directory of scripts, and what around it they import, and so on: all of that may run
        in one program with them, which finds the packages that they find."""
        if owner not in self._led:
            around = [d for d in owner.parents if d.is_relative_to(self._top)]
            found = self._led[owner] = [owner]
            for place in found:  # which grows
                within = [m for m in self._modules if m.path.is_relative_to(place)]
                words = {b.qualified.partition(".")[0] for m in within for b in m.table.imports}
                names = [name for word in sorted(words) for name in (word, f"{word}.py")]
                named = [d / name for d in around for name in names]
                found += [p for p in named if p in self._places and p not in found]
        return self._led[owner]

    @cached_property
    def _places(self) -> frozenset[Path]:
        """Every module, and every directory around one."""
        paths = {m.path for m in self._modules}
        return frozenset({*paths, *(d for p in {p.parent for p in paths} for d in (p, *p.parents))})

    def _is_named_outside(self, directory: Path) -> bool:
        """Whether a path into a directory is written anywhere outside of it."""
        if directory not in self._named:
            name = re.escape(os.fsencode(directory.name))
            written = rb"(?<![\w.-])%s(?:[/\\]|[\"'])|\b(?:cd|pushd)[ \t]+[^\s;&|]*%s(?![\w-])"
            path = re.compile(written % (name, name))
            texts = self._texts(str(directory))
            self._named[directory] = any(path.search(text) is not None for text in texts)
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


def _imports(module: Module, package: str) -> bool:
    return any(b.qualified.partition(".")[0] == package for b in module.table.imports)


def _contents(path: str) -> bytes:
    try:
        if not os.path.isfile(path) or os.path.getsize(path) > LARGEST:
            return b""
        with open(path, "rb") as stream:
            return stream.read()
    except OSError:
        return b""
