"""What is quietly wrong in code that uses FSDP2."""

from __future__ import annotations

import ast
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from fsdp_migrate.analysis.module import Module
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

    @property
    def place(self) -> tuple[str, int, int, str]:
        """What hazards are listed by."""
        return self.module.display, *self.module.position(self.node), self.code
