"""Functions that are hooks of modules are given what sharding gave a class of its own."""

from __future__ import annotations

import pytest

from tests.helpers.migrating import rewritten

PROGRAM = """\
from torch import nn
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(4, 4)

    def forward(self, x):
        return self.layer(x)


def count(net, other, found):
    net.body = FSDP(Block())
    model = FSDP(net)
    plain = nn.Sequential(Block())

    def hook(module, *given):
        if QUESTION:
            found[NAME] = found.get(NAME, 0) + 1

    HOOK
    return model, plain
"""
NAME = "type(module).__name__"


def program(hook: str, question: str = "given") -> str:
    text = PROGRAM.replace("HOOK", hook).replace("QUESTION", question)
    return text.replace("NAME", NAME)


HOOKED = {
    "each module": "for m in model.modules():\n        m.register_forward_hook(hook)",
    "each by name": (
        "for n, m in model.named_modules():\n        m.register_forward_pre_hook(hook)"
    ),
    "some": (
        "for m in model.modules():\n        if not list(m.children()):\n"
        "            m.register_full_backward_hook(hook)"
    ),
    "one of the model's": "model.module.body.register_forward_hook(hook)",
    "with settings": (
        "for m in model.modules():\n        m.register_forward_hook(hook, always_call=True)"
    ),
}
OTHERS = {
    "of a plain model": "for m in plain.modules():\n        m.register_forward_hook(hook)",
    "of one out of sight": "for m in other.modules():\n        m.register_forward_hook(hook)",
    "called for nothing": "found[0] = hook",
    "of a tensor": "for p in plain.parameters():\n        p.register_hook(hook)",
}


@pytest.mark.parametrize("hook", HOOKED.values(), ids=HOOKED)
def test_a_name_that_a_hook_counts_by_is_the_old_one(hook: str) -> None:
    assert f'found[{NAME}.removeprefix("FSDP")]' in rewritten(program(hook))


@pytest.mark.parametrize("hook", HOOKED.values(), ids=HOOKED)
def test_an_exact_class_is_asked_for_with_isinstance(hook: str) -> None:
    after = rewritten(program(hook, "type(module) is Block"))
    assert "isinstance(module, Block)" in after


@pytest.mark.parametrize("hook", OTHERS.values(), ids=OTHERS)
def test_hooks_of_others_stay(hook: str) -> None:
    after = rewritten(program(hook, "type(module) is Block"))
    assert f"found[{NAME}]" in after
    assert "type(module) is Block" in after
