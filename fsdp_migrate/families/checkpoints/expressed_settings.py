"""A kind of state that only the running program knows, asked of what sets it.

In ``with FSDP.state_dict_type(model, plugin.kind, plugin.config):`` the kind is an expression,
which means the same where a state is asked for in the block. So the call can say it:
``StateDictOptions(full_state_dict=plugin.kind.name == "FULL_STATE_DICT", ...)``.
"""

from __future__ import annotations

import ast
from dataclasses import dataclass

from fsdp_migrate.analysis import dataclass_fields
from fsdp_migrate.analysis.flow import access_path
from fsdp_migrate.analysis.module import Module
from fsdp_migrate.analysis.values import Made
from fsdp_migrate.families.checkpoints import (
    chosen_kinds,
    first_rank,
    kept_kinds,
    own_managers,
    ranks,
)
from fsdp_migrate.families.checkpoints.hoisting_places import Place
from fsdp_migrate.families.checkpoints.settings_in_force import setters
from fsdp_migrate.families.checkpoints.state_dict_contexts import functions_with_contexts
from fsdp_migrate.families.checkpoints.state_dict_settings import (
    Setting,
    is_for_run_time,
    possible_kinds,
)
from fsdp_migrate.families.checkpoints.state_options import state_options
from fsdp_migrate.families.checkpoints.state_owners import sharded_inside
from fsdp_migrate.families.wrapping import meshes, strategies
from fsdp_migrate.fsdp1 import api as fsdp1
from fsdp_migrate.fsdp1.model_values import is_taken_for_model
from fsdp_migrate.fsdp1.site import Site
from fsdp_migrate.fsdp1.state_types import ARGUMENTS
from fsdp_migrate.planning.context import Study
from fsdp_migrate.planning.edits import Code
from fsdp_migrate.planning.model import Constructor, is_none
from fsdp_migrate.planning.proposal import Proposal
from fsdp_migrate.planning.shard_plan import DCP
from fsdp_migrate.syntax.expressions import bind_arguments, last_name

FOR_FIRST = (
    "with offload_to_cpu and without rank0_only FSDP1 gave the whole state to every rank: now the "
    "first rank alone has it"
)
FOR_FIRST_OF_ALL = (
    "where groups of ranks shard the model, FSDP1 gave a whole state to the first of each: with "
    "rank0_only the first rank of all alone has it now"
)


@dataclass(frozen=True)
class Expressed:
    """What the call that sets a kind of state says, as code that can stand in its block.

    ``review`` says what may differ.
    """

    full: str
    offload: str
    from_rank0: str
    review: str = ""


def expressed(
    setting: Setting, node: ast.AST, module: Module, study: Study, *, optim: bool = False
) -> Expressed | None:
    """How the code at ``node`` can ask for the kind of state, of a model or of its optimizer; None
    if it cannot."""
    call = setting.set_by
    if call is None or setting.gone or (study.run_time_states and setters(study)):
        return None  # a model that is set to a kind would give that in a block as well
    if setting.entered is not None:
        return _by_choice(setting.entered, call, node, module, study, optim=optim)
    where = setters(study).get(call)
    if where is not None:
        is_known = kept_kinds.can_ask(call, where, node, module, study)
        is_known = is_known and _is_native(node, module, study)
        is_known = is_known and not _is_for_every_rank(call, where, study)
    else:
        bound = bind_arguments(call, ARGUMENTS) or {}
        given = [each for name, each in bound.items() if name != "module"]
        where, is_known = module, _is_said_in_block(call, given, node, module, study)
    bound = bind_arguments(call, ARGUMENTS) or {}
    kind = bound.get("state_dict_type")
    if kind is None or not is_known:
        return None
    config = bound.get("optim_state_dict_config" if optim else "state_dict_config")
    values = study.values(config, where) if config is not None else frozenset()
    default = str(optim)
    if config is None or is_none(config):
        full = _is_full(kind, call, where, study)
        return Expressed(full, default, "", FOR_FIRST if optim else "")
    offload = f'getattr({ast.unparse(config)}, "offload_to_cpu", {default})'
    from_rank0 = f'getattr({ast.unparse(config)}, "rank0_only", False)'
    in_sight = dataclass_fields.is_written_in_sight(config, where, study.tracer)
    for_first = values and all(isinstance(v, Made) and _is_for_first(v) for v in values)
    review = "" if in_sight and for_first else FOR_FIRST
    if not optim and any(
        not meshes.is_sharded_by_all(m, study) for m in _models(node, module, study)
    ):
        review = review or FOR_FIRST_OF_ALL
    return Expressed(_is_full(kind, call, where, study), offload, from_rank0, review)


def _is_for_every_rank(call: ast.Call, module: Module, study: Study) -> bool:
    """Whether a configuration in sight gives every rank what it takes to the CPU, for which there
    are no options."""
    bound = bind_arguments(call, ARGUMENTS) or {}
    values = (
        value
        for name in ("state_dict_config", "optim_state_dict_config")
        if name in bound
        for value in study.values(bound[name], module)
    )
    made = [value for value in values if isinstance(value, Made)]
    return any(_is_written_out(config) and not _is_for_first(config) for config in made)


def _is_written_out(config: Made) -> bool:
    """Whether a configuration is made by a call of its class, and not by one that looks it up."""
    called = last_name(config.node.func) if isinstance(config.node, ast.Call) else ""
    return called == config.made_by.rpartition(".")[2]


def _models(node: ast.AST, module: Module, study: Study) -> frozenset[Constructor]:
    """The models of which a method is called."""
    method = node.func if isinstance(node, ast.Call) else None
    subject = method.value if isinstance(method, ast.Attribute) else None
    return study.models(subject, module).constructors if subject is not None else frozenset()


def _by_choice(
    entered: ast.Call,
    context: ast.Call,
    node: ast.AST,
    module: Module,
    study: Study,
    *,
    optim: bool,
) -> Expressed | None:
    """As :func:`expressed`, in the block of a context manager of the project's own that chooses."""
    functions = functions_with_contexts(entered, module, study)
    own = own_managers.entered(context, functions[0].module, study) if functions else None
    here = [each for each in (own[1] if own else ()) if each.call is entered]
    if own is None or not here:
        return None
    kinds = chosen_kinds.chosen(here[0], own[0], context, functions[0].module, study)
    if kinds is None or not _is_said_in_block(entered, [kinds.given], node, module, study):
        return None

    def for_first(setting: Setting) -> bool:
        rank0_only = setting.optim_rank0_only if optim else setting.rank0_only
        return setting.kind == "FULL" and rank0_only

    def on_cpu(setting: Setting) -> bool:
        return for_first(setting) or (setting.optim_offload if optim else setting.offload)

    whole = [setting for _, setting in kinds.kinds if setting.kind == "FULL"]
    return Expressed(
        kinds.where(lambda setting: setting.kind == "FULL"),
        kinds.where(on_cpu),
        kinds.where(for_first),
        FOR_FIRST if any(on_cpu(each) and not for_first(each) for each in whole) else "",
    )


def _is_said_in_block(
    call: ast.Call, given: list[ast.expr], node: ast.AST, module: Module, study: Study
) -> bool:
    """Whether a node stands in the block of a context, and all states there can be asked for by
    what the context was given."""
    block = block_of_context(call, module)
    if block is None or not all(_is_constant_in(call, each, module) for each in given):
        return False
    asking = [node, *filter(_is_for_state, ast.walk(block))]
    return all(_stands_in_block(n, call, module) and _is_native(n, module, study) for n in asking)


def choose(
    setting: Setting, site: Site, study: Study, *, optim: bool = False
) -> tuple[Expressed | None, bool]:
    """How a state is asked for whose kind the code does not tell: by what says the kind, or whether
    a support function asks the model. Neither, where the code tells it or nothing does."""
    found = expressed(setting, site.node, site.module, study, optim=optim)
    return found, found is None and is_for_run_time(setting, study)


def options(told: Expressed, module: Module, near: ast.AST, proposal: Proposal) -> Code:
    """The options of a call that gets a state of the kind."""
    offload = f", cpu_offload={told.offload}" if told.offload != "False" else ""
    maker = proposal.name(module, DCP, "StateDictOptions", near)
    return state_options(maker, f"full_state_dict={told.full}{offload}")


def doubt(told: Expressed | None, site: Site, place: Place | None, study: Study) -> str:
    """What may differ where a state of the kind is got, in the end at ``place``."""
    by_first = told is not None and first_rank.is_read_by_first(site, place, study)
    return "" if told is None or by_first else told.review


def _is_for_state(node: ast.AST) -> bool:
    """Whether a call asks for a state, or loads one."""
    method = node.func if isinstance(node, ast.Call) else None
    name = method.attr if isinstance(method, ast.Attribute) else ""
    return "state_dict" in name and name != "state_dict_type"


def _is_native(node: ast.AST, module: Module, study: Study) -> bool:
    """Whether options say all that a state of a model, or its loading, asked of FSDP1."""
    match node:
        case ast.Call(
            func=ast.Attribute(value=subject, attr="state_dict" | "load_state_dict" as attr)
        ):
            parts = sharded_inside(subject, module, study)
            models = study.models(subject, module).constructors
        case _:
            return True
    if not (parts or models or is_taken_for_model(subject, module, study.tracer)):
        return True  # an optimizer's
    if attr == "load_state_dict":
        return not parts  # a support function takes a state of any kind
    shown = [m for m in models if not m.is_open and not meshes.is_sharded_by_all(m, study)]
    return not parts and not shown and not strategies.is_replicated(models, study)


def written_kind(call: ast.Call, module: Module, study: Study) -> ast.expr | None:
    """``StateDictType.FULL_STATE_DICT`` of a call that sets a kind, if that is written out there:
    what gets a state by it needs no name for it."""
    kind = (bind_arguments(call, ARGUMENTS) or {}).get("state_dict_type")
    if not isinstance(kind, ast.Attribute):
        return None
    return (
        kind
        if {kind.attr} == {f"{k}_STATE_DICT" for k in possible_kinds(call, module, study)}
        else None
    )


def _is_full(kind: ast.expr, call: ast.Call, module: Module, study: Study) -> str:
    """Whether the kind that a call sets is that of whole states, as an expression."""
    if written_kind(call, module, study) is not None:
        return str(last_name(kind) == "FULL_STATE_DICT")
    return f'{ast.unparse(kind)}.name == "FULL_STATE_DICT"'


def block_of_context(call: ast.Call, module: Module) -> ast.With | ast.AsyncWith | None:
    """The ``with`` statement that enters what a call makes."""
    item = module.table.parents.get(call)
    block = module.table.parents[item] if isinstance(item, ast.withitem) else None
    return block if isinstance(block, (ast.With, ast.AsyncWith)) else None


def _stands_in_block(node: ast.AST, call: ast.Call, module: Module) -> bool:
    """Whether a node, and the place that every rank reaches, stand in the block itself."""
    block, table = block_of_context(call, module), module.table
    inside = [node, *(guard.statement for guard in ranks.guards(node, module))]
    return (
        block is not None
        and all(block in table.ancestors(each) for each in inside)
        and table.scope_of(node).function() is table.scope_of(call).function()
    )


def _is_constant_in(call: ast.Call, given: ast.expr, module: Module) -> bool:
    """Whether an argument of a context is a path that stays the same in the block."""
    path = access_path(given)
    if path is None:
        return is_none(given)
    block = block_of_context(call, module)
    if block is None:
        return False
    stored = (
        access_path(node)
        for body in block.body
        for node in ast.walk(body)
        if isinstance(node, (ast.Name, ast.Attribute, ast.Subscript))
        and not isinstance(node.ctx, ast.Load)
    )
    return not any(s is not None and f"{path}.".startswith(f"{s}.") for s in stored)


def _is_for_first(config: Made) -> bool:
    """Whether a configuration gives the first rank alone what it takes to the CPU."""
    name = fsdp1.canonical(config.made_by) or ""
    if not name.startswith("Full"):
        return name.endswith("StateDictConfig")
    bound = (
        bind_arguments(config.node, ("offload_to_cpu", "rank0_only"))
        if isinstance(config.node, ast.Call)
        else None
    )
    if bound is None or set(bound) != {"offload_to_cpu", "rank0_only"}:
        return bound == {} and not name.startswith("FullOptim")
    return len({ast.dump(each) for each in bound.values()}) == 1
