"""Lists of modules without a forward: FSDP1 wrapped them, and its units were called one by one."""

from __future__ import annotations

from pathlib import Path

import pytest

from fsdp_migrate.planning.outcome import Outcome
from tests.helpers.migrating import migrate, outcomes
from tests.training.programs import Launcher, compare, written

PROGRAM = """\
import sys

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP, MixedPrecision
from torch.distributed.fsdp import ShardingStrategy
from torch.distributed.fsdp.wrap import ModuleWrapPolicy


class Adapter(nn.Module):
    def __init__(self):
        super().__init__()
        self.down, self.up = nn.Linear(8, 4), nn.Linear(4, 8)

    def forward(self, x):
        return x + self.up(self.down(x))


class Core:
    defaults = {
        "sharding_strategy": ShardingStrategy.SHARD_GRAD_OP,
        "mixed_precision": MixedPrecision(param_dtype=torch.bfloat16) if HALF else None,
    }


def build(adapters):
    held = nn.ModuleDict()
    held["adapters"] = adapters
    WRAP


dist.init_process_group("gloo")
if len(sys.argv) > 1:
    Core.defaults["sharding_strategy"] = getattr(ShardingStrategy, sys.argv[1])
torch.manual_seed(0)
adapters = nn.ModuleList(Adapter() for _ in range(2))
held = build(adapters)
optimizer = torch.optim.Adam(held.parameters(), lr=1e-2)
torch.manual_seed(dist.get_rank())
for step in range(4):
    x = torch.randn(4, 8)
    for each in adapters:
        x = each(x.float())
    loss = x.float().pow(2).mean()
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    print("loss", loss.item(), "dtype", x.dtype)
"""  # FSDP1's model is not asked for its state here: once its units have run, it raises.
GIVEN = 'auto_wrap_policy=ModuleWrapPolicy({Adapter}), device_id=torch.device("cpu")'
WRAPS = {
    "written": f"held = FSDP(held, {GIVEN}, mixed_precision=PRECISION)\n    return held",
    "returned": f"return FSDP(held, {GIVEN}, mixed_precision=PRECISION)",
    "made in the call": f'return FSDP(nn.ModuleDict({{"a": adapters}}), {GIVEN})',
    "in a dictionary": f"return FSDP(held, **Core.defaults, {GIVEN})",
    "at run time": f"return (lambda: FSDP(held, {GIVEN}, mixed_precision=PRECISION))()",
}
PRECISION = "MixedPrecision(param_dtype=torch.bfloat16) if HALF else None"


def program(wrap: str, *, half: bool) -> str:
    precision = "MixedPrecision(param_dtype=torch.bfloat16)" if half else "None"
    text = PROGRAM.replace("WRAP", wrap).replace(PRECISION, precision)
    return text.replace("PRECISION", precision).replace("HALF", str(half))


CASES = [
    *((name, half, "") for name in WRAPS for half in (False, True)),
    ("in a dictionary", False, "NO_SHARD"),
]


@pytest.mark.train
@pytest.mark.parametrize(("wrap", "half", "strategy"), CASES)
def test_units_of_a_list_train_the_same(
    launcher: Launcher, tmp_path: Path, wrap: str, half: bool, strategy: str
) -> None:
    pair = written({"train.py": program(WRAPS[wrap], half=half).encode()}, tmp_path)
    arguments = [strategy] if strategy else []
    before, after = (launcher.script(each, *arguments) for each in (pair.before, pair.after))
    kinds = [line.split("dtype")[1] for line in before.output[0].splitlines() if "dtype" in line]
    assert kinds == [
        line.split("dtype")[1] for line in after.output[0].splitlines() if "dtype" in line
    ]
    assert compare(before, after, tolerance=1e-3 if half else 1e-6) >= 2 * 4


@pytest.mark.parametrize("wrap", WRAPS.values(), ids=list(WRAPS))
def test_that_the_list_is_no_model_of_fsdp2_is_said(wrap: str) -> None:
    result, after = migrate({"train.py": program(wrap, half=True)})
    assert ("FSDP101", Outcome.REVIEW) in outcomes(result)
    assert "fully_shard(held" not in after["train.py"]


@pytest.mark.parametrize("wrap", WRAPS.values(), ids=list(WRAPS))
def test_a_list_without_units_is_left_in_any_form(wrap: str) -> None:
    bare = wrap.replace("auto_wrap_policy=ModuleWrapPolicy({Adapter}), ", "")
    result, after = migrate({"train.py": program(bare, half=False)})
    assert ("FSDP101", Outcome.LEFT) in outcomes(result)
    assert "shard(" not in after["train.py"]
