"""Which inputs of a model's ``forward`` the calls of models give it."""

from __future__ import annotations

import ast
import builtins
from collections.abc import Collection, Iterator
from dataclasses import dataclass

from fsdp_migrate.analysis.flow import access_path
from fsdp_migrate.analysis.module import Module
from fsdp_migrate.planning.context import Study
from fsdp_migrate.planning.model import is_none
from fsdp_migrate.syntax.expressions import last_name
from fsdp_migrate.syntax.trees import FUNCTIONS

EVERY_PLACE = range(1000)  # of what model(*batch) gives
HANDING_ON = frozenset({"checkpoint", "map", "partial"})  # what calls what it is given


@dataclass(frozen=True)
class GivenInputs:
    """What the calls of models give: by the names of keywords, and by the places of arguments,
    where one may give something else than None."""

    keywords: frozenset[str]
    places: Collection[int]
    may_be_unpacked: bool  # some call unpacks a dictionary

    @classmethod
    def of(cls, study: Study) -> GivenInputs:
        names = (name for m in study.project.modules for name in m.table.keywords)
        keywords = frozenset(name for name in names if name is not None)
        return cls(keywords, _places(study), _is_unpacked(study))

    def may_have(self, argument: str) -> bool:
        return argument in self.keywords or self.may_be_unpacked


def _is_unpacked(study: Study) -> bool:
    return any(
        access_path(call.func) is not None and study.traced(call.func, module)
        for module in study.project.modules
        if None in module.table.keywords
        for call in module.table.opened_calls
    )


def _places(study: Study) -> Collection[int]:
    found: set[int] = set()
    for module in study.project.modules:
        for call in module.table.calls_by_name.of(HANDING_ON):  # checkpoint(model, x, y)
            if call.args and study.traced(call.args[0], module):
                return EVERY_PLACE
    for call, called, module in _calls_of_variables(study):
        is_open = any(isinstance(each, ast.Starred) for each in call.args)
        if (len(call.args) > 1 or is_open) and study.traced(called, module):
            if is_open:
                return EVERY_PLACE
            found |= {place for place, each in enumerate(call.args) if not is_none(each)}
    return found


def _calls_of_variables(study: Study) -> Iterator[tuple[ast.Call, ast.expr, Module]]:
    """The calls of what is assigned, or a property: ``model(x)``, ``self.model(x)``; and of the
    ``forward`` of anything. With what is called, and its file."""
    defined = set(dir(builtins))
    variables: set[str] = set()
    for module in study.project.modules:
        table = module.table
        functions = {getattr(n, "name", ""): n for n in table.scopes if isinstance(n, FUNCTIONS)}
        defined |= {*functions, *(n.name for n in table.scopes if isinstance(n, ast.ClassDef))}
        variables |= {n.id for n in table.names if isinstance(n.ctx, ast.Store)}
        variables |= {attribute.attr for attribute in table.stored_attributes}
        variables |= {name for name, n in functions.items() if getattr(n, "decorator_list", ())}
    for module in study.project.modules:
        others = defined | {binding.name for binding in module.table.imports}
        for call in module.table.calls:
            called, name = call.func, last_name(call.func)
            if isinstance(called, ast.Attribute) and name == "forward":
                yield call, called.value, module
            elif access_path(called) is not None and (name in variables or name not in others):
                yield call, called, module
