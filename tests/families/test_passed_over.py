"""Functions that are called for every module told FSDP1's wrapper from the module in it."""

from __future__ import annotations

import pytest

from tests.helpers.migrating import migrate, unmarked

PROGRAM = """\
from torch import nn
from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import (
    CheckpointWrapper,
    apply_activation_checkpointing,
    checkpoint_wrapper,
)
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP
from torch.nn.parallel import DistributedDataParallel as DDP


def check(m):
{check}

def main(args, net):
    if args.fsdp:
        for index, block in enumerate(net.blocks):
            net.blocks[index] = FSDP(block)
    model = net if args.fsdp else DDP(net)
    {use}
"""
USES = {
    "by name": "apply_activation_checkpointing(model, check_fn=check)",
    "by place": "apply_activation_checkpointing(model, checkpoint_wrapper, check)",
    "all by name": "apply_activation_checkpointing(check_fn=check, model=model)",
    "apply": "net.apply(check)",
}
CHECKS = {
    "a clause": (
        "    return isinstance(m, nn.Linear) and not isinstance(m, FSDP)\n",
        "    return isinstance(m, nn.Linear)\n",
    ),
    "a return": (
        "    if isinstance(m, FSDP):\n        return False\n    return isinstance(m, nn.Linear)\n",
        "    return isinstance(m, nn.Linear)\n",
    ),
    "an expression": (
        "    return False if isinstance(m, FSDP) else isinstance(m, nn.Linear)\n",
        "    return isinstance(m, nn.Linear)\n",
    ),
    "one of several classes": (
        "    return not isinstance(m, (FSDP, CheckpointWrapper)) and hasattr(m, 'x')\n",
        "    return not isinstance(m, CheckpointWrapper) and hasattr(m, 'x')\n",
    ),
    "neither": (
        "    return not (isinstance(m, FSDP) or isinstance(m, CheckpointWrapper))\n",
        "    return not (isinstance(m, CheckpointWrapper))\n",
    ),
    "nothing else": ("    return not isinstance(m, FSDP)\n", "    return True\n"),
}


@pytest.mark.parametrize("use", USES.values(), ids=USES)
@pytest.mark.parametrize("check", CHECKS)
def test_the_clause_for_the_wrapper_goes(check: str, use: str) -> None:
    before, wanted = CHECKS[check]
    result, after = migrate({"train.py": PROGRAM.format(check=before, use=use)})
    assert not result.problems
    assert f"def check(m):\n{wanted}\n" in after["train.py"]


KEPT = {
    "units are meant": ("    return isinstance(m, FSDP)\n", USES["by name"]),
    "what stands in a unit's place": (
        "    if isinstance(m, FSDP):\n        return True\n    return isinstance(m, DDP)\n",
        USES["by name"],
    ),
    "the whole model is asked": ("    return not isinstance(m, FSDP)\n", "print(check(model))"),
    "a function of another name": (
        "    return not isinstance(m, FSDP)\n",
        "print([b for b in net.blocks if check(b)])",
    ),
}


@pytest.mark.parametrize("case", KEPT)
def test_what_asks_for_sharded_models_goes_on(case: str) -> None:
    check, use = KEPT[case]
    result, after = migrate({"train.py": PROGRAM.format(check=check, use=use)})
    assert not result.problems
    assert f"def check(m):\n{check.replace('FSDP', 'FSDPModule')}\n" in after["train.py"]


def test_more_than_a_clause_holds_the_model_back() -> None:
    check = "    if not isinstance(m, FSDP):\n        m.requires_grad_(False)\n        print(m)\n"
    source = PROGRAM.format(check=check, use=USES["apply"])
    _, after = migrate({"train.py": source})
    assert unmarked(after["train.py"]) == source


BOTH = """\
from torch.distributed.fsdp import FSDPModule, FullyShardedDataParallel as FSDP


def build(net):
    model = FSDP(net)
    for m in model.modules():
        LOOP
    return model
"""


@pytest.mark.parametrize("classes", ["(FSDP, FSDPModule)", "(FSDPModule, FSDP)"])
@pytest.mark.parametrize(
    "loop",
    [
        "if not isinstance(m, CLASSES):\n            m.reset()",
        "if isinstance(m, CLASSES):\n            continue\n        m.reset()",
        "if m.training and not isinstance(m, CLASSES):\n            m.reset()",
    ],
)
def test_units_of_fsdp2_that_are_passed_over_with_wrappers(loop: str, classes: str) -> None:
    source = BOTH.replace("LOOP", loop.replace("CLASSES", classes))
    _, after = migrate({"example.py": source})
    assert unmarked(after["example.py"]) == source
    assert "# TODO(fsdp-migrate FSDP404): Units of FSDP2 models" in after["example.py"]


def test_units_that_are_picked_are_those_of_either() -> None:
    loop = "if isinstance(m, (FSDP, FSDPModule)):\n            m.reset()"
    _, after = migrate({"example.py": BOTH.replace("LOOP", loop)})
    assert "        if isinstance(m, FSDPModule):\n" in after["example.py"]
