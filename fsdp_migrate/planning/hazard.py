"""What is quietly wrong in code that uses FSDP2."""

from __future__ import annotations

import ast
from dataclasses import dataclass
from typing import TYPE_CHECKING

from fsdp_migrate.fsdp1.construct import Construct
from fsdp_migrate.fsdp1.site import Key

if TYPE_CHECKING:
    from fsdp_migrate.analysis.module import Module
    from fsdp_migrate.planning.edits import Edit
    from fsdp_migrate.syntax.suppressions import Ignored


@dataclass(frozen=True, eq=False)
class Hazard:
    """A place and what is wrong there. It is no site: there is nothing to migrate."""

    code: str
    module: Module
    node: ast.expr
    message: str
    help: str  # what to write instead
    ignored: Ignored | None = None  # the comment by which it is not reported
    edits: tuple[Edit, ...] = ()  # what puts it right, where one form is surely right
    is_note: bool = False  # it may be wrong, or not: shown to those who ask
    mended: bytes = b""  # its file, or the code of its notebook, with these edits alone
    is_mended: bool = False  # a run has made them

    @property
    def place(self) -> tuple[str, int, int, str]:
        """What hazards are listed by."""
        return self.module.display, *self.module.position(self.node), self.code

    @property
    def is_reported(self) -> bool:
        """Whether it is wrong beyond doubt, and nobody says that it is meant."""
        return self.ignored is None and not self.is_note

    @property
    def key(self) -> Key:
        """What tells a hazard from the others of a run, and from sites."""
        return self.module.path, self.module.position(self.node), Construct.parse(self.code)
