"""States that DCP reads and nothing loads."""

from fsdp_migrate.families.checkpoints import (
    loaded_in_place,
    settings_in_force,
    state_dict_settings,
)
from fsdp_migrate.fsdp1.site import Site
from fsdp_migrate.planning.context import Study
from fsdp_migrate.planning.model import Decision
from fsdp_migrate.planning.rule import Finder, Rule

RULE = Rule(
    code="FSDP313",
    name="unloaded_reads",
    handles=("state that is loaded and not given back",),
    finders=(Finder(127, loaded_in_place.find_states_loaded),),
)

REVIEW = (
    "nothing loads the state that is read here: FSDP1's was a copy, so that nothing changed; now "
    "it holds the weights and the optimizer's tensors themselves, which change, while settings "
    "such as the learning rate do not; call set_state_dict with it"
)


def decide(site: Site, study: Study) -> Decision:
    models = study.models(site.subject, site.module).constructors
    review = REVIEW
    if loaded_in_place.goes_by_setting(site):
        setting = settings_in_force.setting_at(site.reference, site.module, models, study)
        setting = state_dict_settings.effective_setting(setting, models, study)
        if setting.kind == "FULL" and not setting.problem:
            review = ""  # a whole state is a copy, in FSDP2 too
    return study.kept_as_is(site, RULE.code, "kept: a read", models=models, review=review)
