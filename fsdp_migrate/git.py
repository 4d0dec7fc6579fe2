"""git is asked, and nothing that a repository configures is run by it.

A repository's configuration can name commands: hooks, a file system monitor, filters, a diff
program, transports for what a partial clone lacks. Each is switched off for our questions. What
the environment says about the repository (a hook sets ``GIT_DIR``) is about another one.
"""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

# What the user, and no repository, says in the environment.
_KEPT = ("GIT_CONFIG_GLOBAL", "GIT_CONFIG_SYSTEM", "GIT_CONFIG_NOSYSTEM", "GIT_EXEC_PATH")
_SETTINGS = {
    "GIT_ALLOW_PROTOCOL": "none",
    "GIT_NO_LAZY_FETCH": "1",
    "GIT_OPTIONAL_LOCKS": "0",
    "GIT_TERMINAL_PROMPT": "0",
}
_OPTIONS = (
    "--no-pager",
    "--work-tree=.",  # not where the repository's core.worktree leads
    "-c",
    "core.fsmonitor=false",
    "-c",
    f"core.hooksPath={os.devnull}",
)
_SECONDS = 60  # a pipe in the place of a file would be waited for
_REPOSITORYS = (b"local", b"worktree")


class GitError(Exception):
    """git is not there, or could not answer. The message is its first line."""


class NoGitError(GitError):
    """There is no program git."""


def is_repository(root: Path) -> bool:
    """Whether git could take the ``.git`` in a directory for a repository."""
    found = root / ".git"
    return found.is_file() or all((found / name).exists() for name in ("HEAD", "objects", "refs"))


def ask(root: Path, *arguments: str, given: bytes = b"") -> bytes:
    """What git answers in the work tree whose top is ``root``.

    Raises:
        GitError: it could not answer.
    """
    settings = _config(os.environ)
    listed = _run(root, ("config", "--show-scope", "-z", "--list"), settings, b"")
    return _run(root, arguments, settings | _without_filters(listed), given)


def _run(
    root: Path, arguments: tuple[str, ...], settings: Mapping[str, str], given: bytes
) -> bytes:
    environment = _environment(os.environ, settings, root)
    program = shutil.which("git", path=environment["PATH"])
    if program is None:
        raise NoGitError("there is no git")
    command = [program, *_OPTIONS, *arguments]
    try:
        answer = subprocess.run(
            command,
            cwd=root,
            env=environment,
            input=given,
            capture_output=True,
            check=False,
            timeout=_SECONDS,
        )
    except subprocess.TimeoutExpired as error:
        raise GitError(f"git gave no answer in {_SECONDS} seconds") from error
    except OSError as error:
        raise GitError(str(error)) from error
    if answer.returncode:
        said = answer.stderr.decode(errors="replace").strip().splitlines()
        raise GitError(said[0] if said else "git failed")
    return answer.stdout


def _environment(
    inherited: Mapping[str, str], settings: Mapping[str, str], root: Path
) -> dict[str, str]:
    kept = {n: v for n, v in inherited.items() if not n.startswith("GIT_") or n in _KEPT}
    listed = inherited.get("PATH", os.defpath).split(os.pathsep)
    kept["PATH"] = os.pathsep.join(entry for entry in listed if not _within(entry, root))
    numbered = {"GIT_CONFIG_COUNT": str(len(settings))}
    for number, (key, value) in enumerate(settings.items()):
        numbered |= {f"GIT_CONFIG_KEY_{number}": key, f"GIT_CONFIG_VALUE_{number}": value}
    # What is not a repository here is not asked about as a part of one above.
    return {**kept, **_SETTINGS, **numbered, "GIT_CEILING_DIRECTORIES": str(root.parent)}


def _within(entry: str, root: Path) -> bool:
    """Whether a directory of programs, or the git in it, is the repository's: an entry that is
    empty or relative leads there too."""
    if not os.path.isabs(entry):
        return True
    reals = (os.path.realpath(path) for path in (entry, os.path.join(entry, "git"), root))
    directory, program, top = map(Path, reals)
    return directory.is_relative_to(top) or program.is_relative_to(top)


def _config(inherited: Mapping[str, str]) -> dict[str, str]:
    """The settings that the user's environment holds, such as ``safe.directory``."""
    count = inherited.get("GIT_CONFIG_COUNT", "0")
    names = range(int(count) if count.isdecimal() else 0)
    pairs = [[inherited.get(f"GIT_CONFIG_{what}_{n}") for what in ("KEY", "VALUE")] for n in names]
    return {key: value for key, value in pairs if key is not None and value is not None}


def _without_filters(listed: bytes) -> dict[str, str]:
    """Settings that put the user's own filters, or none, in the place of the repository's.

    They go into the environment: on a command line, a name with ``=`` in it would be cut there.
    """
    users: dict[str, str] = {}
    repositorys: set[str] = set()
    fields = listed.split(b"\0")
    for scope, entry in zip(fields[::2], fields[1::2], strict=False):
        name, _, value = entry.partition(b"\n")
        key = os.fsdecode(name)
        if not key.startswith("filter."):
            continue
        if scope in _REPOSITORYS:
            repositorys.add(key)
        else:
            users[key] = os.fsdecode(value)
    required = {key.rpartition(".")[0] + ".required": "false" for key in repositorys}
    return {**required, **{key: users.get(key, "") for key in repositorys if _runs(key)}}


def _runs(key: str) -> bool:
    return key.endswith((".clean", ".smudge", ".process"))


@dataclass(frozen=True)
class Entry:
    """A file that git has. The contents of a link are where it leads."""

    path: str
    mode: str
    contents: bytes

    @property
    def is_link(self) -> bool:
        return self.mode == "120000"


def files(root: Path, revision: str, folder: str) -> list[Entry]:
    """The files below ``folder`` at a revision, as they were committed.

    Not ``git archive``: it runs filters, and the repository's attributes change what it gives.
    Submodules are left out.

    Raises:
        GitError: there is no such revision, or no such folder in it.
    """
    if revision.startswith("-"):
        raise GitError("a revision does not begin with a dash")
    wanted = f"{revision}:{'' if folder == '.' else folder}"
    tree = os.fsdecode(ask(root, "rev-parse", "--verify", wanted)).strip()
    listed = ask(root, "ls-tree", "-r", "-z", "--full-tree", tree).split(b"\0")[:-1]
    found = [(*info.split(), name) for info, _, name in (each.partition(b"\t") for each in listed)]
    blobs = [(mode, digest, name) for mode, kind, digest, name in found if kind == b"blob"]
    asked = b"".join(digest + b"\n" for _, digest, _ in blobs)
    answer = ask(root, "cat-file", "--batch", given=asked)
    entries: list[Entry] = []
    start = 0
    for mode, digest, name in blobs:
        end = answer.index(b"\n", start)
        told = answer[start:end].split()
        if told[:2] != [digest, b"blob"]:
            raise GitError(f"{os.fsdecode(name)} at {revision} is not in this repository")
        start = end + 1 + int(told[2])
        entries.append(Entry(os.fsdecode(name), mode.decode(), answer[end + 1 : start]))
        start += 1
    return entries
