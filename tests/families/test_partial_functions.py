"""``functools.partial`` of the class becomes a function where nothing can tell the two apart."""

from __future__ import annotations

import pytest

from tests.helpers.migrating import migrate, outcomes

PROGRAM = """\
from functools import partial

import torch
from torch.distributed.fsdp import (
    FullyShardedDataParallel as FSDP,
    MixedPrecision,
    ShardingStrategy,
)
from torch.distributed.fsdp.wrap import ModuleWrapPolicy


def wrapper(config, classes):
    mixed = MixedPrecision(param_dtype=torch.bfloat16, cast_forward_inputs=True)
    wrap = partial(
        FSDP,
        sharding_strategy=ShardingStrategy.SHARD_GRAD_OP,
        auto_wrap_policy=ModuleWrapPolicy(classes),
        mixed_precision=mixed,
        device_id=torch.cuda.current_device(),
    )
    return wrap


def build(config, student, teacher, Block):
    student = wrapper(config, {Block})(student)
    teacher = wrapper(config, {Block})(teacher)
    return student, teacher
"""


def test_a_partial_that_is_returned() -> None:
    result, after = migrate({"train.py": PROGRAM})
    text = after["train.py"]
    assert "left" not in {outcome.value for _, outcome in outcomes(result)}
    assert "    def wrap(model):\n        for module in reversed(list(model.modules())):" in text
    assert "wrap_classes = tuple(classes)" in text
    assert "isinstance(module, wrap_classes)" in text
    assert "import shard" not in text
    assert "partial" not in text
    assert not any(line != line.rstrip() for line in text.splitlines())
    assert not migrate(after)[0].changes


def test_what_does_not_speak_of_the_model_runs_once() -> None:
    source = PROGRAM.replace("SHARD_GRAD_OP", "NO_SHARD")
    _, after = migrate({"train.py": source})
    before, _, inside = after["train.py"].partition("def wrap(model):")
    assert "init_device_mesh(" in before
    assert "init_device_mesh(" not in inside


RETURN = "    return wrap\n"
STAYS = {
    "its values change": PROGRAM.replace(RETURN, f"    mixed = None\n{RETURN}"),
    "its classes change": PROGRAM.replace(RETURN, f"    classes = set()\n{RETURN}"),
    "a group is made": PROGRAM.replace(
        "        mixed_precision",
        "        process_group=torch.distributed.new_group(),\n        mixed_precision",
    ),
    "a setting may change": PROGRAM.replace("ModuleWrapPolicy(classes)", "config.policy"),
    "its name has several values": PROGRAM.replace(
        RETURN, f"    wrap = config.wrap or wrap\n{RETURN}"
    ),
    "it is asked for its arguments": PROGRAM.replace(RETURN, f"    print(wrap.keywords)\n{RETURN}"),
    "it is handed on": PROGRAM.replace(RETURN, f"    config.register(wrap)\n{RETURN}"),
    "it has further arguments": PROGRAM.replace(
        "FSDP,\n        sharding", "FSDP, config.model,\n        sharding"
    ),
    "it is given more": PROGRAM.replace(
        "wrapper(config, {Block})(teacher)",
        "wrapper(config, {Block})(teacher, use_orig_params=True)",
    ),
    "it is given the model by name": PROGRAM.replace("(teacher)\n", "(module=teacher)\n"),
    "models on the meta device": PROGRAM.replace(
        "    student =",
        '    with torch.device("meta"):\n        student = student()\n    student =',
        1,
    ),
    "keywords in a dictionary": PROGRAM.replace(
        "        mixed_precision", "        **config.kwargs,\n        mixed_precision"
    ),
    "a list of modules": PROGRAM.replace(
        RETURN, f"    config.first = wrap(torch.nn.ModuleList([config.a]))\n{RETURN}"
    ),
}


@pytest.mark.parametrize("which", STAYS)
def test_a_partial_that_stays(which: str) -> None:
    assert STAYS[which] != PROGRAM
    _, after = migrate({"train.py": STAYS[which]})
    text = after.get("train.py", STAYS[which])
    assert "def wrap(" not in text
    assert "shard," in text or "partial(FSDP" in text or "FSDP," in text


PARTS = """\
from functools import partial

import torch
from torch import nn
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP, MixedPrecision


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.second = nn.Linear(4, 4), nn.Linear(4, 4)

    def forward(self, x):
        return self.second(self.first(x))

    def score(self, x):
        return self.first(x).sum()


def build():
    wrap = partial(
        FSDP,
        mixed_precision=MixedPrecision(param_dtype=torch.bfloat16),
        device_id=torch.cuda.current_device(),
    )
    net = Net()
    MADE
    net = wrap(net)
    return net


net = build()
net(torch.randn(2, 4)).sum().backward()
print(net.score(torch.randn(2, 4)))
"""


@pytest.mark.parametrize(
    ("made", "marked"),
    [
        ("net.first = wrap(net.first)", True),
        ("other = wrap(Net())", False),
        ("others = [wrap(Net()) for _ in range(2)]", True),
    ],
)
def test_which_of_them_cast_their_inputs_is_marked(made: str, marked: bool) -> None:
    _, after = migrate({"train.py": PARTS.replace("MADE", made)})
    text = after["train.py"]
    assert "def wrap(model):" in text
    assert ("set cast_forward_inputs=False" in text) == marked


def test_methods_of_what_it_makes_are_registered() -> None:
    _, after = migrate({"train.py": PARTS.replace("MADE", "other = wrap(Net())")})
    assert 'register_fsdp_forward_method(net, "score")' in after["train.py"]
