"""Decide a constructor together with its arguments: all of them or none."""

from __future__ import annotations

import ast
from collections.abc import Sequence
from dataclasses import replace

from packaging.version import Version

from fsdp_migrate.configurations import lightning_calls, plugin_calls
from fsdp_migrate.families.subclasses import forwarding_subclasses
from fsdp_migrate.families.wrapping import (
    dictionary_entries,
    enclosing_models,
    refused_modules,
    run_time,
    second_wrappers,
)
from fsdp_migrate.fsdp1 import api as fsdp1
from fsdp_migrate.fsdp1.construct import Construct
from fsdp_migrate.fsdp1.site import Site
from fsdp_migrate.migration.asking import ask
from fsdp_migrate.migration.holding import held
from fsdp_migrate.planning.context import Study
from fsdp_migrate.planning.edits import Mark, carried
from fsdp_migrate.planning.model import Cause, Constructor, Decision
from fsdp_migrate.planning.outcome import Outcome
from fsdp_migrate.planning.shard_plan import ShardPlan
from fsdp_migrate.syntax.kinds import present


def decide(site: Site, study: Study) -> list[Decision]:
    """Decide a constructor together with its arguments: all of them or none."""
    constructor = study.constructors[site.node]
    if constructor in study.second_wrappers:
        review = enclosing_models.casts_more(constructor, study)
        return second_wrappers.decide(site, study, review=review)
    if forwarding_subclasses.is_subclass(site):
        if site.node not in study.run_time:
            study.unwritten.append(constructor)
        return forwarding_subclasses.construct(site, study)
    if site.node in study.run_time:
        decided = run_time.construct(site, study)
        blocked = [d for d in decided if d.outcome is Outcome.LEFT]
        return [held(d, blocked[0]) if blocked and d not in blocked else d for d in decided]
    if constructor in study.wrapping.contexts:
        decision = ask(site, study)
        if decision.outcome is Outcome.LEFT and decision.cause is not Cause.FINAL:
            study.unwritten.append(constructor)
        return [decision]
    if constructor.problem:
        study.unwritten.append(constructor)
        return [_too_new(site, constructor, study) or ask(site, study)]
    plan = study.plans[constructor] = ShardPlan(constructor, study.proposal())
    plan.is_bare = bool(refused_modules.doubt_of_container(constructor, study))
    repeats = plan.place is not None and present(constructor.dictionary).written is not None
    if constructor.dictionary is not None:
        plan.names |= constructor.dictionary.names
    nodes = constructor.nodes()
    arguments: list[Decision] = []
    added: dict[str, dictionary_entries.Added] = {}
    for name in fsdp1.CONSTRUCTOR_ARGUMENTS[1:]:
        if name not in nodes:
            continue
        node = nodes[name]
        argument = Site(Construct.of_argument(name), site.module, node, node)
        added[name] = dictionary_entries.Added(plan)
        arguments.append(ask(argument, study))
        added[name].stop()
    further = [*plan.further]
    for finder in study.registry.finders(makes_models=True):
        if finder.of_constructor is not None:
            further += finder.of_constructor(constructor, study)
    arguments += [ask(each, study) for each in further]
    constructor.problem = dictionary_entries.write(plan, added, study)
    whole = ask(site, study)
    models = constructor.sharers
    blocked = [d for d in (*arguments, whole) if d.outcome is Outcome.LEFT]
    if blocked and whole.outcome is not Outcome.LEFT:
        whole = held(whole, blocked[0])
    if blocked:
        study.unwritten.append(constructor)
        constructor.is_wrong = any(d.cause is Cause.FINAL for d in blocked)
        arguments = [d if d.outcome is Outcome.LEFT else held(d, blocked[0]) for d in arguments]
    decisions = [replace(d, models=d.models | models) for d in (whole, *arguments)]
    return [_marked_before(d) for d in decisions] if repeats else decisions


def _marked_before(decision: Decision) -> Decision:
    """What has to be judged of a function that shards several models is marked where the first of
    them is."""
    if decision.outcome is not Outcome.REVIEW:
        return decision
    edits = tuple(edit for edit in decision.edits if not isinstance(edit, Mark))
    return replace(decision, outcome=Outcome.REWRITTEN, help="", edits=edits)


def _too_new(site: Site, constructor: Constructor, study: Study) -> Decision | None:
    """Left because of an argument that the target torch has nothing for."""
    for name in constructor.arguments:
        rule = study.registry.find(Construct.of_argument(name))
        if rule is not None and constructor.has(name) and Version(rule.rule.since) > study.target:
            constructor.is_wrong = True
            return study.too_new(site, rule, models=[constructor])
    return None


def is_inside(site: Site, study: Study) -> bool:
    """A name in the arguments of a call that is a site is that site's business, unless the value
    it makes is converted where it stands, or what replaces the call has it as well."""
    conversion = study.conversions.get(site.node)
    if conversion is not None and conversion.edits_origin:
        return False
    child: ast.AST = site.node
    passed: set[ast.AST] = {child}
    plugins = study.cache(plugin_calls.parts) | study.cache(lightning_calls.parts)
    for parent in (site.node, *site.module.table.ancestors(site.node)):
        if parent in plugins and parent is not site.node:
            return True
        if isinstance(parent, ast.stmt):
            return False
        if parent in study.entries:
            owner = study.entries[parent]
            shown = any(parent in each.nodes().values() for each in owner.sharers)
            if conversion is not None and not shown:
                return False  # one of several places of an argument, which has a site at another
            return not any(each.problem for each in owner.sharers)
        if parent is child:
            continue
        constructor = study.constructors.get(parent)
        written = parent not in study.run_time or constructor in study.second_wrappers
        if constructor is not None and not constructor.problem and written:
            made = (
                isinstance(child, ast.keyword) and child.arg is None
            )  # by a function, which stays
            own = (constructor.call.func, constructor.nodes().get("module"))
            return not made and child not in own
        if isinstance(parent, ast.Call) and child is not parent.func:
            settled = study.settled.get(parent)
            if settled is not None and settled.site.construct in OWNERS:
                stays = parent in study.claims.kept or not passed.isdisjoint(carried(settled.edits))
                return not stays
        child = parent
        passed.add(parent)
    return False


OWNERS = frozenset(map(Construct.of_model, fsdp1.STATICS))


def merged(decisions: Sequence[Decision]) -> list[Decision]:
    """One decision a reference: two constructors may bring up the same one."""
    found: dict[ast.AST, Decision] = {}
    for decision in decisions:
        known = found.get(decision.site.reference)
        if known is None or decision.outcome is Outcome.LEFT:
            models = known.models if known is not None else frozenset()
            found[decision.site.reference] = replace(decision, models=decision.models | models)
        else:
            models = known.models | decision.models
            found[decision.site.reference] = replace(known, models=models)
    return list(found.values())
