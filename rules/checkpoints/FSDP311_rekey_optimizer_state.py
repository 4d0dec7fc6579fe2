"""Rename the entries of an optimizer state without FSDP1."""

import ast

from fsdp_migrate.fsdp1 import api as fsdp1
from fsdp_migrate.fsdp1.site import Site
from fsdp_migrate.planning.context import Study
from fsdp_migrate.planning.edits import code, join
from fsdp_migrate.planning.model import Decision
from fsdp_migrate.planning.rule import Rule
from fsdp_migrate.syntax.expressions import bind_arguments

RULE = Rule(
    code="FSDP311",
    name="rekey_optimizer_state",
    handles=("FullyShardedDataParallel.rekey_optim_state_dict",),
)


ARGUMENTS = ("optim_state_dict", "optim_state_key_type", "model", "optim_input", "optim")


def decide(site: Site, study: Study) -> Decision:
    call = site.node
    bound = bind_arguments(call, ARGUMENTS) if isinstance(call, ast.Call) else None
    model = bound.get("model") if bound else None
    models = study.models(model, site.module).constructors if model is not None else frozenset()
    models = models or study.every_constructor
    kind = bound.get("optim_state_key_type") if bound else None
    names = set()
    if kind is not None:
        names = {fsdp1.canonical(q) or "?" for q in study.external(kind, site.module)}
    by_name = names == {"OptimStateKeyType.PARAM_NAME"}
    known = by_name or names == {"OptimStateKeyType.PARAM_ID"}
    if bound is None or model is None or "optim_state_dict" not in bound or not known:
        return study.left(
            site,
            RULE.code,
            "the kind of keys is only known at run time" if bound else "it cannot be read",
            "rename the entries of the state with the names of model.named_parameters()",
            models=models,
        )
    proposal = study.proposal()
    function = proposal.support(site.module, "rekey_optimizer_state", site.node)
    arguments = [code("{s}", s=bound["optim_state_dict"]), code("{m}", m=model)]
    arguments += [
        code(f"{name}={{v}}", v=bound[name]) for name in ("optim_input", "optim") if name in bound
    ]
    arguments.append(code(f"by_name={by_name}"))
    new = code("{f}({a})", f=function, a=join(", ", arguments))
    proposal.replace(site.module, site.expression, new)
    return study.rewritten(site, RULE.code, "rekey_optimizer_state", proposal, models=models)
