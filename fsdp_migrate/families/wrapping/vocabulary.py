"""FSDP1's enums and settings as names of the project's own.

Configurations, comparisons and command lines speak in them. What a project says at run time is
kept: the name is imported from the support module, which has the same members and fields.
"""

from __future__ import annotations

import ast
from typing import Final

from fsdp_migrate.analysis.module import Module
from fsdp_migrate.analysis.values import Computed, Made, Unknown
from fsdp_migrate.families.wrapping import handed_names
from fsdp_migrate.fsdp1 import api as fsdp1
from fsdp_migrate.fsdp1.construct import Construct, ConstructKind
from fsdp_migrate.fsdp1.site import Site
from fsdp_migrate.planning.context import Study
from fsdp_migrate.planning.edits import code
from fsdp_migrate.planning.model import Decision
from fsdp_migrate.planning.outcome import Outcome
from fsdp_migrate.planning.proposal import Proposal
from fsdp_migrate.planning.shard_plan import ShardPlan
from fsdp_migrate.syntax.kinds import of_kind

SETTINGS: Final = {
    "ShardingStrategy": "FSDP201",
    "MixedPrecision": "FSDP202",
    "BackwardPrefetch": "FSDP204",
    "CPUOffload": "FSDP115",
}
"""What ``shard`` of the support module takes, and the rule that answers for it."""

PLUGIN = ".FullyShardedDataParallelPlugin"  # of accelerate's, which takes some of these
DEEPEST = 6  # attributes of one another
# Libraries whose own objects hold FSDP1's settings; others, as OmegaConf, hold the project's.
SHARDING_LIBRARIES = frozenset(
    {"accelerate", "composer", "lightning", "lightning_fabric", "pytorch_lightning", "transformers"}
)
FOLLOWED = 2  # names that a value is assigned to, one after the other
PARTIAL = frozenset({"functools.partial"})
HARMLESS = frozenset(
    {"builtins", "dataclasses", "typing", "argparse", "click", "functools", "logging", "warnings"}
)


def import_from_support(site: Site, name: str, study: Study, rule: str) -> Decision:
    """Import an FSDP1 name from the support module instead of torch."""
    near = study.reached_from(site.module)
    models = [c for c in near if c.node in study.run_time] or near  # others take FSDP2's own
    owner = _met_by_stranger(site.reference, site.module, study)
    if owner:
        message = f"kept: {owner} has FSDP1's {name}"
        return study.kept_as_is(site, rule, message)  # whatever becomes of the models here
    problem = given_to_stranger(site, study) or study.no_models
    node = site.reference
    while isinstance(node, ast.Attribute) and not is_name(node, name, site, study):
        node = node.value
    if problem or not isinstance(node, ast.expr):
        help_ = f"replace {name} together with the code that uses it"
        if PLUGIN in problem:
            help_ = "write it in the call of the plugin, and run again: it is then done there"
        return study.left(site, rule, problem, help_)
    proposal = study.proposal()
    take_over(node, name, site, study, proposal)
    return study.rewritten(site, rule, f"{name} of the project's own", proposal, models=models)


def take_over(node: ast.expr, name: str, site: Site, study: Study, proposal: Proposal) -> None:
    """Make ``node`` mean what the support module calls ``name``."""
    imports = _plain_imports(node, name, site, study)
    if imports:
        node = of_kind(node, ast.Name)
        for alias in imports:
            proposal.remove_import(site.module, alias)
        proposal.support_as(site.module, name, node.id, node)
    else:
        local = proposal.support(site.module, name, node)
        proposal.replace(site.module, node, code("{n}", n=local))


def own_name(name: str, module: Module, near: ast.AST, plan: ShardPlan, study: Study) -> str:
    """What a file that the plan writes in calls the project's ``name``: as it called FSDP1's."""
    for node in module.table.names_by_id.named(name):
        site = Site(Construct(ConstructKind.NAME, name), module, node, node)
        if is_name(node, name, site, study) and _plain_imports(node, name, site, study):
            take_over(node, name, site, study, plan.proposal)
            return node.id
    return plan.proposal.support(module, name, near)


def mentions(value: ast.expr, name: str, site: Site, study: Study) -> list[ast.expr]:
    """Where ``name`` is mentioned in an expression."""
    return [
        node
        for node in ast.walk(value)
        if isinstance(node, (ast.Name, ast.Attribute)) and is_name(node, name, site, study)
    ]


def is_name(node: ast.Name | ast.Attribute, name: str, site: Site, study: Study) -> bool:
    return any(fsdp1.canonical(q) == name for q in study.external(node, site.module))


def _plain_imports(node: ast.expr, name: str, site: Site, study: Study) -> list[ast.alias]:
    """The import to take over, when everything that uses it in the module can follow.

    A module may import the name several times.
    """
    if not isinstance(node, ast.Name):
        return []
    table = site.module.table
    owner = table.within[node].lookup(node.id)
    bindings = owner.bindings[node.id] if owner is not None else []
    aliases = [b.node for b in bindings if isinstance(b.node, ast.alias)]
    if len(aliases) != len(bindings) or any(fsdp1.canonical(b.qualified) != name for b in bindings):
        return []
    if len({table.parents[table.statement(alias)] for alias in aliases}) != 1:
        return []  # each in a branch of its own
    for other in table.names_by_id.named(node.id):
        if table.within[other].lookup(other.id) is not owner:
            continue
        use = Site(Construct(ConstructKind.NAME, name), site.module, other, other)
        if given_to_stranger(use, study) or _met_by_stranger(other, site.module, study):
            return []
    return aliases


def given_to_stranger(site: Site, study: Study) -> str:
    """That an outside callable receives the value, or an empty text."""
    return passed_to_stranger(site.reference, site.module, study)


def given_away(made: ast.Call, module: Module, study: Study) -> str:
    """That an object is given to what is out of sight, for which it stays FSDP1's. Accelerate's
    plugin is migrated with it."""
    problem = passed_to_stranger(made, module, study)
    return "" if PLUGIN in problem else problem


def passed_to_stranger(node: ast.AST, module: Module, study: Study) -> str:
    """As :func:`given_to_stranger`, for what is mentioned or made at a place."""
    stranger = _stranger(node, module, study, FOLLOWED)
    stranger = stranger or handed_names.given_to(node, module, study)
    return f"it is passed to {stranger}, which is outside the given paths" if stranger else ""


def _stranger(value: ast.AST, module: Module, study: Study, depth: int) -> str:
    child, table = value, module.table
    for parent in table.ancestors(child):
        match parent:
            case ast.Assign(targets=[ast.Name(id=name)]) if depth:
                owner = table.scope_of(parent).lookup(name)
                uses = (_stranger(n, module, study, depth - 1) for n in table.reads(name, owner))
                return next(filter(None, uses), "")
            case ast.stmt() | ast.Compare():
                return ""  # what comes of a comparison is no such value
            case ast.Attribute(attr=part) if part in handed_names.PARTS:
                return ""
            case ast.IfExp() if child is parent.test:
                return ""
        if parent in study.constructors or parent in study.claims.kept:
            return ""
        settled = study.settled.get(parent)
        if settled is not None and settled.outcome is not Outcome.LEFT:
            return ""  # another call stands there then
        function = isinstance(parent, ast.Call) and parent.args[:1] == [child]
        if function and study.external(of_kind(parent, ast.Call).func, module) == PARTIAL:
            child = parent  # the same function, with some of its arguments
            continue
        if isinstance(parent, ast.Call) and child is not parent.func:
            names = study.external(parent.func, module)
            if any(map(fsdp1.canonical, names)):
                return ""  # a site of its own
            outside = [n for n in names if n.split(".", maxsplit=1)[0] not in HARMLESS]
            return outside[0] if outside else ""
        child = parent
    return ""


def _met_by_stranger(value: ast.AST, module: Module, study: Study) -> str:
    """The library whose object has a value compared with what it holds, or is given it as an
    attribute: ``accelerator.state.fsdp_plugin.sharding_strategy is ShardingStrategy.FULL_SHARD``.
    It goes on with FSDP1's names."""
    for parent in module.table.ancestors(value):
        others: list[ast.expr] = []
        match parent:
            case ast.Compare(left=left, comparators=compared):
                others = [left, *compared]
            case ast.Assign(targets=others):
                pass
            case ast.expr():
                continue
        owners = (_owner(o, module, study, DEEPEST) for o in others if isinstance(o, ast.Attribute))
        return next(filter(None, owners), "")
    return ""


def _owner(node: ast.expr, module: Module, study: Study, depth: int) -> str:
    """The library whose object has an attribute; empty where it is the project's or not known."""
    if not isinstance(node, ast.Attribute) or depth <= 0:
        return ""
    if node.attr == "fsdp_plugin":
        return "accelerate"
    for found in study.values(node.value, module):
        name = found.made_by if isinstance(found, Made) else getattr(found, "name", "")
        package = name.partition(".")[0]
        if package in SHARDING_LIBRARIES - study.project.packages:
            return package
        if isinstance(found, (Computed, Unknown)) and isinstance(found.node, ast.expr):
            owner = _owner(found.node, found.module, study, depth - 1)
            if owner:
                return owner
    return ""
