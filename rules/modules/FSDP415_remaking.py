"""Make the parts of a model before it is sharded."""

from fsdp_migrate.families.modules import replaced_modules, replaced_parameters
from fsdp_migrate.fsdp1.site import Site
from fsdp_migrate.planning.context import Study
from fsdp_migrate.planning.model import Decision
from fsdp_migrate.planning.rule import Finder, Rule

RULE = Rule(
    code="FSDP415",
    name="remaking",
    handles=(
        "module of a sharded model replaced",
        "parameter of a sharded model replaced",
        "sharded parameter initialized",
    ),
    finders=(
        Finder(190, replaced_modules.find_replaced_modules),
        Finder(191, replaced_parameters.find_replaced_parameters),
    ),
)

HELP = "put it into the model before that is sharded"


def decide(site: Site, study: Study) -> Decision:
    found = study.models(site.subject, site.module)
    if site.construct == replaced_modules.DRAWN:
        return study.rewritten(
            site,
            RULE.code,
            "kept, with other numbers",
            models=found.constructors,
            review=(
                "the values drawn for sharded parameters are others than in FSDP1, and on the CPU "
                "the same on every rank: draw them before the model is sharded"
            ),
        )
    if site.construct == replaced_parameters.REPLACED:
        return study.left(
            site,
            RULE.code,
            "FSDP1 took the values of a parameter over that was put into the model here; now the "
            "next forward puts the sharded parameter back, and they are lost",
            "write the values into the parameter, or put it in before the model is sharded",
            models=found.constructors or study.every_constructor,
            quiet=True,
        )
    if replaced_modules.is_on_wrapper(site):
        return study.left(
            site,
            RULE.code,
            "FSDP1 set this on its wrapper, and the model inside kept its own module; now it is "
            "replaced, by one whose gradients nobody averages",
            HELP,
            models=found.constructors,
            quiet=True,
        )
    return study.left(
        site,
        RULE.code,
        "a plain module comes into a sharded model: nobody averages its gradients, as in FSDP1, "
        "but clipping and optimizers refuse its parameters beside sharded ones",
        HELP,
        models=found.constructors,
    )
