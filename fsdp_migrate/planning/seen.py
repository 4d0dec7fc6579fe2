"""What a run of the original has shown of places that the code leaves open.

A rule that would answer *may be* asks here first. Without a run nothing is known, and what was
asked is remembered: those are the places that a run is then told to look at (``asked``). A run
shows what a program did, not all that it may do: only whether something is a model, or which form
is enough, may rest on it, never a value that is written into the code. What rests on it says so:
:func:`seen_in_run` goes into the message of its decision. Where training shows that an answer does
not hold, it is taken back (``without``), and the code alone decides there.
"""

from __future__ import annotations

import ast
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from fsdp_migrate.analysis.module import Module

Span = tuple[int, int, int, int]
"""Line, column, last line and last column, as ``ast`` counts them."""
Place = tuple[Path, Span]
MODEL, OTHER = "model", "other"
SEEN = "seen in the run"
Line = tuple[Path, int]


def seen_in_run(message: str, what: str) -> str:
    """The message of a decision that rests on ``what`` a run has shown, if it does."""
    return f"{message} ({SEEN}: {what})" if what else message


@dataclass(frozen=True)
class Values:
    """What an expression was whenever the run came by."""

    kinds: frozenset[str]
    """Of ``model``, ``optimizer``, ``holder``, ``other``, ``unseen``."""
    classes: tuple[str, ...] = ()
    plain: frozenset[str] = frozenset()
    """Its values as JSON, where all of them are plain."""
    made_at: frozenset[tuple[Path, int]] = frozenset()
    """Files and lines of the constructors that made the models."""


@dataclass(frozen=True)
class Construction:
    """What reached one constructor, over all its calls."""

    classes: frozenset[str]
    """Of the modules that were wrapped."""
    buffers: frozenset[str]
    """The dtypes of their floating-point buffers."""


@dataclass(frozen=True)
class Facts:
    """What all runs showed together."""

    values: Mapping[Place, Values] = field(default_factory=dict)
    constructions: Mapping[tuple[Path, int], Construction] = field(default_factory=dict)
    by_every_rank: frozenset[tuple[Path, int, str]] = frozenset()
    """Files, lines and names of the methods of models that were called by every rank."""

    def without(self, lines: Collection[Line]) -> Facts:
        """The same without what was shown of these lines."""
        return Facts(
            {at: v for at, v in self.values.items() if (at[0], at[1][0]) not in lines},
            {at: made for at, made in self.constructions.items() if at not in lines},
            frozenset(call for call in self.by_every_rank if call[:2] not in lines),
        )


@dataclass(eq=False)
class Seen:
    """The one question about what a run has shown."""

    facts: Facts | None = None
    asked: dict[Path, set[Span]] = field(default_factory=dict)
    wanted: bool = False
    """Whether something was asked that a run could answer."""
    dismissed: dict[tuple[str, int, str], None] = field(default_factory=dict)
    """Places (file and line) that are no sites, for what they had was no model, and that."""
    models: set[ast.AST] = field(default_factory=set)
    """Expressions that the run alone showed to be models."""
    relied: dict[Line, None] = field(default_factory=dict)
    """The lines of which the run has told something that was asked about."""

    def without(self, lines: Collection[Line]) -> Seen:
        """What else a run has shown: of these lines the code alone tells."""
        return Seen(self.facts.without(lines) if self.facts is not None else None)

    def receiver_at(self, node: ast.expr, module: Module) -> bool | None:
        """Whether something always was an FSDP1 model, or never was, nor held one; None if it is
        not known."""
        found = self._at(node, module)
        if found is None:
            return None
        if found.kinds == {MODEL} and found.made_at:
            return True
        return False if found.kinds == {OTHER} else None

    def shown_at(self, node: ast.expr, module: Module) -> bool | None:
        """As :meth:`receiver_at`, of what need not be looked at if nobody else asks."""
        return self.receiver_at(node, module) if self.facts is not None else None

    def makers_at(self, node: ast.expr, module: Module) -> frozenset[tuple[Path, int]]:
        """Files and lines of the constructors that made what an expression is."""
        found = self._at(node, module)
        return found.made_at if found is not None else frozenset()

    def classes_at(self, node: ast.expr, module: Module) -> tuple[str, ...]:
        """The names of the classes that something is of."""
        found = self._at(node, module)
        return found.classes if found is not None else ()

    def value_at(self, node: ast.expr, module: Module) -> str | None:
        """The one plain value that an argument had, as JSON; None if it had several, or none."""
        found = self._at(node, module)
        return next(iter(found.plain)) if found is not None and len(found.plain) == 1 else None

    def construction_at(self, call: ast.AST, module: Module) -> Construction | None:
        """What reached a constructor."""
        self.wanted = True
        if self.facts is None:
            return None
        line, _ = module.position(call)
        found = self.facts.constructions.get((module.path, line))
        if found is not None:
            self.relied[module.path, line] = None
        return found

    def by_every_rank(self, node: ast.AST, name: str, module: Module) -> bool:
        """Whether every rank called a method of a model at a place."""
        self.wanted = True
        if self.facts is None:
            return False
        line, _ = module.position(node)
        found = (module.path, line, name) in self.facts.by_every_rank
        if found:
            self.relied[module.path, line] = None
        return found

    def settled_at(self, node: ast.expr, module: Module) -> bool | None:
        """As :meth:`receiver_at`; what is none is remembered to be nobody's business."""
        told = self.receiver_at(node, module)
        if told is False:
            self._dismiss(node, module)
        return told

    def _dismiss(self, node: ast.expr, module: Module) -> None:
        line, _ = module.position(node)
        named = " or ".join(self.classes_at(node, module)) or "something else"
        what = f"`{ast.unparse(node)}` is no FSDP model, but {named}"
        self.dismissed[module.display, line, what] = None

    def _at(self, node: ast.expr, module: Module) -> Values | None:
        if module.source.excerpt is not None:  # cells are no files of a program
            return None
        # Not Module.position: the interpreter counts columns as ast does.
        span = (node.lineno, node.col_offset, node.end_lineno or 0, node.end_col_offset or 0)
        if self.facts is None:
            self.wanted = True
            self.asked.setdefault(module.path, set()).add(span)
            return None
        found = self.facts.values.get((module.path, span))
        if found is not None:
            self.relied[module.path, node.lineno] = None
        return found
