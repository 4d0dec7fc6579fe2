"""What allocates memory for rank 0's weights, and does nothing else, is written out."""

from __future__ import annotations

import pytest

from tests.helpers.migrating import migrate

PROGRAM = """\
import gc

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP


def init_fn(module):
    BODY


def shard_model(model, low_memory):
    return FSDP(model, param_init_fn=init_fn, sync_module_states=True)
"""
ALLOCATES = {
    "on every rank": "module.to_empty(device='cuda', recurse=False)",
    "given back": "return module.to_empty(device='cuda', recurse=False)",
    "on others": "if dist.get_rank() != 0:\n        module.to_empty(device='cuda', recurse=False)",
    "on others, else": "if dist.get_rank() == 0:\n        return module\n"
    "    else:\n        return module.to_empty(device='cuda')",
    "in one expression": "return module.to_empty(device='cuda') if dist.get_rank() else module",
    "with caches freed": "'''Allocate.'''\n    module = module.to_empty(device='cuda')\n"
    "    torch.cuda.empty_cache()\n    gc.collect()\n    return module",
}
DOES_MORE = {
    "initialises": "module.to_empty(device='cuda')\n    nn.init.normal_(module.weight)",
    "resets": "module.to_empty(device='cuda')\n    module.reset_parameters()",
    "of some modules": "if hasattr(module, 'weight'):\n        module.to_empty(device='cuda')",
    "of some modules, in one expression": "return module.to_empty(device='cuda') "
    "if module.training else module",
    "another module": "other.to_empty(device='cuda')\n    return module",
    "nothing": "return module",
    "in a loop": "for _ in range(2):\n        module.to_empty(device='cuda')",
    "with a value": "module.to_empty(device='cuda').fill_(1)",
    "an attribute": "module.to_empty(device='cuda')\n    module.materialised = True",
}


def written(body: str) -> str:
    _, after = migrate({"train.py": PROGRAM.replace("BODY", body)})
    return after["train.py"]


@pytest.mark.parametrize("which", ALLOCATES)
def test_allocates(which: str) -> None:
    text = written(ALLOCATES[which])
    assert "broadcast_from_rank0=True" in text
    assert "fully_shard(model)" in text


@pytest.mark.parametrize("which", DOES_MORE)
def test_does_more(which: str) -> None:
    assert "broadcast_from_rank0=True" not in written(DOES_MORE[which])


VARIABLE = """\
import torch
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP, MixedPrecision


def shard_model(model, config):
    buffer_dtype = config.buffers
    precision = MixedPrecision(param_dtype=torch.bfloat16, buffer_dtype=buffer_dtype)
    return FSDP(model, mixed_precision=precision)
"""


def test_a_buffer_dtype_in_a_variable() -> None:
    _, after = migrate({"train.py": VARIABLE})
    assert "buffer.data = buffer.to(buffer_dtype)" in after["train.py"]


def test_a_buffer_dtype_that_is_read_where_the_policy_is_made() -> None:
    _, after = migrate({"train.py": VARIABLE.replace("=buffer_dtype)", "=config.buffers)")})
    assert "    if config.buffers is not None:\n        for buffer" in after["train.py"]
    assert "buffer.data = buffer.to(config.buffers)" in after["train.py"]


@pytest.mark.parametrize(
    "program",
    [
        VARIABLE.replace("    return", "    buffer_dtype = torch.float16\n    return"),
        VARIABLE.replace("(model, config):", "(model, config, precision):").replace(
            "    precision = M", "    if config.mixed:\n        precision = M"
        ),
        VARIABLE.replace(
            "    return FSDP(model, mixed_precision=precision)",
            "    return precision\n\n\ndef build(model, config):\n"
            "    return FSDP(model, mixed_precision=shard_model(model, config))",
        ),
    ],
)
def test_a_buffer_dtype_that_may_be_another(program: str) -> None:
    _, after = migrate({"train.py": program})
    assert "fully_shard(" not in after["train.py"]
