"""Attributes that tell which branch made what another attribute of the same object holds.

    if sharded:
        model = FSDP(net)
        self.kind = "fsdp"
    else:
        model = DistributedDataParallel(net)
        self.kind = "ddp"
    self.model = model

Where ``self.kind == "ddp"`` holds, ``self.model`` is not what the first branch made: both are
assigned in the same call.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator

from fsdp_migrate.analysis.flow import Definition
from fsdp_migrate.analysis.module import Module
from fsdp_migrate.analysis.tracing.facts import Fact, Facts
from fsdp_migrate.analysis.tracing.functions import class_of_method
from fsdp_migrate.analysis.tracing.tracer import Tracer
from fsdp_migrate.analysis.values import Class
from fsdp_migrate.syntax.expressions import last_name
from fsdp_migrate.syntax.name_table import NameTable
from fsdp_migrate.syntax.scopes import Kind
from fsdp_migrate.syntax.trees import FUNCTIONS, block_of, position, walk

INIT = "__init__"
Place = tuple[ast.AST, Module]


class Tags:
    """Answers for one project, through its tracer."""

    def __init__(self, tracer: Tracer) -> None:
        self.tracer = tracer
        self._set_elsewhere: dict[str, bool] = {}

    def exclude(self, made: Place, used: Place, known: Facts, owner: str) -> bool:
        """Whether ``self.held`` does not hold, where it is used, what is made at another place.

        Args:
            known: what the branches around its use tell.
            owner: what the names of the object's own settings begin with.
        """
        node, _ = used
        match node:
            case ast.Attribute(value=ast.Name(id="self"), attr=held) if owner:
                pass
            case _:
                return False
        for each in known:
            tags = {fact.setting.removeprefix(owner) for fact in each}
            if len(tags) != 1 or not all(fact.setting.startswith(owner) for fact in each):
                continue
            tag = tags.pop()
            value = self._value_beside(made, used, held, tag) if tag.isidentifier() else None
            if value is not None:
                here = Fact(f"{owner}{tag}", frozenset({value.value}), holds=True)
                if all(here.contradicts(fact) for fact in each):
                    return True
        return False

    def _value_beside(self, made: Place, used: Place, held: str, tag: str) -> ast.Constant | None:
        """What the tag is given in each call that makes something, and has the object hold it."""
        node, module = made
        table = module.table
        user = used[1].table.scope_of(used[0]).function()
        maker = table.scope_of(node).function()
        if user is None or maker in {None, user} or self._is_set_elsewhere(tag):
            return None
        cls = class_of_method(user.node, used[1]) if isinstance(user.node, FUNCTIONS) else None
        if cls is None or not isinstance(maker.node, FUNCTIONS):
            return None
        own = Class(cls, used[1])
        stores = [(method, d) for _, method, d in self.tracer.stores(own, tag)]
        holding = [(method, d) for _, method, d in self.tracer.stores(own, held)]
        if not all(_is_constant(d) for _, d in stores):
            return None
        here = [d.node for method, d in stores if method is maker.node]
        others = [d for method, d in holding if method is not maker.node]
        if not here or not all(_is_nothing(d) for d in others):
            return None
        if any(method is not maker.node and method.name != INIT for method, _ in stores):
            return None
        if any(_reads(held, d.value) for _, d in holding):
            return None  # it may hold the same as before, under another tag
        held_here = [d.node for method, d in holding if method is maker.node]
        if not all(any(_run_together(t, h, table) for h in held_here) for t in here):
            return None
        beside = [t for t in here if _run_together(node, t, table)]
        if len(beside) != 1 or _calls(user.node, maker.node):
            return None
        later = [t for t in here if position(t) > position(beside[0])]
        if not all(_are_arms(t, beside[0], table) for t in later) or _in_loop(node, table):
            return None
        given = [d.value for _, d in stores if d.node is beside[0]]
        return given[0] if isinstance(given[0], ast.Constant) else None

    def _is_set_elsewhere(self, tag: str) -> bool:
        """Whether some code gives any other object an attribute of that name, or one by a text."""
        if tag not in self._set_elsewhere:
            self._set_elsewhere[tag] = any(
                _sets(tag, module) for module in self.tracer.project.modules if module.mentions(tag)
            )
        return self._set_elsewhere[tag]


def _sets(tag: str, module: Module) -> bool:
    table = module.table
    for attribute in table.attributes_by_name.named(tag):
        if not isinstance(attribute.ctx, ast.Load) and getattr(attribute.value, "id", "") != "self":
            return True
    return any(
        isinstance(n, ast.Constant) and n.value == tag
        for call in table.calls_by_name.of({"setattr", "__setattr__", "update"})
        for n in walk(call)
    )


def _is_constant(definition: Definition) -> bool:
    known = definition.kind is Kind.ASSIGN and not definition.unpack
    return known and isinstance(definition.value, ast.Constant)


def _is_nothing(definition: Definition) -> bool:
    return _is_constant(definition) and getattr(definition.value, "value", 0) is None


def _run_together(node: ast.AST, other: ast.AST, table: NameTable) -> bool:
    """Whether ``other`` runs in each call of the function that gets past ``node``: it stands in
    the same block or one around it, and nothing in between leaves the function."""
    statement = _statement(other, table)
    child = _statement(node, table)
    for parent in table.ancestors(child):
        block = block_of(parent, child)
        if statement in block:
            first, last = sorted((block.index(child), block.index(statement)))
            between = block[first + 1 : last]
            return not _leaves(between)
        if not isinstance(parent, (ast.If, ast.With)) or _leaves(block[block.index(child) :]):
            return False
        child = parent
    return False


def _leaves(statements: list[ast.stmt]) -> bool:
    return any(isinstance(n, ast.Return) for s in statements for n in walk(s))


def _reads(held: str, value: ast.expr | None) -> bool:
    nodes = walk(value) if value is not None else ()
    return any(isinstance(n, ast.Attribute) and n.attr == held for n in nodes)


def _statement(node: ast.AST, table: NameTable) -> ast.stmt:
    if isinstance(node, ast.stmt):
        return node
    return next(n for n in table.ancestors(node) if isinstance(n, ast.stmt))


def _are_arms(one: ast.AST, other: ast.AST, table: NameTable) -> bool:
    """Whether two nodes stand in different branches of one ``if``."""
    return any(
        arm is not other_arm
        for question, arm in _branches(one, table)
        for other_question, other_arm in _branches(other, table)
        if question is other_question
    )


def _branches(node: ast.AST, table: NameTable) -> Iterator[tuple[ast.If, list[ast.stmt]]]:
    child = node
    for parent in table.ancestors(node):
        if isinstance(parent, ast.If) and isinstance(child, ast.stmt):
            yield parent, block_of(parent, child)
        child = parent


def _in_loop(node: ast.AST, table: NameTable) -> bool:
    for parent in table.ancestors(node):
        if isinstance(parent, (ast.For, ast.AsyncFor, ast.While)):
            return True
        if isinstance(parent, FUNCTIONS):
            return False
    return False


def _calls(function: ast.AST, method: ast.AST) -> bool:
    """Whether a function calls what may be that method, after which all may be otherwise."""
    name = getattr(method, "name", "")
    calls = (n for n in walk(function) if isinstance(n, ast.Call))
    return any(last_name(call.func) == name for call in calls)
