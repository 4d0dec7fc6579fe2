"""Run commands of the command line in this process."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest

from fsdp_migrate.cli import parser

ROOT = Path(__file__).parents[2]
DEMO = ROOT / "fixtures" / "demo"


@dataclass(frozen=True)
class Answer:
    code: int
    out: str  # os.fsencode gives the bytes
    err: str


Command = Callable[..., Answer]


def answering(capture: pytest.CaptureFixture[bytes]) -> Command:
    """A function that runs one command and returns what it said."""

    def run(*arguments: str | Path) -> Answer:
        capture.readouterr()
        try:
            code = parser.run([str(a) for a in arguments])
        except SystemExit as stop:
            code = int(stop.code or 0)
        said = capture.readouterr()
        return Answer(code, *(os.fsdecode(stream) for stream in said))

    return run
