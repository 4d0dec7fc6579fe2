"""Dataclasses that go into and out of the units of a model.

FSDP1 finds tensors in dataclasses. ``fully_shard`` before torch 2.12 looks for outputs with
``tree_flatten``, to which a dataclass is a leaf: no hook is put on its tensors, nothing is gathered
for backward, and no gradient is reduced. Where the parameters are still gathered, because the unit
is the root or keeps them, that is silent: the optimizer's parameters never get a gradient. Before
torch 2.8 inputs are cast with ``tree_map``, which passes over them as well. Measured on 2.7.1.
"""

from __future__ import annotations

import ast
from dataclasses import dataclass, field

from packaging.version import Version

from fsdp_migrate.analysis.values import Class, Display, Made, Unknown
from fsdp_migrate.families.modules.dataclass_reader import DataclassReader
from fsdp_migrate.families.wrapping import model_contents, policies
from fsdp_migrate.families.wrapping.wrapped_modules import wrapped_by
from fsdp_migrate.fsdp1.construct import Construct
from fsdp_migrate.fsdp1.site import Site
from fsdp_migrate.planning.context import Study
from fsdp_migrate.planning.model import Constructor, Wrapped
from fsdp_migrate.syntax.trees import walk

CONSTRUCT = Construct.parse("dataclass of a model")
OUTPUTS = Version("2.12")  # fully_shard sees outputs in dataclasses
INPUTS = Version("2.8")  # fully_shard casts inputs in dataclasses


@dataclass(eq=False)
class Found:
    """A dataclass of the project, and the constructors whose models are given or return it."""

    site: Site
    cls: Class
    is_output: bool = False
    of_unit: bool = False  # not only of roots whose units have outputs that FSDP2 sees
    made: set[ast.AST] = field(default_factory=set)  # the constructors, by what names them

    def constructors(self, study: Study) -> frozenset[Constructor]:
        known = (study.constructors[node] for node in self.made)
        return frozenset(c for each in known for c in (each, *study.settings_of(each)))


def find_dataclasses(study: Study) -> list[Found]:
    """The dataclasses that FSDP2 of the target torch would not look into, and FSDP1 did."""
    return study.cache(_find)


def _find(study: Study) -> list[Found]:
    if study.target >= OUTPUTS:
        return []
    reader = DataclassReader(study)
    found: dict[ast.ClassDef, Found] = {}
    for made, constructor in study.constructors.items():
        for wrapped in _wraps(constructor, study):
            roots, parts = _units(constructor, wrapped, study)
            units = [*roots, *parts]
            outputs = reader.outputs(units, constructor)
            # One unit that FSDP2 sees in backward is enough for the root to be reduced as well.
            of_units = outputs
            if _names_units(constructor, study):
                of_units = reader.outputs(parts, constructor)
            given = []
            if study.target < INPUTS:
                given = reader.inputs(units, constructor, wrapped)
            for cls, is_output in (*((c, True) for c in outputs), *((c, False) for c in given)):
                if reader.is_registered(cls):
                    continue
                if cls.node not in found:
                    found[cls.node] = Found(_site(cls, wrapped, study), cls)
                found[cls.node].is_output |= is_output
                found[cls.node].of_unit |= not is_output or cls in of_units
                found[cls.node].made.add(made)
    return list(found.values())


def units_and_roots(
    constructor: Constructor, study: Study
) -> list[tuple[list[Class], list[Class]]]:
    """The classes that a constructor's models may be of, and those of the units in them."""
    return [_units(constructor, wrapped, study) for wrapped in _wraps(constructor, study)]


def _wraps(constructor: Constructor, study: Study) -> list[Wrapped]:
    if constructor.is_context:
        return []  # the calls of wrap() in it have arguments of their own
    given = (Wrapped(model, module) for model, module in wrapped_by(constructor, study))
    return constructor.wraps or list(given)


def _site(cls: Class, wrapped: Wrapped, study: Study) -> Site:
    """Where the class is defined; where a model is wrapped, when that file is not edited."""
    if cls.module in study.project.modules:
        return Site(CONSTRUCT, cls.module, cls.node, cls.node)
    return Site(CONSTRUCT, wrapped.module, wrapped.wrapped, wrapped.wrapped)


def _units(
    constructor: Constructor, wrapped: Wrapped, study: Study
) -> tuple[list[Class], list[Class]]:
    """The classes that may be units: those of the model itself, and those its policy may choose."""
    roots = [
        value.callee
        for value in study.values(wrapped.wrapped, wrapped.module)
        if isinstance(value, Made) and isinstance(value.callee, Class)
    ]
    if not constructor.may_have("auto_wrap_policy"):
        return roots, []
    chosen = _chosen(constructor, study)
    contents = model_contents.contents(wrapped.wrapped, wrapped.module, study).classes
    parts = [
        cls
        for cls in contents
        if chosen is None or any(b.node in chosen for b in study.tracer.lineage(cls))
    ]
    return roots, parts


def _names_units(constructor: Constructor, study: Study) -> bool:
    """Whether the policy names classes, so that there are units besides the root."""
    read = policies.read_policies(constructor, study) or []
    return bool(read) and all(each.kind is policies.Kind.CLASSES for each in read)


def _chosen(constructor: Constructor, study: Study) -> set[ast.AST] | None:
    """The project's classes that a policy names; None when it may choose others."""
    read = policies.read_policies(constructor, study)
    if read is None:
        return None
    found: set[ast.AST] = set()
    for each in read:
        if each.kind is policies.Kind.NONE:
            continue
        if each.kind is not policies.Kind.CLASSES or each.argument is None:
            return None
        for node in walk(each.argument):
            if isinstance(node, (ast.Name, ast.Attribute)) and isinstance(node.ctx, ast.Load):
                values = study.values(node, each.module)
                found |= {v.node for v in values if isinstance(v, Class)}
                if any(isinstance(v, (Unknown, Display)) for v in values):
                    return None
    return found
