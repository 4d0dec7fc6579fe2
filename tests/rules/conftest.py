"""The order of the tests here."""

from __future__ import annotations

import pytest

from fsdp_migrate.planning.rule import Example


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """The tests of an example stand together, so that they see the same run (``migrate_once``)."""
    places = [place for place, item in enumerate(items) if example(item) is not None]
    numbers: dict[int, int] = {}  # of examples, in the order in which they come
    for place in places:
        numbers.setdefault(id(example(items[place])), len(numbers))
    together = sorted((items[p] for p in places), key=lambda item: numbers[id(example(item))])
    for place, item in zip(places, together, strict=True):
        items[place] = item


def example(item: pytest.Item) -> Example | None:
    """The example that a test is given."""
    given = item.callspec.params.get("example") if hasattr(item, "callspec") else None
    return given if isinstance(given, Example) else None
