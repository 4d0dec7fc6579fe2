"""What a test is asked about: the object, where an FSDP1 model may be told apart by it alone."""

from __future__ import annotations

import ast

import pytest

from fsdp_migrate.analysis.module import Module
from fsdp_migrate.analysis.project import Project
from fsdp_migrate.analysis.tracing.tracer import Tracer
from fsdp_migrate.fsdp1 import class_questions
from fsdp_migrate.migration import engine
from fsdp_migrate.planning.context import Study
from tests.helpers.migrating import REGISTRY, ROOT

SOURCE = """\
from torch import nn
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP

other = FSDP(nn.Linear(3, 3))
model = {given}


def look(part):
    if isinstance(part, nn.Linear):
        print(part)


look(model)
"""


@pytest.mark.parametrize(("given", "asked"), [("nn.Linear(2, 2)", 0), ("FSDP(nn.ReLU())", 1)])
def test_the_object_of_a_test_is_asked_only_where_a_model_may_be_told_apart(
    given: str, asked: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is the dearest question of a test: nothing else asks the tracer that answers it."""
    questions: set[ast.AST] = set()
    is_told_apart = class_questions.is_told_apart

    def counted(check: ast.AST, module: Module, tracer: Tracer) -> bool:
        questions.add(check)
        return is_told_apart(check, module, tracer)

    monkeypatch.setattr(class_questions, "is_told_apart", counted)
    path = ROOT / "train.py"
    sources, _ = engine.read({path: SOURCE.format(given=given).encode()}, {path: "train.py"})
    study = Study(Project(sources, None), REGISTRY)
    (module,) = study.project.modules
    (printed,) = module.table.calls_by_name.named("print")
    study.values(printed.args[0], module)
    assert len(questions) == asked
