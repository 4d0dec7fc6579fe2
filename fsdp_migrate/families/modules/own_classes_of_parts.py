"""Questions for the class of a part of a sharded model, which FSDP1 may have wrapped.

``for block in self.blocks: if isinstance(block, Block)`` was false in FSDP1 where ``Block`` is a
unit:
what stands in ``self.blocks`` was its wrapper.
"""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterable, Iterator

from fsdp_migrate.analysis.module import Module
from fsdp_migrate.analysis.values import Class, External, Value
from fsdp_migrate.families.modules import exact_classes
from fsdp_migrate.families.wrapping import model_contents, named_units, policies
from fsdp_migrate.families.wrapping.policies import Kind, Policy
from fsdp_migrate.families.wrapping.sharded_parts import sharded_parts
from fsdp_migrate.fsdp1 import api as fsdp1
from fsdp_migrate.fsdp1.model_values import definitions
from fsdp_migrate.fsdp1.narrowing import OTHERS
from fsdp_migrate.planning.context import Study
from fsdp_migrate.planning.model import Constructor
from fsdp_migrate.syntax.expressions import holder_of_attributes
from fsdp_migrate.syntax.scopes import Kind as Bound
from fsdp_migrate.syntax.trees import FUNCTIONS

# What gives the parts of a module one by one, with their names or places or without.
GOING_OVER = frozenset({"enumerate", "iter", "list", "reversed", "tuple", "zip"})
PARTS = frozenset({"children", "items", "named_children", "values"})
# What gives one of them, or all.
TAKING = frozenset({"dict", "getattr", "iter", "list", "next", "reversed", "tuple"})
ASKED = PARTS | {"get_submodule", "modules", "named_modules"}
DEPTH = 4
# Other engines, whose objects no FSDP1 model is made of.
ENGINES = frozenset({"accelerate", "apex", "deepspeed", "fairscale", "horovod", "torch_xla"})


def whole_of(
    subject: ast.expr, study: Study, module: Module, depth: int = DEPTH
) -> frozenset[Constructor]:
    """The models that an expression is a part of: ``self.block`` in a method of one of the classes
    they are made of, ``block`` of ``for block in model.blocks``."""
    found: set[Constructor] = set()
    if isinstance(subject, ast.Name) and depth > 0:
        for definition in definitions(subject, module):
            if definition.value is not None and definition.kind in {Bound.ELEMENT, Bound.ASSIGN}:
                for part in _gone_over(definition.value, of=definition.kind):
                    found |= _held_by(part, study, module, depth)
            # A list of parts that a function is given; a part that is given is said by its values.
            elif definition.kind is Bound.PARAMETER and depth < DEPTH:
                for given, where in _given_for(definition.node, study, module):
                    found |= _held_by(given, study, where, depth - 1)
    elif _holder(subject) is not None:
        found |= _held_by(subject, study, module, depth)
    return frozenset(found)


def _given_for(
    parameter: ast.AST, study: Study, module: Module
) -> Iterator[tuple[ast.expr, Module]]:
    """What callers give a parameter."""
    function = module.table.parents.get(module.table.parents.get(parameter, parameter))
    if not isinstance(function, FUNCTIONS) or not isinstance(parameter, ast.arg):
        return
    for call in study.tracer.callers(function, module):
        given = call.argument(function, parameter.arg)
        if given is not None:
            yield given, call.module


def beside(subject: ast.expr, study: Study, module: Module) -> frozenset[Constructor]:
    """The sharded models among what an expression may be one of: ``part`` of ``for part in
    trainer.children()``, where ``trainer.model`` is sharded and the trainer is not. What it is
    itself sharded as, further down, it is not yet."""
    found: set[Constructor] = set()
    for definition in definitions(subject, module) if isinstance(subject, ast.Name) else ():
        if definition.value is not None and definition.kind is Bound.ELEMENT:
            for whole in _gone_over(definition.value, of=Bound.ELEMENT):
                holder = holder_of_attributes(whole) or whole
                found |= sharded_parts(holder, module, study).constructors
    return frozenset(
        c for c in found if not (c.has_module and _is_same(c.wrapped, subject, module))
    )


def _is_same(one: ast.expr, other: ast.expr, module: Module) -> bool:
    """Whether two names are one variable, which both get from one place."""
    if not isinstance(one, ast.Name) or one not in module.table.parents:
        return False
    given = {definition.node for definition in definitions(other, module)}
    return not given.isdisjoint(definition.node for definition in definitions(one, module))


def _gone_over(node: ast.expr, of: Bound) -> Iterator[ast.expr]:
    """``self.blocks`` of ``enumerate(self.blocks)`` and of ``self.blocks.values()``."""
    match node:
        case ast.Call(func=ast.Name(id=name), args=arguments) if name in GOING_OVER:
            for each in arguments if of is Bound.ELEMENT else ():
                yield from _gone_over(each, of)
        case ast.Call(func=ast.Attribute(value=owner, attr=name), args=[]) if name in PARTS:
            if of is Bound.ELEMENT:
                yield owner
        case ast.Attribute() | ast.Subscript():
            yield node
        case ast.Call() if of is Bound.ASSIGN and _holder(node) is not None:
            yield node
        case ast.Name() if of is Bound.ELEMENT:
            yield node


def _held_by(node: ast.expr, study: Study, module: Module, depth: int) -> frozenset[Constructor]:
    """The models that a path leads into, from one of them or from ``self``."""
    if study.values(node, module) and study.traced(node, module):
        return study.models(node, module).constructors
    while (holder := _holder(node)) is not None:
        node = holder
        if study.traced(node, module):
            return study.models(node, module).constructors
    if exact_classes.is_own(node, study, module):
        return study.every_constructor
    return whole_of(node, study, module, depth - 1) if isinstance(node, ast.Name) else frozenset()


def _holder(part: ast.expr) -> ast.expr | None:
    """``model.blocks`` of ``model.blocks[0]`` and ``list(model.blocks)``, ``model`` of
    ``model.children()`` and ``getattr(model, name)``."""
    match part:
        case ast.Attribute(value=holder) | ast.Subscript(value=holder):
            return holder
        case ast.Call(func=ast.Name(id=name), args=[holder, *_]) if name in TAKING:
            return holder
        case ast.Call(func=ast.Attribute(value=holder, attr=name)) if name in ASKED:
            return holder
    return None


def may_be_unit(cls: Value, models: Iterable[Constructor], study: Study) -> bool:
    """Whether modules of a class may have been wrapped by themselves, by a policy."""
    if isinstance(cls, External) and not is_class_of_modules(cls.name):
        return False
    if isinstance(cls, Class) and exact_classes.is_record(cls, study):
        return False
    return any(c.may_have("auto_wrap_policy") and _picks(c, cls, study) for c in models)


def is_class_of_modules(name: str) -> bool:
    """Whether a class from outside may be one of modules that FSDP1 wrapped."""
    root = name.partition(".")[0]
    if name in OTHERS or fsdp1.is_alike(name) or root in ENGINES | sys.stdlib_module_names:
        return False
    return root != "builtins" and (root != "torch" or name.startswith("torch.nn."))


def _picks(constructor: Constructor, cls: Value, study: Study) -> bool:
    if any(_is_related(unit, cls, study) for unit in named_units.named_units(constructor, study)):
        return True
    read = policies.read_policies(constructor, study)
    if read is not None and all(p.kind in {Kind.CLASSES, Kind.NONE} for p in _each(read)):
        return False
    if not constructor.has_module:
        return False
    found = model_contents.contents(constructor.wrapped, constructor.module, study)
    if isinstance(cls, Class):
        return any(cls.node is each.node for each in found.classes)
    return isinstance(cls, External) and cls.name in found.externals


def _each(read: Iterable[Policy]) -> Iterator[Policy]:
    for policy in read:
        if policy.kind is Kind.ANY:
            yield from (each for part in policy.parts for each in _each(part))
        else:
            yield policy


def _is_related(unit: object, cls: Value, study: Study) -> bool:
    """Whether modules of a class that a policy names are, or may be, of another."""
    match cls:
        case Class():
            family = {c.node for c in study.tracer.family(cls)}
            bases = study.tracer.external_bases(cls)
            return unit in family or (isinstance(unit, str) and unit in bases)
        case External(name=name) if not isinstance(unit, ast.ClassDef):
            return unit == name
        case External(name=name):
            return any(unit is each.node for each in study.tracer.derived(name))
    return False
