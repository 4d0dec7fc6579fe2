"""Configurations on the command line: reported, written, undone, asked about, left alone."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import pytest
import yaml

from fsdp_migrate import report
from tests.helpers.commandline import ROOT, Command
from tests.helpers.terminal import at_terminal

YAML = """\
distributed_type: FSDP
fsdp_config:
  fsdp_sharding_strategy: FULL_SHARD
  fsdp_use_orig_params: true
"""
OTHER = YAML.replace("FULL_SHARD", "SHARD_GRAD_OP")
LEFT = YAML.replace("FULL_SHARD", "NO_SHARD")
CODE = """\
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP


def build(net):
    return FSDP(net)
"""
SECRETS = "API_KEY=hunter2\nACCELERATE_USE_FSDP=true\nFSDP_SHARDING_STRATEGY=NO_SHARD\nB=hunter3\n"


def lay(directory: Path, files: dict[str, str]) -> None:
    (directory / "pyproject.toml").write_text(files.get("pyproject.toml", ""))
    for name, text in files.items():
        path = directory / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)


@pytest.mark.parametrize("name", report.FORMATS)
def test_every_format_lists_them(
    tmp_path: Path, run: Command, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    lay(tmp_path, {"a.yaml": YAML, "b.py": CODE, "left/c.yaml": LEFT})
    monkeypatch.chdir(tmp_path)
    answer = run("check", ".", "--format", name)
    assert answer.code == 1
    assert "a.yaml" in answer.out
    assert "FSDP510" in answer.out
    if name == "json":
        sites = json.loads(answer.out)["sites"]
        own = [s for s in sites if s["path"] == "a.yaml"]
        assert {(s["line"], s["column"], s["code"], s["outcome"]) for s in own} >= {
            (3, 3, "FSDP510", "rewritten"),
            (4, 3, "FSDP510", "rewritten"),
        }
        assert json.loads(answer.out)["summary"]["sites"] == len(sites)


def test_written_and_undone(tmp_path: Path, run: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    lay(tmp_path, {"a.yaml": YAML, "b.py": CODE})
    monkeypatch.chdir(tmp_path)
    subprocess.run(["git", "init", "-q"], check=True)
    patch = run("rewrite", ".", "--dry-run").out
    assert (tmp_path / "a.yaml").read_text() == YAML
    answer = run("rewrite", ".", "--summary", "pr.md", "--allow-dirty")
    assert answer.code == 0
    after = (tmp_path / "a.yaml").read_text()
    assert "fsdp_reshard_after_forward: true\n" in after
    assert "fsdp_version: 2\n" in after
    assert "fully_shard" in (tmp_path / "b.py").read_text()
    assert "a.yaml" in (tmp_path / "pr.md").read_text()
    again = run("rewrite", ".", "--allow-dirty")
    assert again.code == 0
    assert (tmp_path / "a.yaml").read_text() == after
    assert run("undo").code == 0
    assert (tmp_path / "a.yaml").read_text() == YAML
    subprocess.run(["git", "apply", "-"], input=patch.encode(), check=True)
    assert (tmp_path / "a.yaml").read_text() == after


LAUNCH = "accelerate launch --fsdp_sharding_strategy FULL_SHARD train.py\n"
SHELL = {
    ".github/workflows/a.yml": f"jobs:\n  a:\n    steps:\n      - run: |\n          {LAUNCH}",
    ".github/workflows/b.yml": "env:\n  FSDP_SHARDING_STRATEGY: FULL_SHARD\n",
    "job": f"#!/bin/bash\n#SBATCH -N 2\nsrun {LAUNCH}",
    "train.job": f"#!/usr/bin/env bash\n#SBATCH -N 2\nsrun {LAUNCH}",
    "train.sbatch": f"#!/bin/bash\n#SBATCH -N 2\nsrun {LAUNCH}",
}


@pytest.mark.parametrize("name", report.FORMATS)
def test_every_format_lists_workflows_and_jobs(
    tmp_path: Path, run: Command, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    lay(tmp_path, SHELL)
    monkeypatch.chdir(tmp_path)
    answer = run("check", ".", "--format", name)
    assert answer.code == 1
    assert all(path in answer.out for path in SHELL)


def test_workflows_and_jobs_are_written_and_undone(
    tmp_path: Path, run: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    lay(tmp_path, {**SHELL, "README": LAUNCH, "notes.job.txt": LAUNCH})
    monkeypatch.chdir(tmp_path)
    assert run("rewrite", ".").code == 0
    for path in SHELL:
        text = (tmp_path / path).read_text()
        assert "fsdp_version" in text.lower()
        assert "SHARDING_STRATEGY" not in text.upper()
    assert (tmp_path / "README").read_text() == LAUNCH
    assert "no FSDP1 found" in run("check", ".").out
    run("undo")
    assert {path: (tmp_path / path).read_text() for path in SHELL} == SHELL


def test_a_tree_without_python(
    tmp_path: Path, run: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    lay(tmp_path, {"a.yaml": YAML})
    monkeypatch.chdir(tmp_path)
    assert run("check", ".").code == 1
    assert run("check", "a.yaml").code == 1
    assert "a.yaml:3" in run("explain", "a.yaml:3").out
    assert run("rewrite", ".").code == 0
    assert "fsdp_version: 2" in (tmp_path / "a.yaml").read_text()
    assert run("check", ".").code == 0


def test_left_alone(tmp_path: Path, run: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    lay(tmp_path, {"a.yaml": YAML, "b.py": "import torch\n"})
    monkeypatch.chdir(tmp_path)
    assert run("check", ".", "--no-configs").code == 0
    lay(tmp_path, {"pyproject.toml": "[tool.fsdp-migrate]\nconfigs = false\n"})
    assert run("check", ".").code == 0
    assert run("rewrite", ".").code == 0
    assert run("check", ".", "--configs").code == 1
    assert (tmp_path / "a.yaml").read_text() == YAML
    lay(tmp_path, {"pyproject.toml": "[tool.fsdp-migrate]\nexclude = ['a.*']\n"})
    assert run("check", ".").code == 0
    lay(tmp_path, {"pyproject.toml": "", ".gitignore": "*.yaml\n"})
    subprocess.run(["git", "init", "-q"], check=True)
    assert run("check", ".").code == 0


def test_broken_files_are_exit_code_2_and_the_others_are_written(
    tmp_path: Path, run: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    lay(tmp_path, {"a.yaml": "fsdp_config: [\nb: 1\n", "b.yaml": YAML, "c.json": '{"fsdp_config"}'})
    monkeypatch.chdir(tmp_path)
    answer = run("rewrite", ".")
    assert answer.code == 2
    assert "a.yaml:1: is not YAML" in answer.err
    assert "c.json:1: is not JSON" in answer.err
    assert answer.err.count("(column ") == 2
    assert "fsdp_version" in (tmp_path / "b.yaml").read_text()


def test_the_hooks_of_pre_commit_run_for_them() -> None:
    hooks = yaml.safe_load((ROOT / ".pre-commit-hooks.yaml").read_text())
    found = {"yaml", "json", "shell", "dockerfile", "makefile", "dotenv"}
    migrating = [hook for hook in hooks if "--no-configs" not in hook["entry"]]
    assert len(migrating) == 2
    assert all(found <= set(hook["types_or"]) for hook in migrating)


def test_what_is_ignored_and_comments_to_no_purpose(
    tmp_path: Path, run: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    ignoring = YAML.replace("fsdp_config:", "fsdp_config:  # fsdp-migrate: leave[FSDP510] later")
    lay(tmp_path, {"a.yaml": ignoring})
    monkeypatch.chdir(tmp_path)
    answer = run("check", ".")
    assert (answer.code, "ignored" in answer.out) == (0, True)
    assert run("rewrite", ".").code == 0
    assert (tmp_path / "a.yaml").read_text() == ignoring
    lay(tmp_path, {"a.yaml": f"x: 1  # fsdp-migrate: leave[FSDP1] none\n{YAML}"})
    assert "FSDP990" in run("check", ".").out


def test_a_marker_counts_until_it_is_gone(
    tmp_path: Path, run: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    lay(tmp_path, {"a.yaml": LEFT})
    monkeypatch.chdir(tmp_path)
    assert run("rewrite", ".").code == 1
    marked = (tmp_path / "a.yaml").read_text()
    assert "# TODO(fsdp-migrate FSDP510): " in marked
    answer = run("check", ".")
    assert "1 marker in the code" in answer.out
    assert run("rewrite", ".").code == 1
    assert (tmp_path / "a.yaml").read_text() == marked


def test_a_review_asks_for_each_run(tmp_path: Path) -> None:
    lay(tmp_path, {"a.yaml": YAML, "b/c.yaml": OTHER, "d.py": CODE})
    answer = at_terminal(tmp_path, "rewrite", ".", "--review", answers="mnm")
    assert "the settings in a.yaml" in answer.out
    assert (tmp_path / "a.yaml").read_text() == YAML
    assert "refused in review" in answer.out
    assert "fsdp_version: 2" in (tmp_path / "b/c.yaml").read_text()
    assert "fully_shard" in (tmp_path / "d.py").read_text()


@pytest.mark.parametrize("name", report.FORMATS)
def test_no_secret_is_in_a_report(
    tmp_path: Path, run: Command, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    lay(tmp_path, {".env": SECRETS})
    monkeypatch.chdir(tmp_path)
    answer = run("check", ".", "--format", name)
    assert "NO_SHARD" in answer.out.replace("\\", "")
    assert "hunter" not in answer.out + answer.err
    run("rewrite", ".", "--summary", "pr.md", "--quiet")
    assert "hunter" not in (tmp_path / "pr.md").read_text()
    assert "hunter2" in (tmp_path / ".env").read_text()


PLUGIN = """\
from accelerate import Accelerator, FullyShardedDataParallelPlugin

accelerator = Accelerator(fsdp_plugin=FullyShardedDataParallelPlugin({}))
"""
SHARDED = f"{YAML}  fsdp_state_dict_type: SHARDED_STATE_DICT\n"
NEW = "distributed_type: FSDP\nfsdp_config:\n  fsdp_version: 2\n"


@pytest.mark.parametrize(
    ("file", "arguments", "outcome", "said"),
    [
        (YAML, "", "review", "may come from a.yaml"),
        (YAML, 'sharding_strategy="FULL_SHARD"', "rewritten", ""),
        (SHARDED, "", "left", "SHARDED_STATE_DICT stands in a.yaml"),
        (SHARDED, 'state_dict_type="FULL_STATE_DICT"', "review", "may come from a.yaml"),
        (NEW, "", "left", "fsdp_version: 2 stands in a.yaml"),
        ("x: 1\n", "", "rewritten", ""),
        ("x: 1\n", 'transformer_layer_cls_to_wrap=["B"]', "left", "transformer_cls_names_to_wrap"),
    ],
)
def test_a_plugin_beside_accelerates_file(
    tmp_path: Path, run: Command, file: str, arguments: str, outcome: str, said: str
) -> None:
    lay(tmp_path, {"a.yaml": file, "b.py": PLUGIN.format(arguments)})
    answer = run("check", "--format", "json", str(tmp_path))
    (plugin,) = [s for s in json.loads(answer.out)["sites"] if s["code"] == "FSDP511"]
    assert plugin["outcome"] == outcome
    assert said in plugin["message"] + plugin["help"]


NO_SUCH = 'sharding_strategy="NO_SHARD"'
FULL = 'sharding_strategy="FULL_SHARD"'


@pytest.mark.parametrize(
    ("files", "arguments", "cause"),
    [
        ({"a.yaml": LEFT}, FULL, "a.yaml:3"),
        ({"run.sh": LAUNCH.replace("FULL_SHARD", "$S")}, FULL, "run.sh:1"),
        ({"run.sh": LAUNCH.replace("FULL_SHARD", "NO_SHARD")}, FULL, "run.sh:1"),
        ({"a.yaml": YAML}, NO_SUCH, "b.py:3"),
        ({"run.sh": LAUNCH}, NO_SUCH, "b.py:3"),
        (
            {"a.yaml": YAML, "run.sh": f"accelerate launch --config_file a.yaml {LAUNCH[18:]}"},
            NO_SUCH,
            "b.py:3",
        ),
    ],
    ids=["yaml", "variable", "flag", "program and yaml", "program and flag", "program and both"],
)
def test_a_program_and_what_is_set_beside_it_go_together_or_not_at_all(
    tmp_path: Path, run: Command, files: dict[str, str], arguments: str, cause: str
) -> None:
    lay(tmp_path, {**files, "b.py": PLUGIN.format(arguments)})
    answer = run("check", "--format", "json", str(tmp_path))
    sites = json.loads(answer.out)["sites"]
    assert {s["code"] for s in sites} == set(CODES)
    assert {s["outcome"] for s in sites} == {"left"}
    held = CODES[1] if "b.py" not in cause else CODES[0]
    said = {s["message"] for s in sites if s["code"] == held}
    assert all(cause in message and "belong together" in message for message in said)
    assert any("belong together" not in s["message"] for s in sites if s["code"] != held)


def test_one_of_several_configurations_that_stays_holds_no_program(
    tmp_path: Path, run: Command
) -> None:
    lay(tmp_path, {"a.yaml": LEFT, "c.yaml": YAML, "b.py": PLUGIN.format(FULL)})
    answer = run("check", "--format", "json", str(tmp_path))
    outcomes = {Path(s["path"]).name: s["outcome"] for s in json.loads(answer.out)["sites"]}
    assert outcomes["b.py"] != "left"
    assert outcomes["c.yaml"] == "rewritten"


@pytest.mark.parametrize(
    ("pin", "outcome"),
    [
        ("accelerate==1.4.0\n", "left"),
        ("accelerate == 1.5.*\n", "left"),
        ("torch==2.6.0\naccelerate[fp8]==1.15.0 ; python_version > '3.9'\n", "rewritten"),
        ("# accelerate==1.4.0\naccelerate>=1.4.0\n", "rewritten"),
        ("accelerate==1.4.0; sys_platform == 'linux'\naccelerate==1.15.0\n", "rewritten"),
        ("not-accelerate==1.4.0\n", "rewritten"),
    ],
)
def test_the_release_that_is_pinned_decides(
    tmp_path: Path, run: Command, pin: str, outcome: str
) -> None:
    kept = "fsdp_config:\n  fsdp_state_dict_type: FULL_STATE_DICT\n  fsdp_use_orig_params: true\n"
    plugin = PLUGIN.format('sharding_strategy="FULL_SHARD"')
    files = {"sub/a.yaml": f"distributed_type: FSDP\n{kept}", "b.py": plugin}
    lay(tmp_path, {**files, "requirements.txt": pin})
    answer = run("check", "--format", "json", str(tmp_path))
    sites = json.loads(answer.out)["sites"]
    worst = {code: {s["outcome"] for s in sites if s["code"] == code} for code in CODES}
    assert worst == {code: {outcome} for code in CODES}


CODES = ("FSDP510", "FSDP511")


def test_the_nearest_pin_counts(tmp_path: Path, run: Command) -> None:
    old = 'dependencies = ["accelerate==1.4.0"]\n'
    new = {"new/requirements.txt": "accelerate==1.15.0\n", "new/a.yaml": YAML}
    lay(tmp_path, {"pyproject.toml": f"[project]\nname = 'x'\n{old}", "a.yaml": YAML, **new})
    answer = run("check", "--format", "json", str(tmp_path))
    found = json.loads(answer.out)["sites"]
    outcomes = {Path(s["path"]).parent.name == "new": s["outcome"] for s in found}
    assert outcomes[True] == "rewritten"
    assert outcomes[False] == "left"


def test_a_notebooks_commands_are_written_and_undone(
    tmp_path: Path, run: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = ["!accelerate launch --use_fsdp --fsdp_use_orig_params true \\\n", "    a.py\n", "1"]
    cell = {"cell_type": "code", "metadata": {}, "outputs": [], "source": source}
    book = {"cells": [cell], "metadata": {}, "nbformat": 4, "nbformat_minor": 5}
    path = tmp_path / "a.ipynb"
    before = json.dumps(book, indent=1)
    path.write_text(before)
    monkeypatch.chdir(tmp_path)
    answer = run("check", ".")
    assert "a.ipynb:cell 1:1:" in answer.out
    assert run("rewrite", ".").code == 0
    written = json.loads(path.read_text())["cells"][0]["source"]
    assert written[0].startswith("!accelerate launch --use_fsdp --fsdp_version 2 ")
    assert written[0].endswith(" a.py\n")
    assert written[1:] == ["1"]
    assert run("check", ".").code == 0
    assert run("undo").code == 0
    assert path.read_text() == before


ASKING = """\
import transformers
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP, StateDictType


def save(trainer: transformers.Trainer):
    with FSDP.state_dict_type(trainer.model, StateDictType.FULL_STATE_DICT):
        return trainer.model.state_dict()
"""
TRAIN = 'python train.py --output_dir a --fsdp "full_shard auto_wrap" --gradient_checkpointing 1\n'


def test_what_a_program_asks_of_version_1_holds_its_launcher(
    tmp_path: Path, run: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    lay(tmp_path, {"train.py": ASKING, "run.sh": TRAIN, "a.yaml": YAML})
    monkeypatch.chdir(tmp_path)
    answer = run("rewrite", ".")
    assert "FSDP.state_dict_type at train.py:6 knows version 1's models alone" in answer.out
    assert "fsdp_version" not in (tmp_path / "run.sh").read_text()
    assert "fsdp_version" not in (tmp_path / "a.yaml").read_text()
    (tmp_path / "train.py").write_text("import transformers\n")
    assert run("rewrite", ".").code == 0
    assert '"fsdp_version": 2' in (tmp_path / "run.sh").read_text().replace(
        '"version"', '"fsdp_version"'
    )
    assert "fsdp_version: 2" in (tmp_path / "a.yaml").read_text()
