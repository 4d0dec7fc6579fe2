"""Parts of a model that a training step may not run.

FSDP1 gave the parameters of a unit one flat gradient, with zeros for what a step had not used:
weight decay and Adam's averages went on, and ranks that had used other parts met in the same
reduction. FSDP2 leaves such parameters without a gradient, and reduces on each rank what that rank
used: where sizes agree, gradients of unlike parameters are averaged, without an error
(pytorch/pytorch#158719).

A part counts where its ``forward`` runs it under a condition on what ``forward`` is given, or picks
it by that, and where nothing ever names it. Conditions on settings are the same in every step.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from fsdp_migrate.analysis.values import Class, Made
from fsdp_migrate.families.modules.conditional_parts import ConditionalParts
from fsdp_migrate.families.modules.unnamed_parts import unnamed
from fsdp_migrate.families.wrapping import model_contents
from fsdp_migrate.fsdp1.construct import Construct
from fsdp_migrate.fsdp1.site import Site
from fsdp_migrate.planning.context import Study
from fsdp_migrate.planning.model import Constructor

CONSTRUCT = Construct.parse("unused part")


@dataclass(frozen=True)
class Unused:
    """Parts of a class that its forward may leave out, or those that it never runs."""

    cls: Class
    parts: tuple[str, ...]
    never: bool = False


@dataclass(frozen=True, eq=False)
class Found:
    """What a constructor's model may leave out, and the site beside the model it is given."""

    site: Site
    unused: tuple[Unused, ...]


def find_unused_parts(study: Study) -> Iterator[Site]:
    """A site for every constructor whose model has parts that a step may not run."""
    for constructor in study.constructors.values():
        found = unused_parts(constructor, study)
        if found is not None:
            yield found.site


def unused_parts(constructor: Constructor, study: Study) -> Found | None:
    """What was found for a constructor."""
    if constructor.is_context or not constructor.has_module:
        return None
    known = study.cache(_by_constructor)
    if constructor.call not in known:
        unused = tuple(read_unused(constructor, study))
        wrapped = constructor.wrapped
        site = Site(CONSTRUCT, constructor.module, wrapped, wrapped, constructor.call)
        known[constructor.call] = Found(site, unused) if unused else None
    return known[constructor.call]


def unused_sites(constructor: Constructor, study: Study) -> list[Site]:
    """The site for what a constructor's model may leave out."""
    found = unused_parts(constructor, study)
    return [] if found is None else [found.site]


def _by_constructor(study: Study) -> dict[ast.Call, Found | None]:
    return {}


def read_unused(constructor: Constructor, study: Study) -> list[Unused]:
    """What the classes of a constructor's model may leave out, of those in the project."""
    contents = model_contents.contents(constructor.wrapped, constructor.module, study)
    inner = _wrapped_elsewhere(constructor, study)
    reader = ConditionalParts(study, constructor)
    found: list[Unused] = []
    for cls in contents.classes:
        if cls.module not in study.project.modules or cls.node in inner:
            continue
        parts = reader.unused(cls)
        if parts:
            found.append(Unused(cls, tuple(parts)))
        never = unnamed(cls, reader, study)
        if never:
            found.append(Unused(cls, tuple(never), never=True))
    return found


def _wrapped_elsewhere(constructor: Constructor, study: Study) -> set[ast.ClassDef]:
    """The classes of parts that other constructors wrap: those have the sites."""
    found: set[ast.ClassDef] = set()
    own = {c.node for c in _classes(constructor, study)}
    for other in study.constructors.values():
        if other is not constructor and other.has_module and not other.is_context:
            found |= {c.node for c in _classes(other, study)}
    return found - own


def _classes(constructor: Constructor, study: Study) -> list[Class]:
    """The project's classes that the wrapped module itself may be of."""
    values = study.values(constructor.wrapped, constructor.module)
    return [v.callee for v in values if isinstance(v, Made) and isinstance(v.callee, Class)]


def is_owned_by_root(found: Sequence[Unused], constructor: Constructor, study: Study) -> bool:
    """Whether what may be left out certainly lies in the unit of the constructor's own module."""
    if not constructor.may_have("auto_wrap_policy") and study.every_constructor <= {constructor}:
        return True
    return {u.cls.node for u in found} <= {c.node for c in _classes(constructor, study)}


def holders(found: Sequence[Unused], constructor: Constructor, study: Study) -> list[str | None]:
    """How the modules that hold each of the parts are named beside a constructor: by their class's
    name, empty where that is the model itself; None where the class has no name there."""
    wrapped = study.values(constructor.wrapped, constructor.module)
    only = {v.callee for v in wrapped if isinstance(v, Made)}
    itself = only.pop() if len(only) == len(wrapped) == 1 else None
    return ["" if u.cls == itself else _class_name(u.cls, constructor) for u in found]


def _class_name(cls: Class, constructor: Constructor) -> str | None:
    """The name of a class that is defined at the top of the constructor's file."""
    table = constructor.module.table
    name = cls.node.name
    scope = table.scope_of(constructor.call).lookup(name)
    if cls.module is not constructor.module or scope is not table.module:
        return None
    bindings = table.module.bindings[name]
    return name if [b.node for b in bindings] == [cls.node] else None
