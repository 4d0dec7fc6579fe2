"""accelerate's `prepare` beside settings: version 2 stops where it takes a part of what belongs
together."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

from fsdp_migrate.configurations import engine, prepared
from fsdp_migrate.planning.outcome import Outcome
from tests.configurations.writing import ROOT

PARTS = [
    "accelerator.prepare(model)",
    "accelerator.prepare(self.model, train_loader, scheduler)",
    "accelerator.prepare(optimizer)",
    "accelerator.prepare(optimizer, lr_scheduler)",
    "accelerator.prepare(model, ref_model, optimizer)",
    "accelerator.prepare_model(anything)",
]
WHOLE = [
    "accelerator.prepare(model, optimizer)",
    "accelerator.prepare(model, opt, train_loader)",
    "accelerator.prepare(disc, disc_optimizer, disc_scheduler)",
    "accelerator.prepare(train_loader, scheduler)",
    "accelerator.prepare(model, x)",  # it may be the optimizer
    "accelerator.prepare(*everything)",
    "accelerator.prepare(model_config, loader)",
    "accelerator.prepare_model(model, evaluation_mode=True)",
]


@pytest.mark.parametrize("source", [*PARTS, *WHOLE])
def test_parts_are_told_by_their_names(source: str) -> None:
    call = ast.parse(source).body[0]
    assert isinstance(call, ast.Expr)
    assert isinstance(call.value, ast.Call)
    assert prepared.is_part(call.value) is (source in PARTS)


CONFIG = "distributed_type: FSDP\nfsdp_config:\n  fsdp_sharding_strategy: FULL_SHARD\n"
PROGRAM = "from accelerate import Accelerator\n\na = Accelerator()\n"


def outcomes(program: str, name: str = "train.py", config: str = CONFIG) -> dict[str, str]:
    read = engine.read(
        {ROOT / "a.yaml": config.encode()},
        lambda path: str(path.relative_to(ROOT)),
        ROOT,
        python=lambda: [(ROOT / name, program.encode())],
    )
    found, _ = read.decide(100, lambda code, key: "")
    return {each.name: each.message for each in found if each.outcome is Outcome.REVIEW}


def test_the_version_is_for_review_with_the_place() -> None:
    found = outcomes(f"{PROGRAM}model = a.prepare(model)\n")
    assert "a.prepare() at train.py:4" in found["fsdp_version"]


@pytest.mark.parametrize(
    ("program", "name"),
    [
        (f"{PROGRAM}model, optimizer = a.prepare(model, optimizer)\n", "train.py"),
        ("model = pipeline.prepare(model)  # of no Accelerator\n", "train.py"),
        (f"{PROGRAM}model = a.prepare(model)\n", "trl/trainer.py"),
        (f"{PROGRAM}model = a.prepare(model)\n", "tests/test_it.py"),
        (f"{PROGRAM}model = a.prepare(model\n", "train.py"),
    ],
)
def test_others_are_not(program: str, name: str) -> None:
    assert outcomes(program, name) == {}


def test_version_2_is_not_told_again() -> None:
    config = f"{CONFIG}  fsdp_version: 2\n"
    assert "fsdp_version" not in outcomes(f"{PROGRAM}a.prepare(model)\n", config=config)


def test_accelerate_itself_stops_there() -> None:
    source = Path(__import__("accelerate").__file__).with_name("accelerator.py").read_text()
    assert "a model and optimizer must be passed together" in source
    assert "Only one model is supported when using FSDP2" in source
    assert "FSDP2 preparation should be done via `accelerate.prepare()`" in source
