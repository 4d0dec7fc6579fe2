"""Look at sharded models the way FSDP2 shows them."""

import ast

from fsdp_migrate.families.modules import unit_attributes, unseen_models
from fsdp_migrate.families.modules.inner_modules import decide_inner_module
from fsdp_migrate.families.modules.inside_wrappers import AMONG, may_be_inside
from fsdp_migrate.families.modules.process_groups import METHODS, decide_group
from fsdp_migrate.families.modules.wrapper_questions import decide_wrapper_question
from fsdp_migrate.families.names import led_through
from fsdp_migrate.families.names.prefix_strings import (
    decide_clean_tensor_name,
    decide_prefix_string,
)
from fsdp_migrate.fsdp1.api import PACKAGE
from fsdp_migrate.fsdp1.construct import ConstructKind
from fsdp_migrate.fsdp1.site import Site
from fsdp_migrate.planning.context import Study
from fsdp_migrate.planning.edits import code
from fsdp_migrate.planning.model import Decision
from fsdp_migrate.planning.rule import Finder, Rule
from fsdp_migrate.syntax.expressions import bind_arguments

RULE = Rule(
    code="FSDP406",
    name="introspection",
    handles=(
        "FullyShardedDataParallel.fsdp_modules",
        "FullyShardedDataParallel.module",
        "FullyShardedDataParallel._fsdp_wrapped_module",
        "FullyShardedDataParallel.process_group",
        "FullyShardedDataParallel.rank",
        "FullyShardedDataParallel.world_size",
        "string(_fsdp_wrapped_module)",
        "string(_fpw_module)",
        "string(_flat_param)",
        "FullyShardedDataParallel.check_is_root",
        "private:_common_utils.clean_tensor_name",
        "inner module of an unseen model",
        "attribute of a unit",
        "question for an attribute of a unit",
        "name that leads through the wrapper",
    ),
    finders=(
        Finder(238, led_through.find_names),
        Finder(239, unit_attributes.find_unit_attributes),
        Finder(240, unseen_models.find_inner_modules),
    ),
)


def decide(site: Site, study: Study) -> Decision:
    if site.construct == led_through.LED:
        return led_through.decide_name(site, study, RULE.code)
    if site.construct == unseen_models.INNER:
        return unseen_models.decide_unseen(site, study, RULE.code)
    if site.construct in {unit_attributes.CONSTRUCT, unit_attributes.ASKED}:
        return unit_attributes.decide_unit(site, study)
    if site.construct.kind is ConstructKind.STRING:
        return decide_wrapper_question(site, study) or decide_prefix_string(site, study)
    if site.construct.last == "clean_tensor_name":
        return decide_clean_tensor_name(site, study)
    if site.construct.last == "check_is_root":
        return study.left(
            site,
            RULE.code,
            "an FSDP2 model only knows whether it is a root after its first forward",
            "compare with the module that fully_shard was called on last",
            models=study.models(site.subject, site.module).constructors,
        )
    if site.construct.last == "fsdp_modules":
        return _modules(site, study)
    if site.construct.last in METHODS:
        return decide_group(site, study)
    return decide_inner_module(site, study)


def _modules(site: Site, study: Study) -> Decision:
    call = site.node
    bound = None
    if isinstance(call, ast.Call):
        bound = bind_arguments(call, ("module", "root_only"))
    model = bound.get("module") if bound else None
    models = study.models_of_static(model, site.module).constructors
    root_only = bound.get("root_only") if bound else None
    flag = study.literal(root_only, site.module) if root_only is not None else None
    if model is None or (root_only is not None and flag is None):
        return study.left(
            site,
            RULE.code,
            "whether fsdp_modules is to give roots alone is only known at run time",
            "collect the FSDPModules that are meant",
            models=models,
            quiet=True,
        )
    proposal = study.proposal()
    call = site.call
    if flag is not None and flag.value:
        function = proposal.support(site.module, "root_units", site.reference)
        proposal.replace(site.module, call, code("{f}({m})", f=function, m=model))
        return study.rewritten(site, RULE.code, "root_units", proposal, models=models)
    kind = proposal.name(site.module, PACKAGE, "FSDPModule", site.reference)
    name = proposal.fresh(site.module, call, "m")
    if name != "m":  # a comprehension has names of its own: any will do that it does not read
        read = {kind, *(n.id for n in ast.walk(call) if isinstance(n, ast.Name))}
        name = next(n for n in ("module", "unit", "m", name) if n not in read)
    new = code("[{v} for {v} in {m}.modules() if isinstance({v}, {k})]", v=name, m=model, k=kind)
    proposal.replace(site.module, call, new)
    review = AMONG if may_be_inside(model, study, site.module) else ""
    message = "the FSDPModules"
    return study.rewritten(site, RULE.code, message, proposal, models=models, review=review)
