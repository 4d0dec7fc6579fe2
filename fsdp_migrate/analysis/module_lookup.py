"""Which file of the project a dotted name means where it is imported."""

from __future__ import annotations

import sys
from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping
from functools import cached_property
from pathlib import Path, PurePosixPath

from fsdp_migrate.analysis.import_roots import Roots
from fsdp_migrate.analysis.import_steps import ImportSteps
from fsdp_migrate.analysis.installed_packages import lying
from fsdp_migrate.analysis.module import Library, Module
from fsdp_migrate.analysis.vendored import Vendored
from fsdp_migrate.syntax.source import Source, SourceError


class ModuleLookup:
    """The modules under analysis, and those of the library that something imports."""

    def __init__(
        self, sources: Iterable[Source], library: Library, known: Iterable[Module] = ()
    ) -> None:
        self.library = library
        self._earlier = {id(module.source): module for module in known}
        listed = sorted(sources, key=lambda s: s.display)
        self._directories = {s.path.parent for s in listed if s.path.name == "__init__.py"}
        self.modules = [self._module(source) for source in listed]
        self._by_path: dict[Path, Module | None] = {m.path: m for m in self.modules}
        self._by_name: dict[str, list[Module]] = defaultdict(list)
        self._found: dict[tuple[str, tuple[str, str]], Module | None] = {}
        self._resolved: dict[tuple[str, tuple[str, str]], tuple[Module, str] | None] = {}
        self._parents: dict[Path, list[Path]] = {}
        for module in self.modules:
            self._by_name[module.name].append(module)

    @property
    def read(self) -> list[Module]:
        """Every module that was read, those of the library among them."""
        return [module for module in self._by_path.values() if module is not None]

    def find(self, dotted: str, importer: Module) -> Module | None:
        """The module that ``import dotted`` means when written in ``importer``.

        Absolute imports are looked up the way a run would: from the importer's own root, then from
        the importer's directory (scripts), then from every directory above it (namespace packages,
        scripts run from the top of a repository), then anywhere the name is unambiguous, but for
        a copy that other programs have beside them (``vendored.py``). ``torch`` is torch, whatever
        the project calls its directories, and ``typing`` is Python's, unless the project has one
        where names are known to start.
        """
        key = (dotted, importer.home)
        if key not in self._found:
            self._found[key] = self._find(dotted, importer)
        return self._found[key]

    def _find(self, dotted: str, importer: Module) -> Module | None:
        parts = dotted.split(".")
        if parts[0] == "torch" and not self._has_torch:
            return None
        candidates = self._by_name.get(dotted, [])
        for module in candidates:
            if module.root == importer.root:
                return module
        lies = lying(parts, importer.path.parent)
        texts = _spellings(Path(*lies).as_posix()) if lies is not None else ()
        installed = next(filter(None, map(self._at_text, texts)), None)
        if installed is not None:
            return installed
        if parts[-1] not in self._file_names and parts[-1] not in self.library.names:
            return None
        standard = parts[0] in sys.stdlib_module_names
        for directory in (importer.path.parent, *self._above(importer.path.parent)):
            if standard and not self._is_root(directory, importer):
                continue
            base = "/".join((str(directory).rstrip("/"), *parts))
            for text in _spellings(base):
                if text in self.library.unread:
                    return None  # it is meant, and not another file of this name
                found = self._at_text(text)
                if found is not None:
                    return found
        candidates = candidates or [
            m for m in self._by_last[parts[-1]] if m.location.parts[-len(parts) :] == tuple(parts)
        ]
        if len(candidates) != 1 or standard:
            return None
        found = candidates[0]
        package = found.name.partition(".")[0]
        return found if self._vendored.may_mean(found.path, package, importer.path) else None

    def _at_text(self, text: str) -> Module | None:
        path = self._paths.get(text) or self.library.by_text.get(text)
        return self._at(path) if path is not None else None

    @cached_property
    def _vendored(self) -> Vendored:
        files = {
            m.path: {b.qualified.partition(".")[0] for b in m.table.imports} for m in self.modules
        }
        return Vendored(files, self.library.top or self._common, self.library.named)

    @cached_property
    def _by_last(self) -> Mapping[str, list[Module]]:
        """The modules by the last parts of their names, which any directory above may start."""
        found: dict[str, list[Module]] = defaultdict(list)
        for module in self.modules:
            found[module.location.name].append(module)
        return found

    def _is_root(self, directory: Path, importer: Module) -> bool:
        """Whether names are known to start from a directory, so that it may hide Python's own."""
        return str(directory) == importer.home[0] or directory in self.roots.all_needed

    @cached_property
    def roots(self) -> Roots:
        return Roots(ImportSteps(self.modules, self.library, self.resolve, self.load))

    def _at(self, path: Path) -> Module | None:
        """The module at a path, taken from the library when it is first asked for."""
        if path in self._by_path:
            return self._by_path[path]
        if path not in self.library.paths:
            return None
        source = self.library.load(path)
        module = self._module(source) if source is not None else None
        self._by_path[path] = module
        return module

    def load(self, path: Path) -> Module | None:
        """The module of a file of the library; None when it cannot be parsed."""
        module = self._at(path)
        try:
            return module if module is not None and module.source.tree else None
        except SourceError:
            return None

    def _module(self, source: Source) -> Module:
        """The module of a source; the one of an earlier project, with all that is known of it,
        when nothing tells them apart."""
        packages = self._directories, self.library.packages
        new, known = _module(source, packages), self._earlier.get(id(source))
        same = known is not None and (known.name, known.root) == (new.name, new.root)
        return known if known is not None and same else new

    @cached_property
    def _paths(self) -> dict[str, Path]:
        return {p.as_posix(): p for p in self._by_path}

    def _above(self, directory: Path) -> list[Path]:
        """Directories above another, no higher than what the modules have in common."""
        if directory not in self._parents:
            self._parents[directory] = [
                p
                for p in directory.parents
                if p.is_relative_to(self._common) or p == self._common.parent
            ]
        return self._parents[directory]

    @cached_property
    def _has_torch(self) -> bool:
        """Whether torch itself is looked at: many projects have a directory of its name."""
        return any(
            path.endswith("/torch/distributed/__init__.py")
            for path in (*self._paths, *self.library.by_text)
        )

    @cached_property
    def _common(self) -> Path:
        first = self.modules[0].path.parent if self.modules else Path()
        for module in self.modules:
            while not module.path.is_relative_to(first):
                first = first.parent
        return first

    @cached_property
    def _file_names(self) -> frozenset[str]:
        return frozenset(m.path.parent.name if m.is_package else m.path.stem for m in self.modules)

    def resolve(self, qualified: str, importer: Module) -> tuple[Module, str] | None:
        """Split ``a.b.C.d`` into the project module it starts in and the rest (``"C.d"``).

        None when the name is not the project's own. Re-exports are not followed here.
        """
        key = (qualified, importer.home)
        if key not in self._resolved:
            self._resolved[key] = self._resolve(qualified, importer)
        return self._resolved[key]

    def _resolve(self, qualified: str, importer: Module) -> tuple[Module, str] | None:
        parts = qualified.split(".")
        for cut in range(len(parts), 0, -1):
            module = self.find(".".join(parts[:cut]), importer)
            if module is None:
                continue
            # A directory of the project is not the installed package of its name, such as
            # ``datasets``, when it has nothing of what is imported.
            own = module.root == importer.root
            if cut == len(parts) or own or module.may_have(parts[cut]):
                return module, ".".join(parts[cut:])
        return None


def _spellings(base: str) -> tuple[str, str]:
    """The paths of a module and of a package."""
    return f"{base}.py", f"{base}/__init__.py"


def _module(source: Source, packages: tuple[Collection[Path], ...]) -> Module:
    """Name a module by the packages that enclose it (directories with ``__init__.py``)."""
    path = source.path
    if source.excerpt is not None:  # nothing imports a notebook, and it starts in its directory
        name = path.stem if path.suffix == ".py" else path.name.replace(".", " ")
        return Module(source, name, PurePosixPath(path.parent), is_package=False)
    is_package = path.name == "__init__.py"
    parts = [] if is_package else [path.stem]
    directory = path.parent
    while any(directory in each for each in packages):
        parts.insert(0, directory.name)
        directory = directory.parent
    return Module(source, ".".join(parts), PurePosixPath(directory), is_package)
