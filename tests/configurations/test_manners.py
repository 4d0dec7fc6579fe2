"""Configurations in the manner of public projects, through the command line."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from tests.cli.test_configurations import lay
from tests.helpers.commandline import Command, answering

CALL = """\
from transformers import TrainingArguments

args = TrainingArguments("out", fsdp={fsdp}, fsdp_config="conf/fsdp.json")
"""
JSON = """\
{
  "backward_prefetch": "backward_pre",
  "transformer_layer_cls_to_wrap": ["LlamaDecoderLayer"],
  "cpu_ram_efficient_loading": true
}
"""
RECIPE = "model_name_or_path: m\noutput_dir: out\nlearning_rate: 1.0e-5\n"
SUBCLASS = """\
from dataclasses import dataclass, field

import transformers


@dataclass
class Arguments(transformers.TrainingArguments):
    fsdp: str = field(default="{fsdp}")
    fsdp_config: dict = field(default_factory=lambda: {{"use_orig_params": True}})
"""
SFT = """\
from trl import SFTConfig

args = SFTConfig("out", fsdp="shard_grad_op", fsdp_config={"cpu_ram_efficient_loading": True})
"""
AXOLOTL = "base_model: m\ndatasets:\n  - path: d\n"
FOUNDRY = "max_duration: 1ep\nprecision: amp_bf16\nfsdp_config:\n"
TEMPLATE = "fsdp_config:\n  fsdp_sharding_strategy: {{ strategy }}\n"
PINNED = {"requirements.txt": "transformers==5.24.0\n"}


@dataclass(frozen=True)
class Case:
    files: dict[str, str]
    outcomes: set[str]
    codes: set[str]
    written: dict[str, tuple[str, ...]] = field(default_factory=dict)  # in the files afterwards
    gone: tuple[str, ...] = ()
    said: str = ""


CASES = {
    "a call that names a JSON file": Case(
        {"train.py": CALL.format(fsdp='"shard_grad_op auto_wrap"'), "conf/fsdp.json": JSON},
        {"rewritten"},
        {"FSDP520"},
        {
            "train.py": ('fsdp="shard_grad_op auto_wrap"',),
            "conf/fsdp.json": ('"version": 2', '"reshard_after_forward": false'),
        },
        gone=("backward_prefetch",),
    ),
    "one that is not plain holds its file": Case(
        {"train.py": CALL.format(fsdp="options.fsdp"), "conf/fsdp.json": JSON},
        {"left"},
        {"FSDP520", "FSDP521"},
        {"conf/fsdp.json": ("backward_prefetch",)},
        gone=('"version"',),
        said="stays with TrainingArguments() at train.py:3",
    ),
    "a strategy that version 2 lacks holds the file": Case(
        {"train.py": CALL.format(fsdp='"no_shard"'), "conf/fsdp.json": JSON},
        {"left"},
        {"FSDP520", "FSDP521"},
        {"conf/fsdp.json": ("backward_prefetch",)},
    ),
    "two calls that want different things of one file": Case(
        {
            "a.py": CALL.format(fsdp='"full_shard"'),
            "b.py": CALL.format(fsdp='"shard_grad_op"'),
            "conf/fsdp.json": JSON,
        },
        {"left"},
        {"FSDP520"},
        {"conf/fsdp.json": ("backward_prefetch",)},
        said="need different settings here",
    ),
    "a recipe that names a JSON file": Case(
        {
            "recipe.yaml": f"{RECIPE}fsdp: shard_grad_op\nfsdp_config: fsdp.json\n",
            "fsdp.json": JSON,
        },
        {"rewritten"},
        {"FSDP520"},
        {"fsdp.json": ('"reshard_after_forward": false',), "recipe.yaml": ("fsdp_config: fsdp.",)},
    ),
    "--fsdp alone with a file": Case(
        {
            "run.sh": "torchrun t.py --fsdp --fsdp_config fsdp.json\n",
            "fsdp.json": JSON,
            **PINNED,
        },
        {"rewritten"},
        {"FSDP520"},
        {"fsdp.json": ('"version": 2', '"reshard_after_forward": true')},
    ),
    "a flag whose text becomes true": Case(
        {"run.sh": 'torchrun t.py --fsdp "full_shard auto_wrap" --lr 1\n', **PINNED},
        {"rewritten"},
        {"FSDP520"},
        {"run.sh": ("torchrun t.py --fsdp --fsdp_config '{",)},
    ),
    "what follows is no flag, and a flag comes before": Case(
        {"run.sh": 'torchrun t.py --fsdp_min_num_params 0 --fsdp full_shard "$@"\n', **PINNED},
        {"rewritten"},
        {"FSDP520"},
        {"run.sh": ("--fsdp --fsdp_config '{",)},
    ),
    "what follows would be taken for its value, beside a file": Case(
        {
            "run.sh": 'torchrun t.py --fsdp_config fsdp.json --fsdp full_shard "$@"\n',
            "fsdp.json": JSON,
            **PINNED,
        },
        {"left"},
        {"FSDP520"},
        said="would be taken for the value of --fsdp",
    ),
    "--fsdp true of another program": Case(
        {"run.sh": "python t.py --fsdp true --fsdp_config own.json\n", "own.json": '{"fsdp": 1}\n'},
        set(),
        set(),
    ),
    "--fsdp alone of another program": Case(
        {"run.sh": "python t.py --fsdp --fsdp_config own.json\n", "own.json": '{"fsdp": 1}\n'},
        set(),
        set(),
    ),
    "all of a block goes, and sorted keys come": Case(
        {
            "recipe.yaml": f"{RECIPE}fsdp: full_shard offload\nfsdp_config:\n"
            "  backward_prefetch: a\n  forward_prefetch: true\n  use_orig_params: true\n",
            **PINNED,
        },
        {"rewritten"},
        {"FSDP520"},
        {"recipe.yaml": ("  version: 2\n  reshard_after_forward: true\n  cpu_offload: true\n",)},
    ),
    "defaults of a subclass": Case(
        {"args.py": SUBCLASS.format(fsdp="full_shard auto_wrap")},
        {"left"},
        {"FSDP521"},
        said="write version: 2, reshard_after_forward: true in its default of fsdp_config",
    ),
    "defaults of a subclass without FSDP": Case(
        {"args.py": SUBCLASS.format(fsdp="")}, set(), set()
    ),
    "trl's own arguments": Case(
        {"sft.py": SFT}, {"rewritten"}, {"FSDP521"}, {"sft.py": ('"reshard_after_forward": False',)}
    ),
    "axolotl by its data": Case(
        {"a.yml": f"{AXOLOTL}fsdp_config:\n  fsdp_sharding_strategy: SHARD_GRAD_OP\n"},
        {"review", "rewritten"},
        {"FSDP540"},
        {"a.yml": ("reshard_after_forward: false", "fsdp_version: 2")},
    ),
    "composer by its own keys": Case(
        {"a.yaml": f"{FOUNDRY}  sharding_strategy: FULL_SHARD\n  activation_cpu_offload: false\n"},
        {"review", "rewritten"},
        {"FSDP560"},
        {"a.yaml": ("reshard_after_forward: true",)},
    ),
    "composer over a mesh": Case(
        {"a.yaml": f"{FOUNDRY}  data_parallel_shard_degree: 8\n"},
        {"left", "review", "rewritten"},
        {"FSDP560"},
        said="composer 0.32 makes the mesh of version 2 itself",
    ),
    "a template by its suffix": Case(
        {"a.yaml.j2": f"distributed_type: FSDP\n{TEMPLATE}"},
        {"left"},
        {"FSDP510"},
        said="it is a template",
    ),
    "a template that is no YAML": Case(
        {"a.yaml": f"distributed_type: FSDP\n{{% if a %}}\n{TEMPLATE}{{% endif %}} b\n"},
        {"left"},
        {"FSDP510"},
        said="template",
    ),
    "a template without FSDP": Case({"a.yaml.j2": "fsdp: {{ x }}\n"}, set(), set()),
    "LightningCLI's flag": Case(
        {"fit.sh": "python main.py fit --trainer.strategy fsdp --trainer.devices=8\n"},
        {"left"},
        {"FSDP530"},
        said="data_parallel_size: 8",
    ),
    "hydra's override for a Trainer": Case(
        {"fit.sh": "python train.py trainer.strategy=fsdp trainer.devices=4 trainer.num_nodes=2\n"},
        {"left"},
        {"FSDP530"},
        said="data_parallel_size: 8",
    ),
    "a file that trl brings": Case(
        {"sft.sh": "trl sft --accelerate_config fsdp1 --config sft.yaml\n"},
        {"left"},
        {"FSDP510"},
        said="fsdp2 beside it says 2",
    ),
    "the other one": Case({"sft.sh": "trl sft --accelerate_config fsdp2\n"}, set(), set()),
    "an override for a trainer that is none of Lightning's": Case(
        {"run.sh": "python -m rl trainer.policy.path=x trainer.strategy=fsdp trainer.epochs=2\n"},
        set(),
        set(),
    ),
    "another strategy of a Trainer": Case(
        {"fit.sh": "python main.py fit --trainer.strategy ddp --name fsdp\n"}, set(), set()
    ),
}


@pytest.mark.parametrize("name", CASES)
def test_in_the_manner_of(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, run: Command
) -> None:
    case = CASES[name]
    lay(tmp_path, {"other.py": "x = 1\n", **case.files})
    monkeypatch.chdir(tmp_path)
    sites = json.loads(run("check", ".", "--format", "json").out)["sites"]
    outcomes = {site["outcome"] for site in sites}
    assert outcomes == case.outcomes or (case.outcomes >= outcomes >= {"left"}), sites
    assert {site["code"] for site in sites} == case.codes
    said = " ".join(f"{site['message']} {site['help']}" for site in sites)
    assert case.said in said
    run("rewrite", ".", "--allow-dirty")
    for path in case.files:
        text = (tmp_path / path).read_text()
        assert not any(word in text for word in case.gone), text
        assert all(word in text for word in case.written.get(path, ())), text
    after = {path: (tmp_path / path).read_text() for path in case.files}
    run("rewrite", ".", "--allow-dirty")
    assert after == {path: (tmp_path / path).read_text() for path in case.files}


@pytest.fixture
def run(capfdbinary: pytest.CaptureFixture[bytes]) -> Command:
    return answering(capfdbinary)
