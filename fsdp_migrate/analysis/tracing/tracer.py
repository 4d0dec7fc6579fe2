"""What an expression may be, traced to where it was made, over the whole project.

Demand-driven: nothing is computed before a rule asks. :meth:`Tracer.evaluate` returns a set of
:class:`Value`, each with its *origin*: the expression that made it and the module it stands in.
The world is closed (every call of a function is in the given paths); what cannot be followed is an
:class:`Unknown` that says why. One level of call context is kept per call, three levels deep, so
that ``make_policy(Block)`` and ``make_policy(Expert)`` are not mixed up.
"""

from __future__ import annotations

import ast
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator
from typing import Any

from fsdp_migrate.analysis.module import Module
from fsdp_migrate.analysis.project import Project
from fsdp_migrate.analysis.tracing import computed_names
from fsdp_migrate.analysis.tracing.answers import Answers
from fsdp_migrate.analysis.tracing.attributes import Attributes
from fsdp_migrate.analysis.tracing.branches_taken import BranchesTaken
from fsdp_migrate.analysis.tracing.call_graph import CallGraph
from fsdp_migrate.analysis.tracing.calls import Calls
from fsdp_migrate.analysis.tracing.class_hierarchy import ClassHierarchy
from fsdp_migrate.analysis.tracing.containers import Containers
from fsdp_migrate.analysis.tracing.functions import argument_of
from fsdp_migrate.analysis.tracing.names import Names
from fsdp_migrate.analysis.tracing.names_only import ClassAttributes, NoCalls
from fsdp_migrate.analysis.tracing.project_index import ProjectIndex
from fsdp_migrate.analysis.tracing.registries import Registries
from fsdp_migrate.analysis.tracing.sequences import Sequences
from fsdp_migrate.analysis.tracing.unbound import Unbound
from fsdp_migrate.analysis.values import (
    Class,
    Computed,
    Constant,
    Display,
    Frame,
    Function,
    Value,
    Values,
)
from fsdp_migrate.syntax.expressions import holder_of_attributes


class Tracer:
    """Asks its parts what an expression may be, and keeps the answers."""

    argument = staticmethod(argument_of)

    def __init__(
        self,
        project: Project,
        attributes: type[Attributes] = Attributes,
        calls: type[Calls] = Calls,
    ) -> None:
        self.project = project
        self.outdated: Collection[ast.AST] = project.outdated  # what is taken not to run
        self.wraps: set[ast.AST] = set()  # calls of torch's wrap() that make FSDP1 models
        # Expressions that rules read the code by, and what they are: none of them is written there.
        self.stands_for: dict[ast.expr, Callable[[], Iterable[Value]]] = {}
        # What is left of the values of a path where tests of it have been passed; and whether
        # these say that it is, or is not, an FSDP1 model.
        self.narrow: Callable[[list[Value], ast.expr, Module], list[Value]] = lambda v, *_: v
        self.told: Callable[[ast.expr, Module], bool | None] = lambda *_: None
        # Whether a run has shown an expression to be a model, or none; the second has it asked.
        self.shown: Callable[[ast.expr, Module], bool | None] = lambda *_: None
        self.settled: Callable[[ast.expr, Module], bool | None] = lambda *_: None
        # What others have found out by asking, which lasts as long as the values do.
        self.found_out: dict[Callable[..., object], dict[Any, Any]] = defaultdict(dict)
        answers = self._answers = Answers()
        index = ProjectIndex(project)
        classes = ClassHierarchy(
            self, answers, index, lambda: Tracer(project, ClassAttributes, NoCalls).lineage
        )
        sequences = Sequences(self, index)
        self._containers = Containers(self, index, classes, sequences, answers)
        self._branches = BranchesTaken(self)
        self._unbound = Unbound()
        self._names = Names(self, self._containers, sequences, self._branches)
        self._attributes = attributes(self, answers, index, classes, self._names)
        self.moment = self._attributes.order.moment
        graph = CallGraph(self, index, classes, self._attributes, answers)
        registries = Registries(self, index, classes)
        self._calls = calls(self, graph, registries, self._branches, self._containers)
        # What is asked of the parts.
        self.lineage: Callable[[Class], list[Class]] = classes.lineage
        self.family = classes.family
        self.subclasses, self.derived = classes.subclasses, classes.derived
        self.external_bases = classes.external_bases
        self.has_attribute = self._attributes.has_attribute
        self.assigning, self.stores = self._attributes.assigning, self._attributes.stores
        self.assigned_later = self._attributes.assigned_later
        self.attribute_at, self.attribute_of = self._attributes.at, self._attributes.of_value
        self.parameter, self.frame = self._calls.parameter, self._calls.frame
        self.entered = self._names.entered
        self.callers, self.is_in_doubt = graph.callers, graph.is_in_doubt
        self.calls_named = index.calls_named
        self.methods_of_any = graph.methods_of_any
        self.built = registries.built
        self.seen_in = self._containers.seen_in
        self.spread = sequences.spread
        self.if_nothing = answers.if_nothing
        self.additions, self.models_in = self._containers.additions, self._containers.models_in
        self.arguments_named: Callable[[str], list[tuple[ast.expr, ast.Call, Module]]] = (
            lambda name: index.arguments.get(name, [])
        )
        self.stores_named: Callable[[str], list[tuple[ast.Attribute, Module]]] = lambda name: (
            index.attribute_stores.get(name, [])
        )
        self.defines_method: Callable[[str], bool] = lambda name: name in index.methods

    def evaluate(self, node: ast.expr, module: Module, frame: Frame | None = None) -> Values:
        """The values ``node`` may have. An empty set means unreachable or purely recursive."""
        key = (node, frame)
        final = self._answers.final
        if key in final:
            known: Values = final[key]
            return known
        if node in self.outdated:
            return frozenset()
        if frame is not None and self._unbound.has(node, module):
            return self.evaluate(node, module)
        found: Values = self._answers.ask(
            key, lambda: self._evaluate(node, module, frame), node, module
        )
        return found

    def attribute(self, value: Value, name: str, node: ast.AST, module: Module) -> Values:
        """The values of an attribute of ``value``, asked for by ``node`` in ``module``."""
        return frozenset(self.attribute_of(value, name, node, module))

    def _evaluate(self, node: ast.expr, module: Module, frame: Frame | None) -> Iterable[Value]:
        if node in self.stands_for:
            return self.stands_for[node]()
        match node:
            case ast.Constant():
                return [Constant(node, module, frame, node.value)]
            case ast.Name():
                return self.narrow(self._names.path(node, module, frame), node, module)
            case ast.Attribute():
                found = self._names.path(node, module, frame)
                found = found if found else self.attribute_at(node, module, frame)
                return self.narrow(found, node, module)
            case ast.Subscript():
                found = self._names.path(node, module, frame)
                found = found if found else self._entry(node, module, frame)
                return self.narrow(found, node, module)
            case ast.Call():
                return self._calls.result(node, module, frame)
            case ast.IfExp():
                taken = self._branches.answer(node.test, module, frame)
                parts = [node.body] * (taken is not False) + [node.orelse] * (taken is not True)
                return self._union(parts, module, frame)
            case ast.BoolOp():
                return self._union(node.values, module, frame)
            case ast.NamedExpr() | ast.Await() | ast.Starred():
                return self.evaluate(node.value, module, frame)
            case ast.Lambda():
                return [Function(node, module, frame)]
            case ast.List() | ast.Tuple() | ast.Set() | ast.Dict():
                return [Display(node, module, frame)]
            case ast.ListComp() | ast.SetComp() | ast.DictComp() | ast.GeneratorExp():
                return [Display(node, module, frame)]
        return [Computed(node, module, frame)]

    def _entry(self, node: ast.Subscript, module: Module, frame: Frame | None) -> list[Value]:
        """The values of ``container[key]``; ``vars(owner)["name"]`` is an attribute."""
        owner = holder_of_attributes(node.value)
        named = computed_names.names(node.slice, module, frame, self) if owner is not None else None
        if owner is not None and named:
            owners = self.evaluate(owner, module, frame)
            return [v for o in owners for n in named for v in self.attribute_of(o, n, node, module)]
        return self._containers.subscript(node, module, frame)

    def _union(
        self, nodes: Iterable[ast.expr], module: Module, frame: Frame | None
    ) -> Iterator[Value]:
        for node in nodes:
            yield from self.evaluate(node, module, frame)
