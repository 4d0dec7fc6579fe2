"""Numbers that a program reads of its parameters, after an evaluation too."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.training.programs import Launcher, compare, written

pytestmark = pytest.mark.train

PROGRAM = """\
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP


def main():
    dist.init_process_group("gloo")
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(4, 6), nn.Tanh(), nn.Linear(6, 2))
    model = FSDP(net, device_id=torch.device("cpu"), use_orig_params=True)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    inputs = torch.arange(8.0).view(2, 4) / 3 + dist.get_rank()
    start = [p.detach().clone() for p in model.parameters()]
    for step in range(3):
        loss = model(inputs).pow(2).mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        print("loss", loss.item())
        model.eval()
        with torch.no_grad():
            model(inputs)
        model.train()
        READ
    dist.destroy_process_group()


main()
"""
ADDED_UP = {
    "tensors": """
total = torch.zeros(())
for p in model.parameters():
    total += p.detach().norm() ** 2
dist.all_reduce(total)
print("norm", total.item())
""",
    "numbers": """
total = torch.tensor(sum(p.detach().norm().item() ** 2 for p in model.parameters()))
dist.all_reduce(total)
print("norm", total.item())
""",
    "in a chain": """
import itertools
total = torch.tensor(
    sum(p.detach().norm().item() ** 2 for p in itertools.chain(model.parameters()))
)
dist.all_reduce(total)
print("norm", total.item())
""",
    "distances": """
total = torch.tensor(
    sum((p.detach() - q).square().sum().item() for p, q in zip(model.parameters(), start))
)
dist.all_reduce(total)
print("norm", total.item())
""",
}


def program(read: str) -> dict[str, bytes]:
    lines = "\n".join(f"        {line}" for line in read.strip().splitlines())
    return {"train.py": PROGRAM.replace("        READ", lines).encode()}


@pytest.mark.parametrize("kind", ADDED_UP)
def test_what_is_added_up_counts_no_parameter_twice(
    launcher: Launcher, tmp_path: Path, kind: str
) -> None:
    both = written(program(ADDED_UP[kind]), tmp_path)
    assert "TODO" not in both.text("train.py")
    before = launcher.script(both.before, fsdp1="allow")
    after = launcher.script(both.after, fsdp1="forbid")
    assert compare(before, after, tolerance=1e-5) >= 12


def test_what_is_compared_with_a_copy_is_sharded_like_it(
    launcher: Launcher, tmp_path: Path
) -> None:
    read = """
same = all(torch.equal(p.detach(), q) for p, q in zip(model.parameters(), start))
print("same", float(same))
"""
    both = written(program(read), tmp_path)
    assert "TODO" not in both.text("train.py")
    before = launcher.script(both.before, fsdp1="allow")
    after = launcher.script(both.after, fsdp1="forbid")
    assert compare(before, after, tolerance=1e-5) >= 12


def test_arrays_are_made_of_this_ranks_part_and_marked(launcher: Launcher, tmp_path: Path) -> None:
    """Which elements a rank has is another question in FSDP2, so that the sums are not compared."""
    read = """
arrays = [p.detach().numpy() for p in model.parameters()]
total = torch.tensor(sum(float(a.sum()) for a in arrays))
dist.all_reduce(total)
print("sum", total.item())
"""
    both = written(program(read), tmp_path)
    assert "other elements" in both.text("train.py")
    before = launcher.script(both.before, fsdp1="allow").numbers("loss")
    after = launcher.script(both.after, fsdp1="forbid").numbers("loss")
    assert before == pytest.approx(after, rel=1e-5)


def test_an_own_number_is_marked_and_trains_the_same(launcher: Launcher, tmp_path: Path) -> None:
    read = """
if dist.get_rank() == 0:
    print("norms", [f"{p.norm().item():.4f}" for p in model.parameters()])
"""
    both = written(program(read), tmp_path)
    assert "FSDP1 gave a number of this rank's piece" in " ".join(both.text("train.py").split())
    before = launcher.script(both.before, fsdp1="allow").numbers("loss")
    after = launcher.script(both.after, fsdp1="forbid").numbers("loss")
    assert before == pytest.approx(after, rel=1e-5)


def test_between_a_forward_and_its_backward_it_is_sharded_first(
    launcher: Launcher, tmp_path: Path
) -> None:
    forward = "        loss = model(inputs).pow(2).mean()\n"
    read = "".join(f"        {line}\n" for line in ADDED_UP["tensors"].strip().splitlines())
    start, _, rest = PROGRAM.partition("        model.eval()\n")
    source = start.replace(forward, forward + read) + rest[rest.index("    dist.destroy") :]
    both = written({"train.py": source.encode()}, tmp_path)
    assert "model.reshard()" in both.text("train.py")
    before = launcher.script(both.before, fsdp1="allow")
    assert compare(before, launcher.script(both.after, fsdp1="forbid"), tolerance=1e-5) >= 12
