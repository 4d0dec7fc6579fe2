"""Settings of one run that stand together in one file, whatever its format."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import ClassVar

from fsdp_migrate.configurations.formats.cells import Part
from fsdp_migrate.configurations.formats.text import Edit, Span, Text
from fsdp_migrate.configurations.settings import Change, Setting
from fsdp_migrate.planning import outcome
from fsdp_migrate.planning.prose import sentences
from fsdp_migrate.syntax.notebook import Notebook
from fsdp_migrate.syntax.suppressions import NOTHING, Remarks


@dataclass(eq=False)
class File:
    """A file with blocks, or a cell of a notebook that is read as one."""

    path: Path
    display: str
    text: Text
    remarks: Remarks = NOTHING
    notebook: Notebook | None = None
    part: Part | None = None

    @property
    def home(self) -> Path:
        """The file on disk."""
        return self.path if self.notebook is None else self.notebook.path

    def of_cell(self, line: int) -> tuple[int, int]:
        """A line of the text as one of its cell, and the number of that; 0 where there is none."""
        if self.part is None:
            return line, 0
        return self.part.above + line, self.part.cell.number

    def place(self, offset: int) -> str:
        """How messages name the line of an offset."""
        return outcome.place(self.display, *self.of_cell(self.text.line_at(offset)))

    def line(self, line: int) -> int:
        """A line of the text as one of the file on disk."""
        if self.notebook is None or self.part is None:
            return line
        return self.notebook.line(self.part.cell, self.part.above + line)


def said(changes: Iterable[Change]) -> str:
    """What a marker says of changes, each sentence once."""
    return sentences(*dict.fromkeys(text for c in changes for text in (c.message, c.help)))


@dataclass(eq=False)
class Block(ABC):
    """What a framework reads in one place: ``settings`` by name with the ``spans`` they take."""

    code: str
    file: File
    head: Span  # what is shown where no setting is meant
    settings: dict[str, Setting] = field(default_factory=dict)
    spans: dict[str, Span] = field(default_factory=dict)
    reason: str = ""  # why nothing of it can be edited

    is_overridden: ClassVar[bool] = True  # by what stands beside it in a run
    marks_settings: ClassVar[bool] = True  # whether each setting can have a marker of its own
    is_fixed: ClassVar[bool] = False  # whether it means the same under version 2, and stays

    @abstractmethod
    def edit(self, changes: Sequence[Change], width: int) -> list[Edit]:
        """The edits that make the changes, the markers of those to review included.

        Raises:
            Refused: one of them cannot be made.
        """

    @abstractmethod
    def mark(self, name: str, sentence: str, width: int) -> list[Edit]:
        """A marker above a setting, or above the block; nothing where none can stand."""

    def span(self, name: str) -> Span:
        return self.spans.get(name, self.head)
