"""Settings that choose FSDP1 at one place tell, at another, whether a model is FSDP1's."""

from __future__ import annotations

import pytest

from tests.helpers.migrating import migrate, outcomes

HEAD = """\
import os
import sys
from argparse import ArgumentParser
from enum import Enum

import torch
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP
from torch.nn.parallel import DistributedDataParallel as DDP


class Mode(Enum):
    FSDP = 1
    DDP = 2


def parsed():
    parser = ArgumentParser()
    parser.add_argument("--fsdp", action="store_true")
    parser.add_argument("--mode")
    return parser.parse_args()


"""

# In each, ``a`` is the state of an FSDP1 model and ``b`` of another one.
TOLD = {
    "the truth of a setting, given on": """\
def save(model, fsdp=False):
    if fsdp:
        a = model.state_dict()
    else:
        b = model.state_dict()

def main(net):
    args = parsed()
    fsdp = bool(args.fsdp)
    model = FSDP(net) if fsdp else DDP(net)
    save(model, fsdp=fsdp)
""",
    "the truth of a setting, and the setting": """\
def save(model, fsdp):
    if not fsdp:
        b = model.state_dict()
    else:
        a = model.state_dict()

def main(net):
    args = parsed()
    fsdp = bool(getattr(args, "fsdp", True))
    model = FSDP(net) if fsdp else net
    save(model, getattr(args, "fsdp", True))
""",
    "a flag that a choice of two constants gives": """\
def main(net):
    args = parsed()
    plain = False if args.fsdp else True
    model = DDP(net) if plain else FSDP(net)
    if args.fsdp:
        a = model.state_dict()
    else:
        b = model.state_dict()
""",
    "the negation of another, by constants": """\
def main(net):
    args = parsed()
    fsdp = True if not args.mode == "ddp" else False
    if fsdp:
        model = FSDP(net)
    else:
        model = DDP(net)
    if args.mode == "ddp":
        b = model.state_dict()
    else:
        a = model.state_dict()
""",
    "a choice of numbers": """\
def main(net):
    args = parsed()
    sharded = bool(1 if args.fsdp else 0)
    model = FSDP(net) if sharded else net
    if not args.fsdp:
        b = model.state_dict()
    else:
        a = model.state_dict()
""",
    "a choice that may be another condition": """\
def main(net):
    args = parsed()
    fsdp = args.fsdp if args.mode is None else False
    model = FSDP(net) if fsdp else net
    if not args.fsdp:
        b = model.state_dict()
    elif fsdp:
        a = model.state_dict()
""",
    "a setting that may not be there": """\
def build(cfg, net):
    if hasattr(cfg.train, "fsdp") and cfg.train.fsdp:
        return FSDP(net)
    return DDP(net)


def save(cfg, model):
    if hasattr(cfg.train, "fsdp") and cfg.train.fsdp:
        a = model.state_dict()
    else:
        b = model.state_dict()


def main(net, cfg):
    save(cfg, build(cfg, net))
""",
    "an item that may not be there": """\
def main(net, cfg):
    model = FSDP(net) if "mode" in cfg and cfg["mode"] == "fsdp" else DDP(net)
    if "mode" not in cfg:
        b = model.state_dict()
    elif cfg["mode"] == "fsdp":
        a = model.state_dict()
""",
    "a default that is the other wrapper": """\
def main(net):
    args = parsed()
    model = FSDP(net) if getattr(args, "mode", "ddp") == "fsdp" else DDP(net)
    if not hasattr(args, "mode"):
        b = model.state_dict()
    elif args.mode == "fsdp":
        a = model.state_dict()
""",
    "one default everywhere": """\
def main(net):
    args = parsed()
    model = FSDP(net) if getattr(args, "fsdp", True) else DDP(net)
    if not getattr(args, "fsdp", True):
        b = model.state_dict()
    else:
        a = model.state_dict()
""",
    "settings that are handed on by many": """\
class Hook:
    def __init__(self, cfg):
        self._cfg = cfg

    def save(self, model):
        if self._cfg.run.train.fsdp:
            a = model.state_dict()
        else:
            b = model.state_dict()


class Saving(Hook):
    def __init__(self, cfg):
        super().__init__(cfg)


def set_up(cfg):
    return Saving(cfg)


def main(net):
    args = parsed()
    cfg = args
    model = FSDP(net) if cfg.run.train.fsdp else DDP(net)
    set_up(cfg).save(model)
""",
    "a flag": """\
def build(args, net):
    return FSDP(net) if args.fsdp else DDP(net)


def save(args, model):
    if args.fsdp:
        a = model.state_dict()
    else:
        b = model.state_dict()


def main(net):
    args = parsed()
    save(args, build(args, net))
""",
    "an early return": """\
def build(args, net):
    if not args.fsdp:
        return DDP(net)
    return FSDP(net)


def save(model, options):
    if options.fsdp:
        a = model.state_dict()
        return
    b = model.module.state_dict()


def main(net):
    args = parsed()
    save(build(args, net), args)
""",
    "words": """\
def build(cfg, net):
    if cfg["train"]["mode"] == "fsdp":
        return FSDP(net)
    if cfg["train"]["mode"] in ("ddp", "slow"):
        return DDP(net)
    return net


def save(cfg, model):
    mode = cfg["train"]["mode"]
    if mode == "ddp":
        b = model.module.state_dict()
    elif mode == "fsdp":
        a = model.state_dict()


def main(net, cfg):
    save(cfg, build(cfg, net))
""",
    "attributes of self": """\
class Trainer:
    def __init__(self, args, net):
        self.args = args
        self.sharded = args.mode.lower() == "fsdp"
        if self.sharded:
            self.model = FSDP(net)
        else:
            self.model = DDP(net)

    def save(self):
        if self.args.mode.lower() == "fsdp":
            a = self.model.state_dict()
        elif not self.sharded and self.args.mode:
            b = self.model.state_dict()


def main(net):
    Trainer(parsed(), net).save()
""",
    "members of a class": """\
def build(mode, net):
    match mode:
        case Mode.FSDP:
            return FSDP(net)
        case Mode.DDP:
            return DDP(net)


def main(net, mode):
    model = build(mode, net)
    a = model.state_dict() if mode is Mode.FSDP else None
    if mode is Mode.DDP:
        b = model.state_dict()
""",
    "the environment": """\
def is_sharded():
    return os.environ.get("SHARDED", "0") == "1"


def build(net):
    if is_sharded():
        return FSDP(net)
    return DDP(net)


def main(net):
    model = build(net)
    if os.getenv("SHARDED", "0") == "1":
        a = model.state_dict()
    else:
        b = model.state_dict()
""",
    "two settings together": """\
def main(net):
    version = int(os.environ.get("VERSION", "1"))
    sharded = bool(int(os.getenv("SHARDED", "0")))
    if sharded and version == 1:
        model = FSDP(net)
    elif sharded:
        model = torch.compile(net)
    else:
        model = DDP(net)
    if bool(int(os.getenv("SHARDED"))) and int(os.getenv("VERSION")) == 1:
        a = model.state_dict()
    else:
        b = model.state_dict()
""",
    "what calls": """\
ARGS = parsed()


def build(net):
    return FSDP(net)


def save(model):
    b = model.state_dict()


def main(net):
    if ARGS.fsdp:
        model = build(net)
        a = model.state_dict()
    else:
        model = DDP(net)
    if not ARGS.fsdp:
        save(model)
""",
    "a setting that is settled first": """\
def prepare(args):
    args.fsdp = args.mode == "fsdp"


def main(net):
    args = parsed()
    prepare(args)
    model = FSDP(net) if args.fsdp else DDP(net)
    if getattr(args, "fsdp", False):
        a = model.state_dict()
    else:
        b = model.state_dict()
""",
}

# In each, ``b`` may well be the state of an FSDP1 model.
SAVING = """\
class Saving({base}):
    def __init__(self, model):
        self.model = model

    def on_end(self):
        model = self.model
        b = model.state_dict()


def main(net, trainer):
    args = parsed()
    saving = Saving(FSDP(net) if args.mode == "fsdp" else net)
    if args.mode == "plain":
        saving.on_end()
    trainer.fit(saving)
"""
NOT_TOLD = {
    "the truth of a setting is compared, and the setting is": """\
def save(model, mode):
    if mode == True:
        a = model.state_dict()
    else:
        b = model.state_dict()

def main(net):
    args = parsed()
    if bool(args.mode) == True:
        model = FSDP(net)
    else:
        model = DDP(net)
    save(model, args.mode)
""",
    "the truth of another": """\
def save(model, fsdp):
    if fsdp:
        a = model.state_dict()
    else:
        b = model.state_dict()

def main(net):
    args = parsed()
    model = FSDP(net) if bool(args.fsdp) else DDP(net)
    save(model, bool(args.mode))
""",
    "the truth of what each call is given": """\
def save(model, fsdp):
    if fsdp:
        a = model.state_dict()
    else:
        b = model.state_dict()

def build(net, flag):
    fsdp = bool(flag)
    return FSDP(net) if fsdp else DDP(net)

def main(net, first, second):
    model = build(net, first)
    save(model, bool(second))
""",
    "one of two choices that shards": """\
def main(net):
    args = parsed()
    fsdp = True if args.fsdp else args.mode == "both"
    model = FSDP(net) if fsdp else net
    if not args.fsdp:
        b = model.state_dict()
""",
    "both of two choices": """\
def main(net):
    args = parsed()
    fsdp = 2 if args.fsdp else 1
    model = FSDP(net) if fsdp else net
    if not args.fsdp:
        b = model.state_dict()
""",
    "a default that is FSDP1": """\
def main(net):
    args = parsed()
    model = FSDP(net) if getattr(args, "fsdp", True) else net
    if not hasattr(args, "fsdp"):
        b = model.state_dict()
""",
    "a default that is among several": """\
def main(net):
    args = parsed()
    mode = getattr(args, "mode", "fsdp")
    model = FSDP(net) if mode == "fsdp" else net
    if not hasattr(args, "mode"):
        b = model.state_dict()
""",
    "a default that is not known": """\
def main(net, usual, cfg):
    model = FSDP(net) if cfg.get("fsdp", usual) else net
    if "fsdp" not in cfg:
        b = model.state_dict()
""",
    "a default that another function gives": """\
def build(net, fsdp):
    return FSDP(net) if fsdp else net


def main(net):
    args = parsed()
    model = build(net, getattr(args, "fsdp", True))
    if not hasattr(args, "fsdp"):
        b = model.state_dict()
""",
    "nothing is given, and None is asked for": """\
def main(net, cfg):
    model = FSDP(net) if cfg.get("plain") is None else net
    if "plain" not in cfg:
        b = model.state_dict()
""",
    "a setting that is there, and false": """\
def main(net):
    args = parsed()
    model = FSDP(net) if not getattr(args, "plain", None) else net
    if not (hasattr(args, "plain") and not args.plain):
        b = model.state_dict()
""",
    "a model that is made where there is none": """\
class Run:
    def __init__(self):
        self.model = None

    def build(self, net):
        if self.model is None:
            self.model = FSDP(net)

    def save(self):
        model = self.model
        if self.model is not None:
            b = model.state_dict()


def main(net):
    run = Run()
    run.build(net)
    run.save()
""",
    "a model that is made where an object has none": """\
class Run:
    def build(self, net):
        if not hasattr(self, "model"):
            self.model = FSDP(net)

    def save(self):
        model = self.model
        if self.model:
            b = model.state_dict()


def main(net):
    run = Run()
    run.build(net)
    run.save()
""",
    "a model that another function makes where there is none": """\
def wrapped(net):
    return FSDP(net)


def main(net, cache):
    if cache.get("model") is None:
        cache["model"] = wrapped(net)
    model = cache["model"]
    if cache["model"] is not None:
        b = model.state_dict()
""",
    "another setting": """\
def main(net):
    args = parsed()
    model = FSDP(net) if args.fsdp else net
    if not args.mode:
        b = model.state_dict()
""",
    "other values, which do not exclude it": """\
def main(net):
    args = parsed()
    model = FSDP(net) if args.mode in ("fsdp", "zero") else net
    if args.mode != "fsdp":
        b = model.state_dict()
""",
    "a setting that changes in between": """\
def main(net):
    args = parsed()
    model = FSDP(net) if args.fsdp else net
    args.fsdp = False
    if not args.fsdp:
        b = model.state_dict()
""",
    "a setting that changes in a loop": """\
def main(net):
    args = parsed()
    for args.mode in ("fsdp", "plain"):
        if args.mode == "fsdp":
            model = FSDP(net)
        if args.mode == "plain":
            b = model.state_dict()
""",
    "a variable": """\
def main(net):
    first = True
    for step in range(3):
        if first:
            model = FSDP(net)
        else:
            b = model.state_dict()
        first = False
""",
    "two objects that have such a setting": """\
def build(args, net):
    return FSDP(net) if args.fsdp else net


def save(args, model):
    if not args.fsdp:
        b = model.state_dict()


def main(net):
    student, teacher = parsed(), parsed()
    model = build(student, net)
    build(teacher, net)
    save(teacher, model)
""",
    "another call's argument": """\
def build(net, fsdp, teacher=None):
    model = FSDP(net) if fsdp else net
    if not fsdp and teacher is not None:
        b = teacher.state_dict()
    return model


def main(net, other):
    build(net, False, build(other, True))
""",
    "another object's": """\
class Sharded:
    def __init__(self, inner, fsdp):
        self.fsdp = fsdp
        self.inner = FSDP(inner) if fsdp else inner

    def save(self, model):
        if not self.fsdp:
            b = model.state_dict()


def main(net, other):
    Sharded(net, False).save(Sharded(other, True).inner)
""",
    "a function that is also called by others": """\
def build(net):
    return FSDP(net)


def main(net):
    args = parsed()
    make = build
    model = build(net) if args.fsdp else make(net)
    if not args.fsdp:
        b = model.state_dict()
""",
    "a function called under both": """\
def build(net):
    return FSDP(net)


def main(net):
    args = parsed()
    model = build(net) if args.fsdp else build(torch.compile(net))
    if not args.fsdp:
        b = model.state_dict()
""",
    "neither of two settings, of which one is enough": """\
def main(net):
    args = parsed()
    model = FSDP(net) if args.fsdp else net
    if not (args.fsdp and args.mode):
        b = model.state_dict()
""",
    "a name that each round of a loop sets": """\
def main(net, batches):
    for batch in batches:
        first = batch.first
        if first:
            model = FSDP(net)
        if not first:
            b = model.state_dict()
""",
    "an object that each round of a loop makes": """\
def main(net, files):
    for file in files:
        args = parsed()
        if args.fsdp:
            model = FSDP(net)
        if not args.fsdp:
            b = model.state_dict()
""",
    "names that are spelled alike in two functions": """\
def build(net):
    enabled = len(sys.argv) and decided(1)
    return FSDP(net) if enabled else net


def save(model):
    enabled = decided(2)
    if not enabled:
        b = model.state_dict()


def main(net):
    save(build(net))
""",
    "a setting that is set by its name": """\
def main(net):
    args = parsed()
    model = FSDP(net) if args.fsdp else net
    setattr(args, "fsdp", False)
    if not args.fsdp:
        b = model.state_dict()
""",
    "a method that a model's call runs": """\
class Outer(torch.nn.Module):
    def __init__(self, net):
        super().__init__()
        self.inner = FSDP(net)

    def forward(self, x):
        return save(self.inner)


def save(model):
    b = model.state_dict()


def main(net, x):
    args = parsed()
    if args.mode == "plain":
        Outer(net).forward(x)
    if args.mode == "fsdp":
        Outer(net)(x)
""",
    "a method that a framework calls": "from somewhere import Callback\n\n\n"
    + SAVING.format(base="Callback"),
    "a function that a registry calls": """\
from somewhere import register


@register("save")
def save(model):
    b = model.state_dict()


def main(net, trainer):
    args = parsed()
    model = FSDP(net) if args.mode == "fsdp" else net
    if args.mode == "plain":
        save(model)
    trainer.fit(model)
    save(model)
""",
    "a method of a class that nobody knows": SAVING.format(base='sys.modules["callbacks"].Base'),
    "settings that are read from two files": """\
def build(net, path):
    settings = torch.load(path)
    return FSDP(net) if settings.fsdp else net


def save(model, path):
    settings = torch.load(path)
    if not settings.fsdp:
        b = model.state_dict()


def main(net):
    save(build(net, "a"), "b")
""",
    "a setting that is updated": """\
def main(net):
    args = parsed()
    model = FSDP(net) if args.fsdp else net
    args.update({"fsdp": False})
    if not args.fsdp:
        b = model.state_dict()
""",
    "settings that are taken one by one": """\
def build(net, queue):
    options = queue.popleft()
    return FSDP(net) if options.fsdp else net


def save(model, queue):
    options = queue.popleft()
    if not options.fsdp:
        b = model.state_dict()


def main(net, queue):
    save(build(net, queue), queue)
""",
    "a flag of each call of a method": """\
class Run:
    def __init__(self, net):
        self.model = net

    def epoch(self, number):
        first = number == 0
        model = self.model
        if first:
            model = self.model = FSDP(model)
        else:
            model = self.model
            b = model.state_dict()


def main(net):
    run = Run(net)
    for number in range(2):
        run.epoch(number)
""",
    "a flag of a method of the same name": """class Builder:
    def setup(self, net):
        sharded = parsed()
        return FSDP(net) if sharded else net


class Saver:
    def setup(self, model):
        sharded = asked()
        if not sharded:
            b = model.state_dict()


def main(net):
    Saver().setup(Builder().setup(net))
""",
    "a list that gets something": """def main(net):
    wrapped = []
    model = net
    if not wrapped:
        model = FSDP(net)
        wrapped.append(model)
    if wrapped:
        b = model.state_dict()
""",
    "a list that is emptied": """def main(net, wanted):
    units = [*wanted]
    model = FSDP(net) if units else net
    while units:
        print(units.pop())
    if not units:
        b = model.state_dict()
""",
    "one of two conditions": """\
def main(net):
    args = parsed()
    model = FSDP(net) if args.fsdp or args.mode else net
    if not args.fsdp:
        b = model.state_dict()
""",
}


@pytest.mark.parametrize("body", TOLD.values(), ids=TOLD)
def test_the_setting_tells_the_models_apart(body: str) -> None:
    _, after = migrate({"train.py": (HEAD + body).encode()})
    text = after["train.py"]
    assert "get_model_state_dict(" in text
    plain = next(line for line in body.splitlines() if line.lstrip().startswith("b = "))
    assert plain in text.splitlines()
    assert "isinstance(" not in text


@pytest.mark.parametrize("body", NOT_TOLD.values(), ids=NOT_TOLD)
def test_the_setting_does_not_tell(body: str) -> None:
    _, after = migrate({"train.py": (HEAD + body).encode()})
    text = after["train.py"]
    assert "get_model_state_dict(" in text
    assert "b = model.state_dict()" not in text


def test_a_variable_that_says_whether_there_are_several_processes_tells_models_apart() -> None:
    """nanoGPT's ``ddp``: what the number is read from has no name, but the variable is one."""
    source = """\
import os

import torch
from torch import nn
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP

ddp = int(os.environ.get("RANK", -1)) != -1
model = nn.Linear(4, 4)
if ddp:
    model = FSDP(model)
raw_model = model.module if ddp else model
torch.save({"model": raw_model.state_dict()}, "x.pt")
"""
    result, after = migrate({"train.py": source})
    assert all(outcome.value != "left" for _, outcome in outcomes(result))
    assert "get_model_state_dict(" in after["train.py"]
