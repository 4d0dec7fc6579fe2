"""The cause is named and not what follows from it; what is built later is judged from there on."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest

from fsdp_migrate.verify.compare.evidence import Evidence
from fsdp_migrate.verify.compare.judge import judge
from fsdp_migrate.verify.compare.recording import Recording
from fsdp_migrate.verify.launch.warm import WarmServer
from fsdp_migrate.verify.report import text
from fsdp_migrate.verify.report.model import Report

from .recordings import WORLD, evidence
from .scripts import FSDP1, judged

# Two models that feed each other: what one of them makes enters the other.
TWO = """\
def generator():
    return nn.Sequential(nn.Linear(4, 16), nn.BatchNorm1d(16), nn.Tanh(), nn.Linear(16, 8))


makes, tells = wrap(generator()), wrap(nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 1)))
makes_step = torch.optim.Adam(makes.parameters(), lr=1e-2)
tells_step = torch.optim.Adam(tells.parameters(), lr=1e-2)
schedule = torch.optim.lr_scheduler.StepLR(makes_step, 1, 0.5)
torch.manual_seed(rank)
for turn in range(9):
    for _ in range(2):
        loss = tells(makes(torch.randn(4, 4)).detach()).mean() - tells(torch.randn(4, 8)).mean()
        tells_step.zero_grad()
        loss.backward()
        tells_step.step()
    loss = -tells(makes(torch.randn(4, 4))).mean()
    makes_step.zero_grad()
    loss.backward()
    makes_step.step()
    schedule.step()
    makes.eval()
    tells(makes(torch.randn(4, 4)).detach())
    makes.train()
"""

# A second model starts from the weights of the first, saved and loaded; then comes a third.
LATER = """\
from torch.distributed.checkpoint.state_dict import StateDictOptions, get_state_dict, set_state_dict

whole = StateDictOptions(full_state_dict=True)


def train(model, optimizer, steps):
    for _ in range(steps):
        model(torch.randn(4, 8)).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()


def made():
    model = wrap(net())
    return model, torch.optim.AdamW(model.parameters(), lr=1e-2)


model, optimizer = made()
torch.manual_seed(rank)
train(model, optimizer, 3)
weights, states = get_state_dict(model, optimizer, options=whole)
model, optimizer = made()
# changed
set_state_dict(
    model, optimizer, model_state_dict=weights, optim_state_dict=states, options=whole
)
train(model, optimizer, 2)
torch.manual_seed(3)
teacher = net().requires_grad_(False)
# taught
teacher = wrap(teacher)
torch.manual_seed(rank)
for _ in range(3):
    given = torch.randn(4, 8)
    with torch.no_grad():
        wanted = teacher(given)
    (model(given) - wanted).square().mean().backward()
    optimizer.step()
    optimizer.zero_grad()
"""

PLAIN = """\
model = wrap(net())
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
torch.manual_seed(rank)
for _ in range(4):
    model(torch.randn(4, 8)).square().mean().backward()
    optimizer.step()
    optimizer.zero_grad()
"""
DDP = """\
from torch.nn.parallel import DistributedDataParallel


def wrap(model):
    return DistributedDataParallel(model)
"""
META = """\
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.inner, self.norm = nn.Linear(64, 64), nn.BatchNorm1d(64)

    def forward(self, x):
        return self.norm(self.inner(x))


with torch.device("meta"):
    model = Net()
torch.manual_seed(5)
model = wrap(model)
optimizer = torch.optim.SGD(model.parameters(), lr=1e-2)
torch.manual_seed(rank)
for _ in range(4):
    model(torch.randn(4, 64)).square().mean().backward()
    optimizer.step()
    optimizer.zero_grad()
"""
META1 = """\
import torch
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP


def materialise(module):
    module.to_empty(device="cpu", recurse=False)
    if hasattr(module, "reset_parameters"):
        module.reset_parameters()


def wrap(model):
    cpu = torch.device("cpu")
    return FSDP(model, device_id=cpu, use_orig_params=True, param_init_fn=materialise)
"""
META2 = """\
from torch.distributed.fsdp import fully_shard


def wrap(model):
    fully_shard(model)
    model.to_empty(device="cpu")
    for module in model.modules():
        if hasattr(module, "reset_parameters"):
            module.reset_parameters()
    return model
"""


def named(report: Report) -> str:
    """Key of the gate that names the cause; the verdict where there is none."""
    return report.first_failure.key if report.first_failure else report.verdict.value


@pytest.mark.train
@pytest.mark.parametrize(
    ("old", "new", "cause"),
    [
        ("Adam(makes.parameters(), lr=1e-2)", "Adam(makes.parameters(), lr=1.01e-2)", "settings"),
        ("    schedule.step()\n", "", "settings"),
        ("range(9):\n", "range(9):\n    makes.train(turn == 0)\n", "mode"),
        ("    makes.eval()\n", "    makes.eval()\n    makes[1].reset_running_stats()\n", "buffers"),
        ("range(2)", "range(1)", "gradients-present"),
        ("torch.manual_seed(rank)", "torch.manual_seed(rank + 1)", "inputs"),
    ],
)
def test_what_is_done_to_a_model_comes_before_what_it_makes(
    old: str, new: str, cause: str, tmp_path: Path, server: WarmServer
) -> None:
    report = judged(tmp_path, TWO, (old, new), server=server)
    assert named(report) == cause, text.render(report)


@pytest.mark.train
@pytest.mark.parametrize(
    ("old", "new", "cause"),
    [
        ("# changed\n", "", "same_training"),
        ("# changed\n", "states['state'].clear()\n", "optimizer-state"),
        ("# taught\n", "teacher[0].weight.data.mul_(1.01)\n", "later-start"),
    ],
)
def test_models_that_appear_later_are_judged_from_there_on(
    old: str, new: str, cause: str, tmp_path: Path, server: WarmServer
) -> None:
    report = judged(tmp_path, LATER, (old, new), server=server)
    assert named(report) == cause, text.render(report)
    if cause == "same_training":
        (gate,) = (gate for gate in report.gates if gate.key == "later-start")
        assert "models built later" in gate.says


@pytest.mark.train
def test_models_under_ddp_alone_are_judged(tmp_path: Path, server: WarmServer) -> None:
    report = judged(tmp_path, PLAIN, before=DDP, after=DDP + "# as before\n", server=server)
    assert report.exit_code == 0, text.render(report)
    (ran,) = (gate for gate in report.gates if gate.key == "ran")
    assert "no model is sharded on either side" in ran.says


# Each rank shards over a group that holds nobody else: nothing is exchanged, by whichever call.
ALONE1 = """\
import torch
import torch.distributed as dist
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP


def wrap(model):
    alone = [dist.new_group([r]) for r in range(dist.get_world_size())][dist.get_rank()]
    return FSDP(model, process_group=alone, device_id=torch.device("cpu"), use_orig_params=True)
"""
ALONE2 = """\
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard


def wrap(model):
    mesh = init_device_mesh("cpu", (2, 1), mesh_dim_names=("replicas", "shards"))
    return fully_shard(model, mesh=mesh["shards"])
"""


@pytest.mark.train
@pytest.mark.parametrize(
    ("before", "after", "passes"),
    [(ALONE1, ALONE2, True), (FSDP1, ALONE2, False)],
    ids=["nothing to exchange", "what was exchanged is no more"],
)
def test_a_group_of_one_rank_exchanges_nothing(
    before: str, after: str, passes: bool, tmp_path: Path, server: WarmServer
) -> None:
    source = PLAIN.replace("torch.manual_seed(rank)", "torch.manual_seed(1)")
    report = judged(tmp_path, source, before=before, after=after, server=server)
    assert (report.exit_code == 0) is passes, text.render(report)


@pytest.mark.train
def test_a_program_may_end_itself(tmp_path: Path, server: WarmServer) -> None:
    report = judged(tmp_path, PLAIN + "os._exit(0)\n", server=server)
    assert report.exit_code == 0, text.render(report)


@pytest.mark.train
def test_weights_drawn_alike_on_cpus_and_buffers_that_follow_from_them(
    tmp_path: Path, server: WarmServer
) -> None:
    report = judged(tmp_path, META, before=META1, after=META2, server=server)
    assert report.exit_code == 0, text.render(report)
    (drawn,) = (gate for gate in report.gates if gate.key == "drawn")
    assert "seeded alike" in " ".join(drawn.details)


@pytest.mark.train
def test_weights_that_a_program_draws_alike_are_named(tmp_path: Path, server: WarmServer) -> None:
    """Not by DTensors, whose generators keep apart on GPUs."""
    local = META2.replace("module.reset_parameters()", "by_hand(module)") + (
        "\n\ndef by_hand(module):\n"
        "    for parameter in module.parameters(recurse=False):\n"
        "        parameter.to_local().data.uniform_(-0.125, 0.125)\n"
    )
    source = META.replace("        self.inner, self.norm", "        self.inner, self.norm")
    report = judged(tmp_path, source, before=META1, after=local, server=server)
    assert named(report) == "drawn", text.render(report)


# --- the order alone -----------------------------------------------------------------------------


def entering(recording: Recording, step: int, what: int) -> Recording:
    steps = list(recording.steps)
    steps[step] = dataclasses.replace(steps[step], inputs=((what,),) * WORLD)
    return dataclasses.replace(recording, steps=tuple(steps))


@pytest.mark.parametrize(
    ("lr", "step", "cause"),
    [
        (0.02, 2, "settings"),  # other inputs after a step with another rate
        (0.02, 0, "inputs"),  # the very first data are others already
        (0.01, 2, "inputs"),  # nothing else differs
    ],
)
def test_inputs_come_after_what_may_have_made_them_others(lr: float, step: int, cause: str) -> None:
    plain = evidence(lr=lr)
    found = Evidence(plain.before, entering(plain.after, step, 99))
    failure = judge(found).first_failure
    assert failure is not None
    assert failure.key == cause
