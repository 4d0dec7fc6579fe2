"""What we write for axolotl and verl, read by what they publish; nothing of it is run."""

from __future__ import annotations

import ast
import json
import re
import subprocess
import sys
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from ruamel.yaml import YAML

from fsdp_migrate.configurations.frameworks import verl
from tests.configurations import axolotl_table
from tests.configurations.axolotl_table import HEAD
from tests.configurations.writing import write_one
from tests.corpus import packages
from tests.corpus.packages import Package

pytestmark = [pytest.mark.corpus, pytest.mark.timeout(1200)]
REQUIREMENTS = Path(__file__).with_name("released.txt")
ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def unpacked(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    scratch = tmp_path_factory.mktemp("released")
    wheels = packages.download(scratch, REQUIREMENTS)
    pinned: list[Package] = packages.pinned(REQUIREMENTS)
    return {each.name: packages.unpack(each, wheels, scratch) for each in pinned}


# -- axolotl --------------------------------------------------------------------------------------

ALL = """\
fsdp_config:
  fsdp_limit_all_gathers: true
  fsdp_sync_module_states: true
  fsdp_offload_params: true
  fsdp_use_orig_params: false
  fsdp_cpu_ram_efficient_loading: true
  fsdp_auto_wrap_policy: TRANSFORMER_BASED_WRAP
  fsdp_transformer_layer_cls_to_wrap: LlamaDecoderLayer
  fsdp_state_dict_type: SHARDED_STATE_DICT
  fsdp_final_state_dict_type: FULL_STATE_DICT
  fsdp_backward_prefetch: BACKWARD_PRE
  fsdp_sharding_strategy: FULL_SHARD
  fsdp_activation_checkpointing: true
"""
READ = {
    "offload_params": True,
    "cpu_ram_efficient_loading": True,
    "auto_wrap_policy": "TRANSFORMER_BASED_WRAP",
    "transformer_layer_cls_to_wrap": "LlamaDecoderLayer",
    "state_dict_type": "SHARDED_STATE_DICT",
    "final_state_dict_type": "FULL_STATE_DICT",
    "reshard_after_forward": True,
    "activation_checkpointing": True,
}
ROWS: dict[str, tuple[str, str, dict[str, Any] | str]] = {
    "keys with the prefix": (ALL, "rewritten", READ),
    "the list": (
        "fsdp: [full_shard, auto_wrap]\n",
        "rewritten",
        {"auto_wrap_policy": "TRANSFORMER_BASED_WRAP", "reshard_after_forward": True},
    ),
    "the strategy that is not read": (
        "fsdp_config:\n  fsdp_sharding_strategy: SHARD_GRAD_OP\n",
        "review",
        {"reshard_after_forward": False},
    ),
    "quantised by rank 0 alone": (
        f"adapter: qlora\nload_in_4bit: true\n{ALL}",
        "review",
        {**READ, "cpu_ram_efficient_loading": False},
    ),
    "the last checkpoint's kind as a key of the file": (
        "fsdp_final_state_dict_type: FULL_STATE_DICT\nfsdp_config:\n  fsdp_offload_params: true\n",
        "rewritten",
        {
            "offload_params": True,
            "reshard_after_forward": True,
            "final_state_dict_type": "FULL_STATE_DICT",
        },
    ),
    "a version of its own": (
        "fsdp_config:\n  version: 1\n  reshard_after_forward: true\n",
        "rewritten",
        {"reshard_after_forward": True},
    ),
    "an optimizer of 8 bits": (
        "optimizer: adamw_bnb_8bit\nfsdp_config:\n  reshard_after_forward: true\n",
        "left",
        "FSDP2 not compatible with",
    ),
    "preferences, quantised": (
        "rl: dpo\nload_in_8bit: true\nadapter: lora\nfsdp_config:\n  reshard_after_forward: true\n",
        "left",
        "FSDP2 does not support load_in_8bit",
    ),
}


@cache
def ours(title: str) -> tuple[str, str]:
    """Our outcome, and the file; one that is left with ``fsdp_version: 2`` by hand."""
    written = write_one(HEAD + ROWS[title][0], "axolotl.yaml", None)
    outcome = written.worst()
    by_hand = "fsdp_version: 2\n" if outcome is not None and outcome.value == "left" else ""
    return outcome.value if outcome is not None else "", written.text + by_hand


def asked(package: Path, files: list[str]) -> tuple[set[str], list[dict[str, Any]]]:
    """The keys that axolotl's ``fsdp_config`` has, and what it makes of files."""
    settings = [YAML(typ="safe").load(each) for each in files]
    done = subprocess.run(
        [sys.executable, "-m", "tests.configurations.released.axolotl_reads", str(package)],
        input="".join(json.dumps(each) + "\n" for each in settings),
        capture_output=True,
        text=True,
        check=False,
        cwd=ROOT,
    )
    assert not done.returncode, done.stderr
    keys, *found = map(json.loads, done.stdout.splitlines()[-1 - len(files) :])
    return set(keys), found


@pytest.fixture(scope="module")
def by_axolotl(unpacked: dict[str, Path]) -> tuple[set[str], dict[str, dict[str, Any]]]:
    keys, found = asked(unpacked["axolotl"], [ours(title)[1] for title in ROWS])
    return keys, dict(zip(ROWS, found, strict=True))


@pytest.fixture(scope="module")
def runs(unpacked: dict[str, Path]) -> list[str]:
    """What the rows of the table run as, before and after in turns."""
    files = [text for row in axolotl_table.ROWS for text in (row.before, row.ours()[1])]
    return [said(found) for found in asked(unpacked["axolotl"], files)[1]]


def said(found: dict[str, Any]) -> str:
    if "error" not in found:
        return str(found["runs"])
    match = re.search(r"(?:Value error, |AttributeError: |KeyError: )([^;\n\[]*)", found["error"])
    text = match[1].strip() if match is not None else found["error"]
    return "stops: " + text.partition(". ")[0]


@pytest.mark.parametrize("row", axolotl_table.ROWS, ids=lambda row: row.title)
def test_axolotl_runs_what_the_row_says(row: axolotl_table.Row, runs: list[str]) -> None:
    number = 2 * axolotl_table.ROWS.index(row)
    assert runs[number : number + 2] == [row.runs, row.after]


@pytest.mark.parametrize("title", ROWS)
def test_axolotl_reads_what_we_write(
    title: str, by_axolotl: tuple[set[str], dict[str, dict[str, Any]]]
) -> None:
    keys, read = by_axolotl
    _, outcome, expected = ROWS[title]
    assert ours(title)[0] == outcome
    if isinstance(expected, str):
        assert expected in read[title]["error"]
        return
    found = {key: read[title][key] for key in ("version", "fsdp", "config")}
    assert found == {"version": 2, "fsdp": None, "config": {"fsdp_version": 2, **expected}}
    written = YAML(typ="safe").load(ours(title)[1])
    given = {key for key in written if "fsdp" in key or "state_dict" in key}
    assert given <= {"fsdp_config", "fsdp_version"}
    assert written["fsdp_config"].keys() <= keys, "others are ignored without a word"


# -- verl -----------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def of_verl(unpacked: dict[str, Path]) -> Path:
    return unpacked["verl"] / "verl"


def looked_up(settings: Any, path: str) -> Any:
    for key in path.split("."):
        settings = settings[key]
    return settings


def defaults(package: Path, name: str) -> Any:
    text = (package / "trainer" / "config" / name).read_text(encoding="utf-8")
    return YAML(typ="safe").load(text)


def test_verls_roles_say_fsdp_by_default_where_we_take_them_to(of_verl: Path) -> None:
    trainer = defaults(of_verl, "_generated_ppo_trainer.yaml")
    assert looked_up(trainer, "actor_rollout_ref.actor.strategy") == "fsdp"
    assert looked_up(trainer, "critic.strategy") == "fsdp"
    follows = looked_up(trainer, "actor_rollout_ref.ref.strategy")
    assert follows == "${actor_rollout_ref.actor.strategy}"
    supervised = defaults(of_verl, "sft_trainer_engine.yaml")
    assert {"engine@engine": "fsdp"} in supervised["defaults"]
    assert defaults(of_verl, "engine/fsdp.yaml")["strategy"] == "fsdp"


@pytest.mark.parametrize(
    "block", [*verl.ROLES[verl.ACTOR], *verl.ROLES[verl.REFERENCE], "critic.fsdp", "engine"]
)
def test_verls_blocks_are_where_we_look(block: str, of_verl: Path) -> None:
    if block == "engine":
        keys = defaults(of_verl, "engine/fsdp.yaml").keys()
    else:
        keys = looked_up(defaults(of_verl, "_generated_ppo_trainer.yaml"), block).keys()
    assert {*verl.DEAD, *verl.OF_ENGINE, "wrap_policy", "param_offload"} <= keys


def test_verl_takes_fsdp2_and_gives_fsdp1_alone_what_we_take_out(of_verl: Path) -> None:
    schema = (of_verl / "workers" / "config" / "engine.py").read_text(encoding="utf-8")
    classes = {c.name: c for c in ast.parse(schema).body if isinstance(c, ast.ClassDef)}
    texts = {n.value for n in ast.walk(classes["FSDPEngineConfig"]) if isinstance(n, ast.Constant)}
    assert {"fsdp", "fsdp2"} <= texts
    source = (of_verl / "workers" / "engine" / "fsdp" / "transformer_impl.py").read_text("utf-8")
    tree = ast.parse(source)
    branches = [
        ast.unparse(ast.Module(node.body, []))
        for node in ast.walk(tree)
        if isinstance(node, ast.If) and ast.unparse(node.test).endswith("strategy == 'fsdp'")
    ]
    for key in verl.DEAD:
        asked = f"engine_config.{key}"
        assert ast.unparse(tree).count(asked) == sum(b.count(asked) for b in branches) == 1


def test_verl_sizes_no_units_under_fsdp2(of_verl: Path) -> None:
    source = (of_verl / "utils" / "fsdp_utils.py").read_text(encoding="utf-8")
    functions = {f.name: f for f in ast.parse(source).body if isinstance(f, ast.FunctionDef)}
    assert "min_num_params" in ast.unparse(functions["get_fsdp_wrap_policy"])
    assert "min_num_params" not in ast.unparse(functions["apply_fsdp2"])
