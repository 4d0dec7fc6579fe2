"""One reference to FSDP1."""

from __future__ import annotations

import ast
from dataclasses import dataclass
from pathlib import Path

from fsdp_migrate.analysis.module import Module
from fsdp_migrate.fsdp1.construct import Construct
from fsdp_migrate.syntax.kinds import of_kind

Key = tuple[Path, tuple[int, int], Construct]
ANYWHERE = (0, 0)  # for any place of a file, in a key


@dataclass(frozen=True, eq=False)
class Site:
    """One FSDP1 reference that needs a decision.

    ``construct`` names it the way rules do (``FullyShardedDataParallel(mixed_precision=)``);
    ``node`` is the whole construct, ``reference`` the name in it, ``receiver`` the model a method
    is called on.

    What a rule is asked about tells what stands there: ``call``, ``expression``, ``alias``,
    ``string``, ``definition``, ``mention``, ``attribute`` and ``subject`` are the same nodes for
    rules that know, and raise a ``TypeError`` where something else stands.
    """

    construct: Construct
    module: Module
    node: ast.expr | ast.stmt | ast.keyword | ast.alias | ast.arg
    reference: ast.AST
    receiver: ast.expr | None = None
    doubt: str = ""  # why nobody knows whether the receiver is a model

    @property
    def call(self) -> ast.Call:
        return of_kind(self.node, ast.Call)

    @property
    def expression(self) -> ast.expr:
        return of_kind(self.node, ast.expr)

    @property
    def alias(self) -> ast.alias:
        """The name in an import statement."""
        return of_kind(self.node, ast.alias)

    @property
    def string(self) -> ast.Constant:
        return of_kind(self.node, ast.Constant)

    @property
    def definition(self) -> ast.ClassDef:
        """The class that is derived from FSDP1's."""
        return of_kind(self.node, ast.ClassDef)

    @property
    def mention(self) -> ast.expr:
        """The reference, where it is an expression."""
        return of_kind(self.reference, ast.expr)

    @property
    def attribute(self) -> ast.Attribute:
        """The reference, where it is an attribute."""
        return of_kind(self.reference, ast.Attribute)

    @property
    def subject(self) -> ast.expr:
        """The receiver, of what is done to something."""
        return of_kind(self.receiver, ast.expr)

    @property
    def key(self) -> Key:
        """What tells a site from the others of a run."""
        return self.module.path, self.position, self.construct

    @property
    def position(self) -> tuple[int, int]:
        """1-based line and column."""
        return self.module.position(self.node)

    @property
    def place(self) -> tuple[int, int, int]:
        """Cell (0 outside notebooks), line and column as whoever opens the file sees them."""
        return self.module.source.place(*self.position)

    @property
    def statement(self) -> ast.stmt:
        return self.module.table.statement(self.node)
