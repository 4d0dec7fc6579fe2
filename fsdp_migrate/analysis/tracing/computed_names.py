"""Attributes by names that a program computes: ``for name in ("actor", "critic"): setattr(self,
name, wrap(getattr(self, name)))``."""

from __future__ import annotations

import ast
from collections.abc import Hashable, Iterator, Set
from functools import cached_property

from fsdp_migrate.analysis.module import Module
from fsdp_migrate.analysis.tracing.answers import Answers
from fsdp_migrate.analysis.tracing.evaluator import Evaluator
from fsdp_migrate.analysis.tracing.project_index import ProjectIndex
from fsdp_migrate.analysis.tracing.settled_index import SettledIndex
from fsdp_migrate.analysis.values import Class, Constant, Frame, Made, Value, Values
from fsdp_migrate.syntax.scopes import Kind

SETTERS = frozenset({"setattr", "add_module", "register_module"})
MOST = 16  # names that are followed one by one
_Store = tuple[ast.expr, ast.expr, ast.expr, Module]  # an object, a name and what it is given


def names(
    node: ast.expr, module: Module, frame: Frame | None, tracer: Evaluator
) -> list[str] | None:
    """The text that is written, or those that a loop goes over; None where they may be others, as
    what a function or an object is given by whom nobody sees here."""
    if isinstance(node, ast.Constant):
        return [str(node.value)]
    if not isinstance(node, ast.Name):
        return None
    reaching = module.flow(module.table.scope_of(node).home()).reaching.get(node, ())
    if not reaching or any(definition.kind is not Kind.ELEMENT for definition in reaching):
        return None
    found = tracer.evaluate(node, module, frame)
    if not found or len(found) > MOST:
        return None
    texts = [v.value for v in found if isinstance(v, Constant) and isinstance(v.value, str)]
    return sorted(set(texts)) if len(texts) == len(found) else None


def texts(values: Values) -> set[Hashable]:
    """The texts among some values."""
    return {v.value for v in values if isinstance(v, Constant) and isinstance(v.value, str)}


class ComputedNames:
    """What ``setattr`` gives attributes."""

    def __init__(self, tracer: Evaluator, index: ProjectIndex, answers: Answers) -> None:
        self.tracer, self.index, self.answers = tracer, index, answers
        self._by_text = SettledIndex(lambda _: self._stores, self._texts)

    @cached_property
    def _stores(self) -> list[_Store]:
        return [
            store
            for call, module in self.index.calls_named(*sorted(SETTERS))
            if (store := _store(call, module)) is not None
        ]

    def _texts(self, store: _Store) -> tuple[Set[Hashable], bool]:
        """The names of attributes that are set, as far as they are known."""
        _, name, _, module = store
        return texts(self.tracer.evaluate(name, module)), self.answers.is_final(name)

    def _receivers(self, owner: ast.expr, module: Module) -> set[ast.AST]:
        """The classes whose attribute is set, or that of whose instances."""
        values = self.tracer.evaluate(owner, module)
        made = [v.callee if isinstance(v, Made) else v for v in values]
        return {each.node for each in made if isinstance(each, Class)}

    def of(self, attr: str, members: Set[ast.AST]) -> Iterator[Value]:
        """The values that an attribute of some classes is set to by its name.

        Few of many have one name, so that only of these it is asked whose attribute they set.
        """
        for owner, _, value, module in self._by_text.of("", {attr}):
            if not members.isdisjoint(self._receivers(owner, module)):
                yield from self.tracer.evaluate(value, module)


def _store(call: ast.Call, module: Module) -> _Store | None:
    match call:
        case ast.Call(func=ast.Name(id="setattr"), args=[owner, name, value]):
            return owner, name, value, module
        case ast.Call(func=ast.Attribute(value=owner), args=[name, value]):
            return owner, name, value, module
    return None
