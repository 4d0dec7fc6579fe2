"""Run commands over one input, and keep what they say and what they write.

A command is a line as one types it after ``fsdp-migrate``. ``@`` stands for the plan's release of
torch; ``NAME=VALUE`` in front sets the environment, ``< y n`` behind is typed at a terminal. A line
that begins with ``$`` is the shell's, and ``cd`` changes the directory; neither is recorded.
"""

from __future__ import annotations

import hashlib
import os
import shlex
import shutil
import stat
import subprocess
from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path
from unittest import mock

from tests.ruler import package, volatile
from tests.ruler.inputs import TARGETS, Input

INPUT = "input"  # the name of what was given; the rest is what the tool made of it

Tree = Mapping[str, tuple[str, bytes]]  # relative path -> mode, contents


def outputs(given: Input, scratch: Path) -> dict[str, bytes]:
    """Everything that the tool says about an input and makes of it, by a name for each."""
    files = given.read()
    listed = (f"{hashlib.sha256(data).hexdigest()} {path}\n" for path, data in files.items())
    found = {INPUT: "".join(sorted(listed)).encode()}
    for plan, commands in given.plans.items():
        project = scratch / "project"
        shutil.rmtree(project, ignore_errors=True)
        for path, data in files.items():
            (project / path).parent.mkdir(parents=True, exist_ok=True)
            (project / path).write_bytes(data)
        project.mkdir(exist_ok=True)
        os.chdir(project)
        for name, data in _run(commands, plan, project).items():
            found[f"{plan}: {name}"] = data
        os.chdir(scratch)
    return found


def _run(commands: Sequence[str], plan: str, project: Path) -> dict[str, bytes]:
    found: dict[str, bytes] = {}
    times: Counter[str] = Counter()
    before = _tree(project)
    with package.shared_runs() if plan in TARGETS else nullcontext(lambda: None) as forget:
        for line in commands:
            times[line] += 1
            name = f"{line} ({times[line]})" if times[line] > 1 else line
            if line.startswith("$"):
                subprocess.run(line[1:], shell=True, check=True, stdout=subprocess.DEVNULL)
            elif line.startswith("cd "):
                os.chdir(line[3:])
            else:
                found[name] = _said(Command.parse(line, plan), project.parent)
            after = _tree(project)
            if after == before:
                continue
            forget()
            if name in found:
                found |= {f"{name} => {what}": data for what, data in _written(before, after)}
            before = after
    return found


@dataclass(frozen=True)
class Command:
    arguments: list[str]
    environment: dict[str, str]
    typed: str | None

    @classmethod
    def parse(cls, line: str, plan: str) -> Command:
        line, asked, answers = line.partition(" < ")
        words = shlex.split(line.replace("@", f"--target-torch {plan} --jobs 1"))
        environment: dict[str, str] = {}
        while words and words[0].partition("=")[0].isupper():
            variable, _, value = words.pop(0).partition("=")
            environment[variable] = value
        typed = "".join(f"{answer}\n" for answer in answers.split()) if asked else None
        return cls(words, environment, typed)


def _said(command: Command, scratch: Path) -> bytes:
    with mock.patch.dict(os.environ, command.environment):
        for name in [n for n, value in command.environment.items() if not value]:
            del os.environ[name]
        answer = package.command(command.arguments, command.typed)
    said = b"%s\n--- standard error\n%s\n--- exit code %d\n"
    return volatile.screen(said % (answer.out, answer.err, answer.code), scratch)


def _tree(project: Path) -> Tree:
    """Every file below a directory; of a link, what it leads to. What git keeps is git's."""
    found: dict[str, tuple[str, bytes]] = {}
    for directory, below, names in os.walk(project):
        below[:] = [name for name in below if name != ".git"]
        for name in names:
            path = Path(directory, name)
            shown = path.relative_to(project).as_posix()
            data = bytes(path.readlink()) if path.is_symlink() else path.read_bytes()
            found[shown] = (
                stat.filemode(path.lstat().st_mode),
                volatile.file(shown, data, project.parent),
            )
    return found


def _written(before: Tree, after: Tree) -> list[tuple[str, bytes]]:
    """What became of the files that a command wrote or removed, and the list of them."""
    changed = {p: held for p, held in sorted(after.items()) if before.get(p) != held}
    lines = [f"{mode} {path}" for path, (mode, _) in changed.items()]
    lines += [f"removed {path}" for path in sorted(before) if path not in after]
    written = [(path, data) for path, (_, data) in changed.items()]
    return [("files", "\n".join(lines).encode(errors="surrogateescape")), *written]
