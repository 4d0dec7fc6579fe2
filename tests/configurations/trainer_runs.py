"""Rows of the table of transformers' settings, as projects that its Trainer trains on two ranks."""

from __future__ import annotations

import contextlib
import io
import json
import re
import shlex
import subprocess
import sys
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

from fsdp_migrate.cli import parser
from tests.configurations.imitated import WORLD
from tests.configurations.lightning_runs import ROOT

OUTCOMES = ("left", "review", "rewritten")  # the worst first
LOSSES = 3


@dataclass(frozen=True)
class Trained:
    """What a model was trained as, its losses, and what the program said."""

    text: str
    losses: tuple[float, ...]
    said: str


def lay(folder: Path, files: Mapping[str, str]) -> None:
    folder.mkdir(parents=True)
    for name, text in files.items():
        (folder / name).write_text(text, encoding="utf-8")


def rewrite(folder: Path) -> str:
    """Rewrite a project, and give our outcome: the worst of its sites, empty without any."""
    said = io.StringIO()
    with contextlib.redirect_stdout(said):
        parser.run(["check", str(folder), "--format", "json"])
        found = {site["outcome"] for site in json.loads(said.getvalue())["sites"]}
        parser.run(["rewrite", str(folder), "--allow-dirty"])
    return next((outcome for outcome in OUTCOMES if outcome in found), "")


def train(folders: Iterable[Path]) -> list[Trained]:
    """Train the project of each folder, one after the other, with the words of its ``run.sh``."""
    listed = list(folders)
    for folder in listed:
        line = folder / "run.sh"
        if line.exists():
            words = shlex.split(line.read_text(encoding="utf-8"), comments=True)
            words = words[words.index("train.py") + 1 :]
            (folder / "arguments.txt").write_text("\n".join(words), encoding="utf-8")
    command = [sys.executable, "-m", "tests.configurations.imitated", "transformers"]
    done = subprocess.run(
        [*command, *map(str, listed)], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert not done.returncode, done.stderr
    return [_trained(folder) for folder in listed]


def _trained(folder: Path) -> Trained:
    said = (folder / "rank-0.txt").read_text(encoding="utf-8")
    if any((folder / f"status-{n}.txt").read_text() != "0" for n in range(WORLD)):
        found = re.findall(r"^((?:\w+\.)*\w*(?:Error|Exception): .*)", said, re.M)
        return Trained(re.sub(r"^(?:\w+\.)+", "", found[-1]) if found else "it failed", (), said)
    [text] = re.findall(r"^trained as (.*)$", said, re.M)
    return Trained(text, tuple(map(float, re.findall(r"^loss (\S+)$", said, re.M))), said)


def same(before: Trained, after: Trained, tolerance: float = 1e-5) -> bool:
    pairs = zip(before.losses, after.losses, strict=True)
    return all(abs(x - y) <= tolerance * abs(x) for x, y in pairs)
