"""Methods of classes that are not in the given paths, called on models that FSDP1 did not shard.

``vae.encode(x)`` of an ``AutoencoderKL.from_pretrained(...)`` under NO_SHARD: FSDP1 left every rank
whole parameters, FSDP2 replicates them as DTensors, which only its hooks turn into tensors. Where
FSDP1 sharded, such a call failed already unless it called the model itself.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

from fsdp_migrate.analysis.module import Module
from fsdp_migrate.analysis.values import External, Made
from fsdp_migrate.families.wrapping import strategies
from fsdp_migrate.families.wrapping.computing_methods import MODULE_API
from fsdp_migrate.families.wrapping.gathered import is_gathered
from fsdp_migrate.families.wrapping.wrapped_modules import models_made, unwrapped
from fsdp_migrate.fsdp1 import api as fsdp1
from fsdp_migrate.fsdp1.construct import Construct
from fsdp_migrate.fsdp1.site import Site
from fsdp_migrate.planning.context import Study
from fsdp_migrate.syntax.expressions import first_argument
from fsdp_migrate.syntax.kinds import of_kind

CONSTRUCT = Construct.parse("method of a class outside")
KNOWN = MODULE_API | fsdp1.OF_MODELS | fsdp1.STATICS
CALLING = frozenset({"transformers", "peft"})  # libraries whose methods call the model itself
NAMED_FOR_SETTINGS = re.compile(
    r"_|(add|disable|enable|freeze|from|get|load|print|push|register|remove|save|set|unfreeze)_"
)


def find_outside_methods(study: Study, module: Module) -> Iterator[Site]:
    """The calls that may compute with the parameters of such a model."""
    if not any(
        strategies.is_replicated(frozenset({c}), study) for c in study.constructors.values()
    ):
        return
    for name, calls in module.table.methods.items():
        if name in KNOWN or NAMED_FOR_SETTINGS.match(name):
            continue
        for call in calls:
            method = of_kind(call.func, ast.Attribute)
            receiver = unwrapped(method.value)
            models = models_made(receiver, module, study)
            if models and all(_is_from_outside(m, study) for m in models):
                makers = frozenset(c for m in models for c in study.made_by(m))
                gathered = is_gathered(method, study, module)
                if strategies.is_replicated(makers, study) and not gathered:
                    yield Site(CONSTRUCT, module, call, method, receiver)


def _is_from_outside(model: Made, study: Study) -> bool:
    """Whether what a call wraps is made by another library's class, whose methods compute."""
    wrapped = first_argument(of_kind(model.node, ast.Call))
    found = study.values(wrapped, model.module) if wrapped is not None else frozenset()
    names = [v.made_by for v in found if isinstance(v, Made) and isinstance(v.callee, External)]
    return bool(names) and not any(n.partition(".")[0] in CALLING | {"torch"} for n in names)
