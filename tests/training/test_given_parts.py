"""Models whose constructors are given their parts: ``Net(block)`` has what ``block`` has."""

from __future__ import annotations

from pathlib import Path

import pytest
from packaging.version import Version

from fsdp_migrate.migration.engine import Options
from fsdp_migrate.planning.outcome import Outcome
from tests.helpers.migrating import migrate
from tests.training.programs import Launcher, compare, written

PROGRAM = """\
import copy

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP, MixedPrecision
from torch.distributed.fsdp.wrap import ModuleWrapPolicy


class Block(nn.Module):
    def __init__(self, dim=16):
        super().__init__()
        self.linear = nn.Linear(dim, dim)
        self.norm = nn.BatchNorm1d(dim)

    def forward(self, x):
        return x + self.norm(self.linear(x)).tanh()


class Scorer:
    def __init__(self, measure=None):
        self.norm = nn.BatchNorm1d(4)
        self.measure = measure

    def score(self, x):
        return self.measure(x)


class Net(nn.Module):
    def __init__(self, block, dim=16, scorer=None):
        super().__init__()
        self.block = block
        self.scorer = scorer
        self.last = nn.Linear(dim, dim)

    def forward(self, x):
        return self.last(self.block(x))


def make(block, dim):
    return Net(block, dim)


class Task(nn.Module):
    def __init__(self, part):
        super().__init__()
        self.net = Net(part)

    def forward(self, x):
        return self.net(x)


def main():
    dist.init_process_group("gloo")
    torch.manual_seed(0)
    BUILD
    model = FSDP(
        net,
        auto_wrap_policy=ModuleWrapPolicy({Block}),
        mixed_precision=MixedPrecision(param_dtype=torch.bfloat16, reduce_dtype=torch.float32),
        device_id=torch.device("cpu"),
        use_orig_params=True,
    )
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    torch.manual_seed(1 + dist.get_rank())
    for step in range(4):
        inputs, wanted = torch.randn(2, 32, 16)
        loss = (model(inputs).float() - wanted).pow(2).mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        print("loss", loss.item())
    dist.destroy_process_group()


main()
"""
GIVEN = {
    "a variable": "block = Block()\n    net = Net(block)",
    "by name": "net = Net(dim=16, block=Block())",
    "through a function": "net = make(Block(), 16)",
    "to a part": "net = Task(Block())",
    "a copy": "first = Block()\n    net = Net(copy.deepcopy(first))",
    "in torch's container": "block = Block()\n    net = Net(nn.Sequential(block, nn.Tanh()))",
    "in a list": "blocks = [Block() for _ in range(2)]\n    net = Net(nn.Sequential(*blocks))",
}
WITHOUT = {
    "another part": "net = Net(nn.Linear(16, 16))",
    "no module": "net = Net(nn.Linear(16, 16), scorer=Scorer())",
    "what calls something": "net = Net(nn.Linear(16, 16), scorer=Scorer(globals()['f']))",
    "a number": "width = 16\n    net = Net(nn.Linear(16, 16), width)",
}
NORMS = "isinstance(module, _BatchNorm)"


def program(build: str) -> dict[str, str]:
    return {"train.py": PROGRAM.replace("BUILD", build)}


@pytest.mark.parametrize("build", GIVEN.values(), ids=list(GIVEN))
def test_a_part_that_is_given_is_a_part(build: str) -> None:
    _, after = migrate(program(build))
    assert NORMS in after["train.py"]


@pytest.mark.parametrize("build", WITHOUT.values(), ids=list(WITHOUT))
def test_what_is_given_and_no_part_does_not_count(build: str) -> None:
    _, after = migrate(program(build))
    assert NORMS not in after["train.py"]


def test_a_part_that_nothing_is_known_about_may_have_norms() -> None:
    source = PROGRAM.replace("def main():", "def main(part):").replace("\nmain()\n", "")
    _, after = migrate({"train.py": source.replace("BUILD", "net = Net(part)")})
    assert NORMS in after["train.py"]
    _, after = migrate({"train.py": source.replace("BUILD", "net = Net(nn.Tanh(), 16, part)")})
    assert NORMS not in after["train.py"]  # it is kept, and never called


@pytest.mark.train
@pytest.mark.parametrize("build", [GIVEN["a variable"], GIVEN["in a list"]])
def test_it_trains_as_before(launcher: Launcher, tmp_path: Path, build: str) -> None:
    pair = written({n: t.encode() for n, t in program(build).items()}, tmp_path)
    before, after = launcher.script(pair.before), launcher.script(pair.after)
    assert compare(before, after) == 2 * 4


TWICE = """\
import torch
from torch import nn
from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import (
    apply_activation_checkpointing,
)
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP
from torch.distributed.fsdp.wrap import ModuleWrapPolicy


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(4, 4)

    def forward(self, x):
        return self.linear(x)


class Inner(nn.Module):
    def __init__(self):
        super().__init__()
        self.block = Block()

    def forward(self, x):
        return self.block(x) + RUN


class Step(nn.Module):
    def __init__(self, inner):
        super().__init__()
        self.inner = inner

    def forward(self, x):
        return self.inner(x).sum()


def main(batch, late):
    inner = Inner()
    model = FSDP(Step(inner), auto_wrap_policy=ModuleWrapPolicy({Block}))
    if late:
        apply_activation_checkpointing(model, check_fn=lambda m: isinstance(m, Block))
    model(batch).backward()
"""


@pytest.mark.parametrize(
    ("run", "outcome"),
    [("self.block(2 * x)", Outcome.REVIEW), ("2 * x", Outcome.REWRITTEN)],
)
def test_a_part_that_is_given_may_run_twice(run: str, outcome: Outcome) -> None:
    options = Options(target=Version("2.7"))
    result, _ = migrate({"train.py": TWICE.replace("RUN", run)}, options)
    (found,) = [d for d in result.decisions if d.code == "FSDP117"]
    assert found.outcome is outcome
