"""What FSDP1's static functions give: settings and states are no models, its units are."""

from __future__ import annotations

import pytest

from tests.helpers.migrating import rewritten

PROGRAM = """\
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP, StateDictType


def train(net, optimizer):
    model = FSDP(net)
    before = FSDP.set_state_dict_type(model, StateDictType.FULL_STATE_DICT)
    USE
"""


@pytest.mark.parametrize(
    "use",
    [
        "return before.state_dict_type",
        "return FSDP.get_state_dict_type(model).state_dict_type",
        "FSDP.set_state_dict_type(model, before.state_dict_type, before.state_dict_config)",
    ],
)
def test_settings_are_no_models(use: str) -> None:
    after = rewritten(PROGRAM.replace("USE", use))
    assert ".state_dict_type" in after
    assert "TODO" not in after


@pytest.mark.parametrize("units", ["FSDP.fsdp_modules(model)", "list(FSDP.fsdp_modules(model))"])
def test_units_are_models(units: str) -> None:
    use = f"for unit in {units}:\n        unit.clip_grad_norm_(1.0)"
    after = rewritten(PROGRAM.replace("USE", use))
    assert "clip_grad_norm_(unit.parameters(), 1.0)" in after
    assert "TODO" not in after
