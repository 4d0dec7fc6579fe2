"""A trainer in the manner of BAGEL's: two models (one an average of the other), eight classes, a
strategy by name, whole models in safetensors and optimizers by rank; see docs/systems.md."""

from __future__ import annotations

import math
import shutil
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from fsdp_migrate.migration.engine import Options
from tests.helpers.migrating import files, migrate
from tests.training.programs import (
    FIXTURES,
    Launcher,
    Pair,
    Run,
    accounted,
    compare,
    compare_models,
    pair,
)

PROGRAM = "systems/bagel"
STRATEGIES = {
    "FULL_SHARD": (None, None),  # the mesh, and what becomes of parameters after a forward
    "SHARD_GRAD_OP": (None, False),
    "NO_SHARD": ((4, 1), None),
    "HYBRID_SHARD": ((2, 2), None),
    "_HYBRID_SHARD_ZERO2": ((2, 2), False),
}
CLASSES = {
    *("layers.0", "layers.1", "layers.2", "vit_model", "vit_model.layers.0", "vit_model.layers.1"),
    *("connector", "vit_pos_embed", "latent_pos_embed", "time_embedder", ""),
}


@cache
def after() -> str:
    return "\n".join(migrate(files(FIXTURES / PROGRAM))[1].values())


@pytest.fixture(scope="module")
def both(tmp_path_factory: pytest.TempPathFactory) -> Pair:
    return pair(PROGRAM, tmp_path_factory.mktemp("bagel"))


def trained(launcher: Launcher, both: Pair, *args: str, ranks: int = 2) -> tuple[Run, Run]:
    """Both versions, which print and train the same."""
    before = launcher.script(both.before, *args, fsdp1="allow", ranks=ranks)
    later = launcher.script(both.after, *args, fsdp1="forbid", ranks=ranks)
    assert not accounted(before, PROGRAM).caveat
    assert compare(before, later, tolerance=2e-6) >= 3
    assert compare_models(before, later, tolerance=2e-6, atol=1e-6) > 0
    return before, later


# -- what is written ------------------------------------------------------------------------------


def test_migrates_without_an_edit_by_hand() -> None:
    for gone in ("FullyShardedDataParallel", "_traversal_utils", "flat_param"):
        assert gone not in after()


def test_no_inner_forward_is_registered() -> None:
    assert "register_fsdp_forward_method" not in after()


def test_buffer_dtype_and_backward_prefetch_are_told_with_file_and_line() -> None:
    result, _ = migrate(files(FIXTURES / PROGRAM))
    lines = (FIXTURES / PROGRAM / "fsdp_utils.py").read_text().splitlines()
    for code, argument in (("FSDP203", "buffer_dtype="), ("FSDP204", "backward_prefetch=")):
        [told] = [d for d in result.decisions if d.code == code]
        assert told.site.module.path.name == "fsdp_utils.py"
        assert argument in lines[told.site.node.lineno - 1]


def test_meta_init_is_not_introduced() -> None:
    assert '"meta"' not in after()


# -- trained before and after ---------------------------------------------------------------------


@pytest.mark.train
@pytest.mark.parametrize("how", ["", "--no_checkpointing", "--freeze_vit"])
def test_losses_and_parameters_of_five_steps_are_the_same(
    how: str, launcher: Launcher, both: Pair
) -> None:
    before, _ = trained(launcher, both, *how.split())
    assert len(before.numbers("step")) == 10


@pytest.mark.train
def test_half_precision_trains_as_it_did(launcher: Launcher, both: Pair) -> None:
    args = ("--dtype", "bfloat16", "--total_steps", "2")
    before = launcher.script(both.before, *args, fsdp1="allow")
    later = launcher.script(both.after, *args, fsdp1="forbid")
    compare(before, later, tolerance=2e-2)


@pytest.mark.train
def test_units_are_those_of_fsdp1_for_all_classes(launcher: Launcher, both: Pair) -> None:
    for run in trained(launcher, both, "--total_steps", "1"):
        for models in run.models:
            assert [set(model["units"]) for model in models] == [CLASSES, CLASSES]


@pytest.mark.train
def test_ignored_modules_are_respected(launcher: Launcher, both: Pair) -> None:
    args = ("--total_steps", "1", "--freeze_vit", "--ignore_vit")
    for run in trained(launcher, both, *args):
        for model in run.models[0]:
            units = model["units"]
            assert not [name for unit in units.values() for name in unit if "vit_model" in name]


@pytest.mark.train
@pytest.mark.parametrize("strategy", STRATEGIES)
def test_every_strategy_by_name_trains_the_same(
    strategy: str, launcher: Launcher, both: Pair
) -> None:
    args = ("--sharding_strategy", strategy, "--num_replicate", "2", "--total_steps", "2")
    trained(launcher, both, *args, ranks=4)


@pytest.mark.train
@pytest.mark.parametrize("strategy", STRATEGIES)
def test_every_strategy_has_its_mesh_and_its_resharding(
    strategy: str, launcher: Launcher, both: Pair
) -> None:
    run = launcher.function(
        "tests.systems.bagel_runs", "wrapped", str(both.after.parent), strategy, ranks=4
    )
    mesh, reshard = STRATEGIES[strategy]
    shape = (4,) if mesh is None else mesh
    assert run.output[0].split("\n")[0] == f"{shape} {reshard is None}"


@pytest.mark.train
def test_ema_is_the_one_of_a_single_process(launcher: Launcher, both: Pair) -> None:
    launcher.function("tests.systems.bagel_runs", "averaged", str(both.after.parent))


@pytest.mark.train
def test_position_tables_are_what_they_were_after_wrapping(launcher: Launcher, both: Pair) -> None:
    launcher.function("tests.systems.bagel_runs", "tables", str(both.after.parent))


@pytest.mark.train
def test_each_version_loads_the_whole_models_of_the_other(
    launcher: Launcher, both: Pair, tmp_path: Path
) -> None:
    def run(version: str, *args: Any) -> Run:
        is_old = version == "before"
        script, fsdp1 = (both.before, "allow") if is_old else (both.after, "forbid")
        return launcher.script(script, *map(str, args), fsdp1=fsdp1)

    versions = ("before", "after")
    for version in versions:
        out = tmp_path / version
        run(version, "--total_steps", 2, "--save_every", 2, "--checkpoint_dir", out)
    for name in ("model.safetensors", "ema.safetensors"):
        first, second = (load_file(tmp_path / v / "0000002" / name) for v in versions)
        assert first.keys() == second.keys()
        for key, value in first.items():
            assert torch.allclose(value, second[key], rtol=0, atol=1e-6), key
    # Of an optimizer each reads its own files; whole models go either way.
    own = {v: run(v, "--resume_from", tmp_path / v / "0000002") for v in versions}
    assert compare(own["before"], own["after"]) > 0
    for saved, reads in (versions, versions[::-1]):
        mixed = tmp_path / f"of_{saved}"
        shutil.copytree(tmp_path / reads / "0000002", mixed)
        for name in ("model.safetensors", "ema.safetensors"):
            shutil.copy(tmp_path / saved / "0000002" / name, mixed)
        assert compare(own[reads], run(reads, "--resume_from", mixed), tolerance=2e-6) > 0


@pytest.mark.train
def test_an_old_optimizer_file_of_a_rank_is_refused_with_one_clear_message(
    launcher: Launcher, both: Pair, tmp_path: Path
) -> None:
    save = ("--total_steps", "2", "--save_every", "2", "--checkpoint_dir", str(tmp_path))
    launcher.script(both.before, *save, fsdp1="allow")
    resume = ("--resume_from", str(tmp_path / "0000002"))
    refused = launcher.script(both.after, *resume, fsdp1="forbid", fails=True)
    assert all(refused.codes)
    for errors in refused.errors:
        assert "has no parts by parameter" in errors.strip().splitlines()[-1]


@pytest.mark.train
def test_new_optimizer_files_stay_one_a_rank_and_round_trip(
    launcher: Launcher, both: Pair, tmp_path: Path
) -> None:
    whole = launcher.script(both.after, fsdp1="forbid")
    save = ("--total_steps", "3", "--save_every", "3", "--checkpoint_dir", str(tmp_path))
    launcher.script(both.after, *save, fsdp1="forbid")
    saved = tmp_path / "0000003"
    assert sorted(p.name for p in saved.glob("optimizer*")) == [
        "optimizer.00000-of-00002.pt",
        "optimizer.00001-of-00002.pt",
    ]
    resumed = launcher.script(both.after, "--resume_from", str(saved), fsdp1="forbid")
    for old, new in zip(whole.output, resumed.output, strict=True):
        rest = old.splitlines()[6:]
        for one, other in zip(rest, new.splitlines(), strict=True):
            assert math.isclose(float(one.split()[-1]), float(other.split()[-1]), rel_tol=1e-6)


PORT = """\
import torch
from torch import nn
from torch.distributed.fsdp import fully_shard, register_fsdp_forward_method


class DecoderLayer(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.mlp = nn.Linear(width, width)

    def forward(self, *args, **kwargs):
        if self.training:
            return self.forward_train(*args, **kwargs)
        return self.forward_inference(*args, **kwargs)

    def forward_train(self, x):
        return self.mlp(x)

    def forward_inference(self, x, cache=None):
        return self.mlp(x)


class Model(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.layers = nn.ModuleList([DecoderLayer(width) for _ in range(2)])

    def forward(self, x):
        for layer in self.layers:
            x = layer(x)
        return x

    def generate_image(self, x):
        return self.layers[0](x)


def wrap(model, mesh):
    for module in reversed(list(model.modules())):
        if isinstance(module, DecoderLayer):
            fully_shard(module, mesh=mesh)
            register_fsdp_forward_method(module, "forward_train")
            register_fsdp_forward_method(module, "forward_inference")
    fully_shard(model, mesh=mesh)
    register_fsdp_forward_method(model, "generate_image")
    return model
"""


def test_a_port_by_hand_has_its_two_inner_forwards_named() -> None:
    result, _ = migrate({"port.py": PORT}, Options(hazards=True), edit=False)
    told = [(h.code, h.message.split("()")[0]) for h in result.hazards]
    assert told == [("FSDP916", "forward_train"), ("FSDP916", "forward_inference")]
    line = next(n for n, text in enumerate(PORT.splitlines(), 1) if "def forward(" in text)
    assert all(f"DecoderLayer.forward (port.py:{line})" in h.message for h in result.hazards)
    assert all(h.is_note for h in result.hazards)  # torch 2.6 and later train the same
