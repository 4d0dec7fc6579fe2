"""Parameters of two dtypes in the one unit that a model is: marked, and only where both are."""

from __future__ import annotations

import pytest

from tests.helpers.migrating import migrate

MODEL = """\
import torch
from torch import nn
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP


class Net(nn.Module):
    def __init__(self, half=False):
        super().__init__()
        self.norm = nn.LayerNorm(4)
        self.head = nn.Linear(4, 4)
        {made}

    def to_half(self, precision="bfloat16"):
        {method}

    def forward(self, x):
        return self.head(self.norm(x))


def build(args):
    model = Net()
    {cast}
    return {wrap}
"""
WHOLE = "self.to(torch.bfloat16)"
LOOP = """\
for name, p in {owner}.named_parameters():
{at}    if "norm" in name:
{at}        p.data = p.data.to(torch.float32)"""
METHOD = f"{WHOLE}\n        {LOOP.format(owner='self', at='        ')}"
HERE = f"model.bfloat16()\n    {LOOP.format(owner='model', at='    ')}"
CALLED = "model.to_half()"


def markers(made: str = "", method: str = "pass", cast: str = "", wrap: str = "FSDP(model)") -> int:
    source = MODEL.format(made=made, method=method, cast=cast, wrap=wrap)
    _, after = migrate({"example.py": source})
    text = " ".join(str(after["example.py"]).replace("#", "").split())
    return text.count("casts some parameters to")


@pytest.mark.parametrize(
    "given",
    [
        {"method": METHOD, "cast": CALLED},
        {"method": METHOD, "cast": f"if args.half:\n        {CALLED}"},
        {"method": METHOD, "made": "self.to_half()"},
        {"made": METHOD},
        {"cast": HERE},
        {"cast": HERE.replace("p.data.to(torch.float32)", "p.data.float()")},
        {"cast": HERE.replace("p.data.to(torch.float32)", "p.to(dtype=torch.float)")},
        {
            "cast": "model.half()\n    for m in model.modules():\n"
            "        if isinstance(m, nn.LayerNorm):\n            m.float()"
        },
        {
            "cast": "for p in model.parameters():\n        if p.ndim == 1:\n"
            "            p.data = p.data.float()\n        else:\n"
            "            p.data = p.data.bfloat16()"
        },
        {
            "method": METHOD.replace(
                WHOLE,
                'if precision == "bfloat16":\n            self.to(torch.bfloat16)\n'
                "        else:\n            self.to(torch.float32)\n            return",
            ),
            "cast": CALLED,
        },
    ],
)
def test_some_parameters_of_another_dtype_in_one_unit_are_marked(given: dict[str, str]) -> None:
    assert markers(**given) == 1


POLICY = "FSDP(model, auto_wrap_policy=ModuleWrapPolicy({nn.LayerNorm}))"


@pytest.mark.parametrize(
    "given",
    [
        {"method": METHOD},  # nothing calls it
        {"cast": HERE, "wrap": POLICY},  # what FSDP1 took has units of one dtype
        {"cast": HERE, "wrap": "FSDP(model, ignored_modules=[model.norm])"},
        {"cast": HERE.replace("torch.float32", "torch.bfloat16")},
        {"cast": f"{HERE}\n    model.float()"},
        {"method": METHOD, "cast": f"{CALLED}\n    model.to(torch.bfloat16)"},
        {"cast": HERE.replace("torch.float32", "args.dtype")},
        {"cast": HERE.replace("model.bfloat16()", "model.train()")},
        {"cast": HERE.replace("p.data = p.data.to", "kept[name] = p.data.to")},
        {"cast": HERE.replace("model.", "other.")},
        {"cast": "model = FSDP(model)\n    " + HERE, "wrap": "model"},
        {"cast": "model.norm = FSDP(model.norm)\n    " + HERE},
    ],
)
def test_nothing_is_said_where_units_may_be_of_one_dtype(given: dict[str, str]) -> None:
    assert markers(**given) == 0


def test_a_model_that_is_made_in_half_precision() -> None:
    source = (
        "import torch\n"
        "from torch.distributed.fsdp import FullyShardedDataParallel as FSDP\n"
        "from transformers import AutoModelForCausalLM\n\n"
        'model = AutoModelForCausalLM.from_pretrained("gpt2", torch_dtype=torch.bfloat16)\n'
        "for name, module in model.named_modules():\n"
        '    if "norm" in name:\n'
        "        module.to(torch.float32)\n"
        "model = FSDP(model)\n"
    )
    _, after = migrate({"example.py": source})
    assert "example.py casts some parameters to torch.float32" in str(after["example.py"])
