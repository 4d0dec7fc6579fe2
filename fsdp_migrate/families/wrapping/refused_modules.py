"""What is wrapped: modules that FSDP1 took and ``fully_shard`` does not take as they are.

Containers without a forward, scripted modules and modules that are sharded already make
``fully_shard`` raise. A model on the meta device gets memory and values from FSDP1's constructor;
``fully_shard`` leaves it there.
"""

from __future__ import annotations

import ast
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from typing import Final

from fsdp_migrate.analysis.flow import access_path
from fsdp_migrate.analysis.module import Module
from fsdp_migrate.analysis.values import Made, Value
from fsdp_migrate.families.wrapping import model_contents, second_wrappers
from fsdp_migrate.planning.context import Study
from fsdp_migrate.planning.model import Constructor
from fsdp_migrate.syntax.trees import block_of

CONTAINERS = frozenset(
    f"torch.nn.{where}{name}"
    for where in ("", "modules.", "modules.container.")
    for name in ("ModuleList", "ModuleDict")
)
SCRIPTED = frozenset({"torch.jit.script", "torch.jit.trace", "torch.jit.load"})
DEFERRED = frozenset({"torchdistx.deferred_init.deferred_init"})
EMPTY = frozenset({"accelerate.init_empty_weights"})
# What FSDPModule has, which comes before the project's class in its order. From torch 2.13.
OF_FSDP2: Final = frozenset(
    (
        *("_get_fsdp_state", "_set_unshard_async_op", "reset_iter_state", "reshard", "unshard"),
        *("set_all_reduce_hook", "set_allocate_memory_from_process_group_for_comm"),
        *("set_custom_all_gather", "set_custom_reduce_scatter", "set_gradient_divide_factor"),
        *("set_force_sum_reduction_for_comms", "set_is_last_backward", "set_post_optim_event"),
        *("set_modules_to_backward_prefetch", "set_modules_to_forward_prefetch"),
        *("set_reduce_scatter_divide_factor", "set_reduce_scatter_max_input_buffers"),
        *("set_reduce_scatter_unused_params", "set_requires_all_reduce", "set_symm_mem_for_comm"),
        *("set_requires_gradient_sync", "set_reshard_after_backward", "set_reshard_after_forward"),
        *("set_separate_reduce_scatter_group", "set_unshard_in_backward"),
    )
)


@dataclass(frozen=True, eq=False)
class Refusal:
    """Why a module cannot be given to ``fully_shard``; ``final`` when no other form takes it."""

    reason: str
    help: str
    final: bool = True
    models: frozenset[Constructor] = frozenset()  # that its constructor concerns as well


def refusal(constructor: Constructor, study: Study, given: Collection[str] = ()) -> Refusal | None:
    """Why ``fully_shard`` certainly does not take the module that a constructor wraps.

    Args:
        given: arguments that it will have, more than it has.
    """
    wrapped = constructor.wrapped
    found = _made(constructor, study)
    made = {v.made_by if isinstance(v, Made) else "" for v in found}
    if made and made <= SCRIPTED:
        return Refusal(
            "fully_shard takes no scripted module: it needs hooks that TorchScript does not have",
            "shard the module itself, and compile it with torch.compile if need be",
        )
    if made and made <= DEFERRED:
        return Refusal(
            "FSDP2 does not know torchdistX's deferred initialisation",
            'build the model under torch.device("meta")',
        )
    never = refusal_in_any_form(constructor, study)
    if never is not None:
        return never
    outer = _outer(wrapped, constructor, study)
    if outer:
        return Refusal(
            "the model around this module is sharded first, and fully_shard goes from the inside "
            "to the outside",
            "shard the parts before the whole",
            models=outer,
        )
    initialised = "param_init_fn" in given or constructor.has("param_init_fn")
    if not initialised and any(_is_on_meta(v, study) for v in found):
        return Refusal(
            "the model is made on the meta device, and FSDP1 gave it memory and values",
            "call model.to_empty(device=...) after sharding, then initialise it or load weights",
            final=False,
        )
    return None


def refusal_in_any_form(constructor: Constructor, study: Study) -> Refusal | None:
    """Why neither form of the constructor takes the module that it wraps."""
    sharded = _sharded_before(constructor.wrapped, constructor, study)
    if sharded:
        return Refusal(
            "the module is an FSDP model already, and fully_shard takes a module only once",
            "keep one of the two calls",
            models=sharded,
        )
    container = _container(constructor, study)
    if container and not constructor.may_have("auto_wrap_policy"):
        return Refusal(
            f"fully_shard takes no {container}: it has no forward to gather parameters for",
            "shard its elements",
        )
    for cls in model_contents.classes(constructor, study):
        bindings = cls.module.table.scopes[cls.node].bindings
        name = next((n for n in sorted(OF_FSDP2) if n in bindings), None)
        if name is not None:
            return Refusal(
                f"{cls.node.name} has its own {name}, which FSDP2's method of that name would hide",
                f"rename {name}",
            )
    return None


def doubt(constructor: Constructor, study: Study) -> str:
    """What has to be judged of a module that is wrapped all the same."""
    found = doubt_of_container(constructor, study), second_wrappers.doubt(constructor, study)
    return "; ".join(filter(None, (*found, _doubt_of_deferred(constructor, study))))


def _doubt_of_deferred(constructor: Constructor, study: Study) -> str:
    """What has to be judged where one of several ways to the model puts its initialisation off."""
    found = _made(constructor, study)
    where = {v.module.display for v in found if isinstance(v, Made) and v.made_by in DEFERRED}
    return (
        f"torchdistX may put the initialisation of this model off ({', '.join(sorted(where))}), "
        "which FSDP1 made up for and fully_shard does not: build it under "
        'torch.device("meta") there, or leave torchdistX out, which knows no torch of FSDP2\'s'
        if where
        else ""
    )


def doubt_of_container(constructor: Constructor, study: Study) -> str:
    """What has to be judged where a container without a forward is wrapped: nothing gathered what
    FSDP1's wrapper held for it, and each of its units was called by itself."""
    container = _container(constructor, study)
    return container and (
        f"an {container} has no forward: its units are sharded and it stays as it is, so that "
        "what only FSDP2's modules have is asked of the units"
    )


def _container(constructor: Constructor, study: Study) -> str:
    """``nn.ModuleList`` or ``nn.ModuleDict``, if what is wrapped certainly is one."""
    found = _made(constructor, study)
    made = {(v.made_by or "") if isinstance(v, Made) else "" for v in found}
    return f"nn.{min(made).rpartition('.')[2]}" if made and made <= CONTAINERS else ""


def _made(constructor: Constructor, study: Study) -> set[Value]:
    """What is wrapped."""
    values = study.values(constructor.wrapped, constructor.module)
    return {v for v in values if v.node is not constructor.call}


def _sharded_before(
    wrapped: ast.expr, constructor: Constructor, study: Study
) -> frozenset[Constructor]:
    """The constructors that certainly sharded the wrapped module before."""
    same = {
        other
        for other in study.constructors.values()
        if other is not constructor
        and _is_same(wrapped, other, constructor.module, study)
        and _precedes(other, constructor)
    }
    if same:
        return frozenset(same)
    models = study.models(wrapped, constructor.module)
    others = models.constructors - {constructor}
    if not models.certain or others != models.constructors:
        return frozenset()
    handed = isinstance(wrapped, (ast.Name, ast.Call))  # what an attribute has, others may set
    if handed or any(_precedes(o, constructor) for o in others):
        return others
    return frozenset()


def _is_same(node: ast.expr, other: Constructor, module: Module, study: Study) -> bool:
    """Whether ``node`` is what another constructor was given: the same name for the same value."""
    given = other.arguments.get("module")
    if given is None or other.module is not module or access_path(given) != access_path(node):
        return False
    defined = study.defined_by(node, module)
    return bool(defined) and defined == study.defined_by(given, module)


def _outer(wrapped: ast.expr, constructor: Constructor, study: Study) -> frozenset[Constructor]:
    """The constructors of the model that the wrapped module is taken from: ``model.head``."""
    if access_path(wrapped) is None:
        return frozenset()
    while isinstance(wrapped, (ast.Attribute, ast.Subscript)):
        wrapped = wrapped.value
        found = _sharded_before(wrapped, constructor, study)
        if found:
            return found
    return frozenset()


def _precedes(first: Constructor, second: Constructor) -> bool:
    """Whether one constructor has run when the other does: earlier in a straight line."""
    if first.module is not second.module:
        return False
    table = first.module.table
    block = block_of(table.parents[first.statement], first.statement)
    around = {id(second.statement), *map(id, table.ancestors(second.statement))}
    later = block[block.index(first.statement) + 1 :]
    return any(id(statement) in around for statement in later)


def _is_on_meta(value: Value, study: Study) -> bool:
    """Whether a value is a module that is made under ``torch.device("meta")``."""
    if not isinstance(value, Made):
        return False
    for entered in _contexts(value.node, value.module):
        if not isinstance(entered, ast.Call):
            continue
        names = study.external(entered.func, value.module)
        first = entered.args[0] if entered.args else None
        meta = isinstance(first, ast.Constant) and first.value == "meta"
        if names & EMPTY or ("torch.device" in names and meta):
            return True
    return False


def _contexts(node: ast.AST, module: Module) -> Iterator[ast.expr]:
    """The context managers around a node."""
    for parent in module.table.ancestors(node):
        if isinstance(parent, (ast.With, ast.AsyncWith)):
            yield from (item.context_expr for item in parent.items)
