"""What is published: contents, what a distribution says of itself, and no address that is none."""

from __future__ import annotations

import re
import subprocess
import sys
import tarfile
import zipfile
from email import message_from_bytes
from email.message import Message
from pathlib import Path

import pytest
import yaml

import fsdp_migrate
import hatch_build
from fsdp_migrate.planning import pages
from tests.helpers.commandline import ROOT

HERE = "https://code.example/us/fsdp-migrate"
RELATIVE = re.compile(r"\]\((?!https?://|#)")
SENT = {"README.md", "LICENSE", "CHANGELOG.md", "Makefile", "hatch_build.py", "action.yml"}


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("built")
    command = [sys.executable, "-m", "hatchling", "build", "-d", str(folder)]
    subprocess.run(command, cwd=ROOT, check=True, capture_output=True)
    return folder


@pytest.fixture(scope="module")
def wheel(built: Path) -> zipfile.ZipFile:
    (path,) = built.glob("*.whl")
    return zipfile.ZipFile(path)


@pytest.fixture(scope="module")
def sent(built: Path) -> set[str]:
    """The names in the source distribution."""
    (path,) = built.glob("*.tar.gz")
    with tarfile.open(path) as archive:
        return {name.partition("/")[2] for name in archive.getnames()}


@pytest.fixture(scope="module")
def metadata(wheel: zipfile.ZipFile) -> Message:
    (name,) = [name for name in wheel.namelist() if name.endswith(".dist-info/METADATA")]
    return message_from_bytes(wheel.read(name))


def test_a_wheel_has_the_package_and_its_rules_alone(wheel: zipfile.ZipFile) -> None:
    names = set(wheel.namelist())
    assert {name.partition("/")[0].partition("-")[0] for name in names} == {"fsdp_migrate"}
    for folder, inside in (("rules", "fsdp_migrate/_rules"), ("fsdp_migrate", "fsdp_migrate")):
        for path in (ROOT / folder).rglob("*"):
            if path.suffix in {".py", ".md", ".css", ".html", ".js", ".json", ".typed"}:
                assert f"{inside}/{path.relative_to(ROOT / folder).as_posix()}" in names


def test_sources_have_what_their_tests_need(sent: set[str]) -> None:
    assert sent >= SENT
    assert {name.partition("/")[0] for name in sent} >= {"tests", "fixtures", "docs", "rules"}
    assert not [name for name in sent if "__pycache__" in name or name.startswith(".venv")]


def test_metadata_is_complete(metadata: Message) -> None:
    assert metadata["Name"] == "fsdp-migrate"
    assert metadata["Version"] == fsdp_migrate.__version__
    assert metadata["License-Expression"] == "MIT"
    assert metadata["Description-Content-Type"] == "text/markdown"
    assert metadata.get_all("Provides-Extra") == ["dev", "docs", "verify"]
    needs = metadata.get_all("Requires-Dist") or []
    assert not [need for need in needs if "torch" in need and "extra ==" not in need]


def test_there_is_no_address_before_there_is_one(metadata: Message) -> None:
    assert fsdp_migrate.HOME == ""
    assert metadata.get_all("Project-URL") is None
    text = str(metadata.get_payload())
    assert text.startswith("# fsdp-migrate")
    assert not RELATIVE.findall(text)
    assert pages.url("FSDP101") == ""


def test_a_release_fills_in_the_one_place(monkeypatch: pytest.MonkeyPatch) -> None:
    workflow = yaml.safe_load((ROOT / ".github/workflows/release.yml").read_text())
    steps = [step.get("run", "") for step in workflow["jobs"]["build"]["steps"]]
    (fill,) = [step for step in steps if "^HOME" in step and "sed" in step]
    written = re.search(r"(?m)^HOME = .*$", (ROOT / "fsdp_migrate/__init__.py").read_text())
    assert written is not None
    assert "fsdp_migrate/__init__.py" in fill
    monkeypatch.setattr(pages, "HOME", HERE)
    address = pages.url("FSDP101")
    assert address.startswith(f"{HERE}/blob/v{fsdp_migrate.__version__}/rules/wrapping/FSDP101")
    assert (ROOT / "rules" / address.partition("/rules/")[2]).is_file()
    assert all(each.startswith(HERE) for each in hatch_build.urls(HERE, "1.0").values())


def test_links_lead_somewhere_outside_of_the_repository() -> None:
    text = (ROOT / "README.md").read_text()
    told = hatch_build.readme(text, HERE, "1.0")
    assert not RELATIVE.findall(told)
    ours = re.findall(rf"\]\({re.escape(HERE)}/blob/v1\.0/([^)#]+)", told)
    assert len(ours) == len(RELATIVE.findall(text))
    assert all((ROOT / path).exists() for path in ours)
    plain = hatch_build.readme("[a.md](a.md), [how](b.md#c), [x](https://x)", "", "1.0")
    assert plain == "a.md, how (b.md#c), [x](https://x)"


def test_nobody_meets_a_placeholder(wheel: zipfile.ZipFile) -> None:
    placeholder = re.compile(rb"\bOWNER\b|github\.com/(owner|user|your-)", re.IGNORECASE)
    shown = [ROOT / name for name in ("README.md", "action.yml", "CHANGELOG.md", "SECURITY.md")]
    shown += [*(ROOT / "docs").rglob("*.md"), ROOT / ".pre-commit-hooks.yaml"]
    wrong = {path.name for path in shown if re.search(rb"\bOWNER\b", path.read_bytes())}
    told = [name for name in wheel.namelist() if name.endswith((".md", "METADATA", "__init__.py"))]
    wrong |= {name for name in told if placeholder.search(wheel.read(name))}
    assert not wrong


def test_nothing_is_published_with_a_token() -> None:
    workflow = yaml.safe_load((ROOT / ".github/workflows/release.yml").read_text())
    jobs = workflow["jobs"]
    assert "secrets." not in (ROOT / ".github/workflows/release.yml").read_text()
    assert jobs["publish"]["permissions"] == {"id-token": "write"}
    assert workflow["permissions"] == {"contents": "read"}
    assert jobs["publish"]["needs"] == "test"
    assert jobs["test"]["needs"] == "build"
    assert jobs["test"]["strategy"]["matrix"]["python"] == ["3.11", "3.12", "3.13", "3.14"]
