"""The modules under analysis and how their imports meet."""

from __future__ import annotations

import ast
from collections import defaultdict
from collections.abc import Iterable, Iterator, Set
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from packaging.version import Version

from fsdp_migrate.analysis.import_roots import Roots
from fsdp_migrate.analysis.module import Library, Module
from fsdp_migrate.analysis.module_lookup import ModuleLookup
from fsdp_migrate.analysis.name_resolution import NameResolution
from fsdp_migrate.analysis.torch_versions import Answer
from fsdp_migrate.fsdp1 import api as fsdp1
from fsdp_migrate.syntax.scopes import Binding
from fsdp_migrate.syntax.source import Source
from fsdp_migrate.syntax.trees import walk

SETTERS = ("setattr", "object", "patch")


@dataclass(frozen=True, eq=False)
class Outdated:
    """Code that only torch releases below the target run: ``body``, which ``part`` of ``node`` is.

    The ``body`` or ``orelse`` of an ``if``, the ``rest`` of the block behind one, an ``operand`` of
    an expression, or a ``definition`` that only such code uses.
    """

    node: ast.AST
    part: str
    body: tuple[ast.AST, ...]
    text: str  # the releases that run it: ``before 2.1``
    until: Version  # the first that does not, or the last that does


class Project:
    """A closed world: every module under analysis, and the imports between them.

    ``modules`` are searched for sites and callers; ``library`` files only answer questions about
    the names they define.
    """

    def __init__(
        self,
        sources: Iterable[Source],
        library: Library | None = None,
        known: Iterable[Module] = (),  # of an earlier project: what is read already
    ) -> None:
        self.islands: dict[Path, int] = {}  # which files share values; those not in it do
        self.target: Version | None = None  # the oldest torch it is to run on
        self.outdated: dict[ast.AST, Outdated] = {}  # by every node of such code
        self.version_tests: dict[ast.expr, Answer | None] = {}  # that have been read
        self.library = library or Library()
        self._mentioned: dict[tuple[str, ...], bool] = {}
        lookup = self._lookup = ModuleLookup(sources, self.library, known)
        self.modules = lookup.modules
        self.find, self.resolve, self.load = lookup.find, lookup.resolve, lookup.load
        names = self._names = NameResolution(lookup)
        self.exports, self.canonical, self.aliased = names.exports, names.canonical, names.aliased
        self.external, self.imported = names.external, names.imported
        self.meaning, self.look_alikes = names.meaning, names.look_alikes
        self.placeholders = names.placeholders

    @property
    def read(self) -> list[Module]:
        """Every module that was read, those of the library among them."""
        return self._lookup.read

    @property
    def roots(self) -> Roots:
        """The directories that the names of its modules start from."""
        return self._lookup.roots

    @property
    def aliases(self) -> dict[Binding, str]:
        """``Wrapper = FSDP``: the names that modules give FSDP's classes, and what these are."""
        return self._names.aliases

    def mentions(self, *words: str) -> bool:
        """Whether any of ``words`` stands anywhere in a module under analysis, or in what those
        import: what a whole program has none of, no file of it may speak of."""
        known = self._mentioned.get(words)
        if known is None:
            known = any(module.mentions(*words) for module in self.modules)
            known = known or self.library.speaks_of(*words)
            self._mentioned[words] = known
        return known

    def modules_mentioning(self, *words: str) -> Iterator[Module]:
        """The modules of the whole program that speak of any of ``words``, what the modules under
        analysis import among them."""
        yield from (module for module in self.modules if module.mentions(*words))
        for path in sorted(self.library.joined) if self.library.speaks_of(*words) else ():
            module = self.load(path)
            if module is not None and module.mentions(*words):
                yield module

    def settle(self, target: Version, outdated: dict[ast.AST, Outdated]) -> None:
        """Take for dead what no torch from ``target`` on runs: what only that imports is none."""
        self.target, self.outdated = target, outdated
        self._names.leave_out(outdated)

    def island(self, module: Module) -> int:
        """The same number for modules that values get from one to the other by imports."""
        return self.islands.get(module.path, 0)

    def asked_for(self, module: Module, without: Set[ast.AST] = frozenset()) -> frozenset[str]:
        """The names that other modules import from ``module``, or read as its attributes.

        Args:
            without: imports and uses that count no more.
        """
        asked = self._asked_for.get(module, {})
        return frozenset(name for name, askers in asked.items() if not askers <= without)

    @cached_property
    def _asked_for(self) -> dict[Module, dict[str, set[ast.AST]]]:
        """By module and name: the imports that ask for it, and the names of modules that do."""
        found: dict[Module, dict[str, set[ast.AST]]] = defaultdict(lambda: defaultdict(set))
        for importer in self.modules:
            for binding in importer.table.imports:
                resolved = self.resolve(binding.qualified, importer)
                if resolved is not None and resolved[0] is not importer and resolved[1]:
                    found[resolved[0]][resolved[1].split(".")[0]].add(binding.node)
            for attribute in importer.table.attributes_by_name.of(self.lent):
                for qualified in importer.table.qualify(attribute):
                    resolved = self.resolve(qualified, importer)
                    if resolved is not None and resolved[0] is not importer and resolved[1]:
                        found[resolved[0]][resolved[1].split(".")[0]].update(
                            n for n in walk(attribute) if isinstance(n, ast.Name)
                        )
        return found

    @cached_property
    def lent(self) -> frozenset[str]:
        """The names under which modules import parts of FSDP1: others may use them as attributes
        of these modules."""
        return frozenset(
            binding.name
            for module in self.modules
            if module.mentions(*fsdp1.WORDS)
            for binding in module.table.imports
            if any(map(fsdp1.canonical, self.canonical(binding.qualified, module)))
        )

    @cached_property
    def packages(self) -> frozenset[str]:
        """First parts of the dotted names under which modules of the project are imported."""
        found = {m.name.split(".")[0] for m in self.modules if "." in m.name}
        for module in self.modules:
            for binding in module.table.imports:
                if self.resolve(binding.qualified, module) is not None:
                    found.add(binding.qualified.split(".")[0])
        return frozenset(found)

    @cached_property
    def attributes_set(self) -> frozenset[str]:
        """Names that something sets as attributes: ``settings.OLD = True``, or by ``setattr``."""
        found = set(self.library.attributes_set)
        for module in self.modules:
            attributes = module.table.attributes
            found.update(a.attr for a in attributes if a.ctx.__class__ is not ast.Load)
            setting = module.table.calls_by_name.of(SETTERS) if module.mentions(*SETTERS) else ()
            for call in setting:
                match call:
                    case ast.Call(
                        func=ast.Name(id="setattr") | ast.Attribute(attr="setattr" | "object"),
                        args=[_, ast.Constant(value=str(name)), *_],
                    ):
                        found.add(name)
                    case ast.Call(
                        func=ast.Name(id="patch") | ast.Attribute(attr="patch" | "setattr"),
                        args=[ast.Constant(value=str(name)), *_],
                    ):
                        found.add(name.rpartition(".")[2])
        return frozenset(found)
