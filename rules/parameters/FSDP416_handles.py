"""Go over parameters instead of FSDP1's private handles."""

import ast
from collections.abc import Iterable

from fsdp_migrate.families.parameters.parameter_updates import STALE
from fsdp_migrate.families.training_loop.early_optimizers import trained_models
from fsdp_migrate.families.training_loop.gathered_roots import may_stay_gathered, reshard_line
from fsdp_migrate.fsdp1.site import Site
from fsdp_migrate.planning.context import Study
from fsdp_migrate.planning.edits import Code, code
from fsdp_migrate.planning.model import Constructor, Decision
from fsdp_migrate.planning.proposal import Proposal
from fsdp_migrate.planning.rule import Rule

RULE = Rule(code="FSDP416", name="handles", handles=("private:_traversal_utils._get_fsdp_handles",))


# What may be done with a flat parameter: nothing that tells it from the parameters in it.
ELEMENTWISE = frozenset({"data", "detach", "dtype", "device", "grad", "requires_grad", "to"})


def decide(site: Site, study: Study) -> Decision:
    call = site.node
    given = call.args if isinstance(call, ast.Call) and not call.keywords else []
    models = study.models_of_static(given[0] if given else None, site.module).constructors
    flat = _flat_parameters(site) if len(given) == 1 else None
    if flat is None or not models:
        return study.left(
            site,
            RULE.code,
            "an FSDP2 model has no handles, and no flat parameters",
            "do it with the parameters, which are DTensors of their own shape",
            models=models,
        )
    call = site.call
    proposal = study.proposal()
    if may_stay_gathered(models, study):
        line = reshard_line(given[0], site.module, call, study, proposal)
        proposal.insert_before(site.module, site.statement, line)
    proposal.replace(site.module, call, _parameters(given[0], models, site, study, proposal))
    for attribute in flat:
        proposal.replace(site.module, attribute, code("{h}", h=attribute.value))
    review = STALE if models.isdisjoint(trained_models(study)) else ""
    return study.rewritten(
        site, RULE.code, "the parameters themselves", proposal, models=models, review=review
    )


def _parameters(
    model: ast.expr,
    models: Iterable[Constructor],
    site: Site,
    study: Study,
    proposal: Proposal,
) -> Code:
    if not study.may_ignore(models):
        return code("list({m}.parameters())", m=model)
    dtensor = proposal.name(site.module, "torch.distributed.tensor", "DTensor", site.node)
    return code("[p for p in {m}.parameters() if isinstance(p, {d})]", m=model, d=dtensor)


def _flat_parameters(site: Site) -> list[ast.Attribute] | None:
    """Every ``handle.flat_param`` of the list's handles; None when something else is done."""
    table = site.module.table
    listed = _assigned(site)
    uses: list[ast.AST] = [site.node] if listed is None else list(_reads(listed, site))
    handles: list[ast.Name] = []
    for use in uses:
        parent = table.parents[use]
        if isinstance(parent, ast.Call) and getattr(parent.func, "id", "") == "len":
            continue
        variable = _variable(use, site)
        if variable is None:
            return None
        handles += _reads(variable, site)
    found = []
    for handle in handles:
        attribute = table.parents[handle]
        if not isinstance(attribute, ast.Attribute) or attribute.attr != "flat_param":
            return None
        if not _is_elementwise(attribute, site):
            return None
        found.append(attribute)
    return found or None


def _assigned(site: Site) -> ast.Name | None:
    """The name the list is bound to, also in ``a, b = handles_of(x), handles_of(y)``."""
    table = site.module.table
    value, holder, index = site.node, table.parents[site.node], None
    if isinstance(holder, ast.Tuple):
        index = holder.elts.index(site.node)  # type: ignore[arg-type]
        value, holder = holder, table.parents[holder]
    if not isinstance(holder, ast.Assign) or holder.value is not value:
        return None
    target = holder.targets[0]
    if index is not None and isinstance(target, ast.Tuple) and index < len(target.elts):
        target = target.elts[index]
    return target if isinstance(target, ast.Name) else None


def _reads(name: ast.Name, site: Site) -> list[ast.Name]:
    table = site.module.table
    return table.reads(name.id, table.within[name].lookup(name.id))


def _variable(use: ast.AST, site: Site) -> ast.Name | None:
    """The loop variable for one of the handles: ``a`` of ``for a, b in zip(use, others)``."""
    table = site.module.table
    parent = table.parents[use]
    index = None
    if isinstance(parent, ast.Call) and getattr(parent.func, "id", "") == "zip":
        index = parent.args.index(use)  # type: ignore[arg-type]
        use, parent = parent, table.parents[parent]
    if not isinstance(parent, (ast.For, ast.comprehension)) or parent.iter is not use:
        return None
    target = parent.target
    if index is not None and isinstance(target, (ast.Tuple, ast.List)):
        target = target.elts[index] if index < len(target.elts) else target
    return target if isinstance(target, ast.Name) else None


def _is_elementwise(flat: ast.Attribute, site: Site) -> bool:
    parent = site.module.table.parents[flat]
    if isinstance(parent, ast.Compare):
        return all(isinstance(op, (ast.Is, ast.IsNot)) for op in parent.ops)
    if isinstance(parent, ast.Attribute):
        return parent.attr in ELEMENTWISE or parent.attr.endswith("_")
    if isinstance(parent, ast.Call):
        return isinstance(parent.func, ast.Attribute) and parent.func.attr == "append"
    return False
