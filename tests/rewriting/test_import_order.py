"""Where a new import stands among those that a file has."""

from __future__ import annotations

import ast
from typing import Any, cast

import pytest

from fsdp_migrate.planning.edits import Import
from fsdp_migrate.rewriting.imports.isort_order import find_neighbour

OWN = frozenset({"models", "utils"})


def placed(source: str, module: str, name: str) -> str:
    """The imports with the new one, without what other modules would tell of the file."""
    tree = ast.parse(source)
    statements = [n for n in tree.body if isinstance(n, (ast.Import, ast.ImportFrom))]
    need = Import(cast(Any, None), module, name, None, tree)
    neighbour = find_neighbour(statements, need, OWN)
    assert neighbour is not None
    lines = source.splitlines()
    at = neighbour.statement.lineno - neighbour.before
    return "\n".join([*lines[:at], "NEW", *lines[at:]])


@pytest.mark.parametrize(
    "after",
    [
        "import argparse\nimport os\nNEW\n\nimport torch",
        "import argparse\n# of the system\nimport os\nNEW\n\nimport torch",
        "import argparse\nimport os\nfrom collections import Counter\nNEW\nfrom typing import Any",
        "import os\nimport torch\nimport sys\nNEW\nfrom torch import nn",
        "import os\nimport torch\nNEW\n\nimport math",
        "import torch\nimport os\nNEW\n\nimport sys",
        "from torch import nn\nimport os\nimport sys\nNEW\n\nx = 1\nimport math",
    ],
)
def test_names_of_the_standard_library_follow_its_modules(after: str) -> None:
    assert placed(after.replace("NEW\n", ""), "dataclasses", "replace") == after


@pytest.mark.parametrize(
    "after",
    [
        "import os\n\nimport torch\n\nNEW\nfrom models import Net\nfrom utils import log",
        "import os\nfrom models import Net\nfrom utils import log\nNEW\nimport torch",
        "from utils import log\nfrom models import Net\nNEW\n\nimport os\nfrom models import C",
    ],
)
def test_support_stands_with_the_project_s_own(after: str) -> None:
    assert placed(after.replace("NEW\n", ""), "fsdp2_support", "shard") == after
