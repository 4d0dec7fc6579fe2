"""Clip gradients with `torch.nn.utils.clip_grad_norm_`.

## What changes
`model.clip_grad_norm_(max_norm)` becomes `torch.nn.utils.clip_grad_norm_(model.parameters(),
max_norm)`, with `.full_tensor()` where the norm is used. Models with ignored parameters use a
support function that clips sharded and plain gradients together; so does the infinity norm, and
torch's own function where its result is used.

## Why
FSDP2 models have no such method; on `DTensor` gradients the torch function computes the global
norm. It returns a `DTensor`: formatting it fails, `.item()` may be one rank's part. It has no
infinity norm of an empty shard, which ranks have of parameters with fewer rows than ranks.

## What stays for you
With CPU offload the norm is computed on the CPU and needs a CPU backend
(`init_process_group("cpu:gloo,cuda:nccl")`).

## Since torch
2.6

## References
- https://github.com/pytorch/pytorch/issues/148532
- torch/nn/utils/clip_grad.py
"""

import ast

from fsdp_migrate.families.checkpoints import statedicts
from fsdp_migrate.families.parameters.parameters import CLIP, CLIP_LIST
from fsdp_migrate.planning.context import Study
from fsdp_migrate.planning.edits import Code, code, join
from fsdp_migrate.planning.model import Decision, Site
from fsdp_migrate.planning.outcome import Outcome
from fsdp_migrate.planning.rule import Example, Keep, Rule

RULE = Rule(
    code="FSDP401",
    name="clip_grad_norm",
    handles=(
        "FullyShardedDataParallel.clip_grad_norm_",
        "torch.nn.utils.clip_grad_norm_(parameters)",
        "torch.nn.utils.clip_grad_norm_(list)",
    ),
)

EXAMPLES = [
    Example(
        title="the norm is not used",
        before="""\
import torch
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP

model = FSDP(model)
model.clip_grad_norm_(1.0)
""",
        after="""\
import torch
from torch.distributed.fsdp import fully_shard

model = fully_shard(model)
torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
""",
    ),
    Example(
        title="the norm is logged",
        before="""\
import torch
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP

model = FSDP(model)
norm = model.clip_grad_norm_(max_norm=args.clip, norm_type=1.0)
print(f"{norm:.3f}")
""",
        after="""\
import torch
from torch.distributed.fsdp import fully_shard

model = fully_shard(model)
norm = torch.nn.utils.clip_grad_norm_(model.parameters(), args.clip, norm_type=1.0).full_tensor()
print(f"{norm:.3f}")
""",
    ),
    Example(
        title="the infinity norm",
        before="""\
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP

model = FSDP(model)
norm = model.clip_grad_norm_(1.0, norm_type=float("inf"))
""",
        after="""\
from torch.distributed.fsdp import fully_shard

from fsdp2_support import clip_grad_norm_

model = fully_shard(model)
norm = clip_grad_norm_(model, 1.0, norm_type=float("inf"))
""",
        support=("clip_grad_norm_",),
    ),
    Example(
        title="torch's own, which saw only this rank's part",
        before="""\
import torch
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP

model = FSDP(model)
norm = torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
print(f"{norm:.3f}")
""",
        after="""\
from torch.distributed.fsdp import fully_shard

from fsdp2_support import clip_grad_norm_

model = fully_shard(model)
# TODO(fsdp-migrate FSDP401): FSDP1 clipped by the norm of each rank's own part here; this clips by the norm of all.
norm = clip_grad_norm_(model, 1.0)
print(f"{norm:.3f}")
""",
        outcome=Outcome.REVIEW,
        support=("clip_grad_norm_",),
    ),
    Example(
        title="torch's own, for other models",
        before="""\
import torch
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP


def clip(net, sharded):
    model = FSDP(net) if sharded else net
    if isinstance(model, FSDP):
        return model.clip_grad_norm_(1.0)
    else:
        return torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
""",
        after="""\
import torch
from torch.distributed.fsdp import FSDPModule, fully_shard


def clip(net, sharded):
    model = fully_shard(net) if sharded else net
    if isinstance(model, FSDPModule):
        return torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0).full_tensor()
    else:
        return torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
""",
    ),
    Example(
        title="some parameters are ignored by FSDP",
        before="""\
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP

def step(model):
    model = FSDP(model, ignored_modules=[model.head])
    return model.clip_grad_norm_(1.0)
""",
        after="""\
from torch.distributed.fsdp import fully_shard

from fsdp2_support import clip_grad_norm_

def step(model):
    # TODO(fsdp-migrate FSDP113): Ignored parameters stay plain tensors: build the optimizer with foreach=False.
    ignored_modules = [model.head]
    ignored_params = {p for m in ignored_modules for p in m.parameters()}
    fully_shard(model, ignored_params=ignored_params)
    return clip_grad_norm_(model, 1.0)
""",
        outcome=Outcome.REVIEW,
        support=("clip_grad_norm_",),
    ),
    Example(
        title="arguments that cannot be read",
        before="""\
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP

model = FSDP(model)
model.clip_grad_norm_(*args)
""",
        after="""\
from torch.distributed.fsdp import fully_shard

model = fully_shard(model)
# TODO(fsdp-migrate FSDP401): The arguments of clip_grad_norm_ cannot be read. Use torch.nn.utils.clip_grad_norm_(model.parameters(), ...).
model.clip_grad_norm_(*args)
""",
        outcome=Outcome.LEFT,
    ),
    Example(
        title="torch's own function, on some of the parameters",
        before="""\
import torch
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP


def step(net, optimizer):
    model = FSDP(net, use_orig_params=True)
    trainable = [p for p in model.parameters() if p.requires_grad]
    norm = torch.nn.utils.clip_grad_norm_(trainable, 1.0)
    optimizer.step()
    return norm.item()
""",
        after="""\
import torch
from torch.distributed.fsdp import fully_shard


def step(net, optimizer):
    model = fully_shard(net)
    trainable = [p for p in model.parameters() if p.requires_grad]
    # TODO(fsdp-migrate FSDP401): FSDP1 clipped by the norm of each rank's own part here; this clips by the norm of all.
    norm = torch.nn.utils.clip_grad_norm_(trainable, 1.0).full_tensor()
    optimizer.step()
    return norm.item()
""",
        outcome=Outcome.REVIEW,
    ),
    Example(
        title="in an object that is called",
        before="""\
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP


class Scaler:
    def __call__(self, loss, model, limit):
        loss.backward()
        return model.clip_grad_norm_(limit)


def step(model, batch, scale):
    scale(model(batch).sum(), model, 1.0)


def train(net, batches, optimizer):
    model = FSDP(net)
    scaler = Scaler()
    for batch in batches:
        step(model, batch, scaler)
        optimizer.step()
""",
        after="""\
from torch.distributed.fsdp import fully_shard
import torch.nn.utils as nn_utils


class Scaler:
    def __call__(self, loss, model, limit):
        loss.backward()
        return nn_utils.clip_grad_norm_(model.parameters(), limit).full_tensor()


def step(model, batch, scale):
    scale(model(batch).sum(), model, 1.0)


def train(net, batches, optimizer):
    model = fully_shard(net)
    scaler = Scaler()
    for batch in batches:
        step(model, batch, scaler)
        optimizer.step()
""",
    ),
    Example(
        title="parts of a model, each by itself",
        before="""\
import torch
from torch import nn
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP


class Net(nn.Module):
    def __init__(self, heads):
        super().__init__()
        self.layers = nn.ModuleList([FSDP(nn.Linear(4, 4)) for _ in range(4)])
        self.heads = nn.ModuleDict({name: FSDP(nn.Linear(4, 1)) for name in heads})

    def clip(self, limit):
        for index, layer in enumerate(self.layers):
            layer.clip_grad_norm_(limit / (index + 1))
        for head in self.heads.values():
            head.clip_grad_norm_(limit)
        return self.layers[0].clip_grad_norm_(limit)
""",
        after="""\
import torch
from torch import nn
from torch.distributed.fsdp import fully_shard


class Net(nn.Module):
    def __init__(self, heads):
        super().__init__()
        self.layers = nn.ModuleList([fully_shard(nn.Linear(4, 4)) for _ in range(4)])
        self.heads = nn.ModuleDict({name: fully_shard(nn.Linear(4, 1)) for name in heads})

    def clip(self, limit):
        for index, layer in enumerate(self.layers):
            torch.nn.utils.clip_grad_norm_(layer.parameters(), limit / (index + 1))
        for head in self.heads.values():
            torch.nn.utils.clip_grad_norm_(head.parameters(), limit)
        return torch.nn.utils.clip_grad_norm_(self.layers[0].parameters(), limit).full_tensor()
""",
    ),
    Example(
        title="a model of a class that stays, beside one that does not",
        before="""\
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP


class Counted(FSDP):
    def check_is_root(self):
        return True


def build(net, other):
    model = Counted(net)
    model.clip_grad_norm_(1.0)
    return model, FSDP(other)
""",
        after="""\
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP, fully_shard


# TODO(fsdp-migrate FSDP103): It cannot be a module around the sharded one: it overrides check_is_root. Make it a function that builds and shards the module.
class Counted(FSDP):
    def check_is_root(self):
        return True


def build(net, other):
    model = Counted(net)
    # TODO(fsdp-migrate FSDP401): The model here may be of a subclass of FSDP, which stays (FSDP103). Migrate that class first.
    model.clip_grad_norm_(1.0)
    return model, fully_shard(other)
""",
        outcome=Outcome.LEFT,
    ),
]

KEEP = [
    Keep(
        title="parts of a model that are not sharded",
        source="""\
from torch import nn


class Net(nn.Module):
    def __init__(self, limit):
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(4, 4) for _ in range(4))
        for index, layer in enumerate(self.layers):
            layer.clip_grad_norm_ = limit
""",
    ),
    Keep(
        title="a wrapper of the project's own that clips",
        source="""\
from wrappers import Counted


def build(net):
    model = Counted(net)
    model.clip_grad_norm_(1.0)
    return model
""",
    ),
    Keep(
        title="an object that is called with another model",
        source="""\
from torch import nn


class Scaler:
    def __call__(self, loss, model, limit):
        loss.backward()
        return nn.utils.clip_grad_norm_(model.parameters(), limit)


scaler = Scaler()
""",
    ),
    Keep(
        title="some of the parameters of a plain model",
        source="""\
import torch

trainable = [p for p in net.parameters() if p.requires_grad]
norm = torch.nn.utils.clip_grad_norm_(trainable, 1.0)
""",
    ),
    Keep(
        title="torch's own",
        source="""\
import torch

torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
""",
    ),
    Keep(
        title="a list of parameters",
        source="""\
import torch

torch.nn.utils.clip_grad_norm_([p for p in parameters if p.requires_grad], 1.0)
""",
    ),
    Keep(
        title="a model that is not sharded",
        source="""\
import torch

model = Net()
norm = torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
""",
    ),
    Keep(
        title="accelerate's",
        source="""\
accelerator.clip_grad_norm_(model.parameters(), 1.0)
""",
    ),
    Keep(
        title="a method of a trainer",
        source="""\
trainer.clip_grad_norm_(1.0)
""",
    ),
    Keep(
        title="by value",
        source="""\
import torch

torch.nn.utils.clip_grad_value_(model.parameters(), 1.0)
""",
    ),
    Keep(
        title="a norm without clipping",
        source="""\
import torch

norm = torch.nn.utils.get_total_norm([p.grad for p in model.parameters()])
""",
    ),
]


def decide(site: Site, study: Study) -> Decision:
    if site.construct == CLIP:
        return _torchs_own(site, study)
    if site.construct == CLIP_LIST:
        return _of_a_list(site, study)
    assert site.receiver is not None
    models = study.models(site.receiver, site.module).constructors
    call = site.node
    bound = None
    if isinstance(call, ast.Call):
        bound = statedicts.arguments(call, ("max_norm", "norm_type"))
    if bound is None or "max_norm" not in bound:
        return study.left(
            site,
            RULE.code,
            "the arguments of clip_grad_norm_ cannot be read",
            "use torch.nn.utils.clip_grad_norm_(model.parameters(), ...)",
            models=models,
        )
    assert isinstance(call, ast.Call)
    proposal = study.proposal()
    norm_type = code("")
    if "norm_type" in bound:
        norm_type = code(", norm_type={n}", n=bound["norm_type"])
    parts: dict[str, Code | ast.expr | str] = {
        "m": site.receiver,
        "x": bound["max_norm"],
        "n": norm_type,
    }
    ignores = any(c.is_open or c.has("ignored_modules") or c.has("ignored_states") for c in models)
    if ignores or not _is_finite(bound.get("norm_type"), site, study):
        parts["f"] = proposal.support(site.module, "clip_grad_norm_", call)
        new = Code("{f}({m}, {x}{n})", parts)
    else:
        utils = proposal.module_name(site.module, "torch.nn.utils", "nn_utils", call)
        parts["f"] = f"{utils}.clip_grad_norm_"
        new = Code("{f}({m}.parameters(), {x}{n})", parts)
        if not isinstance(site.module.table.parents[call], ast.Expr):
            new = code("{c}.full_tensor()", c=new)
    proposal.replace(site.module, call, new)
    message = "torch.nn.utils.clip_grad_norm_"
    return study.rewritten(site, RULE.code, message, proposal, models=models)


def _torchs_own(site: Site, study: Study) -> Decision:
    """On FSDP1's parameters it computed the norm of this rank's part."""
    assert site.receiver is not None
    assert isinstance(site.node, ast.Call)
    found = study.models(site.receiver, site.module)
    if _is_alternative(site):
        message = "kept: it is for models that are not FSDP's"
        return study.rewritten(site, RULE.code, message, models=found.constructors)
    bound = statedicts.arguments(site.node, ("parameters", "max_norm", "norm_type"))
    used = not isinstance(site.module.table.parents[site.node], ast.Expr)
    infinite = bound is not None and not _is_finite(bound.get("norm_type"), site, study)
    proposal = study.proposal()
    if bound is not None and "max_norm" in bound and (used or infinite):
        function = proposal.support(site.module, "clip_grad_norm_", site.node)
        norm_type = code("")
        if "norm_type" in bound:
            norm_type = code(", norm_type={n}", n=bound["norm_type"])
        proposal.replace(
            site.module,
            site.node,
            code("{f}({m}, {x}{n})", f=function, m=site.receiver, x=bound["max_norm"], n=norm_type),
        )
    return study.rewritten(
        site,
        RULE.code,
        "the norm of all ranks",
        proposal,
        models=found.constructors,
        review=LOCAL if found.certain else "",
    )


def _of_a_list(site: Site, study: Study) -> Decision:
    """As :func:`_torchs_own`, of some of a model's parameters."""
    assert site.receiver is not None
    assert isinstance(site.node, ast.Call)
    found = study.models(site.receiver, site.module)
    models = found.constructors
    if _is_alternative(site):
        message = "kept: it is for models that are not FSDP's"
        return study.rewritten(site, RULE.code, message, models=models)
    bound = statedicts.arguments(site.node, ("parameters", "max_norm", "norm_type"))
    if bound is None or not _is_finite(bound.get("norm_type"), site, study):
        return study.left(
            site,
            RULE.code,
            "each rank would clip by a norm of its own part here",
            "clip with the 2-norm, or reduce the norm with full_tensor() before scaling",
            models=models,
            quiet=True,
        )
    proposal = study.proposal()
    ignores = any(c.is_open or c.has("ignored_modules") or c.has("ignored_states") for c in models)
    used = not isinstance(site.module.table.parents[site.node], ast.Expr)
    if used and found.certain and not ignores:
        given = [code("{v}", v=value) for value in site.node.args]
        given += [code(f"{k.arg}={{v}}", v=k.value) for k in site.node.keywords]
        call = code("{f}({a}).full_tensor()", f=site.node.func, a=join(", ", given))
        proposal.replace(site.module, site.node, call)
    return study.rewritten(
        site, RULE.code, "the norm of all ranks", proposal, models=models, review=LOCAL
    )


LOCAL = "FSDP1 clipped by the norm of each rank's own part here; this clips by the norm of all"


def _is_alternative(site: Site) -> bool:
    """Whether the code is for models that are not FSDP's."""
    child: ast.AST = site.node
    for parent in site.module.table.ancestors(site.node):
        if isinstance(parent, ast.If) and child in parent.orelse:
            calls = [n.func for n in ast.walk(parent.test) if isinstance(n, ast.Call)]
            if any(isinstance(f, ast.Name) and f.id in {"isinstance", "hasattr"} for f in calls):
                return True
        child = parent
    return False


def _is_finite(norm_type: ast.expr | None, site: Site, study: Study) -> bool:
    """Whether the norm is certainly not the infinity norm."""
    if norm_type is None:
        return True
    value = study.literal(norm_type, site.module)
    return value is not None and isinstance(value.value, (int, float))
