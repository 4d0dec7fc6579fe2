"""Constants of a module that a file, or a command line, gives other values through ``exec``."""

from __future__ import annotations

import pytest

from tests.helpers.migrating import migrate

PROGRAM = """\
from torch.distributed.fsdp import CPUOffload, FullyShardedDataParallel as FSDP

offload = False
{reads}
model = FSDP(net, cpu_offload=CPUOffload(offload_params=offload))
"""
CHOSEN = "offload_policy=CPUOffloadPolicy() if offload else OffloadPolicy()"
READS = {
    "a file": "exec(open('configurator.py').read())",
    "a file, into the module": "exec(open('configurator.py').read(), globals())",
    "text": "exec(text)",
    "text in sight that sets it": "exec('offload = True')",
}
FIXED = {
    "nothing": "",
    "text in sight that sets another": "exec('seed = 1')",
    "a method of that name": "database.exec(text)",
    "text that is evaluated": "seed = eval(text)",
}


def _migrated(reads: str) -> str:
    return migrate({"example.py": PROGRAM.format(reads=reads)})[1]["example.py"]


@pytest.mark.parametrize("reads", READS.values(), ids=READS)
def test_what_text_may_set_is_asked_when_the_program_runs(reads: str) -> None:
    assert CHOSEN in _migrated(reads)


@pytest.mark.parametrize("reads", FIXED.values(), ids=FIXED)
def test_what_nothing_else_sets_is_known(reads: str) -> None:
    assert "OffloadPolicy" not in _migrated(reads)
