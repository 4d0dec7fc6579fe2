"""The dtype that BatchNorm hands on under mixed precision: in FSDP1 the dtype of its input."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.helpers.migrating import migrate
from tests.training.programs import Launcher, compare, written

PROGRAM = """\
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP, MixedPrecision
from torch.distributed.fsdp.wrap import ModuleWrapPolicy


class Block(nn.Module):
    def __init__(self, dim):
        super().__init__()
        self.linear = nn.Linear(dim, dim)
        self.norm = nn.BatchNorm1d(dim)

    def forward(self, x):
        return x + self.norm(self.linear(x)).tanh()


class Net(nn.Module):
    def __init__(self, dim=16):
        super().__init__()
        self.blocks = nn.ModuleList([Block(dim), Block(dim)])
        self.last = nn.BatchNorm1d(dim)

    def forward(self, x):
        for block in self.blocks:
            x = block(x)
        RETURN


def main():
    dist.init_process_group("gloo")
    torch.manual_seed(0)
    model = FSDP(
        Net(),
        auto_wrap_policy=ModuleWrapPolicy({Block}),
        mixed_precision=MixedPrecision(param_dtype=torch.bfloat16, reduce_dtype=torch.float32),
        device_id=torch.device("cpu"),
        use_orig_params=True,
    )
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    torch.manual_seed(1 + dist.get_rank())
    for step in range(6):
        inputs, wanted = torch.randn(2, 32, 16)
        output = model(inputs)
        loss = (output.float() - wanted).pow(2).mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        print(output.dtype)
        print("loss", loss.item())
    dist.destroy_process_group()


main()
"""
MARKER = "TODO(fsdp-migrate FSDP202): FSDP1 handed on fp32 where BatchNorm is given it"
FULL = {
    "float": "return self.last(x.float())",
    "to": "return self.last(x.to(torch.float32)) * 1.0",
    "variable": "x = x.to(dtype=torch.float)\n        return self.last(x)",
}
OTHERS = {
    "plain": "return self.last(x)",
    "cast back": "return self.last(x.float()).to(x.dtype)",
    "cast back by type": "return self.last(x.float()).type_as(x)",
    "low": "return self.last(x.to(torch.bfloat16))",
    "another variable": "y = x.float()\n        return self.last(x) + 0 * y.to(x.dtype)",
}


def program(returned: str) -> dict[str, str]:
    return {"train.py": PROGRAM.replace("RETURN", returned)}


@pytest.mark.train
@pytest.mark.parametrize("returned", OTHERS.values(), ids=list(OTHERS))
def test_the_dtype_of_the_units_is_handed_on(
    launcher: Launcher, tmp_path: Path, returned: str
) -> None:
    pair = written({n: t.encode() for n, t in program(returned).items()}, tmp_path)
    assert MARKER not in pair.after.read_text()
    before, after = launcher.script(pair.before), launcher.script(pair.after)
    assert "torch.bfloat16" in before.output[0]
    assert compare(before, after) == 2 * 6


@pytest.mark.train
@pytest.mark.parametrize("returned", FULL.values(), ids=list(FULL))
def test_fp32_is_marked_and_mended_as_the_marker_says(
    launcher: Launcher, tmp_path: Path, returned: str
) -> None:
    pair = written({n: t.encode() for n, t in program(returned).items()}, tmp_path)
    new = pair.after.read_text()
    assert " ".join(new.split()).replace("# ", "").count(MARKER) == 1
    before, after = launcher.script(pair.before), launcher.script(pair.after)
    assert "torch.float32" in before.output[0]
    assert before.numbers("loss") != pytest.approx(after.numbers("loss"), rel=1e-6)
    loop = "        if isinstance(module, _BatchNorm):\n"
    mended = (
        "        if module is model.last:\n"
        "            fully_shard(\n"
        "                module,\n"
        "                mesh=init_device_mesh('cpu', (2,)),\n"
        "                mp_policy=MixedPrecisionPolicy(param_dtype=torch.float32),\n"
        "            )\n"
        "        elif isinstance(module, _BatchNorm):\n"
    )
    assert new.count(loop) == 1
    pair.after.write_text(new.replace(loop, mended))
    assert compare(before, launcher.script(pair.after)) == 2 * 6


ELSEWHERE = """\
from torch import nn


class Scorer(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm = nn.BatchNorm1d(4)

    def forward(self, x):
        return self.norm(x.float())
"""


@pytest.mark.parametrize(
    ("old", "new", "number"),
    [
        ("Net", "Net", 1),
        ("param_dtype=torch.bfloat16, ", "", 0),  # nothing is cast
        ("        auto_wrap_policy=ModuleWrapPolicy({Block}),\n", "", 0),  # nor set apart
        ("self.last = nn.BatchNorm1d", "self.last = nn.LayerNorm", 0),
        ("        Net(),\n", "        globals()['Net'](),\n", 1),  # the project is looked at
    ],
)
def test_it_is_marked_where_it_shows(old: str, new: str, number: int) -> None:
    source = program(FULL["float"])["train.py"].replace(old, new)
    _, after = migrate({"train.py": source})
    assert " ".join(after["train.py"].split()).replace("# ", "").count(MARKER) == number


def test_a_class_that_is_no_part_of_the_model_does_not_count() -> None:
    files = {**program(OTHERS["plain"]), "scorer.py": ELSEWHERE}
    _, after = migrate(files)
    assert MARKER not in " ".join(after["train.py"].split()).replace("# ", "")
