"""Go over parameters instead of FSDP1's private handles.

## What changes
`_get_fsdp_handles(model)`, whose handles hold the flat parameters of the units, becomes
`list(model.parameters())`, and `handle.flat_param` the parameter itself, where what is done with it
is done element by element: moving averages above all. The model is resharded first.

## Why
A flat parameter is all parameters of a unit in one tensor, of which a rank holds a piece. FSDP2 has
none; its parameters are `DTensor`s, and arithmetic on them runs on this rank's shards, without
communication, as it did on the pieces.

## What stays for you
Code that looks at sizes, storages or the state of handles.

## Since torch
2.6

## References
- torch/distributed/fsdp/_traversal_utils.py
"""

import ast
from collections.abc import Iterable

from fsdp_migrate.families.parameters.parameters import STALE, trained
from fsdp_migrate.planning.context import Study
from fsdp_migrate.planning.edits import Code, Proposal, code
from fsdp_migrate.planning.model import Constructor, Decision, Site
from fsdp_migrate.planning.outcome import Outcome
from fsdp_migrate.planning.rule import Example, Keep, Rule

RULE = Rule(code="FSDP416", name="handles", handles=("private:_traversal_utils._get_fsdp_handles",))

EXAMPLES = [
    Example(
        title="a moving average of all flat parameters",
        before="""\
import torch
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP
from torch.distributed.fsdp import _traversal_utils as traversal


def shard(net, twin):
    model = FSDP(net)
    optimizer = torch.optim.AdamW(model.parameters())
    return model, FSDP(twin), optimizer


@torch.no_grad()
def update(net, twin, decay=0.999):
    model, mean, optimizer = shard(net, twin)
    mean_handles = traversal._get_fsdp_handles(mean)
    handles = traversal._get_fsdp_handles(model)
    assert len(mean_handles) == len(handles)
    old, new = [], []
    for mean_handle, handle in zip(mean_handles, handles):
        if mean_handle.flat_param is not None and handle.flat_param.requires_grad:
            old.append(mean_handle.flat_param.data)
            new.append(handle.flat_param.data.to(dtype=mean_handle.flat_param.dtype))
    torch._foreach_mul_(old, decay)
    torch._foreach_add_(old, new, alpha=1 - decay)
""",
        after="""\
import torch
from torch.distributed.fsdp import fully_shard

from fsdp2_support import reshard_parameters


def shard(net, twin):
    model = fully_shard(net)
    optimizer = torch.optim.AdamW(model.parameters())
    return model, fully_shard(twin), optimizer


@torch.no_grad()
def update(net, twin, decay=0.999):
    model, mean, optimizer = shard(net, twin)
    # TODO(fsdp-migrate FSDP416): After an evaluation of this model, FSDP1 lost what was written to its root's parameters, for no backward had freed them; now the next evaluation sees it.
    reshard_parameters(mean)
    mean_handles = list(mean.parameters())
    reshard_parameters(model)
    handles = list(model.parameters())
    assert len(mean_handles) == len(handles)
    old, new = [], []
    for mean_handle, handle in zip(mean_handles, handles):
        if mean_handle is not None and handle.requires_grad:
            old.append(mean_handle.data)
            new.append(handle.data.to(dtype=mean_handle.dtype))
    torch._foreach_mul_(old, decay)
    torch._foreach_add_(old, new, alpha=1 - decay)
""",
        outcome=Outcome.REVIEW,
        support=("reshard_parameters",),
    ),
    Example(
        title="gradients, one by one",
        before="""\
import torch
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP
from torch.distributed.fsdp._traversal_utils import _get_fsdp_handles


def scale(net, factor):
    model = FSDP(net)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    handles = _get_fsdp_handles(model)
    for handle in handles:
        if handle.flat_param.grad is not None:
            handle.flat_param.grad.mul_(factor)
""",
        after="""\
import torch
from torch.distributed.fsdp import fully_shard

from fsdp2_support import reshard_parameters


def scale(net, factor):
    model = fully_shard(net)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    reshard_parameters(model)
    handles = list(model.parameters())
    for handle in handles:
        if handle.grad is not None:
            handle.grad.mul_(factor)
""",
        support=("reshard_parameters",),
    ),
    Example(
        title="beside parameters that are not sharded",
        before="""\
import torch
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP
from torch.distributed.fsdp._traversal_utils import _get_fsdp_handles


def clamp(net, limit):
    model = FSDP(net, ignored_modules=[net.head], use_orig_params=True)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    handles = _get_fsdp_handles(model)
    with torch.no_grad():
        for handle in handles:
            handle.flat_param.clamp_(-limit, limit)
""",
        after="""\
import torch
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor

from fsdp2_support import reshard_parameters


def clamp(net, limit):
    # TODO(fsdp-migrate FSDP113): Ignored parameters stay plain tensors: build the optimizer with foreach=False.
    ignored_modules = [net.head]
    ignored_params = {p for m in ignored_modules for p in m.parameters()}
    model = fully_shard(net, ignored_params=ignored_params)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    reshard_parameters(model)
    handles = [p for p in model.parameters() if isinstance(p, DTensor)]
    with torch.no_grad():
        for handle in handles:
            handle.clamp_(-limit, limit)
""",
        outcome=Outcome.REVIEW,
        support=("reshard_parameters",),
    ),
]

KEEP = [
    Keep(
        title="sizes of flat parameters",
        source="""\
from torch.distributed.fsdp._traversal_utils import _get_fsdp_handles


def count(model):
    handles = _get_fsdp_handles(model)
    return sum(handle.flat_param.numel() for handle in handles)
""",
        left=True,
    ),
    Keep(
        title="the state of handles",
        source="""\
from torch.distributed.fsdp._traversal_utils import _get_fsdp_handles


def gather(model):
    for handle in _get_fsdp_handles(model):
        handle.unshard()
""",
        left=True,
    ),
    Keep(
        title="handles of hooks",
        source="""\
handles = [module.register_forward_hook(hook) for module in model.modules()]
for handle in handles:
    handle.remove()
""",
    ),
]

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
    assert isinstance(call, ast.Call)
    proposal = study.proposal()
    reshard = proposal.support(site.module, "reshard_parameters", call)
    lines = code("{r}({m})", r=reshard, m=ast.unparse(given[0]))
    proposal.insert_before(site.module, site.statement, lines)
    proposal.replace(site.module, call, _parameters(given[0], models, site, proposal))
    for attribute in flat:
        proposal.replace(site.module, attribute, code("{h}", h=attribute.value))
    review = STALE if models.isdisjoint(trained(study)) else ""
    return study.rewritten(
        site, RULE.code, "the parameters themselves", proposal, models=models, review=review
    )


def _parameters(
    model: ast.expr, models: Iterable[Constructor], site: Site, proposal: Proposal
) -> Code:
    if not any(c.is_open or c.has("ignored_modules") or c.has("ignored_states") for c in models):
        return code("list({m}.parameters())", m=model)
    dtensor = proposal.name(site.module, "torch.distributed.tensor", "DTensor", site.node)
    return code("[p for p in {m}.parameters() if isinstance(p, {d})]", m=model, d=dtensor)


def _flat_parameters(site: Site) -> list[ast.Attribute] | None:
    """Every ``handle.flat_param`` of the list's handles; None when something else is done."""
    table = site.module.table
    listed = _assigned(site)
    uses: list[ast.AST] = [site.node] if listed is None else list(_uses(listed, site))
    handles: list[ast.Name] = []
    for use in uses:
        parent = table.parents[use]
        if isinstance(parent, ast.Call) and getattr(parent.func, "id", "") == "len":
            continue
        variable = _variable(use, site)
        if variable is None:
            return None
        handles += _uses(variable, site)
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


def _uses(name: ast.Name, site: Site) -> list[ast.Name]:
    table = site.module.table
    scope = table.within[name].lookup(name.id)
    return [
        n
        for n in table.names
        if n.id == name.id and isinstance(n.ctx, ast.Load) and table.within[n].lookup(n.id) is scope
    ]


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
