"""Which torch a project's scripts, images and documents install, beside its requirements.

``pip install torch==2.5.0`` in a shell script or a README, ``FROM pytorch/pytorch:2.1.0-cuda12.1``,
``pytorch=2.2`` in an environment of conda, and the address of a wheel say which torch the program
runs on as a requirement does, but nobody knows which of them count. They are never edited.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from packaging.version import Version

from fsdp_migrate.discovery import project_paths

FOLDERS = ("scripts", "script", "docker", ".devcontainer", ".github/workflows", "requirements")
"""Where such files lie below the directories that are looked into."""
FILES = re.compile(
    r".*\.(?:sh|bash|slurm|sbatch|dockerfile|def|bat|ps1)|(?:Docker|Container|Make)file.*"
    r"|(?:README|INSTALL|SETUP)\w*(?:\.(?:md|rst|txt))?|(?:conda|env|cog)[\w.-]*\.ya?ml"
    r"|requirements.*\.(?:txt|in)",
    re.IGNORECASE,
)
WORKFLOWS = ".github/workflows"
LONGEST = 1_000_000  # bytes of a file that is read
_INSTALLED = re.compile(
    r"(?<![\w.-])(?:(?:py)?torch|torchaudio)(?P<operator>={1,3}|<=?|~=|-(?=\d[\w.%+-]*\.whl))"
    r"(?P<version>\d+\.\d+(?:\.\d+)?)"
    r"|pytorch/pytorch:(?P<image>\d+\.\d+(?:\.\d+)?)",
    re.IGNORECASE,
)


@dataclass(frozen=True)
class Installed:
    """``text`` in a line of a file, which installs a release of torch, or one before it."""

    path: Path
    line: int
    text: str
    release: Version
    excludes: bool  # only releases before it are meant

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
            is_workflow = workflows and path.suffix in {".yml", ".yaml"}
            if is_workflow or FILES.fullmatch(path.name):
                yield from _in_file(path, directory)


def _in_file(path: Path, directory: Path) -> Iterator[Installed]:
    try:
        if path.stat().st_size > LONGEST:
            return
        data = project_paths.read_regular_file(path, (directory,))
    except OSError:
        return
    if b"torch" not in data.lower():
        return
    is_list = path.name.lower().startswith("requirements")
    said: set[str] = set()
    for number, line in enumerate(data.decode("latin-1").splitlines(), 1):
        for found in _INSTALLED.finditer(line):
            text = found[0].removesuffix("-")
            is_requirement = is_list and found["operator"] != "-"  # read as such elsewhere
            if is_requirement or text in said or line.lstrip().startswith(("#", "//", "<!--")):
                continue
            said.add(text)
            release = Version(found["version"] or found["image"])
            yield Installed(path, number, text, release, excludes=found["operator"] == "<")
