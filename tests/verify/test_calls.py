"""Which calls of a model are counted, and what becomes of the hooks that count them."""

from __future__ import annotations

import copy
import pickle
from pathlib import Path

import pytest
import torch

from fsdp_migrate.verify.capture.attach import Watch
from fsdp_migrate.verify.report import text
from fsdp_migrate.verify.report.model import Verdict

from .scripts import FSDP1, FSDP2, judged

# A sample is generated through the model behind the wrapper. After the migration there is none.
BEHIND = """\
from parallel import inner

model = wrap(net())
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
for step in range(6):
    model(torch.randn(4, 8)).square().mean().backward()
    optimizer.step()
    optimizer.zero_grad()
    with torch.no_grad():
        model(torch.randn(4, 8))
        for _ in range(3):
            print(float(inner(model)(torch.ones(4, 8)).mean()))
"""
BEFORE = (
    "from torch.distributed.fsdp.wrap import ModuleWrapPolicy\n"
    + FSDP1.replace("use_orig_params=True", "auto_wrap_policy=ModuleWrapPolicy({torch.nn.Linear})")
    + "\n\ndef inner(model):\n    return model.module\n"
)
AFTER = (
    FSDP2.replace("    return", "    for n in (0, 2):\n        fully_shard(model[n])\n    return")
    + "\n\ndef inner(model):\n    return model\n"
)


@pytest.mark.train
def test_a_model_that_is_called_behind_its_wrapper_is_called_once(tmp_path: Path) -> None:
    report = judged(tmp_path, BEHIND, before=BEFORE, after=AFTER)
    assert report.verdict is Verdict.SAME, text.render(report)


@pytest.mark.train
def test_a_call_that_is_missing_behind_the_wrapper_is_seen(tmp_path: Path) -> None:
    fewer = ("        for _ in range(3):", "        for _ in range(2):")
    report = judged(tmp_path, BEHIND, fewer, before=BEFORE, after=AFTER)
    assert report.verdict is Verdict.DIFFERENT, text.render(report)


# The loss is a method of the model. Before, it runs as the forward of the wrapper, as under
# Lightning's Trainer; after, it is registered as a forward.
SCORED = """\
from parallel import score


class Scored(nn.Sequential):
    def score(self, x, *, times):
        return times * self(x).square().mean()


model = wrap(Scored(*net()))
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
for step in range(6):
    score(model, torch.randn(4, 8), 2).backward()
    optimizer.step()
    optimizer.zero_grad()
"""
REDIRECTED = """

def score(model, x, times):
    inner, forward = model.module, model.module.forward

    def once(x, times):
        inner.forward = forward
        return times * inner.forward(x).square().mean()

    inner.forward = once
    return model(x, times=times)
"""
REGISTERED = """

def score(model, x, times):
    return model.score(x, times=times)
"""


@pytest.mark.train
@pytest.mark.parametrize("times", ["2", "2.0"])
def test_a_method_that_is_registered_as_a_forward_is_a_call_of_its_model(
    tmp_path: Path, times: str
) -> None:
    """The same is seen to enter the model, and a type that differs is seen too."""
    register = "from torch.distributed.fsdp import register_fsdp_forward_method\n"
    after = register + FSDP2.replace("return fully_shard(model)", "fully_shard(model)")
    after += '    register_fsdp_forward_method(model, "score")\n    return model\n'
    changed = [("torch.randn(4, 8), 2)", f"torch.randn(4, 8), {times})")] if times != "2" else []
    before = FSDP1 + REDIRECTED
    report = judged(tmp_path, SCORED, *changed, before=before, after=after + REGISTERED)
    expected = Verdict.SAME if times == "2" else Verdict.DIFFERENT
    assert report.verdict is expected, text.render(report)


def test_what_a_program_saves_or_copies_of_a_model_is_watched_no_more() -> None:
    called: list[object] = []
    watch = Watch(lambda *args: called.append(args))
    model = torch.nn.Linear(2, 2)
    model.register_forward_pre_hook(watch, with_kwargs=True)
    model.register_forward_hook(watch)
    saved = pickle.dumps(model)
    assert b"fsdp_migrate" not in saved
    for other in (copy.deepcopy(model), pickle.loads(saved)):
        assert other(torch.ones(2)).equal(model.forward(torch.ones(2)))
    assert not called
    model(torch.ones(2))
    assert len(called) == 2
