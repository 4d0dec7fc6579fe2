"""Models that are wrapped as accelerate's plugin says, beside those that accelerate wraps itself.

``FSDP(model, sharding_strategy=accelerator.state.fsdp_plugin.sharding_strategy, ...)``, as trl has
it for a reference model: whose settings these are decides which version that is, and not this
program. Under version 2 the plugin has other fields, and under version 1 the model beside it, which
every other test and context here meets, is FSDP1's. So such a call makes no model of the project's
own, and where there is none, what is asked of models is the library's business
(``wrapped_elsewhere.py``).
"""

from __future__ import annotations

import ast
from collections.abc import Iterator

from fsdp_migrate.planning.context import Study
from fsdp_migrate.planning.model import Constructor
from fsdp_migrate.syntax.expressions import last_name

PLUGIN = "fsdp_plugin"
OWN = "FullyShardedDataParallelPlugin"
SAID = "accelerate's plugin gives its settings, and with them the version"
HELP = (
    "under version 2 the plugin has other fields: call fully_shard(model, "
    "reshard_after_forward=plugin.reshard_after_forward, offload_policy=plugin.cpu_offload, "
    "mp_policy=plugin.mixed_precision_policy or MixedPrecisionPolicy()) where "
    "plugin.fsdp_version is 2"
)


def set_apart(study: Study) -> None:
    """Take the calls out of the project's constructors; beside others they cannot be written."""
    if _is_accelerate(study):
        return  # the version is what is written here
    given = {call: c for call, c in study.constructors.items() if _is_given(c)}
    if len(given) < len(study.constructors):
        for constructor in given.values():
            constructor.problem, constructor.is_wrong = SAID, True
        return
    study.constructors.clear()
    study.by_plugin |= given.keys()


def _is_accelerate(study: Study) -> bool:
    """Whether the plugin's class is the project's own: accelerate itself, or a copy of it."""
    return any(
        isinstance(binding.node, ast.ClassDef)
        for module in study.project.modules
        for binding in module.table.module.bindings.get(OWN, ())
    )


def _is_given(constructor: Constructor) -> bool:
    return any(
        isinstance(node, ast.Attribute) and last_name(node.value) == PLUGIN
        for value in _values(constructor)
        for node in ast.walk(value)
    )


def _values(constructor: Constructor) -> Iterator[ast.expr]:
    """What is given to a constructor, the values of a variable that is spread among it."""
    for name, value in constructor.arguments.items():
        if name != "module":
            yield value
    table = constructor.module.table
    for keyword in constructor.call.keywords:
        if keyword.arg is None and isinstance(keyword.value, ast.Name):
            scope = table.scope_of(keyword.value).lookup(keyword.value.id)
            bindings = scope.bindings[keyword.value.id] if scope is not None else []
            yield from (b.node.value for b in bindings if isinstance(b.node, ast.Assign))
        elif keyword.arg is None:
            yield keyword.value
