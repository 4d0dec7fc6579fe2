"""Questions for what only FSDP2's models have, which FSDP1's answered with no.

``if hasattr(model, "set_requires_gradient_sync")`` is how a program tells FSDP2's models from
others: what stands there has not run before, and runs now.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator

from fsdp_migrate.analysis.module import Module
from fsdp_migrate.families.names.silent_fallbacks import decides_more_than_messages
from fsdp_migrate.fsdp1 import possible_models, unfollowed
from fsdp_migrate.fsdp1.construct import Construct
from fsdp_migrate.fsdp1.site import Site
from fsdp_migrate.planning.context import Study
from fsdp_migrate.planning.model import Decision

RULE = "FSDP404"
CONSTRUCT = Construct.parse("question for FSDP2's methods")
NAMES = frozenset(
    {"set_requires_gradient_sync", "set_requires_all_reduce", "set_is_last_backward"}
    | {"set_reshard_after_forward", "set_reshard_after_backward", "unshard", "reshard"}
    | {"set_modules_to_forward_prefetch", "set_modules_to_backward_prefetch"}
    | {"set_reduce_scatter_divide_factor", "set_gradient_divide_factor", "set_all_reduce_hook"}
)
TRUE_NOW = (
    "this was false of FSDP1's models, which have no such method, and is true of FSDP2's: see that "
    "what it decides may run"
)


def find_questions(study: Study, module: Module) -> Iterator[Site]:
    """A site for every ``hasattr(model, name)`` and ``getattr(model, name, None)`` with the name of
    a method that only FSDP2's models have."""
    if not study.constructors or not module.mentions(*NAMES):
        return
    for call in module.table.calls_by_name.of(("hasattr", "getattr")):
        match call:
            case ast.Call(
                func=ast.Name(id="hasattr"), args=[model, ast.Constant(value=str(name))]
            ) if name in NAMES:
                pass
            case ast.Call(
                func=ast.Name(id="getattr"), args=[model, ast.Constant(value=str(name)), _]
            ) if name in NAMES:
                pass
            case _:
                continue
        if study.tracer.defines_method(name) or not decides_more_than_messages(call, module):
            continue
        if study.traced(model, module):
            yield Site(CONSTRUCT, module, call, call, model)
        elif doubt := _doubt(model, module, study):
            yield Site(CONSTRUCT, module, call, call, model, doubt)


def _doubt(model: ast.expr, module: Module, study: Study) -> str:
    """Why what is asked may be a sharded model."""
    found = possible_models.may_be(model, module, study.tracer)
    return found or unfollowed.made_of_model(model, module, study.tracer)


def decide_question(site: Site, study: Study) -> Decision:
    models = study.models(site.subject, site.module).constructors or study.every_constructor
    return study.kept_as_is(site, RULE, "kept", models=models, review=TRUE_NOW)
