"""Functions that configurations name for hydra to call, and the files that have it call them."""

from __future__ import annotations

from pathlib import Path

import pytest

from fsdp_migrate.discovery import configurations, search
from tests.helpers.commandline import Command

WRAPPING = """\
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP


def shard(model, device):
    return FSDP(model, device_id=device)


def plain(model, device):
    return model.to(device)
"""
TRAIN = """\
import hydra
import torch


def main(cfg, net):
    model = hydra.utils.instantiate(cfg.trainer.wrapper, net, device="cuda")
    torch.save(model.state_dict(), "model.pt")
"""
CONFIG = """\
model:
  _target_: models.Net  # another
  dim: 4
trainer:
  wrapper:
    # how the model is wrapped
    dtype: float16
    _target_: package.wrapping.shard
"""


def write(directory: Path, files: dict[str, str]) -> Path:
    for name, text in files.items():
        path = directory / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return directory


def project(directory: Path, config: str = CONFIG, **files: str) -> Path:
    return write(
        directory,
        {
            "pyproject.toml": "",
            "package/__init__.py": "",
            "package/wrapping.py": WRAPPING,
            "train.py": TRAIN,
            "conf/config.yaml": config,
            **files,
        },
    )


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("a:\n  _target_: one.two\n", {"a": ("one.two",)}),
        ("a:\n  b:\n    c: 1\n  _target_: 'one.two'  # said\n", {"a": ("one.two",)}),
        ("a:\n- _target_: one.two\n- _target_: three.four\n", {}),
        ("a:\n  - _target_: one.two\n  - x: 1\n    _target_: three.four\n", None),
        ("a:\r\n  _target_: one.two\r\n", {"a": ("one.two",)}),
        ("a:\n  _target_: ${other}\n", {"a": ("",)}),
        ("a:\n  #_target_: one.two\n  b: 1\n", {}),
        ("a:\n  text: _target_ of one.two\n", {}),
        ("_target_: one.two\n", {"conf": ("one.two",), "file": ("one.two",)}),
    ],
)
def test_targets_stand_below_keys(
    tmp_path: Path, text: str, expected: dict[str, tuple[str, ...]] | None
) -> None:
    write(tmp_path, {"conf/file.yaml": text})
    found = configurations.targets([tmp_path])
    if expected is None:  # of a list
        assert found == {"a": ("one.two", "three.four")}
    elif expected:
        assert found == expected
    else:
        assert set(found) <= {"a"}


def test_what_cannot_be_read_is_passed_over(tmp_path: Path) -> None:
    write(
        tmp_path, {"conf/a.yaml": "a:\n  _target_: one.two\n", ".git/b.yaml": "b:\n  _target_: c.d"}
    )
    (tmp_path / "conf/large.yaml").write_bytes(b"c:\n  _target_: e.f\n" + b"#" * 2_000_000)
    (tmp_path / "conf/bad.yaml").write_bytes(b"d:\n  _target_: \xff.f\n")
    (tmp_path / "conf/link.yaml").symlink_to(tmp_path.parent / "other.yaml")
    found = configurations.targets([tmp_path])
    assert found == {"a": ("one.two",), "d": ("",)}


def test_nothing_outside_of_the_given_directories_is_read(tmp_path: Path) -> None:
    tree = project(tmp_path)
    assert search.find([tree / "package", tree / "train.py"]).configured == {}
    assert "wrapper" in search.find([tree]).configured


def test_the_file_that_has_it_called_is_read(tmp_path: Path) -> None:
    found = search.find([project(tmp_path)])
    assert tmp_path / "train.py" in found.others


def test_a_file_that_has_another_function_called_is_library(tmp_path: Path) -> None:
    other = CONFIG.replace("package.wrapping.shard", "models.shard")
    found = search.find([project(tmp_path, other)])
    assert str(tmp_path / "train.py") in found.library


def test_the_model_is_followed(tmp_path: Path, run: Command) -> None:
    tree = project(tmp_path)
    run("rewrite", tree)
    text = (tree / "train.py").read_text()
    assert "get_model_state_dict(model, options=StateDictOptions(full_state_dict=True))" in text


BRANCHES = """\
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP


def shard(model, device, kind="full"):
    if kind == "none":
        return model
    return FSDP(model, device_id=device)
"""


@pytest.mark.parametrize(("given", "sharded"), [("net, 0", True), ("net, 0, 'none'", False)])
def test_arguments_by_place_come_behind_the_configuration(
    tmp_path: Path, run: Command, given: str, sharded: bool
) -> None:
    text = TRAIN.replace('net, device="cuda"', given)
    tree = project(tmp_path, **{"package/wrapping.py": BRANCHES, "train.py": text})
    run("rewrite", tree)
    assert ("get_model_state_dict" in (tree / "train.py").read_text()) is sharded


def test_another_function_gives_another_model(tmp_path: Path, run: Command) -> None:
    other = CONFIG.replace("wrapping.shard", "wrapping.plain")
    tree = project(
        tmp_path, other, **{"conf/used.yaml": "x:\n  _target_: package.wrapping.shard\n"}
    )
    run("rewrite", tree)
    assert (tree / "train.py").read_text() == TRAIN


def test_one_key_may_name_functions_of_both_kinds(tmp_path: Path, run: Command) -> None:
    other = CONFIG.replace("wrapping.shard", "wrapping.plain")
    tree = project(tmp_path, **{"conf/other.yaml": other})
    run("rewrite", tree)
    assert "get_model_state_dict(model" in (tree / "train.py").read_text()


SAID = "A state is asked of what may be a model, or anything else: see"


@pytest.mark.parametrize("name", ["${oc.env:WRAPPER}", "package.wrapping.${kind}"])
def test_what_is_not_written_out_is_said(tmp_path: Path, run: Command, name: str) -> None:
    text = f"from package.wrapping import shard\n{TRAIN}"  # else nothing leads to the file
    tree = project(tmp_path, CONFIG.replace("package.wrapping.shard", name), **{"train.py": text})
    assert SAID in run("rewrite", tree).out
    assert (tree / "train.py").read_text() == text


def test_nothing_is_said_of_what_is_named(tmp_path: Path, run: Command) -> None:
    text = f"from package.wrapping import shard\n{TRAIN}"
    other = CONFIG.replace("package.wrapping.shard", "other_library.Reader")
    tree = project(tmp_path, other, **{"train.py": text})
    assert SAID not in run("rewrite", tree).out
    assert (tree / "train.py").read_text() == text


GOT = """\
import hydra
import torch


def main(cfg, net):
    model = hydra.utils.get_method({name})(net, device="cuda")
    torch.save(model.state_dict(), "model.pt")
"""


@pytest.mark.parametrize(
    "name", ["cfg.fn", 'cfg["fn"]', '"package.wrapping.shard"', "cfg.trainer.wrapper._target_"]
)
def test_a_function_that_is_got_by_its_name_is_followed(
    tmp_path: Path, run: Command, name: str
) -> None:
    train = GOT.format(name=name)
    path = project(tmp_path, CONFIG + "fn: package.wrapping.shard\n", **{"train.py": train})
    run("rewrite", str(path), "--target-torch", "2.13")
    assert "get_model_state_dict(" in (path / "train.py").read_text()


def test_a_function_of_another_kind_that_is_got_by_its_name_is_not(
    tmp_path: Path, run: Command
) -> None:
    train = GOT.format(name="cfg.fn")
    path = project(tmp_path, CONFIG + "fn: package.wrapping.plain\n", **{"train.py": train})
    run("rewrite", str(path), "--target-torch", "2.13")
    assert (path / "train.py").read_text() == train
