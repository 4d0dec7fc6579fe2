"""The file of MindSpeed-MM's FSDP2, from what a run of FSDP1 showed; see docs/systems.md."""

from __future__ import annotations

import contextlib
import io
import shutil
from dataclasses import replace
from pathlib import Path

import pytest
from ruamel.yaml import YAML

from fsdp_migrate.cli import mindspeed, parser
from fsdp_migrate.configurations import brace_paths
from fsdp_migrate.configurations.frameworks.mindspeed import wrong_resharding
from fsdp_migrate.errors import InputError
from fsdp_migrate.verify.compare.observed import Layout, Made, Observed, Placed, Span
from tests.training.programs import FIXTURES, Launcher, Run, compare

PROGRAM = FIXTURES / "systems" / "mindspeed"
LAYERS = [f"image_encoder.layers.{n}" for n in range(2)] + [
    f"predictor.layers.{n}" for n in range(3)
]
CHILDREN = ["image_encoder", "predictor"]
PARTS = ("norm.weight", "norm.bias", "mlp.0.weight", "mlp.0.bias", "mlp.2.weight", "mlp.2.bias")
OF_CHILDREN = {
    "image_encoder": ("image_encoder.patch.weight", "image_encoder.patch.bias"),
    "predictor": ("predictor.embedding.weight", "predictor.head.weight", "predictor.head.bias"),
}


def made(**arguments: object) -> Made:
    return Made(0, "patches.py", Span(1, 0, 1, 9), "Encoder", {**arguments}, (), 1)


def observed(*, outside: tuple[str, ...] = (), prefix: str = "", **arguments: object) -> Observed:
    """What a run of the trainer shows."""
    parameters = {name: tuple(f"{name}.{part}" for part in PARTS) for name in LAYERS} | OF_CHILDREN
    units = tuple(
        Placed(prefix + name, "bfloat16", "float32", tuple(prefix + p for p in names))
        for name, names in parameters.items()
    )
    layout = Layout(("VLModel",), units, tuple(prefix + name for name in outside))
    return Observed(made=(made(**arguments),), world=2, layout=layout)


FILE = """\
# the units that FSDP1 made of VLModel, on 2 ranks
sharding_size: auto
reshard_after_forward: false
param_dtype: "bf16"
reduce_dtype: "fp32"
sub_modules_to_wrap:
  - "image_encoder.layers.{0-1}"
  - "predictor.layers.{0-2}"
  - "image_encoder"
  - "predictor"
ignored_modules:
  - "text_encoder"
offload_to_cpu: true
num_to_forward_prefetch: 1
"""


# -- what is written ------------------------------------------------------------------------------


@pytest.mark.parametrize("prefix", ["", "module.module."])
def test_the_file_has_ranges_and_what_the_constructors_got(prefix: str) -> None:
    seen = observed(
        outside=("text_encoder.embed.weight", "text_encoder.embed.bias"),
        prefix=prefix,
        sharding_strategy="ShardingStrategy.SHARD_GRAD_OP",
        cpu_offload={"type": "CPUOffload", "offload_params": True},
        forward_prefetch=True,
        backward_prefetch="BackwardPrefetch.BACKWARD_PRE",
    )
    assert mindspeed.document(seen) == FILE
    mindspeed.check(FILE, seen)


def test_ranges_expand_to_the_units_that_there_were() -> None:
    paths = YAML(typ="safe").load(mindspeed.document(observed()))["sub_modules_to_wrap"]
    known = {*LAYERS, *CHILDREN}
    assert len(paths) == 4
    assert {m for path in paths for m in brace_paths.expanded(path, known)} == known


@pytest.mark.parametrize(
    ("seen", "said"),
    [
        (Observed(), "the original made no units"),
        (observed(sharding_strategy="ShardingStrategy.HYBRID_SHARD"), "write sharding_size"),
        (observed(outside=("scale",)), "scale is in no unit under FSDP1, and FSDP2's root would"),
        (
            replace(
                observed(),
                made=(made(sharding_strategy="ShardingStrategy.SHARD_GRAD_OP"), made()),
            ),
            "ShardingStrategy.SHARD_GRAD_OP, FULL_SHARD, and the file has one",
        ),
        (
            replace(observed(), made=(made(cpu_offload=True), made())),
            "the constructors got several values for cpu_offload",
        ),
        (
            replace(observed(), layout=replace(observed().layout, models=("Actor", "Critic"))),
            "one model has a file, and there are Actor, Critic",
        ),
        (
            replace(
                observed(),
                layout=Layout(("M",), (Placed("a", "float64", "float64", ("a.weight",)),)),
            ),
            "the units have float64 as param_dtype",
        ),
    ],
)
def test_what_the_file_cannot_say_is_an_error(seen: Observed, said: str) -> None:
    with pytest.raises(InputError, match=said):
        mindspeed.document(seen)


def test_a_default_and_its_name_are_one_strategy() -> None:
    named = made(sharding_strategy="ShardingStrategy.FULL_SHARD")
    text = mindspeed.document(replace(observed(), made=(named, made())))
    assert "sharding_size: auto\nreshard_after_forward: true\n" in text


def test_no_shard_is_one_rank_a_shard() -> None:
    text = mindspeed.document(observed(sharding_strategy="ShardingStrategy.NO_SHARD"))
    assert "sharding_size: 1\n" in text
    assert "reshard_after_forward" not in text


# -- a file that is there -------------------------------------------------------------------------


def changed(old: str, new: str) -> str:
    assert old in FILE
    text = FILE.replace('ignored_modules:\n  - "text_encoder"\n', "")
    return text.replace(old, new)


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ("{0-2}", "{0-3}", r"predictor.layers.\{0-3\}: the model has no predictor.layers.3"),
        ("predictor.layers.{0-2}", "decoder.layers.{*}", "no numbered modules in decoder.layers"),
        ('- "predictor"', '- "projector"', "projector: the model has no projector"),
        ("{0-2}", "{0-2}.mlp.{*}", "one pair of braces at most"),
        ("{0-2}", "{2-0}", "2-0 is neither a number nor a range"),
    ],
)
def test_a_path_that_fits_nothing_is_an_error(old: str, new: str, said: str) -> None:
    with pytest.raises(InputError, match=said):
        mindspeed.check(changed(old, new), observed())


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ("{0-2}", "{0-1}", "was in predictor.layers.2 under FSDP1, and is in predictor by this"),
        ('  - "image_encoder"\n', "", "was in image_encoder under FSDP1, and is in the root's by"),
        ("offload", 'ignored_modules: ["predictor"]\noffload', "is in no unit by this file"),
        ("sharding_size: auto", "sharding_size: [auto", r"is not YAML: .* \(line 3, column 22\)"),
        ("sharding_size: auto", "sharding_size: {a: 1}", "sharding_size is not known here"),
    ],
)
def test_other_units_and_other_texts_are_errors(old: str, new: str, said: str) -> None:
    with pytest.raises(InputError, match=said):
        mindspeed.check(changed(old, new), observed())


# -- a number for reshard_after_forward -----------------------------------------------------------


@pytest.mark.parametrize(
    ("value", "size", "wrong"),
    [
        (2, 8, False),
        (4, None, False),
        (True, 3, False),
        (3, 8, True),
        (0, None, True),
        (16, 8, True),
    ],
)
def test_a_number_for_resharding_has_to_divide_the_size(
    value: int, size: int | None, *, wrong: bool
) -> None:
    assert bool(wrong_resharding(value, size)) == wrong


def test_a_number_that_does_not_divide_is_an_error_at_migrate_time_if_the_size_is_known(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    text = 'sharding_size: 8\nsub_modules_to_wrap: ["decoder.layers.{*}"]\n'
    file = tmp_path / "fsdp2_config.yaml"
    for number, code in ((4, 0), (3, 1)):
        file.write_text(f"{text}reshard_after_forward: {number}\n", encoding="utf-8")
        assert parser.run(["check", str(tmp_path)]) == code
    assert "reshard_after_forward: 3 does not divide sharding_size" in capsys.readouterr().out


def test_a_number_that_does_not_divide_is_an_error_at_validate_time_otherwise() -> None:
    text = changed("reshard_after_forward: false", "reshard_after_forward: 2")
    mindspeed.check(text, observed())
    text = text.replace("reshard_after_forward: 2", "reshard_after_forward: 3")
    with pytest.raises(InputError, match="3 does not divide sharding_size, which is 2"):
        mindspeed.check(text, observed())


# -- run ------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str]:
    """The file that ``verify`` writes, and what it says when it is there already."""
    file = tmp_path_factory.mktemp("file") / "fsdp2.yaml"
    # In a project of its own: ``verify`` rewrites all of the project that the script is in.
    project = shutil.copytree(PROGRAM, tmp_path_factory.mktemp("project"), dirs_exist_ok=True)
    (project / "pyproject.toml").touch()
    script = str(project / "pretrain_vlm.py")
    said = io.StringIO()
    with contextlib.redirect_stderr(said):
        for _ in range(2):
            options = ["--no-twin", "--nproc", "2", "--fsdp2-config", str(file)]
            assert parser.run(["verify", script, *options, "--", "--forward-prefetch"]) == 0
    return file, said.getvalue()


@pytest.mark.train
def test_verify_writes_the_file_and_holds_one_that_is_there_against_the_run(
    written: tuple[Path, str],
) -> None:
    file, said = written
    settings = YAML(typ="safe").load(file.read_text(encoding="utf-8"))
    paths = settings["sub_modules_to_wrap"]
    known = {*LAYERS, *CHILDREN}
    assert {m for path in paths for m in brace_paths.expanded(path, known)} == known
    assert settings["num_to_forward_prefetch"] == 1
    assert "makes the units that the original has" in said


@pytest.mark.train
def test_the_units_of_the_file_train_as_fsdp1_did(
    written: tuple[Path, str], launcher: Launcher
) -> None:
    before = launcher.script(PROGRAM / "pretrain_vlm.py", fsdp1="allow")
    after = launcher.function(
        "tests.systems.mindspeed_runs", "by_file", str(PROGRAM), str(written[0]), fsdp1="forbid"
    )
    assert compare(_untagged(before), _untagged(after), tolerance=2e-6) >= 3


@pytest.mark.train
def test_a_number_for_resharding_trains_the_same(
    written: tuple[Path, str], launcher: Launcher, tmp_path: Path
) -> None:
    file = tmp_path / "fsdp2.yaml"
    text = written[0].read_text(encoding="utf-8")
    number = text.replace("reshard_after_forward: true", "reshard_after_forward: 2")
    assert number != text
    file.write_text(number, encoding="utf-8")
    before = launcher.script(PROGRAM / "pretrain_vlm.py", fsdp1="allow", ranks=4)
    after = launcher.function(
        "tests.systems.mindspeed_runs", "by_file", str(PROGRAM), str(file), ranks=4
    )
    assert compare(_untagged(before), _untagged(after), tolerance=2e-6) >= 3


def _untagged(run: Run) -> Run:
    """What a run printed, but for how many parameters have Megatron's attributes: to carry those
    over is the trainer's part, whose file only says which modules are units."""
    output = ["\n".join(t for t in o.splitlines() if "tagged" not in t) for o in run.output]
    return replace(run, output=tuple(output))
