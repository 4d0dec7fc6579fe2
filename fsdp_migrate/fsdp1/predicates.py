"""What a test asks of a model: its classes, also where a function of the project asks for them."""

from __future__ import annotations

import ast
from collections.abc import Iterable, Mapping

from fsdp_migrate.analysis.flow import Test
from fsdp_migrate.analysis.isinstance_tests import alternatives
from fsdp_migrate.analysis.module import Module
from fsdp_migrate.analysis.tracing.functions import class_of_method, is_static
from fsdp_migrate.analysis.tracing.tracer import Tracer
from fsdp_migrate.analysis.values import Function
from fsdp_migrate.fsdp1 import api as fsdp1
from fsdp_migrate.syntax import type_expressions
from fsdp_migrate.syntax.expressions import last_name
from fsdp_migrate.syntax.kinds import of_kind
from fsdp_migrate.syntax.scopes import Scope
from fsdp_migrate.syntax.trees import last_part

Asked = list[tuple[ast.expr, Module]]
DEPTH = 4  # functions that ask each other


class Predicates:
    """The functions of a project that answer ``return isinstance(model, FSDP)``."""

    def __init__(self, tracer: Tracer) -> None:
        self.tracer = tracer
        self._names: set[str] | None = None
        self._called: dict[Module, Mapping[str, set[Scope]]] = {}

    def called(self, module: Module) -> Mapping[str, set[Scope]]:
        """The last parts of the paths that such functions may be asked about, with the scopes."""
        known = self._called.get(module)
        if known is None:
            table, found = module.table, dict[str, set[Scope]]()
            for call in table.calls_by_name.of(self.names()):
                if len(call.args) == 1:
                    scope = table.within[call].home()
                    found.setdefault(last_part(call.args[0]), set()).add(scope)
            known = self._called[module] = found
        return known

    def names(self) -> set[str]:
        """The names of such functions, and of those that ask them."""
        if self._names is None:
            self._names = set()
            for module in self.tracer.project.modules:
                if module.mentions(*fsdp1.WORDS):
                    asking = module.table.calls_by_name.named("isinstance")
                    self._add([c for c in asking if self._asks_fsdp1(c, module)], module)
            known = -1
            while known < len(self._names):
                known = len(self._names)
                for module in self.tracer.project.modules:
                    if module.mentions(*self._names):
                        self._add(module.table.calls_by_name.of(self._names), module)
        return self._names

    def _asks_fsdp1(self, call: ast.Call, module: Module) -> bool:
        if len(call.args) != 2:
            return False
        asked = type_expressions.classes(call.args[1])
        names = {fsdp1.canonical(n) for e in asked for n in self.tracer.project.external(e, module)}
        return fsdp1.FSDP in names

    def _add(self, calls: Iterable[ast.Call], module: Module) -> None:
        assert self._names is not None
        for call in calls:
            around = module.table.parents[call]
            while isinstance(around, (ast.UnaryOp, ast.BoolOp)):
                around = module.table.parents[around]
            function = module.table.scope_of(call).function()
            if isinstance(around, (ast.Return, ast.Lambda)) and function is not None:
                named = getattr(module.table.parents[function.node], "targets", ())
                self._names.update(last_part(target) for target in named)
                self._names.update(name for name in [getattr(function.node, "name", "")] if name)

    def asked(self, test: Test, module: Module) -> Asked:
        """The classes of which what passed a test is one, or of which it is none."""
        if isinstance(test.node, ast.Call):
            return self._meant(test.node, module, test.holds, DEPTH)
        each = alternatives(of_kind(test.node, ast.pattern))
        asked = [p for p in each if isinstance(p, ast.MatchClass)]
        if test.holds:
            return [(p.cls, module) for p in asked] if len(asked) == len(each) else []
        return [(p.cls, module) for p in asked if not (p.patterns or p.kwd_patterns)]

    def _meant(self, call: ast.Call, module: Module, holds: bool, depth: int) -> Asked:
        if len(call.args) == 2:
            return [(call.args[1], module)]
        found = self.tracer.evaluate(call.func, module) if depth else ()
        function = next(iter(found)) if len(found) == 1 else None
        if last_name(call.func) not in self.names() or not isinstance(function, Function):
            return []
        node, is_method = function.node, class_of_method(function.node, function.module)
        parameters = [a.arg for a in node.args.args]
        own = parameters[1:] if is_method and not is_static(node) else parameters
        told = _answer(node)
        if len(own) != 1 or told is None:
            return []
        same = isinstance(told, ast.BoolOp) and isinstance(told.op, ast.And) is holds
        for part in told.values if isinstance(told, ast.BoolOp) and same else [told]:
            match part:
                case ast.Call(args=[ast.Name(id=name), *_]) if name == own[0]:
                    is_test = last_name(part.func) == "isinstance" or len(part.args) == 1
                    asked = self._meant(part, function.module, holds, depth - 1) if is_test else []
                    if asked:
                        return asked
        return []


def _answer(function: ast.AST) -> ast.expr | None:
    """The only thing that a function does: it answers with an expression."""
    match function:
        case ast.Lambda(body=told):
            return told
        case ast.FunctionDef(body=[ast.Return(value=told)]):
            return told
        case ast.FunctionDef(body=[ast.Expr(value=ast.Constant()), ast.Return(value=told)]):
            return told
    return None
