"""Walks of a tree are kept with it: they must be what a walk of the whole tree gives."""

from __future__ import annotations

import ast

from fsdp_migrate.migration.guard_tests import _replaced
from fsdp_migrate.syntax.trees import children, walk

WITHOUT_PLACE = (ast.operator, ast.cmpop, ast.boolop, ast.unaryop, ast.expr_context)
SOURCE = """
import torch
from torch import nn as layers


@decorated(1, key="x")
class Net(layers.Module, metaclass=Meta):
    def forward(self, x: int, *rest, y=None, **more) -> "Net":
        global counted
        with open(x) as a, b:
            for i, j in enumerate(rest):
                yield {**more, i: [k for k in j if k and not y]}
        try:
            x += lambda z: z[1:2, ...]
        except* ValueError as e:
            raise RuntimeError(f"{x!r:>{y}}") from e
        match x:
            case Point(0, y=1) | [_, *_] if x < y <= 3:
                return (yield from x)
            case {"a": None, **others}:
                del x.y, x[0]
"""


def test_a_walk_is_that_of_ast_without_what_has_no_place() -> None:
    tree = ast.parse(SOURCE)
    for node in list(ast.walk(tree)):
        if not isinstance(node, WITHOUT_PLACE):
            expected = [n for n in ast.walk(node) if not isinstance(n, WITHOUT_PLACE)]
            assert list(walk(node)) == expected
            assert list(walk(node)) == expected, "what was kept is the same"
            direct = [n for n in ast.iter_child_nodes(node) if not isinstance(n, WITHOUT_PLACE)]
            assert children(node) == ([] if isinstance(node, ast.Constant) else direct)


def test_what_is_kept_does_not_hold_its_own_node() -> None:
    """A tree is freed when nobody needs it, although Python's garbage collector is off."""
    tree = ast.parse(SOURCE)
    walk(tree)
    assert not any(tree in kept for kept in vars(tree).values() if isinstance(kept, list))


def test_a_node_that_lacks_what_is_optional_has_no_children_there() -> None:
    assert walk(ast.Return())[1:] == ()


def test_a_condition_in_other_words_is_another_tree() -> None:
    test = ast.parse("not a.b(c, [a]) and a", mode="eval").body
    before = walk(test)
    other = _replaced(test, {"a": ast.Name("x", ast.Load()), "c": ast.Constant(1)})
    assert ast.unparse(other) == "not x.b(1, [x]) and x"
    assert ast.unparse(test) == "not a.b(c, [a]) and a"
    assert walk(test) == before
    assert not set(before) & set(walk(other))
