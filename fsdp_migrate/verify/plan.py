"""What `verify` was asked to do."""

from __future__ import annotations

import math
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath

from fsdp_migrate.verify.settings import DEVICES, PRECISIONS, Settings

MODULE_PREFIX = "module:"


class PlanError(ValueError):
    """What was asked cannot be done. The message is one sentence meant for the user."""


@dataclass(frozen=True, kw_only=True)
class Plan(Settings):
    """Two trees, one training script, and how to run it.

    Raises :class:`PlanError` when a tree or the script is missing or a number makes no sense.
    """

    before: Path
    """The tree with the FSDP1 program."""
    after: Path
    """The tree with the migrated program."""
    script: str
    """Path of the script below both trees, or ``module:pkg.mod`` for ``python -m pkg.mod``."""
    nproc: int = 2
    worlds: tuple[int, ...] = ()
    """Further numbers of ranks to verify with, beside ``nproc``; gives a table of world sizes."""
    max_steps: int = 10
    """Optimizer steps to record; then every rank stops cleanly, unless the program has ended."""
    grow_after: int | None = None
    """Steps beyond this many are recorded only while the original trains for a few seconds."""
    variants: tuple[tuple[str, ...], ...] = ((),)
    """Arguments after ``args``: every list makes a comparison of its own, and all must pass."""
    files: Path | None = None
    """A folder whose files every run finds in its tree, the script among them perhaps."""
    workdir: str = "."
    """Working directory of the script, below the tree."""
    asked: Mapping[str, Sequence[tuple[int, int, int, int]]] = field(default_factory=dict)
    """Expressions of the original whose values are looked at: of each file, as a path below the
    tree, where they stand (:class:`~fsdp_migrate.verify.compare.observed.Span`)."""
    reduces_more: bool = False
    """Whether the migrated program is to reduce gradients more often, which is a cost then."""

    def __post_init__(self) -> None:
        for role, tree in (("before", self.before), ("after", self.after)):
            if not tree.is_dir():
                kind = "is not a directory" if tree.exists() else "does not exist"
                raise PlanError(f"the '{role}' tree {tree} {kind}")
        self._check_numbers()
        if self.timing and self.max_steps < 2:
            raise PlanError("times need two steps or more: the first holds set-up work")
        self._check_choices()
        for name in ("workdir", *(["script"] if not self.module else [])):
            self._check_inside(name, getattr(self, name))
        for role, tree in (("before", self.before), ("after", self.after)):
            if not (tree / self.workdir).is_dir():
                raise PlanError(
                    f"the working directory {self.workdir} is not in the '{role}' tree {tree}"
                )
            self._check_script(role, tree)
        for path in self.share:
            self._check_inside("share", path)
            if not (self.before / path).exists():
                raise PlanError(
                    f"the shared path {path} does not exist in the 'before' tree {self.before}"
                )

    @property
    def module(self) -> str | None:
        """The dotted module name when the script is run with ``-m``, else None."""
        return (
            self.script.removeprefix(MODULE_PREFIX)
            if self.script.startswith(MODULE_PREFIX)
            else None
        )

    @property
    def title(self) -> str:
        """The program as a user would write it: ``train.py`` or ``-m pkg.train``."""
        return f"-m {self.module}" if self.module else self.script

    def _check_numbers(self) -> None:
        for world in (self.nproc, *self.worlds):
            if world < 1:
                raise PlanError(f"nproc must be at least 1, not {world}")
        if self.max_steps < 1:
            raise PlanError(f"max_steps must be at least 1, not {self.max_steps}")
        if not (math.isfinite(self.timeout) and self.timeout > 0):
            raise PlanError(f"timeout must be a positive number of seconds, not {self.timeout}")
        if not 0 <= self.seed < 2**31:
            raise PlanError(f"seed must be between 0 and 2**31 - 1, not {self.seed}")

    def _check_choices(self) -> None:
        for name, choices in (("device", DEVICES), ("precision", PRECISIONS)):
            if getattr(self, name) not in choices:
                raise PlanError(
                    f"{name} must be one of {', '.join(choices)}, not {getattr(self, name)!r}"
                )
        try:
            words = shlex.split(self.launcher)
        except ValueError as error:
            raise PlanError(f"the launcher {self.launcher!r} cannot be read: {error}") from None
        if not words:
            raise PlanError("the launcher is empty")

    @staticmethod
    def _check_inside(name: str, path: str) -> None:
        pure = PurePosixPath(path)
        if not path or pure.is_absolute() or ".." in pure.parts:
            raise PlanError(f"{name} must be a path below the trees, not {path!r}")

    def _check_script(self, role: str, tree: Path) -> None:
        if self.module is None:
            added = self.files is not None and (self.files / self.script).is_file()
            if not added and not (tree / self.script).is_file():
                raise PlanError(
                    f"the script {self.script} does not exist in the '{role}' tree {tree}"
                )
            return
        parts = self.module.split(".")
        if not all(part.isidentifier() for part in parts):
            raise PlanError(f"{self.module!r} is not a module name")
        place = (tree / self.workdir).joinpath(*parts)
        # `python -m` looks below the working directory first. A module installed elsewhere would
        # be the same code on both sides and prove nothing, so it is refused.
        if not (place.with_suffix(".py").is_file() or (place / "__main__.py").is_file()):
            raise PlanError(f"the module {self.module} is not in the '{role}' tree {tree}")
