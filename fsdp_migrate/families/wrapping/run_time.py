"""Constructors in their run-time form: ``shard`` of the support module takes FSDP1's arguments.

The form for what the code does not tell: keyword arguments built elsewhere, policies from outside,
calls where no statements can stand. ``fully_shard`` written out is preferred where it can be.
"""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator

from packaging.version import Version

from fsdp_migrate.analysis.module import Module
from fsdp_migrate.analysis.values import Computed, Unknown
from fsdp_migrate.families.wrapping import (
    forward_registration,
    late_memory,
    offloading,
    passed_on,
    policies,
    policy_functions,
    program_facts,
    refused_modules,
    strategies,
    vocabulary,
    wrap_contexts,
)
from fsdp_migrate.families.wrapping.enclosing_models import Role, role
from fsdp_migrate.fsdp1 import api as fsdp1
from fsdp_migrate.fsdp1.construct import Construct, ConstructKind
from fsdp_migrate.fsdp1.site import Site
from fsdp_migrate.planning.context import Study
from fsdp_migrate.planning.edits import Code, code
from fsdp_migrate.planning.forms import WRITTEN_OUT
from fsdp_migrate.planning.model import Cause, Constructor, Decision
from fsdp_migrate.syntax.kinds import of_kind

FUNCTION = "shard"
CLASS = "ShardedModule"  # of the support module as well: it hands its arguments to ``shard``
RULE = "FSDP101"
# Arguments whose values are written in another way where they are made.
CONVERTED = frozenset(
    {"auto_wrap_policy", "cpu_offload", "device_mesh", "mixed_precision", "sharding_strategy"}
)
OBSOLETE = frozenset({"backward_prefetch", "forward_prefetch", "limit_all_gathers"})
UNSURE = (
    "if this is a part of a model that is sharded later, pass is_root=False: only roots cast "
    "their inputs"
)


def choose_run_time_forms(study: Study) -> list[tuple[frozenset[ast.AST], ...]]:
    """The calls to write in the run-time form, given a study that has written out what it could,
    for each island of the project by itself: first as few as may do, then more.

    Those that could not be written out, and those that share a policy or a setting with them: a
    value has one form wherever it gets to. Then all that get their settings from elsewhere.
    """
    failed = {c for c in study.unwritten if not c.is_wrong}
    if not failed:
        return []
    shared = [
        conversion.constructors
        for origin, conversion in study.conversions.items()
        if not all(_stands_in(origin, c) for c in conversion.constructors)
    ]
    most = _with_sharers(failed.union(*shared), shared, study)
    fewest = most
    given = [_given_from_elsewhere(constructor, study) for constructor in failed]
    if None not in given:
        reached: set[ast.AST] = set().union(*filter(None, given))
        sharing = [c.constructors for node, c in study.conversions.items() if node in reached]
        fewest = _with_sharers(failed.union(*sharing), shared, study)
    return [
        tuple(dict.fromkeys((_nodes(island, fewest, study), _nodes(island, most, study))))
        for island in dict.fromkeys(study.project.island(c.module) for c in study.unwritten)
        if _nodes(island, most, study)
    ]


def emulated(study: Study) -> frozenset[ast.AST]:
    """The constructors that are to take the run-time form although they could be written out, and
    those that share a value with them."""
    chosen = {
        constructor
        for constructor in study.constructors.values()
        if WRITTEN_OUT in study.passed_over.get(constructor.place, ()) and not constructor.is_wrong
    }
    shared = [conversion.constructors for conversion in study.conversions.values()]
    return frozenset(c.node for c in _with_sharers(chosen, shared, study))


def _given_from_elsewhere(constructor: Constructor, study: Study) -> set[ast.AST] | None:
    """Where the values of a constructor's arguments are made; None where that is not known."""
    given = [(n, v, constructor.module) for n, v in constructor.arguments.items()]
    if constructor.is_open or constructor.problem:
        handed_on = passed_on.given_by_callers(constructor, study)
        if handed_on is None:
            return None
        given += handed_on
    found: set[ast.AST] = set()
    for value, module in ((v, m) for name, v, m in given if name in CONVERTED):
        values = study.values(value, module)
        if any(isinstance(v, (Computed, Unknown)) for v in values):
            return None
        found |= policies.policy_origins(values, study)
    return found


def _with_sharers(
    first: Iterable[Constructor], shared: Iterable[set[Constructor]], study: Study
) -> set[Constructor]:
    """Constructors, with those that share a value with them, and with these."""
    chosen, reached = set(first), 0
    while len(chosen) > reached:
        reached = len(chosen)
        chosen |= {sharer for constructor in chosen for sharer in constructor.sharers}
        chosen = chosen.union(*(each for each in shared if each & chosen))
    together = study.wrapping.constructors
    if any(c.is_wrong for c in together):
        return chosen - together
    return chosen | together if chosen & together else chosen


def _nodes(island: int, chosen: Iterable[Constructor], study: Study) -> frozenset[ast.AST]:
    """What is to take the run-time form on an island. Contexts that constructors share a dictionary
    with are known no more then, and take it with them."""
    found = {c for c in chosen if study.project.island(c.module) == island}
    nodes = {c.node for c in found}
    known = study.wrapping.known
    if any(context.spread is not None and context.wraps & found for context in known.values()):
        nodes |= {*known, *(wrap.node for context in known.values() for wrap in context.wraps)}
    return frozenset(nodes)


def _stands_in(node: ast.AST, constructor: Constructor) -> bool:
    table = constructor.module.table
    if node not in table.parents:
        return False
    entries = constructor.entries
    owns = (constructor.call, *(entry.value for entry in entries))
    return any(p in owns for p in (node, *table.ancestors(node)))


def construct(site: Site, study: Study) -> list[Decision]:
    """Decide a constructor, or a partial of it, together with its arguments."""
    constructor = study.constructors[site.node]
    is_wrap = constructor in study.wrapping.contexts
    together = is_wrap or constructor.is_context
    models = study.wrapping.constructors if together else frozenset({constructor})
    given = constructor.has_module and not together
    refused = refused_modules.refusal_in_any_form(constructor, study) if given else None
    if refused is not None:
        models |= refused.models
        quiet = bool(refused.models)  # one FSDP in the other
        left = study.left(
            site, RULE, refused.reason, refused.help, models=models, quiet=quiet, final=True
        )
        return [left, *arguments(constructor, site.module, study, models)]
    if is_wrap and wrap_contexts.is_outer_of_two(constructor, study):
        return [without_outer(site, constructor, study)]
    if is_wrap and wrap_contexts.is_wrapped_before(constructor, study):
        left = study.left(
            site, "FSDP104", *wrap_contexts.TWICE, models=models, quiet=True, final=True
        )
        return [left, *arguments(constructor, site.module, study, models)]
    proposal = study.proposal()
    message = "kept: it hands shard what enable_wrap and itself are given"
    if not is_wrap:
        message = "shard takes the same arguments"
        message = f"kept, {message}" if together else message
        reference = of_kind(constructor.reference, ast.expr)
        lacking = program_facts.lacking(constructor, study)
        name = proposal.support(site.module, FUNCTION, reference, lacking)
        proposal.replace(site.module, reference, code("{n}", n=name))
    for entry in constructor.from_context:
        proposal.add_keyword(site.module, constructor.call, entry.name, code("{v}", v=entry.value))
    for keyword in constructor.call.keywords:
        if keyword.arg in fsdp1.EARLIER_NAMES:
            name = fsdp1.EARLIER_NAMES[keyword.arg]
            proposal.rename_keyword(site.module, constructor.call, keyword, name)
    for keyword in obsolete_keywords(constructor, study):
        proposal.remove_argument(site.module, constructor.call, keyword)
    added: list[Code] = []
    review = place_among_models(constructor, study, added)
    if given and not review:
        review = refused_modules.doubt(constructor, study)
    if added:
        proposal.add_keyword(site.module, constructor.call, "is_root", code("False"))
    forward_registration.register_made(constructor, proposal, study)
    rule = "FSDP104" if together else RULE
    whole = study.rewritten(site, rule, message, proposal, models=models, review=review)
    return [whole, *arguments(constructor, site.module, study, models)]


def obsolete_keywords(constructor: Constructor, study: Study) -> list[ast.keyword]:
    """The arguments in a call of ``shard`` that FSDP2 needs none of, whatever they are."""
    if constructor in study.wrapping.constructors or constructor.is_context:
        return []  # they are kept in one place, and taken in another
    return [
        keyword
        for keyword in constructor.call.keywords
        if keyword.arg in OBSOLETE and not any(isinstance(n, ast.Call) for n in ast.walk(keyword))
    ]


def without_outer(site: Site, outer: Constructor, study: Study) -> Decision:
    """``wrap(wrap(x))`` as ``wrap(x)``, in either form: the outer wrapper held nothing itself."""
    proposal = study.proposal()
    proposal.replace(site.module, outer.call, code("{w}", w=outer.call.args[0]))
    message = "the second of two wrappers goes"
    models = study.wrapping.constructors
    return study.rewritten(site, "FSDP104", message, proposal, models=models)


def place_among_models(constructor: Constructor, study: Study, given: list[Code]) -> str:
    """Add the argument that tells ``shard`` that a model is a part of another one.

    Returns what is to be reviewed when nobody knows.
    """
    is_wrap = constructor in study.wrapping.contexts
    found = Role.ROOT if constructor.is_context else role(constructor, study)
    casts = may_cast(constructor, study)
    if found is Role.PART and (casts or not is_wrap):
        given.append(code("is_root=False"))
    return UNSURE if found is Role.UNKNOWN and casts else ""


def arguments(
    constructor: Constructor,
    module: Module,
    study: Study,
    models: frozenset[Constructor],
) -> Iterator[Decision]:
    """Decisions for the arguments that ``shard`` takes as they are."""
    dropped = obsolete_keywords(constructor, study)
    for argument, node in constructor.nodes().items():
        if argument not in constructor.arguments or argument == "module":
            continue
        if any(map(fsdp1.canonical, study.external(constructor.arguments[argument], module))):
            continue  # FSDP1's own name, passed by itself: a site of its own
        part = Site(Construct.of_argument(argument), module, node, node)
        rule = study.registry.find(part.construct)
        if rule is not None and Version(rule.rule.since) > study.target:
            yield study.too_new(part, rule, models=models)
            continue
        code_of_rule = rule.code if rule else RULE
        review = _doubt(argument, constructor, study)
        message = "dropped" if node in dropped else "shard takes it"
        yield study.rewritten(part, code_of_rule, message, models=models, review=review)


def _doubt(argument: str, constructor: Constructor, study: Study) -> str:
    """What has to be judged of an argument that ``shard`` takes, as if it were written out."""
    if argument == "cpu_offload" and offloading.may_offload(constructor, study):
        return offloading.doubt(constructor, study)
    if argument == "auto_wrap_policy":
        values = study.values(constructor.arguments[argument], constructor.module)
        refused = policies.refused(values, study)
        return refused or policy_functions.doubt_of_parameters(values, study)
    if argument == "sharding_strategy":
        if constructor.has("device_mesh") or constructor.has("process_group"):
            return ""  # it shards over them
        return strategies.doubt(strategies.possible(constructor, study), constructor.module, study)
    if argument == "mixed_precision" and study.project.mentions("buffer_dtype"):
        return late_memory.doubt(constructor, study)
    return ""


def may_cast(constructor: Constructor, study: Study) -> bool:
    """Whether units may compute in another dtype than that of their inputs."""
    if constructor not in study.wrapping.contexts:
        return constructor.may_have("mixed_precision")
    if any(k.arg is None for k in constructor.call.keywords):
        return True
    if "mixed_precision" in constructor.arguments:
        return constructor.has("mixed_precision")
    contexts = study.wrapping.may_be_in(constructor)
    return any(c.may_have("mixed_precision") for c in contexts)


def unknown_states(decisions: Iterable[Decision]) -> bool:
    """Whether state dicts were left whose kind only the running program knows."""
    return any(d.cause is Cause.UNKNOWN_STATE for d in decisions)


def decide_mention(site: Site, study: Study) -> Decision | None:
    """Decide a mention of a setting or policy that constructors in the run-time form may get."""
    name = site.construct.owner
    if not study.run_time or site.node in study.conversions:
        return None  # of a constructor that is written out
    if site.construct.kind is ConstructKind.IMPORT:
        return None  # nothing in the file uses it
    models = study.reached_from(site.module)
    if all(c.node not in study.run_time for c in models):
        return None  # those are on another island
    around = set(site.module.table.ancestors(site.node))
    if any(around.intersection(obsolete_keywords(c, study)) for c in models):
        rule_code = vocabulary.SETTINGS.get(name, RULE)
        return study.rewritten(site, rule_code, "dropped with the argument", models=models)
    if name in fsdp1.POLICIES - {"wrap", "enable_wrap"}:
        rule = study.registry.find(Construct.parse(name))
        if rule is None:
            return None
        return study.rewritten(site, rule.code, "kept: shard asks it as FSDP1 did", models=models)
    if name not in vocabulary.SETTINGS:
        return None
    if name == "MixedPrecision" and _keeps_low_precision(site, study):
        return study.left(
            site,
            vocabulary.SETTINGS[name],
            "keep_low_precision_grads=True has no counterpart in FSDP2",
            "gradients are always in the original dtype: drop the setting",
            models=models,
            quiet=True,
        )
    return vocabulary.import_from_support(site, name, study, vocabulary.SETTINGS[name])


def _keeps_low_precision(site: Site, study: Study) -> bool:
    if not isinstance(site.node, ast.Call):
        return False
    for keyword in site.node.keywords:
        if keyword.arg == "keep_low_precision_grads":
            constant = study.literal(keyword.value, site.module)
            return constant is not None and bool(constant.value)
    return False
