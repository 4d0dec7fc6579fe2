"""What a rule proposes for a site: edits that are accepted or dropped together."""

from __future__ import annotations

import ast
from dataclasses import dataclass, field

from fsdp_migrate.analysis.module import Module
from fsdp_migrate.planning.edits import (
    AddItem,
    AddKeyword,
    Code,
    Define,
    DropBranch,
    DropElse,
    Edit,
    Import,
    Insert,
    Mark,
    MoveStatement,
    RemoveArgument,
    RemoveImport,
    RemoveItem,
    RenameKeyword,
    RenameParameter,
    ReplaceExpression,
    ReplaceStatement,
    Support,
    Unwrap,
)
from fsdp_migrate.planning.naming import Namer, visible


@dataclass(eq=False)
class Claims:
    """What the rules of other sites must know of a proposal that a site was rewritten by."""

    gone: set[ast.AST] = field(default_factory=set)  # code that goes, with the sites in it
    kept: set[ast.AST] = field(default_factory=set)  # calls that stay with their arguments
    undeleted: set[ast.stmt] = field(default_factory=set)  # ``del`` statements that lose a name

    def add(self, others: Claims) -> None:
        self.gone |= others.gone
        self.kept |= others.kept
        self.undeleted |= others.undeleted


@dataclass(eq=False)
class Proposal:
    """Edits that are accepted or dropped together."""

    namer: Namer
    edits: list[Edit] = field(default_factory=list)
    claims: Claims = field(default_factory=Claims)
    # Names that are asked for near the one are made available at the other.
    elsewhere: tuple[ast.AST, Module, ast.AST] | None = None

    def _place(self, module: Module, near: ast.AST) -> tuple[Module, ast.AST]:
        if self.elsewhere is not None and near is self.elsewhere[0]:
            return self.elsewhere[1:]
        return module, near

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

    def define(self, module: Module, above: ast.stmt, function: Code) -> None:
        self.edits.append(Define(module, above, function))

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

    def remove_item(self, module: Module, display: ast.Dict, value: ast.expr) -> None:
        self.edits.append(RemoveItem(module, display, value))

    def add_item(self, module: Module, display: ast.Dict, key: str, value: Code) -> None:
        self.edits.append(AddItem(module, display, key, value))

    def add_keyword(self, module: Module, call: ast.Call, name: str, value: Code) -> None:
        self.edits.append(AddKeyword(module, call, name, value))

    def remove_import(self, module: Module, alias: ast.alias) -> None:
        self.edits.append(RemoveImport(module, alias))

    def rename_keyword(
        self, module: Module, call: ast.Call, argument: ast.keyword, name: str
    ) -> None:
        self.edits.append(RenameKeyword(module, argument, call, name))

    def rename_parameter(self, module: Module, parameter: ast.arg, name: str) -> None:
        self.edits.append(RenameParameter(module, parameter, name))

    def move_after(self, module: Module, node: ast.stmt, after: ast.stmt) -> None:
        self.edits.append(MoveStatement(module, node, after))

    def mark(self, module: Module, node: ast.AST, rule: str, sentence: str) -> None:
        self.edits.append(Mark(module, node, rule, sentence))

    def name(self, module: Module, source: str, name: str, near: ast.AST) -> str:
        """Make ``source.name`` available at ``near`` and return how to write it there."""
        module, near = self._place(module, near)
        return self._need(self.namer.from_import(module, source, name, near))

    def module_name(self, module: Module, source: str, alias: str, near: ast.AST) -> str:
        """Make module ``source`` available at ``near`` and return how to write it there."""
        module, near = self._place(module, near)
        return self._need(self.namer.module_import(module, source, alias, near))

    def member(self, module: Module, source: str, alias: str, name: str, near: ast.AST) -> str:
        """Write ``name`` of module ``source``: by itself if the file has it so, or with a dot."""
        own, place = self._place(module, near)
        known = visible(own, place, f"{source}.{name}")
        return known or f"{self.module_name(module, source, alias, near)}.{name}"

    def _need(self, needed: Import) -> str:
        if needed.source:
            self.edits.append(needed)
        return needed.local

    def support(
        self,
        module: Module,
        function: str,
        near: ast.AST,
        lacking: frozenset[str] = frozenset(),
    ) -> str:
        """Make a support module function available at ``near`` and return its local name.

        Args:
            lacking: what the program is known to have none of, by the library's names for it.
        """
        module, near = self._place(module, near)
        scope = module.table.scope_of(near)
        key = (module, f"<support>.{function}", scope)
        local = self.namer.imported.get(key)
        if local is None:
            local = function
            while scope.lookup(local) is not None or local in self.namer.taken[scope]:
                local = f"fsdp2_{function}" if local == function else f"{local}_"
            self.namer.imported[key] = local
        self.edits.append(Support(module, function, local, near, lacking))
        return local

    def support_as(self, module: Module, function: str, local: str, near: ast.AST) -> None:
        """As :meth:`support`, under a given name: it takes over an import of that name."""
        self.edits.append(Support(module, function, local, near))

    def fresh(
        self,
        module: Module,
        near: ast.AST,
        wanted: str,
        *,
        loop: bool = False,
        also: ast.AST | None = None,
        passing: bool = False,
    ) -> str:
        """A name that is free at ``near``, and at a second place."""
        if passing:
            return self.namer.passing(module, near, wanted)
        places = [near] if also is None else [near, also]
        scopes = [module.table.scope_of(place).home() for place in places]
        if loop:
            return self.namer.loop(module, scopes, wanted, places)
        return self.namer.fresh(module, scopes, wanted)
