"""Modes that last as long as the program, and where they are put aside."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from torch.distributed.fsdp._flat_param import FlatParamHandle
from torch.distributed.fsdp._fully_shard._fsdp_param_group import FSDPParamGroup

from fsdp_migrate.verify.capture import fsdp_internals, modes
from fsdp_migrate.verify.capture.forced import FullPrecision
from fsdp_migrate.verify.capture.session import Session
from fsdp_migrate.verify.inject.config import Config


@pytest.fixture(autouse=True)
def _full() -> Iterator[None]:
    """In a program that computes in float32, whatever it says."""
    mode = FullPrecision()
    with mode:
        yield


def made() -> torch.dtype:
    return torch.zeros(1, dtype=torch.bfloat16).dtype


def session(folder: Path) -> Session:
    result = Session(Config(folder=str(folder), run="", max_steps=1, seed=0))
    modes.spare_recorder(result)
    return result


def test_what_the_program_calls_is_seen() -> None:
    assert made() is torch.float32


def test_what_the_recorder_does_goes_by(tmp_path: Path) -> None:
    found: list[torch.dtype] = []
    session(tmp_path).attempt("look", lambda: found.append(made()))
    assert found == [torch.bfloat16]
    assert made() is torch.float32


def test_the_mode_is_back_when_the_recorder_fails(tmp_path: Path) -> None:
    def fail() -> None:
        raise RuntimeError("no")

    session(tmp_path).attempt("look", fail)
    assert made() is torch.float32


def test_a_mode_of_the_program_stays_and_so_do_those_below_it(tmp_path: Path) -> None:
    found: list[tuple[torch.dtype, str]] = []
    with torch.device("meta"):
        session(tmp_path).attempt(
            "look", lambda: found.append((made(), torch.zeros(1).device.type))
        )
    assert found == [(torch.float32, "meta")]


def test_spared_functions_go_by_and_return_to_the_mode() -> None:
    outer = SimpleNamespace(made=made, fails=lambda: 1 / 0)
    modes.spare(outer, "made", "fails", "unknown")
    assert outer.made() is torch.bfloat16
    assert made() is torch.float32
    with pytest.raises(ZeroDivisionError):
        outer.fails()
    assert made() is torch.float32


def test_what_fsdp_does_at_every_unit_has_the_known_names() -> None:
    """A name that torch no longer has is left out in silence and costs time only."""
    for owner, (kind, *names) in {
        FlatParamHandle: fsdp_internals.fsdp1_at_work(),
        FSDPParamGroup: fsdp_internals.fsdp2_at_work(),
    }.items():
        assert kind is owner
        assert [name for name in names if not hasattr(kind, name)] == []
