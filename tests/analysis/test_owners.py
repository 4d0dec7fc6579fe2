"""Owners that have the same as an attribute are asked for it once."""

from __future__ import annotations

import ast
from typing import Any

from fsdp_migrate.analysis.tracing.owners import one_of_each
from fsdp_migrate.analysis.values import Class, Computed, External, Made, Unknown, Value

MODULE: Any = None
FSDP = "torch.distributed.fsdp.FullyShardedDataParallel"


def made(name: str) -> Made:
    return Made(ast.parse("f()").body[0], MODULE, callee=External(ast.Pass(), MODULE, name=name))


def kept(*owners: Value, attr: str = "layers") -> list[Value]:
    return list(one_of_each(owners, attr))


def test_what_nobody_knows_is_asked_once_for_each_reason() -> None:
    first, again, other = (Unknown(ast.Pass(), MODULE, why=why) for why in ("a", "a", "b"))
    assert kept(first, again, other) == [first, other]


def test_instances_of_one_class_have_the_same() -> None:
    node = ast.ClassDef("Net", [], [], [], [])
    one, two = (Made(ast.Pass(), MODULE, callee=Class(node, MODULE)) for _ in range(2))
    assert kept(one, two) == [one]


def test_objects_of_libraries_have_the_same() -> None:
    one, two, computed = made("a.B"), made("c.D"), Computed(ast.Pass(), MODULE)
    assert kept(one, computed, two) == [one, computed]


def test_models_are_told_apart_where_the_module_inside_is_asked() -> None:
    one, two = made(FSDP), made(FSDP)
    assert kept(one, two) == [one, two]


def test_namespaces_are_told_apart() -> None:
    one, two = made("argparse.Namespace"), made("argparse.Namespace")
    assert kept(one, two) == [one, two]
