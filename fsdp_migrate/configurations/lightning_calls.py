"""Calls of Lightning's ``FSDPStrategy`` in programs, and strategies that are only named.

What stands in such a call, or is made for it alone, is the call's: only Lightning reads it.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from dataclasses import dataclass, field

from fsdp_migrate.analysis.module import Module
from fsdp_migrate.analysis.values import Constant
from fsdp_migrate.configurations import handed_mappings, plugin_calls
from fsdp_migrate.configurations.lightning_files import OF_TRAINER
from fsdp_migrate.planning.context import Study
from fsdp_migrate.syntax.expressions import last_name
from fsdp_migrate.syntax.trees import walk

NAME = "FSDPStrategy"
FABRIC = re.compile(r"lightning(?:_fabric|\.fabric)(?:\.\w+)*\.FSDPStrategy")
TRAINER = re.compile(r"(?:lightning\.pytorch|pytorch_lightning)(?:\.\w+)*\.FSDPStrategy")
RUNNERS = re.compile(
    r"(?:lightning|pytorch_lightning|lightning_fabric)(?:\.\w+)*\.(Trainer|Fabric)"
)
OLD = re.compile(
    r"(?:lightning\.pytorch|pytorch_lightning)(?:\.\w+)*\.DDPFullySharded(?:Native)?Strategy"
)
OLD_ALIASES = frozenset({"fsdp_native", "fsdp_native_full_shard_offload"})  # before 2.0
ALIASES = frozenset({"fsdp", "fsdp_cpu_offload", *OLD_ALIASES})


@dataclass(eq=False)
class StrategyCall:
    """One strategy: the call that makes it, or the ``Trainer(strategy="fsdp")`` that names it."""

    call: ast.Call
    module: Module
    fabric: bool
    alias: str = ""
    runner: ast.Call | None = None  # the Trainer or Fabric that has it, where that is known
    runner_module: Module | None = None
    owned: dict[str, ast.Assign] = field(default_factory=dict)

    def given(self, name: str) -> ast.expr | None:
        """The expression that makes an argument of the strategy."""
        if self.alias:
            return None
        if name in self.owned:
            return self.owned[name].value
        return next((k.value for k in self.call.keywords if k.arg == name), None)

    def of_runner(self, name: str) -> ast.expr | None:
        keywords = self.runner.keywords if self.runner is not None else ()
        return next((k.value for k in keywords if k.arg == name), None)

    @property
    def problem(self) -> str:
        """Why its arguments are not known."""
        if self.alias in OLD_ALIASES:
            return f"{self.alias} is of Lightning before 2.0"
        if self.alias:
            return ""
        if self.call.args:
            return "it has arguments by position"
        unknown = next((k for k in self.call.keywords if k.arg is None), None)
        return f"its arguments come from **{ast.unparse(unknown.value)}" if unknown else ""

    def parts(self) -> Iterator[ast.AST]:
        """The call, and what is made for it alone."""
        if not self.alias:
            yield self.call
            yield from self.owned.values()


def strategy_calls(study: Study) -> list[StrategyCall]:
    """Every strategy of FSDP1's that a project gives Lightning."""
    found = []
    run = list(runners(study))
    for module in study.project.modules:
        for call in module.table.calls if module.mentions(NAME) else ():
            names = study.external(call.func, module)
            if any(FABRIC.fullmatch(n) or TRAINER.fullmatch(n) for n in names):
                made = StrategyCall(call, module, any(map(FABRIC.fullmatch, names)))
                made.runner, made.runner_module = _runner_of(made, run, study) or (None, None)
                made.owned = _owned(call, module, study)
                found.append(made)
    for runner, module, fabric in run:
        given = next((k.value for k in runner.keywords if k.arg == "strategy"), None)
        values = study.values(given, module) if given is not None else ()
        named = {str(v.value) for v in values if isinstance(v, Constant)} & ALIASES
        if named:
            found.append(StrategyCall(runner, module, fabric, min(named), runner, module))
    return found


def other_places(study: Study) -> list[tuple[ast.expr, Module]]:
    """Where a project has the class, or a word for it, without giving it to Lightning there."""
    called = {found.call.func for found in study.cache(strategy_calls)}
    found: list[tuple[ast.expr, Module]] = []
    for module in study.project.modules:
        if not module.mentions("lightning") or not module.mentions(NAME, "fsdp", "DDPFullySharded"):
            continue
        tests = module.table.calls_by_name.of(("isinstance", "issubclass"))
        harmless = {part for each in (*tests, *_annotations(module)) for part in ast.walk(each)}
        for node in walk(module.source.tree):
            if isinstance(node, ast.Name | ast.Attribute):
                if node not in called | harmless and _is_strategy(node, module, study):
                    found.append((node, module))
            elif isinstance(node, ast.Dict | ast.Call) and _is_of_trainer(node, module, study):
                found.append((node, module))
    return found


def _annotations(module: Module) -> Iterator[ast.expr]:
    for node in walk(module.source.tree):
        said = node.returns if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) else None
        if isinstance(node, ast.arg | ast.AnnAssign):
            said = node.annotation
        if said is not None:
            yield said


def _is_strategy(node: ast.Name | ast.Attribute, module: Module, study: Study) -> bool:
    name = node.attr if isinstance(node, ast.Attribute) else ""
    if not isinstance(node.ctx, ast.Load) or (name and "Strategy" not in name):
        return False
    names = study.external(node, module)
    return any(p.fullmatch(n) for n in names for p in (FABRIC, TRAINER, OLD))


def _is_of_trainer(node: ast.Dict | ast.Call, module: Module, study: Study) -> bool:
    """Whether a mapping has a word for the strategy among what a Trainer takes."""
    if isinstance(node, ast.Call) and last_name(node.func) != "dict":
        return False
    given = handed_mappings.pairs(node)
    known = study.literal(given["strategy"], module) if "strategy" in given else None
    return known is not None and known.value in ALIASES and not OF_TRAINER.isdisjoint(given)


def parts(study: Study) -> set[ast.AST]:
    """The nodes whose names of FSDP1 are Lightning's."""
    return {part for each in study.cache(strategy_calls) for part in each.parts()}


def runners(study: Study) -> Iterator[tuple[ast.Call, Module, bool]]:
    """Every Trainer and Fabric; whether it is Fabric."""
    for module in study.project.modules:
        if not module.mentions("lightning"):
            continue
        for name in ("Trainer", "Fabric"):
            for call in module.table.calls_by_name.named(name):
                if any(map(RUNNERS.fullmatch, study.external(call.func, module))):
                    yield call, module, name == "Fabric"


def _runner_of(
    made: StrategyCall, run: list[tuple[ast.Call, Module, bool]], study: Study
) -> tuple[ast.Call, Module] | None:
    """The one Trainer or Fabric that is given a strategy."""
    found = []
    for runner, module, _ in run:
        given = next((k.value for k in runner.keywords if k.arg == "strategy"), None)
        if given is made.call:
            return runner, module
        if given is not None and any(v.node is made.call for v in study.values(given, module)):
            found.append((runner, module))
    return found[0] if len(found) == 1 else None


def _owned(call: ast.Call, module: Module, study: Study) -> dict[str, ast.Assign]:
    assigned = {
        k.arg: plugin_calls.assigned_for(k.value, module, study) for k in call.keywords if k.arg
    }
    return {name: made for name, made in assigned.items() if made is not None}
