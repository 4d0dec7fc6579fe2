"""The imports that lead from one module of the project into another, and what they load."""

from __future__ import annotations

import ast
import sys
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from fsdp_migrate.analysis.module import Library, Module
from fsdp_migrate.syntax.trees import DEFINITIONS


@dataclass(frozen=True, eq=False)
class Step:
    """An import that leads into the project: what it loads, packages before their modules."""

    base: Path  # the directory that it starts from
    relative: bool
    sure: bool  # no condition stands before it, and an error in it would end the program
    loads: tuple[Module, ...]
    into: Path  # the directory of the file that it names


class ImportSteps:
    """Every step of every module, read when it is first asked for."""

    def __init__(
        self,
        modules: Sequence[Module],
        library: Library,
        resolve: Callable[[str, Module], tuple[Module, str] | None],
        load: Callable[[Path], Module | None],
    ) -> None:
        """The four are the project's: what it knows, and how it looks a name or a path up."""
        self.modules = modules
        self.library = library
        self.load = load
        self._resolve = resolve
        self.files = {module.path: module for module in modules}
        self._steps: dict[Module, list[Step]] = {}
        self._packages: dict[Path, bool] = {}

    def steps(self, module: Module) -> list[Step]:
        """The imports of a module that lead into the project."""
        if module not in self._steps:
            self._steps[module] = list(self._read(module))
        return self._steps[module]

    def needed(self, module: Module) -> list[Path]:
        """The directories that must be on the path whenever ``module`` is loaded."""
        found = [s.base for s in self.steps(module) if s.sure and not s.relative]
        return list(dict.fromkeys(found))

    @cached_property
    def all_needed(self) -> frozenset[Path]:
        """The directories that must be on the path for the sake of any module."""
        return frozenset(root for m in self.modules for root in self.needed(m))

    def _read(self, module: Module) -> Iterator[Step]:
        for statement in module.table.import_statements:
            around = set(map(type, module.table.ancestors(statement)))
            sure = around <= {ast.Module, *DEFINITIONS}
            later = sure and around != {ast.Module}
            if isinstance(statement, ast.Import):
                for alias in statement.names:
                    parts = alias.name.split(".")
                    yield from self._absolute(module, parts, "", alias, sure=sure, later=later)
                continue
            parts = statement.module.split(".") if statement.module else []
            for alias in statement.names:
                if not statement.level:
                    yield from self._absolute(
                        module, parts, alias.name, alias, sure=sure, later=later
                    )
                elif statement.level <= len(module.path.parents):
                    base = module.path.parents[statement.level - 1]
                    loads = self._chain(base, [*parts, alias.name])
                    yield Step(base, True, sure, loads, base.joinpath(*parts))

    def _absolute(
        self,
        module: Module,
        parts: list[str],
        name: str,
        alias: ast.alias,
        *,
        sure: bool,
        later: bool,
    ) -> Iterator[Step]:
        """The step of an absolute import, if a file of the project has what it asks for."""
        if parts[0] in sys.stdlib_module_names or parts[0] not in self._words:
            return
        asked = parts if name in ("", "*") else [*parts, name]
        resolved = self._resolve(".".join(asked), module)
        if resolved is None:
            return
        target, rest = resolved
        dotted = asked[: len(asked) - rest.count(".") - 1] if rest else asked
        if target.location.parts[-len(dotted) :] != tuple(dotted):
            return
        root = target.location.parents[len(dotted) - 1]
        # A file in a package is not what is installed by its name, unless it has what is asked for.
        read = (
            frozenset({rest.split(".")[0]})
            if rest
            else _read_off(module, alias.asname or dotted[0])
        )
        if (
            (len(dotted) > 1 and not rest)
            or not self.is_package(root)
            or name == "*"
            or self._has(target, read, set())
        ):
            # A function that only the script calls may import from beside it, in a package too.
            # What a star asks for is not known.
            sure = sure and not ((later or name == "*") and self.is_package(root))
            yield Step(root, False, sure, self._chain(root, asked), target.path.parent)

    def _has(self, module: Module, names: Collection[str], seen: set[Module]) -> bool:
        """Whether a file binds one of ``names``, itself or by a star that it imports from a file of
        its own package."""
        if module in seen:
            return False
        seen.add(module)
        if any(name in module.table.module.bindings for name in names):
            return True
        for statement in module.table.import_statements:
            match statement:
                case ast.ImportFrom(module=dotted, names=[ast.alias(name="*")], level=1):
                    given = self._chain(module.path.parent, (dotted or "").split("."))
                    if given and self._has(given[-1], names, seen):
                        return True
        return False

    def _chain(self, base: Path, parts: Iterable[str]) -> tuple[Module, ...]:
        """The modules that are loaded for a dotted name which starts from a directory."""
        found = []
        for part in parts:
            found += [self.at(base / f"{part}.py")]
            base /= part
            found += [self.at(base / "__init__.py")]
        return tuple(module for module in found if module is not None)

    def at(self, path: Path) -> Module | None:
        """A module under analysis, or an ``__init__`` of the library, which leads on to some."""
        if path.name == "__init__.py" and path in self.library.paths:
            return self.load(path)
        return self.files.get(path)

    @cached_property
    def _words(self) -> frozenset[str]:
        """What the project's files and directories are called: most imports name none of it."""
        paths = (*map(Path.as_posix, self.files), *self.library.by_text)
        return frozenset(word for p in paths for word in p.removesuffix(".py").split("/"))

    def is_package(self, directory: Path) -> bool:
        known = self._packages.get(directory)
        if known is None:
            path = directory / "__init__.py"
            known = path in self.files or path in self.library.paths or path.is_file()
            self._packages[directory] = known
        return known


def _read_off(module: Module, name: str) -> frozenset[str]:
    """The attributes that a module reads off a name."""
    return frozenset(
        node.attr
        for node in module.table.attributes
        if isinstance(node.value, ast.Name) and node.value.id == name
    )
