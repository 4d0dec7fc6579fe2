"""Attributes of classes that take them out of their items: ``__getattr__ = dict.__getitem__``.

``bag["model"] = FSDP(net)`` and ``bag.update(model=FSDP(net))`` make ``bag.model`` a model.
"""

from __future__ import annotations

import ast
from collections.abc import Iterable

from fsdp_migrate.analysis.module import Module
from fsdp_migrate.analysis.tracing.answers import Answers
from fsdp_migrate.analysis.tracing.evaluator import Evaluator
from fsdp_migrate.analysis.tracing.project_index import ProjectIndex
from fsdp_migrate.analysis.tracing.settled_index import Keys, SettledIndex
from fsdp_migrate.analysis.values import Class, Made, Value

ASKED = frozenset({"__getattr__", "__getattribute__"})
Entry = tuple[ast.expr, ast.expr, Module]


class ItemsAsAttributes:
    """What the project puts into objects under a name, by the classes of the objects."""

    def __init__(self, tracer: Evaluator, answers: Answers, index: ProjectIndex) -> None:
        self._evaluate = tracer.evaluate
        self._answers = answers
        self._entries = SettledIndex(lambda name: index.entries.get(name, ()), self._owners)

    def of(self, attr: str, family: Iterable[Class], members: Keys) -> list[Value]:
        """The values of an attribute that instances of some classes have as an item."""
        asked = (c.module.table.scopes[c.node].bindings.keys() & ASKED for c in family)
        if not any(asked):
            return []
        entries = self._entries.of(attr, members)
        return [v for _, value, module in entries for v in self._evaluate(value, module)]

    def _owners(self, entry: Entry) -> tuple[set[ast.AST], bool]:
        owner, _, module = entry
        made = [v.callee for v in self._evaluate(owner, module) if isinstance(v, Made)]
        classes: set[ast.AST] = {cls.node for cls in made if isinstance(cls, Class)}
        return classes, self._answers.is_final(owner)
