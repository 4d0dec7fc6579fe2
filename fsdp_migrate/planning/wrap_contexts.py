"""The project's ``enable_wrap`` contexts, and the ``wrap`` calls that they are for."""

from __future__ import annotations

import ast
from dataclasses import dataclass, field

from fsdp_migrate.planning.model import Constructor, Entry, KeywordDictionary
from fsdp_migrate.syntax.kinds import of_kind


@dataclass(frozen=True, eq=False)
class KnownContext:
    """``with enable_wrap(...)`` around all of the ``wrap`` calls that it is for."""

    statement: ast.With
    index: int  # of the item that it is
    entries: tuple[Entry, ...]  # the arguments of FSDP1 that it is given
    made_of: ast.expr  # the class
    dictionary: frozenset[ast.stmt]  # what makes the one that has some, which nobody else reads
    wraps: frozenset[Constructor] = frozenset()
    spread: ast.Name | None = None  # the dictionary that has all, which constructors read as well

    def given(self, wrap: Constructor) -> KeywordDictionary:
        """What ``wrap`` has from it: its own arguments come before those of the context."""
        call = of_kind(self.statement.items[self.index].context_expr, ast.Call)
        entries = tuple(e for e in self.entries if e.name not in wrap.arguments)
        return KeywordDictionary("", (self.statement,), call, entries, self.wraps, is_context=True)


@dataclass(eq=False)
class Wrapping:
    """The project's ``enable_wrap`` contexts and ``wrap`` calls, all of one migration.

    ``known`` are contexts that stand around their ``wrap`` calls, which are constructors like any
    other; it has all of the project's or none. Else ``contexts`` maps each ``wrap`` to what its
    model's arguments are read from: the contexts it may run in, or itself when it has arguments of
    its own. ``problem`` says why they must be left.
    """

    known: dict[ast.AST, KnownContext] = field(default_factory=dict)
    enabled: list[Constructor] = field(default_factory=list)
    contexts: dict[Constructor, tuple[Constructor, ...]] = field(default_factory=dict)
    around: dict[Constructor, Constructor] = field(default_factory=dict)  # wrap -> in its body
    problem: tuple[str, str] = ("", "")  # and what to do about it

    @property
    def constructors(self) -> frozenset[Constructor]:
        return frozenset({*self.enabled, *self.contexts})

    def may_be_in(self, wrap: Constructor) -> list[Constructor]:
        """The contexts that may be open when ``wrap`` is called."""
        around = self.around.get(wrap)
        return [around] if around is not None else self.enabled
