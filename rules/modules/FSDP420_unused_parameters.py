"""Parts of a model that a step may leave out."""

from collections.abc import Iterable, Iterator, Sequence

from packaging.version import Version

from fsdp_migrate.families.modules import unused_parameters
from fsdp_migrate.families.modules.unused_parameters import Unused
from fsdp_migrate.fsdp1.site import Site
from fsdp_migrate.planning.context import Study
from fsdp_migrate.planning.edits import Code, code, join
from fsdp_migrate.planning.forms import Form
from fsdp_migrate.planning.model import Decision
from fsdp_migrate.planning.rule import Finder, Rule
from fsdp_migrate.planning.shard_plan import ShardPlan, placement_problem
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
NONE = Form("no gradients for what a step leaves out")
ZEROS = Form("gradients of zero for what a step leaves out")


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
    holders = unused_parameters.holders(found.unused, constructor, study)
    can_fill = placed and None not in holders and present(plan).place is None
    if can_fill and study.take(site, NONE, ZEROS) == ZEROS.name:
        present(plan).after += _fill(found.unused, holders, present(plan))
        return study.rewritten(site, RULE.code, ZEROS.name, models=[constructor])
    named = _named(found.unused)
    owner = "the model" if by_root else "the unit that holds them"
    may_be_units = constructor.may_have("auto_wrap_policy")
    shared = ", where they share a unit with others," if may_be_units else ""
    if all(u.never for u in found.unused):
        return study.rewritten(
            site,
            RULE.code,
            f"nothing in sight runs {named}",
            models=[constructor],
            review=f"parameters that nothing in sight runs ({named}){shared} had gradients of zero "
            "in FSDP1, so that an optimizer's weight decay moved them and its state had them, and "
            "have none now. Take them out of the model, unless old checkpoints must load, or call "
            f"{SETTER}(True, recurse=False) of {owner}, from torch 2.13",
        )
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


def _named(found: Iterable[Unused]) -> str:
    each = (f"{u.cls.node.name}.{part}" for u in found for part in u.parts[:2])
    return ", ".join(dict.fromkeys(each))  # classes of two files may have one name


def _fill(
    found: Sequence[Unused], holders: Sequence[str | None], plan: ShardPlan
) -> Iterator[Code]:
    """The calls that have what a step leaves out reduced with the rest, with gradients of zero."""
    function = plan.support("zero_unused_gradients")
    for unused, holder in zip(found, holders, strict=True):
        parts = join(", ", [code(f'"{part}"') for part in unused.parts])
        if not holder:
            yield code("{f}({m}, {p})", f=function, m=plan.model, p=parts)
            continue
        yield code(
            "for {v} in {m}.modules():\n    if isinstance({v}, {c}):\n        {f}({v}, {p})",
            v=plan.fresh("module"),
            m=plan.model,
            c=holder,
            f=function,
            p=parts,
        )
