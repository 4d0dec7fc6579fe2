"""torch's own clipping, wherever the parameters that it is given come from."""

from __future__ import annotations

import pytest

from fsdp_migrate.planning.outcome import Outcome
from tests.helpers.migrating import migrate

HEAD = """\
from dataclasses import dataclass

import torch
from torch import nn
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP
from torch.nn.utils import clip_grad_norm_ as clip


@dataclass
class Models:
    net: nn.Module


def build():
    return FSDP(nn.Linear(4, 4), use_orig_params=True)


"""
LOCAL = "FSDP1 clipped by the norm of each rank's own part here"
CLIPPED = {
    "a field of a dataclass": "models = Models(net=build())\nclip(models.net.parameters(), 1.0)\n",
    "a field of an unknown object": "def step(models):\n    clip(models.net.parameters(), 1.0)\n",
    "an attribute that others set": (
        "class Task:\n    def step(self):\n        clip(self.net.parameters(), 1.0)\n"
    ),
    "a list kept in an object": (
        "class Clipper:\n    def __init__(self, given):\n        self.given = given\n\n"
        "    def clip(self):\n        return torch.nn.utils.clip_grad_norm_(self.given, 1.0)\n\n\n"
        "Clipper(list(build().parameters())).clip()\n"
    ),
    "a list that a loop fills": (
        "trained = []\nfor name, p in build().named_parameters():\n    trained.append(p)\n"
        "clip(trained, 1.0)\n"
    ),
    "a list that a function returns beside another": (
        "def trained(model):\n    names, found = [], []\n"
        "    for name, p in model.named_parameters():\n        found.append(p)\n"
        "    return names, found\n\n\nclip(trained(build())[1], 1.0)\n"
    ),
    "an argument": "def step(given):\n    clip(given, 1.0)\n\n\nstep(build().parameters())\n",
    "a part of a model": (
        "def step(model):\n    clip(model.model.layers[0].parameters(), 1.0)\n\n\nstep(build())\n"
    ),
    "an argument by name": "clip(parameters=build().parameters(), max_norm=1.0)\n",
}


@pytest.mark.parametrize("use", CLIPPED.values(), ids=CLIPPED)
def test_clipping_by_the_norm_of_a_part_is_marked(use: str) -> None:
    result, after = migrate({"example.py": HEAD + use})
    assert LOCAL in " ".join(after["example.py"].replace("#", " ").split())
    found = [d for d in result.decisions if d.code == "FSDP401"]
    assert [d.outcome for d in found] == [Outcome.REVIEW]


def test_a_number_of_a_list_in_an_object_is_that_of_all_ranks() -> None:
    use = CLIPPED["a list kept in an object"].replace(", 1.0)\n\n", ", 1.0).item()\n\n")
    _, after = migrate({"example.py": HEAD + use})
    assert "clip_grad_norm_(self.given, 1.0).full_tensor().item()" in after["example.py"]


OTHERS = {
    "a part of a plain model": (
        "def step(model):\n    clip(model.model.parameters(), 1.0)\n\n\n"
        "step(nn.Sequential())\nbuild()\n"
    ),
    "a plain model": "net = nn.Linear(4, 4)\nclip(net.parameters(), 1.0)\n",
    "a list of a plain model's": (
        "found = []\nfor p in nn.Linear(4, 4).parameters():\n    found.append(p)\nclip(found, 1)\n"
    ),
    "another field of a dataclass": (
        "@dataclass\nclass Pair:\n    net: nn.Module\n    plain: nn.Module\n\n\n"
        "pair = Pair(net=build(), plain=nn.Linear(4, 4))\nclip(pair.plain.parameters(), 1.0)\n"
    ),
    "DistributedDataParallel": (
        "from torch.nn.parallel import DistributedDataParallel as DDP\n\n\n"
        "def step(net):\n    net = DDP(net)\n    clip(net.parameters(), 1.0)\n"
    ),
    "beside FSDP's own": (
        "def step(net, sharded):\n    if sharded:\n        net.clip_grad_norm_(1.0)\n"
        "    else:\n        clip(net.parameters(), 1.0)\n"
    ),
    "an engine's": (
        "import deepspeed\n\nengine, _ = deepspeed.initialize()\nclip(engine.parameters(), 1.0)\n"
    ),
    "values instead": "def step(net):\n    nn.utils.clip_grad_value_(net.parameters(), 1.0)\n",
}


@pytest.mark.parametrize("use", OTHERS.values(), ids=OTHERS)
def test_clipping_of_something_else_stays(use: str) -> None:
    result, after = migrate({"example.py": HEAD + use})
    assert after["example.py"].endswith(use.splitlines(keepends=True)[-1])
    assert LOCAL not in " ".join(after["example.py"].replace("#", " ").split())
    assert "fully_shard(nn.Linear(4, 4))" in after["example.py"]
    assert not [d for d in result.decisions if d.code == "FSDP401" and not d.site.doubt]


IGNORING = """\
import torch
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP


def train(net, batches):
    FREEZE
    model = FSDP(net, ignored_modules=[net.head])
    trained = [p for p in model.parameters() if p.requires_grad]
    for batch in batches:
        model(batch).sum().backward()
        torch.nn.utils.clip_grad_norm_(trained, 1.0)
"""


def test_a_list_with_ignored_parameters_is_left() -> None:
    """torch clips no list of sharded tensors and plain ones: it raises an error."""
    result, after = migrate({"train.py": IGNORING.replace("FREEZE", "net.train()")})
    (clip,) = (d for d in result.decisions if d.code == "FSDP401")
    assert clip.outcome is Outcome.LEFT
    assert "one call cannot clip both kinds" in clip.message
    assert "fully_shard(net" in after["train.py"]


def test_a_list_beside_frozen_ignored_parameters_is_clipped() -> None:
    result, _ = migrate({"train.py": IGNORING.replace("FREEZE", "net.head.requires_grad_(False)")})
    (clip,) = (d for d in result.decisions if d.code == "FSDP401")
    assert clip.outcome is not Outcome.LEFT


GROUPED = """\
import torch
from collections import defaultdict
from torch import nn
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP


def main(net):
    model = FSDP(net, use_orig_params=True, ignored_modules=[net.head])
    a, b, c = {}, defaultdict(list), {"x": [], "y": []}
    for n, p in NAMED:
        a.setdefault(n.split(".")[0], []).append(p)
        b[n].append(p)
        c["x" if p.grad is None else "y"].append(p)
    groups = [{"params": c["x"], "lr": 1.0}, {"params": c["y"], "lr": 2.0}]
    model(net.batch).sum().backward()
    CLIP
"""
IN_GROUPS = [
    "for ps in a.values():\n        torch.nn.utils.clip_grad_norm_(ps, 1.0)",
    "for name, ps in b.items():\n        torch.nn.utils.clip_grad_norm_(ps, 1.0)",
    "torch.nn.utils.clip_grad_norm_([p for ps in a.values() for p in ps], 1.0)",
    "torch.nn.utils.clip_grad_norm_(sum(a.values(), []), 1.0)",
    "torch.nn.utils.clip_grad_norm_(sum([g['params'] for g in groups], []), 1.0)",
    "for g in groups:\n        torch.nn.utils.clip_grad_norm_(g['params'], 1.0)",
    "torch.nn.utils.clip_grad_norm_(c['x'] + c['y'], 1.0)",
]


@pytest.mark.parametrize("clip", IN_GROUPS)
def test_lists_in_dictionaries_beside_ignored_parameters(clip: str) -> None:
    """One call cannot clip DTensors and plain tensors: a crash where nothing says so."""
    source = GROUPED.replace("NAMED", "model.named_parameters()").replace("CLIP", clip)
    result, _ = migrate({"train.py": source})
    found = [d for d in result.decisions if "clip_grad_norm_" in str(d.site.construct)]
    assert [d.outcome for d in found] == [Outcome.LEFT]


@pytest.mark.parametrize("clip", IN_GROUPS)
def test_lists_in_dictionaries_of_other_parameters(clip: str) -> None:
    other = "torch.nn.Linear(2, 2).named_parameters()"
    source = GROUPED.replace("NAMED", other).replace("CLIP", clip)
    result, _ = migrate({"train.py": source})
    assert not [d for d in result.decisions if "clip_grad_norm_" in str(d.site.construct)]


HANDED_ON = """\
import torch.nn as nn
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP


def library():
    import torch

    return torch


class Base:
    def __init__(self, net):
        self.model = net

    def initialize(self):
        pass

LINES

class Sharded(Base):
    def initialize(self):
        self.model = FSDP(self.model)
"""
WAYS = {
    "a parameter": """
    def step(self, torch):
        torch.nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
""",
    "what a function gives": """
    def step(self):
        torch = library()
        torch.nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
""",
    "what a module gives": """
    def step(self):
        torch = pytest.importorskip("torch")
        torch.nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
""",
}


@pytest.mark.parametrize("way", WAYS)
def test_torch_may_be_handed_on(way: str) -> None:
    result, _ = migrate({"train.py": HANDED_ON.replace("LINES", WAYS[way])})
    assert "FSDP401" in {decision.code for decision in result.decisions}


@pytest.mark.parametrize("name", ["library", "for torch in", "with library() as torch"])
def test_other_names_say_nothing(name: str) -> None:
    lines = {
        "library": WAYS["a parameter"].replace("torch", "library"),
        "for torch in": WAYS["a parameter"]
        .replace("(self, torch):", "(self, all):\n        for torch in all:")
        .replace("        torch.nn", "            torch.nn"),
        "with library() as torch": WAYS["a parameter"]
        .replace("(self, torch):", "(self, given):\n        with given as torch:")
        .replace("        torch.nn", "            torch.nn"),
    }[name]
    result, _ = migrate({"train.py": HANDED_ON.replace("LINES", lines)})
    assert "FSDP401" not in {decision.code for decision in result.decisions}


HELD = """\
import torch
from torch import nn
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP
from torch.nn.parallel import DistributedDataParallel as DDP


class Holder(nn.Module):
    def __init__(self, net):
        super().__init__()
        self.net = net


def main(fsdp, ddp):
    model = nn.Linear(4, 4)
    if fsdp:
        model = FSDP(model)
    HOLDS
    model(torch.ones(2, 4)).sum().backward()
    if TEST:
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
"""
HOLDS = {
    "a module": "model = Holder(model)",
    "DDP": "if ddp:\n        model = DDP(model)",
}


@pytest.mark.parametrize(("test", "marked"), [("fsdp", True), ("ddp", True), ("not fsdp", False)])
@pytest.mark.parametrize("holds", HOLDS)
def test_what_holds_no_model_under_a_setting_is_clipped_as_before(
    holds: str, test: str, marked: bool
) -> None:
    text = HELD.replace("HOLDS", HOLDS[holds]).replace("TEST", test)
    result, _ = migrate({"train.py": text})
    assert ("FSDP401" in {decision.code for decision in result.decisions}) is marked


def test_a_setting_that_changes_says_nothing() -> None:
    text = HELD.replace("HOLDS", f"{HOLDS['a module']}\n    fsdp = False").replace(
        "TEST", "not fsdp"
    )
    result, _ = migrate({"train.py": text})
    assert "FSDP401" in {decision.code for decision in result.decisions}


BY_A_NORM = """\
def by(parameters, kind):
    NORM


def step(net, sharded, kind):
    if sharded:
        net = FSDP(net, use_orig_params=True)
    net(batch).sum().backward()
    by(net.parameters(), kind)
"""
OF_EMPTY = "torch's function stops on a rank whose shard of a gradient is empty"


@pytest.mark.parametrize(
    ("clips", "may_be_infinity"),
    [
        ("clip(parameters, 1.0, norm_type=kind)", True),
        ("clip(parameters, 1.0, float(kind))", True),
        ('clip(parameters, 1.0, norm_type=float("inf"))', True),
        ("clip(parameters, max_norm=1.0, **settings)", True),
        ("clip(parameters, 1.0)", False),
        ("clip(parameters, 1.0, 3)", False),
    ],
)
def test_a_norm_that_may_be_infinity_is_marked_and_stops_nothing(
    clips: str, may_be_infinity: bool
) -> None:
    result, after = migrate({"a.py": HEAD + BY_A_NORM.replace("NORM", clips)})
    assert {d.outcome for d in result.decisions} <= {Outcome.REWRITTEN, Outcome.REVIEW}
    assert "raise" not in after["a.py"]
    (said,) = [d.help for d in result.decisions if d.code == "FSDP401"]
    assert LOCAL in said
    assert (OF_EMPTY in said) is may_be_infinity
    assert "the norm is a DTensor" not in said


def test_a_norm_that_is_used_of_either_model_is_said_to_be_a_dtensor() -> None:
    used = BY_A_NORM.replace("NORM", "return clip(parameters, 1.0, norm_type=kind)")
    result, _ = migrate({"a.py": HEAD + used})
    (said,) = [d.help for d in result.decisions if d.code == "FSDP401"]
    assert "where the model is sharded, the norm is a DTensor" in said


IN_PARTS = """\
class Trainer:
    def __init__(self, args, parts):
        self.args = args
        self.parts = parts

    def wrap(self):
        if self.args.strategy != "DDP":
            self.parts.net = FSDP(self.parts.net, use_orig_params=True)
        else:
            self.parts.net = nn.parallel.DistributedDataParallel(self.parts.net)

    def step(self, other):
        if self.args.strategy TEST "DDP":
            torch.nn.utils.clip_grad_norm_(WHOSE.parts.net.parameters(), 1.0)
"""


@pytest.mark.parametrize(
    ("test", "whose", "marked"),
    [("==", "self", False), ("!=", "self", True), ("==", "other", True)],
)
def test_a_setting_tells_of_models_in_what_an_object_keeps(
    test: str, whose: str, marked: bool
) -> None:
    text = IN_PARTS.replace("TEST", test).replace("WHOSE", whose)
    result, after = migrate({"example.py": HEAD + text})
    assert "fully_shard(self.parts.net" in after["example.py"]
    assert ("FSDP401" in {decision.code for decision in result.decisions}) is marked
