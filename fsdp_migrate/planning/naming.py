"""Names for emitted code: imports that are in place, and names that collide with nothing."""

from __future__ import annotations

import ast
import builtins
import keyword
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field

from fsdp_migrate.analysis.module import Module
from fsdp_migrate.fsdp1.api import same_names
from fsdp_migrate.planning.edits import Import
from fsdp_migrate.syntax.kinds import of_kind
from fsdp_migrate.syntax.scopes import Scope
from fsdp_migrate.syntax.trees import block_of

# Submodules that ``import torch`` alone makes available as attributes.
_LOADED_WITH_TORCH = frozenset(
    {"torch.distributed", "torch.cuda", "torch.nn", "torch.nn.utils", "torch.optim", "torch.amp"}
)


def visible(module: Module, near: ast.AST, qualified: str) -> str:
    """The name under which an import makes ``qualified`` visible at ``near``, or nothing."""
    table = module.table
    scope = table.scope_of(near)
    for binding in table.imports:
        seen = scope.lookup(binding.name) is binding.scope
        others = binding.scope.bindings[binding.name]
        if not seen or any(b.qualified != binding.qualified for b in others):
            continue
        excerpt = module.source.excerpt
        if excerpt is not None and binding.scope is table.module:
            after = excerpt.piece(getattr(near, "lineno", 1)).line
            if excerpt.piece(getattr(binding.node, "lineno", 1)).line > after:
                continue  # a later cell of the notebook imports it
        alias = of_kind(binding.node, ast.alias)
        visible = binding.name if binding.qualified == qualified else ""
        statement = table.statement(binding.node)
        whole = isinstance(statement, ast.Import) and not alias.asname
        if not visible and whole and alias.name == qualified:
            visible = qualified  # ``import a.b.c`` binds ``a`` and makes ``a.b.c`` usable
        if not visible:
            continue
        if binding.scope is not table.module:
            served = table.has_run(statement, near)  # else another branch has it for itself
        else:  # it may be imported later only, or for annotations
            served = excerpt is not None or module.loading.serves(statement, near)
        if served:
            return visible
    return ""


@dataclass(eq=False)
class Namer:
    """Hands out names that collide with nothing, the same one for the same purpose."""

    taken: dict[Scope, set[str]] = field(default_factory=lambda: defaultdict(set))
    imported: dict[tuple[Module, str, Scope], str] = field(default_factory=dict)
    loops: dict[Scope, set[str]] = field(default_factory=lambda: defaultdict(set))
    passed: dict[tuple[Scope, str], set[ast.AST]] = field(default_factory=lambda: defaultdict(set))
    kept: dict[tuple[Scope, str], list[ast.AST]] = field(default_factory=lambda: defaultdict(list))

    def fresh(self, module: Module, scopes: Sequence[Scope], wanted: str) -> str:
        """``wanted``, or ``wanted_2`` and so on, unused in some scopes and what they can see."""
        candidate, number = wanted, 2
        while any(self._used(module, scope, candidate) for scope in scopes):
            candidate, number = f"{wanted}_{number}", number + 1
        for scope in scopes:
            self.taken[scope].add(candidate)
        return candidate

    def loop(
        self, module: Module, scopes: Sequence[Scope], wanted: str, places: Sequence[ast.AST]
    ) -> str:
        """As :meth:`fresh`, for a loop variable: other emitted loops may have it too, and loops of
        the program's, behind or in front of which nothing reads it."""
        if all(
            wanted not in self.taken[scope] and _ends_with_its_loops(wanted, scope, place, module)
            for scope, place in zip(scopes, places, strict=True)
        ):
            return wanted
        if all(wanted in self.loops[scope] for scope in scopes):
            return wanted
        name = self.fresh(module, scopes, wanted)
        for scope in scopes:
            self.loops[scope].add(name)
        return name

    def passing(self, module: Module, near: ast.AST, wanted: str) -> str:
        """As :meth:`fresh`, for a name that only the code beside one statement reads: what is
        written beside a later one may bind it anew."""
        table = module.table
        scope, statement = table.scope_of(near).home(), table.statement(near)
        holders = self.passed[scope, wanted]
        lines = [getattr(holder, "lineno", 0) for holder in holders]
        free = max(lines, default=0) < statement.lineno
        kept = any(_follows(near, each, module) for each in self.kept[scope, wanted])
        if not holders or not free or kept:
            name = self.fresh(module, [scope], wanted)
            if name != wanted:
                return name
        holders.add(statement)
        return wanted

    def keep(self, module: Module, near: ast.AST, name: str) -> None:
        """Let a passing name have its value for the statements that follow that of ``near``."""
        self.kept[module.table.scope_of(near).home(), name].append(near)

    def _used(self, module: Module, scope: Scope, name: str) -> bool:
        if keyword.iskeyword(name) or hasattr(builtins, name) or name in self.taken[scope]:
            return True
        if scope.lookup(name) is not None:
            return True
        # Free in this scope, but a nested function may mean a global or a star import by it.
        for node in module.table.names:
            if node.id != name:
                continue
            inner = module.table.within[node]
            owner = inner.lookup(name)
            if owner is None and _encloses(scope, inner):
                return True
        return False

    def from_import(self, module: Module, source: str, name: str, near: ast.AST) -> Import:
        """How ``source.name`` is written at ``near``; an import that is in place is reused."""
        scope = module.table.scope_of(near)
        names = (visible(module, near, q) for q in same_names(f"{source}.{name}"))
        present = next(filter(None, names), "")
        if present:
            return Import(module, "", "", present, near)
        if not any(b.qualified.startswith(f"{source}.") for b in module.table.imports):
            whole = visible(module, near, source)  # import torch.distributed.fsdp as fsdp
            if whole:
                return Import(module, "", "", f"{whole}.{name}", near)
        known = self._free_import(module, scope, f"{source}.{name}", name)
        return Import(module, source, name, known if known != name else "", near)

    def module_import(self, module: Module, source: str, alias: str, near: ast.AST) -> Import:
        """How module ``source`` is written at ``near``; imported ``as alias`` when it is not."""
        scope = module.table.scope_of(near)
        present = visible(module, near, source)
        if present:
            return Import(module, "", "", present, near)
        top = visible(module, near, source.split(".", maxsplit=1)[0])
        if top and source in _LOADED_WITH_TORCH:
            return Import(module, "", "", source.replace("torch", top, 1), near)
        known = self._free_import(module, scope, source, alias)
        return Import(module, source, "", known if known != source else "", near)

    def _free_import(self, module: Module, scope: Scope, key: str, wanted: str) -> str:
        known = self.imported.get((module, key, scope))
        number = 1
        while known is None:
            candidate = wanted if number == 1 else f"torch_{wanted}{'_' * (number - 2)}"
            if candidate not in self.taken[scope] and _is_free(module, scope, candidate, key):
                known = candidate
            number += 1
        self.imported[module, key, scope] = known
        return known


def _follows(near: ast.AST, kept: ast.AST, module: Module) -> bool:
    """Whether a place is in the run of statements that a kept value is for, or inside of one."""
    statement = module.table.statement(kept)
    block = block_of(module.table.parents[statement], statement)
    return any(node in block for node in (near, *module.table.ancestors(near)))


def _is_free(module: Module, scope: Scope, name: str, qualified: str) -> bool:
    """Whether a name means nothing in a scope, or what is to be imported by it, only too late."""
    found = scope.lookup(name)
    if found is not module.table.module:
        return found is None
    return all(b.qualified == qualified for b in found.bindings[name])


def _ends_with_its_loops(name: str, scope: Scope, place: ast.AST, module: Module) -> bool:
    """Whether a function's variable is read in the loops alone that bind it, elsewhere than at a
    place."""
    table = module.table
    loops = {binding.node for binding in scope.bindings.get(name, ())}
    if not scope.is_function or not loops or not all(isinstance(x, ast.For) for x in loops):
        return False
    if any(parent in loops for parent in table.ancestors(place)):
        return False
    return all(
        table.within[node] is scope and any(p in loops for p in table.ancestors(node))
        for node in table.names_by_id.named(name)
        if table.within[node].lookup(name) is scope
    )


def _encloses(outer: Scope, inner: Scope) -> bool:
    scope: Scope | None = inner
    while scope is not None:
        if scope is outer:
            return True
        scope = scope.parent
    return False
