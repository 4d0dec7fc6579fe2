"""What names stand for: through imports, re-exports, star imports, aliases and assignments."""

from __future__ import annotations

import ast
import builtins
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property

from fsdp_migrate.analysis import executed_files, reaching_bindings
from fsdp_migrate.analysis.module import Module
from fsdp_migrate.analysis.module_lookup import ModuleLookup
from fsdp_migrate.fsdp1 import api as fsdp1
from fsdp_migrate.syntax.scopes import Binding, Kind, differ
from fsdp_migrate.syntax.trees import split_path

# A name that says itself what it stands for: ``torch = require_torch()``, ``def step(torch, ...)``.
TORCH = "torch"


@dataclass(frozen=True)
class Lead:
    """What one definition makes of a name: a ``name`` outside the project, or, where that is
    empty, something of the project's own, which ``words`` describe."""

    name: str
    words: str = ""
    binding: Binding | None = None  # in the module where the name is used

    def __str__(self) -> str:
        return self.name or self.words


class NameResolution:
    """Follows names through imports to what they stand for, each question once."""

    def __init__(self, lookup: ModuleLookup) -> None:
        self.lookup = lookup
        self._outdated: Collection[ast.AST] = ()  # code that does not count
        self._canonical: dict[tuple[str, Module], frozenset[str]] = {}
        self._imported: dict[ast.expr, frozenset[str]] = {}
        self._meanings: dict[ast.expr, tuple[Lead, ...]] = {}
        self._following: set[Binding] = set()  # assignments that are being looked through

    def leave_out(self, outdated: Collection[ast.AST]) -> None:
        """Take code for dead: what only that imports is none."""
        self._outdated = outdated
        if outdated:
            self._imported.clear()
            self._meanings.clear()
            aliases = self.aliases.items()
            self.aliases = {b: name for b, name in aliases if b.node not in outdated}

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
            resolved = self.lookup.resolve(star, module)
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

    def aliased(self, qualified: str, importer: Module) -> frozenset[str]:
        """As :meth:`canonical`, for what leads to an alias of the project's."""
        return self._outside(qualified, importer, frozenset(), aliases=True)

    def _outside(
        self,
        qualified: str,
        importer: Module,
        passed: frozenset[tuple[Module, str]],
        *,
        aliases: bool = False,
        own: list[Binding | None] | None = None,
    ) -> frozenset[str]:
        """The names outside the project that a dotted name leads to, through re-exports.

        ``passed`` are the imports on the way here, by module and name: what leads through one
        twice would do so for ever, under longer and longer names. ``own`` collects what the project
        itself defines on the way (None: what only the text of a file was asked for).
        """
        resolved = self.lookup.resolve(qualified, importer)
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
            outside = self.lookup.resolve(star, module) is None
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

    def _aliased(self, node: ast.expr, module: Module) -> frozenset[str]:
        """What an expression stands for through an alias, here or in another module."""
        if not self.aliases:
            return frozenset()
        head, rest = split_path(node)
        if head is None:
            return frozenset()
        scope = module.table.scope_of(head).lookup(head.id)
        own = scope.bindings[head.id] if scope is not None else []
        found = {f"{self.aliases[b]}{rest}" for b in own if b in self.aliases}
        for qualified in self._qualified(node, module):
            found |= self.aliased(qualified, module)
        return frozenset(found)

    @cached_property
    def aliases(self) -> dict[Binding, str]:
        """The names of modules and functions that are FSDP1's class and nothing else: ``Wrapper =
        FSDP``. In a function they are those by which something of the class is asked for.

        Names of FSDP2's class are among them even where they are bound in other ways too.
        """
        found: dict[Binding, str] = {}
        for module in self.lookup.modules:
            if not module.mentions(*fsdp1.WORDS):
                continue
            for bindings in _bindings(module):
                for binding in filter(_is_alias, bindings):
                    assert binding.value is not None
                    for outer in self.imported(binding.value, module):
                        only_fsdp1s = fsdp1.canonical(outer) == fsdp1.FSDP and len(bindings) == 1
                        only_fsdp1s = only_fsdp1s and not self._is_set_by_text(binding, module)
                        if only_fsdp1s or fsdp1.is_fsdp2_class(outer):
                            found[binding] = outer
        return found

    def _is_set_by_text(self, binding: Binding, module: Module) -> bool:
        """Whether text that is executed may give a name of a module something else."""
        if binding.scope is not module.table.module:
            return False
        setter = executed_files.setter(binding.name, binding.node, module, self.lookup)
        return setter is not None

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
        head = split_path(node)[0] if isinstance(node, (ast.Name, ast.Attribute)) else None
        bound = self._reaching(head, module) if head is not None else ()
        missing = [b for b in bound if reaching_bindings.is_placeholder(b)]
        return [b for b in missing if not isinstance(b.node, ast.Delete)]

    def _leads(self, node: ast.expr, module: Module) -> Iterator[Lead]:
        head, rest = split_path(node)
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
            if self.lookup.resolve(star, module) is None and not star.startswith("torch."):
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
        """The imported names that an assignment passes on: ``FSDP = fairscale.nn.FSDP``.

        Only for names that are bound in other ways too; :attr:`aliases` has the others."""
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
        """The bindings that reach a use. Those of outdated code count in outdated code alone."""
        found = reaching_bindings.bindings(name, module)
        if not self._outdated or name in self._outdated:
            return found
        return [b for b in found if b.node not in self._outdated]

    def _qualified(self, node: ast.expr, module: Module) -> frozenset[str]:
        head, rest = split_path(node)
        if head is None:
            return frozenset()
        found: set[str] = set()
        reaching = self._reaching(head, module)
        for binding in reaching:
            imported = binding.kind is Kind.IMPORT
            names = (binding.qualified,) if imported else self._assigned(binding, module)
            found.update(f"{name}{rest}" for name in names)
        if not found and head.id == TORCH and any(map(_is_handed_on, reaching)):
            found.add(f"{TORCH}{rest}")
        if found:
            return frozenset(found)
        if module.table.scope_of(head).lookup(head.id) is not None:
            return frozenset()
        if not module.table.stars:  # nothing binds it: an excerpt, whose imports are elsewhere
            return frozenset({f"{TORCH}{rest}"} if head.id == TORCH else ())
        suffix = f"{head.id}{rest}"
        stars: set[str] = set()
        for _, star in module.table.stars:
            resolved = self.lookup.resolve(star, module)
            if resolved is None:
                of_torch = star.startswith("torch") and not hasattr(builtins, head.id)
                if of_torch and fsdp1.may_give(star, head.id):
                    stars.add(f"{star}.{suffix}")
            elif self.exports(resolved[0], head.id):
                stars.add(f"{star}.{suffix}")
        return frozenset(stars)


def _is_handed_on(binding: Binding) -> bool:
    """Whether a name is what somebody gives: an argument, or what a call returns."""
    is_call = binding.kind is Kind.ASSIGN and isinstance(binding.value, (ast.Call, ast.Await))
    return binding.kind is Kind.PARAMETER or (is_call and not binding.unpack)


def _bindings(module: Module) -> Iterator[list[Binding]]:
    """What binds each name of a module, and those of its functions that have attributes read."""
    yield from module.table.module.bindings.values()
    owners = {n.value.id for n in module.table.attributes if isinstance(n.value, ast.Name)}
    for node, scope in module.table.scopes.items():
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
            yield from (bound for name, bound in scope.bindings.items() if name in owners)


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
