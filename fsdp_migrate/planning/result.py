"""What came out of a run over sources."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from fsdp_migrate.planning.outcome import Outcome, place

if TYPE_CHECKING:
    from fsdp_migrate.planning.hazard import Hazard
    from fsdp_migrate.planning.model import Decision
    from fsdp_migrate.syntax.suppressions import Ignore, Remarks


@dataclass(frozen=True)
class Problem:
    """Something that kept a file from being read or rewritten. ``line`` 0 means the whole file."""

    display: str
    message: str
    line: int = 0
    ours: bool = False  # a defect of fsdp-migrate, not of the input
    cell: int = 0  # of a notebook, from 1
    file_line: int = 0  # of a notebook

    @property
    def in_file(self) -> int:
        return self.file_line or self.line

    @property
    def place(self) -> str:
        if not self.line and not self.cell:
            return self.display
        return place(self.display, self.line or 1, self.cell)


@dataclass(frozen=True)
class Requirement:
    """A requirement of torch that is too low for the new code. ``line`` 0 means the whole file."""

    display: str
    line: int
    code: str
    message: str
    help: str
    done: bool  # raised, as opposed to left

    @property
    def place(self) -> str:
        return place(self.display, self.line) if self.line else self.display


@dataclass(frozen=True)
class NotFollowed:
    """A place that uses what may be a model: what made it of one is not followed."""

    display: str
    line: int
    why: str
    cell: int = 0  # of a notebook, from 1

    @property
    def place(self) -> str:
        return place(self.display, self.line, self.cell)


@dataclass(frozen=True)
class Configured:
    """A setting in a configuration and how it ended. Lines and columns count from 1."""

    path: Path
    display: str
    line: int
    column: int
    width: int
    end_line: int
    code: str
    outcome: Outcome
    name: str
    message: str
    help: str
    source: str  # the line that it begins on
    held: bool = False  # left because of others of the same run
    ignore: Ignore | None = None  # the comment that ignores it
    ignoring: str = ""  # the code of that comment that counted
    cell: int = 0  # of a notebook, from 1; then the lines are the cell's
    file_line: int = 0  # of a notebook
    unreported: bool = False  # its rule is not among those asked for

    @property
    def is_ignored(self) -> bool:
        return self.unreported or self.ignore is not None


@dataclass(frozen=True)
class HeldBack:
    """How many sites wait until all of some places are settled."""

    sites: int
    places: tuple[str, ...]
    is_stoppable: bool  # ``--partial`` migrates the sites, and stops the program at the places
    links: tuple[str, ...] = ()  # where several models have something in common


@dataclass
class Result:
    decisions: list[Decision] = field(default_factory=list)
    changes: dict[Path, bytes] = field(default_factory=dict)  # new contents, new files included
    problems: list[Problem] = field(default_factory=list)
    requirements: list[Requirement] = field(default_factory=list)
    not_followed: list[NotFollowed] = field(default_factory=list)
    held_back: list[HeldBack] = field(default_factory=list)
    hazards: list[Hazard] = field(default_factory=list)  # in code that uses FSDP2, if asked for
    configured: list[Configured] = field(default_factory=list)  # settings of frameworks
    remarks: dict[str, Remarks] = field(default_factory=dict)  # comments of files without Python
    modules: int = 0
    of_models: list[Path] = field(default_factory=list)  # files added as those of models
    proposed: list[Decision] = field(default_factory=list)  # before anything was deselected
    again: Callable[..., Result] | None = field(default=None, repr=False)  # without some decisions

    def count(self, outcome: Outcome) -> int:
        """How many sites ended so, of those that are not ignored; *left* includes these."""
        ended = [(d.outcome, d.is_ignored) for d in self.decisions]
        ended += [(c.outcome, c.is_ignored) for c in self.configured]
        if outcome is Outcome.LEFT:
            return sum(end is outcome or ignored for end, ignored in ended)
        return sum(end is outcome and not ignored for end, ignored in ended)

    @property
    def sites(self) -> int:
        return len(self.decisions) + len(self.configured)

    @property
    def ignored(self) -> int:
        decided = sum(d.is_ignored for d in self.decisions)
        return decided + sum(c.is_ignored for c in self.configured)
