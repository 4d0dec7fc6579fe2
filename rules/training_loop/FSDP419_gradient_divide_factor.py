"""The factors that FSDP1 divides gradients by."""

import ast

from fsdp_migrate.fsdp1 import model_attributes
from fsdp_migrate.fsdp1.site import Site
from fsdp_migrate.planning.context import Study
from fsdp_migrate.planning.model import Decision
from fsdp_migrate.planning.rule import Finder, Rule

RULE = Rule(
    code="FSDP419",
    name="gradient_divide_factor",
    handles=("gradient divide factor",),
    finders=(
        Finder(140, lambda study, module: model_attributes.divide_factors(study.tracer, module)),
    ),
)


def decide(site: Site, study: Study) -> Decision:
    models = study.models_of_static(site.subject, site.module).constructors
    help_ = (
        "call set_gradient_divide_factor (torch 2.8) with the product of both factors on every "
        "FSDPModule of the model, for it is not recursive"
    )
    node = site.node
    asks = isinstance(node, ast.Call) and getattr(node.func, "id", "") != "setattr"
    if asks or isinstance(getattr(node, "ctx", None), ast.Load):
        reason = "an FSDP2 model has no such factor"
        return study.left(site, RULE.code, reason, help_, models=models, quiet=asks)
    return study.left(
        site,
        RULE.code,
        "nothing reads this factor on an FSDP2 model, and gradients are divided by the number of "
        "ranks",
        help_,
        models=models,
        quiet=True,
    )
