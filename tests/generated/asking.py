"""Small programs in which a sharded model is hidden in some way, and then asked for something.

What is asked means another thing for FSDP1's wrapper than for a sharded module: every program has
to come out changed, marked, held back, or named in the report, in the line that asks.
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from fsdp_migrate.migration.engine import Options
from fsdp_migrate.planning.outcome import Outcome
from tests.generated import hiding
from tests.helpers.migrating import ROOT, migrate

PROGRAM = """\
import copy
import functools

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP
{above}


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = nn.Linear(4, 4)
        self.head = nn.Linear(4, 2)

    def forward(self, x):
        return self.head(self.body(x))

    def encode(self, x):
        return self.body(x)


@functools.singledispatch
def scale(model):
    return 1.0


@scale.register
def scale_net(model: Net):
    return 2.0


TABLE = {{Net: 2.0}}


{body}"""
BODIES: Mapping[str, str] = {
    "a function": """\
def train(batches):
    model = FSDP(Net(), use_orig_params=True)
    hidden = {hidden}
    for batch in batches:
        hidden(batch).sum().backward()
        {asked}
""",
    "another function": """\
def use(hidden, batch):
    {asked}


def train(batches):
    model = FSDP(Net(), use_orig_params=True)
    for batch in batches:
        model(batch).sum().backward()
        use({hidden}, batch)
""",
    "a method": """\
class Trainer:
    def __init__(self):
        model = FSDP(Net(), use_orig_params=True)
        self.hidden = {hidden}

    def step(self, batch):
        hidden = self.hidden
        hidden(batch).sum().backward()
        {asked}
""",
}
# What is asked of a model, in a line of its own; ``hidden`` is the model.
ASKED: Mapping[str, str] = {
    "a state": "torch.save(hidden.state_dict(), 'a')",
    "a load": "hidden.load_state_dict(torch.load('a'))",
    "a clip": "hidden.clip_grad_norm_(1.0)",
    "torch's clip": "torch.nn.utils.clip_grad_norm_(hidden.parameters(), 1.0)",
    "the module": "print(hidden.module)",
    "no_sync": "hidden.no_sync().__enter__()",
    "forward": "hidden.forward(batch)",
    "an entry": "hidden.encode(batch)",
    "summon": "FSDP.summon_full_params(hidden).__enter__()",
    "isinstance": "scaled = 2.0 if isinstance(hidden, Net) else 1.0",
    "dispatch": "scaled = scale(hidden)",
    "children": "parts = list(hidden.children())",
    "shapes": "flat = [p for p in hidden.parameters() if p.ndim < 2]",
    "counts": "count = sum(p.numel() for p in hidden.parameters())",
    "data": "for p in hidden.parameters():\n            p.data = p.data * 2",
    "a collective": "for p in hidden.parameters():\n            dist.all_reduce(p.grad)",
    "a norm": "total = sum(p.grad.norm() ** 2 for p in hidden.parameters())",
    "a parameter": "hidden.head.weight = nn.Parameter(torch.ones(2, 4))",
    "a copy": "average = copy.deepcopy(hidden)",
    "a vector": "flat = torch.cat([p.flatten() for p in hidden.parameters()])",
    "the whole": "torch.save(hidden, 'a')",
    "a strategy": "print(hidden.sharding_strategy)",
}


@dataclass(frozen=True)
class Question:
    """One program, and the line that asks."""

    where: str
    way: str
    asked: str
    text: str
    line: int

    def __str__(self) -> str:
        return f"{self.asked} in {self.where}, hidden in {self.way}"


def questions() -> Iterator[Question]:
    """Every way to hide a model, with everything that it can be asked for."""
    for where, body in BODIES.items():
        for way, form in hiding.EXPRESSIONS.items():
            written, _, above = form.partition("|")
            hidden = written.format("model", "model")
            for name, asked in ASKED.items():
                deep = "        " if "        {asked}" in body else "    "
                line = asked.replace("\n            ", f"\n{deep}    ")
                text = PROGRAM.format(above=above, body=body.format(hidden=hidden, asked=line))
                first = asked.splitlines()[0]
                number = next(n for n, each in enumerate(text.splitlines(), 1) if first in each)
                yield Question(where, way, name, text, number)


def chosen(count: int, seed: int) -> list[Question]:
    """So many of them, in an order that a seed tells."""
    every = list(questions())
    random.Random(seed).shuffle(every)
    return every[:count]


def is_said(question: Question, options: Options | None = None) -> bool:
    """Whether something is done or said about the line that asks."""
    result, after = migrate({"train.py": question.text}, options)
    asking = question.text.splitlines()[question.line - 1 :]
    lines = range(question.line, question.line + (2 if asking[0].endswith(":") else 1))
    if any(d.site.statement.lineno in lines for d in result.decisions):
        return True
    if result.problems or "fully_shard(" not in after["train.py"]:
        return True  # it is as it was
    if any(place.display == "train.py" for place in result.not_followed):
        return True
    made = [d for d in result.decisions if d.site.module.source.path == ROOT / "train.py"]
    return any(d.outcome is Outcome.LEFT for d in made)
