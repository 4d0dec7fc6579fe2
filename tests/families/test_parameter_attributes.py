"""What is set on something that is no parameter of a model is not carried over."""

from __future__ import annotations

import pytest

from tests.helpers.migrating import migrate

PROGRAM = """\
from unittest.mock import MagicMock

from torch.distributed.fsdp import FullyShardedDataParallel as FSDP


def shard(model, get_model):
    other = MagicMock()
    {statement}
    model = FSDP(model, use_orig_params=True)
    return [(p.scale, p.shape, p.device) for p in model.parameters()]
"""


def codes(statement: str) -> set[str]:
    source = PROGRAM.format(statement=statement)
    result, _ = migrate({"train.py": source.encode()})
    return {decision.code for decision in result.decisions}


@pytest.mark.parametrize(
    "statement",
    [
        "get_model.return_value.get_input_embeddings.return_value.weight.scale = 2.0",
        "get_model.side_effect[0].weight.scale = 2.0",
        "other.head.weight.scale = 2.0",
        "other().head.weight.scale = 2.0",
        "model.head.weight.shape = [0]",
        "model.head.weight.device = 'cpu'",
    ],
)
def test_no_parameter(statement: str) -> None:
    assert "FSDP412" not in codes(statement)


def test_a_parameter() -> None:
    assert "FSDP412" in codes("model.head.weight.scale = 2.0")
    assert "FSDP412" in codes("get_model().head.weight.scale = 2.0")
