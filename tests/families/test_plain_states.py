"""Plain tensors that an optimizer of the project's own makes of a parameter's shape."""

from __future__ import annotations

import pytest

from tests.helpers.migrating import migrate

PROGRAM = """\
import torch
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP


class Own({base}):
    def step(self, closure=None):
        for group in self.param_groups:
            for p in group["params"]:
                grad = p.grad{taken}
                shape = grad.shape
                first = {made}
                self.state[p]["first"] = first.add_(grad)


TABLE = {{"own": Own}}


def build(net, name):
    {model} = FSDP(net)
    return net, {built}
"""
SHAPED = "torch.zeros(shape)"


def marked(
    *,
    base: str = "torch.optim.Optimizer",
    taken: str = "",
    made: str = SHAPED,
    model: str = "net",
    built: str = "Own(net.parameters())",
) -> bool:
    source = PROGRAM.format(base=base, taken=taken, made=made, model=model, built=built)
    result, after = migrate({"example.py": source})
    assert not result.problems
    return "A plain tensor of the shape" in after["example.py"]


@pytest.mark.parametrize(
    "made",
    [SHAPED, "torch.ones(p.shape[:-1])", "torch.empty(grad.size())", "torch.full(shape[1:], 1.0)"],
)
def test_a_tensor_of_a_shape_is_named(made: str) -> None:
    assert marked(made=made)


def test_by_a_table_of_optimizers_too() -> None:
    assert marked(built="TABLE[name](net.parameters())")


@pytest.mark.parametrize(
    "given",
    [
        {"made": "torch.zeros_like(grad)"},
        {"made": "torch.zeros(())"},
        {"made": "torch.zeros(shape[0])"},
        {"made": "numpy.zeros(shape)"},
        {"taken": ".to_local()"},
        {"base": "Scheduler"},
        {"built": "Own(name.parameters())"},
    ],
)
def test_what_has_no_shape_or_no_sharded_parameters_is_not(given: dict[str, str]) -> None:
    assert not marked(**given)
