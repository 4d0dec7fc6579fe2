"""FSDP1's functions for states that a program only looks at."""

from __future__ import annotations

from tests.helpers.migrating import migrate

PROGRAM = """\
import inspect

from torch.distributed.fsdp import FullyShardedDataParallel as FSDP

KNOWS = "optim_state_dict_config" in inspect.signature(FSDP.optim_state_dict).parameters


def build(net):
    return FSDP(net)
"""


def test_the_reason_speaks_of_no_arguments() -> None:
    after = migrate({"train.py": PROGRAM})[1]["train.py"]
    assert "FSDP304): FSDP1's function is read and not called." in after
    assert "arguments" not in after
