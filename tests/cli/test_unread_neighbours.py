"""A file without FSDP that may be given a model, and that this Python cannot parse, is named."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.helpers.commandline import Command

TRAIN = """\
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP

from package.trainer import Trainer


def main(model):
    trainer = Trainer()
    trainer.model = FSDP(model)
    trainer.save()
"""
TRAINER = """\
import torch


class Trainer:
    def save(self):
        torch.save(self.model.state_dict(), "model.pt")
"""
NEWER = f"{TRAINER}\n\nmatch each:\n    case never ends\n"
PLAIN = "def work():\n    pass\n"
SAID = "cannot parse it: see "


def _project(directory: Path, files: dict[str, str]) -> None:
    (directory / "pyproject.toml").write_text("")
    for name, text in files.items():
        path = directory / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)


def test_what_may_be_given_a_model_is_named(tmp_path: Path, run: Command) -> None:
    _project(tmp_path, {"train.py": TRAIN, "package/__init__.py": "", "package/trainer.py": NEWER})
    assert f"{SAID}" in run("check", tmp_path).out


@pytest.mark.parametrize(
    "files",
    [
        {"train.py": TRAIN, "package/__init__.py": "", "package/trainer.py": TRAINER},
        {"train.py": TRAIN, "package/__init__.py": "", "package/other.py": NEWER},
        {"train.py": PLAIN, "package/__init__.py": "", "package/trainer.py": NEWER},
    ],
)
def test_nothing_is_said_of_other_files(
    files: dict[str, str], tmp_path: Path, run: Command
) -> None:
    _project(tmp_path, files)
    assert SAID not in run("check", tmp_path).out


def test_another_file_of_its_name_is_not_taken_for_it(tmp_path: Path, run: Command) -> None:
    copies = {"build/lib/package/__init__.py": "", "build/lib/package/trainer.py": TRAINER}
    files = {"train.py": TRAIN, "package/__init__.py": "", "package/trainer.py": NEWER}
    _project(tmp_path, files | copies)
    run("rewrite", tmp_path)
    assert (tmp_path / "build/lib/package/trainer.py").read_text() == TRAINER
