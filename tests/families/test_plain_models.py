"""States that are loaded before anything of a model is wrapped."""

from __future__ import annotations

import pytest

from tests.helpers.migrating import rewritten

HEAD = """\
import functools
import torch
from torch import nn
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.ModuleList([nn.Linear(4, 4)])


def wrap(model):
    for i, layer in enumerate(model.layers):
        model.layers[i] = FSDP(layer)
    return model


def another():
    return wrap(Net())


class Outer(nn.Module):
    def __init__(self, inner, scale=1):
        super().__init__()
        self.inner = inner
"""
PLAIN = (
    """
def main(path):
    model = Outer(Net(), scale=2)
    model.load_state_dict(torch.load(path))
    wrap(model.inner)
    return model
""",
    """
def main(path):
    net = nn.Linear(4, 4)
    model = Outer(net)
    model.load_state_dict(torch.load(path))
    return FSDP(model)
""",
    """
def main(path, resume, log):
    model = Net()
    log.info("%d parameters", sum(p.numel() for p in model.parameters()))
    log.info("%d tensors of %s", len(model.state_dict()), type(model))
    model.load_state_dict(torch.load(path))
    return wrap(model)
""",
    """
def main(path, resume):
    model = Net()
    model.layers.requires_grad_(False)
    if resume:
        missing, _ = model.load_state_dict(torch.load(path), strict=False)
    return wrap(model)
""",
    """
def build(path):
    model = Net()
    model.load_state_dict(torch.load(path))
    return model

def main(path):
    return wrap(build(path))
""",
    """
def main(paths):
    for path in paths:
        model = Net()
        model.load_state_dict(torch.load(path))
        model = wrap(model)
        model(1)
""",
)


@pytest.mark.parametrize("body", PLAIN)
def test_a_plain_model_takes_plain_states(body: str) -> None:
    text = rewritten(HEAD + body)
    assert "model.load_state_dict(torch.load(path)" in text
    assert "fully_shard(layer)" in text


WRAPPED = (
    """
def main(path, resume):
    net = FSDP(nn.Linear(4, 4))
    model = Outer(net)
    model.load_state_dict(torch.load(path))
""",
    """
def main(path, resume):
    net = FSDP(nn.Linear(4, 4)) if resume else nn.Linear(4, 4)
    model = Outer(scale=2, inner=net)
    model.load_state_dict(torch.load(path))
""",
    """
def main(path, resume):
    net = nn.Sequential(FSDP(nn.Linear(4, 4)))
    model = Outer(Outer(net))
    model.load_state_dict(torch.load(path))
""",
    """
def main(path, resume):
    model = Net()
    resume.prepare(model.to(0))
    model.load_state_dict(torch.load(path))
""",
    """
def main(path, resume):
    model = Net()
    resume.prepare([m for m in model.modules()])
    model.load_state_dict(torch.load(path))
""",
    """
def main(path, resume):
    model = Net()
    resume.later(lambda: wrap(model))
    model.load_state_dict(torch.load(path))
""",
    """
def main(path, resume):
    model = Net()
    model = wrap(model)
    model.load_state_dict(torch.load(path))
""",
    """
def main(path, resume):
    model = Net()
    if resume:
        wrap(model)
    model.load_state_dict(torch.load(path))
""",
    """
def main(path, resume):
    model = Net()
    for _ in range(2):
        model.load_state_dict(torch.load(path))
        wrap(model)
""",
    """
def prepare(model):
    wrap(model)

def main(path, resume):
    model = Net()
    prepare(model)
    model.load_state_dict(torch.load(path))
""",
    """
def main(path, resume):
    model = Net()
    resume.run(wrap, model)
    model.load_state_dict(torch.load(path))
""",
    """
def main(path, resume):
    model = Net()
    resume.prepare(model)
    model.load_state_dict(torch.load(path))
""",
    """
def load(model, path):
    model.load_state_dict(torch.load(path))

def main(path, resume):
    model = Net()
    wrap(model)
    load(model, path)
""",
    """
class Wrapped(Net):
    def __init__(self):
        super().__init__()
        wrap(self)

def main(path, resume):
    model = Wrapped()
    model.load_state_dict(torch.load(path))
""",
    """
class Holder:
    def __init__(self):
        self.net = Net()
        wrap(self.net)

def main(path, resume):
    holder = Holder()
    model = holder.net
    model.load_state_dict(torch.load(path))
""",
)


@pytest.mark.parametrize("body", WRAPPED)
def test_a_model_that_may_have_sharded_parts_does_not(body: str) -> None:
    text = rewritten(HEAD + body)
    assert "set_model_state_dict(" in text or "FSDP(layer)" in text
