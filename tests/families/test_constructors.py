"""What must hold for every FSDP1 constructor call, drawn at random."""

from __future__ import annotations

import ast
from collections.abc import Mapping, Sequence

import pytest
from hypothesis import HealthCheck, given, settings

from fsdp_migrate.planning.model import Decision
from fsdp_migrate.planning.outcome import Outcome
from fsdp_migrate.planning.target import DEFAULT_TARGET
from fsdp_migrate.rewriting import check
from fsdp_migrate.syntax import name_table_builder
from tests.families.drawn_constructors import EXPECTED, FORMS, OPTIONAL, Program, programs
from tests.helpers import accounting, standins
from tests.helpers.migrating import migrate, support_functions, without_support

CALM = settings(
    max_examples=100,
    deadline=None,
    derandomize=True,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
)


@pytest.mark.filterwarnings("ignore:The recursion limit")  # the engine raises it
def test_any_call_ends_well() -> None:
    """Every argument, by position and by keyword, in every form, is drawn, and ends well."""
    drawn: set[str] = set()

    def draw(program: Program) -> None:
        drawn.update(program.drawn)
        ends_well(program)

    CALM(given(programs())(draw))()
    for form in FORMS:
        settings(CALM, max_examples=4)(given(programs(form))(draw))()
    assert drawn >= EXPECTED, EXPECTED - drawn


def ends_well(program: Program) -> None:
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
    assert fits(after)
    assert accounting.unaccounted(program.files, result.decisions, after) == []
    assert settled(result.decisions)
    again, same = migrate(after)
    assert not again.changes
    assert same == after
    assert all(d.outcome is Outcome.LEFT for d in again.decisions)
    assert after["example.py"].count("# stays") == 2
    assert after["models.py"] == program.files["models.py"]


def fits(after: Mapping[str, str]) -> bool:
    """Whether every call of torch's functions binds in the release that the code is made for."""
    tables = (name_table_builder.build(ast.parse(text)) for text in after.values())
    return not any(check.mismatches(table, DEFAULT_TARGET) for table in tables)


def defined(source: str) -> set[str]:
    """The functions and classes of a module."""
    kinds = (ast.FunctionDef, ast.ClassDef)
    return {n.name for n in ast.parse(source).body if isinstance(n, kinds)}


def settled(decisions: Sequence[Decision]) -> bool:
    """Whether every constructor and its arguments were rewritten together, or left together."""
    kinds: dict[ast.Call, set[bool]] = {}
    handed_on = False  # ``(FSDP if ... else ...)(model)``
    for decision in decisions:
        construct = str(decision.site.construct)
        handed_on |= construct == "value(FullyShardedDataParallel)"
        if construct.startswith("FullyShardedDataParallel("):
            assert len(decision.models) >= 1
        elif construct != "partial(FullyShardedDataParallel)":
            continue
        for model in decision.models:
            kinds.setdefault(model.call, set()).add(decision.outcome is Outcome.LEFT)
    return bool(kinds or handed_on) and all(len(found) == 1 for found in kinds.values())


def test_a_policy_from_elsewhere_is_asked_beside_one_for_batch_norm() -> None:
    source = (
        "import torch\n"
        "from other import policy\n"
        "from torch.distributed.fsdp import FullyShardedDataParallel as FSDP, MixedPrecision\n\n\n"
        "def build():\n"
        "    net = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.BatchNorm1d(4))\n"
        "    mp = MixedPrecision(param_dtype=torch.bfloat16)\n"
        "    return FSDP(net, auto_wrap_policy=policy, mixed_precision=mp)\n"
    )
    result, after = migrate({"train.py": source})
    assert all(d.outcome.value != "left" for d in result.decisions)
    assert "    if policy is not None:\n" in after["train.py"]
    assert "or policy(module=module, recurse=False" in after["train.py"]
    assert "_or_policy" not in after["train.py"]


BUFFERS = """\
import torch
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP, MixedPrecision


def build(net, cfg):
    kinds = {"fp32": torch.float32, "bf16": torch.bfloat16}
    mp = MixedPrecision(param_dtype=kinds[cfg.param], buffer_dtype=kinds[cfg.buffer])
    return FSDP(net, mixed_precision=mp)
"""


def test_the_dtype_of_buffers_is_asked_again_behind_the_policy() -> None:
    _, after = migrate({"train.py": BUFFERS})
    assert "buffer.data = buffer.to(kinds[cfg.buffer])" in after["train.py"]
    unknown = BUFFERS.replace("    kinds", "    kinds = cfg.kinds  # ")
    _, after = migrate({"train.py": unknown})
    assert "    if kinds[cfg.buffer] is not None:\n" in after["train.py"]


@pytest.mark.parametrize(
    "source",
    [
        BUFFERS.replace("    return", "    cfg.buffer = 'fp32'\n    return"),
        BUFFERS.replace("    return", "    kinds = {}\n    return"),
        BUFFERS.replace("kinds[cfg.buffer]", "cfg.read()"),
        BUFFERS.replace("    return", "    del kinds['fp32']\n    return"),
        BUFFERS.replace("    return", "    kinds['fp32'] = torch.float16\n    return"),
        BUFFERS.replace("    return", "    kinds.update(cfg.kinds)\n    return"),
    ],
)
def test_what_may_be_another_dtype_by_then_is_not_asked_again(source: str) -> None:
    _, after = migrate({"train.py": source})
    assert "buffer.to(kinds" not in after["train.py"]
    assert "buffer.to(cfg" not in after["train.py"]
