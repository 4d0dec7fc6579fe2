"""Which dataclasses the modules of a model take and return."""

from __future__ import annotations

import ast
import builtins
from collections.abc import Iterable, Iterator
from functools import cached_property

from fsdp_migrate.analysis.module import Module
from fsdp_migrate.analysis.tracing.functions import exits
from fsdp_migrate.analysis.tracing.sequences import Element
from fsdp_migrate.analysis.values import Class, Display, External, Made, Unknown, Value
from fsdp_migrate.families.wrapping import model_contents
from fsdp_migrate.families.wrapping.computing_methods import FunctionNode, Methods
from fsdp_migrate.families.wrapping.entry_methods import entries
from fsdp_migrate.fsdp1 import api as fsdp1
from fsdp_migrate.planning.context import Study
from fsdp_migrate.planning.model import Constructor, Wrapped
from fsdp_migrate.syntax.expressions import given_arguments, last_name
from fsdp_migrate.syntax.kinds import present
from fsdp_migrate.syntax.scopes import Kind
from fsdp_migrate.syntax.trees import walk

DECORATOR = "dataclasses.dataclass"
REGISTERING = frozenset(
    (
        *("register_dataclass", "register_pytree_node", "_register_pytree_node"),
        *("register_dataclass_as_pytree_node", "_private_register_pytree_node"),
    )
)
REPLACING = frozenset({"dataclasses.replace", "copy.copy", "copy.replace"})
# Bases of dataclasses whose classes are registered where they are derived.
REGISTERED = ("transformers.", "diffusers.")
# Words of annotations that say there is no tensor.
PLAIN = frozenset(
    (
        *("int", "float", "str", "bool", "bytes", "complex", "None", "Path", "Literal", "Enum"),
        *("Optional", "Union", "ClassVar", "typing", "torch", "dtype", "device"),
    )
)
CONTAINERS = frozenset({"list", "List", "tuple", "Tuple", "dict", "Dict", "Sequence", "set", "Set"})
MADE = (ast.Name, ast.Call, ast.Attribute)  # what may give an object of a dataclass
DEEP = 6  # forwards that return what other forwards return


class DataclassReader:
    """Which dataclasses functions take and return."""

    def __init__(self, study: Study) -> None:
        self.study, self.methods = study, Methods(study)
        self._registered: set[ast.AST] | None = None
        # What was looked through for the outputs of units, and after how many calls at least.
        self._reached: dict[tuple[FunctionNode, ast.ClassDef], int] = {}

    # -- outputs ----------------------------------------------------------------------------------

    def outputs(self, units: Iterable[Class], constructor: Constructor) -> list[Class]:
        """The dataclasses that units, or methods that get FSDP2's hooks, return."""
        found: dict[ast.ClassDef, Class] = {}
        self._reached.clear()
        for cls in units:
            method = self.methods.find(cls, "forward")
            if method is not None:
                self._returned(*method, cls, found)
        for entry in entries(self.study):
            if constructor.call in entry.made:
                owner = self.methods.find(entry.cls, entry.name)
                if owner is not None:
                    self._returned(*owner, entry.cls, found)
        return list(found.values())

    def _returned(
        self,
        owner: Class,
        function: FunctionNode,
        cls: Class,
        found: dict[ast.ClassDef, Class],
        calls: int = 0,
    ) -> None:
        reached = function, cls.node
        if calls > DEEP or self._reached.get(reached, calls + 1) <= calls:
            return
        self._reached[reached] = calls
        if function.returns is not None:
            self._annotation(function.returns, owner.module, found)
        for returned in exits(function, owner.module)[0]:
            if returned.value is None:
                continue
            values = self.study.values(returned.value, owner.module)
            self._values(values, owner, cls, found, calls + 1)

    def _values(
        self,
        values: Iterable[Value],
        owner: Class,
        cls: Class,
        found: dict[ast.ClassDef, Class],
        calls: int,
        depth: int = 0,
        *,
        in_field: bool = False,
    ) -> None:
        evaluate = self.study.tracer.evaluate
        for value in values if depth < DEEP else ():
            inner: list[ast.expr] = []
            inside = in_field
            match value:
                case Made(callee=Class() as made):
                    if not in_field or self.may_hold_tensors(made):
                        self._add(made, found)
                    inner, inside = arguments_of(value.node), True
                case Made(callee=External(name=name)) if name in REPLACING:
                    inner = arguments_of(value.node)
                case Display():
                    inner = _elements(value.node)
                case Unknown(node=ast.arg(annotation=ast.expr() as annotation)):
                    self._annotation(annotation, value.module, found, in_field=in_field)
                case _ if isinstance(value.node, ast.Call):
                    self._call(value.node, value, owner, cls, found, calls)
            for node in inner:
                further = evaluate(node, value.module, value.frame)
                self._values(further, owner, cls, found, calls, depth + 1, in_field=inside)

    def _call(
        self,
        call: ast.Call,
        value: Value,
        owner: Class,
        cls: Class,
        found: dict[ast.ClassDef, Class],
        calls: int,
    ) -> None:
        """``self.model(x)`` and ``super().forward(x)`` return what those return."""
        match call.func:
            case ast.Attribute(value=ast.Call(func=ast.Name(id="super")), attr=name):
                method = self.methods.find(cls, name, owner)
                if method is not None:
                    self._returned(*method, cls, found, calls)
                return
        callees = self.study.tracer.evaluate(call.func, value.module, value.frame)
        for callee in self.methods.attributes.elements(callees):
            if isinstance(callee, Made) and isinstance(callee.callee, Class):
                method = self.methods.find(callee.callee, "forward")
                if method is not None:
                    self._returned(*method, callee.callee, found, calls)

    # -- inputs -----------------------------------------------------------------------------------

    def inputs(self, units: list[Class], constructor: Constructor, wrapped: Wrapped) -> list[Class]:
        """The dataclasses with tensors that units take, where inputs are cast."""
        if not any(
            c.may_have("mixed_precision")
            for c in (constructor, *self.study.settings_of(constructor))
        ):
            return []
        found: dict[ast.ClassDef, Class] = {}
        for cls in units:
            method = self.methods.find(cls, "forward")
            for annotation in _annotations(method[1]) if method is not None else ():
                method = present(method)
                self._annotation(annotation, method[0].module, found)
        contents = model_contents.contents(wrapped.wrapped, wrapped.module, self.study)
        # A model from outside the project takes none of its dataclasses; torch's containers hold
        # whatever they are given.
        own = (*units, *contents.classes)
        takes = any(self.methods.find(cls, "forward") for cls in own)
        if (
            takes
            or not contents.complete
            or any(n.startswith("torch.") for n in contents.externals)
        ):
            for cls in self._passed.get(constructor, ()):
                self._add(cls, found)
        return [cls for cls in found.values() if self.may_hold_tensors(cls)]

    @cached_property
    def _passed(self) -> dict[Constructor, list[Class]]:
        """The dataclasses that calls of a model pass to it."""
        modules = self.study.project.modules
        classes = [
            Class(node, module)
            for module in modules
            for node in module.table.scopes
            if isinstance(node, ast.ClassDef) and node.decorator_list
        ]
        if not any(self.is_dataclass(c) and self.may_hold_tensors(c) for c in classes):
            return {}
        found: dict[Constructor, list[Class]] = {}
        for module in modules:
            for call in module.table.calls:
                given = [n for n in arguments_of(call) if isinstance(n, (*MADE, ast.Starred))]
                if not given or not self._may_be_model(call.func, module):
                    continue
                constructors = self.study.models(call.func, module).constructors
                if not constructors:
                    continue
                spread = [s for n in given for s in self.study.tracer.spread([n], module, None)]
                made = [c for each in spread for e in each.elements for c in self._made(e)]
                for constructor in constructors:
                    found.setdefault(constructor, []).extend(made)
        return found

    def _may_be_model(self, node: ast.expr, module: Module) -> bool:
        """Whether a name may be a model's: most are functions', which saves a search."""
        if isinstance(node, ast.Attribute) and node.attr not in self._assigned:
            return not module.table.methods.keys().isdisjoint(fsdp1.STATICS)
        if isinstance(node, ast.Name) and _is_of_a_function(node, module):
            return False
        return not self.study.external(node, module)

    @cached_property
    def _assigned(self) -> set[str]:
        """The names of attributes that may be something else than a method."""
        found: set[str] = set()
        for module in self.study.project.read:
            table = module.table
            found |= {a.attr for a in table.stored_attributes}
            found |= {n.id for n in table.names if isinstance(n.ctx, ast.Store)}
            found |= {binding.name for binding in table.imports}
            found |= table.tested.keys()  # what nothing here assigns may be said to be a model
            found |= {  # properties
                n.name
                for n in table.scopes
                if isinstance(n, (ast.FunctionDef, ast.AsyncFunctionDef)) and n.decorator_list
            }
        return found

    def _made(self, given: Element) -> list[Class]:
        if not isinstance(given.node, MADE):
            return []
        values = self.study.tracer.evaluate(*given)
        found = [v.callee for v in values if isinstance(v, Made) and isinstance(v.callee, Class)]
        return [cls for cls in found if self.is_dataclass(cls)]

    def may_hold_tensors(self, cls: Class, seen: frozenset[ast.ClassDef] = frozenset()) -> bool:
        """Whether a field may hold a tensor, by the annotations."""
        if cls.node in seen:
            return False
        return any(
            self._may_be_tensor(annotation, base.module, seen | {cls.node})
            for base in self.study.tracer.lineage(cls)
            for annotation in field_annotations(base.node)
        )

    def _may_be_tensor(
        self, annotation: ast.expr, module: Module, seen: frozenset[ast.ClassDef]
    ) -> bool:
        said = False  # what it holds
        for node in walk(annotation):
            word = getattr(node, "attr", getattr(node, "id", None))
            if isinstance(node, ast.Constant) and isinstance(node.value, str):
                classes = list(self._named(node.value, module))
                if not classes and node.value not in PLAIN:
                    return True
            elif word is None or word in CONTAINERS:
                said = said or isinstance(node, ast.Constant)
                continue
            elif word in PLAIN:
                said = True
                continue
            else:
                assert isinstance(node, (ast.Name, ast.Attribute))
                values = self.study.values(node, module)
                classes = [v for v in values if isinstance(v, Class)]
                if not values or len(classes) < len(values):
                    return True
            said = True
            if any(self.is_dataclass(c) and self.may_hold_tensors(c, seen) for c in classes):
                return True
        return not said

    # -- classes ----------------------------------------------------------------------------------

    def _annotation(
        self,
        node: ast.expr,
        module: Module,
        found: dict[ast.ClassDef, Class],
        *,
        in_field: bool = False,
    ) -> None:
        """The classes that an annotation names, and those derived from them."""
        for each in walk(node):
            if isinstance(each, (ast.Name, ast.Attribute)):
                values = self.study.values(each, module)
                classes = [v for v in values if isinstance(v, Class)]
            elif isinstance(each, ast.Constant) and isinstance(each.value, str):
                classes = list(self._named(each.value, module))
            else:
                continue
            for cls in classes:
                for derived in (cls, *self.study.tracer.subclasses(cls)):
                    if not in_field or self.may_hold_tensors(derived):
                        self._add(derived, found)

    def _named(self, text: str, module: Module) -> Iterator[Class]:
        """The classes of the module that an annotation in quotes names."""
        names = set(text.replace("[", " ").replace("]", " ").replace(",", " ").split())
        for node in module.table.scopes:
            if isinstance(node, ast.ClassDef) and node.name in names:
                yield Class(node, module)

    def _add(self, cls: Class, found: dict[ast.ClassDef, Class]) -> None:
        """``cls`` and the dataclasses in its fields, if it is one."""
        if cls.node in found or not self.is_dataclass(cls):
            return
        found[cls.node] = cls
        for base in self.study.tracer.lineage(cls):
            for annotation in field_annotations(base.node):
                self._annotation(annotation, base.module, found, in_field=True)

    def is_dataclass(self, cls: Class) -> bool:
        """Whether a class of the project is a dataclass that no library registers."""
        if any(b.startswith(REGISTERED) for b in self.study.tracer.external_bases(cls)):
            return False
        return any(
            decorator is not None
            for base in self.study.tracer.lineage(cls)
            for decorator in [decorator_of(base, self.study)]
        )

    def is_registered(self, cls: Class) -> bool:
        """Whether the project makes a pytree node of a class itself."""
        if any("pytree" in ast.unparse(d) for d in cls.node.decorator_list):
            return True
        if self._registered is None:
            self._registered = set()
            for module in self.study.project.modules:
                self._registered |= set(_registered(module, self.study))
        if cls.module not in self.study.project.modules:
            self._registered |= set(_registered(cls.module, self.study))
        return cls.node in self._registered


def decorator_of(cls: Class, study: Study) -> ast.expr | None:
    """The decorator that makes a class a dataclass."""
    for decorator in cls.node.decorator_list:
        func = decorator.func if isinstance(decorator, ast.Call) else decorator
        if DECORATOR in study.external(func, cls.module):
            return decorator
    return None


def _registered(module: Module, study: Study) -> Iterator[ast.AST]:
    for call in module.table.calls:
        func = call.func
        name = last_name(func)
        if name in REGISTERING and call.args:
            for value in study.values(call.args[0], module):
                if isinstance(value, Class):
                    yield value.node


def _is_of_a_function(name: ast.Name, module: Module) -> bool:
    """Whether a name is a builtin's, or one that only functions and classes are defined by."""
    scope = module.table.scope_of(name).lookup(name.id)
    if scope is None:
        return hasattr(builtins, name.id)
    return all(b.kind in {Kind.FUNCTION, Kind.CLASS} for b in scope.bindings[name.id])


def arguments_of(node: ast.AST) -> list[ast.expr]:
    if not isinstance(node, ast.Call):
        return []
    return given_arguments(node)


def _elements(node: ast.AST) -> list[ast.expr]:
    match node:
        case ast.List(elts=nodes) | ast.Tuple(elts=nodes) | ast.Set(elts=nodes):
            return nodes
        case ast.Dict(values=nodes):
            return nodes
        case ast.ListComp(elt=node) | ast.GeneratorExp(elt=node) | ast.DictComp(value=node):
            return [node]
    return []


def _annotations(function: FunctionNode) -> list[ast.expr]:
    """The annotations of what a method is given."""
    args = function.args
    every = [*args.posonlyargs, *args.args, *args.kwonlyargs]
    return [a.annotation for a in every[1:] if a.annotation is not None]


def field_annotations(node: ast.ClassDef) -> list[ast.expr]:
    return [s.annotation for s in node.body if isinstance(s, ast.AnnAssign)]
