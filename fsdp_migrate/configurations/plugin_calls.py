"""Calls of accelerate's ``FullyShardedDataParallelPlugin`` in programs, as settings.

What stands in such a call, or is made for it alone, is the call's: the names of FSDP1 in it are no
sites of their own, since only accelerate reads them.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass, field

from fsdp_migrate.analysis.module import Module
from fsdp_migrate.analysis.values import External, Made
from fsdp_migrate.configurations.settings import Setting
from fsdp_migrate.fsdp1 import api as fsdp1
from fsdp_migrate.fsdp1.construct import ConstructKind
from fsdp_migrate.planning.context import Study
from fsdp_migrate.syntax.expressions import last_name

NAME = "FullyShardedDataParallelPlugin"
PATHS = frozenset(
    f"{module}.{NAME}"
    for module in ("accelerate", "accelerate.utils", "accelerate.utils.dataclasses")
)
PARTIAL = "functools.partial"
ENUMS = frozenset({"ShardingStrategy", "BackwardPrefetch", "StateDictType"})


@dataclass(eq=False)
class PluginCall:
    """One call, and the assignments of variables that it alone reads, by its arguments."""

    call: ast.Call
    module: Module
    study: Study
    owned: dict[str, ast.Assign] = field(default_factory=dict)

    @property
    def problem(self) -> str:
        """Why its arguments are not known."""
        if self.call.args:
            return "arguments by position, whose order is another in each release of accelerate"
        for keyword in self.call.keywords:
            if keyword.arg is None:
                return f"its arguments come from **{ast.unparse(keyword.value)}"
        return ""

    def given(self, name: str) -> ast.expr | None:
        """The expression that makes an argument: in the call, or assigned for it alone."""
        for keyword in self.call.keywords:
            if keyword.arg == name:
                return self.owned[name].value if name in self.owned else keyword.value
        return None

    def settings(self) -> dict[str, Setting]:
        names = [k.arg for k in self.call.keywords if k.arg is not None]
        return {name: self._setting(name) for name in names}

    def _setting(self, name: str) -> Setting:
        node = self.given(name)
        assert node is not None
        known = self.study.literal(node, self.module)
        if known is not None:
            value = known.value
            if value is None or isinstance(value, str | bool | int | float):
                return Setting(name, value)
        found = self.study.values(node, self.module)
        members = {
            fsdp1.canonical(v.name) for v in found if isinstance(v, External) and v.node is node
        }
        if len(members) == len(found) == 1:
            owner, _, member = str(members.pop()).partition(".")
            if owner in ENUMS and member:
                return Setting(name, member)
        return Setting(name, ast.unparse(node), f"it is {ast.unparse(node)}")

    def parts(self) -> Iterator[ast.AST]:
        """The call, and what is made for it alone."""
        yield self.call
        yield from self.owned.values()

    def mentions(self, argument: str, *names: str) -> bool:
        """Whether one of FSDP1's names stands in an argument."""
        given = self.given(argument)
        return given is not None and any(
            (fsdp1.canonical(q) or "").partition(".")[0] in names
            for node in ast.walk(given)
            if isinstance(node, ast.Name | ast.Attribute)
            for q in self.study.external(node, self.module)
        )


def plugin_calls(study: Study) -> list[PluginCall]:
    """Every call of the plugin in a project."""
    return [
        _read(call, module, study)
        for module in study.project.modules
        if module.mentions(NAME)
        for call in module.table.calls
        if study.external(call.func, module) & PATHS
    ]


def parts(study: Study) -> set[ast.AST]:
    """The nodes whose names of FSDP1 are accelerate's."""
    return {part for plugin in study.cache(plugin_calls) for part in plugin.parts()}


def _read(call: ast.Call, module: Module, study: Study) -> PluginCall:
    plugin = PluginCall(call, module, study)
    for keyword in call.keywords:
        assigned = assigned_for(keyword.value, module, study)
        if keyword.arg is None or assigned is None:
            continue
        if _holds_fsdp1s(assigned.value, module, study):
            plugin.owned[keyword.arg] = assigned
    return plugin


def assigned_for(node: ast.expr, module: Module, study: Study) -> ast.Assign | None:
    """The assignment of a variable that nothing but one argument reads."""
    table = module.table
    if not isinstance(node, ast.Name):
        return None
    scope = table.scope_of(node).lookup(node.id)
    bindings = scope.bindings[node.id] if scope is not None else []
    if len(bindings) != 1 or table.reads(node.id, scope) != [node]:
        return None
    statement = bindings[0].node
    if not isinstance(statement, ast.Assign) or len(statement.targets) != 1:
        return None
    if scope is table.module and node.id in study.project.asked_for(module):
        return None
    return statement if isinstance(statement.targets[0], ast.Name) else None


def _holds_fsdp1s(value: ast.expr, module: Module, study: Study) -> bool:
    names = [n for n in ast.walk(value) if isinstance(n, ast.Name | ast.Attribute)]
    return any(fsdp1.canonical(q) for n in names for q in study.external(n, module))


def made_by(node: ast.expr, module: Module, study: Study) -> str:
    """FSDP1's name for what a call makes, empty for anything else."""
    if not isinstance(node, ast.Call):
        return ""
    found = {fsdp1.canonical(q) for q in study.external(node.func, module)}
    return str(found.pop()) if len(found) == 1 and None not in found else ""


def is_field_of_plugin(attribute: ast.Attribute, module: Module, study: Study) -> bool:
    """Whether a field is one of accelerate's plugin: ``accelerator.state.fsdp_plugin.x``."""
    owner = attribute.value
    if isinstance(owner, ast.Attribute) and owner.attr == "fsdp_plugin":
        return True
    found = study.values(owner, module)
    return any(isinstance(v, Made) and v.made_by in PATHS for v in found)


ACCELERATOR = frozenset({"accelerate.Accelerator", "accelerate.accelerator.Accelerator"})


def is_of_accelerator(call: ast.Call, module: Module, study: Study) -> bool:
    """Whether a method is called on accelerate's ``Accelerator``, by its value or its name."""
    if not isinstance(call.func, ast.Attribute):
        return False
    owner = call.func.value
    if last_name(owner) == "accelerator":
        return True
    found = study.values(owner, module)
    return any(isinstance(v, Made) and v.made_by in ACCELERATOR for v in found)


def mixed_precision(module: Module, study: Study) -> str:
    """The 16-bit precision that some ``Accelerator(mixed_precision=)`` beside a plugin asks for."""
    for other in study.project.modules:
        for call in other.table.calls_by_name.named("Accelerator"):
            if study.project.island(other) != study.project.island(module):
                continue
            for keyword in call.keywords:
                known = study.literal(keyword.value, other)
                if keyword.arg == "mixed_precision" and known is not None:
                    text = str(known.value)
                    return text if text in {"bf16", "fp16"} else ""
    return ""


ON_MODELS = frozenset(
    {ConstructKind.MEMBER, ConstructKind.UNBOUND, ConstructKind.ISINSTANCE, ConstructKind.MATCHED}
)


def of_version_1(study: Study) -> str:
    """What a program that wraps no model itself does with models by FSDP1's own functions."""
    if study.constructors or study.found is None:
        return ""
    for site in study.found[0]:
        of_models = site.construct.kind in ON_MODELS and site.construct.name == fsdp1.FSDP
        if of_models and not site.doubt:
            shown, name = site.construct.shown, site.module.path.name
            return f"{shown} in {name} knows version 1's models alone"
    return ""
