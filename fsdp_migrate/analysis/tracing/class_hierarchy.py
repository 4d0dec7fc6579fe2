"""Which of the project's classes derive from which, and from what outside."""

from __future__ import annotations

import ast
from collections import defaultdict
from collections.abc import Callable
from functools import cached_property

from fsdp_migrate.analysis.tracing.answers import Answers
from fsdp_migrate.analysis.tracing.evaluator import Evaluator
from fsdp_migrate.analysis.tracing.project_index import ProjectIndex
from fsdp_migrate.analysis.values import Class, External


class ClassHierarchy:
    """Bases by what their expressions are; subclasses by what names alone tell."""

    def __init__(
        self,
        tracer: Evaluator,
        answers: Answers,
        index: ProjectIndex,
        by_names: Callable[[], Callable[[Class], list[Class]]],
    ) -> None:
        self.evaluate = tracer.evaluate
        self.answers = answers
        self.index = index
        self._by_names = by_names
        self._lineages: dict[ast.ClassDef, list[Class]] = {}
        self._families: dict[ast.ClassDef, list[Class]] = {}
        self._outside: dict[ast.ClassDef, frozenset[str]] = {}
        self._members: dict[ast.ClassDef, frozenset[ast.ClassDef]] = {}

    def lineage(self, cls: Class) -> list[Class]:
        """A class and its bases in the project, nearest first."""
        return self.answers.keep(self._lineages, cls, lambda: self._find_bases(cls))

    def is_settled(self, cls: Class) -> bool:
        """Whether the bases of a class that was asked about are known for good."""
        return cls.node in self._lineages

    def _find_bases(self, cls: Class) -> list[Class]:
        found: dict[ast.ClassDef, Class] = {}  # each once, however many ways lead to it

        def visit(this: Class) -> None:
            if this.node in found:
                return
            found[this.node] = this
            for base in this.node.bases:
                for value in self.evaluate(base, this.module):
                    if isinstance(value, Class):
                        visit(value)

        visit(cls)
        return list(found.values())

    def family(self, cls: Class) -> list[Class]:
        """A class with its bases and subclasses in the project, nearest bases first."""

        def find() -> list[Class]:
            return list({c.node: c for c in (*self.lineage(cls), *self.subclasses(cls))}.values())

        return self.answers.keep(self._families, cls, find)

    def members(self, cls: Class) -> frozenset[ast.ClassDef]:
        """The definitions of the family of a class."""
        known = self._members.get(cls.node)
        if known is None:
            known = frozenset(c.node for c in self.family(cls))
            if cls.node in self._families:
                self._members[cls.node] = known
        return known

    def external_bases(self, cls: Class) -> frozenset[str]:
        """Dotted names of every base class outside the project, however far up."""
        if cls.node in self._outside:
            return self._outside[cls.node]
        found: set[str] = set()
        for related in self.lineage(cls):
            for base in related.node.bases:
                for value in self.evaluate(base, related.module):
                    if isinstance(value, External):
                        found.add(value.name)
        if self.is_settled(cls):
            self._outside[cls.node] = frozenset(found)
        return frozenset(found)

    def derived(self, name: str) -> list[Class]:
        """The project's classes with a base of that dotted name outside the project."""
        return [c for c in self.index.classes_with_bases if name in self.external_bases(c)]

    def subclasses(self, cls: Class) -> list[Class]:
        """The project's classes that are derived from a class by name, however far down."""
        return self._derived_from.get(cls.node, [])

    @cached_property
    def _derived_from(self) -> dict[ast.ClassDef, list[Class]]:
        lineage = self._by_names()
        found: dict[ast.ClassDef, list[Class]] = defaultdict(list)
        for cls in self.index.classes_with_bases:
            for base in {b.node for b in lineage(cls)} - {cls.node}:
                found[base].append(cls)
        return found
