"""TOML is read by none of the frameworks, so that none of it is a configuration of theirs."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from fsdp_migrate.cli import parser
from fsdp_migrate.discovery.configuration_files import is_configuration

ACCELERATES = """\
distributed_type = "FSDP"

[fsdp_config]
fsdp_sharding_strategy = "SHARD_GRAD_OP"
fsdp_auto_wrap_policy = "TRANSFORMER_BASED_WRAP"
"""
TORCHTITANS = """\
[parallelism]
data_parallel_shard_degree = -1
fsdp_reshard_after_forward = "default"
"""


@pytest.mark.parametrize("text", [ACCELERATES, TORCHTITANS])
@pytest.mark.parametrize("name", ["fsdp.toml", "pyproject.toml"])
def test_toml_is_no_configuration_and_stays(
    name: str, text: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert not is_configuration(name)
    (tmp_path / name).write_text(text, encoding="utf-8")
    (tmp_path / "train.py").write_text("print('no FSDP')\n", encoding="utf-8")
    assert parser.run(["check", str(tmp_path)]) == 0
    assert "no FSDP1 found" in capsys.readouterr().out
    assert parser.run(["rewrite", str(tmp_path), "--allow-dirty"]) == 0
    assert (tmp_path / name).read_text(encoding="utf-8") == text


@pytest.mark.train
def test_accelerate_reads_no_toml(tmp_path: Path) -> None:
    from accelerate.commands.config.config_args import load_config_from_file

    file = tmp_path / "fsdp.toml"
    file.write_text(ACCELERATES, encoding="utf-8")
    with pytest.raises(AttributeError, match="'str' object"):  # one text, to a parser of YAML
        load_config_from_file(str(file))


@pytest.mark.train
def test_transformers_reads_no_toml(tmp_path: Path) -> None:
    from transformers import TrainingArguments

    file = tmp_path / "fsdp.toml"
    file.write_text("version = 2\n", encoding="utf-8")
    with pytest.raises(json.JSONDecodeError):
        TrainingArguments(str(tmp_path / "out"), fsdp="full_shard", fsdp_config=str(file))
