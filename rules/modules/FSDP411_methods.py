"""Put FSDP2's hooks around methods that compute, other than `forward`."""

from fsdp_migrate.families.training_loop import gathered_roots
from fsdp_migrate.families.wrapping import entry_methods, forward_registration, outside_methods
from fsdp_migrate.fsdp1.site import Site
from fsdp_migrate.planning.context import Study
from fsdp_migrate.planning.model import Decision
from fsdp_migrate.planning.rule import Finder, Rule
from fsdp_migrate.planning.seen import seen_in_run

RULE = Rule(
    code="FSDP411",
    name="methods",
    handles=("entry method", "method of a class outside"),
    finders=(
        Finder(240, in_project=lambda study: (e.site for e in entry_methods.entries(study))),
        Finder(241, outside_methods.find_outside_methods),
    ),
)


def decide(site: Site, study: Study) -> Decision:
    if site.construct == outside_methods.CONSTRUCT:
        return _of_a_class_outside(site, study)
    entry = next(e for e in entry_methods.entries(study) if e.site is site)
    models = forward_registration.constructors(entry, study)
    reason, help = forward_registration.registration_problem(entry, study)
    if reason:
        return study.left(site, RULE.code, reason, help, models=models)
    early = not gathered_roots.are_called_in_training(models, study)
    message = "its model has it registered"
    if classes := forward_registration.classes_with_it(entry, study):
        message = seen_in_run(message, f"{' or '.join(sorted(classes))} is what is wrapped")
    return study.rewritten(
        site,
        RULE.code,
        message,
        models=models,
        review=forward_registration.registration_review(entry, study, before_forward=early),
    )


def _of_a_class_outside(site: Site, study: Study) -> Decision:
    """What a class that is not in the given paths does in a method cannot be read."""
    name = site.attribute.attr
    return study.left(
        site,
        RULE.code,
        f"{name}() is defined outside the given paths; if it computes with the model's layers, "
        "they are DTensors now, where NO_SHARD left them whole",
        f'call register_fsdp_forward_method(model, "{name}") after sharding if it does',
        models=study.models(site.subject, site.module).constructors,
    )
