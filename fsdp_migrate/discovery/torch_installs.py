"""Which torch a project's scripts, images and documents install, beside its requirements.

``pip install torch==2.5.0`` in a shell script or a README, ``FROM pytorch/pytorch:2.1.0-cuda12.1``,
``pytorch=2.2`` in an environment of conda, the address of a wheel, and what a program starts others
with (:mod:`torch_in_python`) say which torch the program runs on as a requirement does, but nobody
knows which of them count. They are never edited.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from packaging.version import Version

from fsdp_migrate.discovery import project_paths, torch_in_python
from fsdp_migrate.syntax import notebook

FOLDERS = (
    *("scripts", "script", "docker", ".devcontainer", ".github/workflows", "requirements"),
    *("notebooks", "sagemaker", "deploy", "k8s"),
)
"""Where such files lie below the directories that are looked into."""
FILES = re.compile(
    r".*\.(?:sh|bash|slurm|sbatch|dockerfile|def|bat|ps1)|(?:Docker|Container|Make)file.*"
    r"|(?:README|INSTALL|SETUP)\w*(?:\.(?:md|rst|txt))?|(?:conda|env|cog)[\w.-]*\.ya?ml"
    r"|[\w.-]*environment[\w.-]*\.ya?ml|requirements.*\.(?:txt|in)|.*\.ipynb",
    re.IGNORECASE,
)
WORKFLOWS = ".github/workflows"
SETTINGS = (".yml", ".yaml")  # of which others than these name images
LONGEST = 1_000_000  # bytes of a file that is read
_IN_CELL = re.compile(r"\s*\"[ \t]*[!%].*\binstall\b")  # a command that a notebook's cell starts
_INSTALLED = re.compile(
    r"(?<![\w.-])(?:(?:py)?torch|torchaudio)(?P<operator>={1,3}|<=?|~=|-(?=\d[\w.%+-]*\.whl))"
    r"(?P<version>\d+\.\d+(?:\.\d+)?)"
    r"|(?<![\w.-])(?P<companion>torchvision|triton)==(?P<its>\d+\.\d+)(?:\.\d+)?(?!\.?\w)"
    rf"|{torch_in_python.IMAGES}",
    re.IGNORECASE,
)
_NAMES_AN_IMAGE = re.compile(
    r"[\s\"'-]*[\w-]*(?:image|docker)[\w-]*[\"']?[ \t]*[:=]", re.IGNORECASE
)
_VARIABLE = re.compile(  # of an image, or of what builds one
    r"\s*(?:ARG|ENV|export|local)?[ \t]*(?P<name>(?:PY)?TORCH_VERSION)[= ][\"']?"
    r"v?(?P<version>\d+\.\d+(?:\.\d+)?)(?![\w.])"
)


@dataclass(frozen=True)
class Installed:
    """``text`` in a line of a file, which installs a release of torch, or one before it."""

    path: Path
    line: int
    text: str
    release: Version
    excludes: bool  # only releases before it are meant
    is_companion: bool = False  # another package is installed, which goes with that torch alone

    def is_before(self, target: Version) -> bool:
        """Whether it installs no torch from ``target`` on."""
        return self.release <= target if self.excludes else self.release < target


def find(directory: Path) -> Iterator[Installed]:
    """What the files of a directory, and of the usual folders in it, install: each text once a
    file, where it comes first. Files that cannot be read install nothing."""
    for folder in (directory, *(directory / name for name in FOLDERS)):
        try:
            listed = sorted(folder.iterdir())
        except OSError:
            continue
        workflows = folder == directory / WORKFLOWS
        for path in listed:
            is_workflow = workflows and path.suffix in SETTINGS
            if is_workflow or FILES.fullmatch(path.name):
                yield from _in_file(path, directory)
            elif path.suffix in SETTINGS:
                yield from _in_file(path, directory, only_images=True)
            if path.suffix in {".py", notebook.SUFFIX}:
                yield from _in_python(path, directory)


def _read(path: Path, directory: Path) -> bytes:
    try:
        if path.stat().st_size > LONGEST:
            return b""
        return project_paths.read_regular_file(path, (directory,))
    except OSError:
        return b""


def _in_python(path: Path, directory: Path) -> Iterator[Installed]:
    said: set[str] = set()
    for line, text, operator, release in torch_in_python.find(path, _read(path, directory)):
        if text not in said:
            said.add(text)
            yield Installed(path, line, text, Version(release), operator == "<")


def _in_file(path: Path, directory: Path, *, only_images: bool = False) -> Iterator[Installed]:
    data = _read(path, directory)
    if not any(word in data.lower() for word in (b"torch", b"triton")):
        return
    is_list = path.name.lower().startswith("requirements")
    said: set[str] = set()
    for number, line in enumerate(data.decode("latin-1").splitlines(), 1):
        if line.lstrip().startswith(("#", "//", "<!--")):
            continue
        if path.suffix == ".ipynb" and not _IN_CELL.match(line):
            continue
        if only_images and not _NAMES_AN_IMAGE.match(line):
            continue
        if not only_images and (variable := _VARIABLE.match(line)) is not None:
            text = f"{variable['name']}={variable['version']}"
            if text not in said:
                said.add(text)
                yield Installed(path, number, text, Version(variable["version"]), excludes=False)
        matches = list(_INSTALLED.finditer(line))
        torch_itself = any(not found["companion"] for found in matches)
        for found in matches:
            text = found[0].removesuffix("-")
            name = found["companion"]
            is_torch = name is None and "audio" not in text.lower()
            is_requirement = is_list and is_torch and found["operator"] != "-"  # read elsewhere
            if name:
                release = _goes_with(name, found["its"])
            else:
                release = found["version"] or torch_in_python.release_of(found)
            if is_requirement or text in said or not release or (name and torch_itself):
                continue
            said.add(text)
            excludes = found["operator"] == "<"
            yield Installed(path, number, text, Version(release), excludes, bool(name))


def _goes_with(companion: str, release: str) -> str:
    """The torch that a release of another package requires, and no other; empty where none is."""
    major, minor = map(int, release.split("."))
    match companion.lower(), major:
        case "torchvision", 0:
            return f"2.{minor - 15}" if minor >= 15 else f"1.{minor - 1}"
        case "triton", 2:
            return f"2.{minor}"
        case "triton", 3:
            return f"2.{minor + 4}"
    return ""
