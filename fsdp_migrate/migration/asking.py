"""Ask the rule of a site, unless something else settles it."""

from __future__ import annotations

import ast
from dataclasses import replace

from packaging.version import Version

from fsdp_migrate.families.modules import own_classes, process_groups, told_apart
from fsdp_migrate.families.names import silent_fallbacks
from fsdp_migrate.families.subclasses import staying_classes, subclass_methods
from fsdp_migrate.families.wrapping import plugin_settings, run_time
from fsdp_migrate.fsdp1 import api as fsdp1
from fsdp_migrate.fsdp1 import model_values
from fsdp_migrate.fsdp1.construct import Construct
from fsdp_migrate.fsdp1.model_attributes import STATE_FUNCTION
from fsdp_migrate.fsdp1.site import Site
from fsdp_migrate.migration import beside_fsdp2, outside_users
from fsdp_migrate.migration.finding import is_unsure
from fsdp_migrate.planning import branches, library_versions, pages
from fsdp_migrate.planning.context import Failure, Study
from fsdp_migrate.planning.edits import Mark
from fsdp_migrate.planning.model import Constructor, Decision, is_none
from fsdp_migrate.planning.outcome import Outcome
from fsdp_migrate.planning.prose import sentences
from fsdp_migrate.planning.rule import CODE, LoadedRule
from fsdp_migrate.planning.seen import seen_in_run

COMMON = fsdp1.OF_MODELS - fsdp1.ONLY_MODELS  # what many other objects have as well
LOOK_ALIKE = Construct.parse("look-alike")
OF_ANY = frozenset({"module", *process_groups.METHODS})  # asked of any object in one form
STATES = frozenset({"state_dict", "load_state_dict"})
NAMED = 3  # classes, in a reason


def _is_none(node: ast.AST) -> bool:
    """Whether an argument is None: whatever rule it has, nothing replaces it."""
    return is_none(node.value if isinstance(node, ast.keyword) else node)


def ask(site: Site, study: Study) -> Decision:
    rule = study.registry.rule_for(site.construct)
    if Version(rule.rule.since) > study.target and not _is_none(site.node):
        models = _models_at(site, study)
        return study.too_new(site, rule, models=models)
    if not study.constructors and (left := _of_no_model(site, rule.code, study)):
        study.settled[site.node] = left
        return left
    gone = study.claims.gone
    if gone and not gone.isdisjoint((site.node, *site.module.table.ancestors(site.node))):
        return study.rewritten(
            site, rule.code, "gone with what it was for", models=study.every_constructor
        )
    if any(branches.stands_in(site, branch) for branch in study.branches):
        return study.rewritten(
            site, rule.code, "gone with the branch for FSDP1", models=study.every_constructor
        )
    if site.doubt and (site.construct == STATE_FUNCTION or site.construct.attribute in COMMON):
        return _not_followed(site, rule, study)
    alike: Decision | None = None
    if is_unsure(site, study):
        rule = study.registry.rule_for(LOOK_ALIKE)
        decision = None
    else:
        decision = run_time.decide_mention(site, study) or staying_classes.decide_use(site, study)
        alike = None if decision else _of_look_alikes(site, study)
        if alike is None:
            decision = decision or subclass_methods.decide_own_state(site, study)
    if decision is None and (mistake := study.mistake(site)):
        decision = _broken(site, rule, mistake, study)
    if decision is None:
        try:
            decision = _answered(rule.decide(site, study), site, rule)
        except KeyboardInterrupt:
            raise
        except BaseException as error:  # whatever a rule does wrong, other models go on
            decision = _failed(site, rule, error, study)
    if alike is not None:
        decision = told_apart.told_apart(decision, site, study) or alike
    decision = outside_users.said(decision, study)
    decision = beside_fsdp2.said(decision, study)
    decision = _doubted(decision) if site.doubt and site.construct.attribute else decision
    if site.receiver in study.seen.models:
        what = f"`{ast.unparse(site.subject)}` is an FSDP model"
        decision = replace(decision, message=seen_in_run(decision.message, what))
    study.settled[site.node] = decision
    study.claims.add(decision.claims)
    return decision


def _of_no_model(site: Site, code: str, study: Study) -> Decision | None:
    """What is left where the project wraps no model: the library that does has its settings."""
    text = library_versions.condition(site.node, site.module, study.project)
    if text:
        said = study.left(site, code, library_versions.SAID.format(text), library_versions.HELP)
        return replace(said, edits=())
    if site.node in study.by_plugin:
        return study.left(site, code, plugin_settings.SAID, plugin_settings.HELP)
    if not site.construct.attribute:
        return None
    return study.left(site, code, study.no_models, study.no_models_help)


# Whose migrated form does for any object what the object's own method did.
FOR_ANY = frozenset({"no_sync"})


def _doubted(decision: Decision) -> Decision:
    """What a rule says of a model, of what may be none: it never holds a model back."""
    site = decision.site
    if decision.outcome is Outcome.LEFT:
        return replace(decision, quiet=False)
    if site.construct.attribute in FOR_ANY:
        return decision
    review = f"nothing tells whether this is an FSDP model ({site.doubt}): if not, undo the change"
    mark = Mark(site.module, site.node, decision.code, sentences(review))
    marked = [e for e in decision.edits if not isinstance(e, Mark)]
    help_ = sentences(decision.help, review) if decision.help else review
    if decision.help:
        mark = Mark(site.module, site.node, decision.code, sentences(decision.help, review))
    return replace(decision, outcome=Outcome.REVIEW, help=help_, edits=(*marked, mark))


def _not_followed(site: Site, rule: LoadedRule, study: Study) -> Decision:
    """What is asked of something that may be a model, and of other objects as well: a marker."""
    page = f"`fsdp-migrate explain {rule.code}`"
    review = f"{site.doubt}: if this is the FSDP model, do what {page} says"
    message = "for what may be a model"
    models = frozenset(study.reached_from(site.module))
    decision = study.rewritten(site, rule.code, message, models=models, review=review)
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


def _of_look_alikes(site: Site, study: Study) -> Decision | None:
    """Left, where the model may also be made by a class that another library, or the project, calls
    FSDP, or that has the method itself: it does not do what FSDP1's does.

    A module inside is taken out of any wrapper that has one, a group of ranks and a class are
    asked for, in one form for all (FSDP406, FSDP424). What FSDP2's models have not ends the
    program, and holds nothing back.
    """
    if site.receiver is None or site.construct.attribute in OF_ANY:
        return None
    if site.construct == own_classes.CONSTRUCT:
        return None
    found = study.models(site.receiver, site.module)
    values, name = study.values(site.receiver, site.module), site.construct.attribute
    others = sorted(filter(None, (model_values.look_alike(v, name, study.tracer) for v in values)))
    constructors = found.constructors
    if not others or not constructors:
        return None
    rule = study.registry.rule_for(LOOK_ALIKE)
    named = list(dict.fromkeys(others))
    more = [f"{len(named) - NAMED} more"] if len(named) > NAMED else []
    own = not any(map(fsdp1.is_alike, named))  # a class that only has such a method as well
    if name in STATES and told_apart.is_told_by_class(site, study):
        return None
    if _is_a_plain_no_sync(site):
        return None  # no_sync_of_any enters that of any other model
    has_it = f", where {name} is another" if not all(map(fsdp1.is_alike, named)) else ""
    ends = own and name in fsdp1.ONLY_MODELS and isinstance(site.reference, ast.Attribute)
    ends = ends and not silent_fallbacks.is_passed_over(site.attribute, site.module, study)
    return study.left(
        site,
        rule.code,
        f"the model here may also be made by {' or '.join([*named[:NAMED], *more])}{has_it}",
        "do this where the model is made, or where isinstance tells that it is torch's FSDP",
        models=constructors,
        quiet=not ends,
    )


def _is_a_plain_no_sync(site: Site) -> bool:
    """Whether a site is ``model.no_sync()``, or the method itself, for something to enter."""
    if site.construct.attribute != "no_sync" or not isinstance(site.reference, ast.Attribute):
        return False
    parents = site.module.table.parents
    around = parents[site.reference]
    if not isinstance(around, ast.Call) or around.func is not site.reference:
        return True
    takes_nothing = not around.args and not around.keywords
    return takes_nothing and not isinstance(parents[around], ast.Expr)


def _failed(site: Site, rule: LoadedRule, error: BaseException, study: Study) -> Decision:
    """Left because the rule ended with an error, which the run reports."""
    study.failures[site.node] = Failure(site, rule, error)
    return _by_hand(site, rule, f"{rule.code} failed here", study)


def _broken(site: Site, rule: LoadedRule, mistake: str, study: Study) -> Decision:
    """Left because the file with its new code fails the check."""
    reason = f"what {rule.code} writes here does not pass the check: {mistake}"
    return _by_hand(site, rule, reason, study)


def _by_hand(site: Site, rule: LoadedRule, reason: str, study: Study) -> Decision:
    """Left for a mistake of the rule's."""
    return study.left(
        site,
        rule.code,
        reason,
        "migrate it by hand",
        models=_models_at(site, study) or study.every_constructor,
        quiet=True,
        final=True,
    )


def _models_at(site: Site, study: Study) -> frozenset[Constructor]:
    if isinstance(site.node, ast.Call) and site.node in study.constructors:
        return frozenset({study.constructors[site.node]})
    if site.receiver is not None:
        return study.models(site.receiver, site.module).constructors
    return study.every_constructor
