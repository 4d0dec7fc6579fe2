"""A trainer in the manner of MindSpeed-MM's FSDP1: children by name, membership, words of the
command line, a group; see docs/systems.md."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Any

import pytest

from fsdp_migrate.planning.result import Result
from tests.helpers.migrating import files, migrate
from tests.training.programs import FIXTURES, Launcher, Pair, Run, compare, compare_models, pair

PROGRAM = "systems/mindspeed"
PATCHES = "mindspeed_mm/patchs/fsdp1_patches.py"


@cache
def migrated() -> tuple[Result, dict[str, str]]:
    result, after = migrate(files(FIXTURES / PROGRAM))
    return result, {name: str(text) for name, text in after.items()}


@pytest.fixture(scope="module")
def both(tmp_path_factory: pytest.TempPathFactory) -> Pair:
    made = pair(PROGRAM, tmp_path_factory.mktemp("mindspeed"))
    return Pair(*(path.with_name("pretrain_vlm.py") for path in (made.before, made.after)))


def trained(launcher: Launcher, both: Pair, *args: str, ranks: int = 2) -> tuple[Run, Run]:
    """Both versions, which print and train the same in the same units."""
    before = launcher.script(both.before, *args, fsdp1="allow", ranks=ranks)
    after = launcher.script(both.after, *args, fsdp1="forbid", ranks=ranks)
    assert compare(before, after, tolerance=2e-6) >= 3
    assert compare_models(before, after, tolerance=2e-6, atol=1e-6) > 0
    return before, after


# -- what is written ------------------------------------------------------------------------------


def test_tables_by_words_stay_tables() -> None:
    text = migrated()[1][PATCHES]
    for row in ('"fsdp": ShardingStrategy.FULL_SHARD', '"no": ShardingStrategy.NO_SHARD'):
        assert row in text
    assert "param_dtype=DTYPES[args.param_dtype]" in text


def test_a_prefetch_flag_is_told_with_what_takes_its_place() -> None:
    lines = (FIXTURES / PROGRAM / PATCHES).read_text().splitlines()
    told = [d for d in migrated()[0].decisions if d.code == "FSDP204"]
    [flag] = [d for d in told if "forward_prefetch=" in lines[d.site.node.lineno - 1]]
    assert "set_modules_to_forward_prefetch" in flag.message


def test_megatron_stays_as_it_is_and_gets_no_support_module() -> None:
    before, after = files(FIXTURES / PROGRAM), migrated()[1]
    for name, text in before.items():
        if name.startswith("megatron/"):
            assert after[name] == text
    [support] = after.keys() - before.keys()
    assert Path(support).parent == Path(PATCHES).parent
    line = "from megatron.core.distributed import TorchFullyShardedDataParallel"
    assert line in after[PATCHES]
    assert "return TorchFullyShardedDataParallel(model, process_group=group)" in after[PATCHES]


def test_recomputation_that_is_applied_before_is_not_marked() -> None:
    assert "FSDP117" not in {d.code for d in migrated()[0].decisions}
    assert "TODO" not in migrated()[1][PATCHES]


# -- trained before and after ---------------------------------------------------------------------


@pytest.mark.train
def test_units_and_losses_are_the_same_and_attributes_are_kept(
    launcher: Launcher, both: Pair
) -> None:
    args = ("--sync-module-states", "--forward-prefetch", "--limit-all-gathers")
    for run in trained(launcher, both, *args):
        assert "tagged 5" in run.output[0]
        units: list[Any] = [set(model["units"]) for model in run.models[0]]
        assert sorted(map(len, units)) == [3, 4]


@pytest.mark.train
def test_recomputation_inside_of_units_trains_the_same(launcher: Launcher, both: Pair) -> None:
    trained(launcher, both, "--recompute", "--fsdp-strategy", "sdp")


@pytest.mark.train
def test_a_group_of_two_of_four_ranks_has_its_mesh(launcher: Launcher, both: Pair) -> None:
    directory = str(both.after.parent)
    launcher.function("tests.systems.mindspeed_runs", "over_group", directory, ranks=4)
