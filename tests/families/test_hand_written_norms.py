"""Norms of gradients that a program computes itself and adds up over the ranks."""

from __future__ import annotations

import pytest

from fsdp_migrate.planning.outcome import Outcome
from tests.helpers.migrating import migrate, outcomes

HEAD = "import torch\nimport torch.distributed as dist\n"
ENGINE = "from torch.distributed.fsdp import FullyShardedDataParallel as FSDP\n"
MAIN = """\
import importlib
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP


def main(net, name):
    model = FSDP(net)
    trainer = getattr(importlib.import_module("trainers"), name)
    trainer(model).train()
"""
TRAINER = """

class Trainer:
    def __init__(self, model):
        self.model = model

    def train(self):
"""
PLAIN_TEST = """\
from torch import nn
from trainers import Trainer


def test_it():
    Trainer(nn.Linear(2, 2)).train()
"""
SQUARES = {
    "loop": """
total = 0
for p in self.model.parameters():
    total += p.grad.norm() ** 2
dist.all_reduce(total)
""",
    "named": """
total = torch.zeros(1)
for name, p in self.model.named_parameters():
    if p.grad is not None:
        total += p.grad.detach().norm(2).item() ** 0 * p.grad.data.norm(2).pow(2)
dist.all_reduce(total, op=dist.ReduceOp.SUM)
""",
    "stacked": """
norm = torch.norm(torch.stack([p.grad.detach().norm(2) for p in self.model.parameters()]))
square = norm**2
dist.all_reduce(square)
""",
    "by names": """
norms = [torch.linalg.vector_norm(p.grad, 2) for p in self.model.parameters()]
total = torch.linalg.vector_norm(torch.stack(norms))
total = total * total
dist.all_reduce(total)
""",
    "sums": """
total = sum(p.grad.square().sum() for p in self.model.parameters())
dist.all_reduce(total)
""",
    "of order 1": """
total = sum(p.grad.norm(1) for p in self.model.parameters())
dist.all_reduce(total)
""",
}
ROOTS = {
    "stacked": """
norm = torch.norm(torch.stack([p.grad.detach().norm(2) for p in self.model.parameters()]))
if dist.is_initialized():
    dist.all_reduce(norm, op=dist.ReduceOp.SUM)
norm = norm.sqrt()
""",
    "by names": """
norms = [p.grad.norm() ** 2 for p in self.model.parameters()]
norm = torch.norm(torch.stack(norms))
dist.all_reduce(norm)
""",
    "squared too late": """
total = torch.stack([p.grad.norm() for p in self.model.parameters()]).sum()
dist.all_reduce(total)
again = total**2
""",
}


def trainer(body: str) -> str:
    lines = [f"        {line}" if line else "" for line in body.strip().splitlines()]
    return HEAD + TRAINER + "\n".join(lines) + "\n"


def project(body: str, *, tested: bool = False) -> dict[str, str]:
    files = {"main.py": MAIN, "trainers.py": trainer(body)}
    return files | ({"test_trainers.py": PLAIN_TEST} if tested else {})


@pytest.mark.parametrize("tested", [False, True])
@pytest.mark.parametrize("kind", SQUARES)
def test_each_rank_gives_its_own_part(kind: str, tested: bool) -> None:
    result, after = migrate(project(SQUARES[kind], tested=tested))
    assert ("FSDP408", Outcome.REWRITTEN) in outcomes(result)
    assert "own_part(p.grad" in after["trainers.py"]
    assert "TODO" not in after["trainers.py"]


@pytest.mark.parametrize("kind", ROOTS)
def test_norms_that_are_added_up_are_marked(kind: str) -> None:
    result, after = migrate(project(ROOTS[kind], tested=True))
    assert ("FSDP408", Outcome.REVIEW) in outcomes(result)
    assert "own_part(p.grad" in after["trainers.py"]
    assert "not their squares" in " ".join(after["trainers.py"].replace("#", "").split())


@pytest.mark.parametrize("kind", ROOTS)
def test_a_known_model_needs_no_support(kind: str) -> None:
    main = "\n\ndef main(net):\n    Trainer(FSDP(net, use_orig_params=True)).train()\n"
    text = ENGINE + trainer(ROOTS[kind]) + main
    result, after = migrate({"trainers.py": text})
    assert ("FSDP408", Outcome.REVIEW) in outcomes(result)
    assert "p.grad.to_local()" in after["trainers.py"] or ".to_local()" in after["trainers.py"]


BODY = SQUARES["loop"]
UNTOUCHED = {
    "a model under DDP": project(BODY)
    | {
        "other.py": "from torch.nn.parallel import DistributedDataParallel as DDP\n"
        "from trainers import Trainer\n\n\ndef run(net):\n    Trainer(DDP(net)).train()\n"
    },
    "code that knows DTensors": project(
        BODY.replace("p.grad.norm()", "p.grad.to_local().norm()")
        + "if isinstance(total, DTensor):\n    total = total.full_tensor()\n"
    ),
    "nothing is added up": project(BODY.replace("dist.all_reduce(total)", "print(total)")),
    "norms of inputs": project(BODY.replace("self.model.parameters()", "self.batches()")),
    "an input's gradient": project(
        "norm = self.model.start.grad.detach().norm(2)\ndist.all_reduce(norm)\n"
    ),
    "a branch for others": project(
        "if not isinstance(self.model, FSDP):\n"
        + "".join(f"    {line}\n" for line in BODY.strip().splitlines())
    ),
}
UNTOUCHED["a branch for others"]["trainers.py"] = (
    ENGINE + UNTOUCHED["a branch for others"]["trainers.py"]
)


@pytest.mark.parametrize("kind", UNTOUCHED)
def test_other_numbers_stay(kind: str) -> None:
    files = UNTOUCHED[kind]
    result, after = migrate(files)
    assert "FSDP408" not in {d.code for d in result.decisions}
    body = files["trainers.py"].partition("def train")[2].replace("FSDP)", "FSDPModule)")
    assert after["trainers.py"].partition("def train")[2] == body


def test_a_project_without_sharded_models_stays() -> None:
    files = {"trainers.py": trainer(BODY), "main.py": MAIN.replace("FSDP(net)", "net")}
    _, after = migrate(files)
    assert after["trainers.py"] == files["trainers.py"]


def test_the_norm_of_torchs_clipping_is_no_part_to_add_up() -> None:
    text = (
        HEAD
        + ENGINE
        + """

def main(net):
    model = FSDP(net)
    norm = torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    REDUCE
"""
    )
    for reduce, said in (("dist.all_reduce(norm)", True), ("print(norm)", False)):
        result, _ = migrate({"train.py": text.replace("REDUCE", reduce)})
        (clipped,) = [d for d in result.decisions if d.code == "FSDP401"]
        assert ("do not add it up" in clipped.help) == said


LISTED = """\
class Optimizer(torch.optim.Optimizer):
    def clip(self):
        norms = []
        for group in self.param_groups:
            for name, p in zip(group["names"], group["params"]):
                BODY
        total = torch.cat(norms) ** 2
        dist.all_reduce(total)
        return total


def run(net):
    model = FSDP(net, use_orig_params=True)
    optimizer = Optimizer([{"params": list(model.parameters()), "names": []}], {})
    model(net).backward()
    optimizer.clip()
"""
NORM = "norms.append(torch.linalg.vector_norm({v}, 2.0).unsqueeze(0))"
# A parameter's gradient is put into a list, and comes out of it again.
LISTS = {
    "a list": "for x in [p.grad]:\n    @x",
    "a name": "tensors = [p.grad]\nfor x in tensors:\n    @x",
    "annotated": "tensors: list = [p.grad]\nfor x in tensors:\n    @x",
    "extended": "tensors = []\ntensors.extend([p] + [other])\nfor x in tensors:\n    @x",
    "appended": "tensors = []\ntensors.append(p.grad)\nfor x in tensors:\n    @x",
    "added": "tensors = [p]\ntensors += [p.grad]\nfor x in tensors:\n    @x",
    "zipped": "tensors = [p.grad]\nfor x, y in zip(tensors, [name]):\n    @x",
    "counted": "tensors = (p.grad,)\nfor i, x in enumerate(tensors):\n    @x",
    "both": "tensors = [p.grad]\nfor i, (y, x) in enumerate(zip([name], tensors)):\n    @x",
}
# Other elements of a list of both, and lists that no parameter is in.
OTHER_LISTS = {
    "the names beside": "tensors = [p.grad]\nfor y, x in zip(tensors, other):\n    @x",
    "the count": "tensors = [p.grad]\nfor x, y in enumerate(tensors):\n    @x",
    "another list": "tensors = [p.grad]\nothers = [other]\nfor x in others:\n    @x",
}


def _listed(body: str) -> str:
    body = body.replace("@x", NORM.format(v="x")).replace("\n", "\n" + " " * 16)
    return HEAD + ENGINE + "\n\n" + LISTED.replace("BODY", body)


@pytest.mark.parametrize("body", LISTS.values(), ids=LISTS)
def test_gradients_that_come_out_of_a_list_are_this_ranks(body: str) -> None:
    _, after = migrate({"example.py": _listed(body)})
    assert NORM.format(v="own_part(x)") in after["example.py"]


@pytest.mark.parametrize("body", OTHER_LISTS.values(), ids=OTHER_LISTS)
def test_what_else_is_in_lists_is_left_alone(body: str) -> None:
    _, after = migrate({"example.py": _listed(body)})
    assert "own_part" not in after["example.py"]
