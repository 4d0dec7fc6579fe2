"""torch's own clipping of a model that is sharded only sometimes."""

from __future__ import annotations

import pytest

from tests.helpers.migrating import migrate

HEAD = """\
from typing import cast

from torch import nn
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP
from torch.nn.utils import clip_grad_norm_


def step(model):
    clip_grad_norm_(model.parameters(), 0.05)


"""
SHARDED = {
    "always": "step(FSDP(nn.Linear(2, 2)))\n",
    "sometimes": "step(FSDP(nn.Linear(2, 2)) if many else nn.Linear(2, 2))\n",
    "by two callers": "step(FSDP(nn.Linear(2, 2)))\nstep(nn.Linear(2, 2))\n",
    "behind a cast": "step(cast(nn.Module, FSDP(nn.Linear(2, 2))))\n",
}


@pytest.mark.parametrize("call", SHARDED.values(), ids=SHARDED)
def test_what_differs_is_said(call: str) -> None:
    _, after = migrate({"train.py": HEAD + call})
    assert after["train.py"].count("# TODO(fsdp-migrate FSDP401)") == 1
    assert "clip_grad_norm_(model.parameters(), 0.05)" in after["train.py"]


def test_a_model_that_is_never_sharded_is_left() -> None:
    source = HEAD + "step(nn.Linear(2, 2))\nother = FSDP(nn.Linear(2, 2))\n"
    _, after = migrate({"train.py": source})
    assert "TODO" not in after["train.py"]


def test_the_inner_module_behind_a_cast_is_the_model() -> None:
    source = HEAD + "net = cast(nn.Module, FSDP(nn.Linear(2, 2)))\nforward = net.module.forward\n"
    _, after = migrate({"train.py": source})
    assert "forward = net.forward\n" in after["train.py"]


WRAPPERS = """\
import torch
from torch import nn
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP
from torch.nn.parallel import DistributedDataParallel as DDP


"""
BY_CLASS = WRAPPERS + (
    "def build(net, kind):\n"
    '    return DDP(net) if kind == "ddp" else FSDP(net)\n\n\n'
    "def main(kind):\n"
    "    model = build(nn.Linear(2, 2), kind)\n"
    "    if TEST:\n"
    "        torch.nn.utils.clip_grad_norm_(ONE, 1.0)\n"
    "    else:\n"
    "        torch.nn.utils.clip_grad_norm_(OTHER, 1.0)\n"
)
WHOLE, INSIDE = "model.parameters()", "model.module.parameters()"


@pytest.mark.parametrize(
    ("test", "one", "other", "said_of"),
    [
        ("isinstance(model, DDP)", INSIDE, WHOLE, 1),
        ("isinstance(model, DDP)", WHOLE, WHOLE, 1),
        ("isinstance(model, (DDP, nn.DataParallel))", INSIDE, WHOLE, 1),
        ("not isinstance(model, DDP)", WHOLE, INSIDE, 0),
        ("isinstance(model, FSDP)", WHOLE, INSIDE, 0),
        ("not isinstance(model, FSDP)", INSIDE, WHOLE, 1),
        ('hasattr(model, "no_sync")', WHOLE, WHOLE, 0),
    ],
)
def test_the_branch_of_the_model_that_is_sharded_is_told(
    test: str, one: str, other: str, said_of: int
) -> None:
    text = BY_CLASS.replace("TEST", test).replace("ONE", one).replace("OTHER", other)
    _, after = migrate({"train.py": text})
    arms = after["train.py"].partition("    if ")[2].split("    else:\n")
    assert ["TODO" in arm for arm in arms] == [said_of == 0, said_of == 1]


@pytest.mark.parametrize(
    "made", ["DDP(FSDP(nn.Linear(2, 2)))", "DDP(build(nn.Linear(2, 2), kind))"]
)
def test_what_is_sharded_inside_another_wrapper_is_told(made: str) -> None:
    text = BY_CLASS.replace("build(nn.Linear(2, 2), kind)", made).replace("ONE", INSIDE)
    text = text.replace("TEST", "isinstance(model, DDP)").replace("OTHER", WHOLE)
    _, after = migrate({"train.py": text})
    assert "TODO(fsdp-migrate FSDP401)" in after["train.py"].partition("    if ")[2]


BY_SETTING = WRAPPERS + (
    "class Trainer:\n"
    '    def __init__(self, model, strategy="ddp"):\n'
    "        self.strategy = GIVEN\n"
    "        self.model = self.wrap(model)\n\n"
    "    def wrap(self, model):\n"
    '        if self.strategy == "ddp":\n'
    "            return DDP(model)\n"
    '        elif self.strategy == "fsdp":\n'
    "            return FSDP(model)\n"
    "        return model\n\n"
    "    def step(self, batch, optimizer):\n"
    "        self.model(batch).sum().backward()\n"
    '        if self.strategy == "ddp":\n'
    "            torch.nn.utils.clip_grad_norm_(self.model.module.parameters(), 1.0)\n"
    "        else:\n"
    "            torch.nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)\n"
    "        optimizer.step()\n\n\n"
    "def main(args):\n"
    "    trainer = Trainer(nn.Linear(4, 4), args.strategy)\n"
    '    Trainer(nn.Linear(4, 4), "ddp")\n'
    "    optimizer = torch.optim.AdamW(trainer.model.parameters())\n"
    "    for _ in range(3):\n"
    "        trainer.step(torch.randn(2, 4), optimizer)\n"
)


@pytest.mark.parametrize(
    "given", ["strategy.lower()", "strategy", "strategy.kind", "str(strategy)"]
)
def test_what_an_object_was_made_with_is_its_own_in_every_method(given: str) -> None:
    _, after = migrate({"train.py": BY_SETTING.replace("GIVEN", given)})
    ours = after["train.py"].partition("def step")[2]
    assert "clip_grad_norm_(self.model.module.parameters(), 1.0)" in ours
    assert ours.count("TODO(fsdp-migrate FSDP401)") == 1


@pytest.mark.parametrize(
    "changed",
    [
        ("    for _ in range(3):\n", '    trainer.strategy = "ddp"\n    for _ in range(3):\n'),
        (
            "        self.model = self.wrap(model)\n",
            '        self.model = self.wrap(model)\n        self.strategy = "ddp"\n',
        ),
    ],
)
def test_an_answer_that_is_changed_tells_nothing(changed: tuple[str, str]) -> None:
    text = BY_SETTING.replace("GIVEN", "strategy.lower()").replace(*changed)
    _, after = migrate({"train.py": text})
    ours = after["train.py"].partition("def step")[2].partition("else:")[0]
    assert "TODO(fsdp-migrate FSDP401)" in ours


CHANGED_ELSEWHERE = {
    "by a function that nothing here calls": (
        'def change(trainer):\n    trainer.strategy = "ddp"\n'
    ),
    "by setattr": 'def change(trainer):\n    setattr(trainer, "strategy", "ddp")\n',
    "in a loop": 'def change(trainers):\n    for t in trainers:\n        t.strategy = "ddp"\n',
}


@pytest.mark.parametrize("given", ["strategy", "strategy.lower()"])
@pytest.mark.parametrize("change", CHANGED_ELSEWHERE.values(), ids=CHANGED_ELSEWHERE)
def test_an_answer_that_may_be_changed_elsewhere_tells_nothing(change: str, given: str) -> None:
    text = BY_SETTING.replace("GIVEN", given) + f"\n\n{change}"
    _, after = migrate({"train.py": text})
    ours = after["train.py"].partition("def step")[2].partition("else:")[0]
    assert "TODO(fsdp-migrate FSDP401)" in ours


def test_an_object_of_another_class_changes_no_answer() -> None:
    other = (
        "class Other:\n    strategy = None\n\n\n"
        'def change():\n    other = Other()\n    other.strategy = "ddp"\n'
    )
    text = BY_SETTING.replace("GIVEN", "strategy") + f"\n\n{other}"
    _, after = migrate({"train.py": text})
    ours = after["train.py"].partition("def step")[2].partition("else:")[0]
    assert "TODO" not in ours
