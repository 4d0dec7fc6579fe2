"""Hooks on the parameters of sharded models, and optimizers that step in hooks.

Measured with torch 2.13 on two ranks: a tensor hook on an FSDP2 parameter never runs, for the graph
has the gathered one in its place. FSDP1 ran those on flat parameters, and none with
``use_orig_params=True``. Of hooks behind the accumulation it is the other way: FSDP2 runs them.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator

from fsdp_migrate.analysis.module import Module
from fsdp_migrate.analysis.values import Class, Made, Value
from fsdp_migrate.families.parameters.parameter_owners import (
    may_be_flat,
    models_concerned,
    models_of_list,
)
from fsdp_migrate.families.parameters.parameter_uses import source_of
from fsdp_migrate.families.wrapping.gathered import is_gathered
from fsdp_migrate.fsdp1.construct import Construct
from fsdp_migrate.fsdp1.site import Site
from fsdp_migrate.planning.context import Study
from fsdp_migrate.planning.model import Decision
from fsdp_migrate.syntax.expressions import bind_arguments

TENSOR = Construct.parse("hook on a parameter")
ACCUMULATED = Construct.parse("hook behind a parameter's gradient")
STEPPING = Construct.parse("optimizer in the backward")
INPUTS = Construct.parse("parameters given to a backward")
UNSEEN_INPUTS = Construct.parse("parameters out of sight given to a backward")
WATCHED = Construct.parse("parameters that are watched")
METHODS = {"register_hook": TENSOR, "register_post_accumulate_grad_hook": ACCUMULATED}
IN_BACKWARD = "_apply_optimizer_in_backward"
WATCHERS = frozenset({"wandb.watch"})  # they put tensor hooks on the parameters of a model
NO_GRADIENTS = ("parameters", None)  # what they may be told to log instead


def find_parameter_hooks(study: Study, module: Module) -> Iterator[Site]:
    """Sites for hooks that another FSDP runs, and for optimizers that are applied in one."""
    for call in module.table.calls_by_name.of(METHODS) if study.constructors else ():
        if not isinstance(call.func, ast.Attribute) or is_gathered(call, study, module):
            continue
        source = source_of(call.func.value, study, module)
        if source is None:
            continue
        site = Site(METHODS[call.func.attr], module, call, call, source)
        if site.construct == ACCUMULATED or may_be_flat(models_concerned(site, study)):
            yield site
    for call in module.table.calls_by_name.named("watch") if study.constructors else ():
        if (watched := _watched(call, study, module)) is not None:
            yield Site(WATCHED, module, call, call, watched)
    for call in module.table.calls_by_name.named(IN_BACKWARD):
        bound = bind_arguments(call, ("optimizer_class", "params", "optimizer_kwargs", "register"))
        given = (bound or {}).get("params")
        if given is not None and models_of_list(given, study, module):
            yield Site(STEPPING, module, call, call, given)
    for call in module.table.calls_by_name.named("backward") if study.constructors else ():
        for given in (k.value for k in call.keywords if k.arg == "inputs"):
            if is_gathered(call, study, module):
                continue
            if models_of_list(given, study, module):
                yield Site(INPUTS, module, call, call, given)
            elif _is_out_of_sight(given, study, module):
                yield Site(UNSEEN_INPUTS, module, call, call, given)


def _is_out_of_sight(given: ast.expr, study: Study, module: Module) -> bool:
    """Whether parameters of what is not followed are given: ``optimizer.parameters()``."""
    for value in study.values(given, module):
        match value.node:
            case ast.Call(func=ast.Attribute(value=owner, attr="parameters")):
                owners = study.values(owner, value.module)
                if not owners or not all(_is_followed(each, study) for each in owners):
                    return True
    return False


def _is_followed(owner: Value, study: Study) -> bool:
    """Whether an object is known, and its ``parameters`` are a module's."""
    if isinstance(owner, Made) and isinstance(owner.callee, Class):
        return any(b.startswith("torch.nn.") for b in study.tracer.external_bases(owner.callee))
    return isinstance(owner, Made)


def _watched(call: ast.Call, study: Study, module: Module) -> ast.expr | None:
    """The models whose gradients are logged by hooks that FSDP1 ran on flat parameters."""
    bound = bind_arguments(call, ("models", "criterion", "log"))
    if bound is None or "models" not in bound or not study.external(call.func, module) & WATCHERS:
        return None
    log = bound.get("log")
    if isinstance(log, ast.Constant) and log.value in NO_GRADIENTS:
        return None
    flat = may_be_flat(study.models(bound["models"], module).constructors)
    return bound["models"] if flat else None


def decide_hook(site: Site, study: Study, rule: str) -> Decision:
    """Left where FSDP2 does not do it; shown where it does what FSDP1 did not."""
    if site.construct == WATCHED:
        models = study.models(site.subject, site.module).constructors
        review = (
            "the hooks that this puts on parameters never run, since the graph has gathered ones "
            "in the place of sharded ones: log p.grad behind the backward to have gradients logged"
        )
        return study.rewritten(site, rule, "kept, without gradients", models=models, review=review)
    if site.construct == UNSEEN_INPUTS:
        review = (
            "those of a sharded model get no gradients here: they are no part of the graph, which "
            "has the gathered ones in their place; leave inputs= out"
        )
        sharded = frozenset(c for c in study.constructors.values() if c.has_module)
        return study.rewritten(site, rule, "kept", models=sharded, review=review)
    models = models_concerned(site, study)
    if site.construct == ACCUMULATED:
        review = (
            "FSDP1 ran no such hook on parameters of their own; FSDP2 runs it, once the gradient "
            "is reduced"
        )
        return study.rewritten(site, rule, "kept, and run now", models=models, review=review)
    if site.construct == STEPPING:
        return study.left(
            site,
            rule,
            "this hooks the gradient's accumulation, which sharded parameters have none of: the "
            "optimizer would never step",
            "step it in p.register_post_accumulate_grad_hook(...) of each parameter",
            models=models,
            quiet=True,
        )
    if site.construct == INPUTS:
        return study.left(
            site,
            rule,
            "sharded parameters are no part of the graph, which has the gathered ones in their "
            "place: those that a backward is given get no gradients",
            "leave inputs= out, and set requires_grad where others are to get none",
            models=models,
            quiet=True,
        )
    return study.left(
        site,
        rule,
        "a tensor hook on a sharded parameter never runs",
        "change p.grad after the backward, or use register_post_accumulate_grad_hook",
        models=models,
        quiet=True,
    )
