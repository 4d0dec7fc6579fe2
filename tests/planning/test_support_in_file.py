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


SCRIPT = """\
from torch.distributed.fsdp.wrap import size_based_auto_wrap_policy

# The model.
model = FSDP(nn.Linear(2, 2), auto_wrap_policy=size_based_auto_wrap_policy)
print(model(torch.ones(2)))
"""


def test_a_script_without_definitions_defines_it_behind_its_imports() -> None:
    _, after = migrate({"train.py": HEAD.rstrip() + "\n" + SCRIPT})
    assert list(after) == ["train.py"]
    assert "fully_shard\n\n\ndef units_by_size(" in after["train.py"]
    assert "    return units\n\n\n# The model.\nmodel = nn.Linear(2, 2)" in after["train.py"]
    result, again = migrate(after)
    assert not result.decisions
    assert again == after


def test_what_runs_between_imports_gets_a_file() -> None:
    late = "import os\n\nprint(os.name)\n"
    _, after = migrate({"train.py": HEAD + SCRIPT + late})
    assert FILE in after


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


SENT = """\
import modal

app = modal.App("test")


@app.function()
def work(net):
    import torch
    from torch.distributed.fsdp import FullyShardedDataParallel as FSDP
    from transformers import set_seed

    # The model
    set_seed(0)
    model = FSDP(net, ignored_modules=[net.head])
    print(model.clip_grad_norm_(1.0))
"""


CLIPPED = """
def clipped(net):
    model = FSDP(net, ignored_modules=[net.head])
    print(model.clip_grad_norm_(1.0))
"""


def test_a_file_that_imports_no_torch_has_them_inside_the_function() -> None:
    """It is sent to where torch is by itself, and loaded where there may be none."""
    result, after = migrate({"tests/sent.py": SENT})
    assert after.keys() == {"tests/sent.py"}
    text = after["tests/sent.py"]
    assert text.index("def work") < text.index("    def clip_grad_norm_(model")
    assert "torch" not in text.partition("@app.function()")[0]
    assert "    # The model\n    set_seed(0)\n" in text
    assert "    from torch import nn\n" in text
    assert not result.problems
    again, same = migrate(after)
    assert same == after
    assert not again.problems


def test_behind_imports_of_torch_alone_they_stand_in_front_of_the_first_statement() -> None:
    source = SENT.replace("    from transformers import set_seed\n", "")
    source = source.replace("set_seed(0)", "x = 0")
    _, after = migrate({"sent.py": source})
    text = after["sent.py"]
    assert text.index("    def clip_grad_norm_") < text.index("    x = 0\n")
    ast.parse(text)


def test_two_functions_of_such_a_file_have_them_from_a_support_file() -> None:
    source = SENT + SENT.partition("@app.function()")[2].replace("def work", "def more")
    _, after = migrate({"sent.py": source})
    assert "from fsdp2_support import clip_grad_norm_" in after["sent.py"]
    assert "    def clip_grad_norm_" not in after["sent.py"]


def test_a_name_that_the_function_has_already_is_not_taken() -> None:
    source = SENT.replace("    set_seed(0)", "    nn = set_seed(0)")
    _, after = migrate({"sent.py": source})
    assert "    def clip_grad_norm_" not in after["sent.py"]


def test_a_file_that_would_be_the_only_one_to_import_a_file_defines_what_it_needs() -> None:
    """Others need the same, and have it from a file that it does not lie beside."""
    package = {"pkg/__init__.py": "", "pkg/one.py": HEAD + CLIPPED, "pkg/two.py": HEAD + CLIPPED}
    _, after = migrate({**package, "tests/sent.py": SENT, "tests/late.py": "X = 1\n"})
    assert {path for path in after if path.endswith(FILE)} == {f"pkg/{FILE}"}
    assert "    def clip_grad_norm_" in after["tests/sent.py"]
    assert "def clip_grad_norm_" not in after["pkg/one.py"]


def test_so_does_one_that_imports_torch_above() -> None:
    package = {"pkg/__init__.py": "", "pkg/one.py": HEAD + CLIPPED, "pkg/two.py": HEAD + CLIPPED}
    _, after = migrate({**package, "scripts/train.py": HEAD + CLIPPED})
    assert {path for path in after if path.endswith(FILE)} == {f"pkg/{FILE}"}
    assert defined(after["scripts/train.py"]) == ["clip_grad_norm_", "clipped"]
