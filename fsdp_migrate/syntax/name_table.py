"""Everything that one walk learns about a module: its scopes, bindings, calls and attributes."""

from __future__ import annotations

import ast
from collections import defaultdict
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Generic, TypeVar

from fsdp_migrate.syntax.expressions import last_name
from fsdp_migrate.syntax.scopes import Binding, Kind, Scope
from fsdp_migrate.syntax.trees import DEFINITIONS, block_of, last_part, walk

Node = TypeVar("Node", bound=ast.AST)
WORDS = ("id", "value", "name")  # the fields that hold the word of a node


class Index(Generic[Node]):
    """Nodes by the names that they have, in the order of the source for any number of names."""

    def __init__(self, nodes: Sequence[Node], name: Callable[[Node], str]) -> None:
        self._nodes = nodes
        self._places: dict[str, list[int]] = defaultdict(list)
        for place, node in enumerate(nodes):
            self._places[name(node)].append(place)

    def of(self, names: Collection[str]) -> list[Node]:
        """The nodes that have one of some names."""
        places = self._places
        asked = names if len(names) < len(places) else places.keys() & names
        found = [place for name in asked for place in places.get(name, ())]
        return [self._nodes[place] for place in sorted(found)]

    @property
    def names(self) -> Collection[str]:
        """Every name that some node has."""
        return self._places.keys()

    def named(self, name: str) -> list[Node]:
        """The nodes of one name."""
        return [self._nodes[place] for place in self._places.get(name, ())]


@dataclass(eq=False)
class NameTable:
    """Everything one walk learns about a module."""

    tree: ast.Module
    module: Scope
    scopes: dict[ast.AST, Scope] = field(default_factory=dict)  # scope-opening node -> its scope
    parents: dict[ast.AST, ast.AST] = field(default_factory=dict)
    within: dict[ast.AST, Scope] = field(default_factory=dict)  # Name, Attribute, Call -> scope
    calls: list[ast.Call] = field(default_factory=list)
    attributes: list[ast.Attribute] = field(default_factory=list)
    names: list[ast.Name] = field(default_factory=list)
    strings: list[ast.Constant] = field(default_factory=list)
    imports: list[Binding] = field(default_factory=list)
    stars: list[tuple[Scope, str]] = field(default_factory=list)  # ``from x import *``
    returns: dict[ast.AST, list[ast.Return]] = field(default_factory=dict)  # by function
    yields: dict[ast.AST, list[ast.Yield | ast.YieldFrom]] = field(default_factory=dict)
    subscripts: list[ast.Subscript] = field(default_factory=list)
    matches: list[ast.Match] = field(default_factory=list)
    import_statements: list[ast.Import | ast.ImportFrom] = field(default_factory=list)
    _calls_in: dict[ast.AST, list[ast.Call]] = field(default_factory=dict)

    @cached_property
    def imported_by(self) -> dict[tuple[ast.AST, str], Binding]:
        """The binding of a name by an import."""
        return {(binding.node, binding.name): binding for binding in self.imports}

    @cached_property
    def calls_by_name(self) -> Index[ast.Call]:
        """The calls by the last part of what is called."""
        return Index(self.calls, lambda call: last_name(call.func))

    @cached_property
    def attributes_by_name(self) -> Index[ast.Attribute]:
        """The attributes, as they are read, set and called."""
        return Index(self.attributes, lambda attribute: attribute.attr)

    @cached_property
    def stored_attributes(self) -> list[ast.Attribute]:
        """The attributes that something is assigned to."""
        return [node for node in self.attributes if isinstance(node.ctx, ast.Store)]

    @cached_property
    def written(self) -> dict[Scope, frozenset[str]]:
        """The attributes that the statements of a scope assign or delete, on whatever object;
        ``ITEM`` where they do so with items of something."""
        found: dict[Scope, set[str]] = defaultdict(set)
        nodes: list[ast.Attribute | ast.Subscript] = [*self.attributes, *self.subscripts]
        for node in nodes:
            if not isinstance(node.ctx, ast.Load):
                found[self.scope_of(node).home()].add(last_part(node))
        return {scope: frozenset(names) for scope, names in found.items()}

    @cached_property
    def tested(self) -> Mapping[str, set[Scope]]:
        """The last parts of the paths that are asked ``isinstance`` of, or matched with a class,
        with the scopes whose statements do."""
        found: dict[str, set[Scope]] = {}
        for test in self.calls_by_name.named("isinstance"):
            if test.args:
                found.setdefault(last_part(test.args[0]), set()).add(self.within[test].home())
        for match in self.matches:
            scope = self.scope_of(match).home()
            subject = match.subject
            for part in subject.elts if isinstance(subject, ast.Tuple) else [subject]:
                found.setdefault(last_part(part), set()).add(scope)
            for capture in walk(match):
                if isinstance(capture, ast.MatchAs) and capture.name:
                    found.setdefault(capture.name, set()).add(scope)
        return found

    @cached_property
    def loops(self) -> list[ast.For | ast.AsyncFor | ast.comprehension]:
        """The loops, also those of comprehensions."""
        kinds = (ast.For, ast.AsyncFor, ast.comprehension)
        return [node for node in self.parents if isinstance(node, kinds)]

    @cached_property
    def keywords(self) -> frozenset[str | None]:
        """The keywords by which calls give something; None for ``**``."""
        return frozenset(keyword.arg for call in self.calls for keyword in call.keywords)

    @cached_property
    def opened_calls(self) -> list[ast.Call]:
        """The calls that give ``**`` of something."""
        return [
            call for call in self.calls if call.keywords and any(not k.arg for k in call.keywords)
        ]

    @cached_property
    def names_by_id(self) -> Index[ast.Name]:
        """The uses of names, in whatever scope."""
        return Index(self.names, lambda name: name.id)

    @cached_property
    def words(self) -> Mapping[str, list[ast.AST]]:
        """The names, strings, imports and definitions that have a word for their own."""
        found: dict[str, list[ast.AST]] = defaultdict(list)
        for node in self.parents:
            for field_ in WORDS:
                word = getattr(node, field_, None)
                if word.__class__ is str:
                    found[word].append(node)
        return found

    def has_word(self, word: str, part: ast.AST) -> bool:
        """Whether some name, string, import or definition in a part of the module is ``word``."""
        nodes = self.words.get(word, ())
        return any(part is each for node in nodes for each in (node, *self.ancestors(node)))

    @cached_property
    def own_calls(self) -> dict[Scope, list[ast.Call]]:
        """The calls that a function, or a module outside of its functions, makes itself."""
        found: dict[Scope, list[ast.Call]] = defaultdict(list)
        for call in self.calls:
            own = self.within[call]
            found[own.function() or own.module_scope()].append(call)
        return found

    @cached_property
    def methods(self) -> dict[str, list[ast.Call]]:
        """The calls of attributes, by the attribute."""
        found: dict[str, list[ast.Call]] = {}
        for call in self.calls:
            if isinstance(call.func, ast.Attribute):
                found.setdefault(call.func.attr, []).append(call)
        return found

    def calls_in(self, node: ast.AST) -> list[ast.Call]:
        """The calls inside a class or function, or a part of one."""
        known = self._calls_in.get(node)
        if known is None:
            calls = [n for n in walk(node) if isinstance(n, ast.Call) and n in self.within]
            known = self._calls_in[node] = calls
        return known

    def reads(self, name: str, scope: Scope | None) -> list[ast.Name]:
        """Where the variable of that name in a scope is read, in functions inside of it too."""
        named = self.names_by_id.named(name)
        loads = (n for n in named if isinstance(n.ctx, ast.Load))
        return [n for n in loads if self.within[n].lookup(name) is scope]

    def scope_of(self, node: ast.AST) -> Scope:
        """The scope in which ``node`` is evaluated."""
        while node not in self.within:
            if node not in self.parents:
                return self.module
            parent = self.parents[node]
            if parent in self.scopes and _inside(parent, node):
                return self.scopes[parent]
            node = parent
        return self.within[node]

    def statement(self, node: ast.AST) -> ast.stmt:
        """The innermost statement that contains ``node`` (``node`` itself if it is one)."""
        current = node
        while not isinstance(current, ast.stmt):
            current = self.parents[current]
        return current

    def has_run(self, statement: ast.stmt, near: ast.AST) -> bool:
        """Whether ``statement`` stands before ``near`` in a block around it."""
        block = block_of(self.parents[statement], statement)
        for each in (near, *self.ancestors(near)):
            if each in block:
                return block.index(statement) <= block.index(each)
        return False

    @cached_property
    def postpones_annotations(self) -> bool:
        """Whether ``from __future__ import annotations`` keeps them from being evaluated."""
        return any(
            isinstance(node, ast.ImportFrom)
            and node.module == "__future__"
            and any(alias.name == "annotations" for alias in node.names)
            for node in self.import_statements
        )

    def ancestors(self, node: ast.AST) -> Iterator[ast.AST]:
        parents = self.parents
        while node in parents:
            node = parents[node]
            yield node

    def qualify(self, node: ast.expr) -> frozenset[str]:
        """Dotted names an expression may stand for through imports; empty if it is not one."""
        if isinstance(node, ast.Attribute):
            return frozenset(f"{base}.{node.attr}" for base in self.qualify(node.value))
        if not isinstance(node, ast.Name):
            return frozenset()
        scope = self.scope_of(node).lookup(node.id)
        if scope is None:
            return frozenset()
        found = [b for b in scope.bindings[node.id] if b.kind is Kind.IMPORT]
        return frozenset(b.qualified for b in found)


def _inside(scope_node: ast.AST, child: ast.AST) -> bool:
    """Whether a direct child of a scope-opening node is evaluated inside that scope.

    Decorators, defaults, annotations, base classes and the first iterable are not.
    """
    if isinstance(scope_node, DEFINITIONS):
        return child in scope_node.body
    if isinstance(scope_node, ast.Lambda):
        return child is scope_node.body
    return True
