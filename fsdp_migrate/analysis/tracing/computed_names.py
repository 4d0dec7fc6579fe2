"""Attributes by names that a program computes: ``for name in ("actor", "critic"): setattr(self,
name, wrap(getattr(self, name)))``."""

from __future__ import annotations

import ast
from collections.abc import Callable, Collection, Hashable, Iterator, Set
from functools import cached_property

from fsdp_migrate.analysis.flow import Definition
from fsdp_migrate.analysis.module import Module
from fsdp_migrate.analysis.tracing.answers import Answers
from fsdp_migrate.analysis.tracing.collected import Entry
from fsdp_migrate.analysis.tracing.evaluator import Evaluator
from fsdp_migrate.analysis.tracing.project_index import ProjectIndex
from fsdp_migrate.analysis.tracing.settled_index import SettledIndex
from fsdp_migrate.analysis.values import (
    Class,
    Constant,
    Frame,
    Made,
    Unknown,
    Value,
    Values,
    cut_off,
)
from fsdp_migrate.syntax.scopes import Kind

SETTERS = frozenset({"setattr", "add_module", "register_module"})
MOST = 16  # names that are followed one by one
ANY = Unknown  # in the place of a text, or of a class: it may be any
_Store = tuple[ast.expr, ast.expr, ast.expr, Module]  # an object, a name and what it is given


Entries = Callable[[ast.expr, str, Module, Frame | None], Entry | None]
# An object, the dictionary whose names its attributes get, and what they are given if that is not
# what the dictionary has.
_Opened = tuple[ast.expr, ast.expr, ast.expr | None, Module]


def _own_dictionary(node: ast.expr) -> ast.expr | None:
    """``self`` of ``self.__dict__`` and ``vars(self)``."""
    match node:
        case ast.Attribute(value=owner, attr="__dict__"):
            return owner
        case ast.Call(func=ast.Name(id="vars"), args=[owner]):
            return owner
    return None


def _reaching(node: ast.expr, module: Module) -> Collection[Definition]:
    if not isinstance(node, ast.Name):
        return ()
    return module.flow(module.table.scope_of(node).home()).reaching.get(node, ())


def names(
    node: ast.expr, module: Module, frame: Frame | None, tracer: Evaluator
) -> list[str] | None:
    """The text that is written, or those that a loop goes over; None where they may be others, as
    what a function or an object is given by whom nobody sees here."""
    if isinstance(node, ast.Constant):
        return [str(node.value)]
    if not isinstance(node, ast.Name):
        return None
    reaching = _reaching(node, module)
    if not reaching or any(definition.kind is not Kind.ELEMENT for definition in reaching):
        return None
    found = tracer.evaluate(node, module, frame)
    if not found or len(found) > MOST:
        return None
    texts = [v.value for v in found if isinstance(v, Constant) and isinstance(v.value, str)]
    return sorted(set(texts)) if len(texts) == len(found) else None


def texts(values: Values) -> set[Hashable]:
    """The texts among some values, and ``ANY`` where the search for more was cut off."""
    found: set[Hashable] = {
        v.value for v in values if isinstance(v, Constant) and isinstance(v.value, str)
    }
    return found | {ANY} if cut_off(values) else found


class ComputedNames:
    """What ``setattr`` gives attributes."""

    def __init__(
        self, tracer: Evaluator, index: ProjectIndex, answers: Answers, entry: Entries
    ) -> None:
        self.tracer, self.index, self.answers, self.entry = tracer, index, answers, entry
        # The texts of a name by its values, which are asked for in many rounds.
        self._told: dict[ast.expr, tuple[Values, Set[Hashable]]] = {}
        self._by_text = SettledIndex(lambda _: self._stores, self._texts)

    @cached_property
    def _stores(self) -> list[_Store]:
        return [
            store
            for call, module in self.index.calls_named(*sorted(SETTERS))
            if (store := _store(call, module)) is not None
        ] + [
            (owner, item.slice, stored.value, module)
            for module in self.index.project.modules
            for item in module.table.subscripts
            if (owner := _own_dictionary(item.value)) is not None
            and isinstance(stored := module.table.parents[item], ast.Assign)
            and item in stored.targets
        ]

    def _texts(self, store: _Store) -> tuple[Set[Hashable], bool]:
        """The names of attributes that are set, as far as they are known."""
        _, name, _, module = store
        values = self.tracer.evaluate(name, module)
        if name not in self._told or self._told[name][0] is not values:
            self._told[name] = values, texts(values)
        return self._told[name][1], self.answers.is_final(name)

    def _doubt(
        self, owner: ast.expr, module: Module, members: Set[ast.AST]
    ) -> list[Unknown] | None:
        """Why it may not be an attribute of some classes, or of their instances, that is set; None
        where it is none of theirs."""
        values = self.tracer.evaluate(owner, module)
        made = [v.callee if isinstance(v, Made) else v for v in values]
        if any(isinstance(each, Class) and each.node in members for each in made):
            return []
        return cut_off(values) or None

    def of(self, attr: str, members: Set[ast.AST]) -> Iterator[Value]:
        """The values that an attribute of some classes is set to by its name.

        Few of many have one name, so that only of these it is asked whose attribute they set.
        """
        for owner, name, value, module in self._by_text.of("", {attr, ANY}):
            doubt = self._doubt(owner, module, members)
            if doubt is not None:
                yield from self.tracer.evaluate(value, module)
                yield from doubt or cut_off(self.tracer.evaluate(name, module))
        for owner, mapping, given, module in self._opened:
            doubt = self._doubt(owner, module, members)
            if doubt is None:
                continue
            yield from doubt
            entry = self.entry(mapping, attr, module, None)
            if entry is not None and entry.values:
                yield from self.tracer.evaluate(given, module) if given else entry.values

    @cached_property
    def _opened(self) -> list[_Opened]:
        """``for name, part in parts.items(): setattr(self, name, wrap(part))``, and
        ``self.__dict__.update(parts)``: what has the names of a dictionary's entries."""
        found: list[_Opened] = []
        for owner, name, value, module in self._stores:
            for definition in _reaching(name, module) if isinstance(name, ast.Name) else ():
                match definition.value:
                    case ast.Call(func=ast.Attribute(value=mapping, attr="items"), args=[]):
                        own = [d for d in _reaching(value, module) if d.node is definition.node]
                        given = None if own and own[0].unpack == (1,) else value
                        if definition.kind is Kind.ELEMENT and definition.unpack == (0,):
                            found.append((owner, mapping, given, module))
        for call, module in self.index.calls_named("update"):
            method = call.func
            changed = _own_dictionary(method.value) if isinstance(method, ast.Attribute) else None
            opened = [*call.args, *(k.value for k in call.keywords if k.arg is None)]
            if changed is not None:
                found += [(changed, mapping, None, module) for mapping in opened]
        return found


def _store(call: ast.Call, module: Module) -> _Store | None:
    match call:
        case ast.Call(func=ast.Name(id="setattr"), args=[owner, name, value]):
            return owner, name, value, module
        case ast.Call(func=ast.Attribute(value=owner), args=[name, value]):
            return owner, name, value, module
    return None
