"""Parts of a model that a step may leave out."""

from packaging.version import Version

from fsdp_migrate.families.modules import unused_parameters
from fsdp_migrate.fsdp1.site import Site
from fsdp_migrate.planning.context import Study
from fsdp_migrate.planning.edits import code
from fsdp_migrate.planning.model import Decision
from fsdp_migrate.planning.rule import Finder, Rule
from fsdp_migrate.planning.shard_plan import placement_problem
from fsdp_migrate.syntax.kinds import present

RULE = Rule(
    code="FSDP420",
    name="unused_parameters",
    handles=("unused part",),
    finders=(
        Finder(
            220,
            in_project=unused_parameters.find_unused_parts,
            of_constructor=unused_parameters.unused_sites,
        ),
    ),
)


SETTER = "set_reduce_scatter_unused_params"
KNOWN = Version("2.13")  # to have the setter


def decide(site: Site, study: Study) -> Decision:
    constructor = next(c for c in study.constructors.values() if c.call is site.receiver)
    found = present(unused_parameters.unused_parts(constructor, study))
    by_root = unused_parameters.is_owned_by_root(found.unused, constructor, study)
    plan = study.plans.get(constructor)
    placed = plan is not None and not placement_problem(constructor)
    if study.target >= KNOWN and by_root and placed:
        plan = present(plan)
        plan.after.append(code("{m}.{s}(True, recurse=False)", m=plan.model, s=SETTER))
        message = "parameters that a step does not use get gradients of zero, as in FSDP1"
        return study.rewritten(site, RULE.code, message, models=[constructor])
    each = (f"{u.cls.node.name}.{part}" for u in found.unused for part in u.parts[:2])
    named = ", ".join(dict.fromkeys(each))  # classes of two files may have one name
    owner = "the model" if by_root else "the unit that holds them"
    may_be_units = constructor.may_have("auto_wrap_policy")
    shared = ", where they share a unit with others," if may_be_units else ""
    return study.rewritten(
        site,
        RULE.code,
        f"a step may not use {named}",
        models=[constructor],
        review=f"parameters that a step does not use ({named}){shared} had gradients of zero in "
        "FSDP1, and have none now; where ranks use different ones, gradients are mixed up. Unless "
        f"all are used in every step, call {SETTER}(True, recurse=False) of {owner}, from torch "
        "2.13",
    )
