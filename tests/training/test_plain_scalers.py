"""torch's own GradScaler beside FSDP1's models: what is said of it."""

from __future__ import annotations

from pathlib import Path

import pytest

from fsdp_migrate.planning.outcome import Outcome
from tests.helpers.migrating import migrate
from tests.training.programs import Launcher, written

PROGRAM = """\
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP
{imports}


def main():
    dist.init_process_group("gloo")
    torch.manual_seed(0)
    model = FSDP(nn.Linear(4, 4, bias=False), device_id=torch.device("cpu"), use_orig_params=True)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    scaler = {scaler}
    out = model(torch.ones(2, 4)) * torch.tensor([1.0, 1.0, 1.0, 1e38])
    scaler.scale(out.sum()).backward()
    scaler.step(optimizer)
    scaler.update()
    print("scale", scaler.get_scale())
    dist.destroy_process_group()


main()
"""
PLAIN = {
    "of torch.amp": ("", 'torch.amp.GradScaler("cpu")'),
    "of torch.cuda": ("from torch.cuda.amp import GradScaler", "GradScaler()"),
    "by another name": (
        "from torch.amp import GradScaler as Scaler",
        'Scaler("cpu", enabled=True)',
    ),
}
OTHERS = {
    "off": ("", "torch.amp.GradScaler(enabled=False)"),
    "somebody's": ("from scaling import GradScaler", "GradScaler()"),
    "none": ("", "None"),
}


def found(imports: str, scaler: str) -> tuple[list[Outcome], str]:
    before = PROGRAM.format(imports=imports, scaler=scaler)
    result, after = migrate({"train.py": before})
    assert not result.problems
    assert not migrate(after)[0].changes
    assert scaler in after["train.py"]
    assert "TODO" not in after["train.py"]
    return [d.outcome for d in result.decisions if d.code == "FSDP405"], after["train.py"]


@pytest.mark.parametrize(("imports", "scaler"), PLAIN.values(), ids=PLAIN)
def test_it_is_told_once_and_not_marked(imports: str, scaler: str) -> None:
    assert found(imports, scaler)[0] == [Outcome.REWRITTEN]


@pytest.mark.parametrize(("imports", "scaler"), OTHERS.values(), ids=OTHERS)
def test_others_are_none(imports: str, scaler: str) -> None:
    assert found(imports, scaler)[0] == []


def test_without_models_there_is_nothing_to_say() -> None:
    result, _ = migrate({"train.py": "import torch\n\nscaler = torch.amp.GradScaler()\n"})
    assert not result.decisions


def test_a_script_that_shards_nothing_is_not_concerned() -> None:
    script = "import torch\n\nif __name__ == '__main__':\n    scaler = torch.amp.GradScaler()\n"
    sharding = PROGRAM.format(imports="", scaler="None")
    result, _ = migrate({"train.py": sharding, "other.py": script})
    assert all(d.code != "FSDP405" for d in result.decisions)


def test_beside_fsdp1s_own_nothing_is_said() -> None:
    imports = "from torch.distributed.fsdp.sharded_grad_scaler import ShardedGradScaler"
    text = PROGRAM.format(imports=imports, scaler="ShardedGradScaler()")
    result, _ = migrate({"train.py": f"{text}\nother = torch.amp.GradScaler()\n"})
    assert len([d for d in result.decisions if d.code == "FSDP405"]) == 1


@pytest.mark.train
def test_ranks_disagreed_and_agree(launcher: Launcher, tmp_path: Path) -> None:
    text = PROGRAM.format(imports="", scaler='torch.amp.GradScaler("cpu")')
    pair = written({"train.py": text.encode()}, tmp_path)
    before, after = launcher.script(pair.before), launcher.script(pair.after)
    assert {"scale 65536.0", "scale 32768.0"} <= set("\n".join(before.output).splitlines())
    assert all("scale 32768.0" in each for each in after.output)
