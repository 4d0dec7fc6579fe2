"""The modules under analysis and how their imports meet."""

from __future__ import annotations

import ast
import builtins
import sys
from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path, PurePosixPath

from packaging.version import Version

from fsdp_migrate.analysis import reaching_bindings
from fsdp_migrate.analysis.import_roots import Roots
from fsdp_migrate.analysis.module import Library, Module
from fsdp_migrate.analysis.torch_versions import Answer
from fsdp_migrate.fsdp1 import api as fsdp1
from fsdp_migrate.syntax.scopes import Binding, Kind, differ
from fsdp_migrate.syntax.source import Source, SourceError


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


@dataclass(frozen=True)
class Lead:
    """What one definition makes of a name: ``name`` outside the project, or, where that is empty,
    something of the project's own, in words."""

    name: str
    words: str = ""
    binding: Binding | None = None  # in the module where the name is used

    def __str__(self) -> str:
        return self.name or self.words


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
        self._earlier = {id(module.source): module for module in known}
        listed = sorted(sources, key=lambda s: s.display)
        self.library = library or Library()
        self._directories = {s.path.parent for s in listed if s.path.name == "__init__.py"}
        self.modules = [self._module(source) for source in listed]
        self._by_path: dict[Path, Module | None] = {m.path: m for m in self.modules}
        self._by_name: dict[str, list[Module]] = defaultdict(list)
        self._found: dict[tuple[str, tuple[str, str]], Module | None] = {}
        self._resolved: dict[tuple[str, tuple[str, str]], tuple[Module, str] | None] = {}
        self._canonical: dict[tuple[str, Module], frozenset[str]] = {}
        self._parents: dict[Path, list[Path]] = {}
        self._imported: dict[ast.expr, frozenset[str]] = {}
        self._meanings: dict[ast.expr, tuple[Lead, ...]] = {}
        self._following: set[Binding] = set()  # assignments that are being looked through
        self._mentioned: dict[tuple[str, ...], bool] = {}
        for module in self.modules:
            self._by_name[module.name].append(module)

    @property
    def read(self) -> list[Module]:
        """Every module that was read, those of the library among them."""
        return [module for module in self._by_path.values() if module is not None]

    def mentions(self, *words: str) -> bool:
        """Whether any of ``words`` stands anywhere in a module under analysis."""
        known = self._mentioned.get(words)
        if known is None:
            known = any(module.mentions(*words) for module in self.modules)
            self._mentioned[words] = known
        return known

    def settle(self, target: Version, outdated: dict[ast.AST, Outdated]) -> None:
        """Take for dead what no torch from ``target`` on runs: what only that imports is none."""
        self.target, self.outdated = target, outdated
        if outdated:
            self._imported.clear()
            self._meanings.clear()
            aliases = self.aliases.items()
            self.aliases = {b: name for b, name in aliases if b.node not in outdated}

    def island(self, module: Module) -> int:
        """The same number for modules that values get from one to the other by imports."""
        return self.islands.get(module.path, 0)

    def asked_for(self, module: Module) -> frozenset[str]:
        """The names that other modules import from ``module``."""
        return frozenset(self._asked_for.get(module, ()))

    @cached_property
    def _asked_for(self) -> dict[Module, set[str]]:
        found: dict[Module, set[str]] = defaultdict(set)
        for importer in self.modules:
            for binding in importer.table.imports:
                resolved = self.resolve(binding.qualified, importer)
                if resolved is not None and resolved[0] is not importer and resolved[1]:
                    found[resolved[0]].add(resolved[1].split(".")[0])
            for attribute in importer.table.attributes_by_name.of(self.lent):
                for qualified in importer.table.qualify(attribute):
                    resolved = self.resolve(qualified, importer)
                    if resolved is not None and resolved[0] is not importer and resolved[1]:
                        found[resolved[0]].add(resolved[1].split(".")[0])
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

    def find(self, dotted: str, importer: Module) -> Module | None:
        """The module that ``import dotted`` means when written in ``importer``.

        Absolute imports are looked up the way a run would: from the importer's own root, then from
        the importer's directory (scripts), then from every directory above it (namespace packages,
        scripts run from the top of a repository), then anywhere the name is unambiguous. ``torch``
        is torch, whatever the project calls its directories, and ``typing`` is Python's, unless
        the project has one where names are known to start.
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
        if parts[-1] not in self._file_names and parts[-1] not in self.library.names:
            return None
        standard = parts[0] in sys.stdlib_module_names
        for directory in (importer.path.parent, *self._above(importer.path.parent)):
            if standard and not self._is_root(directory, importer):
                continue
            base = "/".join((str(directory).rstrip("/"), *parts))
            for text in (f"{base}.py", f"{base}/__init__.py"):
                path = self._paths.get(text) or self.library.by_text.get(text)
                found = self._at(path) if path is not None else None
                if found is not None:
                    return found
        candidates = candidates or [
            m for m in self._by_last[parts[-1]] if m.location.parts[-len(parts) :] == tuple(parts)
        ]
        return candidates[0] if len(candidates) == 1 and not standard else None

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
        return Roots(self.modules, self.library, self.resolve, self.load)

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

    @cached_property
    def packages(self) -> frozenset[str]:
        """First parts of the dotted names under which modules of the project are imported."""
        found = {m.name.split(".")[0] for m in self.modules if "." in m.name}
        for module in self.modules:
            for binding in module.table.imports:
                if self.resolve(binding.qualified, module) is not None:
                    found.add(binding.qualified.split(".")[0])
        return frozenset(found)

    # -- where a name of a module comes from -----------------------------------------------------

    def exports(
        self, module: Module, name: str, _seen: frozenset[tuple[int, str]] = frozenset()
    ) -> list[tuple[Module, Binding]]:
        """The bindings that ``from module import name`` may reach, star imports followed.

        An import binding is returned as such; :meth:`resolve` its ``qualified`` to go on. What is
        bound again before the module ends is not reached.
        """
        key = (id(module), name)
        if key in _seen:
            return []
        seen = _seen | {key}
        top = module.table.module
        bindings = top.bindings.get(name, [])
        if bindings:
            return [
                (module, binding) for binding in reaching_bindings.at_end(bindings, top, module)
            ]
        found: list[tuple[Module, Binding]] = []
        for _, star in module.table.stars:
            resolved = self.resolve(star, module)
            if resolved is not None and not resolved[1]:
                found += self.exports(resolved[0], name, seen)
        return found

    def canonical(self, qualified: str, importer: Module) -> frozenset[str]:
        """The names outside the project that ``qualified`` finally stands for.

        ``myproject.dist.FSDP``, re-exported there from torch, becomes torch's name; a name the
        project defines itself becomes nothing, and so does one that leads back to itself.
        """
        known = self._canonical.get((qualified, importer))
        if known is None:
            known = self._outside(qualified, importer, frozenset())
            self._canonical[qualified, importer] = known
        return known

    def _outside(
        self,
        qualified: str,
        importer: Module,
        passed: frozenset[tuple[Module, str]],
        *,
        aliases: bool = False,
        own: list[Binding | None] | None = None,
    ) -> frozenset[str]:
        """``passed`` are the imports on the way here, by module and name: what leads through one
        twice would do so for ever, under longer and longer names. ``own`` collects what the project
        itself defines on the way (None: what only the text of a file was asked for)."""
        resolved = self.resolve(qualified, importer)
        if resolved is None:
            return frozenset({qualified})
        module, rest = resolved
        if not rest or (module, rest.partition(".")[0]) in passed:
            return frozenset()
        head, _, tail = rest.partition(".")
        if module.surely_defines(head):
            if own is not None:
                own.append(None)
            return frozenset()
        passed |= {(module, head)}
        found: set[str] = set()
        for owner, binding in self.exports(module, head):
            if binding.kind is Kind.IMPORT:
                target = f"{binding.qualified}.{tail}" if tail else binding.qualified
                found |= self._outside(target, owner, passed, aliases=aliases, own=own)
            elif aliases and binding in self.aliases:
                found.add(f"{self.aliases[binding]}.{tail}" if tail else self.aliases[binding])
            else:
                assigned = self._assigned(binding, owner)
                for name in assigned:
                    target = f"{name}.{tail}" if tail else name
                    found |= self._outside(target, owner, passed, aliases=aliases, own=own)
                if own is not None and not assigned:
                    own.append(binding)
        for _, star in module.table.stars:
            outside = self.resolve(star, module) is None
            if outside and not module.table.module.bindings.get(head):
                found.add(f"{star}.{rest}")
        return frozenset(found)

    def external(self, node: ast.expr, module: Module) -> frozenset[str]:
        """The names outside the project an expression may stand for through imports, and through
        names that a module gives FSDP1's class once and for all."""
        return self.imported(node, module) or self._aliased(node, module)

    def imported(self, node: ast.expr, module: Module) -> frozenset[str]:
        """As :meth:`external`, through imports alone."""
        known = self._imported.get(node)
        if known is None:
            result: set[str] = set()
            for qualified in self._qualified(node, module):
                result |= self.canonical(qualified, module)
            known = self._imported[node] = frozenset(result)
        return known

    def meaning(self, node: ast.expr, module: Module) -> tuple[Lead, ...]:
        """What a name or a dotted path may stand for where it is used, one entry for each thing.

        This is where to ask what a name is. Only the definitions that reach the use count. What
        nothing could be made with (``FSDP = None`` where an import fails) is not among them. A node
        of a quoted annotation is looked up where the module ends.
        """
        known = self._meanings.get(node)
        if known is None:
            known = self._meanings[node] = tuple(dict.fromkeys(self._leads(node, module)))
        return known

    def look_alikes(self, node: ast.AST, module: Module) -> list[Lead]:
        """What else a reference to FSDP1 may be there: nothing where it is FSDP1's for sure."""
        if not isinstance(node, (ast.Name, ast.Attribute)):
            return []
        leads = self.meaning(node, module)
        known = sorted(filter(None, (fsdp1.canonical(lead.name) for lead in leads)))
        return [lead for lead in leads if known and not fsdp1.is_same(lead.name, known[0])]

    def placeholders(self, node: ast.AST, module: Module) -> list[Binding]:
        """What else a reference finds where FSDP1 is missing, such as None or a class."""
        head = _split(node)[0] if isinstance(node, (ast.Name, ast.Attribute)) else None
        bound = self._reaching(head, module) if head is not None else ()
        missing = [b for b in bound if reaching_bindings.is_placeholder(b)]
        return [b for b in missing if not isinstance(b.node, ast.Delete)]

    def _leads(self, node: ast.expr, module: Module) -> Iterator[Lead]:
        head, rest = _split(node)
        if head is None:
            return
        bound = self._reaching(head, module)
        yield from self._leads_of_all(bound, rest, module)
        if not bound:
            yield from self._leads_of_stars(node, f"{head.id}{rest}", module)

    def _leads_of_stars(self, node: ast.expr, path: str, module: Module) -> Iterator[Lead]:
        """What star imports make of a name. Those after one that has it may have it as well."""
        found = sorted(self._qualified(node, module))
        for qualified in found:
            yield from self._leads_of(qualified, None, module)
        stars = [star for _, star in module.table.stars]
        first = next((i for i, star in enumerate(stars) if f"{star}.{path}" in found), len(stars))
        for star in stars[first + 1 :]:
            if self.resolve(star, module) is None and not star.startswith("torch."):
                yield Lead(f"{star}.{path}")

    def _leads_of_all(self, bound: Iterable[Binding], rest: str, module: Module) -> Iterator[Lead]:
        for binding in bound:
            assigned = self._assigned(binding, module)
            if binding.kind is Kind.IMPORT:
                yield from self._leads_of(f"{binding.qualified}{rest}", binding, module)
            elif binding in self.aliases:
                yield Lead(f"{self.aliases[binding]}{rest}", binding=binding)
            elif assigned:
                for name in sorted(assigned):
                    yield from self._leads_of(f"{name}{rest}", binding, module)
            elif not reaching_bindings.is_placeholder(binding):
                yield Lead("", reaching_bindings.in_words(binding), binding)

    def _leads_of(self, qualified: str, binding: Binding | None, module: Module) -> Iterator[Lead]:
        """What a dotted name that a binding gives to another leads to."""
        own: list[Binding | None] = []
        found = self._outside(qualified, module, frozenset(), aliases=True, own=own)
        for name in sorted(found):
            yield Lead(name, binding=binding)
        for each in own:
            if each is None or not reaching_bindings.is_placeholder(each):
                words = reaching_bindings.in_words(each) if each is not None else qualified
                yield Lead("", words, binding)
        if not found and not own:
            yield Lead("", qualified, binding)

    def _assigned(self, binding: Binding, module: Module) -> frozenset[str]:
        """The imported names that an assignment gives on (``FSDP = fairscale.nn.FSDP``), where its
        own name is bound in other ways too; of the others :attr:`aliases` tells."""
        value = binding.value
        if not _is_alias(binding) or value is None or binding in self._following:
            return frozenset()
        if not differ(binding.scope.bindings[binding.name]):
            return frozenset()
        self._following.add(binding)
        found = self._qualified(value, module)
        self._following.discard(binding)
        return found

    def _reaching(self, name: ast.Name, module: Module) -> Sequence[Binding]:
        """The bindings that reach a use, but for those that only outdated code makes, where the use
        is none."""
        found = reaching_bindings.bindings(name, module)
        if not self.outdated or name in self.outdated:
            return found
        return [b for b in found if b.node not in self.outdated]

    @cached_property
    def aliases(self) -> dict[Binding, str]:
        """``Wrapper: TypeAlias = FSDP`` and ``Wrapper = FSDP``: the only bindings of names of
        modules, and what they stand for.

        Names that may be FSDP2's class are among them, for what it is that has them.
        """
        found: dict[Binding, str] = {}
        for module in self.modules:
            if not module.mentions(*fsdp1.WORDS):
                continue
            for bindings in module.table.module.bindings.values():
                for binding in filter(_is_alias, bindings):
                    assert binding.value is not None
                    for outer in self.imported(binding.value, module):
                        only_fsdp1s = fsdp1.canonical(outer) == fsdp1.FSDP and len(bindings) == 1
                        if only_fsdp1s or fsdp1.is_fsdp2_class(outer):
                            found[binding] = outer
        return found

    def _aliased(self, node: ast.expr, module: Module) -> frozenset[str]:
        """What an expression stands for through an alias, here or in another module."""
        if not self.aliases:
            return frozenset()
        head, rest = _split(node)
        if head is None:
            return frozenset()
        scope = module.table.scope_of(head).lookup(head.id)
        own = scope.bindings[head.id] if scope is not None else []
        found = {f"{self.aliases[b]}{rest}" for b in own if b in self.aliases}
        for qualified in self._qualified(node, module):
            found |= self.aliased(qualified, module)
        return frozenset(found)

    def aliased(self, qualified: str, importer: Module) -> frozenset[str]:
        """As :meth:`canonical`, for what leads to an alias of the project's."""
        return self._outside(qualified, importer, frozenset(), aliases=True)

    def _qualified(self, node: ast.expr, module: Module) -> frozenset[str]:
        head, rest = _split(node)
        if head is None:
            return frozenset()
        found: set[str] = set()
        for binding in self._reaching(head, module):
            imported = binding.kind is Kind.IMPORT
            names = (binding.qualified,) if imported else self._assigned(binding, module)
            found.update(f"{name}{rest}" for name in names)
        if found or not module.table.stars:
            return frozenset(found)
        if module.table.scope_of(head).lookup(head.id) is not None:
            return frozenset()
        suffix = f"{head.id}{rest}"
        stars: set[str] = set()
        for _, star in module.table.stars:
            resolved = self.resolve(star, module)
            if resolved is None:
                if star.startswith("torch") and not hasattr(builtins, head.id):
                    stars.add(f"{star}.{suffix}")
            elif self.exports(resolved[0], head.id):
                stars.add(f"{star}.{suffix}")
        return frozenset(stars)


def _split(node: ast.expr) -> tuple[ast.Name | None, str]:
    """``a`` and ``.b.c`` of ``a.b.c``."""
    rest = ""
    while isinstance(node, ast.Attribute):
        rest = f".{node.attr}{rest}"
        node = node.value
    return (node if isinstance(node, ast.Name) else None), rest


def _is_alias(binding: Binding) -> bool:
    """Whether a name is assigned another one, as it is."""
    if binding.kind is not Kind.ASSIGN or binding.unpack:
        return False
    if not isinstance(binding.value, (ast.Name, ast.Attribute)):
        return False
    match binding.node:
        case ast.Assign(targets=[ast.Name()]):
            return True
        case ast.AnnAssign(annotation=ast.Name(id=kind) | ast.Attribute(attr=kind)):
            return kind == "TypeAlias"
    return False


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
