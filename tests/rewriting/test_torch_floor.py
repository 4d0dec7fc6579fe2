"""A requirement's lower bound is raised, and nothing else of it changes."""

from __future__ import annotations

import pytest
from packaging.version import Version

from fsdp_migrate.rewriting.torch_floor import Refused, raised

WHEELS = "https://example.org/whl/cu128"
TARGET = Version("2.7")


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("torch>=2.0", "torch>=2.7"),
        ("torch>=2.0.1", "torch>=2.7.0"),
        ("torch >= 2.0", "torch >= 2.7"),
        ("torch>2.1", "torch>=2.7"),
        ("torch>=1.13,<3", "torch>=2.7,<3"),
        ("torch<3,>=2", "torch<3,>=2.7"),
        ("torch>=2.0,!=2.3.1", "torch>=2.7,!=2.3.1"),
        ("torch~=2.1", "torch~=2.7"),
        ("torch>=2.0,<2.7.1", "torch>=2.7,<2.7.1"),
        ("torch>=2.0,<=2.9", "torch>=2.7,<=2.9"),
        ("torch>=2.0; sys_platform == 'linux'", "torch>=2.7; sys_platform == 'linux'"),
        ("torch[opt-einsum]>=2.0", "torch[opt-einsum]>=2.7"),
        ("torch (>=2.0)", "torch (>=2.7)"),
        ("torch", "torch>=2.7"),
        ("torch ; python_version < '3.13'", "torch>=2.7 ; python_version < '3.13'"),
        ("torch<3", "torch>=2.7,<3"),
        ("torch!=2.0.1", "torch>=2.7,!=2.0.1"),
        ("Torch>=2.0", "Torch>=2.7"),
    ],
)
def test_a_low_bound_is_raised(before: str, after: str) -> None:
    assert raised(before, TARGET) == after
    assert raised(after, TARGET) == after


@pytest.mark.parametrize(
    "enough",
    [
        *("torch>=2.7", "torch>=2.7.1", "torch>=2.9,<3", "torch>2.7", "torch~=2.8", "torch==2.9.*"),
        *("torch==2.7.0", "torch~=2.7.1", "torch>=2.7.0.dev20250101", "torch==2.8.0+cu128"),
        *("torch>=2.0,==2.8.1", "torch>=3"),
        f"torch @ {WHEELS}/torch-2.11.0%2Bcu128-cp312-cp312-manylinux_2_28_x86_64.whl",
        f"torch @ {WHEELS}/torch-2.7.1+cpu-cp311-cp311-linux_x86_64.whl#sha256=ab ; os_name != 'a'",
    ],
)
def test_enough_stays(enough: str) -> None:
    assert raised(enough, TARGET) == enough


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("torch==2.1.0", "pinned before torch 2.7"),
        ("torch==2.1.0+cu118", "pinned before torch 2.7"),
        ("torch===2.1.0", "pinned before torch 2.7"),
        ("torch==2.*,==2.1", "pinned before torch 2.7"),
        ("torch~=2.1.0", "pinned before torch 2.7"),
        ("torch<2.4", "excludes torch 2.7"),
        ("torch>=2.0,<2.4", "excludes torch 2.7"),
        ("torch<=2.6.1", "excludes torch 2.7"),
        ("torch<2.7", "excludes torch 2.7"),
        ("torch~=1.13", "excludes torch 2.7"),
        ("torch>=2.0,!=2.7.*", "excludes torch 2.7"),
        ("torch @ https://example.org/torch.whl", "names an address"),
        (f"torch @ {WHEELS}/other-2.8.0-py3-none-any.whl", "names an address"),
        (
            f"torch @ {WHEELS}/torch-2.1.0%2Bcu118-cp310-cp310-linux_x86_64.whl",
            "pinned before torch 2.7",
        ),
        ("torch>=", "no requirement"),
    ],
)
def test_what_excludes_the_target_is_refused(text: str, reason: str) -> None:
    found = raised(text, TARGET)
    assert isinstance(found, Refused)
    assert reason in found.reason


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("^2.0", "^2.7"),
        ("^2.0.1", "^2.7.0"),
        (">=2.0,<3.0", ">=2.7,<3.0"),
        (">=2.0", ">=2.7"),
        ("*", ">=2.7"),
        ("^2.8", "^2.8"),
        ("2.8.0", "2.8.0"),
        ("^3", "^3"),
    ],
)
def test_constraints_of_poetry(before: str, after: str) -> None:
    assert raised(before, TARGET, poetry=True) == after


@pytest.mark.parametrize(
    "text", ["2.1.0", "^1.13", "~2.1", "2.*", "^1.13 || ^2.0", "==2.1.0", "<2.4", "latest"]
)
def test_constraints_of_poetry_that_stay(text: str) -> None:
    assert isinstance(raised(text, TARGET, poetry=True), Refused)
