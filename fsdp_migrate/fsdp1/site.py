"""One reference to FSDP1."""

from __future__ import annotations

import ast
from dataclasses import dataclass

from fsdp_migrate.analysis.module import Module
from fsdp_migrate.fsdp1.construct import Construct


@dataclass(frozen=True, eq=False)
class Site:
    """One FSDP1 reference that needs a decision.

    ``construct`` names it the way rules do (``FullyShardedDataParallel(mixed_precision=)``);
    ``node`` is the whole construct, ``reference`` the name in it, ``receiver`` the model a method
    is called on.
    """

    construct: Construct
    module: Module
    node: ast.expr | ast.stmt | ast.keyword | ast.alias
    reference: ast.AST
    receiver: ast.expr | None = None

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
