"""Under which conditions a statement runs."""

from __future__ import annotations

import ast

import pytest

from fsdp_migrate.syntax import conditions
from fsdp_migrate.syntax.name_table_builder import build

LEAVING = "return", "raise ValueError", "continue"


def told(body: str) -> list[str]:
    """What is known where ``here()`` runs, the innermost first."""
    lines = "".join(f"        {line}\n" for line in body.splitlines())
    tree = ast.parse(f"def f(a, b, c):\n    for each in c:\n{lines}        here()\n")
    [here] = [n for n in ast.walk(tree) if getattr(getattr(n, "func", n), "id", "") == "here"][:1]
    found = conditions.around(here, build(tree))
    return [ast.unparse(test) if holds else f"not {ast.unparse(test)}" for test, holds in found]


@pytest.mark.parametrize("leave", LEAVING)
@pytest.mark.parametrize(
    ("body", "expected"),
    [
        ("if a:\n    LEAVE", ["not a"]),
        ("if a:\n    LEAVE\nelse:\n    print()", ["not a"]),
        ("if a:\n    LEAVE\nelif b:\n    LEAVE", ["not a", "not b"]),
        ("if a:\n    LEAVE\nelif b:\n    print()\nelse:\n    LEAVE", ["not a", "b"]),
        ("if a:\n    print()\nelse:\n    LEAVE", ["a"]),
        ("if a:\n    if b:\n        LEAVE\nelse:\n    LEAVE", ["a", "not b"]),
        ("if a:\n    assert b\nelse:\n    LEAVE", ["a", "b"]),
    ],
)
def test_what_comes_by_every_way_that_stays_is_told(
    body: str, expected: list[str], leave: str
) -> None:
    assert told(body.replace("LEAVE", leave)) == expected


@pytest.mark.parametrize(
    "body",
    [
        "if a:\n    print()",
        "if a:\n    print()\nelse:\n    if b:\n        return",
        "if a:\n    if b:\n        return",
        "while a:\n    if b:\n        break",
        "try:\n    if a:\n        raise ValueError\nexcept ValueError:\n    pass",
    ],
)
def test_what_some_ways_tell_is_not(body: str) -> None:
    assert told(body) == []
