"""The releases of frameworks that a project pins, in requirements and where it installs them."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from fsdp_migrate.discovery import pins

INSTALL = "pip install torch==2.1 accelerate==0.24.1"
CELL = {"cell_type": "code", "source": ["!pip install \\\n", "  accelerate==0.24.1\n"]}
PINNED = {
    "requirements.txt": "torch==2.1\naccelerate==0.24.1\n",
    "install.sh": f"#!/bin/bash\nset -e\n{INSTALL}\n",
    "scripts/setup.sh": "pip3 install \\\n    torch==2.1 \\\n    accelerate[all]==0.24.1  # why\n",
    "Dockerfile": f"FROM a\nRUN apt-get update && python -m {INSTALL} --no-cache-dir\n",
    "docker/Dockerfile.gpu": "RUN uv pip install 'accelerate==0.24.1'\n",
    ".github/workflows/a.yml": f"jobs:\n  a:\n    steps:\n      - run: {INSTALL}\n",
    "Makefile": f"install:\n\t{INSTALL}\n",
    "environment.yml": "dependencies:\n  - python=3.10\n  - accelerate=0.24.1\n",
    "a.ipynb": json.dumps({"cells": [{"source": [f"!{INSTALL}\n", "import torch"]}]}, indent=1),
    "b.ipynb": json.dumps({"cells": [CELL]}, indent=1),
}
LOCK = '[[package]]\nname = "accelerate"\nversion = "0.24.1"\n\n[[package]]\nname = "x"\n'
PINNED |= dict.fromkeys(pins.LOCKS, LOCK)
SAYS_NOTHING = {
    "install.sh": "# pip install accelerate==0.24.1\npip install accelerate>=0.24.1\n",
    "run.sh": "echo accelerate==0.24.1\n",
    "other.sh": "pip install my-accelerate==0.24.1 accelerate-more==1.0 accelerate==$V\n",
    "later.sh": "pip install torch==2.1  # accelerate==0.24.1\n",
    "long.sh": "pip " * 200_000 + INSTALL,
    "any.sh": "pip install accelerate==0.24.*\n",
}


def lay(top: Path, files: dict[str, str]) -> Path:
    for name, text in files.items():
        path = top / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return top / "conf" / "c.yaml"


@pytest.mark.parametrize("name", PINNED)
def test_a_release_is_pinned_where_it_is_installed(tmp_path: Path, name: str) -> None:
    path = lay(tmp_path, {name: PINNED[name]})
    assert pins.pinned("accelerate", path, tmp_path) == {(0, 24, 1)}


@pytest.mark.parametrize("name", SAYS_NOTHING)
def test_what_is_no_pin_says_nothing(tmp_path: Path, name: str) -> None:
    path = lay(tmp_path, {name: SAYS_NOTHING[name]})
    assert not pins.pinned("accelerate", path, tmp_path)


def test_pins_that_differ_are_all_there(tmp_path: Path) -> None:
    path = lay(tmp_path, {"a.sh": INSTALL, "requirements.txt": "accelerate==1.4.0\n"})
    assert pins.pinned("accelerate", path, tmp_path) == {(0, 24, 1), (1, 4, 0)}


def test_the_nearest_counts(tmp_path: Path) -> None:
    path = lay(tmp_path, {"a.sh": INSTALL, "conf/install.sh": "pip install accelerate==1.4.0\n"})
    assert pins.pinned("accelerate", path, tmp_path) == {(1, 4, 0)}


BOUNDS = {
    ("requirements.txt", "accelerate<1.6\n"): (1, 5, pins.ANY),
    ("requirements.txt", "accelerate >= 0.20, < 1\n"): (0, pins.ANY),
    ("requirements.txt", "accelerate[x]<=1.2.1  # <0.1\n"): (1, 2, 1),
    ("requirements.txt", "accelerate~=0.34.0\n"): (0, 34, pins.ANY),
    ("requirements.txt", "accelerate==0.34.*\n"): (0, 34, pins.ANY),
    ("requirements.txt", "accelerate<2.0.0,>=1.0; python_version < '3.9'\n"): (1, pins.ANY),
    ("pyproject.toml", '[project]\ndependencies = ["accelerate>=1,<1.4"]\n'): (1, 3, pins.ANY),
    ("pyproject.toml", '[tool.poetry.dependencies]\naccelerate = "^0.30.1"\n'): (0, 30, pins.ANY),
    ("pyproject.toml", '[tool.poetry.dependencies]\naccelerate = "~1.2"\n'): (1, 2, pins.ANY),
    ("pyproject.toml", '[a]\naccelerate = {version = "^1.2", extras = ["x"]}\n'): (1, pins.ANY),
    ("install.sh", "pip install 'accelerate<1.6' torch\n"): (1, 5, pins.ANY),
}


@pytest.mark.parametrize(("name", "text"), BOUNDS)
def test_an_upper_bound_says_what_the_release_is_at_most(
    tmp_path: Path, name: str, text: str
) -> None:
    path = lay(tmp_path, {name: text})
    assert pins.at_most("accelerate", path, tmp_path) == {BOUNDS[name, text]}


@pytest.mark.parametrize(
    "text",
    ["accelerate>=0.20\n", "accelerate\n", "accelerate!=1.1\n", "accelerate-x<1\n", "# x<1\n"],
)
def test_what_is_no_upper_bound_says_nothing(tmp_path: Path, text: str) -> None:
    path = lay(tmp_path, {"requirements.txt": text})
    assert not pins.at_most("accelerate", path, tmp_path)


def test_a_lock_counts_where_people_pin_nothing(tmp_path: Path) -> None:
    path = lay(tmp_path, {"uv.lock": LOCK, "requirements.txt": "accelerate==1.4.0\n"})
    assert pins.pinned("accelerate", path, tmp_path) == {(1, 4, 0)}


WORKFLOW = {".github/workflows/a.yml": f"jobs:\n  a:\n    steps:\n      - run: {INSTALL}\n"}
NAMING = {
    "requirements.txt": "torch\naccelerate>=0.24.1\n",
    "pyproject.toml": '[project]\ndependencies = [\n    "accelerate[x]>=0.24.1",\n]\n',
    "setup.py": "setup(install_requires=['accelerate'])\n",
}


@pytest.mark.parametrize("name", NAMING)
def test_a_workflow_beside_requirements_tests_a_release_of_theirs(
    tmp_path: Path, name: str
) -> None:
    path = lay(tmp_path, {**WORKFLOW, name: NAMING[name]})
    assert not pins.pinned("accelerate", path, tmp_path)


@pytest.mark.parametrize(
    "other", [{"requirements.txt": "accelerate-more\nmy-accelerate\n"}, {"install.sh": INSTALL}]
)
def test_a_workflow_counts_beside_what_does_not_name_it(
    tmp_path: Path, other: dict[str, str]
) -> None:
    path = lay(tmp_path, WORKFLOW | other)
    assert pins.pinned("accelerate", path, tmp_path) == {(0, 24, 1)}


def test_an_image_counts_beside_requirements(tmp_path: Path) -> None:
    path = lay(tmp_path, {"Dockerfile": f"RUN {INSTALL}\n", **NAMING})
    assert pins.pinned("accelerate", path, tmp_path) == {(0, 24, 1)}
