"""Parameters of classes of their own lose their class."""

from fsdp_migrate.families.parameters import parameter_classes
from fsdp_migrate.fsdp1.site import Site
from fsdp_migrate.planning.context import Study
from fsdp_migrate.planning.model import Decision
from fsdp_migrate.planning.rule import Finder, Rule

RULE = Rule(
    code="FSDP418",
    name="parameter_classes",
    handles=("4-bit parameters", "8-bit parameters", "class of parameters"),
    near=("4-bit parameters", "8-bit parameters"),
    finders=(Finder(210, in_project=parameter_classes.find_parameter_classes),),
)


KEPT_OUT = (
    "keep them out with fully_shard(..., ignored_params=...), which leaves all of them in every "
    "rank's memory"
)


def decide(site: Site, study: Study) -> Decision:
    models = parameter_classes.models_concerned(site, study)
    if site.construct == parameter_classes.SUBCLASS:
        return study.rewritten(
            site,
            RULE.code,
            "plain parameters now",
            models=models,
            review="fully_shard makes plain nn.Parameters of these: what the class defines, and "
            "isinstance, no longer work on a sharded model. Move it into the module, or "
            + KEPT_OUT,
        )
    if site.construct == parameter_classes.EIGHT_BIT:
        return study.rewritten(
            site,
            RULE.code,
            "perhaps sharded",
            models=models,
            review="8-bit weights are integers: FSDP1 refuses a model that has them where it "
            "wraps, and fully_shard takes them and stops in kernels that know no DTensor. Load the "
            "model in floating point, or " + KEPT_OUT,
        )
    wrapped = parameter_classes.wrapped_by(site, study)
    if wrapped:
        return study.left(
            site,
            RULE.code,
            "fully_shard corrupts 4-bit parameters, or loses their quant_state, where FSDP1 kept "
            "it",
            KEPT_OUT + ", or stay with FSDP1",
            models=wrapped,
            quiet=True,
        )
    return study.rewritten(
        site,
        RULE.code,
        "perhaps sharded",
        models=models,
        review="if fully_shard is given these 4-bit parameters, it corrupts them or loses their "
        "quant_state, which FSDP1 kept. " + KEPT_OUT[0].upper() + KEPT_OUT[1:],
    )
