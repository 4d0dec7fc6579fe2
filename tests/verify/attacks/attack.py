"""What an attack on ``verify`` is, and how it is run: through the command line, as users run it."""

from __future__ import annotations

import contextlib
import io
import json
import re
import shutil
import sysconfig
import venv
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any
from unittest import mock

from fsdp_migrate import __main__ as commands
from fsdp_migrate.verify import run
from fsdp_migrate.verify.launch.warm import WarmServer
from tests.verify.programs import Replaced, altered

FIXTURES = Path(__file__).parents[3] / "fixtures"

VERDICTS = {
    "same": {"same_training"},
    "other cost": {"same_training_other_cost"},
    "fails": {"different", "after_failed", "after_hung"},
    "undecided": {"inconclusive", "unrecorded", "before_failed", "before_hung"},
}
"""The names that the pages give to verdicts."""


@dataclass(frozen=True, kw_only=True)
class Attack:
    """A program and its migration, either of which may be altered, and what may be answered."""

    family: str
    """The class of mistakes of earlier verdicts that it belongs to."""
    what: str
    wrong: bool
    """Whether the migration is wrong."""
    program: str
    args: tuple[str, ...] = ()
    options: tuple[str, ...] = ()
    verdict: tuple[str, ...] = ()
    """Every right answer, by the names above."""
    cause: tuple[str, ...] = ()
    """Words, one of which stands in the sentence that names the cause."""
    told: str = ""
    """A statement of the migrated program; a pass is right that says its line was not checked."""
    installed: str = ""
    """How the original's package is installed in the interpreter: ``editable`` or ``copied``."""
    before: tuple[Replaced, ...] = ()
    after: tuple[Replaced, ...] = ()

    def __str__(self) -> str:
        return f"{self.family}: {'wrong' if self.wrong else 'right'}: {self.what}"


@dataclass(frozen=True)
class Answer:
    """What verify answered."""

    attack: Attack
    report: dict[str, Any]
    line: int = 0
    """Where the statement stands that a pass has to name."""

    @property
    def verdict(self) -> str:
        return str(self.report["verdict"])

    @property
    def says(self) -> str:
        return str(self.report["says"])

    @property
    def result(self) -> str:
        """``right``, or in which way it is not."""
        attack, code = self.attack, self.report["exit_code"]
        if attack.wrong and code == 0 and self._names_line:
            return "right"
        if all(self.verdict not in VERDICTS[name] for name in attack.verdict):
            if code == (0 if attack.wrong else 1):
                return "wrong PASS" if attack.wrong else "right FAIL"
            return "other verdict"
        named = any(word.lower() in self.says.lower() for word in attack.cause)
        return "right" if named or not attack.cause else "other cause"

    @property
    def _names_line(self) -> bool:
        """Whether what was not checked holds the line, alone or within a range."""
        said = [*self.report.get("limits", ()), *self.report.get("notes", ())]
        ranges = [
            (int(first), int(last or first))
            for text in said
            if "train.py" in text
            for first, last in re.findall(r"\b(\d+)(?:-(\d+))?\b", text)
        ]
        return bool(self.line) and any(first <= self.line <= last for first, last in ranges)


def answer(attack: Attack, folder: Path, server: WarmServer) -> Answer:
    """Make both versions in ``folder`` and verify them; ``server`` forks the ranks."""
    trees = {
        side: altered(FIXTURES / attack.program / side, folder / side, getattr(attack, side))
        for side in ("before", "after")
    }
    output = folder / "report.json"
    command = ["verify", "train.py", "--timeout", "40"]
    for side, tree in trees.items():
        command += [f"--{side}", str(tree)]
    if attack.installed:
        command += ["--python", str(_interpreter(attack, trees["before"], folder))]
    command += [*attack.options, "-q", "-o", str(output), "--", *attack.args]
    shown = io.StringIO()
    with (
        contextlib.chdir(folder),
        contextlib.redirect_stdout(shown),
        contextlib.redirect_stderr(shown),
        mock.patch.object(run, "verify", partial(run.verify, server=server)),
    ):
        commands.run(command)
    assert output.exists(), shown.getvalue()
    report = json.loads(output.read_text(encoding="utf-8"))
    lines = (trees["after"] / "train.py").read_text(encoding="utf-8").splitlines()
    named = [number for number, line in enumerate(lines, 1) if attack.told and attack.told in line]
    return Answer(attack, report, *named[:1])


def _interpreter(attack: Attack, tree: Path, folder: Path) -> Path:
    """A virtual environment in which the package of ``tree`` is installed."""
    home = folder / "environment"
    venv.create(home, with_pip=False)
    packages = next(home.glob("lib/python*/site-packages"))
    paths = [sysconfig.get_path("purelib")]
    if attack.installed == "editable":
        paths.insert(0, str(tree / "src"))
    else:
        shutil.copytree(tree / "src" / "toy", packages / "toy")
    packages.joinpath("paths.pth").write_text("\n".join(paths) + "\n")
    return home / "bin" / "python"
