"""Loops that change the parameters of a model in place: ``p.mul_(decay)``, and ``p.data = x``.

After an evaluation the root's parameters are plain tensors: what is written to them is lost.
"""

from __future__ import annotations

import ast
import itertools

from fsdp_migrate.analysis.module import Module
from fsdp_migrate.families.parameters import parameter_changes
from fsdp_migrate.families.parameters.parameter_changes import data_assignments
from fsdp_migrate.families.parameters.parameter_loops import METHODS
from fsdp_migrate.families.parameters.parameter_owners import (
    model_of,
    models_concerned,
    models_looped_over,
    owner_of_groups,
    sharded,
)
from fsdp_migrate.families.parameters.writes import LATE
from fsdp_migrate.families.training_loop.early_optimizers import trained_models
from fsdp_migrate.families.training_loop.gathered_roots import (
    may_be_evaluated,
    may_stay_gathered,
    resharded_first,
)
from fsdp_migrate.families.training_loop.training_before import (
    just_trained,
    only_model_was_trained,
)
from fsdp_migrate.families.wrapping import strategies
from fsdp_migrate.fsdp1.site import Site
from fsdp_migrate.planning.context import Study
from fsdp_migrate.planning.model import Constructor, Decision
from fsdp_migrate.syntax.expressions import names_in
from fsdp_migrate.syntax.trees import walk

RULE = "FSDP408"

STALE = (  # what to review of writing to a model that no backward goes through
    "after an evaluation of this model, FSDP1 lost what was written to its root's parameters, for "
    "no backward had freed them; now the next evaluation sees it"
)


MIXED = (
    "under NO_SHARD, FSDP1's parameters were whole tensors here, and combined with those of a "
    "plain model; no DTensor does: take to_local() of them"
)


def groups_loop(site: Site) -> ast.stmt:
    """The loop over an optimizer's groups that a site stands in, or its statement."""
    for parent in site.module.table.ancestors(site.node):
        if (
            isinstance(parent, (ast.For, ast.AsyncFor))
            and owner_of_groups(parent.iter) is site.receiver
        ):
            return parent
    return site.statement


def models_changed(iterated: ast.expr, study: Study, module: Module) -> list[ast.expr]:
    """The models whose parameters a loop changes in place: ``e`` of ``for e, p in zip(...)``."""
    loop = module.table.parents[iterated]
    assert isinstance(loop, (ast.For, ast.AsyncFor))
    parts: list[tuple[ast.expr, ast.expr]] = [(loop.target, iterated)]
    match iterated, loop.target:
        case (
            ast.Call(func=ast.Name(id="zip"), args=given),
            ast.Tuple(elts=targets) | ast.List(elts=targets),
        ) if len(given) == len(targets):
            parts = list(zip(targets, given, strict=True))
    found = []
    for target, source in parts:
        if not parameter_changes.changes(names_in(target), loop.body, study, module):
            continue
        for node in walk(source):
            method = node.func if isinstance(node, ast.Call) else None
            if isinstance(method, ast.Attribute) and method.attr in METHODS:
                found.append(method.value)
    return found


def decide_update(site: Site, study: Study) -> Decision:
    if not sharded(site.subject, site.module, study):
        return _update_of_optimizer(site, site.subject, study)
    looped = models_looped_over(site.expression, study, site.module)
    # Parameters of an FSDP1 model and of an FSDP2 model do not mix: all of them or none.
    together = (site.subject, *looped.values())
    models = frozenset(c for m in together for c in sharded(m, site.module, study))
    mixed = MIXED if _mixes_with_plain(site, models, study) else ""
    if not may_stay_gathered(models, study):
        message = "kept, on sharded parameters"
        if mixed:
            return study.rewritten(site, RULE, message, models=models, review=mixed)
        return study.kept_as_is(site, RULE, message, models=models)
    changed = [
        sharded(m, site.module, study) for m in models_changed(site.expression, study, site.module)
    ]
    written = frozenset(model for found in changed for model in found)
    review = ""
    of_each = [sharded(m, site.module, study) for m in looped.values()]
    alike = any(a & b for a, b in itertools.combinations(of_each, 2))  # which of them is trained?
    if _only_moves(site):
        pass
    elif alike or any(found and found.isdisjoint(trained_models(study)) for found in changed):
        review = STALE
    elif written and may_be_evaluated(written, study) and not _was_trained(site, study):
        review = LATE
    review = "; ".join(filter(None, (review, mixed)))
    return resharded_first(site, looped.values(), study, RULE, models=models, review=review)


def _mixes_with_plain(site: Site, models: frozenset[Constructor], study: Study) -> bool:
    """Whether a loop goes over the parameters of a plain model as well, and the others may be
    whole on every rank: of pieces FSDP1 would have failed there."""
    if not any("NO_SHARD" in strategies.possible(model, study) for model in models):
        return False
    return any(
        isinstance(method := getattr(node, "func", None), ast.Attribute)
        and method.attr in METHODS
        and not sharded(method.value, site.module, study)
        for node in walk(site.expression)
    )


def _only_moves(site: Site) -> bool:
    """Whether a loop gives parameters their own values, on another device, and nothing else:
    ``p.data = p.data.to(device)``."""
    loop = site.module.table.parents[site.expression]
    assert isinstance(loop, (ast.For, ast.AsyncFor))
    nodes = [node for part in loop.body for node in walk(part)]
    methods = [node.func for node in nodes if isinstance(node, ast.Call)]
    if any(isinstance(m, ast.Attribute) and m.attr.endswith("_") for m in methods):
        return False
    assigned = list(data_assignments(loop))
    return bool(assigned) and all(
        isinstance(statement, ast.Assign) and _is_moved(statement.value, owner)
        for statement, owner in assigned
    )


def _is_moved(value: ast.expr, owner: ast.expr) -> bool:
    """Whether a value is ``owner`` on another device, in the dtype that it has."""
    match value:
        case ast.Call(func=ast.Attribute(value=moved, attr="cpu" | "cuda")):
            pass
        case ast.Call(func=ast.Attribute(value=moved, attr="to"), args=[device]) if isinstance(
            device, ast.Constant
        ) or "device" in ast.unparse(device):
            if any(keyword.arg != "non_blocking" for keyword in value.keywords):
                return False
        case _:
            return False
    return ast.unparse(moved).removesuffix(".data") == ast.unparse(owner)


def _was_trained(site: Site, study: Study) -> bool:
    """Whether the model that a loop goes over was made, or trained a step, right before it."""
    statement, module = site.statement, site.module
    return just_trained(statement, study, module) or only_model_was_trained(
        statement, site.subject, study, module
    )


def _update_of_optimizer(site: Site, optimizer: ast.expr, study: Study) -> Decision:
    """A loop over an optimizer's groups that changes parameters of a replicated model.

    FSDP1 computed with the very parameters that the optimizer has.
    """
    models = models_concerned(site, study)
    if models and not may_stay_gathered(models, study):
        return study.kept_as_is(site, RULE, "kept, on sharded parameters", models=models)
    model = model_of(optimizer, study, site.module)
    if model is None or not strategies.is_replicated(models, study):
        message = "kept, and not seen in every case"
        return study.rewritten(site, RULE, message, models=models, review=UNSEEN)
    before = groups_loop(site)
    return resharded_first(site, [model], study, RULE, models=models, before=before)


UNSEEN = (
    "under NO_SHARD, FSDP1's next forward saw what is written here after an evaluation; now it "
    "does only after a backward or reshard() of the model's units"
)
