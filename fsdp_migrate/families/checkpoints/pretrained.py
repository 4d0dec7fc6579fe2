"""What ``save_pretrained`` writes: the state, and the name of the model's class.

``fully_shard`` gives the model a class of its own, ``FSDPLlamaForCausalLM``. Of transformers it
takes the state as an argument; of diffusers it asks the model itself, and passes over one.
"""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator

from fsdp_migrate.analysis.module import Module
from fsdp_migrate.analysis.values import Class, Made
from fsdp_migrate.families.wrapping.wrapped_modules import wrapped_by
from fsdp_migrate.planning.context import Study
from fsdp_migrate.planning.model import Constructor
from fsdp_migrate.syntax.trees import block_of

NAMED = (
    "save_pretrained writes the class's name, which is FSDP... now, into the configuration with "
    "transformers before 4.57, and with diffusers: require transformers>=4.57, or take FSDP out of "
    "the name there"
)
ASKS_ITSELF = (
    "save_pretrained of diffusers asks the model itself: FSDP1 gave it pieces of the root's "
    "parameters here, now it writes whole ones, and FSDP... as the class's name"
)
PASSED_OVER = (
    "save_pretrained of diffusers passes over a state that it is given, and asks the model itself: "
    "call it within whole_states of fsdp2_support if this is such a model, and take FSDP out of "
    "the class's name in the configuration"
)
OF_DIFFUSERS, OF_TRANSFORMERS = "diffusers.", "transformers."


def may_be_of_diffusers(
    models: Iterable[Constructor], study: Study, *, surely: bool = False
) -> bool:
    """Whether some model is one of diffusers, or may be one in a project that imports it.

    Args:
        surely: those count alone that are known to be.
    """
    if not study.project.mentions("diffusers"):
        return False
    libraries = [set(_libraries(c, study)) for c in models]
    if any(OF_DIFFUSERS in found for found in libraries):
        return True
    return not surely and any(OF_TRANSFORMERS not in found for found in libraries)


def _libraries(constructor: Constructor, study: Study) -> Iterator[str]:
    """Which of both libraries the classes of a constructor's model are from, or derived from."""
    for node, module in wrapped_by(constructor, study):
        for value in study.values(node, module):
            if not isinstance(value, Made):
                continue
            made_by = value.callee
            bases = study.tracer.external_bases(made_by) if isinstance(made_by, Class) else ()
            for name in (value.made_by, *bases):
                yield from (lib for lib in (OF_DIFFUSERS, OF_TRANSFORMERS) if name.startswith(lib))


def is_given_state(call: ast.Call, module: Module) -> bool:
    """Whether a call is given a state by its name, or in the dictionary of its other arguments:
    ``kwargs.setdefault("state_dict", state)`` stands above it in the same block."""
    if any(k.arg == "state_dict" for k in call.keywords):
        return True
    spread = [k.value for k in call.keywords if k.arg is None]
    statement = module.table.statement(call)
    block = block_of(module.table.parents[statement], statement)
    return any(
        isinstance(given, ast.Name) and _puts_state_into(given.id, earlier)
        for given in spread
        for earlier in block[: block.index(statement)]
    )


def _puts_state_into(name: str, statement: ast.stmt) -> bool:
    match statement:
        case ast.Expr(
            value=ast.Call(
                func=ast.Attribute(value=ast.Name(id=owner), attr="setdefault"),
                args=[ast.Constant(value="state_dict"), _],
            )
        ):
            return owner == name
        case ast.Assign(
            targets=[ast.Subscript(value=ast.Name(id=owner), slice=ast.Constant(value=key))]
        ):
            return owner == name and key == "state_dict"
    return False
