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


INSIDE = """\
import torch
from torch import nn
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP
from torch.nn.parallel import DistributedDataParallel


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.head = nn.Linear(2, 2)

    def forward(self, x):
        return self.head(x)

    def generate(self, x):
        return self.head(x) + 1


def wrap(model):
    return FSDP(model)


def ask(model, other, flag):
    return CHOICE


def main(other, flag):
    model = wrap(Net())
    print(model(torch.ones(2)))
    return ask(model, other, flag)
"""
ONE = {
    "model.module if isinstance(model, FSDP) else model": "model",
    "model if not isinstance(model, FSDP) else model.module": "model",
    "model.module.head if isinstance(model, FSDP) else model.head": "model.head",
    "(model.module.names() if isinstance(model, FSDP) else model.names())": "(model.names())",
    "[model.module.tag if isinstance(model, FSDP) else model.tag, 1]": "[model.tag, 1]",
    'model.module.head if hasattr(model, "module") else model.head': "model.head",
    'model.head if not hasattr(model, "module") else model.module.head': "model.head",
    'print(model.module.head.tag if hasattr(model, "module") else model.head.tag, 1)': (
        "print(model.head.tag, 1)"
    ),
    "model.module.tag if flag else model.tag": "model.tag",
    "model.module if flag else model": "model",
}


@pytest.mark.parametrize("choice", ONE)
def test_the_module_inside_and_the_model_are_one(choice: str) -> None:
    after = rewritten(INSIDE.replace("CHOICE", choice))
    assert f"    return {ONE[choice]}\n" in after
    assert "FSDPModule" not in after


TWO = (
    "model.module.head if isinstance(model, FSDP) else model.tail",
    "model.module if isinstance(model, FSDP) and flag else model",
    "model.module if isinstance(model, (FSDP, DistributedDataParallel)) else model",
    "model.module.generate(other) if isinstance(model, FSDP) else model.generate(other)",
    "other.module if isinstance(model, FSDP) else other",
)
TWO_BY_OTHERS = (
    'model.module.head if hasattr(model, "module") else model.tail',
    'model.module.head if hasattr(other, "module") else model.head',
    "model.module.head if flag.pop() else model.head",
    'other.module.head if hasattr(other, "module") else other.head',
)


@pytest.mark.parametrize("choice", TWO_BY_OTHERS)
def test_what_others_tell_apart_stays_a_choice(choice: str) -> None:
    after = rewritten(INSIDE.replace("CHOICE", choice))
    assert f" if {choice.partition(' if ')[2]}\n" in after


@pytest.mark.parametrize("choice", TWO)
def test_what_is_not_equal_stays_a_choice(choice: str) -> None:
    after = rewritten(INSIDE.replace("CHOICE", choice))
    assert " if isinstance(model, " in " ".join(after.split())


CLIPPED = """\
import torch
from torch import nn
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP


def step(model, other, batch, optimizer, norm):
    model(batch).sum().backward()
    # of all ranks
    if TEST:
        OWN
    else:
        TORCHS
    optimizer.step()


def main(batches, other, norm):
    model = FSDP(nn.Linear(2, 2), SETTINGSuse_orig_params=True)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for batch in batches:
        step(model, other, batch, optimizer, norm)
"""
TORCHS = "nn.utils.clip_grad_norm_(model.parameters(), 1.0)"


def clipped(
    test: str = "isinstance(model, FSDP)",
    own: str = "model.clip_grad_norm_(1.0)",
    torchs: str = TORCHS,
    settings: str = "",
) -> str:
    text = CLIPPED.replace("TEST", test).replace("OWN", own).replace("TORCHS", torchs)
    after = rewritten(text.replace("SETTINGS", settings))
    return after.partition("    # of all ranks\n")[2].partition("    optimizer.step()")[0]


@pytest.mark.parametrize("limit", ["1.0", "norm", "norm * 2"])
@pytest.mark.parametrize("function", ["nn.utils.clip_grad_norm_", "torch.nn.utils.clip_grad_norm_"])
def test_two_ways_to_clip_are_one(limit: str, function: str) -> None:
    way = f"{function}(model.parameters(), {limit})"
    assert clipped(own=f"model.clip_grad_norm_({limit})", torchs=way) == f"    {way}\n"


@pytest.mark.parametrize(
    ("test", "own", "torchs", "settings"),
    [
        ("isinstance(model, FSDP)", "model.clip_grad_norm_(2.0)", TORCHS, ""),
        ("isinstance(model, FSDP)", "model.clip_grad_norm_(1.0, 1)", TORCHS, ""),
        ("isinstance(model, FSDP)", "print(model.clip_grad_norm_(1.0))", TORCHS, ""),
        ("isinstance(model, FSDP) and norm", "model.clip_grad_norm_(1.0)", TORCHS, ""),
        (
            "isinstance(model, FSDP)",
            "model.clip_grad_norm_(1.0)",
            TORCHS.replace("model", "other"),
            "",
        ),
        ("isinstance(model, FSDP)", "model.clip_grad_norm_(1.0)", f"{TORCHS}\n        print()", ""),
        (
            "isinstance(model, FSDP)",
            "model.clip_grad_norm_(1.0)",
            TORCHS,
            "ignored_modules=[other], ",
        ),
    ],
)
def test_two_ways_that_differ_stay(test: str, own: str, torchs: str, settings: str) -> None:
    after = clipped(test, own, torchs, settings)
    assert after.startswith("    if isinstance(model, FSDPModule)")
    assert "    else:\n" in after
