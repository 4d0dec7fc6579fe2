"""Copy models before they are sharded, and save states instead of models."""

from fsdp_migrate.families.checkpoints import copied_models
from fsdp_migrate.fsdp1.site import Site
from fsdp_migrate.planning.context import Study
from fsdp_migrate.planning.model import Decision
from fsdp_migrate.planning.rule import Finder, Rule

RULE = Rule(
    code="FSDP414",
    name="whole_models",
    handles=("copy of a model", "pickled model"),
    finders=(Finder(180, copied_models.find_copied_models),),
)


def decide(site: Site, study: Study) -> Decision:
    models = study.models(site.subject, site.module).constructors
    if site.construct == copied_models.COPY:
        return study.left(
            site,
            RULE.code,
            "a sharded model cannot be copied",
            "copy the model before it is sharded, and shard both alike",
            models=models,
        )
    return study.left(
        site,
        RULE.code,
        "a sharded model cannot be pickled",
        "save its state with get_model_state_dict, and build the model before loading it",
        models=models,
    )
