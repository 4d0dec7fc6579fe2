"""What is outside of the project, and is asked for what is in it over and over again."""

from __future__ import annotations

import ast
from typing import Any

import pytest

from fsdp_migrate.analysis.project import Project
from fsdp_migrate.analysis.tracing import answers
from fsdp_migrate.analysis.values import External
from fsdp_migrate.migration import engine
from fsdp_migrate.planning.context import Study
from tests.helpers.migrating import REGISTRY, ROOT

LOOPS = {
    "parts of what a call of itself is given": (
        "class Address:\n"
        "    def __init__(self, path=lib.PATH):\n"
        "        self.path = path\n"
        "        self.asked = path\n"
        "    def parent(self):\n"
        "        return Address(self.path[:-1])\n"
        "Address()\n"
    ),
    "attributes": (
        "def walk(node=lib.ROOT):\n    asked = node\n    walk(node.left)\n    walk(node.right)\n"
        "walk()\n"
    ),
    "names of entries": (
        "def walk(node=lib.ROOT):\n    asked = node\n"
        "    walk(node['a'])\n    walk(node['b'])\n    walk(node['c'])\nwalk()\n"
    ),
    "a loop": (
        "def walk():\n    node = lib.ROOT\n    while node:\n"
        "        node = node.next if node.is_first else node.other.next\n    asked = node\n"
    ),
}


@pytest.mark.parametrize("text", LOOPS.values(), ids=LOOPS)
def test_names_come_to_an_end(text: str, monkeypatch: pytest.MonkeyPatch) -> None:
    steps: list[int] = []
    settle = answers.Answers._settle

    def counted(self: Any, *given: Any) -> Any:
        steps.append(1)
        return settle(self, *given)

    monkeypatch.setattr(answers.Answers, "_settle", counted)
    path = ROOT / "a.py"
    sources, _ = engine.read({path: f"import lib\n\n\n{text}".encode()}, {path: "a.py"})
    study = Study(Project(sources, None), REGISTRY)
    (module,) = study.project.modules
    (asked,) = (
        node.value
        for node in ast.walk(module.source.tree)
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]).endswith("asked")
    )
    found = [value for value in study.values(asked, module) if isinstance(value, External)]
    assert 2 <= len(found) < 200
    assert len(steps) < 3000


@pytest.mark.parametrize(
    ("name", "part", "below"),
    [
        ("tqdm", "tqdm", "tqdm.tqdm"),
        ("tqdm.auto", "tqdm", "tqdm.auto.tqdm"),
        ("torch.distributed.fsdp.api", "ShardingStrategy", None),
        ("lib.a", "*", "lib.a.*"),
        ("torch.nn.a.checkpoint_wrapper", "checkpoint_wrapper", None),
        ("lib.a.b.next.c", "next", "lib.a.b.next.c"),
        ("lib.a.b.next.next", "next", "lib.a.b.next.next"),
        ("lib.next.next", "next", "lib.next.next"),
    ],
)
def test_only_a_part_that_a_name_has_already_ends_it(
    name: str, part: str, below: str | None
) -> None:
    value = External(ast.Pass(), None, name=name)  # type: ignore[arg-type]
    assert value.below(part) == (below or f"{name}.{part}")
