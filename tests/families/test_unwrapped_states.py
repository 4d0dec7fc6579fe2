"""States of what a function of the program's own takes out of its wrappers: ``unwrap(model)``."""

from __future__ import annotations

import pytest

from tests.helpers.migrating import rewritten

PROGRAM = """\
from torch import nn
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP
from torch.nn.parallel import DistributedDataParallel as DDP

UNWRAP

def wrap(net, engine):
    if engine == "fsdp":
        return FSDP(net)
    return DDP(net)


def main(engine, state, other):
    model = wrap(nn.Linear(4, 4), engine)
    BODY


main("fsdp", {}, wrap(nn.Linear(4, 4), "fsdp"))
"""
LOOP = """
def unwrap(model):
    while isinstance(model, (DDP, FSDP)):
        model = model.module
    return model
"""
ONCE = """
def unwrap(model):
    return model.module if isinstance(model, (DDP, FSDP)) else model
"""
TWO = """
def unwrap(model):
    if isinstance(model, FSDP):
        return model.module
    if isinstance(model, DDP):
        model = model.module
    return model
"""
OTHER = """
SAME = FSDP(nn.Linear(4, 4))


def unwrap(model):
    model = SAME
    while isinstance(model, (DDP, FSDP)):
        model = model.module
    return model
"""


def after(unwrap: str, *body: str) -> str:
    return rewritten(PROGRAM.replace("UNWRAP", unwrap).replace("BODY", "\n    ".join(body)))


@pytest.mark.parametrize("unwrap", [LOOP, ONCE, TWO])
@pytest.mark.parametrize(
    "body",
    [
        ("if isinstance(model, FSDP):", "    return None", "return unwrap(model).state_dict()"),
        (
            "if isinstance(model, FSDP):",
            "    return None",
            "inner = unwrap(model)",
            "return inner.state_dict()",
        ),
        ("if isinstance(model, DDP):", "    return unwrap(model).state_dict()"),
        (
            "if isinstance(model, FSDP):",
            "    pass",
            "else:",
            "    unwrap(model).load_state_dict(state)",
        ),
    ],
)
def test_what_is_told_to_be_no_model_of_fsdps_keeps_its_own(
    unwrap: str, body: tuple[str, ...]
) -> None:
    text = after(unwrap, *body)
    assert body[-1].strip() in text
    assert "model_state_dict(" not in text
    assert "TODO" not in text


@pytest.mark.parametrize(
    ("unwrap", "body"),
    [
        (LOOP, ("return unwrap(model).state_dict()",)),
        (LOOP, ("inner = unwrap(model)", "return inner.state_dict()")),
        (LOOP, ("if isinstance(model, FSDP):", "    return unwrap(model).state_dict()")),
        (LOOP, ("if isinstance(model, FSDP):", "    pass", "return unwrap(model).state_dict()")),
        (
            LOOP,
            (
                "if isinstance(model, FSDP):",
                "    return None",
                "return unwrap(other).state_dict()",
            ),
        ),
        (
            LOOP,
            (
                "if isinstance(model, FSDP):",
                "    return None",
                'model = wrap(model.module, "fsdp")',
                "return unwrap(model).state_dict()",
            ),
        ),
        (
            OTHER,
            (
                "if isinstance(model, FSDP):",
                "    return None",
                "return unwrap(model).state_dict()",
            ),
        ),
        (LOOP, ("unwrap(model).load_state_dict(state)",)),
    ],
)
def test_what_may_be_a_model_of_fsdps_is_asked_by_torchs_functions(
    unwrap: str, body: tuple[str, ...]
) -> None:
    assert "model_state_dict(" in after(unwrap, *body)
