"""The coverage tables are held to the rules, to their examples, and to the tests that train."""

from __future__ import annotations

import ast
from functools import cache
from types import ModuleType

import pytest

from fsdp_migrate.planning.outcome import Outcome
from tests.coverage import OUTCOMES, Row, construct, runtime, silent
from tests.families import test_state_rows
from tests.helpers.migrating import REGISTRY, migrate
from tests.tools.documents import ROOT

TABLES = (construct, runtime)
ROWS = (*construct.ROWS, *runtime.ROWS)
SHOWN = [row for row in ROWS if row.rule]
ELSEWHERE = [row for row in SHOWN if row.example.startswith("tests/")]
BY_EXAMPLE = [row for row in SHOWN if row not in ELSEWHERE]


def name(row: Row) -> str:
    return f"{row.section} {row.fsdp1}"


@pytest.mark.parametrize("table", TABLES, ids=lambda table: table.__name__)
def test_rows_are_of_known_sections_and_outcomes(table: ModuleType) -> None:
    assert list(dict.fromkeys(row.section for row in table.ROWS)) == list(table.SECTIONS)
    assert {row.outcome for row in table.ROWS} <= set(OUTCOMES)
    assert len({(row.section, row.fsdp1) for row in table.ROWS}) == len(table.ROWS)


@pytest.mark.parametrize("row", ROWS, ids=name)
def test_what_is_decided_is_shown(row: Row) -> None:
    decided = row.outcome in {o.value for o in Outcome}
    assert bool(row.rule and row.example) is decided
    assert row.becomes


@pytest.mark.parametrize(
    "row", [row for row in runtime.ROWS if row.outcome == "not recognised"], ids=name
)
def test_what_is_not_recognised_says_how_it_ends(row: Row) -> None:
    assert row.becomes.startswith(("loud", "silent"))
    assert row.trained or row.becomes.startswith("loud"), "what runs on and differs is shown"


@pytest.mark.parametrize("row", BY_EXAMPLE, ids=name)
def test_the_example_ends_as_the_row_says(row: Row) -> None:
    rule = REGISTRY.rules[row.rule]
    ends = {example.title: example.outcome.value for example in rule.examples}
    ends |= {keep.title: "left" for keep in rule.keep if keep.left}
    assert ends[row.example] == row.outcome


@pytest.mark.parametrize("row", ELSEWHERE, ids=name)
def test_the_test_exists(row: Row) -> None:
    assert row.rule in REGISTRY.rules
    path, _, test = row.example.partition("::")
    function, _, case = test.removesuffix("]").partition("[")
    tree = ast.parse((ROOT / path).read_text(encoding="utf-8"))
    assert function in {n.name for n in tree.body if isinstance(n, ast.FunctionDef)}
    if case:
        states = (*test_state_rows.MODEL, *test_state_rows.OPTIMIZER)
        assert {s.title: s.outcome.value for s in states}[case] == row.outcome


@cache
def training() -> frozenset[str]:
    """The tests that train, by node id below ``tests/training``."""
    pytest.importorskip("torch")
    from tests.training import (
        arguments,
        checks,
        test_checkpoints,
        test_devices,
        test_gradient_dtypes,
        test_group_writes,
        test_groups,
        test_guarded,
        test_holders,
        test_norm_inputs,
        test_programs,
        test_replicated_states,
        test_resumed,
        test_states_of_parts,
        test_told_kinds,
        test_weights,
    )

    found = [f"test_programs.py::test_trains_the_same[{case}]" for case in test_programs.CASES]
    found += [
        f"test_programs.py::test_{name}"
        for name in (
            "the_demo_trains_evaluates_and_resumes_the_same",
            "parts_that_a_step_leaves_out_differ_before_torch_2_13",
            "averages_are_exact_between_evaluations[data]",
            "plain_names_picked_nothing_in_fsdp1[first]",
        )
    ]
    for module in (
        test_gradient_dtypes,
        test_group_writes,
        test_holders,
        test_replicated_states,
        test_resumed,
        test_states_of_parts,
        test_told_kinds,
    ):
        file = module.__name__.rpartition(".")[2]
        found += [f"{file}.py::{name}" for name in dir(module) if name.startswith("test_")]
    across = "test_holders.py::test_they_give_and_take_whole_states"
    found += [f"{across}[{kind}]" for kind in test_holders.KINDS]
    first = "test_replicated_states.py::test_for_the_first_rank"
    found += [f"{first}[{strategy}]" for strategy in test_replicated_states.STRATEGIES]
    writes = "test_group_writes.py::test_they_are_seen_when_fsdp1_saw_them"
    found += [f"{writes}[NO_SHARD-{how}]" for how in test_group_writes.WRITES]
    norms = "test_norm_inputs.py::test_fp32_is_marked_and_mended_as_the_marker_says"
    found += [f"{norms}[{name}]" for name in test_norm_inputs.FULL]
    given = "test_devices.py::test_a_device_that_is_given_is_trained_on"
    found += [f"{given}[{needed}]" for needed in test_devices.NEEDED]
    found.append("test_guarded.py::test_gathered_where_it_stands_two_ranks_hang")
    found.append("test_own_classes.py::test_the_same_branches_run")
    found += [
        f"test_optimizers_of_wholes.py::test_trains_the_same[{n}]"
        for n in ("attribute", "function")
    ]
    found.append("test_replicas_over_groups.py::test_trains_the_same[slice]")
    found.append("test_bare_lists.py::test_units_of_a_list_train_the_same[written-True-]")
    found += [f"test_groups.py::test_units_are_the_same[{n}]" for n in test_groups.snippets()]
    found += [f"test_shard.py::test_trains_the_same[{n}]" for n in arguments.CASES]
    found += [f"test_support.py::test_on_two_ranks[{n}]" for n in checks.CHECKS]
    found += [
        f"test_guarded.py::test_two_ranks_save_whole_tensors[{k}]" for k in test_guarded.KINDS
    ]
    across = "test_checkpoints.py::test_whole_checkpoints_continue_on_the_other_side"
    found += [f"{across}[{kind}-{original}]" for kind, original in test_checkpoints.KINDS]
    across = "test_checkpoints.py::test_sharded_checkpoints_continue_on_any_number_of_ranks"
    found += [f"{across}[{ranks}-{original}]" for ranks in (2, 4) for original in (0, 1)]
    for table, function in (
        (test_weights.SYNCED | test_weights.FROM_RANK_0, "synchronised_models_are_rank_0s"),
        (test_weights.SLICES, "slices_are_their_own_first_ranks"),
        (test_weights.OWN, "other_models_are_what_every_rank_drew"),
    ):
        found += [f"test_weights.py::test_{function}[{n}]" for n in table]
    return frozenset(found)


@pytest.mark.parametrize("row", [row for row in ROWS if row.trained], ids=name)
def test_what_trains_it_is_collected(row: Row) -> None:
    assert row.trained in training()


@pytest.mark.parametrize("row", silent.ROWS, ids=lambda row: row.naive)
def test_what_fails_in_silence_is_collected(row: silent.Silent) -> None:
    assert {row.fails, row.ours or row.fails} <= training()


def test_an_early_optimizer_holds_its_model_back() -> None:
    source = """\
import elsewhere
import torch
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP


def build(net, sharded):
    optimizer = torch.optim.AdamW(net.parameters())
    elsewhere.prepare(optimizer)
    if sharded:
        net = FSDP(net, use_orig_params=True)
    return net, optimizer
"""
    result, _ = migrate({"example.py": source})
    assert {d.outcome for d in result.decisions} == {Outcome.LEFT}
    assert {d.code for d in result.decisions} == {"FSDP190", "FSDP403"}
