"""Attributes by names that a program computes: ``for name in ("actor", "critic"): setattr(self,
name, wrap(getattr(self, name)))``."""

from __future__ import annotations

import ast
from collections.abc import Iterator, Set
from functools import cached_property

from fsdp_migrate.analysis.module import Module
from fsdp_migrate.analysis.tracing.answers import Answers
from fsdp_migrate.analysis.tracing.evaluator import Evaluator
from fsdp_migrate.analysis.tracing.project_index import ProjectIndex
from fsdp_migrate.analysis.tracing.settled_index import SettledIndex
from fsdp_migrate.analysis.values import Class, Constant, Frame, Made, Value

SETTERS = frozenset({"setattr", "add_module", "register_module"})
MOST = 16  # names that are followed one by one
_Store = tuple[ast.expr, ast.expr, ast.expr, Module]  # an object, a name and what it is given


def names(
    node: ast.expr, module: Module, frame: Frame | None, tracer: Evaluator
) -> list[str] | None:
    """The texts that an expression may be; None where one of its values is not known."""
    found = tracer.evaluate(node, module, frame)
    if not found or len(found) > MOST:
        return None
    texts = [v.value for v in found if isinstance(v, Constant) and isinstance(v.value, str)]
    return sorted(set(texts)) if len(texts) == len(found) else None


class ComputedNames:
    """What ``setattr`` gives attributes."""

    def __init__(self, tracer: Evaluator, index: ProjectIndex, answers: Answers) -> None:
        self.tracer, self.index, self.answers = tracer, index, answers
        self._by_class = SettledIndex(lambda _: self._stores, self._receivers)

    @cached_property
    def _stores(self) -> list[_Store]:
        return [
            store
            for call, module in self.index.calls_named(*sorted(SETTERS))
            if (store := _store(call, module)) is not None
        ]

    def _receivers(self, store: _Store) -> tuple[set[ast.AST], bool]:
        """The classes whose attribute is set, or that of whose instances."""
        owner, _, _, module = store
        values = self.tracer.evaluate(owner, module)
        made = [v.callee if isinstance(v, Made) else v for v in values]
        found: set[ast.AST] = {each.node for each in made if isinstance(each, Class)}
        return found, self.answers.is_final(owner)

    def of(self, attr: str, members: Set[ast.AST]) -> Iterator[Value]:
        """The values that an attribute of some classes is set to by its name."""
        for _, name, value, module in self._by_class.of("", members):
            if any(
                isinstance(v, Constant) and v.value == attr
                for v in self.tracer.evaluate(name, module)
            ):
                yield from self.tracer.evaluate(value, module)


def _store(call: ast.Call, module: Module) -> _Store | None:
    match call:
        case ast.Call(func=ast.Name(id="setattr"), args=[owner, name, value]):
            return owner, name, value, module
        case ast.Call(func=ast.Attribute(value=owner), args=[name, value]):
            return owner, name, value, module
    return None
