"""What stands there of FSDP1, as rules spell it."""

from __future__ import annotations

import pytest

from fsdp_migrate.fsdp1.api import FSDP
from fsdp_migrate.fsdp1.construct import Construct, ConstructKind
from fsdp_migrate.planning import rule

HANDLED = sorted({spelled for r in rule.load().rules.values() for spelled in r.rule.handles})


@pytest.mark.parametrize("spelled", HANDLED)
def test_a_construct_is_spelled_as_it_was_read(spelled: str) -> None:
    assert str(Construct.parse(spelled)) == spelled


@pytest.mark.parametrize("kind", ConstructKind)
def test_every_kind_is_read_as_itself(kind: ConstructKind) -> None:
    assert Construct.parse(kind.value.format("X", "y")).kind is kind


def test_what_is_spelled_like_no_other_kind_is_a_name() -> None:
    for spelled in ("parameter norm", "torch.nn.utils.clip_grad_norm_(list)", "a.b.c", "*"):
        assert Construct.parse(spelled) == Construct(ConstructKind.NAME, spelled)


def test_a_member_is_answered_for_by_the_rule_of_what_has_it() -> None:
    wider = list(Construct.parse("ShardingStrategy.FULL_SHARD").wider())
    assert list(map(str, wider)) == ["ShardingStrategy.FULL_SHARD", "ShardingStrategy"]


def test_an_import_is_answered_for_by_the_rule_of_imports() -> None:
    wider = list(Construct.parse("import(StateDictType)").wider())
    assert list(map(str, wider)) == ["import(StateDictType)", "import"]


def test_parts_are_shown_as_people_write_them() -> None:
    assert Construct.of_argument("device_id").shown == "device_id"
    assert Construct.of_model("no_sync").shown == "FSDP.no_sync"
    assert Construct(ConstructKind.CONSTRUCTOR, FSDP).shown == "FSDP()"
