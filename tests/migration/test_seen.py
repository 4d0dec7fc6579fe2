"""What a run has shown settles what the code leaves open, and nothing else."""

from __future__ import annotations

import dataclasses

import pytest

from fsdp_migrate.migration.engine import Options, Result
from fsdp_migrate.planning.outcome import Outcome
from fsdp_migrate.planning.seen import SEEN, Construction, Facts, Place, Seen, Values
from tests.helpers.migrating import ROOT, migrate

MAKES = """\
import torch
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP, MixedPrecision

model = FSDP(net)
"""
STEP = "def step(model):\n    model.clip_grad_norm_(0.5)\n"
SAVE = "import torch\n\n\ndef save(net, path):\n    torch.save(net.state_dict(), path)\n"
MADE = frozenset({(ROOT / "train.py", 4)})


def at(file: str, source: str, text: str) -> Place:
    """The place of the first ``text``, on one line of a file."""
    before = source[: source.index(text)]
    line, column = before.count("\n") + 1, len(before) - before.rfind("\n") - 1
    return ROOT / file, (line, column, line, column + len(text))


def run(facts: Facts | None, **files: str) -> tuple[Result, dict[str, str], Seen]:
    given = {f"{name}.py": source for name, source in files.items()}
    seen = Seen(facts)
    result, after = migrate(given, Options(seen=seen))
    return result, after, seen


def clip(*kinds: str, makers: bool = True) -> tuple[Result, dict[str, str], Seen]:
    """A run in which what is clipped was of some kinds."""
    made = MADE if makers else frozenset()
    values = Values(frozenset(kinds), ("Linear",), made_at=made)
    facts = Facts({(ROOT / "other.py", span(STEP)): values})
    return run(facts, train=MAKES, other=STEP)


def span(source: str) -> tuple[int, int, int, int]:
    _, (line, column, last, end) = at("other.py", source, "model.clip")
    return line, column, last, end - len(".clip")


def test_what_may_be_a_model_is_asked_about() -> None:
    result, _, seen = run(None, train=MAKES, other=STEP)
    assert seen.wanted
    assert seen.asked == {ROOT / "other.py": {span(STEP)}}
    assert result.count(Outcome.REVIEW) == 1


def test_what_is_known_is_not_asked_about() -> None:
    _, _, seen = run(None, train=f"{MAKES}model.clip_grad_norm_(1.0)\n")
    assert not seen.wanted
    assert not seen.asked


def test_a_model_that_was_seen_is_one() -> None:
    result, after, _ = clip("model")
    assert "clip_grad_norm_(model.parameters(), 0.5)" in after["other.py"]
    assert "TODO" not in after["other.py"]
    said = [d.message for d in result.decisions if SEEN in d.message]
    assert said == ["torch.nn.utils.clip_grad_norm_ (seen in the run: `model` is an FSDP model)"]


def test_what_was_seen_to_be_something_else_is_no_site() -> None:
    result, after, seen = clip("other", makers=False)
    assert after["other.py"] == STEP
    assert result.count(Outcome.REVIEW) == 0
    assert list(seen.dismissed) == [("other.py", 2, "`model` is no FSDP model, but Linear")]


@pytest.mark.parametrize(
    "kinds", [("model", "other"), ("holder",), ("optimizer",), ("unseen",), ("model", "unseen")]
)
def test_what_was_seen_as_several_things_stays_open(kinds: tuple[str, ...]) -> None:
    result, after, seen = clip(*kinds)
    static, before, _ = run(None, train=MAKES, other=STEP)
    assert after == before
    assert result.count(Outcome.REVIEW) == static.count(Outcome.REVIEW) == 1
    assert not seen.dismissed


def test_a_run_that_did_not_come_by_changes_nothing() -> None:
    _, after, seen = run(Facts(), train=MAKES, other=STEP)
    assert after == run(None, train=MAKES, other=STEP)[1]
    assert not seen.dismissed


def test_several_places_with_one_doubt_are_each_asked_about() -> None:
    """What is not followed is said once in a file: the others are not gone with the first."""
    two = "def ask(a, b):\n    a.clip_grad_norm_(1.0)\n    b.clip_grad_norm_(1.0)\n"
    _, _, seen = run(None, train=MAKES, other=two)
    assert len(seen.asked[ROOT / "other.py"]) == 2


def test_a_state_of_what_was_seen_to_be_the_model_is_that_of_the_model_that_was_seen() -> None:
    given = f"import save\n{MAKES}eval('save.save')(model, 'a')\n"
    _, before, _ = run(None, train=given, save=SAVE)
    assert before["save.py"] == SAVE
    values = Values(frozenset({"model"}), made_at=frozenset({(ROOT / "train.py", 5)}))
    place = at("save.py", SAVE, "net.state_dict")
    line, column, last, end = place[1]
    facts = Facts({(place[0], (line, column, last, end - len(".state_dict"))): values})
    _, after, _ = run(facts, train=given, save=SAVE)
    assert "get_model_state_dict(net, options=" in after["save.py"]


# --- what reached constructors --------------------------------------------------------------------

BUFFERS = """\
import torch
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP, MixedPrecision

net = build()
model = FSDP(net, mixed_precision=MixedPrecision(torch.bfloat16, buffer_dtype=torch.bfloat16))
"""


def constructed(buffers: set[str], classes: set[str] | None = None, line: int = 5) -> Facts:
    found = Construction(frozenset(classes or {"Net"}), frozenset(buffers))
    return Facts(constructions={(ROOT / "train.py", line): found})


def test_buffers_that_were_not_there_are_not_cast() -> None:
    _, before, seen = run(None, train=BUFFERS)
    assert seen.wanted
    assert ".buffers()" in before["train.py"]
    result, after, _ = run(constructed(set()), train=BUFFERS)
    assert ".buffers()" not in after["train.py"]
    (said,) = [d.message for d in result.decisions if SEEN in d.message]
    assert said == "dropped (seen in the run: there were no float buffers)"


@pytest.mark.parametrize("facts", [constructed({"torch.float32"}), constructed(set(), line=4)])
def test_buffers_that_were_there_or_not_seen_are_cast(facts: Facts) -> None:
    assert run(facts, train=BUFFERS)[1] == run(None, train=BUFFERS)[1]


ENTRY = """\
import torch
from torch import nn
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(2, 2)

    def forward(self, x):
        return self.layer(x)

    @torch.no_grad()
    def generate(self, x):
        return x @ self.layer.weight


net = other()
if wanted:
    net = Net()
model = FSDP(net)
model.module.generate(x)
"""


def test_a_method_is_registered_where_its_class_is_what_was_wrapped() -> None:
    result, before, _ = run(None, train=ENTRY)
    assert (result.count(Outcome.LEFT), result.count(Outcome.REVIEW)) == (0, 1)
    assert 'hasattr(net, "generate"):' in before["train.py"]
    line = ENTRY[: ENTRY.index("model = FSDP")].count("\n") + 1
    result, after, _ = run(constructed(set(), {"Net"}, line), train=ENTRY)
    assert result.count(Outcome.LEFT) == 0
    assert 'register_fsdp_forward_method(net, "generate")' in after["train.py"]
    for classes in ({"Other"}, {"Net", "Other"}):
        assert run(constructed(set(), classes, line), train=ENTRY)[1] == before


LOW = BUFFERS.replace("buffer_dtype=torch.bfloat16", "keep_low_precision_grads=keep")


@pytest.mark.parametrize("value", ["false", "true", None])
def test_a_flag_that_fsdp2_has_not_is_marked_with_what_it_was_in_the_run(value: str | None) -> None:
    _, before, seen = run(None, train=LOW)
    ((path, spans),) = seen.asked.items()
    plain = frozenset({value}) if value is not None else frozenset()
    values = Values(frozenset({"other"}), plain=plain)
    result, after, _ = run(Facts({(path, next(iter(spans))): values}), train=LOW)
    was_off = "keep_low_precision_grads was False in the run" in after["train.py"]
    assert was_off == (value == "false")
    assert (after == before) != was_off
    assert result.count(Outcome.REVIEW) == 1
    assert result.count(Outcome.LEFT) == 0


# --- on which ranks -------------------------------------------------------------------------------

RANKS = """\
import torch
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP, FullStateDictConfig
from torch.distributed.fsdp import StateDictType

model = FSDP(net)
FSDP.set_state_dict_type(model, StateDictType.FULL_STATE_DICT)


def save():
    torch.save(model.state_dict(), "a")


if trainer.is_main_process_or_sharded:
    save()
"""


def test_a_state_that_every_rank_asked_for_needs_no_review() -> None:
    result, before, seen = run(None, train=RANKS)
    assert result.count(Outcome.REVIEW) == 1
    assert seen.wanted
    place = ROOT / "train.py", 10, "state_dict"
    result, after, _ = run(Facts(by_every_rank=frozenset({place})), train=RANKS)
    assert result.count(Outcome.REVIEW) == 0
    assert "TODO" not in after["train.py"]
    assert "get_model_state_dict(" in after["train.py"]
    other = dataclasses.replace(Facts(), by_every_rank=frozenset({(place[0], 11, place[2])}))
    assert run(other, train=RANKS)[1] == before
