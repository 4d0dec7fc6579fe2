"""Lists that hold parameters of a sharded model, and some that it ignores."""

from __future__ import annotations

from pathlib import Path

import pytest

from fsdp_migrate.planning.outcome import Outcome
from tests.helpers.migrating import migrate, outcomes
from tests.training.programs import Launcher, compare, written

PROGRAM = """\
import itertools

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = nn.Linear(4, 6)
        self.head = nn.Linear(6, 2)

    def forward(self, x):
        return self.head(self.body(x).tanh())


def clip(optimizer):
    CLIP


def main():
    dist.init_process_group("gloo")
    torch.manual_seed(0)
    net = Net()
    model = FSDP(
        net, device_id=torch.device("cpu"), use_orig_params=True, ignored_modules=[net.head]
    )
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    inputs = torch.arange(8.0).view(2, 4) / 3 + dist.get_rank()
    for step in range(4):
        loss = model(inputs).pow(2).mean()
        loss.backward()
        for p in net.head.parameters():
            dist.all_reduce(p.grad)
            p.grad /= dist.get_world_size()
        clip(optimizer)
        optimizer.step()
        optimizer.zero_grad()
        print("loss", loss.item())
    dist.destroy_process_group()


main()
"""
EACH = """params = []
    for group in optimizer.param_groups:
        params.extend(group["params"])
    """
LISTS = {
    "extended": EACH,
    "added": EACH.replace('.extend(group["params"])', ' += group["params"]'),
    "chained": """params = itertools.chain(*[g["params"] for g in optimizer.param_groups])
    """,
    "chained from": """params = itertools.chain.from_iterable(
        group["params"] for group in optimizer.param_groups
    )
    """,
    "summed": """params = sum((g["params"] for g in optimizer.param_groups), [])
    """,
}
NORM = "torch.nn.utils.clip_grad_norm_(params, 0.1)"


def program(clip: str) -> dict[str, str]:
    return {"train.py": PROGRAM.replace("CLIP", clip)}


@pytest.mark.parametrize("kind", LISTS)
def test_a_list_of_both_kinds_is_named(kind: str) -> None:
    result, after = migrate(program(LISTS[kind] + NORM))
    assert ("FSDP401", Outcome.LEFT) in outcomes(result)
    assert "one call cannot clip both kinds" in " ".join(after["train.py"].replace("#", "").split())


@pytest.mark.parametrize(
    "call",
    [
        "torch.nn.utils.get_total_norm([p.grad for p in params])",
        "torch._foreach_mul_([p.grad for p in params], 0.5)",
        "torch.nn.utils.clip_grad_value_(params, 0.1, foreach=True)",
    ],
)
def test_what_takes_the_whole_list_at_once_is_named(call: str) -> None:
    result, after = migrate(program(EACH + call))
    assert ("FSDP401", Outcome.LEFT) in outcomes(result)
    assert "takes no two kinds" in " ".join(after["train.py"].replace("#", "").split())


@pytest.mark.parametrize(
    "clip", [EACH + NORM, EACH + "torch.nn.utils.clip_grad_value_(params, 0.1)"]
)
def test_a_model_that_ignores_nothing_has_one_kind(clip: str) -> None:
    text = PROGRAM.replace(", ignored_modules=[net.head]", "").replace("CLIP", clip)
    result, after = migrate({"train.py": text})
    assert ("FSDP401", Outcome.LEFT) not in outcomes(result)
    assert "foreach" not in after["train.py"]


def test_lists_of_another_model_are_not_asked_about() -> None:
    other = "params = []\n    params += list(nn.Linear(2, 2).parameters())\n    "
    result, _ = migrate(program(other + "torch.nn.utils.clip_grad_value_(params, 0.1)"))
    assert "FSDP401" not in [code for code, _ in outcomes(result)]


@pytest.mark.train
def test_values_of_both_kinds_are_clipped_one_by_one(launcher: Launcher, tmp_path: Path) -> None:
    files = program(EACH + "torch.nn.utils.clip_grad_value_(params, 0.01)")
    both = written({name: text.encode() for name, text in files.items()}, tmp_path)
    assert "clip_grad_value_(params, 0.01, foreach=False)" in both.text("train.py")
    before = launcher.script(both.before, fsdp1="allow")
    after = launcher.script(both.after, fsdp1="forbid")
    assert compare(before, after, tolerance=1e-5) == 8
