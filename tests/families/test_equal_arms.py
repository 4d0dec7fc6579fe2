"""Choices by the kind of a model: arms that become equal are one, statements stay statements."""

from __future__ import annotations

import pytest

from tests.helpers.migrating import rewritten

HEAD = """\
import torch
from torch.cuda.amp import GradScaler
from torch.amp import GradScaler as AmpScaler
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP
from torch.distributed.fsdp.sharded_grad_scaler import ShardedGradScaler


def main(net, conf, amp, scale):
    model = FSDP(net)
    scaler = CHOICE
    return model, scaler
"""
FSDP_OR = 'conf["mode"] == "fsdp"'
EQUAL = {
    f"ShardedGradScaler(enabled=amp) if {FSDP_OR} else GradScaler(enabled=amp)": (
        "GradScaler(enabled=amp)"
    ),
    "GradScaler() if not conf.fsdp else ShardedGradScaler()": "GradScaler()",
    "ShardedGradScaler() if conf.fsdp and amp else AmpScaler()": "AmpScaler()",
    "ShardedGradScaler() if amp else AmpScaler('cuda')": "AmpScaler('cuda')",
    "ShardedGradScaler(init_scale=scale) if amp else GradScaler(scale)": "GradScaler(scale)",
    "ShardedGradScaler('cuda', scale, 0.5, 2.0) if amp else GradScaler(scale, 2.0, 0.5)": (
        "GradScaler(scale, 2.0, 0.5)"
    ),
    "ShardedGradScaler(enabled=amp, process_group=conf.g) if amp else GradScaler(enabled=amp)": (
        "GradScaler(enabled=amp)"
    ),
    "ShardedGradScaler() if amp else torch.cuda.amp.GradScaler()": "torch.cuda.amp.GradScaler()",
}


@pytest.mark.parametrize("choice", EQUAL)
def test_equal_scalers_are_one(choice: str) -> None:
    after = rewritten(HEAD.replace("CHOICE", choice))
    assert f"    scaler = {EQUAL[choice]}\n" in after


OTHERS = (
    "ShardedGradScaler(enabled=amp) if amp else GradScaler()",
    "ShardedGradScaler(scale, 2.0, 0.5) if amp else GradScaler(scale, 2.0, 0.5)",
    "ShardedGradScaler('cuda', scale, 2.0, 0.5) if amp else GradScaler(scale, 2.0, 0.5)",
    "ShardedGradScaler() if amp else AmpScaler('cpu')",
    "ShardedGradScaler() if amp else None",
    "ShardedGradScaler() if amp else conf.GradScaler()",
    "ShardedGradScaler() if conf.pop('amp') else GradScaler()",
    "ShardedGradScaler() if (amp := conf.amp) else GradScaler()",
    "ShardedGradScaler(**conf) if amp else GradScaler()",
    "ShardedGradScaler() if amp else GradScaler(**conf)",
)


@pytest.mark.parametrize("choice", OTHERS)
def test_other_choices_stay(choice: str) -> None:
    line = " ".join(rewritten(HEAD.replace("CHOICE", choice)).split())
    assert "torch.amp.GradScaler(" in line
    assert " if " in line
    assert " else " in line


LOADING = """\
import torch
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP
from torch.nn.parallel import DistributedDataParallel


def wrapped(net, mode):
    if mode == "fsdp":
        return FSDP(net)
    return DistributedDataParallel(net)


def main(net, mode, saved):
    model = wrapped(net, mode)
    LOAD
    return model
"""
NATIVE = "StateDictOptions(full_state_dict=True, broadcast_from_rank0=True)"


@pytest.mark.parametrize(
    ("load", "expected"),
    [
        (
            "model.load_state_dict(saved)",
            """\
    if isinstance(model, FSDPModule):
        set_model_state_dict(""",
        ),
        (
            "if saved:\n        model.load_state_dict(saved)  # all of it\n    print(model)",
            """\
        if isinstance(model, FSDPModule):
            set_model_state_dict(""",
        ),
        (
            "if saved: model.load_state_dict(saved)",
            """\
        if isinstance(model, FSDPModule):
            set_model_state_dict(""",
        ),
    ],
)
def test_a_statement_becomes_a_statement(load: str, expected: str) -> None:
    after = rewritten(LOADING.replace("LOAD", load))
    assert expected in after
    assert "load_state_dict(saved) if" not in " ".join(after.split())
    compile(after, "train.py", "exec")


def test_a_result_that_is_used_stays_an_expression() -> None:
    after = rewritten(LOADING.replace("LOAD", "missing = model.load_state_dict(saved)"))
    line = " ".join(after.split())
    assert "if isinstance(model, FSDPModule) else model.load_state_dict(saved)" in line


def test_a_compiled_pattern_is_no_model() -> None:
    load = "import re\n    re.compile('model')\n    model.load_state_dict(saved)"
    assert "isinstance(model, FSDPModule)" in rewritten(LOADING.replace("LOAD", load))


@pytest.mark.parametrize(
    "compiled",
    [
        "model = torch.compile(model)",
        "from torch import nn, compile\n    model = compile(model)",
    ],
)
def test_a_compiled_model_is_told_by_ddp(compiled: str) -> None:
    """What ``torch.compile`` gives is no FSDPModule."""
    load = f"{compiled}\n    missing = model.load_state_dict(saved)"
    line = " ".join(rewritten(LOADING.replace("LOAD", load)).split())
    assert "load_state_dict(saved) if isinstance(model, DistributedDataParallel) else" in line


def test_two_statements_on_a_line_stay_in_their_order() -> None:
    after = rewritten(LOADING.replace("LOAD", "print(saved); model.load_state_dict(saved)"))
    assert after.index("print(saved)") < after.index("isinstance(model")
    compile(after, "train.py", "exec")
