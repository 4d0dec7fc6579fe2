"""Methods other than ``forward`` that compute with the parameters of a sharded model.

FSDP2's hooks run when a module is called. A method that is called from outside and computes by
itself (``model.encode(x)``, a ``generate`` that calls ``self.forward``) meets shards, unless
``register_fsdp_forward_method`` puts the hooks around it. FSDP1 gathered nothing for such methods
either: what runs there computes with wrapped children only, or is not sharded (``NO_SHARD``).

What a method does is read off its class, as far as that is in the project. Where this cannot be
told, nothing is registered, as in FSDP1: a method that gathers parameters is a collective, and one
that needs none may be called by some ranks only.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from fsdp_migrate.analysis.module import Module
from fsdp_migrate.analysis.values import Class, Made
from fsdp_migrate.families.wrapping.computing_methods import (
    MODULE_API,
    FunctionNode,
    Methods,
    Use,
    is_decorated,
)
from fsdp_migrate.families.wrapping.gathered import is_gathered
from fsdp_migrate.families.wrapping.wrapped_modules import (
    models_made,
    originals,
    unwrapped,
    wrapped_by,
)
from fsdp_migrate.fsdp1.construct import Construct
from fsdp_migrate.fsdp1.site import Site
from fsdp_migrate.planning.model import Constructor
from fsdp_migrate.syntax.expressions import first_argument
from fsdp_migrate.syntax.kinds import of_kind

if TYPE_CHECKING:
    from fsdp_migrate.planning.context import Study

CONSTRUCT = Construct.parse("entry method")


@dataclass(eq=False)
class Entry:
    """A method that computes and is called on sharded models from outside their class."""

    name: str
    site: Site  # the first place
    cls: Class
    function: FunctionNode
    use: Use
    made: dict[ast.Call, Module] = field(default_factory=dict)  # the calls that made the models
    everywhere: bool = True  # all models that these calls make have it
    told: bool = True  # it is known of all of them whether they have it
    in_forward: bool = False  # forward may call it as well
    nested: bool = False  # one of the methods may call the other, or the model
    inside: bool = False  # with something that it has computed

    @property
    def has_inputs(self) -> bool:
        args = self.function.args
        named = [*args.posonlyargs, *args.args, *args.kwonlyargs]
        return len(named) > 1 or args.vararg is not None or args.kwarg is not None


def entries(study: Study) -> list[Entry]:
    """The methods of sharded models that compute and are called from outside their class."""
    return study.cache(_find_entries)


def _find_entries(study: Study) -> list[Entry]:
    methods = Methods(study)
    wanted = {name for c in study.constructors.values() for name in _method_names(c, methods)}
    found: dict[FunctionNode, Entry] = {}
    for module in study.project.modules if wanted else ():
        for attribute in module.table.attributes:
            if attribute.attr not in wanted or not isinstance(attribute.ctx, ast.Load):
                continue
            _add(attribute, module, methods, found)
    computing = [e for e in found.values() if e.use.computes]
    for entry in computing:
        forward = methods.find(entry.cls, "forward")
        if forward is not None:
            entry.in_forward = _may_call(methods.use(entry.cls, *forward), entry)
        others = [e for e in computing if e is not entry and e.made.keys() & entry.made.keys()]
        called = any(_may_call(e.use, entry) for e in others)
        entry.nested = called or entry.use.calls_self
        entry.inside = called or entry.use.with_computed
    return computing


def _method_names(constructor: Constructor, methods: Methods) -> set[str]:
    """The methods that models of a constructor may have, by the classes in the project."""
    values = {
        value
        for wrapped, module in wrapped_by(constructor, methods.study)
        for value in originals(methods.study.values(wrapped, module), methods.study)
    }
    classes = [v.callee for v in values if isinstance(v, Made) and isinstance(v.callee, Class)]
    return {
        node.name
        for cls in classes
        for base in methods.study.tracer.lineage(cls)
        for node in base.node.body
        if isinstance(node, FunctionNode)
        and node.name not in MODULE_API
        and not node.name.startswith("__")
        and not is_decorated(node, "staticmethod", "classmethod", "property", "cached_property")
    }


def _add(
    attribute: ast.Attribute, module: Module, methods: Methods, found: dict[FunctionNode, Entry]
) -> None:
    study = methods.study
    receiver = unwrapped(attribute.value)
    made = models_made(receiver, module, study)
    if not made or is_gathered(attribute, study, module):
        return
    for model in made:
        for cls in methods.classes(model):
            method = methods.find(cls, attribute.attr)
            if method is None:
                continue
            owner, function = method
            if function not in found:
                call = module.table.parents[attribute]
                called = isinstance(call, ast.Call) and call.func is attribute
                site = Site(CONSTRUCT, module, call if called else attribute, attribute, receiver)  # type: ignore[arg-type]
                use = methods.use(cls, owner, function)
                found[function] = Entry(attribute.attr, site, cls, function, use)
            entry = found[function]
            entry.made[of_kind(model.node, ast.Call)] = model.module
            for each in _classes_wrapped(model, methods):
                entry.told &= each is not None
                entry.everywhere &= each is not None and methods.find(each, entry.name) is not None


def _classes_wrapped(model: Made, methods: Methods) -> Iterator[Class | None]:
    """The classes of every module that may be wrapped at a call; None for one that is not known."""
    wrapped = first_argument(of_kind(model.node, ast.Call))
    if wrapped is None:
        yield None
        return
    for value in originals(methods.study.values(wrapped, model.module), methods.study):
        callee = value.callee if isinstance(value, Made) else None
        yield callee if isinstance(callee, Class) else None


def _may_call(use: Use, entry: Entry) -> bool:
    return use.dynamic or any(function is entry.function for _, function in use.further)
