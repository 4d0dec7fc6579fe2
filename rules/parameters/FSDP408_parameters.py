"""Handle parameters that have their whole shape."""

import ast

from fsdp_migrate.families.parameters import parameter_uses, vectors, writes
from fsdp_migrate.families.parameters.parameter_loops import (
    ADDRESS,
    COUNT,
    MEMORY,
    NAME,
    SHAPE,
    STATISTIC,
    UPDATE,
)
from fsdp_migrate.families.parameters.parameter_numbers import NUMBER, REDUCED, reduction
from fsdp_migrate.families.parameters.parameter_owners import (
    model_of,
    models_concerned,
    models_looped_over,
    trained_models,
)
from fsdp_migrate.families.parameters.parameter_updates import STALE, groups_loop, models_changed
from fsdp_migrate.families.parameters.vectors import PIECES, VECTOR, WRITTEN, flattened
from fsdp_migrate.families.parameters.writes import WRITE, is_item, may_be_evaluated, models_of
from fsdp_migrate.families.wrapping import strategy
from fsdp_migrate.fsdp1.site import Site
from fsdp_migrate.planning.context import Study
from fsdp_migrate.planning.edits import code
from fsdp_migrate.planning.model import Decision
from fsdp_migrate.planning.rule import Finder, Rule

RULE = Rule(
    code="FSDP408",
    name="parameters",
    handles=(
        "parameter shape",
        "parameter name",
        "parameter count",
        "parameter address",
        "parameter memory",
        "parameter statistic",
        "parameter data",
        "parameter update",
        "parameter write",
        "parameters in a vector",
        "parameters from a vector",
        "parameters put together",
        "parameter norm over ranks",
        "parameter norm",
    ),
    finders=(
        Finder(60, parameter_uses.find_parameter_uses),
        Finder(70, writes.find_parameter_writes),
        Finder(80, vectors.find_flattened_parameters),
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
    COUNT: "FSDP1 counted this rank's part here, now numel() is that of the whole parameter",
    MEMORY: (
        "the storage of a sharded parameter has the size of the whole parameter: what this rank "
        "holds is that of p.to_local()"
    ),
    STATISTIC: (
        "FSDP1 gave a number of this rank's piece here, now it is that of the whole parameter, for "
        "which all ranks must ask"
    ),
    NUMBER: (
        "FSDP1 gave a number of this rank's piece here, now it becomes that of the whole parameter "
        "when something is computed from it: add nothing up over the ranks then"
    ),
    ADDRESS: "data_ptr() of every sharded parameter is 0: tell parameters apart by id(p)",
}
# Calls whose result is not what a parameter is: another dtype, another device.
CASTS = frozenset({"to", "half", "float", "double", "bfloat16", "cpu", "cuda", "type", "type_as"})


def decide(site: Site, study: Study) -> Decision:
    assert site.receiver is not None
    models = models_concerned(site, study)
    if site.construct == REDUCED:
        return _reduced(site, study)
    if site.construct in MEANINGS:
        message, review = "kept, with another meaning", MEANINGS[site.construct]
        return study.rewritten(site, RULE.code, message, models=models, review=review)
    if site.construct == UPDATE:
        return _update(site, study)
    if site.construct == WRITE:
        return _write(site, study)
    if site.construct in {VECTOR, PIECES}:
        return _vector(site, study)
    if site.construct == WRITTEN:
        return study.left(
            site,
            RULE.code,
            "it assigns to .data, which does nothing to a sharded parameter",
            "copy its part of the vector to each parameter in place",
            models=models,
            quiet=True,
        )
    statement = site.node
    assert isinstance(statement, ast.Assign)
    casts = [node for node in ast.walk(statement.value) if _casts(node)]
    if _casts(statement.value) or not all(map(_moves, casts)):  # copy_ moves what it is given
        return study.left(
            site,
            RULE.code,
            "assigning to .data of a sharded parameter does nothing",
            "do it before the model is sharded, or in place",
            models=models,
            quiet=not all(map(_moves, casts)),  # where it lies does not change what it learns
        )
    proposal = study.proposal()
    new = code("{t}.copy_({v})", t=statement.targets[0], v=statement.value)
    proposal.replace_statement(site.module, statement, new)
    return study.rewritten(site, RULE.code, "copied in place", proposal, models=models)


def _reduced(site: Site, study: Study) -> Decision:
    """The program adds up over the ranks: it must have this rank's number for that."""
    assert site.receiver is not None
    found = study.models(site.receiver, site.module)
    models = models_concerned(site, study)
    reduced = reduction(site, study)
    traced = study.traced(site.receiver, site.module) and found.certain
    ignores = any(c.is_open or c.has("ignored_modules") or c.has("ignored_states") for c in models)
    proposal = study.proposal()
    for base in reduced.bases:
        gradient = isinstance(base, ast.Attribute) and "grad" in ast.unparse(base)
        if traced and gradient and not ignores:
            proposal.replace(site.module, base, code("{b}.to_local()", b=base))
        else:
            function = proposal.support(site.module, "own_part", base)
            proposal.replace(site.module, base, code("{f}({b})", f=function, b=base))
    review = ""
    if reduced.is_extreme:
        review = EMPTY
    elif reduced.is_mean:
        review = OTHERS
    message = "of this rank's part, which the program adds up"
    return study.rewritten(site, RULE.code, message, proposal, models=models, review=review)


EMPTY = (
    "a rank that has no row of a parameter has no largest or smallest number of it, and fails; "
    "FSDP1 had no gradient there"
)
OTHERS = "this rank's part has other elements of the parameter than FSDP1's piece, and another mean"


def _update(site: Site, study: Study) -> Decision:
    assert isinstance(site.node, ast.expr)
    assert site.receiver is not None
    if not study.traced(site.receiver, site.module):
        return _update_of_optimizer(site, site.receiver, study)
    proposal = study.proposal()
    function = proposal.support(site.module, "reshard_parameters", site.node)
    looped = models_looped_over(site.node, study, site.module)
    lines = [code("{f}({m})", f=function, m=model) for model in looped]
    proposal.insert_before(site.module, site.statement, *lines)
    # Parameters of an FSDP1 model and of an FSDP2 model do not mix: all of them or none.
    together = (site.receiver, *looped.values())
    models = frozenset(c for m in together for c in study.models(m, site.module).constructors)
    changed = [
        study.models(m, site.module).constructors for m in models_changed(site.node, site.module)
    ]
    review = ""
    if any(found and found.isdisjoint(trained_models(study)) for found in changed):
        review = STALE
    return study.rewritten(
        site, RULE.code, "resharded first", proposal, models=models, review=review
    )


def _write(site: Site, study: Study) -> Decision:
    """One parameter is written to: FSDP2 would lose it after an evaluation, FSDP1 was late."""
    assert isinstance(site.node, ast.expr)
    assert site.receiver is not None
    if any(isinstance(p, ast.Lambda) for p in site.module.table.ancestors(site.node)):
        return study.left(
            site,
            RULE.code,
            "a parameter is written to in a lambda, where the model cannot be resharded first",
            "make it a function",
            models=study.models(site.receiver, site.module).constructors,
            quiet=True,
        )
    changed = study.models(site.receiver, site.module).constructors
    if is_item(site.node, site.module):
        return study.left(
            site,
            RULE.code,
            "items of a sharded parameter cannot be assigned, and of one that an evaluation has "
            "gathered are lost",
            "write to the whole parameter in place, or within full_params of fsdp2_support",
            models=changed,
            quiet=True,
        )
    proposal = study.proposal()
    function = proposal.support(site.module, "reshard_parameters", site.node)
    together = models_of(site, study)
    lines = [code("{f}({m})", f=function, m=path) for path in together]
    proposal.insert_before(site.module, site.statement, *lines)
    models = frozenset(
        c for m in together.values() for c in study.models(m, site.module).constructors
    )
    late = may_be_evaluated(changed, study)
    return study.rewritten(
        site, RULE.code, "resharded first", proposal, models=models, review=LATE if late else ""
    )


LATE = (
    "after an evaluation, FSDP1's forwards did not see what is written here to the root's "
    "parameters until a backward had freed them; now the next forward does"
)


def _vector(site: Site, study: Study) -> Decision:
    """What FSDP1 put into a vector was this rank's: the parts of DTensors are, other parts."""
    given = site.receiver
    assert given is not None
    proposal = study.proposal()
    function = proposal.support(site.module, "own_part", given)
    base = flattened(given) if site.construct == PIECES else None
    if base is not None:
        proposal.replace(site.module, base, code("{f}({b})", f=function, b=base))
    else:
        proposal.replace(site.module, given, code("map({f}, {g})", f=function, g=given))
    if "grad" not in ast.unparse(base or given):  # which are sharded after an evaluation too
        for path in models_looped_over(given, study, site.module):
            reshard = proposal.support(site.module, "reshard_parameters", site.node)
            line = code("{f}({m})", f=reshard, m=path)
            proposal.insert_before(site.module, site.statement, line)
    return study.rewritten(
        site,
        RULE.code,
        "of this rank's part",
        proposal,
        models=models_concerned(site, study),
        review=PARTS,
    )


PARTS = (
    "this rank's part has other elements of the parameters than FSDP1's pieces had, and may have "
    "another number of them"
)


def _update_of_optimizer(site: Site, optimizer: ast.expr, study: Study) -> Decision:
    """Where a model is replicated, FSDP1 computed with the parameters that optimizers have."""
    models = models_concerned(site, study)
    model = model_of(optimizer, study, site.module)
    if model is None or not strategy.is_replicated(models, study):
        message = "kept, and not seen in every case"
        return study.rewritten(site, RULE.code, message, models=models, review=UNSEEN)
    proposal = study.proposal()
    function = proposal.support(site.module, "reshard_parameters", site.node)
    line = code("{f}({m})", f=function, m=ast.unparse(model))
    proposal.insert_before(site.module, groups_loop(site), line)
    return study.rewritten(site, RULE.code, "resharded first", proposal, models=models)


UNSEEN = (
    "under NO_SHARD, FSDP1's next forward saw what is written here after an evaluation; now it "
    "does only after a backward or reshard() of the model's units"
)


def _casts(node: ast.AST) -> bool:
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
