"""Put FSDP2's hooks around methods that compute, other than `forward`."""

from collections.abc import Iterator

from fsdp_migrate.families.wrapping import entry_methods, forward_registration
from fsdp_migrate.fsdp1.site import Site
from fsdp_migrate.planning.context import Study
from fsdp_migrate.planning.model import Decision
from fsdp_migrate.planning.rule import Finder, Rule


def _entry_methods(study: Study) -> Iterator[Site]:
    return (entry.site for entry in entry_methods.entries(study))


RULE = Rule(
    code="FSDP411",
    name="methods",
    handles=("entry method",),
    finders=(Finder(240, in_project=_entry_methods),),
)


def decide(site: Site, study: Study) -> Decision:
    entry = next(e for e in entry_methods.entries(study) if e.site is site)
    models = forward_registration.constructors(entry, study)
    reason, help = forward_registration.registration_problem(entry, study)
    if reason:
        return study.left(site, RULE.code, reason, help, models=models)
    return study.rewritten(
        site,
        RULE.code,
        "its model has it registered",
        models=models,
        review=forward_registration.registration_review(entry, study),
    )
