"""What the parts of the tracer ask of it: they lead to one another in circles."""

from __future__ import annotations

import ast
from collections.abc import Collection
from typing import Protocol

from fsdp_migrate.analysis.module import Module
from fsdp_migrate.analysis.project import Project
from fsdp_migrate.analysis.tracing.functions import CallSite
from fsdp_migrate.analysis.values import Frame, FunctionNode, Value, Values
from fsdp_migrate.syntax.scopes import Scope


class Evaluator(Protocol):
    """What every part may ask; :class:`~fsdp_migrate.analysis.tracing.tracer.Tracer` is one."""

    project: Project
    outdated: Collection[ast.AST]  # what is taken not to run

    def evaluate(self, node: ast.expr, module: Module, frame: Frame | None = None) -> Values:
        """The values ``node`` may have."""

    def parameter(
        self,
        arg: ast.arg,
        scope: Scope,
        module: Module,
        frame: Frame | None,
        used: ast.expr | None = None,
    ) -> list[Value]:
        """The values that callers, or the call of ``frame``, give a parameter."""

    def entered(self, manager: ast.expr, module: Module, frame: Frame | None) -> list[Value] | None:
        """What a context manager gives where it is entered; None where nothing tells."""

    def callers(self, function: FunctionNode, module: Module) -> list[CallSite]:
        """Every call in the project that may run ``function``."""

    def is_in_doubt(self, function: FunctionNode) -> bool:
        """Whether there may be more callers: it takes too long to tell."""

    def attribute_at(self, node: ast.Attribute, module: Module, frame: Frame | None) -> list[Value]:
        """The values of ``owner.name`` that those of ``owner`` tell."""

    def attribute_of(self, value: Value, attr: str, node: ast.AST, module: Module) -> list[Value]:
        """The values of an attribute of ``value``, asked for by ``node`` in ``module``."""
