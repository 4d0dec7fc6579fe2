"""Which code only torch releases below the target run."""

from __future__ import annotations

import ast

import pytest
from packaging.version import Version

from fsdp_migrate.analysis import dead_branches
from fsdp_migrate.analysis.module import Library
from fsdp_migrate.analysis.project import Project
from fsdp_migrate.syntax.source import Source
from tests.helpers.migrating import ROOT

HEAD = """\
import importlib.metadata
import operator
import sys

import packaging.version
import pkg_resources
import torch
import transformers
from distutils.version import LooseVersion
from importlib.metadata import version as installed
from lightning.fabric.utilities.imports import _TORCH_GREATER_EQUAL_2_1
from lightning_utilities.core.imports import RequirementCache, compare_version
from mmengine.utils import digit_version
from packaging import version
from packaging.version import Version, parse
from torch.torch_version import TorchVersion
from transformers.pytorch_utils import is_torch_greater_or_equal_than_1_13
from accelerate.utils import is_torch_version

BOUND = "2.0.1"
TORCH_VERSION = torch.__version__
PARSED = version.parse(TORCH_VERSION)
OLD = PARSED < version.parse(BOUND)
NEW = not OLD
MAJOR, MINOR = map(int, torch.__version__.split("+")[0].split(".")[:2])
SPLIT = tuple(int(x) for x in torch.__version__.split(".")[:2])
TWICE = torch.__version__
TWICE = "1.0"
try:
    AGREED = Version(importlib.metadata.version("torch"))
except Exception:
    AGREED = Version(torch.__version__)
try:
    DOUBTED = Version(torch.__version__) >= Version("2.0")
except Exception:
    DOUBTED = False


def is_old():
    return version.parse(torch.__version__) < version.parse("2.0")


CHANGED = torch.__version__ < "2.0"


def change():
    global CHANGED
    CHANGED = True


def at_least(wanted):
    return PARSED >= Version(wanted)


def torch_version():
    try:
        found = Version(torch.__version__)
    except TypeError as error:
        raise TypeError from error
    return found


def perhaps():
    if sys.argv:
        return True
    return PARSED < Version("2.0")


def shadowing(version):
    return version.parse(torch.__version__) < version.parse("2.0")


def parse_version(text):
    return text[::-1]
"""

NEVER = [  # below 2.7
    'torch.__version__ < "2.0"',
    'torch.__version__ <= "2.6"',
    'torch.__version__ == "1.13.1"',
    "torch.__version__ < (2, 1)",
    '"2.1" > torch.__version__',
    'torch.__version__ in ("1.13.0", "1.13.1")',
    'torch.__version__.startswith("1.")',
    'torch.__version__.startswith("2.0.")',
    'torch.version.__version__ < "1.9"',
    'str(torch.__version__) < "1.13"',
    'torch.__version__.split("+")[0] < "1.13"',
    'version.parse(torch.__version__) < version.parse("2.0.1")',
    'version.parse(torch.__version__) < version.parse("2.1.0.dev20230601")',
    'version.parse(torch.__version__) <= version.parse("2.6.9")',
    'version.parse(torch.__version__.split("+")[0]) < version.parse(BOUND)',
    'version.parse(version.parse(torch.__version__).base_version) < version.parse("2.1")',
    'packaging.version.parse(torch.__version__) < packaging.version.parse("2.1")',
    'Version(torch.__version__) < Version("2.6.5")',
    "Version(torch.__version__).release < (2, 1)",
    "Version(torch.__version__).release[:2] <= (2, 1)",
    "Version(torch.__version__).major < 2",
    'TorchVersion(torch.__version__) < "2.0"',
    "TorchVersion(torch.__version__) < (2, 0)",
    'LooseVersion(torch.__version__) < LooseVersion("1.13")',
    'pkg_resources.parse_version(torch.__version__) < pkg_resources.parse_version("2.0")',
    'digit_version(TORCH_VERSION) < digit_version("2.0.0")',
    'digit_version("1.5") <= digit_version(TORCH_VERSION) < digit_version("1.10")',
    'Version("1.5") <= PARSED <= Version("1.13")',
    'Version(installed("torch")) < Version("2.0")',
    'parse(importlib.metadata.version("torch")) < parse("2.0")',
    'Version(pkg_resources.get_distribution("torch").version) < Version("2.0")',
    "AGREED < Version('2.0')",
    "OLD",
    "not NEW",
    "OLD and sys.argv",
    "sys.argv and OLD",
    "OLD or is_old()",
    "is_old()",
    "not at_least('2.1')",
    "not at_least(wanted='2.1')",
    "torch_version() < Version('2.0')",
    "MAJOR < 2",
    "MAJOR == 1 and MINOR < 13",
    "(MAJOR, MINOR) < (1, 13)",
    "(MAJOR, MINOR) < (2, 1)",
    "SPLIT < (2, 1)",
    "SPLIT[0] == 1",
    "tuple(map(int, torch.__version__.split('.')[:2])) < (2, 6)",
    "[int(x) for x in torch.__version__.split('.')[:2]] < [2, 1]",
    "int(torch.__version__.split('.')[0]) < 2",
    "torch.__version__.split('.')[:2] < ['1', '9']",
    "is_torch_version('<', '2.1.0')",
    "not is_torch_version('>=', '2.1.0')",
    "not _TORCH_GREATER_EQUAL_2_1",
    "not is_torch_greater_or_equal_than_1_13",
    "not transformers.utils.is_torch_greater_or_equal('2.1')",
    "compare_version('torch', operator.lt, '2.1')",
    "not RequirementCache('torch>=2.1')",
    "(MAJOR, MINOR) < (2, 7)",  # numbers tell nothing of development versions
    "compare_version('torch', operator.lt, '2.1', use_base_version=True)",
    "Version(torch.__version__) < Version('1.13' if OLD else '2.1')",
]
PERHAPS = [
    'torch.__version__ < "2.7"',  # a development version of 2.7 is less
    'torch.__version__ <= "2.7"',
    'torch.__version__ < "2.7.0"',
    'torch.__version__ == "2.7"',
    'torch.__version__ < "2.7.0a0"',
    'torch.__version__ < "2.7.dev0"',
    'torch.__version__ < "2.8"',
    'torch.__version__ < "2.10"',
    'torch.__version__ != "2.7.1"',
    "torch.__version__ < wanted",
    "torch.__version__ < sys.argv[1]",
    'torch.__version__ < "unknown"',
    'torch.__version__ is "2.0"',
    'str(torch.__version__) < "2.0"',  # as "10.0" is, as a text
    'torch.__version__.split("+")[0] < "2.6"',  # as "2.10" is
    'torch.__version__.split(".")[:2] < ["2", "6"]',
    'torch.__version__[:3] < "2.0"',
    "float(torch.__version__[:3]) < 2.0",  # 2.10 is 2.1
    'torch.__version__.startswith("2.1")',  # as 2.10 does
    'torch.__version__.startswith("2.")',
    'torch.__version__.endswith("1.")',
    'torch.version.cuda < "11.0"',
    'torch.cuda.__version__ < "1.0"',
    'transformers.__version__ < "1.0"',
    'Version(transformers.__version__) < Version("2.0")',
    'version.parse(sys.version) < version.parse("3.0")',
    "sys.version_info < (2, 0)",
    'Version(installed("transformers")) < Version("2.0")',
    "Version(torch.__version__) < Version(transformers.__version__)",
    "Version(torch.__version__).minor < 1",
    "(MAJOR, MINOR) <= (2, 7)",
    "(MAJOR, MINOR) < (2, 7, 1)",
    "MINOR < 1",
    "SPLIT[1] < 1",
    "SPLIT[:1] < (2, 1)",  # (2,) is, for every 2.x
    "MAJOR < 2.0",
    "int(torch.__version__.split('.')[1]) < 1",
    "(MINOR, MAJOR) < (1, 1)",
    'TWICE < "2.0"',
    "DOUBTED",
    "not DOUBTED",
    "perhaps()",
    "CHANGED",
    "shadowing(version)",
    "sys.argv or OLD",
    "NEW and sys.argv",
    "undefined",
    "undefined.parse(torch.__version__) < undefined.parse('1.0')",
    "parse_version(torch.__version__) < parse_version('1.0')",
    "is_torch_version(sys.argv[1], '2.1.0')",
    "is_torch_version('<', '2.9')",
    "compare_version('torchvision', operator.lt, '0.5')",
    "RequirementCache('torch>=2.1,<2.9')",
    "not RequirementCache('torchvision>=0.2')",
    "at_least(*sys.argv)",
    "hasattr(torch, 'compile')",
    "torch.__version__",
    "False",
]


def project(files: dict[str, str], library: dict[str, str] | None = None) -> Project:
    sources = [Source.parse(t.encode(), path=ROOT / n) for n, t in files.items()]
    rest = {ROOT / n: t.encode() for n, t in (library or {}).items()}
    read = Library(frozenset(rest), lambda p: Source.parse(rest[p], path=p), lambda p: rest[p])
    return Project(sources, read)


def outdated(
    files: dict[str, str], library: dict[str, str] | None = None, target: str = "2.7"
) -> set[str]:
    """The strings that begin with "old", in code that no torch from the target on runs."""
    found = dead_branches.find_dead_code(project(files, library), Version(target))
    return {
        n.value
        for n in found
        if isinstance(n, ast.Constant) and isinstance(n.value, str) and n.value.startswith("old")
    }


def branches(test: str, target: str = "2.7") -> set[str]:
    text = f'{HEAD}\n\nif {test}:\n    print("old yes")\nelse:\n    print("old no")\n'
    return outdated({"example.py": text}, target=target)


@pytest.mark.parametrize("test", NEVER)
def test_a_test_that_no_later_release_passes(test: str) -> None:
    assert branches(test) == {"old yes"}
    assert branches(f"not ({test})") == {"old no"}


@pytest.mark.parametrize("test", PERHAPS)
def test_a_test_that_some_release_may_pass(test: str) -> None:
    assert branches(test) == set()


IMPORTS = "import torch\nNEW = torch.__version__ >= '2.1'\nOLD = not NEW\n"

PARTS = {
    "the rest of a function": (
        "def f():\n    if NEW:\n        return 'a'\n    print('old')\n    return 'old too'\n",
        {"old", "old too"},
    ),
    "the rest of a loop": (
        "for i in 'ab':\n    if NEW:\n        print(i)\n        continue\n    print('old')\n"
        "print('b')\n",
        {"old"},
    ),
    "the rest behind an else": (
        "def f():\n    if OLD:\n        print('old')\n    else:\n        return\n"
        "    print('old too')\n",
        {"old", "old too"},
    ),
    "what a release that is too old meets": (
        "def f():\n    if OLD:\n        raise RuntimeError('old')\n    return 'older'\n",
        {"old"},
    ),
    "not what is reached some other way": (
        "def f(x):\n    if x and NEW:\n        return\n    print('older')\n",
        set(),
    ),
    "not what follows a return in one of two ways": (
        "def f(x):\n    if NEW:\n        if x:\n            return\n    print('older')\n",
        set(),
    ),
    "not what follows the block": (
        "def f():\n    try:\n        if NEW:\n            return\n        print('old')\n"
        "    finally:\n        print('older')\n    print('older')\n",
        {"old"},
    ),
    "a conditional expression": ("print('old' if OLD else 'older')\n", {"old"}),
    "a condition that is not asked": ("OLD and print('old')\nNEW or print('old')\n", {"old"}),
    "parts of a chain": (
        "import sys\nif OLD:\n    print('old')\nelif sys.argv:\n    print('older')\n"
        "elif torch.__version__ < '1.13':\n    print('old too')\nelse:\n    print('older')\n",
        {"old", "old too"},
    ),
    "all behind what always holds": (
        "import sys\nif NEW:\n    print('a')\nelif sys.argv:\n    print('old')\nelse:\n"
        "    print('old too')\n",
        {"old", "old too"},
    ),
    "part of a class": (
        "class A:\n    if OLD:\n        def f(self):\n            return 'old'\n",
        {"old"},
    ),
}


@pytest.mark.parametrize(("text", "expected"), PARTS.values(), ids=PARTS)
def test_what_a_test_keeps_from_running(text: str, expected: set[str]) -> None:
    found = outdated({"example.py": IMPORTS + text})
    assert {s for s in found if s != "older"} == expected
    assert "older" not in found


HELPER = "def helper():\n    return 'old'\n"
USE = "def f():\n    if OLD:\n        helper()\n"
USES = {
    "only older code": (f"{HELPER}{USE}", True),
    "and by what that uses": (
        f"{HELPER}def other():\n    return helper()\n{USE.replace('helper', 'other')}",
        True,
    ),
    "and by itself": (f"def helper():\n    helper()\n    return 'old'\n{USE}", True),
    "in a class": (f"class helper:\n    a = 'old'\n{USE}", True),
    "without gradients": (f"@torch.no_grad()\n{HELPER}{USE}", True),
    "nothing": (HELPER, False),
    "other code as well": (f"{HELPER}{USE}helper()\n", False),
    "code that hands it on": (f"{HELPER}{USE}use = helper\n", False),
    "an attribute": (f"{HELPER}{USE}torch.helper()\n", False),
    "a list of names": (f"{HELPER}{USE}__all__ = ['helper']\n", False),
    "a command": (f"{HELPER}{USE}print('run = example:helper')\n", False),
    "a dotted name": (f"{HELPER}{USE}print('example.helper')\n", False),
    "a decorator": (f"@torch.library.impl\n{HELPER}{USE}", False),
    "a metaclass": (f"class helper(metaclass=type):\n    a = 'old'\n{USE}", False),
    "a method": (f"class A:\n    def helper(self):\n        return 'old'\n{USE}", False),
}


@pytest.mark.parametrize(("text", "expected"), USES.values(), ids=USES)
def test_what_is_used_by(text: str, expected: bool) -> None:
    assert outdated({"example.py": IMPORTS + text}) == ({"old"} if expected else set())


def test_another_of_its_name_is_used() -> None:
    files = {
        "helpers.py": HELPER,
        "others.py": "def helper():\n    return 'another'\n",
        "example.py": f"{IMPORTS}from others import helper\n{USE}",
    }
    assert outdated(files) == set()
    through = {"through.py": "from helpers import helper as helper\nprint(helper)\n"}
    files["example.py"] = f"{IMPORTS}from through import helper\n{USE}"
    assert outdated({**files, **through}) == set()
    through = {"through.py": "from helpers import *\n"}
    assert outdated({**files, **through}) == {"old"}


def test_what_other_files_use() -> None:
    files = {
        "helpers.py": HELPER,
        "example.py": f"{IMPORTS}from helpers import helper\n{USE}",
    }
    assert outdated(files) == {"old"}
    assert outdated({**files, "third.py": "import helpers\nhelpers.helper()\n"}) == set()
    assert outdated({**files, "third.py": "from helpers import helper\n"}) == set()
    assert outdated({**files, "__init__.py": "from .helpers import helper\n"}) == set()
    assert outdated(files, {"third.py": "from helpers import helper\nhelper()\n"}) == set()
    assert outdated(files, {"third.py": "print('a helper here')  # helper\n"}) == {"old"}


ACCELERATE = """\
import importlib.metadata
from packaging.version import parse

torch_version = parse(importlib.metadata.version("torch"))


def compare_versions(library, operation, requirement):
    return OPERATIONS[operation](library, parse(requirement))


def is_torch_version(operation, version):
    return compare_versions(torch_version, operation, version)
"""
MMENGINE = """\
from packaging.version import parse


def digit_version(version_str, length=4):
    version = parse(version_str)
    release = list(version.release)
    return tuple(release)
"""


def test_functions_of_the_project_that_compare_versions() -> None:
    test = "if is_torch_version('<', '2.1.0'):\n    print('old')\n"
    used = f"from .versions import is_torch_version\n{test}"
    package = {"a/__init__.py": "", "a/used.py": used}
    assert outdated(package, {"a/versions.py": ACCELERATE}) == {"old"}
    other = ACCELERATE.replace('"torch"', '"tensorflow"')
    assert outdated(package, {"a/versions.py": other}) == set()
    used = (
        "import torch\nfrom a.version_utils import digit_version\n"
        "if digit_version(torch.__version__) < digit_version('2.0.1'):\n    print('old')\n"
    )
    package = {"a/__init__.py": "", "a/used.py": used}
    assert outdated(package, {"a/version_utils.py": MMENGINE}) == {"old"}


def test_what_other_files_set_says_nothing() -> None:
    files = {
        "settings.py": f"{IMPORTS}OLD_TORCH = OLD\n\n\ndef is_old():\n    return OLD\n",
        "used.py": "import settings\nif settings.OLD_TORCH:\n    print('old')\n"
        "if settings.is_old():\n    print('old too')\n",
    }
    both = {"old", "old too"}
    assert outdated(files) == both
    assert outdated({**files, "third.py": "import settings\nsettings.is_old = bool\n"}) == {"old"}
    setting = "import settings\nsettings.OLD_TORCH = True\n"
    assert outdated({**files, "third.py": setting}) == {"old too"}
    assert outdated(files, {"third.py": setting}) == {"old too"}
    by_name = "import settings\nsetattr(settings, 'OLD_TORCH', 1)\n"
    assert outdated(files, {"third.py": by_name}) == {"old too"}
    asked = "import settings\nprint(settings.OLD_TORCH == 1)\n"
    assert outdated(files, {"third.py": asked}) == both


def test_the_target_decides() -> None:
    assert branches('torch.__version__ < "2.8"', "2.9") == {"old yes"}
    assert branches('torch.__version__ < "2.6"', "2.6") == set()
    assert branches('torch.__version__ < "2.6"', "2.6.1") == {"old yes"}
