"""Packages that are installed from a directory of another name: ``package-dir = {tool = "."}``."""

from __future__ import annotations

from pathlib import Path

import pytest

from fsdp_migrate.analysis.installed_packages import renamed
from fsdp_migrate.cli import session
from tests.discovery.test_gate import USE, lay

PYPROJECT = '[tool.setuptools]\npackages = ["tool"]\npackage-dir = {{"tool" = "{place}"}}\n'
METADATA = {
    "pyproject.toml": PYPROJECT,
    "setup.cfg": "[options]\npackages = tool\npackage_dir =\n    tool = {place}\n",
    "setup.py": "from setuptools import setup\n\nsetup(name='x', packages=['tool'],"
    " package_dir={{'tool': '{place}'}})\n",
}
LOOP = """\
import torch

{imports}


def main(net, path):
    model = {call}(net)
    model.load_state_dict(torch.load(path))
    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    torch.save(model.state_dict(), path)
"""
IMPORTS = {
    "from tool.wrap import build": "build",
    "from tool import wrap": "wrap.build",
    "from tool import build": "build",
    "import tool.wrap": "tool.wrap.build",
    "import tool": "tool.build",
    "import tool as t": "t.build",
}


def sites(root: Path) -> dict[str, int]:
    run = session.run([root])
    assert not run.result.problems
    names = [d.site.module.path.name for d in run.result.decisions]
    return {name: names.count(name) for name in sorted(set(names))}


@pytest.mark.parametrize("place", [".", "code"])
@pytest.mark.parametrize("imports", IMPORTS)
def test_imports_lead_where_the_package_lies(tmp_path: Path, imports: str, place: str) -> None:
    files = {
        "__init__.py": "from .wrap import build\n",
        "wrap.py": USE,
        "loop.py": LOOP.format(imports=imports, call=IMPORTS[imports]),
    }
    root, same = tmp_path / "other", tmp_path / "same"
    inside = root / place
    lay(inside, files)
    lay(root, {"pyproject.toml": PYPROJECT.format(place=place)})
    lay(same / "tool", files)
    assert sites(root) == sites(same)
    assert sites(root)["loop.py"] > 2


@pytest.mark.parametrize("name", METADATA)
def test_every_way_to_say_it(tmp_path: Path, name: str) -> None:
    lay(tmp_path, {name: METADATA[name].format(place="lib")})
    assert renamed(tmp_path / "lib" / "inner") == {("tool",): tmp_path / "lib"}


@pytest.mark.parametrize(
    "text",
    [
        PYPROJECT.format(place="tool"),  # as it is called
        PYPROJECT.format(place="lib/tool"),
        PYPROJECT.format(place="../outside"),
        '[tool.setuptools]\npackage-dir = {"" = "lib"}\n',
        "package-dir = {",
        '[tool.setuptools]\npackage-dir = "lib"\n',
    ],
)
def test_what_says_no_other_name(tmp_path: Path, text: str) -> None:
    lay(tmp_path, {"pyproject.toml": text})
    assert renamed(tmp_path) == {}


def test_another_project_is_not_meant(tmp_path: Path) -> None:
    lay(tmp_path / "one", {"pyproject.toml": PYPROJECT.format(place="."), "wrap.py": USE})
    loop = LOOP.format(imports="from tool.wrap import build", call="build")
    lay(tmp_path / "two", {"pyproject.toml": "", "loop.py": loop})
    assert sites(tmp_path) == {"wrap.py": 1}


SUPPORTED = """\
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP


def wrap(model, **kwargs):
    return FSDP(model, **kwargs)
"""
USING = """\
{imports}


def main(net, kind, args):
    model = wrap(net, sharding_strategy=args.strategy, mixed_precision=args.mixed)
    model.clip_grad_norm_(1.0, norm_type=kind)
"""


@pytest.mark.parametrize(
    ("imports", "written"),
    [
        ("from tool.wrap import wrap", {"tool.fsdp2_support"}),
        ("from wrap import wrap", {"fsdp2_support"}),  # nothing is installed
        ("from .wrap import wrap", {".fsdp2_support", "tool.fsdp2_support"}),
    ],
)
def test_support_is_imported_by_the_name_that_is_installed(
    tmp_path: Path, imports: str, written: set[str]
) -> None:
    files = {
        "pyproject.toml": PYPROJECT.format(place="."),
        "__init__.py": "",
        "wrap.py": SUPPORTED,
        "loop.py": USING.format(imports=imports),
    }
    run = session.run([lay(tmp_path, files)])
    texts = [run.result.changes[tmp_path / name].decode() for name in ("wrap.py", "loop.py")]
    lines = [line for text in texts for line in text.splitlines() if "fsdp2_support" in line]
    assert {line.split()[1] for line in lines} == written
    assert tmp_path / "fsdp2_support.py" in run.created


LOST = {
    "setup.py": "from setuptools import setup\n\nHERE = '.'\nsetup(packages=['tool'],"
    " package_dir={'tool': HERE})\n",
    "pyproject.toml": '[project]\nname = "Tool"\n',
}


def said(root: Path) -> list[tuple[str, int]]:
    told = session.run([root]).result.not_followed
    return [(Path(n.display).name, n.line) for n in told if "that it is its own" in n.why]


@pytest.mark.parametrize("name", LOST)
@pytest.mark.parametrize("imports", ["from tool.wrap import build", "import tool"])
def test_own_imports_that_lead_nowhere_are_said(tmp_path: Path, name: str, imports: str) -> None:
    loop = LOOP.format(imports=imports, call="build")
    root = lay(tmp_path / "other", {name: LOST[name], "wrap.py": USE, "loop.py": loop})
    assert said(root) == [("loop.py", 3)]


@pytest.mark.parametrize(
    "files",
    [
        {"tool/wrap.py": USE, "loop.py": "from tool.wrap import build\n"},
        {"src/tool/wrap.py": USE, "loop.py": "import tool\n"},
        {"tool.py": USE, "loop.py": "import tool\n"},
        {"wrap.py": USE, "loop.py": "import tools\nimport other.tool\n"},
        {
            "wrap.py": USE.replace("FSDP(model)", "model").replace(USE[:10], "#"),
            "a.py": "import tool",
        },
    ],
)
def test_nothing_is_said_where_names_lead_somewhere(tmp_path: Path, files: dict[str, str]) -> None:
    root = lay(tmp_path / "other", {"pyproject.toml": LOST["pyproject.toml"], **files})
    assert said(root) == []


def test_a_package_that_lies_where_the_metadata_says_is_there(tmp_path: Path) -> None:
    loop = LOOP.format(imports="from tool.wrap import build", call="build")
    files = {"pyproject.toml": PYPROJECT.format(place="."), "wrap.py": USE, "loop.py": loop}
    assert said(lay(tmp_path / "other", files)) == []
    assert said(lay(tmp_path / "tool", {**files, "pyproject.toml": LOST["pyproject.toml"]})) == []
