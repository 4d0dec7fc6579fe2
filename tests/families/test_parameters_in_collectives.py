"""Parameters and gradients that get to collectives by way of an optimizer, a container or a
function."""

from __future__ import annotations

import pytest

from fsdp_migrate.planning.outcome import Outcome
from tests.helpers.migrating import migrate

REDUCE = """\
import torch.distributed as dist


def reduce(tensor, group=None):
    dist.all_reduce(tensor=tensor, group=group)
"""
BUILD = """\
import torch
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP
from adapter import Adapter


def groups(model):
    return ({"params": list(model.parameters()), "lr": 0.1},)


def build(net):
    model = FSDP(net, use_orig_params=True)
    return model, Adapter(torch.optim.AdamW(groups(MODEL)))
"""
ADAPTER = """\
from base import Base
from reducing import reduce


class Adapter(Base):
    def __init__(self, optimizer):
        super().__init__(optim=optimizer)
        self._held = HOLDER
        for i, group in enumerate(self.optim.param_groups):
            params = group["params"]
            self._held[i] = params

    def step(self):
        LOOP
"""
BASE = """\
from torch.optim import Optimizer


class Base(Optimizer):
    def __init__(self, optim):
        self.optim = optim

    @property
    def param_groups(self):
        return self.optim.param_groups
"""
LOOPS = {
    "groups": """
for group in self.param_groups:
    for p in group["params"]:
        reduce(p.grad)
""",
    "items of a dictionary": """
for i in range(2):
    held = self._held[i]
    for p in held:
        if p.grad is not None:
            reduce(tensor=p.grad.data)
""",
    "all of a dictionary": """
for i, held in self._held.items():
    for p in [q for q in self._held[i] if q.requires_grad]:
        grad = p.grad
        reduce(grad)
""",
}


def project(loop: str, holder: str = "{}", model: str = "model") -> dict[str, str]:
    lines = f"\n{' ' * 8}".join(loop.strip().splitlines())
    return {
        "build.py": BUILD.replace("MODEL", model),
        "adapter.py": ADAPTER.replace("LOOP", lines).replace("HOLDER", holder),
        "base.py": BASE,
        "reducing.py": REDUCE,
    }


@pytest.mark.parametrize("holder", ["{}", "dict()", "[None, None]"])
@pytest.mark.parametrize("loop", LOOPS.values(), ids=LOOPS)
def test_an_optimizers_parameters_get_to_another_file(loop: str, holder: str) -> None:
    result, after = migrate(project(loop, holder))
    assert "dist.all_reduce(tensor=own_part(tensor), group=group)" in after["reducing.py"]
    assert "TODO(fsdp-migrate FSDP408)" in after["reducing.py"]
    found = [d for d in result.decisions if d.code == "FSDP408"]
    assert [d.outcome for d in found] == [Outcome.REVIEW]


def test_a_norm_is_followed_to_the_optimizer() -> None:
    files = project("norm([p.grad for p in self._held[0]])")
    files["adapter.py"] = "from norms import norm\n" + files["adapter.py"]
    files["norms.py"] = (
        "import torch\nimport torch.distributed as dist\n\n\n"
        "def powers(grads, order):\n"
        "    return sum(torch.norm(grad, order) ** order for grad in grads)\n\n\n"
        "def norm(gradients):\n"
        "    total = powers([g.data.float() for g in gradients], 2)\n"
        "    dist.all_reduce(total)\n"
        "    return total.sqrt()\n"
    )
    _, after = migrate(files)
    assert "torch.norm(own_part(grad), order)" in after["norms.py"]


ONE_FILE = """\
import torch
import torch.distributed as dist
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP


def reduce(tensor):
    dist.all_reduce(tensor)


model = FSDP(net, use_orig_params=True)
"""
GIVEN = {
    "by its model": "for p in model.parameters():\n    reduce(p.grad)\n",
    "under a name": "for p in model.parameters():\n    g = p.grad.data\n    dist.all_reduce(g)\n",
    "made like one": (
        "for p in model.parameters():\n    got = torch.empty_like(p.grad)\n"
        "    dist.recv(got, src=0)\n"
    ),
    "a copy": "for p in model.parameters():\n    dist.all_reduce(p.grad.detach().clone())\n",
    "beside others": (
        "for p, e in zip(model.parameters(), extra):\n    reduce(p.grad)\n    dist.all_reduce(e)\n"
    ),
}
NOT_GIVEN = {
    "a loss": "for p in model.parameters():\n    p.grad = None\nreduce(loss)\n",
    "the other of two": "for p, e in zip(model.parameters(), extra):\n    reduce(e)\n",
    "a plain model's": (
        "plain = torch.nn.Linear(2, 2)\nfor p in plain.parameters():\n    reduce(p.grad)\n"
    ),
    "an optimizer's of a plain model": (
        "plain = torch.nn.Linear(2, 2)\noptimizer = torch.optim.SGD(plain.parameters())\n"
        'for group in optimizer.param_groups:\n    for p in group["params"]:\n'
        "        reduce(p.grad)\n"
    ),
    "made like a loss": "for p in model.parameters():\n    reduce(torch.zeros_like(loss))\n",
    "made like nothing": "for p in model.parameters():\n    reduce(torch.zeros(3))\n",
    "another number": "for p in model.parameters():\n    reduce(torch.tensor(1.0))\n",
}


@pytest.mark.parametrize("use", GIVEN.values(), ids=GIVEN)
def test_a_parameter_in_a_collective_is_this_ranks_part(use: str) -> None:
    result, after = migrate({"example.py": ONE_FILE + use})
    assert "fully_shard(net)" in after["example.py"]
    found = [d.outcome for d in result.decisions if d.code == "FSDP408"]
    assert found == [Outcome.REVIEW]
    assert "dist.all_reduce(e" not in after["example.py"] or "all_reduce(e)" in after["example.py"]


@pytest.mark.parametrize("use", NOT_GIVEN.values(), ids=NOT_GIVEN)
def test_what_is_no_parameter_stays(use: str) -> None:
    result, after = migrate({"example.py": ONE_FILE + use})
    assert "fully_shard(net)" in after["example.py"]
    assert all(d.code != "FSDP408" for d in result.decisions)


def test_an_optimizer_of_a_plain_model_stays() -> None:
    plain = "torch.nn.Linear(2, 2)"
    _, after = migrate(project(LOOPS["groups"], model=plain))
    assert after["reducing.py"] == REDUCE


def test_what_a_function_gives_back_is_the_whole_gradient() -> None:
    """Only the collective gets this rank's part: ``p.grad = averaged(p.grad)`` needs a DTensor."""
    text = ONE_FILE.replace("dist.all_reduce(tensor)", "dist.all_reduce(tensor)\n    return tensor")
    _, after = migrate(
        {"example.py": text + GIVEN["by its model"].replace("reduce(", "p.grad = reduce(")}
    )
    assert "dist.all_reduce(own_part(tensor))\n    return tensor" in after["example.py"]
    assert "p.grad = reduce(p.grad)" in after["example.py"]


def test_a_function_that_is_given_other_tensors_too_takes_both() -> None:
    _, after = migrate({"example.py": ONE_FILE + GIVEN["by its model"] + "reduce(loss)\n"})
    assert "dist.all_reduce(own_part(tensor))" in after["example.py"]


PICKED = """\
import torch.distributed as dist
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP


def exchange(pieces, peer):
    return [dist.P2POp(dist.isend, piece, peer) for piece in pieces.values()]


def main(net, plain):
    model = FSDP(net, use_orig_params=True)
    pieces = {name: p.grad for name, p in SOURCE.named_parameters()}
    listed = list(SOURCE.parameters())
    SENT
"""


@pytest.mark.parametrize(
    "sent",
    [
        "dist.isend(pieces['head'], 1)",
        "for name in pieces:\n        dist.isend(pieces[name], 1)",
        "dist.broadcast(listed[0], 0)",
        "for i in range(len(listed)):\n        dist.all_reduce(listed[i].grad)",
        "dist.batch_isend_irecv(exchange(pieces, 1))",
    ],
)
def test_what_is_picked_out_of_a_container(sent: str) -> None:
    for source, marked in (("model", True), ("plain", False)):
        program = PICKED.replace("SOURCE", source).replace("SENT", sent)
        result, after = migrate({"a.py": program})
        assert ("own_part(" in after["a.py"] or ".to_local()" in after["a.py"]) is marked
        assert (Outcome.REVIEW in {d.outcome for d in result.decisions}) is marked


def test_a_slice_is_a_list_as_before() -> None:
    program = PICKED.replace("SOURCE", "model").replace("SENT", "print(listed[:2])")
    _, after = migrate({"a.py": program})
    assert "own_part(" not in after["a.py"]
