"""Ask every site's rule what to do, and make sure nothing is migrated by half.

Constructors come first, because what happens to a model's later life depends on them. Sites that
belong to one model form a *migration*; when one of them must be left and would quietly train or
save wrongly on a migrated model, the whole migration is held back.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

from fsdp_migrate.discovery import progress
from fsdp_migrate.families.wrapping import (
    enclosing_models,
    keyword_dictionaries,
    policies,
    policy_uses,
    run_time,
    vocabulary,
    wrap_contexts,
)
from fsdp_migrate.fsdp1 import api as fsdp1
from fsdp_migrate.fsdp1 import references
from fsdp_migrate.fsdp1.construct import Construct, ConstructKind
from fsdp_migrate.fsdp1.site import Site
from fsdp_migrate.migration import constructors, dead_code, finding, going_along, partial
from fsdp_migrate.migration.asking import ask
from fsdp_migrate.migration.holding import heeded, hold_back
from fsdp_migrate.planning import string_references, support_file, support_library
from fsdp_migrate.planning.context import Study
from fsdp_migrate.planning.edits import ReplaceExpression, carried
from fsdp_migrate.planning.forms import AT_EACH_CALL, WRITTEN_OUT
from fsdp_migrate.planning.model import Decision
from fsdp_migrate.planning.outcome import Outcome
from fsdp_migrate.planning.target import OLDEST

POLICIES = frozenset(map(Construct.parse, fsdp1.POLICIES)) - wrap_contexts.CONSTRUCTS
# The same as types, and asked for: what hands policies on at run time makes them as FSDP1 did.
POLICY_TYPES = frozenset(
    Construct(kind, policy.name)
    for policy in POLICIES
    for kind in (ConstructKind.ANNOTATION, ConstructKind.ISINSTANCE)
)


def decide(study: Study) -> list[Decision]:
    """A decision for every FSDP1 site of the project, in order of file and position.

    Constructors that cannot be written out as ``fully_shard`` take the run-time form, when more of
    the project can be migrated that way. What a comment ignores is left after that.
    """
    best = _best(study)
    with_ignored = [heeded(d) for d in best]
    if not any(d.ignored for d in with_ignored):
        return best
    return going_along.settle(hold_back(with_ignored), study)


def _best(study: Study) -> list[Decision]:
    best = _decide(study)
    if study.target < OLDEST:
        return [_too_early(d, study) for d in best]
    kept = keyword_dictionaries.unwritable(study)
    if kept:
        other = study.again(kept=kept)
        attempt = _decide(other)
        if _is_better(attempt, best):
            best, study = attempt, other
    taken: frozenset[ast.AST] = frozenset()
    failed = run_time.choose_run_time_forms(study)
    for choices in failed:
        before = taken
        for calls in choices:
            attempt = _decide(study.again(before | calls, states=False))
            if _is_better(attempt, best):
                best, taken = attempt, before | calls
    if run_time.unknown_states(best):
        every = (calls for choices in failed for calls in choices)
        for calls in dict.fromkeys((taken.union(*every), taken, frozenset())):
            attempt = _decide(study.again(calls, states=True))
            best = attempt if _is_better(attempt, best) else best
    passed_over = {name for names in study.passed_over.values() for name in names}
    if passed_over & {WRITTEN_OUT, AT_EACH_CALL.name}:
        emulated = run_time.emulated(study)
        states = AT_EACH_CALL.name in passed_over or run_time.unknown_states(best)
        attempt = _decide(study.again(taken | emulated, states=states))
        best = best if _leaves_less(best, attempt) else attempt
    return best


def _too_early(decision: Decision, study: Study) -> Decision:
    """``decision`` for a project whose torch has no ``fully_shard``: one thing to say of every
    site, which the report says, so the files stay as they are."""
    return replace(
        decision,
        outcome=Outcome.LEFT,
        message=f"fully_shard needs torch {OLDEST}, the project's target is {study.target}",
        help="raise the project's torch requirement, or pass --target-torch",
        edits=(),
        quiet=False,
        guard=replace(decision.guard, stands=False),
    )


def _is_better(attempt: list[Decision], best: list[Decision]) -> bool:
    return _leaves_less(attempt, best) or _has_fewer_reasons(attempt, best)


def _leaves_less(attempt: list[Decision], best: list[Decision]) -> bool:
    """Whether less is left of the sites that both have: the arguments of a constructor that is
    written out, or left, are no sites of their own."""
    both = {d.site.reference for d in attempt} & {d.site.reference for d in best}
    left, before = (
        sum(d.outcome is Outcome.LEFT and d.site.reference in both for d in decisions)
        for decisions in (attempt, best)
    )
    return left < before


def _has_fewer_reasons(attempt: list[Decision], best: list[Decision]) -> bool:
    """Whether as much is migrated, and less of what is left is left for a reason of its own.

    Where something else holds back what an attempt could write, that is the reason to name.
    """
    if len(attempt) - _left(attempt) != len(best) - _left(best):
        return False
    own, before = (
        sum(d.outcome is Outcome.LEFT and not d.held for d in decisions)
        for decisions in (attempt, best)
    )
    return own < before


def _left(decisions: Sequence[Decision]) -> int:
    return sum(d.outcome is Outcome.LEFT for d in decisions)


def _decide(study: Study) -> list[Decision]:
    found, used = finding.find(study)
    constructor_sites = [s for s in found if s.node in study.constructors]
    decisions: list[Decision] = []
    for site in progress.through("deciding", constructor_sites, _places(constructor_sites)):
        decisions += constructors.decide(site, study)
    decisions = constructors.merged(decisions)
    claimed = {d.site.reference for d in decisions}
    # In the run-time form nobody knows which policies serve whom: all of them are kept and said so.
    foreign = set() if study.run_time else study.cache(policy_uses.serving_others)
    at_run_time = _shards_at_run_time(study)
    any_policy = foreign is None or at_run_time
    foreign = foreign or set()
    later = [
        s
        for s in found
        if s not in constructor_sites
        and s.reference not in claimed
        and not (
            s.construct in POLICIES
            and (any_policy or foreign & {s.node, policies.import_of(s.node, s.module)})
            and s.node not in study.conversions
        )
        and not (at_run_time and s.construct in POLICY_TYPES)
    ]
    later.sort(key=_rank)
    edits = [e for d in decisions if d.outcome is not Outcome.LEFT for e in d.edits]
    written = dict.fromkeys(carried(edits), True)
    written |= {e.node: False for e in edits if isinstance(e, ReplaceExpression)}
    for site in progress.through("deciding", later, _places(later)):
        if not constructors.is_inside(site, study) or _is_written_again(site, written):
            decisions.append(ask(site, study))
    for module in study.project.modules:
        for site in finding.running(
            list(references.dead_imports(study.project, module, used)), study
        ):
            decisions.append(ask(site, study))
    for constructor in study.constructors.values():
        constructor.wholes = enclosing_models.enclosing_constructors(constructor, study)
    decisions = partial.behind_guards([_near(d, study) for d in decisions], study)
    if study.partial:
        decisions = partial.guarded(decisions, study)
    decisions = hold_back(decisions)
    decisions += _older(decisions, study)
    return sorted(going_along.settle(decisions, study), key=order)


def _is_written_again(site: Site, written: Mapping[ast.AST, bool]) -> bool:
    """Whether an argument that is written down again has a name of FSDP1's in it that no rule of
    arguments knows: ``device_id=FSDP.device``, ``process_group=ShardingStrategy.FULL_SHARD``.

    Args:
        written: what is written down again, and False for what has something else in its place.
    """
    around = (site.node, *site.module.table.ancestors(site.node))
    return next((written[node] for node in around if node in written), False)


def _places(sites: Sequence[Site]) -> list[str]:
    return [f"{site.module.display}:{site.position[0]}" for site in sites]


def _older(decisions: Sequence[Decision], study: Study) -> Iterator[Decision]:
    """Decisions about outdated code, but for that in arguments that nothing writes down again."""
    written = carried(e for d in decisions if d.outcome is not Outcome.LEFT for e in d.edits)
    for site in _each_once(study.outdated):
        around = (site.node, *site.module.table.ancestors(site.node))
        if written.isdisjoint(around) and constructors.is_inside(site, study):
            continue
        decision = dead_code.of(site, study)
        unused = decision.outcome is Outcome.LEFT and site.construct.kind is ConstructKind.IMPORT
        yield ask(site, study) if unused else decision


def _each_once(found: Sequence[Site]) -> list[Site]:
    """The first site of each reference."""
    return list({site.reference: site for site in reversed(found)}.values())


def _near(decision: Decision, study: Study) -> Decision:
    """``decision`` for the models of its own island, when it is about a type or a setting.

    Those get to no model that no import leads to. An object that nothing is known about may be any.
    """
    construct = decision.site.construct
    is_type = construct.kind is ConstructKind.ANNOTATION or construct == string_references.QUOTED
    name = construct.owner
    is_value = name in vocabulary.SETTINGS or name in fsdp1.POLICIES or name in study.registry.near
    if decision.outcome is Outcome.LEFT or not (is_type or is_value):
        return decision
    return replace(
        decision, models=decision.models.intersection(study.reached_from(decision.site.module))
    )


def order(decision: Decision) -> tuple[object, ...]:
    """What decisions are listed by: file, position, code."""
    return decision.site.module.display, decision.site.place, decision.code


def _shards_at_run_time(study: Study) -> bool:
    """Whether migrated code hands policies on at run time, who knows which."""
    return any(
        support_file.is_from(binding.qualified, name, module, study.project)
        for module in study.project.modules
        if module.mentions(support_library.NAME)
        for binding in module.table.imports
        for name in (run_time.FUNCTION, run_time.CLASS)
    )


RESHARD = "_runtime_utils._reshard"


def _rank(site: Site) -> int:
    """What a model goes through before the plain values (enums, configs) that serve it."""
    construct = site.construct
    frees = construct.kind is ConstructKind.PRIVATE and construct.name.startswith(RESHARD)
    return 0 if construct.attribute or frees else 1
