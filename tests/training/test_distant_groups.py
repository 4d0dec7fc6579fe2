"""An optimizer of groups that are filled before another function wraps the model."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

from fsdp_migrate.migration.engine import Options
from fsdp_migrate.syntax import guards
from tests.helpers.migrating import migrate
from tests.training.programs import Launcher

pytestmark = pytest.mark.train

PROGRAM = """\
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP


def build(model):
    named = list(model.named_parameters())
    groups = []
    for prefix in ("0", "1"):
        group = []
        for name, p in named:
            if name.startswith(prefix):
                group.append(p)
        groups.append({"params": group, "lr": 0.1})
    return torch.optim.SGD(groups)


def setup():
    model = nn.Sequential(nn.Linear(6, 5), nn.Linear(5, 3))
    return model, build(model)


def wrap(model):
    return FSDP(model, use_orig_params=True, device_id=torch.device("cpu"))


def main():
    dist.init_process_group("gloo")
    torch.manual_seed(0)
    model, optimizer = setup()
    model = wrap(model)
    batch = torch.ones(4, 6)
    for _ in range(3):
        loss = model(batch).square().mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        print("loss", loss.item(), flush=True)
    dist.destroy_process_group()


main()
"""


# The same in one function, by a table of lists that a loop over the parameters fills.
IN_A_TABLE = PROGRAM.replace(
    "    model, optimizer = setup()\n    model = wrap(model)\n",
    """\
    model = nn.Sequential(nn.Linear(6, 5), nn.Linear(5, 3))
    table = {"0": [], "1": []}
    for name, p in model.named_parameters():
        table[name.split(".")[0]].append(p)
    optimizer = torch.optim.SGD([{"params": ps, "lr": 0.1} for ps in table.values()])
    model = FSDP(model, use_orig_params=True, device_id=torch.device("cpu"))
""",
)


def losses(output: str) -> list[float]:
    return [float(n.split()[1]) for n in output.splitlines() if n.startswith("loss ")]


@pytest.mark.parametrize("program", [PROGRAM, IN_A_TABLE], ids=["in functions", "in a table"])
def test_it_raises_where_it_would_train_nothing(
    launcher: Launcher, tmp_path: Path, program: str
) -> None:
    result, after = migrate({"train.py": program}, Options(partial=True))
    (left,) = [d for d in result.decisions if d.guarded]
    assert left.code == "FSDP403"
    before, stopped, unguarded = (tmp_path / n for n in ("before.py", "after.py", "naive.py"))
    before.write_text(program)
    stopped.write_text(after["train.py"])
    lines = after["train.py"].splitlines(keepends=True)
    tree = ast.parse(after["train.py"])
    (guard,) = [n for n in ast.walk(tree) if isinstance(n, ast.Raise) and guards.read(n)]
    del lines[guard.lineno - 1 : guard.end_lineno]
    unguarded.write_text("".join(lines))
    trained = losses(launcher.script(before, fsdp1="allow").output[0])
    assert trained[0] > trained[1] > trained[2]
    first, *others = losses(launcher.script(unguarded, fsdp1="forbid").output[0])
    assert first == trained[0]
    assert others == [first, first]
    assert not losses(launcher.script(stopped, fails=True).output[0])
