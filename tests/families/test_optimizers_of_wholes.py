"""Optimizers of a whole model of which a part is wrapped later, and of parts of what is."""

from __future__ import annotations

import pytest

from fsdp_migrate.planning.outcome import Outcome
from tests.helpers.migrating import migrate, outcomes

HEAD = """\
import torch
from torch import nn
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP


"""
WRAP = "FSDP({}, use_orig_params=True)"
OF_NET = "torch.optim.AdamW(net.parameters())"
ENCODER = f"net.encoder = {WRAP.format('net.encoder')}"
MOVED = {
    "an attribute": (OF_NET, ENCODER),
    "a name for it": (OF_NET, f"encoder = net.encoder\n    net.encoder = {WRAP.format('encoder')}"),
    "setattr": (OF_NET, f"setattr(net, 'encoder', {WRAP.format('net.encoder')})"),
    "getattr": (OF_NET, f"setattr(net, name, {WRAP.format('getattr(net, name)')})"),
    "an index": (
        OF_NET,
        f"for i in range(len(net.layers)):\n        net.layers[i] = {WRAP.format('net.layers[i]')}",
    ),
    "children": (
        OF_NET,
        "for name, child in net.named_children():\n"
        f"        setattr(net, name, {WRAP.format('child')})",
    ),
    "a comprehension": (
        OF_NET,
        f"net.layers = nn.ModuleList([{WRAP.format('layer')} for layer in net.layers])",
    ),
    "several": (OF_NET, f"{ENCODER}\n    net.decoder = {WRAP.format('net.decoder')}"),
    "a condition": (OF_NET, f"if net.is_large:\n        {ENCODER}"),
    "the whole": ("torch.optim.AdamW(net.encoder.parameters())", f"net = {WRAP.format('net')}"),
    "groups": ("torch.optim.AdamW([{'params': net.parameters()}])", ENCODER),
    "a function": (OF_NET, "shard(net)"),
    "a recursive function": (OF_NET, "shard_parts(net)"),
}
FUNCTIONS = """

def shard(net):
    net.encoder = FSDP(net.encoder, use_orig_params=True)


def shard_parts(net):
    for name, part in list(net.named_children()):
        if list(part.children()):
            shard_parts(part)
        else:
            setattr(net, name, FSDP(part, use_orig_params=True))
"""


@pytest.mark.parametrize("way", MOVED)
def test_it_moves_behind_the_last_wrap(way: str) -> None:
    built, wrapped = MOVED[way]
    program = (
        f"{HEAD}def main(net, name):\n    optimizer = {built}\n    {wrapped}\n"
        f"    return net, optimizer\n{FUNCTIONS}"
    )
    result, after = migrate({"a.py": program})
    assert ("FSDP403", Outcome.REWRITTEN) in outcomes(result)
    assert {d.outcome for d in result.decisions} == {Outcome.REWRITTEN}
    wraps = wrapped.splitlines()[-1].strip().replace(", use_orig_params=True", "")
    main = after["a.py"].partition("def main(")[2].partition("def shard(")[0]
    assert main.index(wraps.replace("FSDP", "fully_shard")) < main.index(f"optimizer = {built}")


def test_a_list_of_parameters_moves_too() -> None:
    program = f"""\
{HEAD}def main(net):
    trained = [p for p in net.parameters() if p.requires_grad]
    {ENCODER}
    net.decoder = {WRAP.format("net.decoder")}
    return net, torch.optim.AdamW(trained)
"""
    _, after = migrate({"a.py": program})
    main = after["a.py"]
    assert main.index("fully_shard(net.decoder)") < main.index("trained = ")


TRAINER = f"""\
class Trainer:
    def __init__(self, net):
        self.net = net
        self.optimizer = torch.optim.AdamW(self.net.parameters())

    def shard(self):
        self.net.encoder = {WRAP.format("self.net.encoder")}
"""
OF_ITSELF = f"""\
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.encoder = nn.Linear(3, 3)
        self.optimizer = torch.optim.AdamW(self.parameters())

    def shard(self):
        self.encoder = {WRAP.format("self.encoder")}
"""
IN_A_CALL = f"""\
class Engine:
    def __init__(self, net, optimizer):
        self.net = net
        self.net.encoder = {WRAP.format("self.net.encoder")}
        self.optimizer = optimizer


def main(net):
    return Engine(net, {OF_NET})
"""
SCHEDULED = f"""\
def main(net):
    optimizer = {OF_NET}
    schedule = torch.optim.lr_scheduler.StepLR(optimizer, 2)
    {ENCODER}
    return net, optimizer, schedule
"""


@pytest.mark.parametrize(
    "program",
    [TRAINER, TRAINER.replace("AdamW(self.net.", "AdamW(self.net.encoder."), OF_ITSELF, IN_A_CALL],
)
def test_where_it_cannot_move_the_model_is_held_back(program: str) -> None:
    result, after = migrate({"a.py": HEAD + program})
    assert {d.outcome for d in result.decisions} == {Outcome.LEFT}
    assert "TODO(fsdp-migrate FSDP403)" in after["a.py"]


def test_what_is_used_in_between_stays() -> None:
    used = SCHEDULED.replace("schedule = torch.optim.lr_scheduler.StepLR", "schedule = Steps")
    result, _ = migrate({"a.py": HEAD + used.replace("Steps(", "net.steps(")})
    assert {d.outcome for d in result.decisions} == {Outcome.LEFT}


def test_the_scheduler_that_is_made_of_it_moves_along() -> None:
    result, after = migrate({"a.py": HEAD + SCHEDULED})
    assert Outcome.LEFT not in {d.outcome for d in result.decisions}
    text = after["a.py"]
    assert text.index("fully_shard(net.encoder") < text.index("AdamW") < text.index("StepLR")


SIBLINGS = f"""\
def main(net):
    optimizer = torch.optim.AdamW(net.encoder.parameters())
    net.decoder = {WRAP.format("net.decoder")}
    return net, optimizer
"""
AFTERWARDS = f"""\
def main(net):
    {ENCODER}
    optimizer = {OF_NET}
    return net, optimizer
"""
OTHERS = f"""\
def get_model():
    net = nn.Linear(3, 3)
    return net


def main():
    student, teacher = get_model(), get_model()
    optimizer = torch.optim.AdamW(student.parameters())
    teacher = {WRAP.format("teacher")}
    return student, teacher, optimizer
"""
OTHER_ARMS = f"""\
def main(args, net):
    if not args.fsdp:
        optimizer = {OF_NET}
    else:
        {ENCODER}
        optimizer = {OF_NET}
    return net, optimizer
"""


@pytest.mark.parametrize("program", [SIBLINGS, AFTERWARDS, OTHERS, OTHER_ARMS])
def test_others_stay_where_they_are(program: str) -> None:
    result, after = migrate({"a.py": HEAD + program})
    assert {d.outcome for d in result.decisions} == {Outcome.REWRITTEN}
    assert "FSDP403" not in {code for code, _ in outcomes(result)}
    assert after["a.py"].count("optimizer = ") == program.count("optimizer = ")


def test_a_loop_that_may_end_the_function_stays() -> None:
    program = f"""\
{HEAD}def main(net, names):
    optimizer = {OF_NET}
    for name in names:
        if name == "none":
            return net, None
        net.layers[name] = {WRAP.format("net.layers[name]")}
    return net, optimizer
"""
    result, _ = migrate({"a.py": program})
    assert {d.outcome for d in result.decisions} == {Outcome.LEFT}
