"""Imports of the project's own modules stand behind what puts them on ``sys.path``."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

from tests.helpers.migrating import migrate
from tests.planning.test_support_home import environment, run, script, source_of, write

__all__ = ["environment"]

HEAD = """\
import os
import site
import sys

import torch
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP
"""
ROOT = "os.path.dirname(os.path.dirname(os.path.abspath(__file__)))"
USE = """

def whole(net):
    model = FSDP(net)
    with FSDP.summon_full_params(model):
        return model


def run():
    from pkg.a import other

    print(whole, other)


if __name__ == "__main__":
    run()
"""
PACKAGE = {
    "pkg/__init__.py": "",
    "pkg/a.py": "from pkg.b import X\n"
    "from torch.distributed.fsdp import FullyShardedDataParallel as FSDP\n\n\n"
    "def other(net):\n    with FSDP.summon_full_params(FSDP(net)):\n        return X\n",
    "pkg/b.py": "X = 1\n",
}
EDITS = {
    "insert": f"sys.path.insert(0, {ROOT})",
    "append": f"sys.path.append({ROOT})",
    "extend": f"sys.path.extend([{ROOT}])",
    "a slice": f"sys.path[:0] = [{ROOT}]",
    "sum": f"sys.path += [{ROOT}]",
    "a new list": f"sys.path = [{ROOT}, *sys.path]",
    "site": f"site.addsitedir({ROOT})",
    "by other names": f"import sys as system\nsystem.path.append({ROOT})",
    "the list by its name": f"from sys import path\n\npath.append({ROOT})",
    "the function by its name": f"from site import addsitedir as add\n\nadd({ROOT})",
    "another name for the list": f"found = sys.path\nfound.append({ROOT})",
    "only if it is new": f"if {ROOT} not in sys.path:\n    sys.path.append({ROOT})",
    "in a loop": f"for place in [{ROOT}]:\n    sys.path.append(place)",
    "in a function": f"def find():\n    sys.path.append({ROOT})\n\n\nfind()",
    "twice": f"sys.path.append('elsewhere')\nSIZE = 3\nsys.path.append({ROOT})",
    "with more behind it": f"sys.path.append({ROOT})  # ours\n\n# -----\n# Model\n# -----\nN = 1",
    "by a name set to itself": f"from sys import path\npath = path\npath.append({ROOT})",
    "on one line": f"N = 1; sys.path.append({ROOT})",
}


BETWEEN = ["\nimport json\n", "\nfrom pkg.b import X\n", "\nimport pkg.b\n\nN = pkg.b.X\n"]


@pytest.mark.parametrize(
    ("edit", "between"),
    [*((edit, "") for edit in EDITS.values()), *((EDITS["insert"], b) for b in BETWEEN)],
    ids=[*EDITS, *BETWEEN],
)
def test_what_starts_goes_on_starting(
    edit: str, between: str, tmp_path: Path, environment: dict[str, str]
) -> None:
    tree = {**PACKAGE, "tools/train.py": f"{HEAD}\n{edit}\n{between}{USE}"}
    write(tree, tmp_path)
    run(script("tools/train.py"), tmp_path, environment)
    _, after = migrate(tree)
    assert source_of(after["tools/train.py"]) == ["pkg.fsdp2_support"]
    write(after, tmp_path)
    run(script("tools/train.py"), tmp_path, environment)
    assert migrate(after)[1] == after
    lines = after["tools/train.py"].splitlines()
    torch = lines.index("from torch.distributed.fsdp import fully_shard")
    assert torch == HEAD.splitlines().index("import torch") + 1
    if between.startswith("\nfrom"):  # one that stands right is joined
        ours = lines.index("from pkg.fsdp2_support import full_params")
        assert ours == lines.index("from pkg.b import X") + 1


LOCAL = f"""\
def wrapped(net):
    import os
    import sys

    from torch.distributed.fsdp import FullyShardedDataParallel as FSDP

    sys.path.append({ROOT})
    model = FSDP(net)
    with FSDP.summon_full_params(model):
        return model


def load():
    from pkg.b import X

    return X


if __name__ == "__main__":
    import torch

    wrapped(torch.nn.Linear(1, 1))
"""


def test_in_a_function_that_imports_for_itself() -> None:
    _, after = migrate({**PACKAGE, "tools/train.py": LOCAL})
    new = after["tools/train.py"]
    assert source_of(new) == ["pkg.fsdp2_support"]
    assert new.index("sys.path.append") < new.index("fsdp2_support") < new.index("fully_shard(")
    ast.parse(new)


NOT_BELOW = {
    "the package is imported above already": "from pkg.b import X\n\nsys.path.append('more')\n",
    "only a script sets it": "from pkg.b import X\n",
    "it is only read": "from pkg.b import X\n\nprint(sys.path)\nPLACES = ':'.join(sys.path)\n",
    "another list": "from pkg.b import X\n\nclass Place:\n    path = []\n\nPlace.path.append(1)\n",
}


@pytest.mark.parametrize("text", NOT_BELOW.values(), ids=NOT_BELOW.keys())
def test_what_needs_no_path_stands_with_the_imports(text: str) -> None:
    main = USE.replace("    run()\n", "    sys.path.append('.')\n    run()\n")
    _, after = migrate({**PACKAGE, "tools/train.py": f"{HEAD}\n{text}{main}"})
    lines = after["tools/train.py"].splitlines()
    new = lines.index("from pkg.fsdp2_support import full_params")
    assert new == lines.index("from pkg.b import X") + 1


def test_torch_does_not_wait_for_the_path() -> None:
    text = f"{HEAD}\nsys.path.append({ROOT})\n\n\ndef wrap(net):\n    return FSDP(net)\n"
    _, after = migrate({"tools/train.py": text})
    assert after["tools/train.py"] == text.replace(
        "FullyShardedDataParallel as FSDP", "fully_shard"
    ).replace("FSDP(", "fully_shard(")


@pytest.mark.parametrize("edit", EDITS.values(), ids=EDITS.keys())
def test_without_fsdp_nothing_changes(edit: str) -> None:
    text = f"import os\nimport site\nimport sys\n\n{edit}\n\nfrom pkg.b import X\n"
    tree = {**PACKAGE, "tools/show.py": text}
    _, after = migrate(tree)
    assert after["tools/show.py"] == text
