"""What a rule answers with: edits as data.

Edits name ``ast`` nodes and carry new code as :class:`Code` templates whose holes are old nodes, so
that edits nest (an edited expression may stand inside a moved one). Nothing here touches a tree;
``edits.py`` applies what survives. This module must stay free of LibCST: rules import it.
"""

from __future__ import annotations

import ast
import builtins
import keyword
import string
from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import ClassVar

from fsdp_migrate.analysis.module import Module
from fsdp_migrate.syntax.scopes import Scope


@dataclass(frozen=True, eq=False)
class Code:
    """New source text with holes: ``code("fully_shard({m})", m=node)``.

    A hole is filled by source text, by another ``Code``, or by an old ``ast`` expression, which
    brings its comments, line breaks and its own edits along. Literal braces are doubled.
    """

    template: str
    parts: dict[str, Code | ast.expr | str]

    def flatten(self, nodes: list[ast.expr], hole: str = "__fsdp_migrate_{}__") -> str:
        """Plain text in which old nodes are placeholder names, appended to ``nodes``."""
        pieces: list[str] = []
        for literal, name, _, _ in string.Formatter().parse(self.template):
            pieces.append(literal)
            if name is None:
                continue
            part = self.parts[name]
            if isinstance(part, Code):
                pieces.append(part.flatten(nodes, hole))
            elif isinstance(part, ast.expr):
                pieces.append(hole.format(len(nodes)))
                nodes.append(part)
            else:
                pieces.append(part)
        return "".join(pieces)

    def preview(self) -> str:
        """The text on one line, old nodes shown as Python would print them (for reports)."""
        nodes: list[ast.expr] = []
        text = self.flatten(nodes)
        for index, node in enumerate(nodes):
            text = text.replace(f"__fsdp_migrate_{index}__", ast.unparse(node))
        return " ".join(text.split())


def code(template: str, **parts: Code | ast.expr | str) -> Code:
    return Code(template, parts)


def join(separator: str, items: list[Code]) -> Code:
    """``a, b, c`` from the given pieces."""
    names = [f"p{index}" for index in range(len(items))]
    template = separator.join(f"{{{name}}}" for name in names)
    return Code(template, dict(zip(names, items, strict=True)))


# -- edits --------------------------------------------------------


@dataclass(frozen=True, eq=False)
class Edit:
    module: Module


@dataclass(frozen=True, eq=False)
class ReplaceExpression(Edit):
    node: ast.expr
    code: Code


@dataclass(frozen=True, eq=False)
class ReplaceStatement(Edit):
    """``codes`` are whole statements; none deletes the statement."""

    node: ast.stmt
    codes: tuple[Code, ...]


@dataclass(frozen=True, eq=False)
class Insert(Edit):
    node: ast.stmt
    codes: tuple[Code, ...]
    after: bool = False


@dataclass(frozen=True, eq=False)
class Unwrap(Edit):
    """Remove context managers from a ``with``; the body is dedented when none is left."""

    node: ast.With | ast.AsyncWith
    items: tuple[int, ...]
    before: tuple[Code, ...] = ()


@dataclass(frozen=True, eq=False)
class DropBranch(Edit):
    """Remove one part of an ``if`` chain; another part follows it or stands before it."""

    node: ast.If


@dataclass(frozen=True, eq=False)
class DropElse(Edit):
    """Remove all of an ``if`` chain that follows its first part."""

    node: ast.If


@dataclass(frozen=True, eq=False)
class RemoveArgument(Edit):
    call: ast.Call
    argument: ast.expr | ast.keyword


@dataclass(frozen=True, eq=False)
class RenameKeyword(Edit):
    keyword: ast.keyword
    call: ast.Call
    name: str


@dataclass(frozen=True, eq=False)
class AddKeyword(Edit):
    call: ast.Call
    name: str
    code: Code


@dataclass(frozen=True, eq=False)
class RemoveImport(Edit):
    """Drop one name of an import statement that nothing uses."""

    alias: ast.alias


@dataclass(frozen=True, eq=False)
class MoveStatement(Edit):
    node: ast.stmt
    after: ast.stmt


@dataclass(frozen=True, eq=False)
class Mark(Edit):
    """The marker: a comment line above the statement that holds ``node``."""

    node: ast.AST
    code: str
    sentence: str

    @property
    def comment(self) -> str:
        return f"# TODO(fsdp-migrate {self.code}): {self.sentence}"


@dataclass(frozen=True, eq=False)
class Import(Edit):
    """``from source import name as asname``; an empty ``name`` means ``import source``."""

    source: str
    name: str
    asname: str
    near: ast.AST  # the statement whose import block is the right place

    @property
    def local(self) -> str:
        return self.asname or self.name or self.source


@dataclass(frozen=True, eq=False)
class Define(Edit):
    """A function is defined above a definition at the top level of the file."""

    ABOVE: ClassVar = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)

    node: ast.stmt
    code: Code


@dataclass(frozen=True, eq=False)
class Support(Edit):
    """A function of the support module is needed here under the name ``local``."""

    function: str
    local: str
    near: ast.AST


def carried(edits: Iterable[Edit]) -> set[ast.AST]:
    """The old expressions that edits write down again, with whatever stands in them."""
    found: list[ast.expr] = []
    for edit in edits:
        if isinstance(edit, (ReplaceExpression, AddKeyword)):
            edit.code.flatten(found)
        elif isinstance(edit, (ReplaceStatement, Insert)):
            for each in edit.codes:
                each.flatten(found)
        elif isinstance(edit, Unwrap):
            for each in edit.before:
                each.flatten(found)
    return set(found)


# -- building --------------------------------------------------------


# Submodules that ``import torch`` alone makes available as attributes.
_LOADED_WITH_TORCH = frozenset(
    {"torch.distributed", "torch.cuda", "torch.nn", "torch.nn.utils", "torch.optim", "torch.amp"}
)


def _visible(module: Module, near: ast.AST, qualified: str) -> str:
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
        alias = binding.node
        assert isinstance(alias, ast.alias)
        visible = binding.name if binding.qualified == qualified else ""
        if not visible and not alias.asname and alias.name == qualified:
            visible = qualified  # ``import a.b.c`` binds ``a`` and makes ``a.b.c`` usable
        if not visible:
            continue
        statement = table.statement(binding.node)
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

    def fresh(self, module: Module, scope: Scope, wanted: str) -> str:
        """``wanted``, or ``wanted_2`` and so on, unused in ``scope`` and what it can see."""
        candidate, number = wanted, 2
        while self._used(module, scope, candidate):
            candidate, number = f"{wanted}_{number}", number + 1
        self.taken[scope].add(candidate)
        return candidate

    def loop(self, module: Module, scope: Scope, wanted: str) -> str:
        """As :meth:`fresh`, for a loop variable: other emitted loops may have it too."""
        if wanted in self.loops[scope]:
            return wanted
        name = self.fresh(module, scope, wanted)
        self.loops[scope].add(name)
        return name

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
        present = _visible(module, near, f"{source}.{name}")
        if present:
            return Import(module, "", "", present, near)
        if not any(b.qualified.startswith(f"{source}.") for b in module.table.imports):
            whole = _visible(module, near, source)  # import torch.distributed.fsdp as fsdp
            if whole:
                return Import(module, "", "", f"{whole}.{name}", near)
        known = self._free_import(module, scope, f"{source}.{name}", name)
        return Import(module, source, name, known if known != name else "", near)

    def module_import(self, module: Module, source: str, alias: str, near: ast.AST) -> Import:
        """How module ``source`` is written at ``near``; imported ``as alias`` when it is not."""
        scope = module.table.scope_of(near)
        present = _visible(module, near, source)
        if present:
            return Import(module, "", "", present, near)
        top = _visible(module, near, source.split(".", maxsplit=1)[0])
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


def _is_free(module: Module, scope: Scope, name: str, qualified: str) -> bool:
    """Whether a name means nothing in a scope, or what is to be imported by it, only too late."""
    found = scope.lookup(name)
    if found is not module.table.module:
        return found is None
    return all(b.qualified == qualified for b in found.bindings[name])


def _encloses(outer: Scope, inner: Scope) -> bool:
    scope: Scope | None = inner
    while scope is not None:
        if scope is outer:
            return True
        scope = scope.parent
    return False


@dataclass(eq=False)
class Proposal:
    """Edits that are accepted or dropped together."""

    namer: Namer
    edits: list[Edit] = field(default_factory=list)

    def replace(self, module: Module, node: ast.expr, new: Code) -> None:
        self.edits.append(ReplaceExpression(module, node, new))

    def replace_statement(self, module: Module, node: ast.stmt, *new: Code) -> None:
        self.edits.append(ReplaceStatement(module, node, new))

    def delete(self, module: Module, node: ast.stmt) -> None:
        self.edits.append(ReplaceStatement(module, node, ()))

    def insert_before(self, module: Module, node: ast.stmt, *new: Code) -> None:
        self.edits.append(Insert(module, node, new))

    def insert_after(self, module: Module, node: ast.stmt, *new: Code) -> None:
        self.edits.append(Insert(module, node, new, after=True))

    def unwrap(self, module: Module, node: ast.With | ast.AsyncWith, *items: int) -> None:
        self.edits.append(Unwrap(module, node, items))

    def drop_branch(self, module: Module, node: ast.If) -> None:
        self.edits.append(DropBranch(module, node))

    def drop_else(self, module: Module, node: ast.If) -> None:
        self.edits.append(DropElse(module, node))

    def remove_argument(
        self, module: Module, call: ast.Call, argument: ast.expr | ast.keyword
    ) -> None:
        self.edits.append(RemoveArgument(module, call, argument))

    def add_keyword(self, module: Module, call: ast.Call, name: str, value: Code) -> None:
        self.edits.append(AddKeyword(module, call, name, value))

    def remove_import(self, module: Module, alias: ast.alias) -> None:
        self.edits.append(RemoveImport(module, alias))

    def rename_keyword(
        self, module: Module, call: ast.Call, argument: ast.keyword, name: str
    ) -> None:
        self.edits.append(RenameKeyword(module, argument, call, name))

    def move_after(self, module: Module, node: ast.stmt, after: ast.stmt) -> None:
        self.edits.append(MoveStatement(module, node, after))

    def mark(self, module: Module, node: ast.AST, rule: str, sentence: str) -> None:
        self.edits.append(Mark(module, node, rule, sentence))

    def name(self, module: Module, source: str, name: str, near: ast.AST) -> str:
        """Make ``source.name`` available at ``near`` and return how to write it there."""
        return self._need(self.namer.from_import(module, source, name, near))

    def module_name(self, module: Module, source: str, alias: str, near: ast.AST) -> str:
        """Make module ``source`` available at ``near`` and return how to write it there."""
        return self._need(self.namer.module_import(module, source, alias, near))

    def _need(self, needed: Import) -> str:
        if needed.source:
            self.edits.append(needed)
        return needed.local

    def support(self, module: Module, function: str, near: ast.AST) -> str:
        """Make a support module function available at ``near`` and return its local name."""
        scope = module.table.scope_of(near)
        key = (module, f"<support>.{function}", scope)
        local = self.namer.imported.get(key)
        if local is None:
            local = function
            while scope.lookup(local) is not None or local in self.namer.taken[scope]:
                local = f"fsdp2_{function}" if local == function else f"{local}_"
            self.namer.imported[key] = local
        self.edits.append(Support(module, function, local, near))
        return local

    def support_as(self, module: Module, function: str, local: str, near: ast.AST) -> None:
        """As :meth:`support`, under a given name: it takes over an import of that name."""
        self.edits.append(Support(module, function, local, near))

    def fresh(self, module: Module, near: ast.AST, wanted: str, *, loop: bool = False) -> str:
        scope = module.table.scope_of(near)
        while scope.parent is not None and not (scope.is_function or scope.is_class):
            scope = scope.parent
        give = self.namer.loop if loop else self.namer.fresh
        return give(module, scope, wanted)
