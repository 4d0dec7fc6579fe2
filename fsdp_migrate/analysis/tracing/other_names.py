"""The names under which calls may run what has another name: results, classes, instances."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from fsdp_migrate.analysis.module import Module
from fsdp_migrate.analysis.tracing.attributes import Attributes
from fsdp_migrate.analysis.tracing.class_hierarchy import ClassHierarchy
from fsdp_migrate.analysis.tracing.evaluator import Evaluator
from fsdp_migrate.analysis.tracing.functions import argument_of, is_static
from fsdp_migrate.analysis.tracing.project_index import ProjectIndex
from fsdp_migrate.analysis.values import Class, Function
from fsdp_migrate.syntax.expressions import last_name


class OtherNames:
    """The names that something is passed on under."""

    def __init__(
        self,
        tracer: Evaluator,
        index: ProjectIndex,
        classes: ClassHierarchy,
        attributes: Attributes,
    ) -> None:
        self.evaluate = tracer.evaluate
        self.index = index
        self.classes = classes
        self.attributes = attributes

    def of_instances(self, cls: Class) -> list[str]:
        """The names that instances of a class may have: ``loss`` of ``self.loss = Loss()``."""
        classes = (cls, *self.classes.subclasses(cls))
        return self.of_results(
            [c for each in classes for c in self.index.calls_named(each.node.name)]
        )

    def of_classes(self, classes: list[str]) -> list[str]:
        """The names under which classes may be called that are handed on by their own: as an
        argument, or out of a dictionary, as in ``{"model_cls": Model}``."""
        found: dict[str, None] = {}
        for name in classes:
            found.update(dict.fromkeys(self.index.keys.get(name, ())))
            found.update(dict.fromkeys(self._passed_on(name)))
        return [name for name in found if name not in classes]

    def of_results(self, made: list[tuple[ast.Call, Module]]) -> list[str]:
        """The names that the results of some calls may have, wherever they are passed on to."""
        found: dict[str, None] = {}
        for call, module in made:
            parent = module.table.parents[call]
            targets = parent.targets if isinstance(parent, ast.Assign) else []
            found.update(dict.fromkeys(name for t in targets if (name := last_name(t))))
            if isinstance(parent, ast.keyword) and parent.arg is not None:  # Trainer(run=partial())
                found[parent.arg] = None
        waiting = list(found)
        while waiting:
            for name in self._passed_on(waiting.pop()):
                if name not in found:
                    found[name] = None
                    waiting.append(name)
        return list(found)

    def _passed_on(self, name: str) -> Iterator[str]:
        """The parameters that get what has a name, and the names they are assigned to."""
        for given, call, module in self.index.arguments.get(name, []):
            for value in self.evaluate(call.func, module):
                functions = [value] if isinstance(value, Function) else []
                if isinstance(value, Class):
                    functions = [
                        f
                        for f in self.attributes.of_class(value, "__init__")
                        if isinstance(f, Function)
                    ]
                for function in functions:
                    yield from self._of_argument(
                        given, call, function, made=isinstance(value, Class)
                    )

    def _of_argument(
        self, given: ast.expr, call: ast.Call, function: Function, *, made: bool
    ) -> Iterator[str]:
        """The parameter that an argument is given for, and the names it is assigned to."""
        arguments = function.node.args
        bound = made or (function.owner is not None and not is_static(function.node))
        for each in (*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs):
            if argument_of(call, function.node, each.arg, bound=bound) is not given:
                continue
            yield each.arg
            scope = function.module.table.scopes[function.node]
            for definition in function.module.flow(scope).definitions:
                kept = definition.value
                if isinstance(kept, ast.Name) and kept.id == each.arg:
                    yield definition.path.rpartition(".")[2]
