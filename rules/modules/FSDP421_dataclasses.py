"""Let FSDP2 look into dataclasses that a model is given or returns, before torch 2.12."""

from fsdp_migrate.families.modules import (
    changed_inputs,
    dataclass_nodes,
    dataclass_registration,
)
from fsdp_migrate.fsdp1.site import Site
from fsdp_migrate.planning.context import Study
from fsdp_migrate.planning.edits import code
from fsdp_migrate.planning.model import Decision
from fsdp_migrate.planning.rule import Finder, Rule

RULE = Rule(
    code="FSDP421",
    name="dataclasses",
    handles=("dataclass of a model", "list that a unit fills"),
    finders=(
        Finder(250, in_project=lambda s: (d.site for d in dataclass_nodes.find_dataclasses(s))),
        Finder(251, in_project=changed_inputs.find_changed_inputs),
    ),
)


BY_HAND = (
    "return a tuple or a dict, or register it with torch.export.register_dataclass once it can be "
    "made again from its fields, or raise the target to torch 2.12"
)
CAST = (
    "cast them to param_dtype where it is made, or hand over a tuple or a dict, or raise the "
    f"target to torch {dataclass_nodes.INPUTS}"
)
FILLED = (
    "a unit fills what it is given here, and fully_shard gives it a copy of a list or dictionary "
    "where a gradient is recorded or inputs are cast, which nobody sees: return it, or hand over "
    "an object that holds it"
)


def decide(site: Site, study: Study) -> Decision:
    if site.construct == changed_inputs.CHANGED:
        models = changed_inputs.models_of(site, study)
        return study.kept_as_is(
            site, RULE.code, "kept: a copy is filled", models=models, review=FILLED
        )
    found = [d for d in dataclass_nodes.find_dataclasses(study) if d.site is site]
    models = found[0].constructors(study)
    name = found[0].cls.node.name
    reason = dataclass_registration.registration_problem(found[0], study)
    if reason:
        untold = f"and it is not registered as a pytree node here: {reason}"
        if not found[0].is_output:
            uncast = f"fully_shard before torch {dataclass_nodes.INPUTS} casts no inputs in {name}"
            review = f"{uncast}, {untold}: {CAST}"
            return study.kept_as_is(
                site, RULE.code, f"kept: inputs in {name}", models=models, review=review
            )
        nothing = (
            "that nothing may train"
            if found[0].of_unit
            else "that the root only trains if outputs of a unit require gradients"
        )
        return study.left(
            site,
            RULE.code,
            f"fully_shard before torch {dataclass_nodes.OUTPUTS} finds no outputs in {name}, so "
            f"{nothing}, {untold}",
            BY_HAND,
            models=models,
            quiet=found[0].of_unit,
            final=True,
        )
    module, node = found[0].cls.module, found[0].cls.node
    proposal = study.proposal()
    register = proposal.name(module, "torch.export", "register_dataclass", node)
    line = code("{r}({c})  # so that fully_shard finds its tensors", r=register, c=name)
    proposal.insert_after(module, node, line)
    message = f"{name} is registered as a pytree node, which fully_shard looks into"
    return study.rewritten(site, RULE.code, message, proposal, models=models)
