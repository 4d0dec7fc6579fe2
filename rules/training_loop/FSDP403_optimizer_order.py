"""Build the optimizer after the model is sharded, from sharded parameters."""

import ast

from fsdp_migrate.analysis.values import Class
from fsdp_migrate.families.parameters import (
    attributes,
    distant_optimizers,
    distant_parameters,
    early_parameters,
    given_optimizers,
)
from fsdp_migrate.families.training_loop import early_optimizers, late_optimizers
from fsdp_migrate.families.training_loop.gathered_roots import reshard_line
from fsdp_migrate.families.training_loop.later_wraps import wrapping_constructors
from fsdp_migrate.fsdp1.references import enclosing_function
from fsdp_migrate.fsdp1.site import Site
from fsdp_migrate.planning.context import Study
from fsdp_migrate.planning.model import Constructor, Decision
from fsdp_migrate.planning.rule import Finder, Rule
from fsdp_migrate.syntax.kinds import of_kind, present

RULE = Rule(
    code="FSDP403",
    name="optimizer_order",
    handles=(
        *("early optimizer", "distant optimizer"),
        *("early parameters", "kept parameters", "late optimizer", "distant parameters"),
        *("model of unseen callers", "given optimizer"),
    ),
    finders=(
        Finder(10, early_optimizers.find_early_optimizers, always=True),
        Finder(15, distant_optimizers.find_distant_optimizers),
        Finder(16, distant_parameters.find_distant_parameters),
        Finder(20, early_parameters.find_early_parameters, always=True),
        Finder(40, late_optimizers.find_late_optimizers),
        Finder(235, in_project=distant_optimizers.find_unseen_wraps),
        Finder(236, in_project=given_optimizers.find_given_optimizers),
        Finder(230, in_project=early_parameters.find_kept_parameters),
    ),
)


def decide(site: Site, study: Study) -> Decision:
    if site.construct == distant_optimizers.UNSEEN:
        return _unseen(site, study)
    if site.construct == given_optimizers.CONSTRUCT:
        return _given(site, study)
    if site.construct == late_optimizers.CONSTRUCT:
        return _late(site, site.call, study)
    if site.construct == early_parameters.IN_MODELS:
        return _kept(site, study)
    if site.construct == distant_parameters.CONSTRUCT:
        return _distant_parameters(site, study)
    if site.construct == distant_optimizers.CONSTRUCT:
        return _distant(site, study)
    if site.construct == early_parameters.CONSTRUCT:
        return _early(site, of_kind(site.node, ast.expr), study)
    found = present(early_optimizers.early_optimizer(site.call, site.module, study))
    models = _models(found.wraps, site, study)
    if found.given_to:
        review = (
            f"{found.given_to}() was given this optimizer, which is made anew behind the sharding: "
            "what goes on holding the first one trains nothing"
        )
        message = "made anew behind the sharding"
        return study.rewritten(site, RULE.code, message, models=models, review=review)
    built = site.statement
    move = early_optimizers.move_behind(built, found.wraps, site.module, study)
    if move.problem:
        return study.left(
            site,
            RULE.code,
            f"the optimizer is built before its model is wrapped, and {move.problem}",
            "build it after the model is sharded, or it trains nothing",
            models=models,
            quiet=True,
        )
    proposal = study.proposal()
    for statement in move.statements:
        proposal.move_after(site.module, statement, move.behind)
    review = _never_trained(models, study)
    return study.rewritten(
        site, RULE.code, "moved behind the sharding", proposal, models=models, review=review
    )


def _never_trained(models: frozenset[Constructor], study: Study) -> str:
    if all(attributes.keeps_attributes(c, study) for c in models):
        return ""
    return (
        "FSDP1 without use_orig_params=True gave this optimizer parameters that it never "
        "trained; now it trains them"
    )


def _distant(site: Site, study: Study) -> Decision:
    """An optimizer that is built before its model is wrapped, in another function or this one."""
    found = present(distant_optimizers.read_distant_optimizer(site.call, site.module, study))
    reason = (
        "its model or a part of it is sharded later, and what is sharded is not trained by this "
        "optimizer then"
    )
    advice = "build it after the model is sharded"
    if found.is_made_anew:
        message = "made anew behind the sharding"
        review = "what goes on holding this optimizer, which is made anew, trains nothing"
    elif not any(attributes.keeps_attributes(c, study) for c in found.constructors):
        message = "FSDP1 may have kept its parameters"
        review = f"{reason}; FSDP1 kept its parameters with use_orig_params=True: {advice}"
    else:
        return study.left(site, RULE.code, reason, advice, models=found.constructors, quiet=True)
    return study.rewritten(site, RULE.code, message, models=found.constructors, review=review)


def _distant_parameters(site: Site, study: Study) -> Decision:
    """Parameters that an object keeps before another function wraps their model."""
    node = of_kind(site.node, ast.expr)
    models = distant_parameters.read_distant_parameters(node, site.module, study)
    reason = "what is kept here are not the parameters of its model once that is sharded later"
    advice = "take them from the model where they are used"
    if any(attributes.keeps_attributes(c, study) for c in models):
        return study.left(site, RULE.code, reason, advice, models=models, quiet=True)
    review = f"{reason}; FSDP1 kept its parameters with use_orig_params=True: {advice}"
    return study.rewritten(
        site, RULE.code, "FSDP1 may have kept them", models=models, review=review
    )


def _unseen(site: Site, study: Study) -> Decision:
    """A model of callers that are not in sight, which may have an optimizer already."""
    models = frozenset(c for c in study.constructors.values() if c.call is site.receiver)
    around = getattr(enclosing_function(site.module, site.node), "name", "")
    review = (
        f"an optimizer that is built before {around}() is called, "
        "out of sight, trains nothing: FSDP1 kept its parameters with use_orig_params=True"
    )
    return study.rewritten(site, RULE.code, "kept", models=models, review=review)


def _given(site: Site, study: Study) -> Decision:
    """A model of a function that is given an optimizer beside it, perhaps by others than those in
    sight."""
    constructor = next(c for c in study.constructors.values() if c.call is site.receiver)
    found = present(given_optimizers.given_optimizer(constructor, study))
    review = (
        f"an optimizer that {found.function}() is given as {found.name} trains nothing where it "
        "was built before this: FSDP1 kept its parameters with use_orig_params=True"
    )
    return study.rewritten(site, RULE.code, "kept", models=[constructor], review=review)


def _kept(site: Site, study: Study) -> Decision:
    """Parameters that a model's class keeps in a list, as FSDP1 may have kept them."""
    constructor = next(c for c in study.constructors.values() if c.call is site.receiver)
    module = next(
        m for m in study.project.modules if of_kind(site.reference, ast.ClassDef) in m.table.scopes
    )
    kept = early_parameters.attributes_with_parameters(
        Class(of_kind(site.reference, ast.ClassDef), module)
    )
    named = ", ".join(f"{of_kind(site.reference, ast.ClassDef).name}.{name}" for name in kept)
    reason = (
        f"{named} goes on holding the parameters that fully_shard replaces, which train nothing"
    )
    advice = "take the parameters from their layers where they are used"
    if attributes.keeps_attributes(constructor, study) is False:  # use_orig_params is a setting
        return study.rewritten(
            site,
            RULE.code,
            "FSDP1 may have kept them",
            models=[constructor],
            review=f"{reason}; FSDP1 kept them with use_orig_params=True: {advice}",
        )
    return study.left(site, RULE.code, reason, advice, models=[constructor], quiet=True)


def _early(site: Site, call: ast.expr, study: Study) -> Decision:
    found = present(early_parameters.read_early_parameters(call, site.module, study))
    models = _models(found.wraps, site, study)
    loop = isinstance(found.statement, ast.For)
    filled = found.names if loop else frozenset()
    move = early_optimizers.move_behind(found.statement, found.wraps, site.module, study, filled)
    if move.problem:
        problem = "they are passed on before that" if found.passed_on else move.problem
        return study.left(
            site,
            RULE.code,
            f"parameters are collected before their model is wrapped, and {problem}",
            "collect them after the model is sharded, which makes new ones",
            models=models,
            quiet=True,
        )
    proposal = study.proposal()
    for statement in move.statements:
        proposal.move_after(site.module, statement, move.behind)
    makes_optimizer = early_parameters.gives_optimizer(call, site.module, study)
    review = _never_trained(models, study) if makes_optimizer else ""
    return study.rewritten(
        site, RULE.code, "moved behind the sharding", proposal, models=models, review=review
    )


def _late(site: Site, call: ast.Call, study: Study) -> Decision:
    found = present(late_optimizers.read_late_optimizer(call, site.module, study))
    proposal = study.proposal()
    lines = [reshard_line(m, site.module, found.before, study, proposal) for m in found.models]
    proposal.insert_before(site.module, found.before, *lines)
    models = {c for m in found.models for c in study.models(m, site.module).constructors}
    return study.rewritten(site, RULE.code, "resharded first", proposal, models=models)


def _models(wraps: tuple[ast.Call, ...], site: Site, study: Study) -> frozenset[Constructor]:
    made = (wrapping_constructors(wrap, site.module, study) for wrap in wraps)
    return frozenset[Constructor]().union(*made)
