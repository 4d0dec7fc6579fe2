"""Modules that a program reads as attributes of a package are followed: ``package.plots.show``."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.helpers.commandline import Command

PLOTS = """\
def show(net, x):
    net.eval()
    return net.forward(x)
"""
SHOWS = "return net(x)"


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """A package in ``src``, whose ``__init__`` files import none of what is used."""
    package = tmp_path / "src" / "weather"
    (package / "tools").mkdir(parents=True)
    (tmp_path / "examples").mkdir()
    (tmp_path / "pyproject.toml").write_text("[project]\nname = 'weather'\n")
    (package / "__init__.py").write_text("from .tools.loaders import *\n")
    (package / "tools" / "__init__.py").write_text("")
    (package / "tools" / "loaders.py").write_text("def load():\n    pass\n")
    (package / "tools" / "plots.py").write_text(PLOTS)
    return tmp_path


def _plots_after(project: Path, statement: str, called: str, run: Command) -> str:
    (project / "examples" / "train.py").write_text(
        f"import torch\n{statement}\n"
        "from torch.distributed.fsdp import FullyShardedDataParallel as FSDP\n\n"
        f"model = FSDP(torch.nn.Linear(8, 8))\n{called}(model, torch.randn(2, 8))\n"
    )
    run("rewrite", project)
    return (project / "src" / "weather" / "tools" / "plots.py").read_text()


@pytest.mark.parametrize(
    ("statement", "called"),
    [
        ("import weather as w", "w.tools.plots.show"),
        ("import weather", "weather.tools.plots.show"),
        ("import weather.tools as t", "t.plots.show"),
        ("import weather.tools.plots", "weather.tools.plots.show"),
        ("from weather import tools", "tools.plots.show"),
        ("from weather import tools as t", "t.plots.show"),
        ("from weather.tools import plots", "plots.show"),
    ],
)
def test_what_is_called_there_is_given_the_model(
    project: Path, statement: str, called: str, run: Command
) -> None:
    assert SHOWS in _plots_after(project, statement, called, run)


@pytest.mark.parametrize(
    ("statement", "called"),
    [
        ("import climate as w", "w.tools.plots.show"),
        ("from climate import tools", "tools.plots.show"),
        ("import weather as w", "w.tools.loaders.show"),
        ("import numpy as w", "w.plots.show"),
    ],
)
def test_other_packages_are_not_taken_for_it(
    project: Path, statement: str, called: str, run: Command
) -> None:
    assert _plots_after(project, statement, called, run) == PLOTS
