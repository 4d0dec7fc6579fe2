"""What must hold for every FSDP1 constructor call, drawn at random."""

from __future__ import annotations

import ast
from collections.abc import Sequence

import pytest
from hypothesis import HealthCheck, given, settings

from fsdp_migrate.rule import Outcome
from fsdp_migrate.study import Decision
from tests import accounting, standins
from tests.constructors import Program, programs
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
    sources = {"example.py": program.source}
    standins.run(program.source, "example")
    result, after = migrate(sources)
    assert not result.problems
    text = after["example.py"]
    standins.run(text, "example")
    assert support_functions(after) <= defined(after.get("fsdp2_support.py", ""))
    assert accounting.unaccounted(sources, result.decisions, after) == []
    assert settled(result.decisions)
    again, same = migrate(after)
    assert not again.changes
    assert same == after
    assert all(d.outcome is Outcome.LEFT for d in again.decisions)
    assert text.count("# stays") == program.source.count("# stays")
    assert set(without_support(after)) == {"example.py"}


def defined(source: str) -> set[str]:
    """The functions and classes of a module."""
    kinds = (ast.FunctionDef, ast.ClassDef)
    return {n.name for n in ast.parse(source).body if isinstance(n, kinds)}


def settled(decisions: Sequence[Decision]) -> bool:
    """Whether the constructor and its arguments were rewritten together, or left together."""
    own = [d for d in decisions if d.site.construct.startswith("FullyShardedDataParallel(")]
    left = {d.outcome is Outcome.LEFT for d in own}
    return bool(own) and len(left) == 1
