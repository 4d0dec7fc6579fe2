"""What a site costs does not grow with the number of the others: in a large repository each would
ask all of them."""

from __future__ import annotations

import pytest

from fsdp_migrate.families.precision import half_models
from fsdp_migrate.families.subclasses import staying_classes
from fsdp_migrate.planning import pages
from tests.helpers.migrating import migrate

CLASS = """\
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP


class Wrapped(FSDP):
    def __init__(self, module, kind):
        self.kind = kind
        super().__init__(module)

    def named_parameters(self):
        return iter(())
"""
PROGRAM = """\
import torch
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP, MixedPrecision
from torch.distributed.fsdp.sharded_grad_scaler import ShardedGradScaler


def main_NUMBER(net, batches):
    net = torch.nn.Linear(8, 8)
    net.to(torch.bfloat16)
    model = FSDP(net, mixed_precision=MixedPrecision(param_dtype=torch.float16))
    scaler = ShardedGradScaler()
    for batch in batches:
        scaler.scale(model(batch).sum()).backward()
        model.clip_grad_norm_(1.0)
    return model.state_dict()
"""
FEW, MANY = 4, 16


def _programs(number: int) -> dict[str, str]:
    return {
        "wrapped.py": CLASS,
        **{f"program_{n}.py": PROGRAM.replace("NUMBER", str(n)) for n in range(number)},
    }


def _asked(where: object, name: str, number: int, monkeypatch: pytest.MonkeyPatch) -> int:
    """How often a function is called when so many programs are migrated."""
    count = 0
    function = getattr(where, name)

    def counted(*given: object) -> object:
        nonlocal count
        count += 1
        return function(*given)

    with monkeypatch.context() as patched:
        patched.setattr(where, name, counted)
        migrate(_programs(number))
    return count


QUESTIONS = {
    "whether a site is a class that is derived": (staying_classes, "is_subclass"),
    "whether a call casts to float16": (half_models, "_is_to_half"),
}


@pytest.mark.parametrize("asked", QUESTIONS.values(), ids=QUESTIONS)
def test_questions_grow_with_the_sites(
    asked: tuple[object, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    few = _asked(*asked, FEW, monkeypatch)
    assert few > 0
    assert _asked(*asked, MANY, monkeypatch) <= 1.2 * few * MANY / FEW


def test_where_the_rules_lie_is_found_once() -> None:
    migrate(_programs(FEW))
    known = pages.bundled.cache_info().misses
    migrate(_programs(FEW))
    assert pages.bundled.cache_info().misses == known == 1
