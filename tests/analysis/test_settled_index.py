"""Things of one name are asked what they are once, but for those of which it is not known yet."""

from __future__ import annotations

import ast
from collections import Counter
from collections.abc import Hashable
from pathlib import Path

import pytest

from fsdp_migrate.analysis.project import Project
from fsdp_migrate.analysis.tracing.settled_index import SettledIndex
from fsdp_migrate.analysis.tracing.tracer import Tracer
from fsdp_migrate.syntax.source import Source

ITEMS = {"x": ["odd 1", "even 2", "odd 3", "even 4", "odd 5"]}


class Asked:
    """Items with one key each, of which ``open_ones`` may still turn out to be something else."""

    def __init__(self, *open_ones: str) -> None:
        self.open_ones = set(open_ones)
        self.times: Counter[str] = Counter()
        self.index = SettledIndex(lambda name: ITEMS.get(name, ()), self.keys)

    def keys(self, item: str) -> tuple[set[Hashable], bool]:
        self.times[item] += 1
        return {item.split(maxsplit=1)[0]}, item not in self.open_ones


def test_items_are_found_by_key_in_their_order() -> None:
    asked = Asked()
    assert asked.index.of("x", {"odd"}) == ["odd 1", "odd 3", "odd 5"]
    assert asked.index.of("x", {"even", "odd"}) == ITEMS["x"]
    assert asked.index.of("x", {"prime"}) == []
    assert asked.index.of("y", {"odd"}) == []


def test_what_is_known_for_good_is_asked_once() -> None:
    asked = Asked("odd 3")
    for _ in range(3):
        assert asked.index.of("x", {"odd"}) == ["odd 1", "odd 3", "odd 5"]
    assert asked.times == {"odd 1": 1, "even 2": 1, "odd 3": 3, "even 4": 1, "odd 5": 1}


def test_what_turns_out_later_is_found_then() -> None:
    asked = Asked("odd 3")
    asked.index.of("x", {"even"})
    asked.open_ones.clear()
    assert asked.index.of("x", {"odd"}) == ["odd 1", "odd 3", "odd 5"]
    assert asked.index.of("x", {"odd"}) == ["odd 1", "odd 3", "odd 5"]
    assert asked.times["odd 3"] == 2


def test_items_that_are_asked_while_others_are() -> None:
    asked = Asked()
    inner: list[list[str]] = []

    def keys(item: str) -> tuple[set[Hashable], bool]:
        if not inner:
            inner.append([])
            inner[0] = index.of("x", {"odd"})
        return asked.keys(item)

    index = SettledIndex(lambda name: ITEMS.get(name, ()), keys)
    assert index.of("x", {"odd"}) == ["odd 1", "odd 3", "odd 5"] == inner[0]


@pytest.mark.parametrize("number", [4, 32])
def test_bases_are_looked_up_a_few_times_for_each_class(
    number: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    classes = "".join(
        f"class C{n}(Base):\n    def __init__(self, net):\n        super().__init__()\n"
        f"        self.net = net\n\n\nC{n}(Net())\n\n\n"
        for n in range(number)
    )
    text = f"class Net: ...\n\n\nclass Base:\n    def __init__(self): ...\n\n\n{classes}"
    project = Project([Source.parse(text.encode(), path=Path("/p/a.py"), display="a.py")])
    tracer, (module,) = Tracer(project), project.modules
    graph = tracer._calls.graph  # type: ignore[attr-defined]
    asked = 0
    find = graph._next

    def counted(*given: object) -> object:
        nonlocal asked
        asked += 1
        return find(*given)

    monkeypatch.setattr(graph, "_next", counted)
    for node in ast.walk(module.source.tree):
        if isinstance(node, ast.FunctionDef):
            called = tracer.callers(node, module)
            owner = module.table.parents[node]
            assert isinstance(owner, ast.ClassDef)
            assert len(called) == (number if owner.name == "Base" else 1)
    assert asked <= 3 * number
