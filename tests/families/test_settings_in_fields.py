"""FSDP1's settings in fields of a dataclass: converted where all that writes them is in sight."""

from __future__ import annotations

import pytest

from tests.helpers.migrating import migrate

SETTINGS = """
from dataclasses import dataclass, field{imports}

import torch
from torch.distributed.fsdp import BackwardPrefetch, CPUOffload, FullStateDictConfig
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP, StateDictType


@dataclass
class Settings:
    size: int = 3
    offload: CPUOffload = field(default_factory=CPUOffload)
    prefetch: BackwardPrefetch = BackwardPrefetch.BACKWARD_PRE
    kind: StateDictType = StateDictType.FULL_STATE_DICT
    config: FullStateDictConfig = field(
        default_factory=lambda: FullStateDictConfig(offload_to_cpu=True, rank0_only=True)
    )
    step: int = 1

{more}
def build(model, settings: Settings):
    return FSDP(model, cpu_offload=settings.offload, backward_prefetch=settings.prefetch)


def save(model, settings: Settings, path):
    with FSDP.state_dict_type(model, settings.kind, settings.config):
        state = model.state_dict()
    if torch.distributed.get_rank() == 0:
        torch.save(state, path)


def main(model):
    settings = {made}
    {then}
    model = build(model, settings)
    save(model, settings, "x.pt")
"""

SHARDED = "kind=StateDictType.SHARDED_STATE_DICT"
SUBCLASS = """
@dataclass
class Sub(Settings):
    kind: StateDictType = StateDictType.SHARDED_STATE_DICT

"""
FACTORY = f"""
    @classmethod
    def sharded(cls):
        return cls({SHARDED})

"""


def after(
    made: str = "Settings()", then: str = "pass", *, more: str = "", imports: str = ""
) -> tuple[str, str]:
    source = SETTINGS.format(made=made, then=then, more=more, imports=imports)
    _, files = migrate({"train.py": source})
    return files["train.py"], files.get("fsdp2_support.py", "")


@pytest.mark.parametrize(
    "made", ["Settings()", "Settings(5)", "Settings(kind=StateDictType.FULL_STATE_DICT, step=2)"]
)
def test_fields_of_states_and_prefetching_go(made: str) -> None:
    text, support = after(made)
    assert not support
    assert "offload: OffloadPolicy = field(default_factory=OffloadPolicy)" in text
    assert "full_state_dict=True, cpu_offload=True" in text
    assert all(word not in text for word in ("kind", "config", "prefetch", "StateDictType"))


def test_offloading_at_one_call_is_a_policy() -> None:
    text, _ = after("Settings(offload=CPUOffload(True))")
    assert "Settings(offload=CPUOffloadPolicy())" in text
    assert "offload_policy=settings.offload" in text


@pytest.mark.parametrize(
    ("made", "then", "more", "imports"),
    [
        (f"Settings({SHARDED})", "other = Settings()", "", ""),
        ("Settings()", f"settings = replace(settings, {SHARDED})", "", ", replace"),
        ("Settings()", "settings.kind = StateDictType.SHARDED_STATE_DICT", "", ""),
        ("Settings()", 'setattr(settings, "kind", StateDictType.SHARDED_STATE_DICT)', "", ""),
        ("Settings()", "[setattr(settings, k, v) for k, v in model.own]", "", ""),
        ("Settings()", "settings.__dict__.update(model.own)", "", ""),
        ("Settings(**model.own)", "pass", "", ""),
        ("Sub()", "pass", SUBCLASS, ""),
        ("Settings.sharded()", "pass", FACTORY, ""),
        ("model.parse(Settings)", "pass", "", ""),
        ("Settings(config=FullStateDictConfig())", "other = Settings()", "", ""),
    ],
)
def test_a_kind_that_may_be_another_is_known_at_run_time(
    made: str, then: str, more: str, imports: str
) -> None:
    text, _ = after(made, then, more=more, imports=imports)
    assert 'full_state_dict=settings.kind.name == "FULL_STATE_DICT"' in text
    assert "state_dict_type(" not in text


@pytest.mark.parametrize(
    ("then", "imports"),
    [
        ("print(settings.kind, settings.config, settings.prefetch)", ""),
        ("print(asdict(settings))", ", asdict"),
        ("print(vars(settings))", ""),
        ("print([getattr(settings, name) for name in model.names])", ""),
    ],
)
def test_a_field_that_something_else_reads_stays(then: str, imports: str) -> None:
    text, _ = after(then=then, imports=imports)
    assert "kind: StateDictType = StateDictType.FULL_STATE_DICT" in text
    assert "prefetch: BackwardPrefetch = BackwardPrefetch.BACKWARD_PRE" in text


def test_a_field_by_position_stays() -> None:
    text, _ = after("Settings(3, CPUOffload(), BackwardPrefetch.BACKWARD_PRE)")
    assert "prefetch: BackwardPrefetch = BackwardPrefetch.BACKWARD_PRE" in text
    assert "kind" not in text


def test_an_object_whose_flag_is_asked_for_stays() -> None:
    text, _ = after(then="print(settings.offload.offload_params)")
    assert "offload: CPUOffload = field(default_factory=CPUOffload)" in text
