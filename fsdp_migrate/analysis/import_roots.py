"""Where the dotted names of modules start: the directories that stand on ``sys.path``.

No program is run to find out. A directory counts because imports of the project work only if it
is on the path, because a script in it is started, or because the project's metadata says that its
packages are installed from there. A module may be loaded in several ways: by one name as a part of
its package, by another as a script. What is to be imported in it must work in all of them.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping
from functools import cached_property
from pathlib import Path

from fsdp_migrate.analysis.import_steps import ImportSteps, Step
from fsdp_migrate.analysis.installed_packages import METADATA, installed_from, renamed
from fsdp_migrate.analysis.module import Module
from fsdp_migrate.syntax.trees import asks_for_main, does_something

MAY_START = "started by python -m"  # for all that is known
REPOSITORY = (".git", *METADATA)
IMPORTED = re.compile(rb"^[ \t]*(?:from|import)[ \t]+([\w.]+)", re.M)


class Roots:
    """The directories that the names of a project's modules start from."""

    def __init__(self, imports: ImportSteps) -> None:
        self._imports = imports
        self._modules = imports.modules
        self.steps, self.needed, self.is_package = imports.steps, imports.needed, imports.is_package
        self._scripts: dict[Path, bool] = {}
        self._loading: dict[Module, frozenset[Module]] = {}
        self._beside: dict[Path, frozenset[Path]] = {}

    @property
    def all_needed(self) -> frozenset[Path]:
        """The directories that must be on the path for the sake of any module."""
        return self._imports.all_needed

    # -- in what ways modules are loaded -------------------------------------------------------

    def of(self, module: Module) -> frozenset[Path]:
        """Every directory that the name of ``module`` is known to start from.

        It is the module's own where it is started as a script or imported by its bare name.
        """
        return frozenset(self._loaded[module])

    def told(self, module: Module) -> list[str]:
        """The names that a module is loaded by, each with what tells it."""
        path = module.path.parent if module.is_package else module.path.with_suffix("")
        return [
            f"as {'.'.join(path.relative_to(root).parts) or path.name} ({why})"
            for root, why in self._loaded[module].items()
        ]

    @cached_property
    def _loaded(self) -> Mapping[Module, dict[Path, str]]:
        found: dict[Module, dict[Path, str]] = defaultdict(dict)
        modules = self._modules
        imported = self._imported()
        packaged: list[tuple[Module, Path]] = []
        for module in modules:
            installed = installed_from(module.path)
            if installed is not None and self._is_regular(installed, module.path.parent):
                packaged.append((module, installed))
            if module.source.excerpt is not None or self._is_script(module):
                self._load(module, module.path.parent, found, "started as a script")
                if installed is None and self._may_be_part(module):
                    self._load(module, self._outside(module), found, MAY_START)
        # Scripts that import what lies beside them run where nothing is installed.
        needed = self.all_needed
        for module, root in [
            (m, r)
            for m, r in packaged
            if r in needed
            or not needed & set(found[m])
            or (m.path.parent in found[m] and self._is_put_together(m))
        ]:
            self._load(module, root, found, "as the project installs it")
        for module in sorted(modules, key=lambda m: m in imported):
            if not found[module]:
                for root in self._guessed(module):
                    self._load(module, root, found, "by where it lies")
        return found

    def _is_put_together(self, module: Module) -> bool:
        """Whether the package that a module lies in imports some of its own files, relatively."""
        init = self._imports.at(module.path.parent / "__init__.py")
        return init is not None and _is_relative(self.steps(init))

    def _imported(self) -> set[Module]:
        """The modules that others import, by way of packages that are not under analysis too."""
        found: set[Module] = set()
        stack = list(self._modules)
        while stack:
            module = stack.pop()
            for step in self.steps(module):
                new = set(step.loads) - found - {module}
                found |= new
                stack += [m for m in new if m.path not in self._imports.files]
        return found

    def _load(
        self, module: Module, root: Path, found: dict[Module, dict[Path, str]], why: str
    ) -> None:
        """Note that a module is loaded by its name from ``root``, with all that it imports, and
        what tells it."""
        packages = [p for p in module.path.parents if root in p.parents]
        inits = [self._imports.at(p / "__init__.py") for p in packages]
        stack = [(m, root, why) for m in (module, *inits) if m is not None]
        while stack:
            module, root, why = stack.pop()
            known = found[module].get(root)
            if known in (None, MAY_START):
                found[module][root] = why
            if known is not None:
                continue
            for step in self.steps(module):
                start = root if step.relative else step.base
                if not step.relative or root in step.base.parents:
                    by = f"from {module.display}"
                    stack += [(target, start, by) for target in step.loads]

    def _is_script(self, module: Module) -> bool:
        return not _is_relative(self.steps(module), sure=True) and any(
            map(asks_for_main, module.source.tree.body)
        )

    def _may_be_part(self, script: Module) -> bool:
        """Whether ``python -m`` may start a script as well, for all that imports tell: its own,
        and those beside it, which tell that its directory is one of scripts."""
        directory = script.path.parent
        told = any(directory.is_relative_to(root) for root in self.needed(script))
        if told or script.source.excerpt is not None:
            return False
        part = self.is_package(directory) or _is_relative(self.steps(script))
        return part and not self._holds_scripts(directory)

    def _holds_scripts(self, directory: Path) -> bool:
        """Whether a directory must be on the path for the sake of a module in it."""
        known = self._scripts.get(directory)
        if known is None:
            beside = sorted(p for p in self._imports.library.paths if p.parent == directory)
            below = [m for m in self._modules if m.path.is_relative_to(directory)]
            loaded = (*below, *filter(None, map(self._imports.load, beside)))
            known = any(directory in self.needed(module) for module in loaded)
            self._scripts[directory] = known
        return known

    def _guessed(self, module: Module) -> list[Path]:
        """Where the name of a module starts that nothing in sight loads."""
        directory = module.path.parent
        if not _is_relative(self.steps(module)) and not self.is_package(directory):
            # What only defines things is imported, as what lies beside it is.
            imported = not any(map(does_something, module.source.tree.body))
            beside = self._bases(directory) if imported else frozenset()
            return [directory] if directory in beside else sorted(beside) or [directory]
        bases = dict.fromkeys(s.base for s in self.steps(module) if not s.relative)
        inside = [root for root in bases if directory.is_relative_to(root)]
        if not inside:  # then as the others of its package
            inside = [
                root
                for root in sorted(self.all_needed)
                if directory == root or _first(root, directory) in self._entered[root]
            ]
        return inside or [self._outside(module)]

    def _outside(self, module: Module) -> Path:
        """Where the name of a module starts as a part of the package that it lies in."""
        relative = [s.base for s in self.steps(module) if s.relative]
        package = min([module.path.parent, *relative], key=lambda p: len(p.parts))
        # The folder of a checkout has whatever name: it is no package because it looks like one.
        root = package.parent if relative or not _is_repository(package) else package
        while self.is_package(root) and not _is_repository(root):
            root = root.parent
        return root

    @cached_property
    def _entered(self) -> Mapping[Path, set[Path]]:
        """The files and directories in each root that absolute imports begin with."""
        return {root: {top for _, top in pairs} for root, pairs in self._crossings.items()}

    @cached_property
    def _crossings(self) -> Mapping[Path, set[tuple[Path, Path]]]:
        """By root: which of its files and directories import which by their names from there."""
        found: dict[Path, set[tuple[Path, Path]]] = defaultdict(set)
        for module in self._modules:
            for step in self.steps(module):
                if not step.relative:
                    importer = _first(step.base, module.path)
                    found[step.base] |= {(importer, _first(step.base, m.path)) for m in step.loads}
        return found

    def _bases(self, directory: Path) -> frozenset[Path]:
        """Where the names start by which files in a directory are imported for sure."""
        known = self._beside.get(directory)
        if known is None:
            beside = {p for p in self._imports.library.paths if p.parent == directory}
            naming = beside | self._naming.get(directory.name.encode(), set())
            others = filter(None, map(self._imports.load, sorted(naming)))
            steps = (s for m in (*self._modules, *others) for s in self.steps(m))
            sure = (s for s in steps if s.into == directory and s.sure and not s.relative)
            known = self._beside[directory] = frozenset(step.base for step in sure)
        return known

    @cached_property
    def _naming(self) -> Mapping[bytes, set[Path]]:
        """The files that are not under analysis, by the parts of what they import."""
        found: dict[bytes, set[Path]] = defaultdict(set)
        library = self._imports.library
        for path in library.paths:
            for match in IMPORTED.finditer(library.read(path)):
                for part in match[1].split(b"."):
                    found[part].add(path)
        return found

    def _is_regular(self, root: Path, directory: Path) -> bool:
        """Whether every directory on the way down from a root is a package."""
        between = directory.relative_to(root).parts
        steps = [root.joinpath(*between[: end + 1]) for end in range(len(between))]
        return all(map(self.is_package, steps))

    def meet(self, first: Module, second: Module) -> bool:
        """Whether two modules are known to run in one program: some module loads both."""
        return not self._programs(first).isdisjoint(self._programs(second))

    def loads(self, module: Module, target: Module) -> bool:
        """Whether a module loads another, or loads itself by way of others."""
        importers = self._importers[target]
        return any(module in self._programs(each) for each in importers)

    def is_imported(self, module: Module) -> bool:
        """Whether another module imports one, as far as is known."""
        return any(other is not module for other in self._importers[module])

    def is_imported_bare(self, module: Module) -> bool:
        """Whether a module is imported by the name that it has in its own directory."""
        return any(True for _ in self._importing_bare(module))

    def _importing_bare(self, module: Module) -> Iterator[Module]:
        own = module.path.parent
        for importer in self._importers[module]:
            steps = (s for s in self.steps(importer) if not s.relative)
            if any(module in step.loads and step.base == own for step in steps):
                yield importer

    def _programs(self, module: Module) -> frozenset[Module]:
        """The modules that load ``module``, itself among them."""
        known = self._loading.get(module)
        if known is None:
            found, stack = {module}, [module]
            while stack:
                new = self._importers[stack.pop()] - found
                found |= new
                stack += new
            known = self._loading[module] = frozenset(found)
        return known

    @cached_property
    def _importers(self) -> Mapping[Module, set[Module]]:
        found: dict[Module, set[Module]] = defaultdict(set)
        for module in (*self._modules, *self._imported()):
            for step in self.steps(module):
                for target in step.loads:
                    found[target].add(module)
        return found

    # -- what to write -------------------------------------------------------------------------

    def spelled(self, module: Module, path: Path) -> str:
        """What stands after ``from`` in ``module`` to import from the file ``path``, in every way
        that the module is loaded; nothing when no such name is proved."""
        ways, directory, own = self.of(module), path.parent, module.path.parent
        relative = ""
        if own.is_relative_to(directory) and all(root in directory.parents for root in ways):
            relative = "." * (len(own.relative_to(directory).parts) + 1) + path.stem
        if relative and _is_relative(self.steps(module)):
            return relative
        installed_as = self._installed_as(module, path)
        if installed_as:
            return installed_as
        known = len(ways) == 1 and (own in ways or ways <= self.all_needed)
        roots = [*self.needed(module), *(ways if known else ())]
        installed = installed_from(path)
        regular = installed is not None and self._is_regular(installed, directory)
        if installed is not None and regular and not self._runs_uninstalled(module, installed):
            roots.append(installed)
        for root in roots:
            inside = path.is_relative_to(root) and self._is_named(root, directory)
            if inside and (own.is_relative_to(directory) or self._leads(module, root, path)):
                return ".".join(path.relative_to(root).with_suffix("").parts)
        return relative

    def _runs_uninstalled(self, module: Module, installed: Path) -> bool:
        """Whether a file that asks for nothing of its project is imported by its bare name where
        the project need not be installed."""
        if installed in self.needed(module) or installed == module.path.parent:
            return False
        return any(installed not in self.needed(m) for m in self._importing_bare(module))

    def _installed_as(self, module: Module, path: Path) -> str:
        """The name of a file in a package that is installed from a directory of another name."""
        for dotted, place in renamed(module.path.parent).items():
            apart = place not in self.all_needed and not self.needed(module)
            if apart and path.is_relative_to(place) and self._is_named(place, path.parent):
                return ".".join((*dotted, *path.relative_to(place).with_suffix("").parts))
        return ""

    def starts(self, module: Module, path: Path) -> frozenset[Path]:
        """The directories that the name of a file starts from as ``module`` imports it."""
        spelled = self.spelled(module, path)
        if spelled.startswith("."):  # more dots than a path near the top has directories
            return self.of(module)
        return frozenset({path.parents[spelled.count(".")]})

    def _is_named(self, root: Path, directory: Path) -> bool:
        """Whether names from a root lead into a directory: through packages, or as others do."""
        if not all(part.isidentifier() for part in directory.relative_to(root).parts):
            return False
        if self._is_regular(root, directory) or directory in self._named[root]:
            return True
        return any(
            root in ways and module.path.is_relative_to(directory)
            for module, ways in self._loaded.items()
        )

    @cached_property
    def _named(self) -> Mapping[Path, set[Path]]:
        """By root: the directories through which the names of sure imports lead."""
        found: dict[Path, set[Path]] = defaultdict(set)
        for step in (s for m in self._modules for s in self.steps(m)):
            if step.sure and not step.relative:
                found[step.base] |= {step.into, *step.into.parents}
        return found

    def _leads(self, module: Module, root: Path, path: Path) -> bool:
        """Whether ``module``, or what it lies beside, imports from the package of a file outside
        already, which does not import it in turn: one more import loads nothing too early."""
        there, here = _first(root, path), _first(root, module.path)
        crossings = self._crossings.get(root, set())
        if here != module.path or (here, there) in crossings:
            return (here, there) in crossings and (there, here) not in crossings
        led = {m for m in self._modules if (m.path, there) in crossings}
        return self._is_led(module, led, there)

    def _is_led(self, module: Module, led: Collection[Module], there: Path) -> bool:
        """Whether every way to load a module which lies outside of a package leads through one
        that is ``led`` into it, and none through the package; or, of a module that nothing in
        sight loads, whether one beside it is."""
        programs = self._programs(module)
        if any(m.path.is_relative_to(there) for m in programs):
            return False
        if programs == {module}:
            return any(m.path.parent == module.path.parent for m in led)
        seen, stack = {module}, [module]
        while stack:
            importers = self._importers[stack.pop()]
            if not importers:
                return False
            new = importers - seen - set(led)
            seen |= new
            stack += new
        return not programs.isdisjoint(led)


def _first(root: Path, path: Path) -> Path:
    """The first file or directory on the way from a root to a path; another path itself."""
    parts = path.relative_to(root).parts if path.is_relative_to(root) else ()
    return root / parts[0] if parts else path


def _is_relative(steps: Iterable[Step], *, sure: bool = False) -> bool:
    return any(step.relative and (step.sure or not sure) for step in steps)


def _is_repository(directory: Path) -> bool:
    return any((directory / name).exists() for name in REPOSITORY)
