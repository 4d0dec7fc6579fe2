"""What compiles a model, and what only speaks of compiling, or compiles something else."""

from __future__ import annotations

import pytest

from tests.helpers.migrating import migrate, unmarked

OWN = """\
class Other:
    def state_dict(self):
        return {}


def other(net):
    return Other()
"""
SOURCE = """\
import torch
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP

from other import other


def build(net):
    return FSDP(net)


def train(net, sharded):
    model = build(net) if sharded else other(net)
    return model.state_dict()
"""
NOTHING = {
    "a comment": "# compile the kernels first\n",
    "a function": "\n@torch.compile\ndef add(x, y):\n    return x + y\n",
    "a function, with settings": "\n@torch.compile(dynamic=True)\ndef add(x):\n    return x\n",
    "a method": "\nclass Net:\n    @torch.compile()\n    def forward(self, x):\n        return x\n",
    "a function that is called": "\ndef add(x):\n    return x\n\n\nfast = torch.compile(add)\n",
    "a question": '\nHAS = hasattr(torch, "compile")\n',
    "a pattern": '\nimport re\n\nPATTERN = re.compile("a")\n',
    "another model": "\nhelper = torch.compile(torch.nn.Linear(2, 2))\n",
    "in place": "\ndef prepare(net):\n    model = FSDP(net)\n    model.compile()\n",
    "a proxy": "\nfrom weakref import proxy\n\nP = proxy\n",
}


@pytest.mark.parametrize("kind", NOTHING)
def test_what_compiles_no_model_leaves_its_class_to_tell(kind: str) -> None:
    result, after = migrate({"example.py": SOURCE + NOTHING[kind], "other.py": OWN})
    assert "isinstance(model, FSDPModule)" in after["example.py"]
    assert not any(d.code == "FSDP105" for d in result.decisions)
    assert not migrate(after)[0].changes


MODEL = {
    "at once": SOURCE.replace("return FSDP(net)", "return torch.compile(FSDP(net))"),
    "later": SOURCE.replace("    return model.", "    model = torch.compile(model)\n    return m."),
    "by a name": SOURCE.replace("FSDP(net)", "fast(FSDP(net))").replace(
        "import torch\n", "import torch\nfrom torch import compile as fast\n"
    ),
    "by another name": SOURCE + "\nwith_settings = torch.compile(dynamic=True)\n",
    "handed on": SOURCE + "\n\ndef every(models):\n    return map(torch.compile, models)\n",
    "got by name": SOURCE + '\n\ndef fast(m):\n    return getattr(torch, "compile")(m)\n',
    "whatever is given": SOURCE + "\n\ndef fast(m):\n    return torch.compile(m)\n",
    "the older function": SOURCE
    + "\n\ndef fast(m):\n    return torch._dynamo.optimize('inductor')(m)\n",
}


@pytest.mark.parametrize("kind", MODEL)
def test_a_model_that_may_be_compiled_has_no_class_that_tells(kind: str) -> None:
    source = MODEL[kind].replace("return m.", "return model.")
    result, after = migrate({"example.py": source, "other.py": OWN})
    assert "FSDP105" in {d.code for d in result.decisions}
    assert unmarked(after["example.py"]) == source


FACTORY = """\
from layers import Transformer


def gpt(size):
    return Transformer(size)
"""
SHARDED = """\
import torch
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP

from gpt import gpt


def main():
    model = FSDP(gpt(4))
    torch.save(model.state_dict(), "model.pt")


if __name__ == "__main__":
    main()
"""
COMPILED = """\
import torch

from gpt import gpt
{imports}

def main():
    model = torch.compile(gpt(4))
    model(torch.ones(4))


if __name__ == "__main__":
    main()
"""


@pytest.mark.parametrize(
    ("imports", "number"),
    [("", 0), ("import train_fsdp\n", 1)],  # a script of its own makes its own model
)
def test_what_another_script_compiles_has_no_names_here(imports: str, number: int) -> None:
    script = COMPILED.format(imports=imports)
    _, after = migrate({"gpt.py": FACTORY, "train_fsdp.py": SHARDED, "train.py": script})
    assert after["train_fsdp.py"].count("the names that torch.compile") == number
    assert "get_model_state_dict(" in after["train_fsdp.py"]
