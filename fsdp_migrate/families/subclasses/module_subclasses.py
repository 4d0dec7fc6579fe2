"""Subclasses of FSDP with behaviour of their own: modules around the module that they shard.

``class Policy(FSDP)`` with methods, or an ``__init__`` that builds the model, stays a class. Its
base becomes ``ShardedModule`` of the support module, which holds the wrapped module as FSDP1's
wrapper did, is called by the same hooks, and takes the same arguments. What such a class says of
FSDP1 itself (an overridden ``no_sync``, ``super().state_dict()`` of no kind) has no counterpart.
"""

from __future__ import annotations

import ast
from dataclasses import dataclass

from fsdp_migrate.analysis.values import Class, External, Values
from fsdp_migrate.families.subclasses.subclass_instances import (
    class_at,
    instance_calls,
    is_made_out_of_sight,
)
from fsdp_migrate.families.subclasses.subclass_methods import (
    body_problem,
    forward_review,
    own_method,
    own_states,
)
from fsdp_migrate.families.wrapping import run_time
from fsdp_migrate.fsdp1 import api as fsdp1
from fsdp_migrate.fsdp1.site import Site
from fsdp_migrate.planning.context import Study
from fsdp_migrate.planning.edits import Code, code
from fsdp_migrate.planning.model import Constructor, Decision
from fsdp_migrate.syntax.kinds import of_kind
from fsdp_migrate.syntax.trees import FUNCTIONS

RULE = "FSDP103"
# Bases beside FSDP's that neither run code when an instance is made nor have methods.
PLAIN_BASES = frozenset({"abc.ABC", "typing.Generic", "builtins.object", "typing.Protocol"})


@dataclass(frozen=True, eq=False)
class Derived:
    """A subclass that stays a class."""

    definition: ast.ClassDef
    call: ast.Call  # FSDP1's constructor: ``super().__init__(...)``, or what stands for it
    written: bool  # the class has an ``__init__`` with that call
    review: str = ""


def read_subclass(site: Site, study: Study) -> Derived | str:
    """The subclass at a site, or why it cannot be a module around a sharded one."""
    definition = site.definition
    cls = class_at(site)
    if definition.keywords:
        return "its definition has keywords"
    if site.reference not in definition.bases:
        return "FSDP1's class is not written among its bases"
    for base in definition.bases:
        if base is not site.reference and not _is_plain(study.values(base, site.module), study):
            return f"what its other base {ast.unparse(base)} does is not seen"
    lineage = [*study.tracer.lineage(cls), *study.tracer.subclasses(cls)]
    for each in lineage:
        problem = body_problem(each, study)
        if problem:
            return problem
    for each in (cls, *study.tracer.subclasses(cls)):
        if is_made_out_of_sight(each, study):
            return f"{each.node.name} is handed on, and what makes its instances is not seen"
    inits = [n for n in definition.body if isinstance(n, FUNCTIONS) and n.name == "__init__"]
    if not inits:
        call = of_kind(ast.parse("FSDP(*args, **kwargs)", mode="eval").body, ast.Call)
        return Derived(definition, call, written=False, review=forward_review(lineage))
    calls = [c for init in inits for c in site.module.table.calls_in(init) if is_super(c, site)]
    if len(inits) != 1 or len(calls) != 1:
        return "its __init__ does not call FSDP1's once"
    (call,) = calls
    if not isinstance(site.module.table.parents[call], ast.Expr):
        return "its __init__ does not call FSDP1's in a statement"
    return Derived(definition, call, written=True, review=forward_review(lineage))


def is_super(call: ast.Call, site: Site) -> bool:
    """``super().__init__(...)`` or ``super(Class, self).__init__(...)``."""
    match call.func:
        case ast.Attribute(attr="__init__", value=ast.Call(func=ast.Name(id="super"), args=given)):
            pass
        case _:
            return False
    if not given:
        return True
    return isinstance(given[0], ast.Name) and given[0].id == site.definition.name


def _is_plain(values: Values, study: Study) -> bool:
    """Whether a base beside FSDP's only adds methods: it does nothing when an instance is made."""
    if not values:
        return False
    for value in values:
        match value:
            case External(name=name) if name in PLAIN_BASES:
                continue
            case Class() as cls:
                lineage = study.tracer.lineage(cls)
                made = any(
                    isinstance(node, FUNCTIONS) and node.name in {"__init__", "__init_subclass__"}
                    for each in lineage
                    for node in each.node.body
                )
                if made or not study.tracer.external_bases(cls) <= PLAIN_BASES:
                    return False
            case _:
                return False
    return True


def _has_initializers(definition: ast.ClassDef, site: Site, study: Study) -> bool:
    """Whether a class derived from this one takes arguments of its own."""
    cls = Class(definition, site.module)
    return any(own_method(each, "__init__") for each in study.tracer.subclasses(cls))


def register(site: Site, study: Study) -> None:
    """Register a subclass that stays a class as a constructor of FSDP1 models."""
    found = read_subclass(site, study)
    if isinstance(found, str):
        return
    constructor = Constructor.read(found.call, site.module, site.reference)
    constructor.defined_by = found.definition
    constructor.keeps_class = True
    constructor.own_states = own_states(constructor, study)
    constructor.made_at = tuple(instance_calls(site, study))
    if not constructor.is_wrong:
        study.constructors[found.definition] = constructor


def construct(site: Site, study: Study) -> list[Decision]:
    """Decide the class together with the arguments it gives FSDP1's constructor."""
    found = of_kind(read_subclass(site, study), Derived)
    constructor = study.constructors[site.node]
    models = frozenset({constructor})
    proposal = study.proposal()
    never = frozenset({"HAS_BARE_LISTS"})  # the wrapper is the outermost unit, and has a forward
    base = proposal.support(site.module, run_time.CLASS, site.mention, never)
    proposal.replace(site.module, site.mention, code("{b}", b=base))
    added: list[Code] = []
    review = run_time.place_among_models(constructor, study, added)
    if not review and not constructor.made_at and run_time.may_cast(constructor, study):
        review = run_time.UNSURE
    is_part = bool(added) and not site.module.mentions("cast_forward_inputs")
    if found.review and run_time.may_cast(constructor, study) and not is_part:
        review = ". ".join(filter(None, (review, found.review)))
    if added and not found.written and _has_initializers(found.definition, site, study):
        return [
            study.left(
                site,
                RULE,
                "its instances are parts of other models, and nothing says so where they are made",
                "give it an __init__ that passes is_root=False on",
                models=models,
                final=True,
            )
        ]
    if added and constructor.own_states:
        return [
            study.left(
                site,
                RULE,
                "its instances are parts of other models, and it overrides how a state is given",
                "leave the state to the whole model",
                models=models,
                final=True,
            )
        ]
    made = ((found.call, site.module),) if found.written else constructor.made_at
    for call, module in made if added else ():
        proposal.add_keyword(module, call, "is_root", code("False"))
    if found.written:
        for keyword in found.call.keywords:
            if keyword.arg in fsdp1.EARLIER_NAMES:
                name = fsdp1.EARLIER_NAMES[keyword.arg]
                proposal.rename_keyword(site.module, found.call, keyword, name)
    message = "a module around the sharded one"
    whole = study.rewritten(site, RULE, message, proposal, models=models, review=review)
    return [whole, *run_time.arguments(constructor, site.module, study, models)]
