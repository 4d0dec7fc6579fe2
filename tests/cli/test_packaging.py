"""Which projects others may install."""

from __future__ import annotations

from pathlib import Path

import pytest

from fsdp_migrate.cli.config import load


@pytest.mark.parametrize(
    ("files", "published"),
    [
        ({"README.md": ""}, False),
        ({"requirements.txt": "torch", "src/model.py": ""}, False),
        ({"README.md": "", "pyproject.toml": "[tool.ruff]\nline-length = 90\n"}, False),
        ({"README.md": "", "pyproject.toml": "[project]\nname = 'kit'\n"}, True),
        ({"README.md": "", "pyproject.toml": "[tool.poetry]\nname = 'kit'\n"}, True),
        ({"README.md": "", "setup.py": ""}, True),
        ({"README.md": "", "packages/kit/setup.cfg": ""}, True),
        ({"README.md": "", "kit/pyproject.toml": "[project]\nname = 'kit'\n"}, True),
        ({"README.md": "", "kit-1.0.dist-info/METADATA": ""}, True),
        ({"src/model.py": ""}, True),  # a part of something, for all that can be seen
    ],
)
def test_what_makes_a_package(files: dict[str, str], published: bool, tmp_path: Path) -> None:
    for name, text in files.items():
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    assert load(tmp_path).is_published() is published
