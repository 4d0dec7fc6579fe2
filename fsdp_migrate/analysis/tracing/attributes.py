"""What attributes of instances, classes and modules are."""

from __future__ import annotations

import ast
from collections import defaultdict
from collections.abc import Iterator

from fsdp_migrate.analysis.flow import Definition, access_path
from fsdp_migrate.analysis.module import Module
from fsdp_migrate.analysis.tracing import compiled, owners
from fsdp_migrate.analysis.tracing.answers import Answers
from fsdp_migrate.analysis.tracing.class_hierarchy import ClassHierarchy
from fsdp_migrate.analysis.tracing.computed_names import ComputedNames
from fsdp_migrate.analysis.tracing.evaluator import Evaluator
from fsdp_migrate.analysis.tracing.functions import (
    exits,
    has_decorator,
    is_dataclass,
    is_given_fields,
)
from fsdp_migrate.analysis.tracing.items_as_attributes import ItemsAsAttributes
from fsdp_migrate.analysis.tracing.names import Names
from fsdp_migrate.analysis.tracing.project_index import ProjectIndex
from fsdp_migrate.analysis.tracing.set_up_order import Moment, SetUpOrder
from fsdp_migrate.analysis.tracing.settled_index import SettledIndex
from fsdp_migrate.analysis.values import (
    Class,
    External,
    Frame,
    Function,
    Made,
    ModuleValue,
    Unknown,
    Value,
)
from fsdp_migrate.fsdp1 import api as fsdp1
from fsdp_migrate.syntax.scopes import Binding, Kind
from fsdp_migrate.syntax.trees import FUNCTIONS

Method = ast.FunctionDef | ast.AsyncFunctionDef


class Attributes:
    """Follows attributes to the assignments in classes, methods and elsewhere."""

    def __init__(
        self,
        tracer: Evaluator,
        answers: Answers,
        index: ProjectIndex,
        classes: ClassHierarchy,
        names: Names,
    ) -> None:
        self.tracer = tracer
        self.evaluate = tracer.evaluate
        self.answers = answers
        self.index = index
        self.classes = classes
        self.names = names
        self.order = SetUpOrder(index.project)
        self._stores_by_class = SettledIndex(
            lambda name: index.attribute_stores.get(name, ()), self._receivers
        )
        self._by_name = ComputedNames(tracer, index, answers, names.containers.named)
        self._items = ItemsAsAttributes(tracer, answers, index)
        self._stored: dict[Module, dict[ast.AST, frozenset[str]]] = {}
        self._stores_found: dict[tuple[ast.ClassDef, str], list[tuple[Method, Definition]]] = {}

    def at(self, node: ast.Attribute, module: Module, frame: Frame | None) -> list[Value]:
        """The values of ``owner.name`` that those of ``owner`` tell."""
        if node.attr == compiled.INSIDE:
            found = compiled.inside(node.value, module, frame, self.tracer, self.index)
            if found is not None:
                return found
        result: list[Value] = []
        is_asked, computed = False, None  # of a property, as of the path, once for all owners
        stored: list[Value] | None = None
        for value in owners.one_of_each(self.evaluate(node.value, module, frame), node.attr):
            is_own = isinstance(value, Made) and isinstance(value.callee, Class)
            if isinstance(value, (Made, Unknown)) and not is_own:
                if not is_asked:
                    is_asked, computed = True, self._computed(node, module)
                    result += computed or ()
                if computed is not None:
                    continue
            if isinstance(value, Unknown):
                if stored is None:
                    stored = list(self._stored_under_path(node, module))
                    result += stored
                result.append(Unknown(node, module, why=value.why))
            else:
                result += self.of_value(value, node.attr, node, module)
        return result

    def _computed(self, node: ast.Attribute, module: Module) -> list[Value] | None:
        """What a property gives, of the class that a parameter is said to be of: nobody sets it,
        whoever made the object. None where it is no property."""
        if not isinstance(node.value, ast.Name):
            return None
        scope = module.table.within[node.value].lookup(node.value.id)
        bound = scope.bindings[node.value.id] if scope is not None else []
        said = bound[0].node if len(bound) == 1 else None
        if not isinstance(said, ast.arg) or said.annotation is None:
            return None
        for cls in self.evaluate(said.annotation, module):
            family = self.classes.family(cls) if isinstance(cls, Class) else []
            found = [(b, each) for each in family for b in _bound_in(each, node.attr)]
            if found and all(has_decorator(b.node, "property") for b, _ in found):
                return [v for binding, each in found for v in self.class_binding(binding, each)]
        return None

    def of_value(self, value: Value, attr: str, node: ast.AST, module: Module) -> list[Value]:
        """The values of an attribute of ``value``, asked for by ``node`` in ``module``."""
        match value:
            case External():
                name = value.below(attr)
                submodule = self.tracer.project.find(name, module)
                if submodule is not None:  # of a package that nothing else led to
                    return [ModuleValue(node, module, target=submodule)]
                return [External(node, module, name=name)]
            case ModuleValue(target=target) if target is not None:
                found = self.names.member(target, attr, node, module)
                found += self._stored_in_module(target, attr)
                why = f"{target.name} has no {attr}"
                return found or self.answers.if_nothing(Unknown(node, module, why=why))
            case Made(callee=Class() as cls):
                return self.of_instance(cls, attr, node, module)
            case Class():
                return self.of_instance(value, attr, node, module)
            case Made(made_by=made_by, node=ast.Call() as call) if made_by in owners.NAMESPACES:
                given = [k.value for k in call.keywords if k.arg == attr]
                if given:  # and what may be set afterwards
                    found = list(self.evaluate(given[0], value.module, value.frame))
                    return [*found, Unknown(node, module, why=f"{attr} may be set again")]
            case Made(made_by=made_by, node=ast.Call() as call) if owners.hands_on(made_by, attr):
                inner = owners.inside(call)
                if inner is not None:
                    return self._of_wrapped(inner, value, attr, node, module)
            case Made(made_by=made_by, node=ast.Call() as call) if owners.unwraps(made_by, attr):
                inner = owners.inside(call)
                inside = self.evaluate(inner, value.module, value.frame) if inner else ()
                again = [v for v in inside if owners.unwraps(getattr(v, "made_by", ""), attr)]
                # FSDP(FSDP(net)).module is a model as well; model = FSDP(model) has no other.
                if again and all(v.node is not call for v in again):
                    return again
            case Unknown():
                stored = self._stored_under_path(node, module)
                return [*stored, Unknown(node, module, why=value.why)]
        return [Unknown(node, module, why=f"the attribute {attr} is set outside these paths")]

    def _of_wrapped(
        self, inner: ast.expr, model: Made, attr: str, node: ast.AST, module: Module
    ) -> list[Value]:
        """The values of an attribute of the module inside a model, which may be wrapped again, and
        those that the project assigns to a model under that name: they hide the others."""

        def found() -> list[Value]:
            wrapped = self.evaluate(inner, model.module, model.frame)
            values = [v for each in wrapped for v in self.of_value(each, attr, node, module)]
            for store, where in self.index.attribute_stores.get(attr, ()):
                given = self.evaluate(store.value, where)
                if any(isinstance(v, Made) and owners.hands_on(v.made_by, attr) for v in given):
                    values += self._stored_value(store, where)
            return values

        return list(self.answers.ask((model.node, model.frame, attr), found, node, module))

    def _stored_in_module(self, target: Module, attr: str) -> Iterator[Value]:
        """What other files assign to a name of a module: ``state.model = FSDP(net)``."""
        for store, where in self.index.attribute_stores.get(attr, ()):
            given = self.evaluate(store.value, where)
            if any(isinstance(v, ModuleValue) and v.target is target for v in given):
                yield from self._stored_value(store, where)

    def _stored_under_path(self, node: ast.AST, module: Module) -> Iterator[Value]:
        """What methods of the class around assign to the same path: ``self.trainer.model``."""
        path = access_path(node) if isinstance(node, ast.Attribute) else None
        if path is None or not isinstance(node, ast.Attribute) or not path.startswith("self."):
            return
        here = None
        for store, where in self.index.attribute_stores.get(node.attr, ()):
            if where is module and access_path(store) == path:
                here = here or _class_around(node, module)
                if here is not None and _class_around(store, module) is here:
                    yield from self._stored_value(store, module)

    def of_instance(self, cls: Class, attr: str, node: ast.AST, module: Module) -> list[Value]:
        """The values of an attribute of a class and its instances."""
        moment = self._moment(cls, attr, node, module)
        key = (cls.node, attr if moment is None else f"{attr} before {moment.name}")
        found = self.answers.ask(key, lambda: self.of_class(cls, attr, moment), node, module)
        why = f"{attr} is set outside these paths"
        return list(found) or self.answers.if_nothing(Unknown(node, module, why=why))

    def _moment(self, cls: Class, attr: str, node: ast.AST, module: Module) -> Moment | None:
        """Up to where ``__init__`` has run at ``node``, if it assigns an attribute of ``self``, or
        of what it made itself, later."""
        if not isinstance(node, ast.Attribute) or not isinstance(node.ctx, ast.Load):
            return None
        stores = [d.node for _, d in self._stores(cls, attr)]
        owner = access_path(node.value)
        of_self = isinstance(node.value, ast.Name) and _class_around(node, module) is cls.node
        if not of_self:
            written = self.index.attribute_stores.get(attr, ())
            stores = [
                s for s, where in written if where is module and access_path(s.value) == owner
            ]
        if owner is None or not stores:
            return None
        moment = self.order.moment(node, module)
        if moment is None or not any(moment.precedes(store, module) for store in stores):
            return None
        return moment if of_self or self._is_made_before(owner, moment, module) else None

    def assigned_later(self, node: ast.Attribute, module: Module) -> bool:
        """Whether ``__init__`` assigns ``self.a.b`` only after ``node`` has asked for it."""
        moment, path = self.order.moment(node, module), access_path(node)
        if moment is None or path is None:
            return False
        definitions = module.flow(module.table.scopes[moment.function]).definitions
        return any(d.path == path and moment.precedes(d.node, module) for d in definitions)

    def _is_made_before(self, path: str, moment: Moment, module: Module) -> bool:
        """Whether ``__init__`` itself made what a path stands for."""
        definitions = module.flow(module.table.scopes[moment.function]).definitions
        own = [d for d in definitions if d.path == path]
        return bool(own) and all(
            isinstance(d.value, ast.Call) and getattr(d.node, "lineno", 0) < moment.line
            for d in own
        )

    def of_class(self, cls: Class, attr: str, moment: Moment | None = None) -> list[Value]:
        """As :meth:`of_instance`: all that bases, subclasses, methods and others assign, but for
        what ``__init__`` does after ``moment``."""
        result: list[Value] = []
        for related in self.classes.family(cls):
            scope = related.module.table.scopes[related.node]
            for binding in scope.bindings.get(attr, []):
                result += self.class_binding(binding, related)
            for method, definition in self._stores(related, attr):
                if moment is not None and moment.precedes(definition.node, related.module):
                    continue
                owner = related.module.table.scopes[method]
                result += self.names.defined(definition, owner, related.module, None)
            if is_given_fields(related.node):
                result += self._field_arguments(related, attr)
        for store, store_module in self._stores_by_class.of(attr, self.classes.members(cls)):
            if moment is None or not moment.precedes(store, store_module):
                result += self._stored_value(store, store_module)
        members = self.classes.members(cls)
        result += self._items.of(attr, self.classes.family(cls), members)
        return [*result, *self._by_name.of(attr, members)]

    def _receivers(self, item: tuple[ast.Attribute, Module]) -> tuple[set[ast.AST], bool]:
        """The classes whose attribute is assigned, or that of whose instances."""
        store, module = item
        values = self.evaluate(store.value, module)
        classes = [v.callee if isinstance(v, Made) else v for v in values]
        found: set[ast.AST] = {cls.node for cls in classes if isinstance(cls, Class)}
        return found, self.answers.is_final(store.value)

    def class_binding(self, binding: Binding, cls: Class) -> list[Value]:
        """What a binding in the body of a class makes of an attribute."""
        if binding.node in self.tracer.outdated:
            return []
        if binding.kind is Kind.FUNCTION:
            assert isinstance(binding.node, FUNCTIONS)
            function = Function(binding.node, cls.module, owner=cls.node)
            property_like = has_decorator(binding.node, "property", "cached_property")
            if property_like and not isinstance(binding.node, ast.Lambda):
                returns, _ = exits(binding.node, cls.module)
                found: list[Value] = []
                for statement in returns:
                    if statement.value is not None:
                        found += self.evaluate(statement.value, cls.module)
                return found
            return [function]
        if binding.value is None and binding.kind is Kind.ASSIGN:
            return []  # an annotation without a default
        if isinstance(binding.value, ast.Call) and is_dataclass(cls.node):
            default = self._field_default(binding.value, cls)
            if default is not None:
                return default
        return self.names.from_binding(binding, cls.module)

    def _field_default(self, call: ast.Call, cls: Class) -> list[Value] | None:
        """What a field of a dataclass is if nobody gives it, where ``field(...)`` says so; None if
        it does not."""
        module = cls.module
        made = self.evaluate(call, module)
        if not all(isinstance(v, Made) and v.made_by == "dataclasses.field" for v in made):
            return None
        given = {keyword.arg: keyword.value for keyword in call.keywords}
        if "default" in given:
            return list(self.evaluate(given["default"], module))
        match given.get("default_factory"):
            case None:
                return None if None in given or call.args else []
            case ast.Lambda(body=body):
                return list(self.evaluate(body, module))
            case factory:
                values = list(self.evaluate(factory, module))
        match values:
            case [External(name=name) as callee] if fsdp1.canonical(name):
                return [Made(factory, module, callee=callee)]
        return None

    def _stores(self, cls: Class, attr: str) -> list[tuple[Method, Definition]]:
        """Every ``self.attr = ...`` in the methods of a class."""
        key = (cls.node, attr)
        if key not in self._stores_found:
            self._stores_found[key] = list(self._find_stores(cls, attr))
        return self._stores_found[key]

    def has_attribute(self, cls: Class, attr: str) -> bool:
        """Whether the project gives instances of a class, or the class, an attribute, in code that
        some release runs."""
        return any(
            self._binds(each, attr) or self._stores(each, attr) for each in self.classes.family(cls)
        )

    def _binds(self, cls: Class, attr: str) -> bool:
        bindings = cls.module.table.scopes[cls.node].bindings.get(attr, ())
        return any(binding.node not in self.tracer.outdated for binding in bindings)

    def stores(self, cls: Class, attr: str) -> Iterator[tuple[Class, Method, Definition]]:
        """What methods of a class, its bases and its subclasses assign to ``self.attr``."""
        for related in self.classes.family(cls):
            for method, definition in self._stores(related, attr):
                yield related, method, definition

    def assigning(self, cls: Class, attr: str) -> Iterator[Method]:
        """The methods of a class, its bases and its subclasses that assign ``self.attr``."""
        return (method for _, method, _ in self.stores(cls, attr))

    def _find_stores(self, cls: Class, attr: str) -> Iterator[tuple[Method, Definition]]:
        for method in cls.node.body:
            if not isinstance(method, (ast.FunctionDef, ast.AsyncFunctionDef)):
                continue
            parameters = [*method.args.posonlyargs, *method.args.args]
            if not parameters or attr not in self._stored_names(method, cls.module):
                continue
            path = f"{parameters[0].arg}.{attr}"
            scope = cls.module.table.scopes[method]
            for definition in cls.module.flow(scope).definitions:
                if definition.path == path:
                    yield method, definition

    def _stored_names(self, method: ast.AST, module: Module) -> frozenset[str]:
        """Attributes that a method assigns, on whatever object."""
        if module not in self._stored:
            found: dict[ast.AST, set[str]] = defaultdict(set)
            for attribute in module.table.stored_attributes:
                scope = module.table.within[attribute].function()
                if scope is not None:
                    found[scope.node].add(attribute.attr)
            self._stored[module] = {node: frozenset(names) for node, names in found.items()}
        return self._stored[module].get(method, frozenset())

    def _stored_value(self, node: ast.Attribute, module: Module) -> list[Value]:
        """What ``x.attr = value`` assigns."""
        path = access_path(node)
        scope = module.table.within[node].home()
        statement = module.table.statement(node)
        for definition in module.flow(scope).definitions:
            if definition.path == path and definition.node is statement:
                return self.names.defined(definition, scope, module, None)
        return [Unknown(node, module, why="it is assigned in a way that cannot be followed")]

    def _field_arguments(self, cls: Class, attr: str) -> list[Value]:
        """What the constructor calls of a dataclass pass for one field."""
        fields = [
            s.target.id
            for s in cls.node.body
            if isinstance(s, ast.AnnAssign) and isinstance(s.target, ast.Name)
        ]
        result: list[Value] = []
        for call, module in self.index.calls.get(cls.node.name, []):
            made = self.evaluate(call.func, module)
            if not any(isinstance(v, Class) and v.node is cls.node for v in made):
                continue
            for keyword in call.keywords:
                if keyword.arg == attr:
                    result += self.evaluate(keyword.value, module)
                elif keyword.arg is None:
                    result.append(Unknown(call, module, why="it is passed through **kwargs"))
            if attr in fields and fields.index(attr) < len(call.args):
                result += self.evaluate(call.args[fields.index(attr)], module)
        return result


def _class_around(node: ast.AST, module: Module) -> ast.AST | None:
    return next((p for p in module.table.ancestors(node) if isinstance(p, ast.ClassDef)), None)


def _bound_in(cls: Class, name: str) -> list[Binding]:
    """What gives an attribute of a class its value, in the class's own body."""
    return cls.module.table.scopes[cls.node].bindings.get(name, [])
