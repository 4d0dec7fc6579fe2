"""Code that runs between a forward of a model and its backward: the root's parameters are whole.

The forward, the code and the backward may stand in one function, or in functions that it calls:
``loss = self.compute(batch)``, ``self.log(loss)``, ``loss.backward()``.
"""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator

from fsdp_migrate.analysis.module import Module
from fsdp_migrate.families.training_loop.backwards import is_without_gradients
from fsdp_migrate.families.training_loop.gathered_roots import runs_of
from fsdp_migrate.fsdp1.references import enclosing_function
from fsdp_migrate.planning.context import Study
from fsdp_migrate.planning.model import Constructor
from fsdp_migrate.syntax.trees import position

CALLERS_DEEP = 3
Found = tuple[ast.Call, Module]


def stands_before_backward(
    node: ast.AST, models: frozenset[Constructor], study: Study, module: Module
) -> bool:
    """Whether a forward of a model runs before a node, and the backward only behind it."""
    runs = runs_of(models, study)
    direct = [(r.call, r.module) for r in runs if not is_without_gradients(r.call, r.module)]
    if not direct:
        return False
    reader = _Reader(study, _leading(direct, study))
    return reader.is_between(node, module, False, CALLERS_DEEP)


class _Reader:
    """Goes from a node to what calls its function."""

    def __init__(self, study: Study, forwards: dict[ast.Call, Module]) -> None:
        self.study, self.forwards = study, forwards
        self.backwards = study.cache(_backwards)

    def is_between(self, node: ast.AST, module: Module, has_run: bool, depth: int) -> bool:
        """Whether the backward is yet to come where a node stands.

        Args:
            has_run: whether the forward was found further inside.
        """
        function = enclosing_function(module, node)
        above = [c for c in self._calls(function, module) if _end(c) <= position(node)]
        if above and not has_run:
            last = max(above, key=_end)
            if last in self.backwards:
                return False
            has_run = True
        below = (c for c in self.backwards if _end(c) > _end(node))
        if has_run and any(self._is_in(c, self.backwards[c], function, module) for c in below):
            return True
        if depth == 0 or not isinstance(function, (ast.FunctionDef, ast.AsyncFunctionDef)):
            return False
        return any(
            self.is_between(site.call, site.module, has_run, depth - 1)
            for site in self.study.tracer.callers(function, module)
        )

    def _calls(self, function: ast.AST, module: Module) -> Iterator[ast.Call]:
        """The calls of a function that run the model, or a backward."""
        for found in (self.forwards, self.backwards):
            for call, where in found.items():
                if self._is_in(call, where, function, module):
                    yield call

    @staticmethod
    def _is_in(call: ast.Call, where: Module, function: ast.AST, module: Module) -> bool:
        return where is module and enclosing_function(where, call) is function


def _end(node: ast.AST) -> tuple[int, int]:
    """Where a node ends: calls end in the order in which they are made."""
    return getattr(node, "end_lineno", 0), getattr(node, "end_col_offset", 0)


def _backwards(study: Study) -> dict[ast.Call, Module]:
    """The calls that run a backward, themselves or through functions."""
    named = (
        (call, module)
        for module in study.project.modules
        for call in module.table.calls_by_name.named("backward")
    )
    return _leading(named, study)


def _leading(calls: Iterable[Found], study: Study) -> dict[ast.Call, Module]:
    """Calls, and those that lead to them through functions of the project."""
    found = dict(calls)
    new = list(found.items())
    for _ in range(CALLERS_DEEP):
        functions = {(enclosing_function(module, call), module) for call, module in new}
        sites = (
            site
            for function, module in functions
            if isinstance(function, (ast.FunctionDef, ast.AsyncFunctionDef))
            for site in study.tracer.callers(function, module)
        )
        new = [
            (site.call, site.module)
            for site in sites
            if site.call not in found and not is_without_gradients(site.call, site.module)
        ]
        found.update(new)
    return found
