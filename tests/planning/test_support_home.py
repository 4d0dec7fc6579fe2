"""The support module is imported wherever the program starts: every layout is migrated and run."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from fsdp_migrate.migration import engine
from fsdp_migrate.planning.outcome import Outcome
from tests.helpers.commandline import answering
from tests.helpers.migrating import files, migrate

# Any name of torch is a class, so that programs are imported without it in no time.
STAND_IN = """\
import importlib.abc, importlib.machinery, sys, types


class Kind(type):
    def __getattr__(cls, name):
        if name.startswith("__"):
            raise AttributeError(name)
        return Any

    def __or__(cls, other):
        return cls

    __ror__ = __or__


class Any(metaclass=Kind):
    def __init__(self, *args, **kwargs):
        pass

    def __call__(self, function):
        return function

    def __class_getitem__(cls, item):
        return cls


class Module(types.ModuleType):
    __path__ = []

    def __getattr__(self, name):
        if name.startswith("__"):
            raise AttributeError(name)
        return Any


class Finder(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    def find_spec(self, name, path, target=None):
        if name.partition(".")[0] == "torch":
            return importlib.machinery.ModuleSpec(name, self, is_package=True)

    def create_module(self, spec):
        return Module(spec.name)

    def exec_module(self, module):
        pass


sys.meta_path.insert(0, Finder())
"""
HEAD = "from torch.distributed.fsdp import FullyShardedDataParallel as FSDP\n"
USE = """

def whole(net):
    model = FSDP(net)
    with FSDP.summon_full_params(model):
        return model
"""
USER = HEAD + USE
GUARD = '\n\nif __name__ == "__main__":\n    print("started")\n'
CONFIG = """\
from torch.distributed.fsdp import ShardingStrategy


class Settings:
    strategy = ShardingStrategy.FULL_SHARD
"""
CHECK = """\
from torch.distributed.fsdp import ShardingStrategy


def is_full(settings):
    return settings.strategy == ShardingStrategy.FULL_SHARD
"""
WRAP = """

def main(net):
    assert is_full(Settings)
    return FSDP(net, sharding_strategy=Settings.strategy)


assert is_full(Settings)
"""
BUILD = '[build-system]\nrequires = ["setuptools"]\n'


@dataclass(frozen=True)
class Start:
    """A way to start: the arguments of Python, from where, and what is on its path."""

    arguments: tuple[str, ...]
    directory: str = "."
    path: tuple[str, ...] = ()


def script(name: str, directory: str = ".", *path: str) -> Start:
    return Start((name,), directory, path)


def module(name: str, directory: str = ".", *path: str) -> Start:
    return Start(("-m", name), directory, path)


def imported(name: str, *path: str) -> Start:
    """Imported by a program that stands elsewhere, as what is installed is."""
    return Start(("-P", "-c", f"import {name}"), ".", path)


def pytested(name: str, directory: str = ".") -> Start:
    return Start(("-m", "pytest", "-q", "-p", "no:cacheprovider", name), directory)


@dataclass(frozen=True)
class Layout:
    files: Mapping[str, str]
    starts: Sequence[Start]
    homes: Sequence[str]  # the directories of support files afterwards
    spelled: Mapping[str, str] = field(default_factory=dict)


LAYOUTS = {
    "a package with typing.py, types.py and json.py of its own": Layout(
        {
            "pkg/__init__.py": "",
            "pkg/typing.py": "CPU = 'cpu'\n",
            "pkg/types.py": "class Kind:\n    pass\n",
            "pkg/json.py": "from typing import Any\n\nload: Any = None\n",
            "pkg/model.py": f"import json\nfrom pkg.typing import CPU\n{HEAD}\nprint(CPU)\n{USE}",
            "pkg/utils/__init__.py": "",
            "pkg/utils/state.py": (
                "from types import SimpleNamespace\nfrom typing import Any, Generic\n"
                f"from json import load\n{HEAD}from pkg.model import whole as other\n{USE}"
            ),
        },
        [imported("pkg.utils.state", "."), module("pkg.utils.state")],
        ["pkg"],
        {"pkg/model.py": "pkg.fsdp2_support", "pkg/utils/state.py": "pkg.fsdp2_support"},
    ),
    "a script beside a typing.py is started there": Layout(
        {"run/profile.py": USER, "run/train.py": "from profile import whole\n"},
        [script("run/train.py"), script("train.py", "run")],
        ["run"],
        {"run/profile.py": "fsdp2_support"},
    ),
    "a checkout with an __init__ at its root": Layout(
        {
            "__init__.py": "",
            "pyproject.toml": BUILD,
            "pkg/__init__.py": "",
            "pkg/a.py": USER,
            "pkg/deep/__init__.py": "",
            "pkg/deep/b.py": f"from ..c import X\n{USER}",
            "pkg/c.py": "X = 1\n",
            "train.py": "from pkg.a import whole\nfrom pkg.deep.b import whole as other\n",
        },
        [script("train.py"), imported("pkg.deep.b", ".")],
        ["pkg"],
        {"pkg/a.py": "pkg.fsdp2_support", "pkg/deep/b.py": "..fsdp2_support"},
    ),
    "a checkout with an __init__ at its root, where nothing imports anything": Layout(
        {"__init__.py": "", "pyproject.toml": BUILD, "pkg/__init__.py": "", "pkg/a.py": USER},
        [imported("pkg.a", ".")],
        ["pkg"],
        {"pkg/a.py": ".fsdp2_support"},
    ),
    "a checkout with an __init__ at its root, and a script there": Layout(
        {"__init__.py": "", "pyproject.toml": BUILD, "train.py": USER},
        [script("train.py")],
        ["."],
        {"train.py": "fsdp2_support"},
    ),
    "a src layout": Layout(
        {
            "pyproject.toml": f'{BUILD}\n[project]\nname = "my-tool"\nversion = "1"\n',
            "src/tool/__init__.py": "",
            "src/tool/a.py": USER + GUARD,
            "src/tool/b.py": USER,
            "tests/test_a.py": "import tool.a\n\n\ndef test():\n    assert tool.a\n",
        },
        [
            imported("tool.b", "src"),
            module("tool.a", ".", "src"),
            script("src/tool/a.py", ".", "src"),
        ],
        ["src/tool"],
        {"src/tool/a.py": "tool.fsdp2_support"},
    ),
    "files of a package that can be installed, imported by their bare names": Layout(
        {
            "setup.py": "from setuptools import find_packages, setup\n\n"
            "setup(name='tool', packages=find_packages())\n",
            "src/__init__.py": "",
            "src/core/__init__.py": "from .a import whole\n",
            "src/core/a.py": USER,
            "src/core/b.py": USER,
            "scripts/launch.py": f"from a import whole\nfrom b import whole as other\n{GUARD}",
        },
        [
            script("scripts/launch.py", ".", "src/core"),
            imported("src.core.a", "."),
            imported("src.core.b", "."),
        ],
        ["src/core"],
    ),
    "the same where the launcher needs the root as well": Layout(
        {
            "setup.py": "from setuptools import find_packages, setup\n\n"
            "setup(name='tool', packages=find_packages())\n",
            "src/__init__.py": "",
            "src/core/__init__.py": "from .a import whole\n",
            "src/core/a.py": USER,
            "src/core/b.py": USER,
            "scripts/launch.py": f"import src.core.b\nfrom a import whole\n{GUARD}",
        },
        [script("scripts/launch.py", ".", ".", "src/core"), imported("src.core.a", ".")],
        ["src/core"],
        {"src/core/a.py": "src.core.fsdp2_support", "src/core/b.py": "src.core.fsdp2_support"},
    ),
    "a src layout without metadata": Layout(
        {
            "src/tool/__init__.py": "",
            "src/tool/a.py": USER,
            "src/tool/cli.py": f"from tool.a import whole\n{GUARD}",
        },
        [module("tool.cli", ".", "src"), script("src/tool/cli.py", ".", "src")],
        ["src/tool"],
    ),
    "scripts beside packages": Layout(
        {
            "pkg/__init__.py": "",
            "pkg/a.py": USER,
            "scripts/train.py": (
                "import os\nimport sys\n\n"
                "sys.path.append(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))\n\n"
                f"from pkg.a import whole as inner\n{USER}{GUARD}"
            ),
        },
        [script("scripts/train.py"), script("train.py", "scripts"), imported("pkg.a", ".")],
        ["pkg"],
    ),
    "a script beside a package that it imports from": Layout(
        {
            "pkg/__init__.py": "",
            "pkg/a.py": "X = 1\n",
            "scripts/train.py": f"from pkg.a import X\n{USER}{GUARD}",
        },
        [script("scripts/train.py", ".", "."), script("train.py", "scripts", "..")],
        ["scripts"],
        {"scripts/train.py": "fsdp2_support"},
    ),
    "scripts in a package directory": Layout(
        {
            "train/__init__.py": "",
            "train/main.py": f"from utils.wrap import whole\nfrom config import X\n{GUARD}",
            "train/config.py": f"X = 1\n{USER}",
            "train/utils/__init__.py": "",
            "train/utils/wrap.py": f"from config import X\n{USER}",
        },
        [script("train/main.py"), script("main.py", "train")],
        ["train"],
    ),
    "a script in a package directory that imports nothing, beside one that does": Layout(
        {
            "train/__init__.py": "",
            "train/main.py": USER + GUARD,
            "train/other.py": f"from config import X\n{GUARD}",
            "train/config.py": "X = 1\n",
        },
        [script("train/main.py"), script("main.py", "train"), script("train/other.py")],
        ["train"],
        {"train/main.py": "fsdp2_support"},
    ),
    "a script in a package that imports from its package by name": Layout(
        {
            "pkg/__init__.py": "",
            "pkg/model.py": "X = 1\n",
            "pkg/train.py": f"from pkg.model import X\n{USER}{GUARD}",
        },
        [module("pkg.train"), script("pkg/train.py", ".", "."), script("train.py", "pkg", "..")],
        ["pkg"],
        {"pkg/train.py": "pkg.fsdp2_support"},
    ),
    "a script in a package that imports from beside it": Layout(
        {
            "pkg/__init__.py": "",
            "pkg/model.py": "X = 1\n",
            "pkg/train.py": f"from model import X\n{USER}{GUARD}",
        },
        [script("pkg/train.py"), script("train.py", "pkg"), module("pkg.train", ".", "pkg")],
        ["pkg"],
        {"pkg/train.py": "fsdp2_support"},
    ),
    "a script in a package that imports relatively": Layout(
        {
            "pkg/__init__.py": "",
            "pkg/model.py": "X = 1\n",
            "pkg/train.py": f"from .model import X\n{USER}{GUARD}",
        },
        [module("pkg.train"), imported("pkg.train", ".")],
        ["pkg"],
        {"pkg/train.py": ".fsdp2_support"},
    ),
    "a script in a package that an entry point names": Layout(
        {
            "pyproject.toml": (
                '[project]\nname = "my-tool"\nversion = "1"\n'
                'scripts = {go = "pkg.deep.cli:whole"}\n'
            ),
            "pkg/__init__.py": "",
            "pkg/deep/__init__.py": "",
            "pkg/deep/cli.py": USER + GUARD,
        },
        [
            imported("pkg.deep.cli", "."),
            module("pkg.deep.cli"),
            script("pkg/deep/cli.py", ".", "."),
        ],
        ["pkg/deep"],
        {"pkg/deep/cli.py": "pkg.deep.fsdp2_support"},
    ),
    "a directory without an __init__ that imports from itself by name": Layout(
        {"src/model.py": "X = 1\n", "src/train.py": f"from src.model import X\n{USER}"},
        [module("src.train"), script("src/train.py", ".", ".")],
        ["src"],
        {"src/train.py": "src.fsdp2_support"},
    ),
    "a directory without an __init__ where nothing imports anything": Layout(
        {"src/train.py": USER + GUARD},
        [script("src/train.py"), script("train.py", "src")],
        ["src"],
        {"src/train.py": "fsdp2_support"},
    ),
    "namespace packages": Layout(
        {
            "core/models/a.py": USER,
            "core/steps/b.py": f"from core.models.a import whole as inner\n{USER}",
            "main.py": "from core.steps.b import whole\n",
        },
        [script("main.py"), module("core.steps.b")],
        ["core"],
        {"core/models/a.py": "core.fsdp2_support"},
    ),
    "a vendored package that is imported most": Layout(
        {
            "megatron/__init__.py": "",
            "megatron/core.py": "A = B = C = 1\n",
            "megatron/more.py": "from megatron.core import A\n",
            "tools/__init__.py": "",
            "tools/wrap.py": f"from megatron.core import A, B, C\nimport megatron.more\n{USER}",
            "train.py": f"from megatron.core import A\nfrom tools.wrap import whole\n{GUARD}",
        },
        [script("train.py"), imported("tools.wrap", ".")],
        ["tools"],
        {"tools/wrap.py": "tools.fsdp2_support"},
    ),
    "two packages, one of which imports the other": Layout(
        {
            "core/__init__.py": "",
            "core/config.py": CONFIG,
            "recipes/__init__.py": "",
            "recipes/check.py": CHECK,
            "recipes/train.py": (
                f"from core.config import Settings\nfrom recipes.check import is_full\n{HEAD}{WRAP}"
            ),
        },
        [module("recipes.train"), imported("recipes.train", "."), imported("core.config", ".")],
        ["core"],
    ),
    "two packages that know nothing of each other": Layout(
        {
            "core/__init__.py": "",
            "core/config.py": CONFIG,
            "models/__init__.py": "",
            "models/check.py": CHECK,
            "train.py": (
                f"from core.config import Settings\nfrom models.check import is_full\n{HEAD}{WRAP}"
            ),
        },
        [script("train.py")],
        ["."],
    ),
    "two packages that a script without FSDP brings together": Layout(
        {
            "core/__init__.py": "",
            "core/config.py": CONFIG,
            "models/__init__.py": "",
            "models/check.py": (
                f"{CHECK}\n\ndef wrap(net, settings):\n    from torch.distributed.fsdp import "
                "FullyShardedDataParallel as FSDP\n\n"
                "    return FSDP(net, sharding_strategy=settings.strategy)\n"
            ),
            "train.py": (
                "from core.config import Settings\nfrom models.check import is_full, wrap\n\n"
                "assert is_full(Settings)\n\n\ndef main(net):\n    return wrap(net, Settings)\n"
            ),
        },
        [script("train.py")],
        ["."],
    ),
    "examples with settings of their own for a package that is installed": Layout(
        {
            "pyproject.toml": '[tool.hatch.build.targets.wheel]\npackages = ["src/tool"]\n',
            "src/tool/__init__.py": "",
            "src/tool/check.py": CHECK,
            "src/tool/pipeline.py": (
                f"{HEAD}\nfrom tool.check import is_full\n\n\ndef main(net, settings):\n"
                "    assert is_full(settings)\n"
                "    return FSDP(net, sharding_strategy=settings.strategy)\n"
            ),
            **{
                f"examples/{name}/{path}": text
                for name in "ab"
                for path, text in {
                    "settings.py": CONFIG,
                    "train.py": "from tool.pipeline import main\nfrom settings import Settings\n\n"
                    "main(None, Settings)\n",
                }.items()
            },
            "examples/c/settings.py": CONFIG,
            "examples/c/train.py": "from tool.pipeline import main\n\nprint(main)\n",
        },
        [
            script("examples/a/train.py", ".", "src"),
            script("train.py", "examples/b", "../../src"),
            imported("settings", "src", "examples/c"),
        ],
        ["src/tool"],
        {f"examples/{name}/settings.py": "tool.fsdp2_support" for name in "abc"},
    ),
    "two projects in one repository": Layout(
        {
            f"{name}/{path}": text
            for name in ("first", "second")
            for path, text in {
                "train.py": f"from lib.a import whole\n{GUARD}",
                "lib/__init__.py": "",
                "lib/a.py": USER,
            }.items()
        },
        [script("first/train.py"), script("train.py", "second")],
        ["first/lib", "second/lib"],
    ),
    "users in two packages of one": Layout(
        {
            "pkg/__init__.py": "",
            "pkg/main.py": "from pkg.a.x import whole\nfrom pkg.b.c.y import whole as other\n",
            "pkg/a/__init__.py": "",
            "pkg/a/x.py": USER,
            "pkg/b/__init__.py": "",
            "pkg/b/c/__init__.py": "",
            "pkg/b/c/y.py": USER,
            "pkg/b/d/__init__.py": "",
            "pkg/b/d/z.py": "from pkg.b.c.y import whole\n",
        },
        [module("pkg.main"), imported("pkg.b.d.z", "."), imported("pkg.a.x", ".")],
        ["pkg"],
    ),
    "relative imports alone": Layout(
        {
            "pkg/__init__.py": "",
            "pkg/b/__init__.py": "from .c.y import whole\n",
            "pkg/b/c/__init__.py": "",
            "pkg/b/c/y.py": USER,
            "pkg/b/d/__init__.py": "",
            "pkg/b/d/z.py": f"from ..c import y\n{USER}",
        },
        [imported("pkg.b.d.z", "."), imported("pkg.b", ".")],
        ["pkg/b"],
        {"pkg/b/c/y.py": "..fsdp2_support", "pkg/b/d/z.py": "..fsdp2_support"},
    ),
    "a package that imports its own names at its top": Layout(
        {
            "pkg/__init__.py": "from pkg.a.x import whole\n",
            "pkg/a/__init__.py": "from pkg.b.y import whole as other\n",
            "pkg/a/x.py": f"from pkg.b.y import whole as other\n{USER}",
            "pkg/b/__init__.py": "import pkg.a\n",
            "pkg/b/y.py": USER,
        },
        [imported("pkg", "."), imported("pkg.b.y", ".")],
        ["pkg"],
    ),
    "tests that use it": Layout(
        {
            "pkg/__init__.py": "",
            "pkg/a.py": "X = 1\n",
            "tests/test_a.py": f"{USER}\n\ndef test_a():\n    assert whole\n",
            "tests/helpers.py": USER,
            "tests/test_b.py": "from helpers import whole\n\n\ndef test_b():\n    assert whole\n",
        },
        [pytested("tests"), pytested(".", "tests")],
        ["tests"],
    ),
    "tests in two directories, which one process loads": Layout(
        {
            "lib.py": "X = 1\n",
            "tests/conftest.py": f"from lib import X\n{USER}",
            "tests/sub/test_x.py": (
                f"from lib import X\n{HEAD}\n\ndef test_state():\n    assert state\n\n\n"
                "def state(net, opt):\n"
                "    return FSDP.optim_state_dict_to_load(FSDP(net), opt, {})\n"
            ),
        },
        [pytested("tests")],
        ["tests", "tests/sub"],
    ),
    "tests that are a package": Layout(
        {
            "pkg/__init__.py": "",
            "pkg/a.py": USER,
            "tests/__init__.py": "",
            "tests/test_a.py": f"from pkg.a import whole\n{USER}\n\ndef test_a():\n    pass\n",
        },
        [pytested("tests"), imported("pkg.a", ".")],
        ["pkg"],
    ),
    "tests that are a package, alone": Layout(
        {"tests/__init__.py": "", "tests/test_a.py": f"{USER}\n\ndef test_a():\n    pass\n"},
        [pytested("tests")],
        ["tests"],
        {"tests/test_a.py": ".fsdp2_support"},
    ),
    "one script": Layout(
        {"train.py": USER + GUARD}, [script("train.py")], ["."], {"train.py": "fsdp2_support"}
    ),
    "a package that hatch lists": Layout(
        {
            "pyproject.toml": '[tool.hatch.build.targets.wheel]\npackages = ["lib/tool"]\n',
            "lib/tool/__init__.py": "",
            "lib/tool/a.py": USER + GUARD,
        },
        [imported("tool.a", "lib"), script("lib/tool/a.py", ".", "lib")],
        ["lib/tool"],
        {"lib/tool/a.py": "tool.fsdp2_support"},
    ),
    "a package that poetry takes from elsewhere": Layout(
        {
            "pyproject.toml": '[tool.poetry]\npackages = [{include = "tool", from = "lib"}]\n',
            "lib/tool/__init__.py": "",
            "lib/tool/a.py": USER + GUARD,
        },
        [imported("tool.a", "lib"), script("lib/tool/a.py", ".", "lib")],
        ["lib/tool"],
        {"lib/tool/a.py": "tool.fsdp2_support"},
    ),
    "packages that setuptools finds elsewhere": Layout(
        {
            "pyproject.toml": '[tool.setuptools.packages.find]\nwhere = ["lib"]\n',
            "lib/tool/__init__.py": "",
            "lib/tool/a.py": USER + GUARD,
        },
        [imported("tool.a", "lib"), script("lib/tool/a.py", ".", "lib")],
        ["lib/tool"],
        {"lib/tool/a.py": "tool.fsdp2_support"},
    ),
    "scripts in a package that is not installed, though it could be": Layout(
        {
            "pyproject.toml": '[tool.setuptools.packages.find]\nwhere = ["lib"]\n',
            "lib/tool/__init__.py": "from .net import NAME\n",
            "lib/tool/net.py": "NAME = 1\n",
            "lib/tool/configs/__init__.py": "from .sharding import *\n",
            "lib/tool/configs/sharding.py": USER,
            "lib/tool/policies/__init__.py": "from .casts import *\n",
            "lib/tool/policies/casts.py": USER,
            "lib/tool/main.py": (
                f"from configs import whole as one\nfrom policies import whole as two\n{GUARD}"
            ),
        },
        [script("lib/tool/main.py")],
        ["lib/tool/configs", "lib/tool/policies"],
    ),
    "scripts in a package that one of them imports as it is installed": Layout(
        {
            "pyproject.toml": '[tool.setuptools.packages.find]\nwhere = ["lib"]\n',
            "lib/tool/__init__.py": "",
            "lib/tool/net.py": USER,
            "lib/tool/main.py": f"import net\nimport tool.net\n{USER}{GUARD}",
        },
        [script("lib/tool/main.py", ".", "lib")],
        ["lib/tool"],
        {"lib/tool/net.py": "tool.fsdp2_support"},
    ),
    "a library in directories that are no packages, which nothing in sight imports": Layout(
        {
            "src/net/train.py": f'"""Trains."""\n\ntry:\n    import json\nexcept ImportError:\n'
            f"    json = None\n\n{HEAD}LIMIT = 10\n{USE}",
            "src/net/blocks.py": "X = 1\n",
            "src/net/utils/data.py": "Y = 2\n",
            "src/net/utils/example.py": USER,
            "evaluate.py": "from src.net.blocks import X\nfrom src.net.utils.data import Y\n",
        },
        [imported("src.net.train", "."), imported("src.net.utils.example", ".")],
        ["src/net", "src/net/utils"],
        {"src/net/train.py": ".fsdp2_support", "src/net/utils/example.py": ".fsdp2_support"},
    ),
    "a program beside a library in a directory that is no package": Layout(
        {
            "tools/train.py": f"{USER}\n\nprint(whole)\n",
            "tools/blocks.py": "X = 1\n",
            "main.py": "from tools.blocks import X\n",
        },
        [script("tools/train.py"), script("train.py", "tools")],
        ["tools"],
        {"tools/train.py": "fsdp2_support"},
    ),
    "what only defines things beside what is imported by its bare name": Layout(
        {
            "tools/train.py": USER,
            "tools/blocks.py": "X = 1\n",
            "tools/main.py": "from blocks import X\n",
            "main.py": "from tools.blocks import X\n",
        },
        [imported("train", "tools")],
        ["tools"],
        {"tools/train.py": "fsdp2_support"},
    ),
    "somebody else's file of that name": Layout(
        {
            "pkg/__init__.py": "",
            "pkg/a.py": f"from pkg.fsdp2_support import X\n{USER}",
            "pkg/fsdp2_support.py": "X = 1\n",
        },
        [imported("pkg.a", ".")],
        ["pkg"],
        {"pkg/a.py": "pkg.fsdp2_support_2"},
    ),
    "somebody else's file of that name in another directory on the path": Layout(
        {
            "lib/fsdp2_support.py": "X = 1\n",
            "run/train.py": (
                "import sys\n\nsys.path.insert(0, 'lib')\n\n"
                f"from fsdp2_support import X\n{USER}{GUARD}"
            ),
        },
        [script("run/train.py")],
        ["lib", "run"],
        {"run/train.py": "fsdp2_support_2"},
    ),
    "two directories of scripts, one of which the other puts on the path": Layout(
        {
            "lib/helpers.py": USER,
            "run/train.py": (
                "import sys\n\nsys.path.append('lib')\n\nfrom helpers import whole as inner\n"
                f"from other import whole as third\n{USER}{GUARD}"
            ),
            "run/other.py": USER,
        },
        [script("run/train.py")],
        ["lib", "run"],
    ),
}


def source_of(text: str) -> list[str]:
    lines = (line.split() for line in text.splitlines())
    return [words[1] for words in lines if words[:1] == ["from"] and "fsdp2_support" in words[1]]


@pytest.fixture
def environment(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    stand_in = tmp_path_factory.mktemp("stand_in")
    (stand_in / "sitecustomize.py").write_text(STAND_IN)
    return {"PATH": os.environ["PATH"], "STAND_IN": str(stand_in), "PYTHONDONTWRITEBYTECODE": "1"}


def run(start: Start, tree: Path, environment: Mapping[str, str]) -> None:
    """Start a program of a tree; it must end well."""
    path = [environment["STAND_IN"], *(str(tree / start.directory / p) for p in start.path)]
    done = subprocess.run(
        [sys.executable, *start.arguments],
        cwd=tree / start.directory,
        env={**environment, "PYTHONPATH": os.pathsep.join(path)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert not done.returncode, (start, done.stdout, done.stderr)


@pytest.mark.parametrize("layout", LAYOUTS.values(), ids=LAYOUTS.keys())
def test_programs_start_as_before(
    layout: Layout,
    tmp_path: Path,
    environment: dict[str, str],
    monkeypatch: pytest.MonkeyPatch,
    capfdbinary: pytest.CaptureFixture[bytes],
) -> None:
    write(layout.files, tmp_path)
    for start in layout.starts:
        run(start, tmp_path, environment)
    monkeypatch.chdir(tmp_path)
    answer = answering(capfdbinary)("rewrite", ".", "--allow-dirty")
    assert answer.code == 0, answer
    assert "100 % migrated" in answer.out
    for start in layout.starts:
        run(start, tmp_path, environment)
    after = files(tmp_path)
    found = {str(Path(p).parent) for p in after if Path(p).stem.startswith("fsdp2_support")}
    assert found == set(layout.homes)
    for path, spelled in layout.spelled.items():
        ours = [s for s in source_of(after[path]) if s not in source_of(layout.files[path])]
        assert set(ours) == {spelled}, path


BY_BOTH = {
    "a script in a package, of which no import tells how it is started": Layout(
        {"pkg/__init__.py": "", "pkg/a.py": USER + GUARD, "pkg/b.py": "X = 1\n"},
        [script("pkg/a.py"), script("a.py", "pkg"), module("pkg.a")],
        ["pkg"],
    ),
    "the same beside one that imports from the package by name": Layout(
        {
            "pkg/__init__.py": "",
            "pkg/a.py": USER + GUARD,
            "pkg/b.py": "X = 1\n",
            "pkg/c.py": f"from pkg.b import X\n{GUARD}",
        },
        [script("pkg/a.py"), module("pkg.a"), module("pkg.c")],
        ["pkg"],
    ),
    "a script that is imported as a part of its package": Layout(
        {
            "pkg/__init__.py": "",
            "pkg/a.py": USER + GUARD,
            "main.py": "from pkg.a import whole\n",
        },
        [script("pkg/a.py"), script("main.py")],
        ["pkg"],
    ),
    "a module that is imported by either name": Layout(
        {
            "pkg/__init__.py": "",
            "pkg/a.py": USER,
            "pkg/b.py": "try:\n    from pkg.a import whole\nexcept ImportError:\n"
            "    from a import whole\n",
        },
        [script("pkg/b.py"), module("pkg.b")],
        ["pkg"],
    ),
    "one that imports by either name itself": Layout(
        {
            "pkg/__init__.py": "",
            "pkg/c.py": "X = 1\n",
            "pkg/a.py": "try:\n    from .c import X\nexcept ImportError:\n"
            f"    from c import X\n{USER}{GUARD}",
            "main.py": "from pkg.a import whole\n",
        },
        [script("pkg/a.py"), script("main.py")],
        ["pkg"],
    ),
}
EITHER = [".fsdp2_support", "fsdp2_support"]
STATEMENTS = (
    f"{HEAD}\n\nmodel = FSDP(object())\nwith FSDP.summon_full_params(model):\n    print(model)\n"
)
NO_PLACE = {
    "pkg/__init__.py": "",
    "pkg/a.py": f"{STATEMENTS}\n\ndef later():\n    pass\n{GUARD}",
    "main.py": "from pkg.a import model\n",
}


@pytest.mark.parametrize("layout", BY_BOTH.values(), ids=BY_BOTH.keys())
def test_where_no_one_import_works_in_every_way_there_are_two(
    layout: Layout, tmp_path: Path, environment: dict[str, str]
) -> None:
    write(layout.files, tmp_path)
    for start in layout.starts:
        run(start, tmp_path, environment)
    result, after = migrate(layout.files)
    assert all(d.outcome is not Outcome.LEFT for d in result.decisions)
    assert source_of(after["pkg/a.py"]) == EITHER
    again, same = migrate(after)
    assert same == after
    assert not again.problems
    write(after, tmp_path)
    for start in layout.starts:
        run(start, tmp_path, environment)


@pytest.mark.parametrize("tree", [layout.files for layout in BY_BOTH.values()], ids=BY_BOTH)
def test_one_more_import_tells_what_the_name_of_the_package_starts_from(
    tree: Mapping[str, str],
) -> None:
    proved = {**tree, "pkg/x.py": "", "pkg/a.py": f"import pkg.x\n{USER}{GUARD}"}
    result, after = migrate(proved)
    assert all(d.outcome is not Outcome.LEFT for d in result.decisions)
    assert source_of(after["pkg/a.py"]) == ["pkg.fsdp2_support"]


SETTLED = f"{CONFIG}\n\ndef is_full(s):\n    return s == ShardingStrategy.FULL_SHARD\n"
LATE_WRAP = f"{HEAD}\n\ndef main(net):\n    return FSDP(net, sharding_strategy=Settings.strategy)\n"


@pytest.mark.parametrize(
    ("more", "is_left"),
    [
        ({}, False),
        # In the package both have one class, and alone the script meets nobody.
        ({"pkg/check.py": CHECK, "main.py": "import pkg.settings\nimport pkg.check\n"}, False),
        ({"check.py": CHECK, "main.py": "import pkg.settings\nimport check\n"}, False),
        # By its bare name, beside the same as a part of the package.
        ({"pkg/other.py": f"{HEAD}from settings import Settings\n"}, True),
        # The script loads itself once more.
        (
            {
                "pkg/settings.py": f"try:\n    import pkg.back\nexcept ImportError:\n    pass\n"
                f"{SETTLED}{GUARD}",
                "pkg/back.py": "import pkg.settings\n",
            },
            True,
        ),
    ],
)
def test_a_class_that_is_told_apart_is_imported_either_way_where_it_stays_one(
    more: Mapping[str, str], is_left: bool
) -> None:
    """Two copies of one file are no harm where no program has both."""
    tree = {"pkg/__init__.py": "", "pkg/settings.py": SETTLED + GUARD}
    tree |= {"main.py": f"from pkg.settings import Settings\n{LATE_WRAP}"}
    given = {**tree, **more}
    if "main.py" in more:
        given["main.py"] = more["main.py"] + tree["main.py"]
    result, after = migrate(given)
    assert any(d.outcome is Outcome.LEFT for d in result.decisions) is is_left
    if not is_left:
        assert source_of(after["pkg/settings.py"]) == EITHER


def test_statements_alone_import_it_either_way_in_front_of_the_first() -> None:
    result, after = migrate({**NO_PLACE, "pkg/a.py": STATEMENTS + GUARD})
    assert all(d.outcome is not Outcome.LEFT for d in result.decisions)
    text = after["pkg/a.py"]
    assert source_of(text) == EITHER
    assert text.index("except ImportError") < text.index("fully_shard(object())")


def test_what_is_needed_above_the_first_definition_is_left() -> None:
    result, after = migrate(NO_PLACE)
    left = [d for d in result.decisions if d.outcome is Outcome.LEFT]
    assert [d.message.split(":")[0] for d in left if not d.held] == [engine.UNPROVED]
    assert len(left) == len(result.decisions)
    assert not any("fsdp2_support" in text for text in (*after, *after.values()))


SHORT = """

def whole(net):
    model = FSDP(net, ignored_modules=[net.head])
    print(model.clip_grad_norm_(1.0))
    return model
"""


@pytest.mark.parametrize("name", BY_BOTH)
def test_short_functions_stand_in_a_file_that_can_import_none(name: str) -> None:
    """Also where another file needs the same, and has it from a support file."""
    tree = {path: text.replace(USE, SHORT) for path, text in BY_BOTH[name].files.items()}
    tree["more.py"] = f"from pkg.a import whole\n{HEAD}{SHORT.replace('whole', 'other')}"
    result, after = migrate(tree)
    assert all(d.outcome is not Outcome.LEFT for d in result.decisions)
    assert not result.problems
    assert "\ndef clip_grad_norm_(model" in after["pkg/a.py"]
    assert "fsdp2_support" not in after["pkg/a.py"]
    assert source_of(after["more.py"]) == ["pkg.fsdp2_support"]
    again, same = migrate(after)
    assert same == after
    assert not again.problems


APART = {
    "src/tool/__init__.py": "",
    "src/tool/check.py": CHECK,
    "examples/settings.py": CONFIG,
    "examples/train.py": "from settings import Settings\nfrom tool.check import is_full\n"
    "from torch.distributed.fsdp import FullyShardedDataParallel as FSDP\n\n\n"
    "def main(net):\n    return FSDP(net, sharding_strategy=Settings.strategy)\n",
}
INSTALLED = {"pyproject.toml": '[tool.hatch.build.targets.wheel]\npackages = ["src/tool"]\n'}


@pytest.mark.parametrize(
    "more",
    [
        {},  # nothing tells that the package is installed
        {**INSTALLED, "examples/show.py": "from settings import Settings\n\nprint(Settings)\n"},
        {**INSTALLED, "src/tool/early.py": "from settings import Settings\n\nprint(Settings)\n"},
    ],
)
def test_settings_import_from_a_package_only_where_all_that_load_them_do(
    more: Mapping[str, str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capfdbinary: pytest.CaptureFixture[bytes],
) -> None:
    write({**APART, **more}, tmp_path)
    monkeypatch.chdir(tmp_path)
    answer = answering(capfdbinary)("rewrite", ".", "--allow-dirty")
    assert "ShardingStrategy must be the same here and in" in answer.out
    after = files(tmp_path)
    assert after.keys() == {name for name in {**APART, **more} if name.endswith(".py")}
    assert "from tool" not in after["examples/settings.py"]


NOBODY_COMPARES = {
    **APART,
    "src/tool/check.py": CHECK.replace(".strategy ==", ".strategy.name ==").replace(
        "FULL_SHARD", "FULL_SHARD.name"
    ),
}
USES = "from torch.distributed.fsdp import ShardingStrategy\n\n\n"


@pytest.mark.parametrize(
    "more",
    [
        "MEMBERS = (1, 2)\n",
        f"{USES}def same(a: ShardingStrategy = ShardingStrategy.NO_SHARD):\n    return a is None\n",
        f"{USES}DEFAULT = None\nif DEFAULT:\n    DEFAULT.name\n",
        f"{USES}class A:\n    def __init__(self, *, strategy=ShardingStrategy.NO_SHARD):\n"
        "        self.strategy = strategy\n\n\nA(strategy=ShardingStrategy.FULL_SHARD)\n",
        f"{USES}def pick():\n    return ShardingStrategy.NO_SHARD\n\n\nprint(pick().name)\n",
        "class Own:\n    sharding_strategy: str = 'FULL_SHARD'\n",
    ],
)
def test_settings_that_nobody_compares_may_come_from_two_files(more: str) -> None:
    result, after = migrate({**NOBODY_COMPARES, "src/tool/more.py": more})
    assert all(d.outcome is not Outcome.LEFT for d in result.decisions)
    assert sum(name.endswith("fsdp2_support.py") for name in after) == 2


@pytest.mark.parametrize(
    "comparison",
    [
        "def same(a):\n    return a is ShardingStrategy.NO_SHARD\n",
        "NAMES = {ShardingStrategy.NO_SHARD: 'none'}\n",
        "def same(a):\n    return isinstance(a, ShardingStrategy)\n",
        "def same(a):\n    match a:\n        case ShardingStrategy.NO_SHARD:\n            pass\n",
        "def same(a, b=ShardingStrategy.NO_SHARD):\n    return a == b\n",
        "def same(a, *, b=ShardingStrategy.NO_SHARD):\n    c = b or a\n    return a == c\n",
        "def same(a):\n    return a.strategy == Settings.strategy\n",
        "def default():\n    return ShardingStrategy.NO_SHARD\n",
        "same(ShardingStrategy.NO_SHARD)\n",
        "def pick():\n    return ShardingStrategy.NO_SHARD\n\n\nprint(pick() == [])\n",
        "def pick():\n    return ShardingStrategy.NO_SHARD\n\n\nhand_on(pick())\n",
        "def same(a):\n    return a in [ShardingStrategy.NO_SHARD]\n",
        "class Other:\n    strategy: object = None\n",
        "def same(a, b):\n    return getattr(a, 'strategy') == b\n",
        "def same(a):\n    return a.__class__ is ShardingStrategy.NO_SHARD.__class__\n",
        "class More(ShardingStrategy):\n    pass\n",
    ],
)
def test_a_comparison_anywhere_asks_for_one_file(comparison: str) -> None:
    result, _ = migrate({**NOBODY_COMPARES, "src/tool/more.py": USES + comparison})
    assert any(d.outcome is Outcome.LEFT for d in result.decisions)


def test_why_no_place_is_known_names_what_loads_a_file_by_two_names() -> None:
    result, _ = migrate(NO_PLACE)
    reason = next(d.message for d in result.decisions if not d.held)
    assert reason == (
        f"{engine.UNPROVED}: no import of it works by every name of this file: pkg/a.py is "
        "loaded as a (started as a script) and as pkg.a (from main.py)"
    )
    result, _ = migrate(APART)
    reasons = {d.site.module.path.name: d.message for d in result.decisions if not d.held}
    assert reasons["check.py"] == (
        f"{engine.UNPROVED}: ShardingStrategy must be the same here and in "
        "examples/settings.py, and no file is imported by one name in both: examples/settings.py "
        "is loaded as settings (from examples/train.py); src/tool/check.py is loaded as tool.check "
        "(from examples/train.py)"
    )


def test_what_shares_no_class_is_not_held_back_with_what_does() -> None:
    tree = NO_PLACE
    shared = f"from pkg.a import model\n{USER.replace('whole', 'other')}"
    result, _ = migrate({**tree, "lib/__init__.py": "", "lib/b.py": shared})
    outcomes = {d.site.module.path.name: d.outcome for d in result.decisions}
    assert outcomes == {"a.py": Outcome.LEFT, "b.py": Outcome.REWRITTEN}


LIBRARY = "libs/common/tool.py"
BY_ITS_NAME = "from tool import whole\n"
BY_ITS_PACKAGE = "from common.tool import whole\n"


@pytest.mark.parametrize("package", [False, True])
@pytest.mark.parametrize("head", ["", HEAD])
@pytest.mark.parametrize(
    ("first", "second"),
    [
        (BY_ITS_NAME, BY_ITS_PACKAGE),
        ("import tool\n\nprint(tool.whole)\n", "import common.tool\n"),
        ("from tool import *\n", "from common import tool\n"),
    ],
)
def test_a_library_that_programs_import_by_two_names_has_two_imports(
    first: str,
    second: str,
    head: str,
    package: bool,
    tmp_path: Path,
    environment: dict[str, str],
) -> None:
    tree = {LIBRARY: USER, "a/train.py": head + first, "b/train.py": head + second}
    if package:
        tree["libs/common/__init__.py"] = ""
    result, after = migrate(tree)
    assert all(d.outcome is not Outcome.LEFT for d in result.decisions)
    assert source_of(after[LIBRARY]) == EITHER
    write(after, tmp_path)
    for name, root in (("a/train.py", "libs/common"), ("b/train.py", "libs")):
        run(script(name, ".", root), tmp_path, environment)


@pytest.mark.parametrize(
    ("text", "spelled"), [(BY_ITS_NAME, "fsdp2_support"), (BY_ITS_PACKAGE, "common.fsdp2_support")]
)
def test_a_library_that_programs_import_by_one_name_is_not(
    text: str, spelled: str, tmp_path: Path, environment: dict[str, str]
) -> None:
    tree = {LIBRARY: USER, "a/train.py": HEAD + text, "b/train.py": text}
    result, after = migrate(tree)
    assert {d.outcome for d in result.decisions} == {Outcome.REWRITTEN}
    assert source_of(after[LIBRARY]) == [spelled]
    write(after, tmp_path)
    for name in ("a/train.py", "b/train.py"):
        run(script(name, ".", "libs" if "common" in text else "libs/common"), tmp_path, environment)


@pytest.mark.parametrize("text", ["import tool\n\nprint(tool.other)\n", "from tool import other\n"])
def test_somebody_elses_package_of_the_same_name_is_none_of_the_projects(text: str) -> None:
    tree = {LIBRARY: USER, "a/train.py": HEAD + BY_ITS_PACKAGE, "b/train.py": HEAD + text}
    result, after = migrate({**tree, "libs/common/__init__.py": ""})
    assert Outcome.LEFT not in {d.outcome for d in result.decisions}
    assert source_of(after[LIBRARY])


def test_classes_that_meet_are_never_of_two_files() -> None:
    tree = {
        "a/x.py": CONFIG,
        "b/y.py": CHECK,
        "main.py": "import sys\n\nsys.path[:0] = ['a', 'b']\n\nfrom x import Settings\n"
        f"from y import is_full\n{HEAD}{WRAP}",
    }
    result, _ = migrate(tree)
    assert {d.outcome for d in result.decisions} == {Outcome.LEFT}


def test_a_name_may_have_more_dots_than_there_are_directories_above_the_file() -> None:
    tree = {f"pkg/{inner}__init__.py": "" for inner in ("", "a/", "a/b/", "a/b/c/")}
    tree |= {"pkg/settings.py": CONFIG, "pkg/check.py": CHECK}
    names = "from ....settings import Settings\nfrom ....check import is_full\n"
    again = "\n\nassert Settings.strategy is ShardingStrategy.FULL_SHARD\n"
    more = "from torch.distributed.fsdp import ShardingStrategy\n"
    tree["pkg/a/b/c/train.py"] = names + HEAD + more + WRAP + again
    result, after = migrate(tree)  # of a program at the top of a container: /project/pkg
    assert {d.outcome for d in result.decisions} == {Outcome.REWRITTEN}
    assert source_of(after["pkg/a/b/c/train.py"]) == ["....fsdp2_support"]


def test_programs_that_share_a_library_have_a_file_each() -> None:
    script = f"from lib.data import X\n{HEAD}\n\ndef main(net, **k):\n    return FSDP(net, **k)\n"
    tree = {"lib/__init__.py": "", "lib/data.py": "X = 1\n"}
    tree |= {f"examples/{name}/train.py": script + GUARD for name in "ab"}
    result, after = migrate(tree)
    assert {d.outcome for d in result.decisions} == {Outcome.REWRITTEN}
    found = sorted(p for p in after if "fsdp2_support" in p)
    assert found == ["examples/a/fsdp2_support.py", "examples/b/fsdp2_support.py"]


@pytest.mark.parametrize(
    ("name", "spelled"),
    [("nb/use.ipynb", "fsdp2_support"), ("pkg/use.ipynb", "pkg.fsdp2_support")],
)
def test_a_notebook_has_what_lies_beside_it(name: str, spelled: str) -> None:
    tree = {"pkg/__init__.py": "", "pkg/a.py": USER.replace("whole", "other")}
    tree["pkg/main.py"] = "from pkg.a import other\n"
    cell = f"from pkg.a import other\n{USER}"
    lines = cell.splitlines(keepends=True)
    cells = [
        {"cell_type": "code", "execution_count": None, "metadata": {}, "outputs": [], "source": s}
        for s in [lines]
    ]
    book = {"cells": cells, "metadata": {}, "nbformat": 4, "nbformat_minor": 4}
    tree[name] = json.dumps(book)
    result, after = migrate(tree)
    assert Outcome.LEFT not in {d.outcome for d in result.decisions}
    written = "".join(json.loads(after[name])["cells"][0]["source"])
    assert source_of(written) == [spelled]
    assert f"{Path(name).parent}/fsdp2_support.py" in after


def test_a_notebook_without_imports_in_a_package_shares_its_file() -> None:
    tree = {"pkg/__init__.py": "", "pkg/a.py": USER, "pkg/main.py": "from pkg.a import whole\n"}
    tree["pkg/a.py"] += (
        "\n\ndef state(model, opt):\n    return FSDP.optim_state_dict(FSDP(model), opt)\n"
    )
    cell = {"cell_type": "code", "execution_count": None, "metadata": {}, "outputs": []}
    book = {"cells": [cell | {"source": [USER]}], "metadata": {}, "nbformat": 4}
    tree["pkg/use.ipynb"] = json.dumps(book | {"nbformat_minor": 4})
    _, after = migrate(tree)
    support = after["pkg/fsdp2_support.py"]
    assert "def full_params" in support
    assert "def whole_on_cpu" in support


def write(tree: Mapping[str, str], directory: Path) -> None:
    for name, text in tree.items():
        (directory / name).parent.mkdir(parents=True, exist_ok=True)
        (directory / name).write_text(text)
