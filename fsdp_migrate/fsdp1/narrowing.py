"""What tests tell of FSDP1 models: ``if isinstance(model, FSDP)``, ``if args.fsdp``.

Code that is only reached by what is no FSDP1 model is not FSDP1's, whatever else the same name may
stand for, and in the other branch there is nothing else. FSDP2's test draws the same line, so that
this holds for the migrated program too.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import replace
from enum import Enum

from fsdp_migrate.analysis.flow import Test, access_path
from fsdp_migrate.analysis.module import Module
from fsdp_migrate.analysis.tracing.calls import TRANSPARENT_CALLS
from fsdp_migrate.analysis.tracing.setting_facts import SettingFacts
from fsdp_migrate.analysis.tracing.tracer import Tracer
from fsdp_migrate.analysis.values import (
    Class,
    Computed,
    Constant,
    Display,
    External,
    Made,
    Unknown,
    Value,
)
from fsdp_migrate.fsdp1 import api as fsdp1
from fsdp_migrate.fsdp1 import (
    class_questions,
    declared,
    kept_parameters,
    model_values,
    overridden,
    told_classes,
    unwrapping,
)
from fsdp_migrate.fsdp1.last_given import LastGiven
from fsdp_migrate.fsdp1.predicates import Predicates
from fsdp_migrate.syntax.trees import last_part

# Wrappers that FSDP1's models are no instances of, nor FSDP2's.
OTHERS = frozenset(
    (
        *("torch.nn.parallel.DistributedDataParallel", "torch.nn.DataParallel"),
        "torch.nn.parallel.distributed.DistributedDataParallel",
        *("torch.nn.parallel.DataParallel", "torch.nn.parallel.data_parallel.DataParallel"),
    )
)


class Asked(Enum):
    """What a test has to be asked whose classes do not tell by their names."""

    OBJECT = "what is tested"


class Narrowing:
    """Answers for one project, through its tracer."""

    def __init__(self, tracer: Tracer) -> None:
        self.tracer = tracer
        self._apart = Tracer(tracer.project)  # its questions do not mix with those under way
        self._settings = SettingFacts(self._apart)
        self._last_given = LastGiven(tracer, self._apart, self._settings)
        self._predicates = Predicates(self._apart)
        self._compiled: set[ast.AST] | None = None
        self._told_by: dict[Test, bool | Asked | None] = {}

    def narrowed(self, found: list[Value], node: ast.expr, module: Module) -> list[Value]:
        """The values that a path may have where ``node`` uses it, of those it may have at all."""
        found = self._as_typed(self._of_settings(found, node, module), node, module)
        gone = overridden.unmet(found, node, module, self._apart)
        if gone:
            found = self._left([v for v in found if v not in gone], node, module)
        tests = self._tests(node, module)
        if not tests:
            return found
        found = self._of_classes(found, node, module)
        models = [v for v in found if model_values.is_model(v, self.tracer)]
        if not models and not any(self._told_by_names(test, module) is True for test in tests):
            return found  # of which nothing else is told than that it is no model
        verdict = self.verdict(node, module)
        if verdict is None or not found:
            return found
        if verdict:  # whatever the callers in sight give
            unsure: list[Value] = [v for v in found if isinstance(v, (Computed, Unknown))]
            return self._left(models or unsure, node, module)
        if not models or self._is_handed_on(node, module):
            return found
        told = any(t.holds and self._is_told_apart(t, module) for t in tests)
        kept = [v for v in found if v not in models or (self._is_compiled(v) and not told)]
        return self._left(kept, node, module)

    def _left(self, kept: list[Value], node: ast.expr, module: Module) -> list[Value]:
        """The values that are kept; where none is, something that nothing is known of."""
        return kept or self.tracer.if_nothing(Computed(node, module))

    def _of_settings(self, found: list[Value], node: ast.expr, module: Module) -> list[Value]:
        """Without what is made only under settings that do not hold where ``node`` stands."""
        made = [v for v in found if type(v) is Made and isinstance(v.node, ast.Call)]
        if not any(model_values.is_model(v, self.tracer) for v in made):
            return found
        place = (node, module)
        gone = {v for v in made if self._settings.exclude((self._chosen(v), v.module), place)}
        if gone:
            found = self._left([v for v in found if v not in gone], node, module)
        return self._last_given.kept(found, node, module) if len(found) > 1 else found

    def _chosen(self, made: Made) -> ast.AST:
        """Where an object's class is named under a condition, ``(FSDP if flag else DDP)(model)``;
        else the call."""
        match made.node:
            case ast.Call(func=ast.IfExp(body=body, orelse=orelse)):
                for branch in (body, orelse):
                    called = self.tracer.evaluate(branch, made.module)
                    if called and all(_is_same_class(each, made.callee) for each in called):
                        return branch
        return made.node

    def _of_classes(self, found: list[Value], node: ast.expr, module: Module) -> list[Value]:
        """Without objects of the project's own classes that the tests passed tell apart."""
        tests = self._tests(node, module)
        passed = [t for t in tests if not t.crossed or self._stays(t, module)]
        gone = told_classes.excluded(found, passed, module, self._apart)
        if not gone:
            return found
        return self._left([v for v in found if v not in gone], node, module)

    def _as_typed(self, found: list[Value], node: ast.expr, module: Module) -> list[Value]:
        """What the type of a parameter says, where only tests are seen to give it something: what
        they give stands in for the model."""
        if not isinstance(node, ast.Name) or module.is_of_tests:
            return found
        given = [v for v in found if not (isinstance(v, Constant) and v.value is None)]
        if not given or not all(v.module.is_of_tests for v in given):
            return found
        scope = module.table.scope_of(node)
        bindings = scope.bindings.get(node.id, [])
        parameter = bindings[0].node if len(bindings) == 1 else None
        typed = Unknown(parameter or node, module, None, "only tests are seen to call this")
        if any(model_values.is_model(v, self.tracer) for v in given):
            return found
        return [typed] if declared.model(frozenset({typed}), self._apart).model else found

    def is_never_met(self, made: ast.AST, module: Module, used: ast.expr, user: Module) -> bool:
        """Whether what is made at one place is never used at another, as settings tell."""
        return self._settings.exclude((made, module), (used, user))

    def classes_told(self, node: ast.expr, module: Module) -> Iterator[list[ast.expr]]:
        """The classes of which what ``node`` uses certainly is one, for each test passed."""
        for test in self._tests(node, module):
            match test.node:
                case ast.Call(func=ast.Name(id="isinstance"), args=[_, asked]) if test.holds:
                    if not test.crossed or self._stays(test, module):
                        yield asked.elts if isinstance(asked, ast.Tuple) else [asked]

    def verdict(self, node: ast.expr, module: Module) -> bool | None:
        """Whether what ``node`` uses certainly is an FSDP1 model, or is none; None if neither."""
        verdicts = [self._told(test, module) for test in self._tests(node, module)]
        return False if False in verdicts else (True if True in verdicts else None)

    def is_told_by(self, condition: ast.expr, node: ast.expr, module: Module) -> bool:
        """Whether a condition alone tells that what ``node`` uses is an FSDP1 model, and would tell
        that it is none where it does not hold."""
        if isinstance(condition, ast.UnaryOp) and isinstance(condition.op, ast.Not):
            condition = condition.operand
        return any(
            test.node is condition
            and self._told(test, module) is True
            and self._told(replace(test, holds=not test.holds), module) is False
            for test in self._tests(node, module)
        ) and not any(map(self._is_compiled, self.tracer.evaluate(node, module)))

    def _tests(self, node: ast.expr, module: Module) -> frozenset[Test]:
        found = self._of_path(node, module)
        kept = kept_parameters.tests(node, module, self._apart)
        return found.union(kept) if isinstance(node, ast.Attribute) else found

    def _of_path(self, node: ast.expr, module: Module) -> frozenset[Test]:
        last = last_part(node)
        tested, called = module.table.tested, self._predicates.called(module)
        if last not in tested and last not in called:
            return frozenset()  # as nearly always
        scope = module.table.scope_of(node).home()
        if scope not in tested.get(last, ()) and scope not in called.get(last, ()):
            return frozenset()
        return module.flow(scope).tests.get(node, frozenset())

    def _told(self, test: Test, module: Module) -> bool | None:
        """Whether a test tells that something is an FSDP1 model, or is none; asked once."""
        told = self._told_by_names(test, module)
        if not isinstance(told, Asked):
            return told
        self._told_by[test] = answer = False if self._is_told_apart(test, module) else None
        return answer

    def _told_by_names(self, test: Test, module: Module) -> bool | Asked | None:
        """As :meth:`_told`, by the names of classes: where they do not tell, it is dear to ask what
        the object may be."""
        if test not in self._told_by:
            self._told_by[test] = self._ask(test, module)
        return self._told_by[test]

    def _ask(self, test: Test, module: Module) -> bool | Asked | None:
        if test.crossed and not self._stays(test, module):
            return None
        if not test.holds and unwrapping.takes_off(test.node, module, self._apart):
            return None  # of FSDP2 models it may be asked for other wrappers alone
        asked = self._predicates.asked(test, module)
        classes = [c for node, where in asked for c in self._classes(node, where)]
        project = self.tracer.project
        if any(project.look_alikes(*c) for c in classes):
            return None
        if not test.holds:
            return False if any(self._names(*c) & {fsdp1.FSDP} for c in classes) else None
        if classes and all(self._is_fsdp1s(*c) for c in classes):
            return True
        names = [project.external(*c) for c in classes]
        if names and all(n and n <= OTHERS for n in names):
            return False
        return Asked.OBJECT

    def _is_told_apart(self, test: Test, module: Module) -> bool:
        """Whether a test asks for a class that no FSDP1 model is of, compiled or not."""
        return class_questions.is_told_apart(test.node, module, self._apart)

    def _classes(self, node: ast.expr, module: Module) -> Iterator[tuple[ast.expr, Module]]:
        """The classes that ``isinstance`` is given, one by one, with the module they stand in."""
        if isinstance(node, ast.Tuple):
            for element in node.elts:
                yield from self._classes(element, module)
        elif isinstance(node, ast.BinOp) and isinstance(node.op, ast.BitOr):
            yield from self._classes(node.left, module)
            yield from self._classes(node.right, module)
        elif isinstance(node, ast.Name) and not self.tracer.project.external(node, module):
            found = self._apart.evaluate(node, module)
            single = next(iter(found)) if len(found) == 1 else None
            if isinstance(single, Display) and isinstance(single.node, ast.Tuple):
                yield from self._classes(single.node, single.module)
            else:
                yield node, module
        else:
            yield node, module

    def _names(self, node: ast.expr, module: Module) -> set[str]:
        found = map(fsdp1.canonical, self.tracer.project.external(node, module))
        return {name or "" for name in found}

    def _is_fsdp1s(self, node: ast.expr, module: Module) -> bool:
        """Whether a class is FSDP1's, or derived from it."""
        names = self._names(node, module)
        if names:
            return names == {fsdp1.FSDP}
        found = self._apart.evaluate(node, module)
        return bool(found) and all(
            isinstance(v, Class)
            and fsdp1.FSDP in map(fsdp1.canonical, self._apart.external_bases(v))
            for v in found
        )

    def _stays(self, test: Test, module: Module) -> bool:
        """Whether a path is what was tested still, although calls were given what it starts from.

        ``self.log()`` leaves ``self.model`` alone in a class that assigns it in ``__init__`` only.
        """
        match test.path.split("."):
            case [_]:
                return True
            case ["self", attr] if "[" not in attr:
                pass
            case _:
                return False
        here = module.table.scope_of(test.node).function()
        cls = None if here is None else module.table.parents.get(here.node)
        if here is None or not isinstance(cls, ast.ClassDef):
            return False
        assigning = self._apart.assigning(Class(cls, module), attr)
        return all(method is here.node or method.name == "__init__" for method in assigning)

    def _is_handed_on(self, node: ast.expr, module: Module) -> bool:
        """Whether a path goes where what was inside FSDP1's wrapper goes elsewhere.

        ``return model.module if isinstance(model, FSDP) else model``: FSDP2 wraps nothing, so that
        what comes out on either way may be a migrated model.
        """
        table, path = module.table, access_path(node)
        parent = table.parents[node]
        if isinstance(parent, ast.Attribute):
            return False
        here = table.scope_of(node).function()
        return any(
            access_path(attribute.value) == path
            and table.scope_of(attribute).function() is here
            and self.verdict(attribute.value, module) is not False
            for attribute in table.attributes_by_name.of(unwrapping.INNER)
        )

    def _is_compiled(self, model: Value) -> bool:
        """Whether a model may be inside torch.compile's wrapper, which is no instance of FSDP."""
        if self._compiled is None:
            self._compiled = set()
            for call, module in self.tracer.calls_named("compile", "optimize"):
                if (
                    call.args
                    and self.tracer.project.external(call.func, module) & TRANSPARENT_CALLS
                ):
                    found = self._apart.evaluate(call.args[0], module)
                    self._compiled |= {v.node for v in found if isinstance(v, Made)}
        return model.node in self._compiled


def _is_same_class(value: Value, callee: External | Class | None) -> bool:
    match value, callee:
        case External(name=name), External(name=other):
            return name == other
        case Class(node=node), Class(node=other_node):
            return node is other_node
    return False
