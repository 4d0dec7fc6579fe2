"""Ask every site's rule what to do, and make sure nothing is migrated by half.

Constructors come first, because what happens to a model's later life depends on them. Sites that
belong to one model form a *migration*; when one of them must be left and would quietly train or
save wrongly on a migrated model, the whole migration is held back.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator, Sequence
from dataclasses import replace

from packaging.version import Version

from fsdp_migrate.analysis.module import Module
from fsdp_migrate.analysis.tracing.tracer import Tracer
from fsdp_migrate.families.modules import unused
from fsdp_migrate.families.parameters import attributes, parameter_classes
from fsdp_migrate.families.subclasses import derived, subclasses
from fsdp_migrate.families.wrapping import chosen, policies, roles, run_time, vocabulary, wrapping
from fsdp_migrate.fsdp1 import api as fsdp1
from fsdp_migrate.fsdp1 import references
from fsdp_migrate.fsdp1.site import Site
from fsdp_migrate.migration import dead_code, partial
from fsdp_migrate.planning import branches, pages, string_references, support_file
from fsdp_migrate.planning.context import Failure, Study
from fsdp_migrate.planning.edits import carried
from fsdp_migrate.planning.model import Constructor, Decision
from fsdp_migrate.planning.outcome import Outcome, place
from fsdp_migrate.planning.rule import CODE, LoadedRule
from fsdp_migrate.planning.shard_plan import ShardPlan
from fsdp_migrate.planning.target import OLDEST
from fsdp_migrate.syntax import guards, suppressions

HELD = "FSDP190"
LOOK_ALIKE = "look-alike"
MODELS = frozenset(
    form.format(fsdp1.FSDP) for form in ("{}()", "partial({})", "class({})", "value({})")
)
INSTANCE = f"isinstance({fsdp1.FSDP})"
LOCAL = frozenset({"ShardedGradScaler", parameter_classes.FOUR_BIT})


def decide(study: Study) -> list[Decision]:
    """A decision for every FSDP1 site of the project, in order of file and position.

    Constructors that cannot be written out as ``fully_shard`` take the run-time form, when more of
    the project can be migrated that way. What a comment ignores is left after that.
    """
    best = _best(study)
    heeded = [_heeded(d) for d in best]
    if not any(d.ignored for d in heeded):
        return best
    return dead_code.settle(hold_back(heeded), study)


def _best(study: Study) -> list[Decision]:
    best = _decide(study)
    if study.target < OLDEST:
        return [_too_early(d, study) for d in best]
    taken: frozenset[ast.AST] = frozenset()
    failed = run_time.choose(study)
    for calls in failed:
        attempt = _decide(study.again(taken | calls, states=False))
        if _left(attempt) < _left(best) or _has_fewer_reasons(attempt, best):
            best, taken = attempt, taken | calls
    if run_time.unknown_states(best):
        for calls in dict.fromkeys((taken.union(*failed), taken, frozenset())):
            best = _better(best, _decide(study.again(calls, states=True)))
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
        guarded=False,
    )


def _better(first: list[Decision], second: list[Decision]) -> list[Decision]:
    return second if _left(second) < _left(first) else first


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
    found, used = _find(study)
    constructor_sites = [s for s in found if s.node in study.constructors]
    decisions: list[Decision] = []
    for site in constructor_sites:
        decisions += _construct(site, study)
    decisions = _merged(decisions)
    claimed = {d.site.reference for d in decisions}
    # In the run-time form nobody knows which policies serve whom: all of them are kept and said so.
    foreign = set() if study.run_time else _serves_others(study)
    any_policy = _shards_at_run_time(study)
    later = [
        s
        for s in found
        if s not in constructor_sites
        and s.reference not in claimed
        and not (
            s.construct in fsdp1.POLICIES - wrapping.NAMES
            and (any_policy or foreign & {s.node, policies.import_of(s.node, s.module)})
            and s.node not in study.conversions
        )
    ]
    for site in sorted(later, key=_rank):
        if not _inside(site, study):
            decisions.append(_ask(site, study))
    for module in study.project.modules:
        for site in _running(list(references.dead_imports(study.project, module, used)), study):
            decisions.append(_ask(site, study))
    for constructor in study.constructors.values():
        constructor.wholes = roles.wholes(constructor, study)
    decisions = behind_guards([_near(d, study) for d in decisions], study)
    if study.partial:
        decisions = partial.guarded(decisions, study)
    decisions = hold_back(decisions)
    decisions += _older(decisions, study)
    return sorted(dead_code.settle(decisions, study), key=order)


def _older(decisions: Sequence[Decision], study: Study) -> Iterator[Decision]:
    """Decisions about outdated code, but for that in arguments that nothing writes down again."""
    written = carried(e for d in decisions if d.outcome is not Outcome.LEFT for e in d.edits)
    for site in _each_once(study.outdated):
        around = (site.node, *site.module.table.ancestors(site.node))
        if written.isdisjoint(around) and _inside(site, study):
            continue
        decision = dead_code.of(site, study)
        unused = decision.outcome is Outcome.LEFT and site.construct.startswith("import(")
        yield _ask(site, study) if unused else decision


def _each_once(found: Sequence[Site]) -> list[Site]:
    """The first site of each reference."""
    return list({site.reference: site for site in reversed(found)}.values())


def _near(decision: Decision, study: Study) -> Decision:
    """``decision`` for the models of its own island, when it is about a type or a setting.

    Those get to no model that no import leads to. An object that nothing is known about may be any.
    """
    construct = decision.site.construct
    is_type = construct.startswith("annotation(") or construct == string_references.QUOTED
    name = vocabulary.name_of(construct)
    is_value = name in vocabulary.SETTINGS or name in fsdp1.POLICIES or name in LOCAL
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
        if module.mentions(support_file.NAME)
        for binding in module.table.imports
        for name in (run_time.FUNCTION, run_time.CLASS)
    )


def _serves_others(study: Study) -> set[ast.AST]:
    """Wrap policies that activation checkpointing or migrated code uses.

    The policy functions are plain torch; only FSDP1's constructor makes them FSDP1's.
    """
    found: set[ast.AST] = set()
    for module in study.project.modules:
        serves = module.mentions("apply_activation_checkpointing", "shard_by_policy")
        for call in module.table.calls if serves else ():
            name = call.func.attr if isinstance(call.func, ast.Attribute) else ""
            name = call.func.id if isinstance(call.func, ast.Name) else name
            if name not in {"apply_activation_checkpointing", "shard_by_policy"}:
                continue
            for argument in (*call.args, *(k.value for k in call.keywords)):
                found |= policies.handed_on(study.values(argument, module), study)
    return found


def _rank(site: Site) -> int:
    """What a model goes through before the plain values (enums, configs) that serve it."""
    first = site.construct.startswith((f"{fsdp1.FSDP}.", "private:_runtime_utils._reshard"))
    return 0 if first else 1


def _find(study: Study) -> tuple[list[Site], set[ast.AST]]:
    """Every site, constructors registered; and every node that is a reference."""
    known = study.found is not None
    found, used = study.found or _references(study)
    found = chosen.as_constructors(_running(found, study))
    for site in found:
        if site.construct in {f"{fsdp1.FSDP}()", f"partial({fsdp1.FSDP})"}:
            assert isinstance(site.node, ast.Call)
            constructor = Constructor.read(site.node, site.module, site.reference)
            chosen.mark(constructor)
            if _is_unsure(site, study):
                constructor.problem, constructor.is_wrong = "its class is not known", True
            study.constructors[site.node] = constructor
        elif subclasses.is_subclass(site) and not _is_unsure(site, study):
            subclasses.register(site, study)
    found = wrapping.register_contexts(found, study)
    if not known:
        named = [s for m in study.project.modules for s in string_references.find(study, m)]
        uses_fsdp1 = bool(found or study.outdated) or references.is_imported(study.project)
        uses_fsdp1 = uses_fsdp1 or not all(map(string_references.is_mention, named))
        referring = {site.module for site in found}
        found += named if uses_fsdp1 else []
        finders = study.registry.finders(makes_models=bool(study.constructors))
        makes_models = any(s.construct in MODELS for s in found) or bool(study.constructors)
        for module in study.project.modules:
            if makes_models or module in referring:
                found += references.methods(study.tracer, module, has_fsdp=module in referring)
            if uses_fsdp1:
                found += references.strings(module)
                found += string_references.in_bytes(module)
            found += string_references.in_annotations(study, module)
            has_models = bool(study.constructors)
            found += references.commands(study.project, module, has_models=has_models)
            found += (s for f in finders if f.in_file is not None for s in f.in_file(study, module))
            if study.constructors:
                found += string_references.attributes(study, module, has_fsdp=module in referring)
        found += (s for f in finders if f.in_project is not None for s in f.in_project(study))
        if study.constructors:
            found += _versions(found, study)
        found += _outdated_methods(referring, study)
        found = _running(found, study)
        study.found = found, used
    study.subclassed = any(map(subclasses.is_subclass, found))
    for site in found:
        branch = _branch(site, study)
        if site.construct in {branches.FSDP1_ONLY, branches.OTHERS}:
            branch = branches.asked(site, study.project)
        if branch is not None and not _builds_models(branch, study):
            study.branches.append(branch)
    return found, used


def _running(found: list[Site], study: Study) -> list[Site]:
    """The sites that some torch from the target on runs; the others are kept apart.

    What is done there is no reason for anything elsewhere.
    """
    older = study.project.outdated
    if not older:
        return found
    study.outdated += [s for s in found if s.reference in older]
    return [s for s in found if s.reference not in older]


def _outdated_methods(referring: set[Module], study: Study) -> Iterator[Site]:
    """What is done to models where no torch from the target on gets."""
    older = study.project.outdated
    if not older:
        return
    tracer = Tracer(study.project)
    tracer.outdated = ()
    attributes = {node for node in older if isinstance(node, ast.Attribute)}
    for module in study.project.modules if attributes else ():
        if not attributes.isdisjoint(module.table.attributes):
            for site in references.methods(tracer, module, has_fsdp=module in referring):
                if site.reference in older:
                    yield site


def _versions(found: Sequence[Site], study: Study) -> list[Site]:
    """The versions of FSDP that stand in branches for FSDP1's models."""
    further: list[Site] = []
    for site in found:
        branch = _branch(site, study)
        if branch is not None and not _builds_models(branch, study):
            further += branches.versions(branch, site.module, study.tracer)
    return further


def _branch(site: Site, study: Study) -> branches.Branch | None:
    """The branch for FSDP1's models beside one for FSDP2's, where a site asks for them."""
    asked = site.construct == INSTANCE and not _is_unsure(site, study)
    return branches.of(site, study.project) if asked else None


def _references(study: Study) -> tuple[list[Site], set[ast.AST]]:
    found: list[Site] = []
    used: set[ast.AST] = set()
    lent = references.lent(study.project)
    for module in study.project.modules:
        known = lent is None or module.mentions(*fsdp1.WORDS)
        if not known and lent is not None and not references.borrows(module, lent):
            continue
        for node, canonical in references.references(study.project, module):
            used.add(node)
            site = references.of_alias(references.classify(module, node, canonical), study.project)
            found += [site] if site is not None else []
    return found, used


def _builds_models(branch: branches.Branch, study: Study) -> bool:
    return not branches.builds(branch).isdisjoint(study.constructors)


def _construct(site: Site, study: Study) -> list[Decision]:
    """Decide a constructor together with its arguments: all of them or none."""
    if subclasses.is_subclass(site):
        return subclasses.construct(site, study)
    assert isinstance(site.node, ast.Call)
    constructor = study.constructors[site.node]
    if site.node in study.run_time:
        decided = run_time.construct(site, study)
        blocked = [d for d in decided if d.outcome is Outcome.LEFT]
        return [held(d, blocked[0]) if blocked and d not in blocked else d for d in decided]
    if constructor in study.wrapping.contexts:
        return [_ask(site, study)]
    if constructor.problem:
        study.unwritten.append(constructor)
        return [_too_new(site, constructor, study) or _ask(site, study)]
    study.plans[constructor] = ShardPlan(constructor, study.proposal())
    nodes = constructor.nodes()
    arguments: list[Decision] = []
    for name in fsdp1.CONSTRUCTOR_ARGUMENTS[1:]:
        if name not in nodes:
            continue
        node = nodes[name]
        assert isinstance(node, (ast.expr, ast.keyword))
        argument = Site(f"{fsdp1.FSDP}({name}=)", site.module, node, node)
        arguments.append(_ask(argument, study))
    further = [*study.plans[constructor].further, *attributes.of(constructor, study)]
    arguments += [_ask(each, study) for each in further]
    left_out = unused.of(constructor, study)
    if left_out is not None:
        arguments.append(_ask(left_out.site, study))
    whole = _ask(site, study)
    models = frozenset({constructor})
    blocked = [d for d in (*arguments, whole) if d.outcome is Outcome.LEFT]
    if blocked and whole.outcome is not Outcome.LEFT:
        whole = held(whole, blocked[0])
    if blocked:
        study.unwritten.append(constructor)
        constructor.is_wrong = any(d.final for d in blocked)
        arguments = [d if d.outcome is Outcome.LEFT else held(d, blocked[0]) for d in arguments]
    return [replace(d, models=d.models | models) for d in (whole, *arguments)]


def _too_new(site: Site, constructor: Constructor, study: Study) -> Decision | None:
    """Left because of an argument that the target torch has nothing for."""
    for name in constructor.arguments:
        rule = study.registry.find(f"{fsdp1.FSDP}({name}=)")
        if rule is not None and constructor.has(name) and Version(rule.rule.since) > study.target:
            constructor.is_wrong = True
            return study.too_new(site, rule, models=[constructor])
    return None


def _is_none(node: ast.AST) -> bool:
    """Whether an argument is None: whatever rule it has, nothing replaces it."""
    value = node.value if isinstance(node, ast.keyword) else node
    return isinstance(value, ast.Constant) and value.value is None


def _inside(site: Site, study: Study) -> bool:
    """A name in the arguments of a call that is a site is that site's business, unless the value
    it makes is converted where it stands, or what replaces the call has it as well."""
    conversion = study.conversions.get(site.node)
    if conversion is not None and conversion.edits_origin:
        return False
    child: ast.AST = site.node
    passed: set[ast.AST] = {child}
    for parent in site.module.table.ancestors(site.node):
        if isinstance(parent, ast.stmt):
            return False
        constructor = study.constructors.get(parent)
        if constructor is not None and not constructor.problem and parent not in study.run_time:
            return child is not constructor.call.func and child is not _module_of(constructor)
        if isinstance(parent, ast.Call) and child is not parent.func:
            settled = study.settled.get(parent)
            if settled is not None and settled.site.construct in OWNERS:
                stays = parent in study.kept or not passed.isdisjoint(carried(settled.edits))
                return not stays
        child = parent
        passed.add(parent)
    return False


OWNERS = frozenset(f"{fsdp1.FSDP}.{name}" for name in fsdp1.STATICS)


def _module_of(constructor: Constructor) -> ast.AST | None:
    """The node that holds the wrapped module: a keyword, or the expression itself."""
    return constructor.nodes().get("module")


def _merged(decisions: Sequence[Decision]) -> list[Decision]:
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


def _ask(site: Site, study: Study) -> Decision:
    rule = study.registry.find(site.construct)
    if rule is None:
        rule = study.registry.find("*")
        assert rule is not None, "the catch-all rule is missing"
    if Version(rule.rule.since) > study.target and not _is_none(site.node):
        models = _models_at(site, study)
        return study.too_new(site, rule, models=models)
    if not study.constructors and site.construct.startswith(f"{fsdp1.FSDP}."):
        help_ = "give the path that wraps it as well"
        study.settled[site.node] = study.left(site, rule.code, study.no_models, help_)
        return study.settled[site.node]
    if study.gone and not study.gone.isdisjoint(
        (site.node, *site.module.table.ancestors(site.node))
    ):
        return study.rewritten(
            site, rule.code, "gone with what it was for", models=study.constructors.values()
        )
    if any(branches.stands_in(site, branch) for branch in study.branches):
        return study.rewritten(
            site, rule.code, "gone with the branch for FSDP1", models=study.constructors.values()
        )
    if _is_unsure(site, study):
        rule = study.registry.find(LOOK_ALIKE)
        assert rule is not None, "the rule for look-alikes is missing"
        decision = None
    else:
        decision = run_time.settings(site, study) or _of_what_stays(site, study)
        decision = decision or _of_look_alikes(site, study)
        decision = decision or derived.of_own_state(site, study)
    if decision is None:
        try:
            decision = _answered(rule.decide(site, study), site, rule)
        except KeyboardInterrupt:
            raise
        except BaseException as error:  # whatever a rule does wrong, other models go on
            decision = _failed(site, rule, error, study)
    study.settled[site.node] = decision
    return decision


def _answered(decision: Decision, site: Site, rule: LoadedRule) -> Decision:
    """What a rule answered, if it is an answer for this site.

    A project's own rule cannot make a site disappear from what is counted.
    """
    if rule.path.is_relative_to(pages.bundled()):
        return decision
    if not isinstance(decision, Decision) or not isinstance(decision.outcome, Outcome):
        raise TypeError("decide() must return a Decision")
    if decision.site is not site or decision.kept or decision.ignored or decision.guarded:
        raise ValueError("decide() must answer for its site: rewritten, for review, or left")
    if not isinstance(decision.code, str) or not CODE.fullmatch(decision.code):
        raise ValueError(f"{decision.code!r} is no rule's code")
    return decision


def _is_unsure(site: Site, study: Study) -> bool:
    """Whether what a site refers to may be something else than FSDP1's."""
    unsure = study.project.look_alikes(site.reference, site.module)
    return bool(unsure) or string_references.is_unsure(site, study)


def _of_what_stays(site: Site, study: Study) -> Decision | None:
    """Left, where the model is of a class derived from FSDP1's that is no constructor: it stays."""
    if not study.subclassed or site.receiver is None:
        return None
    made = references.models(study.values(site.receiver, site.module), study.tracer)
    if all(any(study.made_by(model)) for model in made):
        return None
    rule = study.registry.find(site.construct) or study.registry.find("*")
    assert rule is not None
    constructors = study.models(site.receiver, site.module).constructors
    return study.left(
        site,
        rule.code,
        "the model here may be of a subclass of FSDP, which stays (FSDP103)",
        "migrate that class first",
        models=constructors,
        quiet=bool(constructors),
    )


def _of_look_alikes(site: Site, study: Study) -> Decision | None:
    """Left, where the model may also be made by a class that another library, or the project, calls
    FSDP, or that has the method itself: it does not do what FSDP1's does."""
    if site.receiver is None:
        return None
    found = study.values(site.receiver, site.module)
    name = site.construct.removeprefix(f"{fsdp1.FSDP}.")
    others = sorted(filter(None, (references.look_alike(v, name, study.tracer) for v in found)))
    constructors = study.models(site.receiver, site.module).constructors
    if not others or not constructors:
        return None
    rule = study.registry.find(LOOK_ALIKE)
    assert rule is not None, "the rule for look-alikes is missing"
    return study.left(
        site,
        rule.code,
        f"the model here may also be made by {' or '.join(dict.fromkeys(others))}",
        "do this where the model is made, or where isinstance tells that it is torch's FSDP",
        models=constructors,
        quiet=True,
    )


def _failed(site: Site, rule: LoadedRule, error: BaseException, study: Study) -> Decision:
    """Left because the rule ended with an error, which the run reports."""
    study.failures[site.node] = Failure(site, rule, error)
    return study.left(
        site,
        rule.code,
        f"{rule.code} failed here",
        "migrate it by hand",
        models=_models_at(site, study) or study.constructors.values(),
        quiet=True,
        final=True,
    )


def _models_at(site: Site, study: Study) -> frozenset[Constructor]:
    if isinstance(site.node, ast.Call) and site.node in study.constructors:
        return frozenset({study.constructors[site.node]})
    if site.receiver is not None:
        return study.models(site.receiver, site.module).constructors
    return frozenset(study.constructors.values())


def _heeded(decision: Decision) -> Decision:
    """``decision``, unless a comment says that its site is to stay as it is."""
    site, codes = decision.site, filter(None, (decision.code, decision.rule))
    found = suppressions.find(site.node, site.module.source, site.module.table, *codes)
    return decision if found is None else _ignored(decision, found)


def _ignored(decision: Decision, by: suppressions.Ignored) -> Decision:
    """*Left* on purpose. What would be rewritten may go wrong on a migrated model if it is not."""
    reason = by.ignore.reason
    return replace(
        decision,
        outcome=Outcome.LEFT,
        message=f"ignored here: {reason}" if reason else "ignored here",
        help="",
        edits=(),
        guard=(),
        guarded=False,
        quiet=decision.quiet or decision.outcome is not Outcome.LEFT,
        ignored=by,
    )


def _with_ignored(decisions: Sequence[Decision]) -> list[Decision]:
    """What stays FSDP1 because its model does, whose constructor is ignored, and what ignores that
    it is held back."""
    models = {
        constructor: decision.ignored
        for decision in decisions
        if decision.ignored is not None
        for constructor in decision.models
        if decision.site.node in (constructor.call, constructor.defined_by)
    }
    result = []
    for decision in decisions:
        by = None
        if decision.held and decision.ignored is None:
            site = decision.site
            by = suppressions.find(site.node, site.module.source, site.module.table, HELD)
        if by is not None:
            result.append(_ignored(decision, by))
        elif (
            decision.outcome is Outcome.LEFT
            and decision.ignored is None
            and decision.models
            and decision.models <= models.keys()
        ):
            by = next(models[c] for c in decision.models)
            message = f"stays FSDP1 with its model, which is ignored at {by.place}"
            result.append(replace(_ignored(decision, by), message=message))
        else:
            result.append(decision)
    return result


def held(decision: Decision, cause: Decision) -> Decision:
    """``decision`` turned into *left* because of ``cause``."""
    message, help_ = cause.message, cause.help
    if not cause.held:
        cell, line, _ = cause.site.place
        where = place(cause.site.module.display, line, cell)
        message, help_ = f"held back with {where} ({cause.code})", f"settle {where}, then run again"
        if cause.ignored is not None:
            message = f"held back with {where} ({cause.code}), which is ignored"
            help_ = f"ignore it as well, or remove the comment at {cause.ignored.place}"
    return replace(
        decision,
        code=HELD,
        rule=decision.rule or decision.code,
        outcome=Outcome.LEFT,
        message=message,
        help=help_,
        edits=(),
        held=True,
        quiet=False,
    )


def hold_back(decisions: Sequence[Decision]) -> list[Decision]:
    """Hold every migration back that contains a blocking site.

    Blocking: a left constructor (its model stays FSDP1, so everything done to it must too), and a
    left site that would be quietly wrong on a migrated model. Migrations that share a site, such
    as one precision policy for two models, stand and fall together. A site with a guard blocks
    nothing, and has its guard only where nothing else does.
    """
    group = groups(decisions)
    blocked: dict[Constructor, Decision] = {}
    # What is ignored is named as the cause only where there is no other.
    for decision in sorted(decisions, key=lambda d: d.ignored is not None):
        if decision.outcome is not Outcome.LEFT:
            continue
        is_constructor = decision.site.construct.startswith(f"{fsdp1.FSDP}(") or any(
            decision.site.node is constructor.defined_by for constructor in decision.models
        )
        if is_constructor or (decision.quiet and not decision.guard):
            for constructor in decision.models:
                blocked.setdefault(group[constructor], decision)
    result = []
    for decision in decisions:
        causes = [blocked[group[c]] for c in decision.models if group[c] in blocked]
        keep = not causes or decision.outcome is Outcome.LEFT
        if decision.guard:
            result.append(replace(decision, guarded=not causes))
        else:
            result.append(decision if keep else held(decision, causes[0]))
    return _with_ignored(result)


def behind_guards(decisions: Sequence[Decision], study: Study) -> list[Decision]:
    """``decisions`` with what an earlier ``--partial`` left: sites that a guard keeps from running
    stay as they are, and a guard with no site behind it is one itself."""
    result: list[Decision] = []
    claimed: set[ast.AST] = set()
    for decision in decisions:
        site = decision.site
        guard = guards.before(site.module.table, site.node)
        makes = site.construct.startswith(partial.MAKERS) or site.node in study.constructors
        if guard is None or makes:
            result.append(decision)
        else:
            claimed.add(guard.statement)
            result.append(_guarded(site, guard))
    for module in study.project.modules:
        for guard in guards.of(module.table).values():
            if guard.statement not in claimed:
                site = Site("guard", module, guard.statement, guard.statement)
                result.append(_guarded(site, guard))
    return result


def _guarded(site: Site, guard: guards.Guard) -> Decision:
    """Left behind a guard, which says why."""
    help_ = "migrate what stands behind the guard, and remove it"
    return Decision(site, guard.code, Outcome.LEFT, guard.reason, help_, guarded=True)


def groups(decisions: Sequence[Decision]) -> dict[Constructor, Constructor]:
    """The constructor that stands for each one's migration: those that occur in one decision
    together have the same, as have those of a model and of its parts (union-find)."""
    parent: dict[Constructor, Constructor] = {}

    def find(item: Constructor) -> Constructor:
        parent.setdefault(item, item)
        while parent[item] is not item:
            parent[item] = parent[parent[item]]
            item = parent[item]
        return item

    for decision in decisions:
        members = list(decision.models)
        for other in members[:1] + members[1:]:
            parent[find(other)] = find(members[0])
    for part in list(parent):
        for whole in part.wholes:
            parent[find(part)] = find(whole)
    return {item: find(item) for item in list(parent)}
