"""What is assigned to ``.data`` of sharded parameters, and what is kept of their memory."""

from __future__ import annotations

import pytest

from fsdp_migrate.planning.outcome import Outcome
from tests.helpers.migrating import migrate, rewritten

PROGRAM = """\
import torch
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP


class Swap:
    def __init__(self, model):
        self.model = model
        self.shadow = {name: p.data.clone() for name, p in model.named_parameters()}
        self.backup = {}

    def swap(self):
        BEFORE
        for name, param in self.model.named_parameters():
            KEEP
            ASSIGN


def train(net):
    model = FSDP(net)
    swap = Swap(model)
    return model, swap
"""
ASSIGN = "param.data = self.shadow[name]"


def program(keep: str, assign: str = ASSIGN, before: str = "pass") -> str:
    return PROGRAM.replace("KEEP", keep).replace("ASSIGN", assign).replace("BEFORE", before)


@pytest.mark.parametrize(
    "keep",
    [
        "self.backup[name] = param.data",
        "param.old = param.data",
        "old, new = param.data, self.shadow[name]",
        "self.backup.setdefault(name, param.data)",
        "self.kept.append(param.data)",
        "(old := param.data)",
    ],
)
def test_the_memory_of_a_parameter_that_is_overwritten_is_marked(keep: str) -> None:
    """In FSDP1 the old weights were lost with the next forward: measured on two ranks."""
    after = rewritten(program(keep))
    assert "param.data.copy_(self.shadow[name])" in after
    assert "own memory" in after


def test_the_memory_of_all_parameters_at_once_is_marked() -> None:
    before = "self.kept = [p.data for p in self.model.parameters()]"
    assert "own memory" in rewritten(program("pass", before=before))


@pytest.mark.parametrize(
    ("keep", "assign"),
    [
        ("self.backup[name] = param.data.clone()", ASSIGN),
        ("self.backup[name] = param.data * 2", ASSIGN),
        ("print(param.data)", ASSIGN),
        ("self.backup[name] = param.data", "pass"),
    ],
)
def test_a_copy_or_memory_that_nothing_assigns_to_is_not_spoken_of(keep: str, assign: str) -> None:
    assert "own memory" not in rewritten(program(keep, assign))


def test_memory_of_other_tensors_is_not_spoken_of() -> None:
    other = program("pass") + "\n\ndef keep(tensors):\n    return [t.data for t in tensors]\n"
    assert "own memory" not in rewritten(other)


@pytest.mark.parametrize(
    "assign",
    [
        "param.data, self.shadow[name] = self.shadow[name], param.data",
        'setattr(param, "data", self.shadow[name])',
        "param.data = param.main.to(torch.bfloat16)",
        "param.main = torch.empty_like(param, dtype=torch.float32)\n"
        "            param.data = param.main",
    ],
)
def test_what_a_copy_does_not_do_is_left(assign: str) -> None:
    result, after = migrate({"example.py": program("pass", assign)})
    assert "FSDP(net)" in after["example.py"]  # it would pass over the assignment without an error
    left = [d for d in result.decisions if d.outcome is Outcome.LEFT and d.code == "FSDP408"]
    assert [d.message for d in left] == ["assigning to .data of a sharded parameter does nothing"]


GRADIENTS = """\
import torch
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP


def train(net):
    model = FSDP(net)
    plain = torch.nn.Linear(3, 3)
    optimizer = torch.optim.SGD(GIVEN.parameters(), lr=0.1)
    LOOP
            p.grad.data = p.grad.data / 2
    return model, plain, optimizer
"""
LOOPS = {
    "groups": 'for group in optimizer.param_groups:\n        for p in group["params"]:',
    "parameters": "for p in GIVEN.parameters():\n        if p.grad is not None:",
    "a list": "listed = list(GIVEN.parameters())\n    for p in listed:\n        if p.grad.any():",
}


@pytest.mark.parametrize("loop", LOOPS.values(), ids=LOOPS)
def test_what_is_assigned_to_the_data_of_gradients_is_copied(loop: str) -> None:
    """Assigning to ``.data`` of a sharded gradient does nothing: measured on two ranks."""
    program = GRADIENTS.replace("LOOP", loop).replace("GIVEN", "model")
    assert "p.grad.data.copy_(p.grad.data / 2)" in rewritten(program)


@pytest.mark.parametrize("loop", LOOPS.values(), ids=LOOPS)
def test_the_data_of_gradients_of_a_plain_model_stay(loop: str) -> None:
    program = GRADIENTS.replace("LOOP", loop).replace("GIVEN", "plain")
    assert "p.grad.data = p.grad.data / 2" in rewritten(program)


WHOLE = """\
import torch
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP


def put(net, kept):
    model = FSDP(net)
    with FSDP.summon_full_params(model):
        CHANGE
"""
DROPPED = "FSDP1 dropped what was assigned to .data here"
LOOP = "for name, p in model.named_parameters():\n            "


@pytest.mark.parametrize(
    "change",
    [
        f"{LOOP}p.data = kept[name]",
        f"{LOOP}p.data, kept[name] = kept[name], p.data",
        f"{LOOP}setattr(p, 'data', kept[name])",
        "model.scale.data = kept['scale']",
        "for p, k in zip(model.parameters(), kept):\n            p.data = k.clone()",
    ],
)
def test_what_fsdp1_dropped_in_whole_parameters_is_marked(change: str) -> None:
    """Measured on two ranks: the assignments had no effect at all."""
    assert DROPPED in " ".join(rewritten(WHOLE.replace("CHANGE", change)).replace("#", "").split())


@pytest.mark.parametrize(
    "source",
    [
        WHOLE.replace("CHANGE", f"{LOOP}p.data.copy_(kept[name])"),
        WHOLE.replace("CHANGE", f"{LOOP}kept[name] = p.data.clone()"),
        WHOLE.replace("CHANGE", f"{LOOP}kept[name].data = p.detach().clone()"),
        WHOLE.replace("(model)", "(model, writeback=False)").replace(
            "CHANGE", f"{LOOP}p.data = kept[name]"
        ),
        WHOLE.replace("CHANGE", "for b in model.buffers():\n            b.data = kept"),
    ],
)
def test_other_code_for_whole_parameters_is_not(source: str) -> None:
    assert "FSDP1 dropped" not in rewritten(source)


PICKED = """\
import torch
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP


def train(net, new, plain):
BEFORE
    model = FSDP(net)
AFTER
"""


def picked(after: str, before: str = "pass") -> str:
    both = [("AFTER", after), ("BEFORE", before)]
    text = PICKED
    for place, code in both:
        lines = "\n".join(f"    {line}" for line in code.splitlines())
        text = text.replace(place, lines)
    return text


@pytest.mark.parametrize(
    "code",
    [
        "params = list(model.parameters())\nparams[0].data = new",
        "p = next(model.parameters())\np.data = new",
        "named = dict(model.named_parameters())\nnamed['head'].data = new",
        "model.get_parameter('head').data = new",
        "[setattr(p, 'data', p.data.cpu()) for p in model.parameters()]",
        "for m in model.modules():\n    if hasattr(m, 'weight'):\n        m.weight.data = new",
    ],
)
def test_data_of_parameters_that_are_picked_out_is_left(code: str) -> None:
    """``p.data = x`` does nothing to a sharded parameter, and says nothing."""
    _, after = migrate({"train.py": picked(code)})
    text = " ".join(after["train.py"].replace("#", "").split())
    assert "Assigning to .data of a sharded parameter does nothing" in text
    # Before the model is sharded, and of another model, it does what it did.
    earlier = code.replace("model.", "net.")
    assert "Assigning to" not in rewritten(picked("pass", earlier))
    assert "Assigning to" not in rewritten(picked(code.replace("model.", "plain.")))


@pytest.mark.parametrize(
    "code",
    [
        "batch = next(iter(new))\nbatch.data = plain",
        "new[0].data = plain",
        "setattr(new, 'data', plain)",
        "setattr(model, 'data', plain)",
        "norm = plain(model.parameters())\nnorm.data = new",
    ],
)
def test_data_of_other_things_is_not(code: str) -> None:
    assert "Assigning to" not in rewritten(picked(code))


HANDED = """\
import torch
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP


class Target:
    def set(self, ours, theirs):
        ours.data = theirs.data * 2

    @staticmethod
    def blend(theirs, ours):
        ours.data = ours.data + theirs.data


def hard(ours, theirs):
    ours.data = theirs.data.clone()


def first(ours, theirs):
    hard(ours, theirs)


def by_name(values, into):
    into.data = values.data.clone()


def main(net, other, plain, target):
    target = Target()
    model, twin = FSDP(net), FSDP(other)
    for q, p in zip(twin.parameters(), model.parameters()):
        CALL
"""


@pytest.mark.parametrize(
    "call",
    ["hard(q, p)", "first(q, p)", "by_name(p, into=q)", "target.set(q, p)", "Target.blend(p, q)"],
)
def test_data_of_what_a_function_is_given_is_copied(call: str) -> None:
    after = rewritten(HANDED.replace("CALL", call))
    assert after.count(".data.copy_(") == 1
    assert rewritten(HANDED.replace("CALL", call).replace("twin.", "plain.")).count("copy_(") == 0


@pytest.mark.parametrize("call", ["hard(q, p)", "first(q, p)", "target.set(q, p)"])
def test_parameters_that_a_function_changes_are_sharded(call: str) -> None:
    """After an evaluation those of the root were plain tensors, beside others that were not."""
    head, _, loop = HANDED.replace("CALL", call).partition("    for q")
    evaluated = f"{head}    with torch.no_grad():\n        twin(target)\n    for q{loop}"
    sharded = "twin.reshard()\n    reshard_parameters(model)\n    for q"
    assert sharded in rewritten(evaluated)
    reads = evaluated.replace(call, "print(q.dtype, p.dtype)")
    assert "reshard_parameters" not in rewritten(reads)


VIEWED = """\
import torch
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP


class Flat:
    def __init__(self, net, sizes):
        self.model = FSDP(net)
        flat = torch.zeros(sum(sizes))
        vector = torch.zeros(sum(sizes))
        self.memory = flat
        start = 0
        for p, size, piece, part in zip(
            self.model.parameters(), sizes, self.memory.split(sizes), vector.split(sizes)
        ):
            ASSIGN
            start += size
"""


@pytest.mark.parametrize(
    "assign",
    [
        "p.data = self.memory[start : start + size].view_as(p)",
        "p.data = self.memory.narrow(0, start, size).view(p.shape)",
        "p.data = self.memory.data[start : start + size].detach().reshape(p.shape)",
        "p.data = flat[start : start + size].view_as(p)",
        "p.data = piece.view_as(p)",
        "own = self.memory[start : start + size]; p.data = own.view_as(p)",
        "kept = self.memory; p.data = kept[start : start + size].view_as(p)",
    ],
)
def test_what_was_a_view_of_kept_memory_is_marked(assign: str) -> None:
    """A part that is not sharded loses what is written to the memory later: measured."""
    after = rewritten(VIEWED.replace("ASSIGN", assign))
    assert ".copy_(" in after
    assert "were made views of memory" in after


@pytest.mark.parametrize(
    "assign",
    [
        "p.data = vector[start : start + size].view_as(p)",
        "p.data = self.memory[start : start + size].clone().view_as(p)",
        "p.data = self.memory[start : start + size].view_as(p) * 2",
        "p.data = torch.zeros_like(p)",
    ],
)
def test_values_that_nothing_else_holds_are_copied_without_a_word(assign: str) -> None:
    assert "views of memory" not in rewritten(VIEWED.replace("ASSIGN", assign))
