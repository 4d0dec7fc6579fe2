"""Names of FSDP1's class that code asks modules for by text: what the module is, is asked only
where the text is a name that FSDP1 has somewhere in the project."""

from __future__ import annotations

import ast

import pytest

from fsdp_migrate.analysis.module import Module
from fsdp_migrate.analysis.values import Values
from fsdp_migrate.fsdp1.construct import ConstructKind
from fsdp_migrate.planning.context import Study
from tests.helpers.migrating import migrate

KIT = {
    "kit/__init__.py": "",
    "kit/base.py": """\
from torch.distributed.fsdp import FullyShardedDataParallel as Sharder

LIMIT = 3


def wrap(net):
    return Sharder(net)
""",
    "kit/plain.py": "from kit.base import Sharder as Wrapper\nfrom kit.base import LIMIT\n",
    "kit/all.py": "from kit.base import *\n",
}
FOUND = {
    "where it is imported": ("base", "Sharder"),
    "under another name, by a file without FSDP's words": ("plain", "Wrapper"),
    "through a star": ("all", "Sharder"),
}
WAYS = {
    "getattr": 'getattr(MODULE, "NAME")',
    "hasattr": 'hasattr(MODULE, "NAME")',
    "a patch": 'mock.patch.object(MODULE, "NAME", None)',
    "its names": 'vars(MODULE)["NAME"]',
}


def _use(way: str, module: str, name: str) -> dict[str, str]:
    asked = way.replace("MODULE", module).replace("NAME", name)
    return {**KIT, "use.py": f"from unittest import mock\n\nfrom kit import {module}\n\n{asked}\n"}


@pytest.mark.parametrize("way", WAYS.values(), ids=WAYS)
@pytest.mark.parametrize("asked", FOUND.values(), ids=FOUND)
def test_names_of_fsdp1_are_found(way: str, asked: tuple[str, str]) -> None:
    result, _ = migrate(_use(way, *asked))
    named = [d for d in result.decisions if d.site.construct.kind is ConstructKind.NAME_IN_STRING]
    assert [d.site.module.display for d in named] == ["use.py"]


OTHERS = {"another name": ("base", "LIMIT"), "a name that is nowhere": ("plain", "nothing")}


@pytest.mark.parametrize("way", WAYS.values(), ids=WAYS)
@pytest.mark.parametrize("asked", OTHERS.values(), ids=OTHERS)
def test_other_names_are_no_sites_and_ask_nothing(
    way: str, asked: tuple[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[str] = []
    values = Study.values

    def noted(study: Study, node: ast.expr, module: Module) -> Values:
        seen.append(ast.unparse(node))
        return values(study, node, module)

    monkeypatch.setattr(Study, "values", noted)
    result, _ = migrate(_use(way, *asked))
    assert all(d.site.module.display != "use.py" for d in result.decisions)
    assert asked[0] not in seen
