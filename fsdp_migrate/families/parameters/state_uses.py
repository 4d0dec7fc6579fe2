"""What is done with the tensors of an optimizer's state, one by one.

``opt.state[p]["exp_avg"].numel()`` counted this rank's part under FSDP1. Such a tensor is a
``DTensor`` now, which counts whole parameters, without an error. What counts elements or bytes gets
this rank's part; numbers and shapes are marked, as those of parameters are.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator, Mapping

from fsdp_migrate.analysis.module import Module
from fsdp_migrate.families.parameters.communicated import COLLECTIVES, COMMUNICATED
from fsdp_migrate.families.parameters.parameter_changes import (
    data_assignments,
    has_data_assignments,
)
from fsdp_migrate.families.parameters.parameter_loops import (
    COUNTS,
    DATA,
    OF_WHOLE,
    OWNERS,
    SHAPES,
    STATISTIC,
    STORAGES,
    in_any_form,
)
from fsdp_migrate.families.parameters.parameter_numbers import NUMBER, OWN, REDUCED, VALUES
from fsdp_migrate.families.parameters.parameter_owners import (
    knows_of_shards,
    models_of_list,
    models_of_states,
)
from fsdp_migrate.families.parameters.single_parameters import reads_through_names
from fsdp_migrate.families.parameters.state_tensors import elements_in, has_states, tensors_of
from fsdp_migrate.families.parameters.value_reads import Found, Read, reads_of
from fsdp_migrate.families.parameters.vectors import (
    JOINING,
    flat_base,
    flattened,
    joined_parts,
)
from fsdp_migrate.families.parameters.writes import IN_PLACE
from fsdp_migrate.families.training_loop import applied_functions, reductions
from fsdp_migrate.families.wrapping import strategies
from fsdp_migrate.fsdp1.construct import Construct
from fsdp_migrate.fsdp1.references import enclosing_function
from fsdp_migrate.fsdp1.site import Site
from fsdp_migrate.planning.context import Study
from fsdp_migrate.planning.edits import code
from fsdp_migrate.planning.model import Constructor, Decision
from fsdp_migrate.syntax.expressions import given_arguments, last_name, names_in
from fsdp_migrate.syntax.trees import walk

RULE = "FSDP408"

PART = Construct.parse("part of an optimizer's state")
SHAPE = Construct.parse("shape of an optimizer's state")
ITEMS = Construct.parse("items of an optimizer's state")
STATE_NUMBER = Construct.parse("number of an optimizer's state")
CONSTRUCTS = frozenset({PART, SHAPE, ITEMS, STATE_NUMBER})
COUNTED = COUNTS | STORAGES | {"data_ptr"}
PLACES = (
    "FSDP1's piece of an optimizer's state was flat, and had other elements at these places: this "
    "rank's part has rows of the parameter"
)
NUMBERS = frozenset({NUMBER, OWN, REDUCED, STATISTIC, VALUES})  # of what a loop goes over

MEANINGS = {
    SHAPE: (
        "FSDP1 had this rank's flat piece of an optimizer's state here, of one dimension; now ndim "
        "and shape are those of the whole parameter: what this rank holds is t.to_local()"
    ),
    STATE_NUMBER: (
        "FSDP1 gave a number of this rank's piece of an optimizer's state here; now it is that of "
        "the whole once something is computed from it, for which all ranks must ask, and item() "
        "gives that of this rank's part, which has other elements: take it of t.full_tensor() on "
        "all ranks, and add nothing up over them then"
    ),
}


def find_state_uses(
    study: Study, module: Module, known: Mapping[ast.AST, Construct]
) -> Iterator[Site]:
    """Sites for tensors of an optimizer's state of which something is counted, looked at or read.

    Args:
        known: what was found in this file before.
    """
    if not study.constructors or not has_states(study):
        return
    said: set[tuple[ast.AST | None, Construct]] = set()
    every = (_counted, _read, _written, _assigned, _communicated, _joined)
    for site in (site for find in every for site in find(study, module)):
        if site.construct in MEANINGS:
            where = enclosing_function(module, site.node), site.construct
            if where in said or _is_known(site, known):
                continue
            said.add(where)
        elif site.construct in {PART, STATISTIC, VALUES} and _is_known(site, known):
            continue
        yield site


def _is_known(site: Site, known: Mapping[ast.AST, Construct]) -> bool:
    others = {PART: {REDUCED}, SHAPE: set()}.get(site.construct, NUMBERS)
    around = (site.node, *site.module.table.ancestors(site.node))
    return any(known.get(each) in others for each in around)


def _is_sharded(tensor: ast.expr, study: Study, module: Module) -> bool:
    if not any(tensors_of(tensor, study, module)):
        return False
    known = knows_of_shards(tensor, module)
    return not known and bool(models_of_states(tensor, study, module))


def _counted(study: Study, module: Module) -> Iterator[Site]:
    """``t.numel()``, ``torch.numel(t)``, ``t.nbytes``, ``t.shape``, ``t.std()``."""
    parents = module.table.parents
    found: set[ast.AST] = set()
    for attribute in module.table.attributes_by_name.of(COUNTED | SHAPES | OF_WHOLE):
        owner, call = attribute.value, parents[attribute]
        if last_name(owner) in OWNERS and isinstance(call, ast.Call):
            if call.func is attribute and call.args:
                owner = call.args[0]
            elif attribute in call.args[:1] and last_name(call.func) == applied_functions.MAP:
                for given in call.args[1:2]:
                    if elements_in(given, study, module):
                        yield Site(PART, module, given, given, given)
                continue
        base, is_shape = in_any_form(owner), attribute.attr not in COUNTED | OF_WHOLE
        if is_shape and (_is_counted(attribute, module) or _is_compared(attribute, module)):
            continue
        if base in found or not _is_sharded(base, study, module):
            continue
        if is_shape:
            yield Site(SHAPE, module, attribute, attribute, base)
        elif attribute.attr in COUNTED:
            found.add(base)
            yield Site(PART, module, base, base, base)
        else:
            yield Site(STATISTIC, module, attribute, attribute, base)


def _is_counted(shape: ast.Attribute, module: Module) -> bool:
    """``t.shape.numel()``, ``t.size().numel()``."""
    around = module.table.parents[shape]
    if isinstance(around, ast.Call) and around.func is shape:
        around = module.table.parents[around]
    return isinstance(around, ast.Attribute) and around.attr in COUNTS


def _is_compared(shape: ast.Attribute, module: Module) -> bool:
    """``t.ndim > 0``, which a count of steps is not, and ``t.shape == p.shape``."""
    around: ast.AST = shape
    while isinstance(around, (ast.Attribute, ast.Call)):
        around = module.table.parents[around]
    match around:
        case ast.Compare(left=left, comparators=[right]):
            return all(
                (isinstance(each, ast.Constant) and each.value == 0)
                or any(isinstance(n, ast.Attribute) and n.attr in SHAPES for n in walk(each))
                for each in (left, right)
            )
    return False


def _read(study: Study, module: Module) -> Iterator[Site]:
    """Numbers that are computed of such a tensor."""
    nodes: list[ast.expr] = [*module.table.subscripts, *module.table.names]
    nodes += module.table.calls_by_name.named("get")
    found: set[ast.AST] = set()
    for node in nodes:
        if isinstance(getattr(node, "ctx", None), (ast.Store, ast.Del)):
            continue
        # Most names are none of a state, and where the variables are used that get them costs more.
        if not any(reads_of(node, study, module)) or not _is_sharded(node, study, module):
            continue
        reads = reads_through_names(node, study, module)
        for read in [read for read in reads if read.node not in found]:
            found.add(read.node)
            yield from _site(read, node, study, module)


def _site(read: Found, tensor: ast.expr, study: Study, module: Module) -> Iterator[Site]:
    added = reductions.is_reduced(read.node, study, module)
    if read.read is Read.VALUES:
        yield Site(VALUES, module, read.node, read.node, tensor)
    elif added and read.read is Read.OWN and not _is_mean(read.node):
        return  # the sum over the ranks is that of the whole, as it was
    elif added and not read.is_mixed and read.base is tensor:
        yield Site(PART, module, tensor, tensor, tensor)
    elif read.read is not Read.EQUAL:
        yield Site(STATE_NUMBER, module, read.node, read.node, tensor)


def _is_mean(node: ast.expr) -> bool:
    return isinstance(node, ast.Call) and last_name(node.func) == "mean"


def _written(study: Study, module: Module) -> Iterator[Site]:
    """``state["exp_avg"][0] = 0`` and ``state["exp_avg"][:2].zero_()``: that stops at a DTensor,
    and this is lost."""
    for items in module.table.subscripts:
        method = module.table.parents[items]
        in_place = isinstance(method, ast.Attribute) and method.attr in IN_PLACE
        stored = isinstance(items.ctx, ast.Store)
        if (in_place or stored) and _is_sharded(items.value, study, module):
            yield Site(ITEMS, module, items.value, items.value, items.value)


def _assigned(study: Study, module: Module) -> Iterator[Site]:
    """``state["exp_avg"].data = x``, which does nothing to a DTensor."""
    if has_data_assignments(module):
        for statement, owner in data_assignments(module.source.tree):
            if _is_sharded(owner, study, module):
                yield Site(DATA, module, statement, statement, owner)


def _communicated(study: Study, module: Module) -> Iterator[Site]:
    """``dist.all_reduce(state["exp_avg"])``, which takes no DTensor."""
    for call in module.table.calls_by_name.of(COLLECTIVES):
        for given in given_arguments(call):
            if _is_sharded(given, study, module) and _is_torchs(call, study, module):
                yield Site(COMMUNICATED, module, given, given, given)


def _joined(study: Study, module: Module) -> Iterator[Site]:
    """``torch.cat([state["exp_avg"].flatten() for state in optimizer.state.values()])``."""
    for call in module.table.calls_by_name.of(JOINING):
        for given in call.args[:1]:
            parts = [flat_base(each, names_in(each)) for each in joined_parts(call)]
            for base in (*flattened(given, study, module), *parts):
                if base is None or models_of_list(given, study, module):
                    continue
                if _is_sharded(base, study, module) and _is_torchs(call, study, module):
                    yield Site(PART, module, base, base, base)


def _is_torchs(call: ast.Call, study: Study, module: Module) -> bool:
    return any(name.startswith("torch.") for name in study.external(call.func, module))


def decide_state_use(site: Site, models: frozenset[Constructor], study: Study) -> Decision:
    """Take this rank's part, or say what is another number now."""
    if strategies.is_replicated(models, study):
        message = "kept: NO_SHARD has all of them on every rank"
        return study.rewritten(site, RULE, message, models=models)
    if site.construct in MEANINGS:
        review = MEANINGS[site.construct]
        message = "kept, with another meaning"
        return study.rewritten(site, RULE, message, models=models, review=review)
    proposal = study.proposal()
    function = proposal.support(site.module, "own_part", site.node)
    one = bool(tensors_of(site.expression, study, site.module))  # and not what ``map`` goes over
    part = code("{f}({t})" if one else "map({f}, {t})", f=function, t=site.expression)
    proposal.replace(site.module, site.expression, part)
    message, review = "of this rank's part, as FSDP1 had it", ""
    if site.construct == ITEMS:
        message, review = "of this rank's part", PLACES
    return study.rewritten(site, RULE, message, proposal, models=models, review=review)
