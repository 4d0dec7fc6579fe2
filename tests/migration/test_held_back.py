"""What holds migrations back is named, all of it, with what goes when it is settled."""

from __future__ import annotations

from fsdp_migrate.migration.engine import Options
from fsdp_migrate.planning.result import HeldBack
from fsdp_migrate.report import event, text
from tests.helpers.migrating import migrate

HEAD = "from torch.distributed.fsdp import FullyShardedDataParallel as FSDP, StateDictType\n\n\n"
MODEL = """\
def train(net):
    model = FSDP(net)
    FSDP.set_state_dict_type(model, StateDictType.FULL_STATE_DICT)
    return model.state_dict()
"""
UNKNOWN = """\
def save(model):
    return FSDP.state_dict(model)
"""
BLOCKED = MODEL.replace("return", "FSDP.state_dict(model)\n    return")


def held_back(source: str, partial: bool = False) -> list[HeldBack]:
    result, _ = migrate({"a.py": HEAD + source}, Options(partial=partial))
    return result.held_back


def test_nothing_is_held_back() -> None:
    assert held_back(MODEL) == []


def test_one_place() -> None:
    (found,) = held_back(BLOCKED)
    assert found.places == ("a.py:7",)
    assert found.is_stoppable
    assert found.sites >= 3


def test_with_partial_it_goes() -> None:
    assert held_back(BLOCKED, partial=True) == []


def test_all_places_are_named_in_their_order() -> None:
    many = "\n    ".join(["FSDP.state_dict(model)"] * 6)
    (found,) = held_back(BLOCKED.replace("FSDP.state_dict(model)", many))
    assert found.places == tuple(f"a.py:{line}" for line in range(7, 13))


def test_what_frees_most_comes_first() -> None:
    other = BLOCKED.replace("train", "other").replace("    return model.state_dict()\n", "")
    first, second = held_back(f"{other}\n\n{BLOCKED}")
    assert first.sites > second.sites
    assert first.places == ("a.py:13",)
    assert second.places == ("a.py:7",)


def test_a_constructor_cannot_be_stopped_at() -> None:
    (found,) = held_back(MODEL.replace("FSDP(net)", "FSDP(net, unknown=1)"))
    assert found.places == ("a.py:5",)
    assert not found.is_stoppable


def test_the_report_says_so() -> None:
    result, _ = migrate({"a.py": HEAD + BLOCKED})
    (line,) = text.held_back_lines(event.summary(result))
    sites = result.held_back[0].sites
    assert line == (
        f"Held back: {sites} sites by a.py:7; settle it; with --partial they are migrated, and the "
        "program stops there"
    )
    result, _ = migrate({"a.py": HEAD + MODEL.replace("FSDP(net)", "FSDP(net, unknown=1)")})
    (line,) = text.held_back_lines(event.summary(result))
    assert line.endswith("by a.py:5; settle it")


STRANGE = """\
def build(net, settings):
    more = {}
    if settings.groups:
        more["process_group"] = settings.groups
    return FSDP(net, sharding_strategy=settings.strategy, param_init_fn=settings.init, **more)


def save(net, settings):
    model = build(net, settings)
    settings.prepare(model)
    FSDP.state_dict(model)
    FSDP.set_state_dict_type(model, settings.kind)
    return model.state_dict()
"""


def test_a_constructor_that_could_be_written_is_no_reason() -> None:
    result, _ = migrate({"a.py": HEAD + STRANGE})
    (found,) = result.held_back
    assert found.places == ("a.py:14",)
    assert found.is_stoppable
