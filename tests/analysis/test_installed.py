"""Where packages are installed from, in every way that build backends are told."""

from __future__ import annotations

from pathlib import Path

import pytest

from fsdp_migrate.analysis.installed_packages import installed_from

FROM_LIB = {
    "hatch, packages": {
        "pyproject.toml": '[tool.hatch.build.targets.wheel]\npackages = ["lib/tool"]\n'
    },
    "hatch, packages of every target": {
        "pyproject.toml": '[tool.hatch.build]\npackages = ["lib/tool"]\n'
    },
    "hatch, sources": {"pyproject.toml": '[tool.hatch.build.targets.wheel]\nsources = ["lib"]\n'},
    "hatch, sources with what goes in": {
        "pyproject.toml": '[tool.hatch.build.targets.wheel]\nonly-include = ["lib/tool"]\n'
        'sources = ["lib"]\n'
    },
    "hatch, sources by a new name": {
        "pyproject.toml": '[tool.hatch.build.targets.wheel.sources]\n"lib/tool" = "tool"\n'
    },
    "poetry": {"pyproject.toml": '[tool.poetry]\npackages = [{include = "tool", from = "lib"}]\n'},
    "pdm": {"pyproject.toml": '[tool.pdm.build]\npackage-dir = "lib"\n'},
    "uv": {"pyproject.toml": '[tool.uv.build-backend]\nmodule-root = "lib"\n'},
    "uv, by name": {
        "pyproject.toml": '[tool.uv.build-backend]\nmodule-root = "lib"\nmodule-name = "tool"\n'
    },
    "setuptools, a directory of all": {
        "pyproject.toml": '[tool.setuptools]\npackage-dir = {"" = "lib"}\n'
    },
    "setuptools, a directory of one": {
        "pyproject.toml": '[tool.setuptools]\npackages = ["tool"]\n'
        'package-dir = {tool = "lib/tool"}\n'
    },
    "setuptools, found": {"pyproject.toml": '[tool.setuptools.packages.find]\nwhere = ["lib"]\n'},
    "setup.cfg, found": {
        "setup.cfg": "[options]\npackages = find:\npackage_dir =\n    = lib\n\n"
        "[options.packages.find]\nwhere = lib\n"
    },
    "setup.cfg, listed": {
        "setup.cfg": "[options]\npackages =\n    tool\n    tool.inner\npackage_dir =\n    = lib\n"
    },
    "setup.cfg, beside tables of other tools": {
        "pyproject.toml": '[project]\nname = "other"\n\n[tool.black]\nline-length = 100\n',
        "setup.cfg": "[options]\npackages = find:\npackage_dir = =lib\n",
    },
    "setup.py, found": {
        "setup.py": "from setuptools import find_packages, setup\n\n"
        'setup(name="x", packages=find_packages("lib"), package_dir={"": "lib"})\n'
    },
    "setup.py, found by keyword": {
        "setup.py": "import setuptools\n\nwith open('README.md') as file:\n    TEXT = file.read()\n"
        "setuptools.setup(long_description=TEXT, package_dir={'': 'lib'},\n"
        "    packages=setuptools.find_packages(where='lib', exclude=('tests', 'tests.*')))\n"
    },
    "setup.py, listed": {
        "setup.py": "from distutils.core import setup\n\n"
        "setup(packages=['tool', 'tool.inner'], package_dir={'tool': 'lib/tool'})\n"
    },
    "setup.py, with the directory alone": {
        "setup.cfg": "[flake8]\nmax-line-length = 100\n",
        "setup.py": "from setuptools import setup\n\nsetup(package_dir={'': 'lib'})\n",
    },
}
FROM_THE_TOP = {
    "setup.py": {
        "setup.py": "from setuptools import find_packages, setup\n\n"
        "setup(packages=find_packages(), install_requires=read())\n"
    },
    "setup.cfg": {"setup.cfg": "[options]\npackages = find:\n"},
    "setup.cfg, before the name": {
        "pyproject.toml": '[project]\nname = "other"\n',
        "setup.cfg": "[options]\npackages = find:\n",
    },
    "flit": {"pyproject.toml": '[tool.flit.module]\nname = "tool"\n'},
    "flit of old": {"pyproject.toml": '[tool.flit.metadata]\nmodule = "tool"\n'},
    "hatch, sources of every name": {
        "pyproject.toml": '[tool.hatch.build.targets.wheel.sources]\n"" = ""\n'
    },
    "by its name": {"pyproject.toml": '[project]\nname = "Tool"\n'},
}
NOT_TOLD = {
    "nothing": {},
    "no package": {"setup.cfg": "[flake8]\nmax-line-length = 100\n"},
    "not Python": {"setup.py": "setup(packages=['tool'\n"},
    "not a section": {"setup.cfg": "packages = tool\n"},
    "not TOML": {"pyproject.toml": "tool\n"},
    "no literal": {"setup.py": "setup(packages=read_packages(), package_dir=places)\n"},
    "another": {"setup.py": "setup(packages=['other'])\n"},
    "by another name than its directory's": {
        "setup.py": "setup(packages=['gadget'], package_dir={'gadget': 'tool'})\n"
    },
    "what is left out": {"setup.py": "setup(packages=find_packages(exclude=['tool', 'tool.*']))\n"},
    "what is not among those found": {
        "pyproject.toml": '[tool.setuptools.packages.find]\ninclude = ["other*"]\n'
    },
    "hatch, by another name": {
        "pyproject.toml": '[tool.hatch.build.targets.wheel.sources]\n"tool" = "gadget"\n'
    },
}


def _installed(place: Path, metadata: dict[str, str]) -> Path | None:
    package = place / "tool"
    (package / "inner").mkdir(parents=True)
    for directory in (package, package / "inner"):
        (directory / "__init__.py").touch()
    top = place.parent if place.name == "lib" else place
    (top / ".git").mkdir()
    for name, text in metadata.items():
        (top / name).write_text(text)
    found = installed_from(package / "inner" / "part.py")
    assert found == installed_from(package / "part.py")
    return found


@pytest.mark.parametrize("metadata", FROM_LIB.values(), ids=FROM_LIB.keys())
def test_a_package_below_a_directory_of_sources(metadata: dict[str, str], tmp_path: Path) -> None:
    assert _installed(tmp_path / "lib", metadata) == tmp_path / "lib"


@pytest.mark.parametrize("metadata", FROM_THE_TOP.values(), ids=FROM_THE_TOP.keys())
def test_a_package_at_the_top(metadata: dict[str, str], tmp_path: Path) -> None:
    assert _installed(tmp_path, metadata) == tmp_path


@pytest.mark.parametrize("metadata", NOT_TOLD.values(), ids=NOT_TOLD.keys())
def test_a_package_of_which_nothing_is_told(metadata: dict[str, str], tmp_path: Path) -> None:
    assert _installed(tmp_path, metadata) is None


def test_a_single_module(tmp_path: Path) -> None:
    (tmp_path / "setup.py").write_text("setup(py_modules=['train'], package_dir={'': 'lib'})\n")
    assert installed_from(tmp_path / "lib/train.py") == tmp_path / "lib"
    assert installed_from(tmp_path / "lib/other.py") is None
