"""Gradients that are never reduced (FSDP913)."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.helpers.hazards import codes
from tests.training.hazards.test_optimizers import SHARDING, STEPS, moves, program, stays
from tests.training.programs import Launcher

pytestmark = pytest.mark.train

OFF = "model.set_requires_gradient_sync(False)"
OPTIMIZER = "optimizer = torch.optim.SGD(model.parameters(), lr=0.1)"
AWAY = """\
        model.reshard()
        for layer in model.layers:
            layer.reshard()
"""
TWICE = """\
model(inputs).pow(2).mean().backward()
        model.set_requires_gradient_sync(True)
        model(inputs).pow(2).mean().backward()"""


def numbers(text: str, launcher: Launcher, folder: Path) -> dict[str, list[float]]:
    script = folder / "train.py"
    # A forward without a reduction behind it leaves parameters whole.
    script.write_text(text.replace("        tell(model)", AWAY + "        tell(model)"))
    run = launcher.script(script, fsdp1="forbid")
    return {word: run.numbers(word) for word in ("layer", "head")}


def test_an_optimizer_without_gradients_trains_nothing(launcher: Launcher, tmp_path: Path) -> None:
    wrong = program(SHARDING, OPTIMIZER, OFF)
    assert codes(wrong) == ["FSDP913"]
    seen = numbers(wrong, launcher, tmp_path)
    assert stays(seen["layer"])
    assert stays(seen["head"])


def test_the_mended_program_trains_all(launcher: Launcher, tmp_path: Path) -> None:
    mended = program(SHARDING, OPTIMIZER).replace(
        "model(inputs).pow(2).mean().backward()", f"{OFF}\n        {TWICE}"
    )
    assert codes(mended) == []
    seen = numbers(mended, launcher, tmp_path)
    assert len(seen["head"]) == STEPS
    assert moves(seen["layer"])
    assert moves(seen["head"])
