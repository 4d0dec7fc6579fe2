"""Which calls may run a model: of itself, of functions that call it, of what is not in sight."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from fsdp_migrate.analysis.flow import access_path
from fsdp_migrate.analysis.module import Module
from fsdp_migrate.analysis.values import External, Function, Made, Unknown
from fsdp_migrate.planning.context import Study
from fsdp_migrate.planning.model import Constructor
from fsdp_migrate.syntax.expressions import given_arguments, last_name
from fsdp_migrate.syntax.scopes import Kind, Scope

# Methods of a model that run it, and others through which it may be called.
RUNNING = frozenset({"forward", "module", "generate", "sample", "predict", "encode", "decode"})
# What functions outside the project that are given a model do with it, as their names say.
NOT_RUNNING = re.compile(
    r"^_*(apply|broadcast|build|configure|convert|count|create|freeze|get|init|is|load|log|make"
    r"|num|patch|prepare|print|register|replace|restore|resume|save|set|shard|sync|unwrap|watch"
    r"|wrap)(_|[A-Z]|$)|[Pp]aram"
)
MEASURING = re.compile(r"flop|macs|complexity|profil", re.I)  # which they do with a forward
QUIET_PACKAGES = ("torch.", "builtins.", "logging.", "fsdp2_support.")
CALLS_DEEP = 4

Given = Mapping[str, frozenset[Constructor]]  # parameters of a function that are models
NOTHING: frozenset[Constructor] = frozenset()


@dataclass(eq=False)
class Runs:
    """Which calls may run a model."""

    study: Study
    _known: dict[tuple[ast.AST, frozenset[object]], frozenset[Constructor]] = field(
        default_factory=dict
    )

    def may_be(self, call: ast.Call, module: Module, models: set[Constructor]) -> bool:
        return not models.isdisjoint(self._of(call, module, {}, CALLS_DEEP))

    def models(self, node: ast.expr, module: Module, given: Given) -> frozenset[Constructor]:
        """The models that an expression may be, by what the function's parameters stand for."""
        if isinstance(node, ast.Name) and node.id in given:
            return given[node.id]
        if access_path(node) is None or not self.study.traced(node, module):
            return NOTHING
        return self.study.models(node, module).constructors

    def _of(
        self, call: ast.Call, module: Module, given: Given, depth: int
    ) -> frozenset[Constructor]:
        """The models that a call may run."""
        method = call.func
        called = self.models(method, module, given)
        if called:
            return called
        if isinstance(method, ast.Attribute):
            owner = self.models(method.value, module, given)
            if owner:
                return owner if method.attr in RUNNING else NOTHING
        found: set[Constructor] = set()
        for callee in self.study.values(method, module):
            if isinstance(callee, Function) and depth:
                found |= self._inside(callee, self._passed(call, callee, module, given), depth - 1)
            elif isinstance(callee, (External, Unknown)):
                found |= self.outside(call, callee, module, given)
        return frozenset(found)

    def inside(self, call: ast.Call, callee: Function, module: Module) -> frozenset[Constructor]:
        """The models that a call gives to a function, which may run them."""
        return self._inside(callee, self._passed(call, callee, module, {}), CALLS_DEEP)

    def _passed(self, call: ast.Call, callee: Function, module: Module, given: Given) -> Given:
        """The parameters of a function for which a call gives models."""
        args = callee.node.args
        found: dict[str, frozenset[Constructor]] = {}
        for parameter in (*args.posonlyargs, *args.args, *args.kwonlyargs):
            bound = callee.owner is not None
            value = self.study.tracer.argument(call, callee.node, parameter.arg, bound=bound)
            models = self.models(value, module, given) if value is not None else NOTHING
            if models:
                found[parameter.arg] = models
        return found

    def _inside(self, function: Function, given: Given, depth: int) -> frozenset[Constructor]:
        key = function.node, frozenset(given.items())
        if key not in self._known:
            self._known[key] = NOTHING  # of a recursive call: nothing more
            module = function.module
            scope = module.table.scopes[function.node]
            inner = [self._of(c, module, given, depth) for c in calls_in(scope, module)]
            self._known[key] = NOTHING.union(*inner)
        return self._known[key]

    def outside(
        self, call: ast.Call, callee: External | Unknown, module: Module, given: Given
    ) -> frozenset[Constructor]:
        """The models that a function outside the project is given and may run."""
        name = callee.name if isinstance(callee, External) else ""
        if f"{name}.".startswith(QUIET_PACKAGES) or is_quiet(call):
            return NOTHING
        found = self.given(call, module, given)
        return NOTHING if found and self._is_logged(call, module) else found

    def _is_logged(self, call: ast.Call, module: Module) -> bool:
        """Whether a logger is told: it writes down what it is given."""
        if not isinstance(call.func, ast.Attribute):
            return False
        found = self.study.values(call.func.value, module)
        return bool(found) and all(
            isinstance(v, Made) and v.made_by == "logging.getLogger" for v in found
        )

    def given(self, call: ast.Call, module: Module, given: Given) -> frozenset[Constructor]:
        """The models that a call is given."""
        return NOTHING.union(*(self.models(a, module, given) for a in given_arguments(call)))

    def is_object(self, called: ast.expr, module: Module) -> bool:
        """Whether what a call calls may be an object, and not what ``def`` and ``class`` define.

        Its name tells, at little cost.
        """
        if isinstance(called, ast.Name):
            scope = module.table.scope_of(called).lookup(called.id)
            if scope is None:  # a builtin, or what a star import brings
                return bool(module.table.stars)
            kinds = {binding.kind for binding in scope.bindings[called.id]}
            return not kinds <= {Kind.FUNCTION, Kind.CLASS}
        return not isinstance(called, ast.Attribute) or called.attr in self.study.cache(_assigned)


def _assigned(study: Study) -> frozenset[str]:
    """The names that something may be an attribute of an object or a module by."""
    names: set[str] = set()
    for module in study.project.modules:
        table = module.table
        names.update(node.attr for node in table.stored_attributes)
        for scope in table.scopes.values():
            if scope is table.module or scope.is_class:
                for name, bindings in scope.bindings.items():
                    if any(
                        b.kind is not Kind.FUNCTION or getattr(b.node, "decorator_list", ())
                        for b in bindings
                    ):
                        names.add(name)
    return frozenset(names)


def is_quiet(call: ast.Call) -> bool:
    """Whether a function outside the project does not run what it is given, as its name says."""
    last = last_name(call.func)
    return bool(NOT_RUNNING.search(last)) and not MEASURING.search(last)


def calls_in(scope: Scope, module: Module) -> Iterator[ast.Call]:
    """The calls of a function or module, without those in functions inside of it."""
    yield from module.table.own_calls.get(scope, ())
