"""Functions that are put in the place of methods which FSDP2 models have not."""

from __future__ import annotations

import pytest

from fsdp_migrate.planning.outcome import Outcome
from tests.helpers.migrating import migrate

PROGRAM = """\
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP


def train(net, batch, clip, other):
    model = FSDP(net, use_orig_params=True)
    STATEMENT
    model(batch).sum().backward()
    return model
"""
TOLD = {
    "no_sync": "model.no_sync = clip",
    "one of two": "other.seen, model.no_sync = 0, clip",
}
HELD = {
    "clipping": "model.clip_grad_norm_ = clip",
    "a static": "model.state_dict_type = clip",
}
OTHERS = {
    "another object's": "other.no_sync = clip",
    "an attribute of its own": "model.note = clip",
    "a setting of a class of its own": "other.clip_grad_norm_ = clip",
}


@pytest.mark.parametrize("statement", TOLD.values(), ids=TOLD)
def test_a_function_that_nothing_calls_is_told(statement: str) -> None:
    result, after = migrate({"train.py": PROGRAM.replace("STATEMENT", statement)})
    assert "is replaced, which a migrated model would not feel" in " ".join(
        d.message for d in result.decisions
    )
    assert "fully_shard(net)" in after["train.py"]
    assert "TODO(fsdp-migrate FSDP499)" in after["train.py"]
    assert "  STATEMENT" not in after["train.py"]


@pytest.mark.parametrize("statement", HELD.values(), ids=HELD)
def test_one_that_would_train_otherwise_holds_its_model_back(statement: str) -> None:
    result, after = migrate({"train.py": PROGRAM.replace("STATEMENT", statement)})
    assert {d.outcome for d in result.decisions} == {Outcome.LEFT}
    assert "= FSDP(net, use_orig_params=True)" in after["train.py"]


@pytest.mark.parametrize("statement", OTHERS.values(), ids=OTHERS)
def test_what_is_no_models_is_left_alone(statement: str) -> None:
    result, after = migrate({"train.py": PROGRAM.replace("STATEMENT", statement)})
    assert {d.outcome for d in result.decisions} == {Outcome.REWRITTEN}
    assert statement in after["train.py"]
    assert "TODO" not in after["train.py"]
