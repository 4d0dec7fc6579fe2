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

    def configure(self, rate):
        return torch.optim.SGD(self.parameters(), lr=rate)


@functools.singledispatch
def scale(model):
    return 1.0


@scale.register
def scale_net(model: Net):
    return 2.0


TABLE = {{Net: 2.0}}


def norm_of(parameters):
    return sum(p.grad.norm() ** 2 for p in parameters)


def count_of(model):
    return sum(p.numel() for p in model.parameters())


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
    "tied": "hidden.head.weight = hidden.body.weight",
    "hooks": (
        "for p in hidden.parameters():\n            p.register_post_accumulate_grad_hook(print)"
    ),
    "inputs": "hidden(batch).sum().backward(inputs=list(hidden.parameters()))",
    "states on the CPU": "kept = {k: v.cpu() for k, v in hidden.state_dict().items()}",
    "a norm of a helper": "total = norm_of(hidden.parameters())",
    "a count of a helper": "number = count_of(hidden)",
}
# What is asked of a model before it is wrapped, and what is done with it afterwards.
EARLY: Mapping[str, tuple[str, str]] = {
    "an optimizer": ("kept = torch.optim.SGD(hidden.parameters(), lr=0.1)", "kept.step()"),
    "an optimizer of its own": ("kept = hidden.configure(0.1)", "kept.step()"),
    "an optimizer of a list": (
        "kept = torch.optim.SGD(list(hidden.parameters()), lr=0.1)",
        "kept.step()",
    ),
    "an optimizer of groups": (
        "kept = torch.optim.SGD([{'params': [p for n, p in hidden.named_parameters()]}], lr=0.1)",
        "kept.step()",
    ),
    "an optimizer of a part": (
        "kept = torch.optim.SGD(hidden.head.parameters(), lr=0.1)",
        "kept.step()",
    ),
    "a list": ("kept = list(hidden.parameters())", "torch.nn.utils.clip_grad_norm_(kept, 1.0)"),
    "a dictionary": (
        "kept = dict(hidden.named_parameters())",
        "kept['head.weight'].data.mul_(2.0)",
    ),
    "a parameter": ("kept = hidden.head.weight", "print(kept.grad.norm())"),
}
HELPERS: Mapping[str, str] = {  # the line of the function that does what is asked
    "norm_of": "    return sum(p.grad.norm() ** 2 for p in parameters)",
    "count_of": "    return sum(p.numel() for p in model.parameters())",
}
EARLY_BODIES: Mapping[str, str] = {
    "a function, before the wrap": """\
def train(batches):
    net = Net()
    hidden = {hidden}
    {asked}
    model = FSDP(net, use_orig_params=True)
    for batch in batches:
        model(batch).sum().backward()
        {later}
""",
    "a function, before another wraps": """\
def wrap(net):
    return FSDP(net, use_orig_params=True)


def train(batches):
    net = Net()
    hidden = {hidden}
    {asked}
    model = wrap(net)
    for batch in batches:
        model(batch).sum().backward()
        {later}
""",
    "a method, before another wraps": """\
class Trainer:
    def __init__(self):
        self.net = net = Net()
        hidden = {hidden}
        {asked}
        self.kept = kept

    def shard(self):
        self.net = FSDP(self.net, use_orig_params=True)

    def step(self, batch):
        kept, model = self.kept, self.net
        model(batch).sum().backward()
        {later}
""",
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
                helped = (line for helper, line in HELPERS.items() if f"{helper}(" in asked)
                first = next(helped, asked.splitlines()[0])
                number = next(n for n, each in enumerate(text.splitlines(), 1) if first in each)
                yield Question(where, way, name, text, number)
    yield from _early_questions()


def _early_questions() -> Iterator[Question]:
    """Every way to hide a model that is not wrapped yet, with what is kept of it."""
    for where, body in EARLY_BODIES.items():
        for way, form in hiding.EXPRESSIONS.items():
            written, _, above = form.partition("|")
            hidden = written.format("net", "net")
            for name, (asked, later) in EARLY.items():
                made = body.format(hidden=hidden, asked=asked, later=later)
                text = PROGRAM.format(above=above, body=made)
                number = next(n for n, line in enumerate(text.splitlines(), 1) if asked in line)
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
