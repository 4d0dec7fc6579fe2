"""Handle parameters that have their whole shape."""

import ast
from collections.abc import Iterator
from typing import TypeGuard

from fsdp_migrate.families.checkpoints import saved_parameters
from fsdp_migrate.families.modules import flat_parts, freezing
from fsdp_migrate.families.parameters import (
    assigned_data,
    gathered_gradients,
    joined_parameters,
    kept_views,
    lost_data,
    parameter_hooks,
    parameter_numbers,
    parameter_uses,
    picked_parameters,
    shown_counts,
    state_uses,
    taken_copies,
    told_in_forwards,
    vectors,
    writes,
    written_in_forwards,
)
from fsdp_migrate.families.parameters.communicated import (
    COMMUNICATED,
    decide_communicated,
    find_communicated,
)
from fsdp_migrate.families.parameters.counted_parameters import (
    added_up,
    decide_added_up,
    find_questions_in_functions,
)
from fsdp_migrate.families.parameters.emptied_lists import said_of_emptied
from fsdp_migrate.families.parameters.parameter_loops import (
    ADDRESS,
    COUNT,
    DRAWN,
    KEPT,
    MEMORY,
    NAME,
    PLACE,
    REPLACED,
    SHAPE,
    STATISTIC,
    UPDATE,
)
from fsdp_migrate.families.parameters.parameter_numbers import (
    NUMBER,
    OWN,
    REDUCED,
    VALUES,
    decide_reduced,
    decide_values,
)
from fsdp_migrate.families.parameters.parameter_owners import models_concerned
from fsdp_migrate.families.parameters.parameter_updates import decide_update
from fsdp_migrate.families.parameters.penalties import PENALTY
from fsdp_migrate.families.parameters.picked_parameters import PICKED
from fsdp_migrate.families.parameters.vectors import PIECES, VECTOR, WRITTEN, decide_vector
from fsdp_migrate.families.parameters.writes import WRITE, decide_write
from fsdp_migrate.families.wrapping import strategies
from fsdp_migrate.fsdp1.site import Site
from fsdp_migrate.planning.context import Study
from fsdp_migrate.planning.edits import code
from fsdp_migrate.planning.model import Constructor, Decision
from fsdp_migrate.planning.rule import Finder, Rule
from fsdp_migrate.syntax.scopes import Kind

RULE = Rule(
    code="FSDP408",
    name="parameters",
    handles=(
        "parameter shape",
        "parameter name",
        "parameter of a kind of module",
        "parameters by their places",
        "parameters of a part",
        "parameters told by their class in a forward",
        "parameters given to a backward",
        "parameters out of sight given to a backward",
        "parameter count",
        "parameter address",
        "parameter memory",
        "parameter statistic",
        "random numbers for a parameter",
        "parameter data",
        "parameter data in a forward",
        "parameter data that is kept",
        "data assigned to a picked parameter",
        "data of a whole parameter",
        "parameter update",
        "copy of parameters",
        "parameters handed on to be changed",
        "parameter write",
        "parameter write in a forward",
        "parameter freezing",
        "gathered gradients",
        "parameters in a vector",
        "parameters from a vector",
        "parameters put together",
        "parameter put behind a vector",
        "parameter norm over ranks",
        "parameter norm",
        "own number of a parameter",
        "penalty on a parameter",
        "values of a parameter",
        "norm of a list over ranks",
        "parameter in a collective",
        "saved parameters",
        "hook on a parameter",
        "hook behind a parameter's gradient",
        "optimizer in the backward",
        "parameters that are watched",
        "part of an optimizer's state",
        "shape of an optimizer's state",
        "items of an optimizer's state",
        "number of an optimizer's state",
    ),
    finders=(
        Finder(60, parameter_uses.find_parameter_uses),
        Finder(61, parameter_numbers.find_in_functions),
        Finder(61, find_questions_in_functions),
        Finder(62, find_communicated),
        Finder(63, saved_parameters.find_saved_parameters),
        Finder(65, picked_parameters.find_picked_parameters),
        Finder(66, picked_parameters.find_places),
        Finder(67, flat_parts.find_flat_parts),
        Finder(68, told_in_forwards.find_told_in_forwards),
        Finder(69, written_in_forwards.find_written_in_forwards),
        Finder(70, writes.find_parameter_writes),
        Finder(71, assigned_data.find_assigned_data),
        Finder(75, freezing.find_freezing),
        Finder(76, gathered_gradients.find_gathered_gradients),
        Finder(78, parameter_hooks.find_parameter_hooks),
        Finder(79, taken_copies.find_taken_copies),
        Finder(80, vectors.find_flattened_parameters),
        Finder(81, vectors.find_norms_of_lists),
        Finder(82, joined_parameters.find_joined_parameters),
    ),
)


MEANINGS = {
    SHAPE: (
        "FSDP1's parameters were flat pieces here, of one dimension; now ndim and shape are those "
        "of the whole parameter"
    ),
    NAME: (
        "without use_orig_params=True FSDP1 had one flat parameter a unit here, under a name of "
        "its own; now parameters are picked by their names"
    ),
    PICKED: (
        "without use_orig_params=True FSDP1 had one flat parameter a unit here; now parameters are "
        "picked by their own modules and names"
    ),
    PLACE: (
        "without use_orig_params=True FSDP1 had one flat parameter a unit here; now others stand "
        "at these places of the list"
    ),
    flat_parts.PART: (
        "without use_orig_params=True FSDP1 kept the parameters of a part in the flat one of the "
        "unit around it, and gave none here that is not of a unit in the part: this trained, or "
        "froze, less then than it does now"
    ),
    COUNT: "FSDP1 counted this rank's part here, now numel() is that of the whole parameter",
    MEMORY: (
        "the bytes of a sharded parameter, also of its storage, are those of the whole parameter: "
        "what this rank holds are those of p.to_local()"
    ),
    STATISTIC: (
        "FSDP1 gave a number of this rank's piece here, now it is that of the whole parameter, for "
        "which all ranks must ask"
    ),
    DRAWN: (
        "each rank drew these numbers for its own flat piece; now they are a DTensor's, drawn on "
        "CUDA by one generator for all ranks, which its first use takes from rank 0, so that all "
        "ranks must get here: they are others than FSDP1's, of the same distribution"
    ),
    NUMBER: (
        "FSDP1 gave a number of this rank's piece here, now it becomes that of the whole parameter "
        "when something is computed from it, for which all ranks must ask: add nothing up over the "
        "ranks then, and show it by full_tensor()"
    ),
    OWN: (
        "FSDP1 gave a number of this rank's piece here; this rank's part has other elements now, "
        "and an evaluation may have left the whole of it: for that of the whole parameter take "
        "it of p.full_tensor(), on all ranks"
    ),
    REPLACED: (
        "FSDP1 dropped what was assigned to .data here, and wrote back what its own memory had at "
        "the end of the block: now what is assigned is kept"
    ),
    saved_parameters.SAVED: saved_parameters.DTENSORS,
    ADDRESS: "data_ptr() of every sharded parameter is 0: tell parameters apart by id(p)",
}
OVERWRITTEN = (
    "this is the parameter's own memory, into which what is assigned to .data goes, as in FSDP1 at "
    "the next forward: the old weights do not come back, unless a clone() of them is kept here"
)
TWO_DTYPES = (
    "; for another dtype in between, keep the optimizer's, and compute in param_dtype of "
    "MixedPrecisionPolicy"
)
ROUNDED = (
    "a gradient has the dtype of its parameter now: what is copied to it is rounded as before, and "
    "what an optimizer makes of it is not"
)
SHARDED = strategies.MEMBERS - {"NO_SHARD"}  # under which parameters were pieces
NAMES = 4  # one for another, between a conversion and the assignment
# Calls whose result is not what a parameter is: another dtype, another device.
CASTS = frozenset({"to", "half", "float", "double", "bfloat16", "cpu", "cuda", "type", "type_as"})


def decide(site: Site, study: Study) -> Decision:
    if site.construct == told_in_forwards.TOLD:
        return told_in_forwards.decide_told(site, study, RULE.code)
    if site.construct == written_in_forwards.CHANGED:
        return written_in_forwards.decide_changed(site, study, RULE.code)
    in_forward = site.construct == written_in_forwards.ASSIGNED
    if in_forward:
        models = told_in_forwards.models_running(site.node, study, site.module)
    else:
        models = models_concerned(site, study)
    if site.construct in {REDUCED, PENALTY}:
        return decide_reduced(site, study)
    if site.construct == VALUES:
        return decide_values(site, study)
    if site.construct == COMMUNICATED:
        return decide_communicated(site, study)
    if site.construct in state_uses.CONSTRUCTS:
        return state_uses.decide_state_use(site, models, study)
    if site.construct in MEANINGS:
        message, review = "kept, with another meaning", MEANINGS[site.construct]
        if site.construct == saved_parameters.SAVED:
            review = saved_parameters.said_of(site, study)
        counted = added_up(site, study) if site.construct == COUNT else []
        if counted:
            return decide_added_up(site, counted, models, study)
        if site.construct in {COUNT, DRAWN, MEMORY, NUMBER, OWN} and strategies.is_replicated(
            models, study
        ):
            message, review = "kept: NO_SHARD has all of them on every rank", ""
        elif site.construct == COUNT and shown_counts.are_shown_as_the_models(site):
            message, review = "kept: shown as the model's, which it is now", ""
        if site.construct == SHAPE and all(
            strategies.possible(m, study) <= SHARDED for m in models
        ):
            review = "; ".join(filter(None, (review, said_of_emptied(site.node, site.module))))
        return study.rewritten(site, RULE.code, message, models=models, review=review)
    if site.construct == UPDATE:
        return decide_update(site, study)
    if site.construct in {taken_copies.COPIED, taken_copies.CHANGED}:
        return taken_copies.decide_taken_copy(site, study)
    if site.construct == freezing.FREEZE:
        return freezing.decide_freezing(site, study)
    if site.construct == gathered_gradients.GATHERED:
        return gathered_gradients.decide_gathered(site, study)
    if site.construct == WRITE:
        return decide_write(site, study)
    if site.construct == vectors.NORMS:
        return vectors.decide_norms(site, study)
    if site.construct == joined_parameters.JOINED:
        return joined_parameters.decide_joined(site, study)
    if site.construct in {VECTOR, PIECES}:
        return decide_vector(site, study)
    if site.construct in {
        parameter_hooks.TENSOR,
        parameter_hooks.ACCUMULATED,
        parameter_hooks.STEPPING,
        parameter_hooks.INPUTS,
        parameter_hooks.UNSEEN_INPUTS,
        parameter_hooks.WATCHED,
    }:
        return parameter_hooks.decide_hook(site, study, RULE.code)
    if site.construct == WRITTEN:
        return study.left(
            site,
            RULE.code,
            "it assigns to .data, which does nothing to a sharded parameter",
            "copy its part of the vector to each parameter in place",
            models=models,
            quiet=True,
        )
    if site.construct == assigned_data.ASSIGNED:
        return study.left(
            site,
            RULE.code,
            "assigning to .data of a sharded parameter does nothing",
            "copy to it in place; where it only moves, call model.to(device)",
            models=models,
            quiet=True,
        )
    if site.construct == KEPT:
        return study.rewritten(
            site, RULE.code, "kept, and overwritten", models=models, review=OVERWRITTEN
        )
    statement = site.node
    if not isinstance(statement, ast.Assign) or isinstance(statement.targets[0], ast.Tuple):
        return study.left(
            site,
            RULE.code,
            "assigning to .data of a sharded parameter does nothing",
            "copy to it in place, and keep a clone of what it was",
            models=models,
            quiet=True,
        )
    sources = list(_sources(statement.value, site, study))
    casts = [node for source in sources for node in ast.walk(source) if _casts(node)]
    moves = all(map(_moves, casts))
    if ".grad" in ast.unparse(statement.targets[0]) and not any(map(_moves, casts)):
        same = all(_is_to_its_own(node, statement.targets[0]) for node in casts)
        return _copied(statement, site, study, models, "" if same else ROUNDED)
    if any(map(_casts, sources)) or not moves:  # copy_ moves what it is given
        return study.left(
            site,
            RULE.code,
            "assigning to .data of a sharded parameter does nothing",
            "do it before the model is sharded, or in place" + ("" if moves else TWO_DTYPES),
            models=models,
            quiet=not moves,  # where it lies does not change what it learns
        )
    if in_forward:
        return _copied(statement, site, study, models, written_in_forwards.FREED)
    if kept_views.is_kept_view(statement.value, study, site.module):
        return _copied(statement, site, study, models, kept_views.REVIEW)
    lost = lost_data.is_lost(statement, models, study, site.module)
    return _copied(statement, site, study, models, lost_data.REVIEW if lost else "")


def _is_to_its_own(cast: ast.AST, target: ast.expr) -> bool:
    """Whether what is assigned to ``p.grad.data`` is made of the dtype of ``p`` or ``p.grad``."""
    owner = ast.unparse(target).partition(".grad")[0]
    kept = {
        f"{each}{part}" for each in (owner, f"{owner}.grad") for part in ("", ".data", ".dtype")
    }
    given = [*cast.args, *(k.value for k in cast.keywords)] if isinstance(cast, ast.Call) else []
    return bool(given) and all(ast.unparse(each) in kept for each in given)


def _copied(
    statement: ast.Assign,
    site: Site,
    study: Study,
    models: frozenset[Constructor],
    review: str = "",
) -> Decision:
    """``p.data = x`` as ``p.data.copy_(x)``."""
    proposal = study.proposal()
    new = code("{t}.copy_({v})", t=statement.targets[0], v=statement.value)
    proposal.replace_statement(site.module, statement, new)
    return study.rewritten(
        site, RULE.code, "copied in place", proposal, models=models, review=review
    )


def _sources(node: ast.expr, site: Site, study: Study, depth: int = NAMES) -> Iterator[ast.expr]:
    """An expression, and what the names that it stands for were assigned."""
    yield node
    for definition in study.defined_by(node, site.module) if depth else ():
        if definition.kind is Kind.ASSIGN and definition.value and not definition.unpack:
            yield from _sources(definition.value, site, study, depth - 1)
    for store, module in study.tracer.stores_named(node.attr) if _is_attribute(node) else ():
        assigned = module.table.parents[store]
        if module is site.module and isinstance(assigned, ast.Assign):
            yield assigned.value


def _is_attribute(node: ast.expr) -> TypeGuard[ast.Attribute]:
    return isinstance(node, ast.Attribute) and node.attr not in {"data", "grad"}


def _casts(node: ast.AST) -> bool:
    if isinstance(node, ast.Call) and any(k.arg == "dtype" for k in node.keywords):
        return True
    method = node.func if isinstance(node, ast.Call) else None
    return isinstance(method, ast.Attribute) and method.attr in CASTS


def _moves(node: ast.AST) -> bool:
    """Whether a conversion is to a device, as far as it says."""
    if not isinstance(node, ast.Call) or not isinstance(node.func, ast.Attribute):
        return False
    if node.func.attr in {"cpu", "cuda"}:
        return True
    target = node.args[0] if node.func.attr == "to" and node.args else None
    return target is not None and "dev" in ast.unparse(target).lower()
