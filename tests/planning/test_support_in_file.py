"""Short functions that one file needs stand in it; what is shared or long has a file of its own."""

from __future__ import annotations

import ast

import pytest

from fsdp_migrate.planning import support_library as library
from tests.helpers.migrating import migrate

FILE = "fsdp2_support.py"
HEAD = """\
import torch
from torch import nn
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP

"""
LATE = """
# The model.
class Trainer:
    def __init__(self, net, evaluate):
        self.model = FSDP(net)
        evaluate(self.model)
        self.optimizer = self.build()

    def build(self):
        return torch.optim.AdamW(self.model.parameters())
"""


def defined(text: str) -> list[str]:
    return [n.name for n in ast.parse(text).body if isinstance(n, ast.FunctionDef)]


def test_one_file_that_needs_little_defines_it() -> None:
    _, after = migrate({"train.py": HEAD + LATE})
    assert list(after) == ["train.py"]
    text = after["train.py"]
    assert defined(text) == ["reshard_parameters"]
    assert "\n\n\n# The model.\nclass Trainer:" in text
    assert "reshard_parameters(self.model)" in text


def test_a_second_run_changes_nothing() -> None:
    _, after = migrate({"train.py": HEAD + LATE})
    result, again = migrate(after)
    assert not result.decisions
    assert again == after


def test_what_two_files_need_has_a_file() -> None:
    _, after = migrate({"one.py": HEAD + LATE, "two.py": HEAD + LATE})
    assert set(after) == {"one.py", "two.py", FILE}
    assert "from fsdp2_support import reshard_parameters" in after["one.py"]


@pytest.mark.parametrize(
    "head",
    [
        f"{HEAD}reshard_parameters = print\n",  # the name is taken
        HEAD.replace("from torch import nn", "nn = None"),  # a name that it uses is
        HEAD.replace("from torch import nn", "if torch:\n    from torch import nn"),
        f"{HEAD}FSDPModule = 1\n",
    ],
)
def test_names_that_mean_something_else_send_it_to_a_file(head: str) -> None:
    _, after = migrate({"train.py": head + LATE})
    assert FILE in after


def test_what_runs_before_the_first_definition_gets_a_file() -> None:
    before = "def f():\n    pass\n"
    script = HEAD + "model = FSDP(nn.Linear(2, 2))\nprint(model(torch.ones(2)))\n"
    script += "for p in model.parameters():\n    p.data.mul_(2)\n"
    _, after = migrate({"train.py": script + before})
    assert "def reshard_parameters" not in after["train.py"]


def test_python_3_9_can_import_what_is_written() -> None:
    """It does not evaluate ``A | B``: short functions have none, and files postpone annotations."""
    for name in library.definitions():
        names = library.closure([name])
        text = library.written(dict.fromkeys(names)).decode()
        ast.parse(text, feature_version=(3, 9))
        assert "from __future__ import annotations" in text or not any(
            map(library.has_unions, names)
        )
        code = ast.parse("\n".join(map(library.text_of, names)))
        unions = [n for n in ast.walk(code) if isinstance(getattr(n, "op", None), ast.BitOr)]
        assert all(_is_annotation(union, code) for union in unions)


def _is_annotation(node: ast.AST, tree: ast.AST) -> bool:
    annotations = [
        getattr(each, field, None) for each in ast.walk(tree) for field in ("annotation", "returns")
    ]
    return any(node in ast.walk(each) for each in annotations if each is not None)
