"""What must hold for every FSDP1 constructor call, drawn at random."""

from __future__ import annotations

import ast
from collections.abc import Sequence

import pytest
from hypothesis import HealthCheck, given, settings

from fsdp_migrate.rule import Outcome
from fsdp_migrate.study import Decision
from tests import accounting, standins
from tests.constructors import OPTIONAL, Program, programs
from tests.migrating import migrate, support_functions, without_support

CALM = settings(
    max_examples=150,
    deadline=None,
    derandomize=True,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
)


@pytest.mark.filterwarnings("ignore:The recursion limit")  # the engine raises it
@CALM
@given(programs())
def test_any_call_ends_well(program: Program) -> None:
    """One run is whole: it compiles, runs, accounts for everything, and leaves nothing to do."""
    for name, text in program.files.items():
        standins.run(text, name)
        standins.run(text, name, absent=OPTIONAL)
    result, after = migrate(program.files)
    assert not result.problems
    for name, text in without_support(after).items():
        standins.run(text, name)
        standins.run(text, name, absent=OPTIONAL)
    assert support_functions(after) <= defined(after.get("fsdp2_support.py", ""))
    assert accounting.unaccounted(program.files, result.decisions, after) == []
    assert settled(result.decisions)
    again, same = migrate(after)
    assert not again.changes
    assert same == after
    assert all(d.outcome is Outcome.LEFT for d in again.decisions)
    assert after["example.py"].count("# stays") == 2
    assert after["models.py"] == program.files["models.py"]


def defined(source: str) -> set[str]:
    """The functions and classes of a module."""
    kinds = (ast.FunctionDef, ast.ClassDef)
    return {n.name for n in ast.parse(source).body if isinstance(n, kinds)}


def settled(decisions: Sequence[Decision]) -> bool:
    """Whether every constructor and its arguments were rewritten together, or left together."""
    kinds: dict[int, set[bool]] = {}
    for decision in decisions:
        if decision.site.construct.startswith("FullyShardedDataParallel("):
            assert len(decision.models) >= 1
            for model in decision.models:
                kinds.setdefault(model.call.lineno, set()).add(decision.outcome is Outcome.LEFT)
    return bool(kinds) and all(len(found) == 1 for found in kinds.values())
