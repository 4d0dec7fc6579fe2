"""What is known of a program's settings where a statement runs.

``if args.fsdp: model = FSDP(net)`` in one function and ``if args.fsdp: ... else: ...`` in another
ask the same question, and it has one answer in a run: what is made under one answer is never met
under the other. Settings are taken to be settled before any model is made: only an assignment
between the two is looked for.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator

from fsdp_migrate.analysis.module import Module
from fsdp_migrate.analysis.tracing.facts import (
    ABSENT,
    NOTHING,
    Fact,
    Facts,
    compared_value,
    contradict,
    either,
    matched_values,
    sure,
)
from fsdp_migrate.analysis.tracing.functions import class_of_method, has_decorator
from fsdp_migrate.analysis.tracing.setting_changes import Place, SettingChanges
from fsdp_migrate.analysis.tracing.setting_names import OBJECT, OWN, SettingNames
from fsdp_migrate.analysis.tracing.tags import Tags
from fsdp_migrate.analysis.tracing.tracer import Tracer
from fsdp_migrate.analysis.values import Class, External, Function, FunctionNode
from fsdp_migrate.syntax import conditions
from fsdp_migrate.syntax.expressions import last_name
from fsdp_migrate.syntax.name_table import NameTable
from fsdp_migrate.syntax.scopes import Kind
from fsdp_migrate.syntax.trees import FUNCTIONS, LOOPS

FALSE = frozenset({None, False, ""})
TRUTH = "bool("
# ``1 < size`` is ``size > 1``.
MIRRORED = {ast.Gt: ast.Lt, ast.GtE: ast.LtE, ast.Lt: ast.Gt, ast.LtE: ast.GtE}
DEPTH = 6  # definitions that are followed
BASES = frozenset({"builtins.object", "abc.ABC", "typing.Generic", "typing.Protocol"})
DECORATORS = frozenset({"staticmethod", "classmethod", "no_grad", "inference_mode", "wraps"})


class SettingFacts:
    """Answers for one project, through a tracer of its own."""

    def __init__(self, tracer: Tracer) -> None:
        self.tracer = tracer
        self.names = SettingNames(tracer)
        self.tags = Tags(tracer)
        self.changes = SettingChanges(tracer)
        self._told: dict[ast.AST, tuple[Facts, str]] = {}  # of attributes of ``self``
        self._here: dict[ast.AST, Facts] = {}
        self._only_called: dict[FunctionNode, bool] = {}
        self._contradicting: dict[tuple[Facts, Facts], bool] = {}

    def equals(self, key: ast.expr, value: object, module: Module) -> Facts:
        """What is known where a setting has a value."""
        setting = self.names.setting(key, module)
        values: frozenset[object] = frozenset({value})
        return self._read(key, setting, values, module, holds=True) if setting else NOTHING

    def exclude(self, made: Place, used: Place, also: Facts = NOTHING) -> bool:
        """Whether what is made at one place cannot be met at the other, in any run.

        Args:
            also: what is known besides where it is made.
        """
        if self._is_tagged_otherwise(made, used):
            return True
        there = self.at(*made)
        there = there | also if also else there
        if not there:
            return False  # nearly always, for each of very many
        here = self.at(*used)
        if (there, here) not in self._contradicting:
            self._contradicting[there, here] = contradict(there, here, lambda setting: True)
        if not self._contradicting[there, here]:
            return False  # as nearly always
        return contradict(
            there,
            here,
            lambda name: (
                self._is_one_answer(name, *used) and not self.changes.may_come(name, made, used)
            ),
        )

    def is_certainly_taken(self, branch: ast.If, *, body: bool, used: Place) -> bool:
        """Whether the body of an ``if``, or else its ``else``, has certainly run where a place
        behind it in the same call, or in a method of the object that it sets up, runs."""
        where = used[1]
        otherwise = self.told_by(branch.test, where, holds=not body)
        here = self.at(*used) if otherwise else NOTHING
        if not here:
            return False
        return contradict(
            otherwise, here, lambda name: not self.changes.may_come(name, (branch, where), used)
        )

    def _is_tagged_otherwise(self, made: Place, used: Place) -> bool:
        """Whether another attribute tells that ``self.model`` is not what is made there."""
        node, module = used
        match node:
            case ast.Attribute(value=ast.Name(id="self") as owner):
                if node not in self._told:
                    name = self.names.setting(owner, module, is_owner=True)
                    own = f"{name}." if name.startswith(OWN) else ""
                    self._told[node] = frozenset(self._in_module(*used)) if own else NOTHING, own
                known, own = self._told[node]
                return bool(known) and self.tags.exclude(made, used, known, own)
        return False

    def at(self, node: ast.AST, module: Module) -> Facts:
        """What is known where ``node`` runs, from the branches around it and around all calls."""
        known = self._here.get(node)
        if known is None:
            self._here[node] = NOTHING  # of a function that calls itself
            known = self._here[node] = self._around(node, module)
        return known

    def _around(self, node: ast.AST, module: Module) -> Facts:
        found = set(self._in_module(node, module))
        for function in module.table.ancestors(node):
            if not isinstance(function, FUNCTIONS):
                continue
            for called in {function, self._making(function, module)} - {None}:
                if called is not None and self._callers_are_known(called, module):
                    callers = self.tracer.callers(called, module)
                    # A test makes for itself what it tests.
                    callers = [c for c in callers if not c.module.is_of_tests] or callers
                    each = [self.at(c.call, c.module) for c in callers]
                    found |= frozenset.intersection(*each) if each else NOTHING
        return frozenset(found)

    def _making(self, method: FunctionNode, module: Module) -> FunctionNode | None:
        """The ``__init__`` that has run where a method does: what is known where all objects of
        its class are made is known there."""
        cls = class_of_method(method, module)
        needs_none = has_decorator(method, "staticmethod", "classmethod")
        if cls is None or needs_none or self.tracer.subclasses(Class(cls, module)):
            return None
        own = (n for n in cls.body if isinstance(n, ast.FunctionDef) and n.name == "__init__")
        return next(own, None)

    def _callers_are_known(self, function: FunctionNode, module: Module) -> bool:
        """Whether a function is nowhere handed on, and nobody else has a name to call it by."""
        known = self._only_called.get(function)
        if known is None:
            known = self._only_called[function] = self._is_only_called(function, module)
        return known

    def _is_only_called(self, function: FunctionNode, module: Module) -> bool:
        if isinstance(function, ast.Lambda):
            return False
        cls, name = class_of_method(function, module), function.name
        if cls is not None and name == "__init__":
            if cls.decorator_list:
                return False  # a registry may make objects of it
            name = cls.name
        elif cls is not None and self._others_may_call(name, Class(cls, module)):
            return False
        if any(not _leaves_callers(decorator) for decorator in function.decorator_list):
            return False
        for other in self.tracer.project.modules:
            if not other.mentions(name):
                continue
            table = other.table
            named: list[ast.Name | ast.Attribute] = [*table.names_by_id.named(name)]
            for use in (*named, *table.attributes_by_name.named(name)):
                parent = table.parents[use]
                called = isinstance(parent, ast.Call) and parent.func is use
                if isinstance(use.ctx, ast.Load) and not called and not _is_kind(use, table):
                    return False
        return True

    def _others_may_call(self, method: str, cls: Class) -> bool:
        """Whether Python, or the library that has a base class, may call a method."""
        for related in self.tracer.lineage(cls):
            for base in related.node.bases:
                values = self.tracer.evaluate(base, related.module)
                if not values or any(not isinstance(v, (Class, External)) for v in values):
                    return True  # nobody knows what it is derived from
        bases = self.tracer.external_bases(cls) - BASES
        is_torchs = all(base.startswith("torch.nn.") for base in bases) and method != "forward"
        return method.startswith("__") or not is_torchs

    def _in_module(self, node: ast.AST, module: Module) -> Iterator[frozenset[Fact]]:
        """What the branches around a node tell."""
        for test, holds in conditions.around(node, module.table):
            yield from self.told_by(test, module, holds=holds)
        for parent in module.table.ancestors(node):
            if isinstance(parent, ast.match_case):
                yield from self._matched(parent, module)

    def _matched(self, case: ast.match_case, module: Module) -> Iterator[frozenset[Fact]]:
        """What a ``case`` tells of a setting that ``match`` looks at."""
        match module.table.parents[case]:
            case ast.Match(subject=subject, cases=cases) if setting := self.names.setting(
                subject, module
            ):
                for each in cases[: cases.index(case) + 1]:
                    values = matched_values(each.pattern)
                    if values is not None and (each is case or each.guard is None):
                        yield from self._read(subject, setting, values, module, holds=each is case)

    # -- conditions -----------------------------------------------------------------------------

    def told_by(self, test: ast.expr, module: Module, *, holds: bool, depth: int = 0) -> Facts:
        """What must be true of settings where a condition holds, or does not."""
        if depth > DEPTH:
            return NOTHING
        deeper = depth + 1
        match test:
            case ast.UnaryOp(op=ast.Not(), operand=operand):
                return self.told_by(operand, module, holds=not holds, depth=deeper)
            case ast.BoolOp(op=op, values=values):
                parts = [self.told_by(v, module, holds=holds, depth=deeper) for v in values]
                if isinstance(op, ast.And) is holds:
                    return frozenset().union(*parts)
                return either(parts)
            case ast.IfExp(test=asked):  # True if not args.ddp else False
                arms = [(test.body, True), (test.orelse, False)]
                told = [
                    self.told_by(asked, module, holds=taken, depth=deeper)
                    | self.told_by(arm, module, holds=holds, depth=deeper)
                    for arm, taken in arms
                    if not isinstance(arm, ast.Constant) or bool(arm.value) is holds
                ]
                return either(told) if told else NOTHING
            case ast.Compare(
                left=ast.Constant(value=str(last)), ops=[ast.In() | ast.NotIn() as op]
            ):
                there = isinstance(op, ast.In) is holds
                return NOTHING if there else self._absent(test.comparators[0], last, module)
            case ast.Compare(left=left, ops=[op], comparators=[right]):
                return self._compared(left, op, right, module, holds)
            case ast.Call(func=ast.Name(id="bool"), args=[asked], keywords=[]):
                return self.told_by(asked, module, holds=holds, depth=deeper)
            case ast.Call(func=ast.Name(id="hasattr"), args=[base, ast.Constant(value=str(last))]):
                return NOTHING if holds else self._absent(base, last, module)
        meant = self._meant(test, module)
        found = NOTHING
        if meant is not None:
            found = self.told_by(*meant, holds=holds, depth=deeper)
            if found and self.told_by(*meant, holds=not holds, depth=deeper):
                return found
        # The name has a value as well where its condition tells nothing, one way or the other.
        setting = self.names.setting(test, module)
        if setting.startswith(TRUTH):
            setting = setting[len(TRUTH) : -1]  # whether it holds is all that is asked here
        own = self._read(test, setting, FALSE, module, holds=not holds) if setting else NOTHING
        return found | own

    def _absent(self, base: ast.expr, last: str, module: Module) -> Facts:
        """What is known where an object does not have an attribute or an item."""
        owner = self.names.setting(base, module, is_owner=True)
        return sure(Fact(f"{owner}.{last}", ABSENT, holds=True)) if owner else NOTHING

    def _read(
        self,
        node: ast.expr,
        setting: str,
        values: frozenset[object],
        module: Module,
        *,
        holds: bool,
    ) -> Facts:
        """What a read tells of a setting: where there is none, it may give a default."""
        default = self.names.default(node, module)
        value = compared_value(default) if default is not None else None
        may_be_absent = default is not None and (value is None or (value[0] in values) is holds)
        return sure(Fact(setting, values | ABSENT if may_be_absent is holds else values, holds))

    def _compared(
        self, left: ast.expr, op: ast.cmpop, right: ast.expr, module: Module, holds: bool
    ) -> Facts:
        if isinstance(left, ast.Constant):
            left, right, op = right, left, MIRRORED.get(type(op), type(op))()
        values: frozenset[object] | None = None
        match op:
            case ast.Gt() | ast.GtE() | ast.Lt() | ast.LtE():
                return self._ordered(left, op, right, module, holds)
            case ast.Eq() | ast.NotEq() | ast.Is() | ast.IsNot():
                value = compared_value(right)
                values = frozenset(value) if value else None
            case ast.In() | ast.NotIn() if isinstance(right, (ast.List, ast.Tuple, ast.Set)):
                each = [compared_value(element) for element in right.elts]
                values = frozenset(v[0] for v in each if v) if all(each) and each else None
        setting = self.names.setting(left, module) if values else ""
        if not setting or values is None:
            return NOTHING
        same = isinstance(op, (ast.Eq, ast.Is, ast.In))
        return self._read(left, setting, values, module, holds=same is holds)

    def _ordered(
        self, left: ast.expr, op: ast.cmpop, right: ast.expr, module: Module, holds: bool
    ) -> Facts:
        """What ``world_size > 1`` tells: the answer to one question, which ``<=`` asks as well."""
        limit = right.value if isinstance(right, ast.Constant) else None
        setting = self.names.setting(left, module) if isinstance(limit, int) else ""
        if not setting:
            return NOTHING
        above = isinstance(op, (ast.Gt, ast.GtE))
        asked = ">" if isinstance(op, (ast.Gt, ast.LtE)) else ">="
        return sure(Fact(f"{setting} {asked} {limit!r}", FALSE, holds=above is not holds))

    def _meant(self, test: ast.expr, module: Module) -> tuple[ast.expr, Module] | None:
        """The condition that a name, an attribute or a function without parameters stands for."""
        if isinstance(test, ast.Call):
            if test.args or test.keywords:
                return None
            found = self.tracer.evaluate(test.func, module)
            function = next(iter(found)) if len(found) == 1 else None
            if isinstance(function, Function) and isinstance(function.node, FUNCTIONS):
                returned = function.module.table.returns.get(function.node, [])
                if len(returned) == 1 and returned[0].value and not function.node.args.args:
                    return returned[0].value, function.module
            return None
        kept = self.names.assigned(test, module)
        if kept is None:
            return None
        value, where = kept
        conditions = (ast.Compare, ast.BoolOp, ast.UnaryOp, ast.Call, ast.IfExp)
        is_condition = isinstance(value, conditions)
        return kept if is_condition or self.names.setting(value, where) else None

    def _is_one_answer(self, setting: str, node: ast.AST, module: Module) -> bool:
        """Whether a model met at ``node`` was made under the answer that a setting has there.

        That of one call, or of one object, says nothing of a model that comes from another; an
        object's may come from an earlier call of a method that runs more than once.
        """
        if not setting.startswith(OWN):
            return True
        match node:
            case ast.Attribute():
                is_kept = _is_of_self(node)
                return is_kept and (OBJECT in setting or not self._runs_again(node, module))
            case ast.Name(id=name):
                owner = module.table.scope_of(node).lookup(name)
                bindings = owner.bindings.get(name, []) if owner is not None else []
                kept = [b.value for b in bindings if b.value is not None and _is_of_self(b.value)]
                return all(b.kind is not Kind.PARAMETER for b in bindings) and all(
                    self._is_one_answer(setting, value, module) for value in kept
                )
        return False

    def _runs_again(self, node: ast.AST, module: Module) -> bool:
        """Whether the project calls the method around ``node`` at several places, or in a loop."""
        around = module.table.scope_of(node).function()
        method = around.node if around is not None else None
        if not isinstance(method, FUNCTIONS) or getattr(method, "name", "") == "__init__":
            return False
        calls = self.tracer.callers(method, module)
        looped = (isinstance(a, LOOPS) for c in calls for a in c.module.table.ancestors(c.call))
        return len(calls) > 1 or any(looped)


def _is_kind(use: ast.expr, table: NameTable) -> bool:
    """Whether a use of a class makes no object of it: ``isinstance(x, Name)``, an annotation."""
    child: ast.AST = use
    for parent in table.ancestors(use):
        match parent:
            case ast.Call(func=ast.Name(id="isinstance"), args=[_, kind]):
                return kind is child
            case ast.arg():
                return True
            case ast.AnnAssign(annotation=kind) | ast.FunctionDef(returns=kind):
                return kind is child
            case ast.Subscript() | ast.Tuple() | ast.BinOp(op=ast.BitOr()):
                child = parent
            case _:
                return False
    return False


def _leaves_callers(decorator: ast.expr) -> bool:
    """Whether a function is called by nobody else for having a decorator."""
    name = decorator.func if isinstance(decorator, ast.Call) else decorator
    return last_name(name) in DECORATORS


def _is_of_self(node: ast.expr) -> bool:
    """Whether something is kept in an object, or in what that keeps: ``self.parts.model``."""
    if not isinstance(node, ast.Attribute):
        return False
    while isinstance(node, ast.Attribute):
        node = node.value
    return isinstance(node, ast.Name) and node.id == "self"
