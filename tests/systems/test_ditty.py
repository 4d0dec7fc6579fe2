"""A trainer in the manner of ditty's and fsdp_qlora's: packed weights, adapters, a policy of
lambdas; see docs/systems.md."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from tests.helpers.migrating import files, migrate
from tests.training.programs import (
    FIXTURES,
    Launcher,
    Pair,
    Run,
    compare,
    compare_models,
    pair,
    written,
)

PROGRAM = "systems/ditty"


@pytest.fixture(scope="module")
def both(tmp_path_factory: pytest.TempPathFactory) -> Pair:
    return pair(PROGRAM, tmp_path_factory.mktemp("ditty"))


@pytest.fixture(scope="module")
def trained(
    launcher: Launcher, both: Pair, tmp_path_factory: pytest.TempPathFactory
) -> dict[str, tuple[Run, Path]]:
    """Both versions, with the adapters that they saved."""
    found = {}
    for version in ("before", "after"):
        out = tmp_path_factory.mktemp(version)
        is_old = version == "before"
        script, fsdp1 = (both.before, "allow") if is_old else (both.after, "forbid")
        run = launcher.script(script, "--no_sync", "--save", str(out), fsdp1=fsdp1)
        found[version] = run, out / "adapters.safetensors"
    return found


def noted(old: str, new: str) -> list[str]:
    """What is said of precision where a word of the program is another."""
    before = files(FIXTURES / PROGRAM)
    before["train.py"] = before["train.py"].replace(old, new)
    result, _ = migrate(before)
    told = [d.message + d.help for d in result.decisions if d.code == "FSDP202"]
    return [each for each in told if "stored as" in each]


# -- what is written ------------------------------------------------------------------------------


def test_settings_in_a_dictionary_and_a_policy_of_lambdas_are_plain_code() -> None:
    text = str(migrate(files(FIXTURES / PROGRAM))[1]["train.py"])
    assert "return lambda module: any(picks(module) for picks in policies)" in text
    assert "fsdp2_support" not in text
    assert "_fsdp_wrapped_module" not in text


@pytest.mark.parametrize("dtype", ["float16", "float32"])
def test_a_param_dtype_that_is_not_that_of_the_storage_is_told(dtype: str) -> None:
    [told] = noted("param_dtype=torch.bfloat16", f"param_dtype=torch.{dtype}")
    assert "stored as torch.bfloat16 in model.py" in told
    assert f"param_dtype of torch.{dtype} changes their bytes" in told


@pytest.mark.parametrize("given", ["param_dtype=torch.bfloat16, ", "param_dtype=None, ", ""])
def test_the_storages_own_dtype_and_none_are_not(given: str) -> None:
    assert not noted("param_dtype=torch.bfloat16, ", given)


CHOSEN = "param_dtype=getattr(torch, args.dtype)"


@pytest.mark.parametrize(
    ("given", "what"),
    [
        (
            "param_dtype=torch.float16 if args.no_sync else torch.bfloat16",
            "param_dtype may be torch.float16, which changes their bytes",
        ),
        (
            "param_dtype=torch.float16 if args.no_sync else None",
            "param_dtype may be torch.float16, which changes their bytes",
        ),
        (CHOSEN, "param_dtype is only known at run time: any other dtype changes their bytes"),
    ],
)
def test_a_param_dtype_that_is_chosen_at_run_time_is_told(given: str, what: str) -> None:
    [told] = noted("param_dtype=torch.bfloat16", given)
    assert "stored as torch.bfloat16 in model.py" in told
    assert what in told


@pytest.mark.parametrize(
    "given",
    [
        "param_dtype=None if args.no_sync else torch.bfloat16",
        "param_dtype=torch.bfloat16 if args.no_sync else torch.bfloat16",
    ],
)
def test_a_choice_that_is_the_storages_dtype_or_none_is_not(given: str) -> None:
    assert not noted("param_dtype=torch.bfloat16", given)


def test_storage_and_param_dtype_that_may_be_chosen_alike_are_not() -> None:
    before = files(FIXTURES / PROGRAM)
    chosen = "torch.float16 if args.no_sync else torch.bfloat16"
    for old in ("storage=torch.bfloat16", "param_dtype=torch.bfloat16"):
        assert before["train.py"].count(old) == 1
        before["train.py"] = before["train.py"].replace(old, f"{old.partition('=')[0]}={chosen}")
    result, _ = migrate(before)
    assert not any("stored as" in d.message + d.help for d in result.decisions)


# -- trained before and after ---------------------------------------------------------------------


@pytest.mark.train
def test_units_losses_and_what_is_frozen_are_the_same_with_accumulation(
    trained: dict[str, tuple[Run, Path]],
) -> None:
    before, after = (trained[version][0] for version in ("before", "after"))
    assert compare(before, after, tolerance=1e-2) >= 6
    assert compare_models(before, after, tolerance=1e-2, atol=4e-3) > 0


@pytest.mark.train
def test_adapters_are_saved_with_the_same_keys_and_values(
    trained: dict[str, tuple[Run, Path]],
) -> None:
    first, second = (load_file(trained[version][1]) for version in ("before", "after"))
    assert first.keys() == second.keys()
    assert len(first) == 8
    for key, value in first.items():
        assert torch.allclose(value.float(), second[key].float(), rtol=1e-2, atol=4e-3), key


@pytest.mark.train
def test_packed_bytes_come_back_where_the_dtype_is_that_of_the_storage(
    launcher: Launcher, both: Pair
) -> None:
    run = launcher.function("tests.systems.ditty_runs", "bytes_of", str(both.after.parent))
    assert run.output[0].splitlines() == ["None True", "torch.bfloat16 True", "torch.float16 False"]


@pytest.mark.train
def test_a_dtype_that_is_chosen_at_run_time_trains_as_it_did(
    launcher: Launcher, tmp_path: Path
) -> None:
    """In the dtype of the storage, and in another: both versions change the same bytes."""
    before = files(FIXTURES / PROGRAM)
    for old, new in (
        ("param_dtype=torch.bfloat16", CHOSEN),
        ("args = parser", 'parser.add_argument("--dtype")\n    args = parser'),
    ):
        assert before["train.py"].count(old) == 1
        before["train.py"] = before["train.py"].replace(old, new)
    both = written({name: text.encode() for name, text in before.items()}, tmp_path)
    losses = []
    for dtype in ("bfloat16", "float16"):
        args = ("--no_sync", "--dtype", dtype)
        old = launcher.script(both.before, *args, fsdp1="allow")
        new = launcher.script(both.after, *args, fsdp1="forbid")
        assert compare(old, new, tolerance=1e-2) >= 6
        losses.append(float(new.output[0].split()[3]))
    assert abs(losses[0] - losses[1]) > 0.05


@pytest.mark.train
def test_all_ranks_skip_the_step_in_which_one_has_an_infinite_gradient(
    launcher: Launcher, both: Pair
) -> None:
    scripts = [path.with_name("scaled.py") for path in (both.before, both.after)]
    before = launcher.script(scripts[0], fsdp1="allow")
    after = launcher.script(scripts[1], fsdp1="forbid")
    assert compare(before, after, tolerance=2e-6) >= 8
    scales = [line.split()[3] for line in after.output[0].splitlines()]
    assert scales == ["1024.0", "512.0", "512.0", "1024.0"]
    run = launcher.function("tests.systems.ditty_runs", "scaled", str(scripts[1]))
    told = [[x for x in text.splitlines() if x.startswith("finite")] for text in run.output]
    assert [lines[1] for lines in told] == ["finite False moved False", "finite True moved False"]
    for lines in told:
        assert {lines[at] for at in (0, 2, 3)} == {"finite True moved True"}
