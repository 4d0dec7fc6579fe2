"""What lists, tuples, sets and dicts hold."""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator

from fsdp_migrate.analysis.flow import Definition
from fsdp_migrate.analysis.module import Module
from fsdp_migrate.analysis.tracing import collected, compared_classes
from fsdp_migrate.analysis.tracing.answers import Answers
from fsdp_migrate.analysis.tracing.class_hierarchy import ClassHierarchy
from fsdp_migrate.analysis.tracing.evaluator import Evaluator
from fsdp_migrate.analysis.tracing.iterables import CONTAINERS, element_of, iterated_in
from fsdp_migrate.analysis.tracing.project_index import ProjectIndex
from fsdp_migrate.analysis.tracing.sequences import Sequences
from fsdp_migrate.analysis.tracing.settled_index import SettledIndex
from fsdp_migrate.analysis.values import (
    Class,
    Constant,
    Display,
    External,
    Frame,
    Function,
    Generated,
    Made,
    Unknown,
    Value,
    Values,
)
from fsdp_migrate.fsdp1 import api as fsdp1
from fsdp_migrate.syntax.expressions import last_name

MAX_CONTAINERS = 4  # lists of lists that are looked into
MODULE_DICTS = frozenset({"torch.nn.ModuleDict", "torch.nn.modules.container.ModuleDict"})
# Bases of classes that say nothing of what they are.
NO_MODULES = frozenset({"abc.ABC", "builtins.object", "typing.Generic", "typing.Protocol"})
UNITS = f"{fsdp1.FSDP}.fsdp_modules"  # gives FSDP1 models
MAPPINGS = frozenset({"builtins.dict", "collections.OrderedDict", "collections.UserDict"})
DICTS = MODULE_DICTS | {"builtins.dict", "collections.OrderedDict", "collections.defaultdict"}


class Containers:
    """Follows elements into what containers were made with, and what was added to them."""

    def __init__(
        self,
        tracer: Evaluator,
        index: ProjectIndex,
        classes: ClassHierarchy,
        sequences: Sequences,
        answers: Answers,
    ) -> None:
        self.evaluate = tracer.evaluate
        self.index = index
        self.classes = classes
        self.sequences = sequences
        self.answers = answers
        self.collected = collected.Collected(tracer, self.named, answers.if_nothing)
        self._additions = SettledIndex(lambda name: index.additions.get(name, ()), self._added_to)

    def elements(self, definition: Definition, module: Module, frame: Frame | None) -> list[Value]:
        """The values that a loop variable takes."""
        assert definition.value is not None
        result: list[Value] = []
        for value in self.evaluate(definition.value, module, frame):
            found = self._if_followed(self._contents(value, definition.unpack))
            if found is None and not definition.unpack:
                found = self._listed(value)
            result += found if found is not None else [element_of(definition, value, module, frame)]
        return result

    def _listed(self, value: Value) -> list[Value] | None:
        """The elements of what is written out, one by one; None of what is not."""
        written = isinstance(value, Display) and value.node
        if not isinstance(written, (ast.List, ast.Tuple, ast.Set)):
            return None
        elements = written.elts
        return [v for e in elements for v in self.evaluate(e, value.module, value.frame)]

    def _if_models(self, elements: Iterable[Value]) -> list[Value] | None:
        """The elements of a container of FSDP1 models alone, else None.

        None may be among them. Of others too little is told by where they were made: a loop may
        put a wrapped module in the place of each.
        """
        found = [v for v in elements if not (isinstance(v, Constant) and v.value is None)]
        return found if found and all(map(self.is_wrapped, found)) else None

    def _if_followed(self, elements: Iterable[Value]) -> list[Value] | None:
        """The elements of a container of FSDP1 models alone, or of the project's own classes and
        functions and of objects that are no modules, which nothing wraps; else None."""
        found = list(elements)
        return found if found and all(map(self._is_own, found)) else self._if_models(found)

    def _is_own(self, value: Value) -> bool:
        """Whether a value is a class or a function of the project's, or an object of a class all
        of whose bases are."""
        if isinstance(value, (Class, Function)):
            return True
        if not isinstance(value, Made) or not isinstance(value.callee, Class):
            return False
        return all(
            isinstance(base, Class) or getattr(base, "name", "") in NO_MODULES
            for cls in self.classes.lineage(value.callee)
            for written in cls.node.bases
            for base in self.evaluate(
                written.value if isinstance(written, ast.Subscript) else written, cls.module
            )
        )

    def unpacked_models(self, iterated: Value) -> list[Value] | None:
        """What iterating over a container of FSDP1 models may give; None of other containers."""
        return self._if_models(self._contents(iterated, ()))

    def _contents(
        self, value: Value, unpack: tuple[int, ...], depth: int = MAX_CONTAINERS
    ) -> Iterator[Value]:
        """What iterating over a value gives; of pairs and the like the part that is unpacked."""
        node = value.node
        match node:
            case ast.List() | ast.Tuple() | ast.Set() if not unpack:
                yield from self._listed(value) or ()
                yield from self._put_into(value)
            case ast.ListComp(elt=e) | ast.SetComp(elt=e) | ast.GeneratorExp(elt=e) if not unpack:
                yield from self.evaluate(e, value.module, value.frame)
            case ast.Call(func=ast.Attribute(value=owner, attr="values"), args=[]) if not unpack:
                yield from self._values_of(owner, value)
            case ast.Call(func=ast.Attribute(value=owner, attr="items"), args=[]) if unpack == (1,):
                yield from self._values_of(owner, value)
            case ast.Call(func=ast.Attribute(value=owner, attr="__subclasses__")) if not unpack:
                for cls in self.evaluate(owner, value.module, value.frame):
                    if isinstance(cls, Class):
                        yield from self.classes.subclasses(cls)
            case ast.Call() if isinstance(value, Generated) and depth:
                yield from self._yielded(value, unpack, depth - 1)
            case ast.Call(args=[model, *_]) if _made_by(value) == UNITS and not unpack:
                yield from self.evaluate(model, value.module, value.frame)
            case ast.Call() if isinstance(value, Made):
                if value.made_by in CONTAINERS and not unpack:
                    yield from self._put_into(value)
                within = iterated_in(node, value.made_by, unpack)
                if within is not None and depth:  # ``layers = list(layers)`` leads to itself
                    for inner in self.evaluate(within, value.module, value.frame):
                        yield from self._contents(inner, (), depth - 1)

    def _yielded(self, value: Generated, unpack: tuple[int, ...], depth: int) -> Iterator[Value]:
        """What a generator function yields, itself or from something else that is iterated over."""
        module = value.function.module
        for each in value.yields:
            found = self.evaluate(each.value, module, value.inside) if each.value else ()
            for inner in found:
                if isinstance(each, ast.YieldFrom):
                    yield from self._contents(inner, unpack, depth)
                elif not unpack:
                    yield inner
                elif len(unpack) == 1:
                    yield from self.sequences.part(inner, unpack[0]) or ()

    def _values_of(self, owner: ast.expr, value: Value) -> Iterator[Value]:
        """The values of a dict, or of an ``nn.ModuleDict`` of one."""
        for inner in self.evaluate(owner, value.module, value.frame):
            yield from self._entered(inner)

    def _entered(self, mapping: Value) -> Iterator[Value]:
        """The values of a dict that is written out, or of an ``nn.ModuleDict`` of one."""
        made = mapping.made_by if isinstance(mapping, Made) else ""
        if made in DICTS or isinstance(mapping.node, ast.Dict) or self._is_mapping(mapping):
            yield from self._put_into(mapping)
        match mapping.node:
            case ast.Call(args=[(ast.Dict() | ast.DictComp()) as given]) if made in MODULE_DICTS:
                yield from self._values_of(given, mapping)
            case ast.Call(args=given, keywords=keywords) if made in DICTS - MODULE_DICTS:
                pairs = [e for g in given if isinstance(g, (ast.List, ast.Tuple)) for e in g.elts]
                written = [
                    p.elts[1] for p in pairs if isinstance(p, ast.Tuple) and len(p.elts) == 2
                ]
                for element in (*written, *(k.value for k in keywords if k.arg is not None)):
                    yield from self.evaluate(element, mapping.module, mapping.frame)
            case ast.Dict(values=elements):
                for element in elements:
                    yield from self.evaluate(element, mapping.module, mapping.frame)
            case ast.DictComp(value=element):
                yield from self.evaluate(element, mapping.module, mapping.frame)

    def _put_into(self, container: Value) -> Iterator[Value]:
        """What is added to a list or a dict after it is made."""
        for element, module in self.additions(container):
            yield from self.evaluate(element, module)

    def _is_mapping(self, value: Value) -> bool:
        """Whether it is an object of a class of the project's that is derived from ``dict``."""
        cls = value.callee if isinstance(value, Made) else None
        bases = self.classes.external_bases(cls) if isinstance(cls, Class) else ()
        return not MAPPINGS.isdisjoint(bases)

    def additions(self, container: Value) -> Iterator[tuple[ast.expr, Module]]:
        """As it is written, what is added to a list or a dict under the name it is given there, and
        by the methods of its class."""
        if isinstance(container, Made) and isinstance(container.callee, Class):
            for _, element, module in self._additions.of("self", {container.callee.node}):
                yield element, module
        parents = container.module.table.parents
        parent = parents.get(container.node)
        match parent, parents.get(parent) if parent is not None else None:
            case ((ast.Assign(targets=[target]) | ast.AnnAssign(target=target)), _):
                name = last_name(target)
            case ast.Tuple(elts=given), ast.Assign(targets=[ast.Tuple(elts=targets)]) if len(
                given
            ) == len(targets):  # gains, losses = [], []
                index = next(i for i, each in enumerate(given) if each is container.node)
                name = last_name(targets[index])
            case _:
                return
        for _, element, module in self._additions.of(name, {container.node}):
            yield element, module

    def _added_to(self, item: tuple[ast.expr, ast.expr, Module]) -> tuple[set[ast.AST], bool]:
        """Where the containers are made that something may be added to."""
        owner, _, module = item
        values = self.evaluate(owner, module)
        found = {value.node for value in values}
        for value in values:
            if isinstance(value, Made) and isinstance(value.callee, Class):
                found.update(cls.node for cls in self.classes.family(value.callee))
        return found, self.answers.is_final(owner)

    def is_wrapped(self, value: Value) -> bool:
        """Whether a value is, or may turn out to be, an FSDP1 model."""
        if not isinstance(value, Made):
            return False
        names = [value.made_by]
        if isinstance(value.callee, Class):
            names += self.classes.external_bases(value.callee)
        return not {fsdp1.canonical(name) for name in names}.isdisjoint((fsdp1.FSDP, "wrap"))

    def subscript(self, node: ast.Subscript, module: Module, frame: Frame | None) -> list[Value]:
        """The values of ``container[key]``."""
        keys = self.evaluate(node.slice, module, frame)
        result: list[Value] = []
        values = self.evaluate(node.value, module, frame)
        for value in values:
            if isinstance(value, Display) and isinstance(value.node, ast.Dict):
                written = self._entries(value, keys)
                added = list(self._put_into(value))
                result += written
                result += self._compared(value, keys, written)
                result += self._if_followed(added) or ()
            elif isinstance(value, External):
                # Enum["NAME"]: the member when the key is written out.
                names = [k.value for k in keys if isinstance(k, Constant)]
                if names and len(names) == len(keys):
                    result += [External(node, module, name=value.below(str(n))) for n in names]
                else:
                    result.append(External(node, module, name=value.below("*")))
            elif (kept := self._element(node, value) or self._placed(node, value)) is not None:
                result += kept
            elif (entry := self._collected(node, value, module, frame)) is not None:
                result += entry.values
            else:
                why = value.why if isinstance(value, Unknown) else "the container is not a literal"
                result.append(Unknown(node, module, frame, why))
        # ``state = {}`` where none is given has no entry that others do not show.
        if values and not result:
            why = "what is put into it is not seen"
            return self.answers.if_nothing(Unknown(node, module, frame, why))
        return result

    def _collected(
        self, node: ast.Subscript, container: Value, module: Module, frame: Frame | None
    ) -> collected.Entry | None:
        """What ``kwargs["model"]`` takes out of what a function collects; None of other things."""
        match node.slice:
            case ast.Constant(value=str(name)):
                if collected.function_of(container.node, container.module) is not None:
                    return self.named(node.value, name, module, frame)
        return None

    def _compared(self, mapping: Display, keys: Values, written: list[Value]) -> Iterator[Value]:
        """The classes that an entry, which is a class, is compared with."""
        names = [k.value for k in keys if isinstance(k, Constant) and isinstance(k.value, str)]
        if not any(isinstance(value, Class) for value in written):
            return
        for name in names:
            for owner, other, module in compared_classes.compared(name, self.index.project):
                if any(v.node is mapping.node for v in self.evaluate(owner, module)):
                    found = self.evaluate(other, module)
                    yield from (value for value in found if isinstance(value, Class))

    def taken(self, container: ast.expr, module: Module, frame: Frame | None) -> list[Value] | None:
        """What ``next(container)`` or ``container.pop()`` gives of containers of what is followed;
        None of others."""
        return self._if_followed(self._all_in(container, module, frame))

    def models_in(
        self, container: ast.expr, module: Module, frame: Frame | None
    ) -> list[Value] | None:
        """What is in a container of FSDP1 models; None of others."""
        return self._if_models(self._all_in(container, module, frame))

    def _all_in(self, container: ast.expr, module: Module, frame: Frame | None) -> Iterator[Value]:
        for value in self.evaluate(container, module, frame):
            yield from self._contents(value, ())
            yield from self._entered(value)

    def seen_in(self, container: ast.expr, module: Module) -> Values:
        """Everything that a container is seen to have in it, among what is not followed."""
        return frozenset(self._all_in(container, module, None))

    def _element(self, node: ast.Subscript, container: Value) -> list[Value] | None:
        """What the elements of a container of FSDP1 models may be; None for other containers."""
        if isinstance(node.slice, ast.Slice):
            return None
        return self._if_followed((*self._contents(container, ()), *self._entered(container)))

    def _placed(self, node: ast.Subscript, container: Value) -> list[Value] | None:
        """What stands at a place of a tuple, which nobody changes, as of a list that is written
        here, or of ``*args``."""
        match node.slice:
            case ast.Constant(value=int(place)):
                pass
            case ast.UnaryOp(op=ast.USub(), operand=ast.Constant(value=int(place))):
                place = -place
            case _:
                return None
        if isinstance(container.node, ast.List) and container.node is not node.value:
            return None
        return self.sequences.part(container, place)

    def named(
        self,
        mapping: ast.expr,
        name: str,
        module: Module,
        frame: Frame | None,
        known: set[ast.AST] | None = None,
    ) -> collected.Entry | None:
        """What a dictionary has under a name that is written out, or collects arguments; None of
        others."""
        known = set() if known is None else known
        result = collected.Entry()
        for value in self.evaluate(mapping, module, frame):
            match value.node:
                case ast.Dict(keys=keys, values=given):
                    written = {
                        k.value: v
                        for k, v in zip(keys, given, strict=True)
                        if isinstance(k, ast.Constant)
                    }
                    is_open = len(written) < len(keys)
                case ast.Call(args=[], keywords=keywords) if (
                    isinstance(value, Made) and value.made_by == "builtins.dict"
                ):
                    written = {k.arg: k.value for k in keywords if k.arg is not None}
                    is_open = len(written) < len(keywords)
                case ast.arg() as arg:
                    found = self.collected.named(arg, name, value.module, value.frame, known)
                    if found is None:
                        return None
                    result.add(found)
                    continue
                case _:
                    return None
            if name in written:
                result.values += self.evaluate(written[name], value.module, value.frame)
            elif is_open or self.sequences.grows(value.node, value.module):
                return None
            else:
                result.is_lacking = True
        return result

    def _entries(self, value: Display, keys: Values) -> list[Value]:
        """Entries of a dict display under any of ``keys``; all of them when a key is unknown."""
        assert isinstance(value.node, ast.Dict)
        wanted = {k.value for k in keys if isinstance(k, Constant)}
        exact = len(wanted) == len(keys)
        result: list[Value] = []
        for key, entry in zip(value.node.keys, value.node.values, strict=True):
            if not exact or not isinstance(key, ast.Constant) or key.value in wanted:
                result += self.evaluate(entry, value.module, value.frame)
        return result


def _made_by(value: Value) -> str | None:
    return fsdp1.canonical(value.made_by) if isinstance(value, Made) else None
