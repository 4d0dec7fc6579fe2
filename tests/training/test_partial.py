"""A program that was migrated in part trains as before, up to the site that was left."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

from fsdp_migrate.migration.engine import Options
from fsdp_migrate.syntax import guards
from tests.helpers.migrating import migrate
from tests.training.programs import FIXTURES, Launcher, compare, compare_models

pytestmark = pytest.mark.train
SOURCE = (FIXTURES / "rewriting" / "stopped" / "train.py").read_text()


def lay(directory: Path, text: str) -> Path:
    directory.mkdir()
    script = directory / "train.py"
    script.write_text(text)
    return script


@pytest.fixture(scope="module")
def partly() -> str:
    result, after = migrate({"train.py": SOURCE}, Options(partial=True))
    assert not result.problems
    assert sum(d.guarded for d in result.decisions) == 1
    return after["train.py"]


def unguarded(text: str) -> str:
    """``text`` without its guard."""
    tree = ast.parse(text)
    (guard,) = [n for n in ast.walk(tree) if isinstance(n, ast.Raise) and guards.read(n)]
    assert guard.end_lineno is not None
    lines = text.splitlines(keepends=True)
    del lines[guard.lineno - 1 : guard.end_lineno]
    return "".join(lines)


def test_it_raises_at_the_site(partly: str, launcher: Launcher, tmp_path: Path) -> None:
    before = launcher.script(lay(tmp_path / "b", SOURCE), "--save-at", "2", fsdp1="allow")
    after = launcher.script(lay(tmp_path / "a", partly), "--save-at", "2", fails=True)
    assert all(after.codes)
    assert not after.timed_out
    for errors in after.errors:
        assert "NotImplementedError: fsdp-migrate FSDP499: FSDP.state_dict is FSDP1's" in errors
    assert "saved 2 0.weight (8, 5) Tensor" in before.output[0]
    assert not any("saved" in text for text in after.output)
    for word in ("step 0", "step 1", "step 2"):
        assert after.numbers(word) == pytest.approx(before.numbers(word), rel=1e-6)
        assert len(after.numbers(word)) == 1
    assert not after.numbers("step 3")


def test_where_the_site_is_not_reached_it_trains_the_same(
    partly: str, launcher: Launcher, tmp_path: Path
) -> None:
    before = launcher.script(lay(tmp_path / "b", SOURCE), fsdp1="allow")
    after = launcher.script(lay(tmp_path / "a", partly))
    assert compare(before, after) >= 16
    assert compare_models(before, after, tolerance=1e-5) >= 8


def test_without_the_guard_it_would_save_something_else(
    partly: str, launcher: Launcher, tmp_path: Path
) -> None:
    script = lay(tmp_path / "a", unguarded(partly))
    after = launcher.script(script, "--save-at", "2")
    assert "saved 2 0.weight" in after.output[0]
    assert "DTensor" in after.output[0], "the reason that the model was held back"


SWALLOWED = SOURCE.replace(
    "            save(model, step)\n",
    "            try:\n                save(model, step)\n"
    "            except BaseException as error:\n                print(error, flush=True)\n",
)


def test_what_catches_every_error_does_not_go_on(launcher: Launcher, tmp_path: Path) -> None:
    """The guard leaves the process, and says why."""
    result, after = migrate({"train.py": SWALLOWED}, Options(partial=True))
    assert not result.problems
    script = lay(tmp_path / "a", after["train.py"])
    stopped = launcher.script(script, "--save-at", "2", fails=True)
    assert all(stopped.codes)
    assert not stopped.timed_out
    assert all("fsdp-migrate FSDP499: FSDP.state_dict is" in said for said in stopped.errors)
    assert not any("saved" in text for text in stopped.output)
    assert len(stopped.numbers("step 2")) == 1
    assert not stopped.numbers("step 3")
    before = launcher.script(lay(tmp_path / "b", SWALLOWED), fsdp1="allow")
    assert compare(before, launcher.script(script)) >= 16


EITHER = """
import sys

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP
from torch.nn.parallel import DistributedDataParallel as DDP

dist.init_process_group("gloo")
torch.manual_seed(0)
net = nn.Linear(5, 4)
if "--ddp" in sys.argv:
    model = DDP(net)
else:
    model = FSDP(net, device_id=torch.device("cpu"), use_orig_params=True)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for step in range(3):
    loss = model(torch.ones(2, 5)).square().mean()
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    print(f"step {step} loss {loss.item():.8f}", flush=True)
state = model.state_dict(keep_vars=True)
print(f"kept {len(state)}", flush=True)
dist.destroy_process_group()
"""


def test_the_way_that_is_not_sharded_goes_on(launcher: Launcher, tmp_path: Path) -> None:
    result, after = migrate({"train.py": EITHER}, Options(partial=True))
    assert sum(d.guarded for d in result.decisions) == 1
    script = lay(tmp_path / "a", after["train.py"])
    other = launcher.script(script, "--ddp")
    assert "kept 2" in other.output[0]
    stopped = launcher.script(script, fails=True)
    assert not any("kept" in text for text in stopped.output)
    assert len(stopped.numbers("step 2")) == 1
    assert all("fsdp-migrate FSDP302" in errors for errors in stopped.errors)


EARLY = """
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP

dist.init_process_group("gloo")
torch.manual_seed(0)
net = nn.Sequential(nn.Linear(5, 4), nn.ModuleList([nn.Linear(4, 4)])[0])
optimizer = torch.optim.SGD(net[0].parameters(), lr=0.1)
optimizer.add_param_group({"params": net[1].parameters(), "lr": 0.2})
model = FSDP(net, device_id=torch.device("cpu"), use_orig_params=True)
for step in range(3):
    loss = model(torch.ones(2, 5)).square().mean()
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    print(f"step {step} loss {loss.item():.8f}", flush=True)
dist.destroy_process_group()
"""


def test_an_optimizer_of_what_is_sharded_later_trains_nothing_without_a_word(
    launcher: Launcher, tmp_path: Path
) -> None:
    result, after = migrate({"train.py": EARLY}, Options(partial=True))
    assert sum(d.guarded for d in result.decisions) == 1
    before = launcher.script(lay(tmp_path / "b", EARLY), fsdp1="allow")
    losses = before.numbers("step")
    assert losses[0] > losses[1] > losses[2]
    stopped = launcher.script(lay(tmp_path / "a", after["train.py"]), fails=True)
    assert all(stopped.codes)
    assert not stopped.numbers("step")
    assert all("fsdp-migrate FSDP403" in errors for errors in stopped.errors)


def test_an_early_optimizer_of_what_is_not_sharded_goes_on(
    launcher: Launcher, tmp_path: Path
) -> None:
    """The flag under which the model is sharded further below tells in front of it."""
    wrap = 'model = FSDP(net, device_id=torch.device("cpu"), use_orig_params=True)\n'
    text = EARLY.replace("import torch\n", "import sys\n\nimport torch\n", 1).replace(
        wrap,
        f'if "--ddp" in sys.argv:\n    model = nn.parallel.DistributedDataParallel(net)\n'
        f"else:\n    {wrap}",
    )
    result, after = migrate({"train.py": text}, Options(partial=True))
    assert sum(d.guarded for d in result.decisions) == 1
    before = launcher.script(lay(tmp_path / "b", text), "--ddp")
    script = lay(tmp_path / "a", after["train.py"])
    assert launcher.script(script, "--ddp").numbers("step") == before.numbers("step")
    stopped = launcher.script(script, fails=True)
    assert all("fsdp-migrate FSDP403" in errors for errors in stopped.errors)
