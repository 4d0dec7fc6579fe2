"""Wrap with `fully_shard` inside `enable_wrap`.

## What changes
`enable_wrap(wrapper_cls=FSDP, ...)` gets `wrapper_cls=fully_shard` and FSDP2's arguments. `wrap(x)`
stays: it shards `x` with what the context was given, and outside of a context does nothing, as
before. With mixed precision the `wrap` of the whole model also gets its own policy, because only
roots cast their inputs.

What must be done around every single unit (`sync_module_states`, `param_init_fn`, policies, buffer
dtypes, ignored modules), arguments that `wrap` overrides and arguments that only the running
program knows take the run-time form: `wrapper_cls=shard` of the support module takes FSDP1's own
arguments, and parts of a model are wrapped with `is_root=False`.

## Why
Both functions are public, plain torch, and call whatever `wrapper_cls` is. `fully_shard` takes the
model in the same place as FSDP1's class, and parts are wrapped before the whole by construction.

## What stays for you
Contexts whose `wrapper_cls` is not written at the call, `wrap` handed on as a value, modules that
are wrapped twice other than by `wrap(wrap(m))`, which `fully_shard` refuses, and `wrap` calls without any `enable_wrap` in the given paths. All contexts and `wrap` calls of a project are
migrated together or not at all: a `wrap` runs in whichever context is open.

## Since torch
2.6

## References
- torch/distributed/fsdp/wrap.py
- https://docs.pytorch.org/docs/stable/distributed.fsdp.fully_shard.html
"""

import ast

from fsdp_migrate.families.wrapping import run_time, wrapping
from fsdp_migrate.families.wrapping.roles import Role, role
from fsdp_migrate.planning.context import Study
from fsdp_migrate.planning.model import Constructor, Decision, Site
from fsdp_migrate.planning.outcome import Outcome
from fsdp_migrate.planning.rule import Example, Keep, Rule
from fsdp_migrate.planning.shard_plan import ShardPlan, placement_problem, render_context

RULE = Rule(code="FSDP104", name="enable_wrap", handles=("enable_wrap", "wrap"))

EXAMPLES = [
    Example(
        title="one unit a layer, and the rest",
        before="""\
import torch
import torch.nn as nn
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP
from torch.distributed.fsdp import ShardingStrategy
from torch.distributed.fsdp.wrap import enable_wrap, wrap


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.inner = wrap(nn.Linear(4, 4))
        self.outer = nn.Linear(4, 4)


def build():
    with enable_wrap(
        wrapper_cls=FSDP,
        sharding_strategy=ShardingStrategy.SHARD_GRAD_OP,
        device_id=torch.cuda.current_device(),
    ):
        return wrap(Net())


model = build()
model.clip_grad_norm_(1.0)
""",
        after="""\
import torch
import torch.nn as nn
from torch.distributed.fsdp import fully_shard
from torch.distributed.fsdp.wrap import enable_wrap, wrap


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.inner = wrap(nn.Linear(4, 4))
        self.outer = nn.Linear(4, 4)


def build():
    with enable_wrap(
        wrapper_cls=fully_shard,
        reshard_after_forward=False,
    ):
        return wrap(Net())


model = build()
torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
""",
    ),
    Example(
        title="only the whole model casts its inputs",
        before="""\
import torch
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP
from torch.distributed.fsdp import MixedPrecision
from torch.distributed.fsdp.wrap import enable_wrap, wrap

from net import Net

with enable_wrap(
    wrapper_cls=FSDP, mixed_precision=MixedPrecision(param_dtype=torch.bfloat16)
):
    model = wrap(Net())
""",
        after="""\
from dataclasses import replace

import torch
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
from torch.distributed.fsdp.wrap import enable_wrap, wrap

from net import Net

mp_policy = MixedPrecisionPolicy(param_dtype=torch.bfloat16, cast_forward_inputs=False)
# Like FSDP1, only the root casts its inputs to param_dtype.
root_mp_policy = replace(mp_policy, cast_forward_inputs=True)
with enable_wrap(
    wrapper_cls=fully_shard, mp_policy=mp_policy
):
    model = wrap(Net(), mp_policy=root_mp_policy)
""",
        files={
            "net.py": (
                """\
import torch.nn as nn
from torch.distributed.fsdp.wrap import wrap


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.Sequential(*(wrap(nn.Linear(4, 4)) for _ in range(3)))
""",
                """\
import torch.nn as nn
from torch.distributed.fsdp.wrap import wrap


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.Sequential(*(wrap(nn.Linear(4, 4)) for _ in range(3)))
""",
            ),
        },
    ),
    Example(
        title="arguments that act on every unit",
        before="""\
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP
from torch.distributed.fsdp.wrap import enable_wrap, wrap


def build(model):
    with enable_wrap(wrapper_cls=FSDP, sync_module_states=True):
        for index, layer in enumerate(model.layers):
            model.layers[index] = wrap(layer)
        return wrap(model)
""",
        after="""\
from torch.distributed.fsdp.wrap import enable_wrap, wrap

from fsdp2_support import shard


def build(model):
    with enable_wrap(wrapper_cls=shard, sync_module_states=True):
        for index, layer in enumerate(model.layers):
            model.layers[index] = wrap(layer)
        return wrap(model)
""",
        support=("shard",),
    ),
    Example(
        title="arguments from elsewhere, one of them overridden",
        before="""\
import torch
import torch.nn as nn
from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import checkpoint_wrapper
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP
from torch.distributed.fsdp import MixedPrecision
from torch.distributed.fsdp.wrap import enable_wrap, wrap

from layers import Block, Head


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.block = wrap(checkpoint_wrapper(Block()))
        self.head = wrap(Head(), mixed_precision=None)


def build(**settings):
    settings["mixed_precision"] = MixedPrecision(param_dtype=torch.bfloat16)
    with enable_wrap(wrapper_cls=FSDP, **settings):
        model = Net()
        return wrap(model)
""",
        after="""\
import torch
import torch.nn as nn
from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import checkpoint_wrapper
from torch.distributed.fsdp.wrap import enable_wrap, wrap

from layers import Block, Head

from fsdp2_support import MixedPrecision, shard


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.block = wrap(checkpoint_wrapper(Block()), is_root=False)
        self.head = wrap(Head(), mixed_precision=None)


def build(**settings):
    settings["mixed_precision"] = MixedPrecision(param_dtype=torch.bfloat16)
    with enable_wrap(wrapper_cls=shard, **settings):
        model = Net()
        return wrap(model)
""",
        support=(
            "MixedPrecision",
            "shard",
        ),
    ),
    Example(
        title="a part or a whole model, which only the running program knows",
        before="""\
import torch
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP
from torch.distributed.fsdp import MixedPrecision
from torch.distributed.fsdp.wrap import enable_wrap, wrap


def shard_all(modules):
    bf16 = MixedPrecision(param_dtype=torch.bfloat16)
    with enable_wrap(wrapper_cls=FSDP, mixed_precision=bf16):
        for module in modules:
            for name, child in module.named_children():
                setattr(module, name, shard_one(child))
            shard_one(module)


def shard_one(module):
    return wrap(module)
""",
        after="""\
import torch
from torch.distributed.fsdp.wrap import enable_wrap, wrap

from fsdp2_support import MixedPrecision, shard


def shard_all(modules):
    bf16 = MixedPrecision(param_dtype=torch.bfloat16)
    with enable_wrap(wrapper_cls=shard, mixed_precision=bf16):
        for module in modules:
            for name, child in module.named_children():
                setattr(module, name, shard_one(child))
            shard_one(module)


def shard_one(module):
    # TODO(fsdp-migrate FSDP104): If this is a part of a model that is sharded later, pass is_root=False: only roots cast their inputs.
    return wrap(module)
""",
        outcome=Outcome.REVIEW,
        support=(
            "MixedPrecision",
            "shard",
        ),
    ),
    Example(
        title="a context without a wrap in the given paths",
        before="""\
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP
from torch.distributed.fsdp.wrap import enable_wrap

from somewhere import Net

with enable_wrap(wrapper_cls=FSDP):
    model = Net()
""",
        after="""\
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP
from torch.distributed.fsdp.wrap import enable_wrap

from somewhere import Net

# TODO(fsdp-migrate FSDP104): No wrap in the given paths runs in it. Give the path that calls wrap as well.
with enable_wrap(wrapper_cls=FSDP):
    model = Net()
""",
        outcome=Outcome.LEFT,
    ),
    Example(
        title="a part that is wrapped twice",
        before="""\
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP
from torch.distributed.fsdp.wrap import enable_wrap, wrap


def build(net, settings):
    with enable_wrap(wrapper_cls=FSDP, **settings):
        net.encoder = wrap(wrap(net.encoder))
        return wrap(net)
""",
        after="""\
from torch.distributed.fsdp.wrap import enable_wrap, wrap

from fsdp2_support import shard


def build(net, settings):
    with enable_wrap(wrapper_cls=shard, **settings):
        net.encoder = wrap(net.encoder, is_root=False)
        return wrap(net)
""",
        support=("shard",),
    ),
]

KEEP = [
    Keep(
        title="two wrappers of the project's own",
        source="""\
from wrappers import enable_wrap, wrap

with enable_wrap(wrapper_cls=Counted):
    model = wrap(wrap(net))
""",
    ),
    Keep(
        title="contexts that wrap with fully_shard",
        source="""\
import torch.nn as nn
from torch.distributed.fsdp import fully_shard
from torch.distributed.fsdp.wrap import enable_wrap, wrap

with enable_wrap(wrapper_cls=fully_shard, reshard_after_forward=False):
    model = wrap(nn.Sequential(wrap(nn.Linear(4, 4)), nn.Linear(4, 4)))
""",
    ),
    Keep(
        title="contexts of another wrapper",
        source="""\
import torch.nn as nn
from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import checkpoint_wrapper
from torch.distributed.fsdp.wrap import enable_wrap, wrap

with enable_wrap(wrapper_cls=checkpoint_wrapper):
    model = nn.Sequential(wrap(nn.Linear(4, 4)), wrap(nn.Linear(4, 4)))
""",
    ),
    Keep(
        title="fairscale's functions",
        source="""\
from fairscale.nn import FullyShardedDataParallel as FSDP
from fairscale.nn import enable_wrap, wrap

with enable_wrap(wrapper_cls=FSDP, flatten_parameters=True):
    model = wrap(Net())
""",
    ),
    Keep(
        title="wrapping of other things",
        source="""\
from textwrap import wrap


def enable_wrap(wrapper_cls):
    return wrapper_cls


lines = wrap("a long text", enable_wrap(wrapper_cls=20))
""",
    ),
    Keep(
        title="no context says what wrap makes",
        source="""\
import torch.nn as nn
from torch.distributed.fsdp.wrap import wrap

layer = wrap(nn.Linear(4, 4))
""",
        left=True,
    ),
    Keep(
        title="the class comes from outside",
        source="""\
from torch.distributed.fsdp.wrap import enable_wrap, wrap


def build(model, settings):
    with enable_wrap(**settings):
        return wrap(model)
""",
        left=True,
    ),
    Keep(
        title="a function of the project's own that wraps with FSDP",
        source="""\
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP
from torch.distributed.fsdp.wrap import enable_wrap, wrap


def shard(module):
    return FSDP(module)


with enable_wrap(wrapper_cls=shard):
    model = wrap(Net())
""",
        left=True,
    ),
    Keep(
        title="a module that is wrapped twice",
        source="""\
import torch.nn as nn
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP
from torch.distributed.fsdp.wrap import enable_wrap, wrap

with enable_wrap(wrapper_cls=FSDP):
    model = wrap(wrap(nn.Linear(4, 4)), forward_prefetch=True)
""",
        left=True,
    ),
    Keep(
        title="a part that is wrapped twice, with arguments from elsewhere",
        source="""\
import torch.nn as nn
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP
from torch.distributed.fsdp.wrap import enable_wrap, wrap


def build(net, settings):
    with enable_wrap(wrapper_cls=FSDP, **settings):
        net.head = wrap(net.head)
        net.head = wrap(net.head)
        return wrap(net)
""",
        left=True,
    ),
    Keep(
        title="wrap is handed on",
        source="""\
import torch.nn as nn
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP
from torch.distributed.fsdp.wrap import enable_wrap, wrap

with enable_wrap(wrapper_cls=FSDP):
    model = wrap(nn.Sequential(*map(wrap, layers)))
""",
        left=True,
    ),
    Keep(
        title="two wrappers, and a wrap that either may reach",
        source="""\
import torch.nn as nn
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP
from torch.distributed.fsdp.wrap import enable_wrap, wrap
from torch.nn.parallel import DistributedDataParallel


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = wrap(nn.Linear(4, 4))


with enable_wrap(wrapper_cls=FSDP):
    sharded = wrap(Net())
with enable_wrap(wrapper_cls=DistributedDataParallel):
    copied = Net()
""",
        left=True,
    ),
    Keep(
        title="an argument that FSDP1 does not have",
        source="""\
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP
from torch.distributed.fsdp.wrap import enable_wrap, wrap

with enable_wrap(wrapper_cls=FSDP, flatten_parameters=True):
    model = wrap(Net())
""",
        left=True,
    ),
]

# What fully_shard takes once for all units; the others need something done around each unit.
SHARED = frozenset(
    (
        *("process_group", "device_mesh", "sharding_strategy", "cpu_offload", "mixed_precision"),
        *("device_id", "backward_prefetch", "forward_prefetch", "limit_all_gathers"),
        "use_orig_params",
    )
)


def decide(site: Site, study: Study) -> Decision:
    constructor = study.constructors.get(site.node)
    if constructor is None:
        return _outside(site, study)
    if constructor.is_context:
        return _context(site, constructor, study)
    return _wrap(site, constructor, study)


def _outside(site: Site, study: Study) -> Decision:
    """A name that is not called, or of contexts that cannot be told."""
    reason, help = study.wrapping.problem
    if reason:
        return _left(site, reason, help, study)
    if site.construct == "enable_wrap" or study.wrapping.enabled:
        return _left(
            site,
            f"the function {site.construct} is handed on as a value",
            "call it directly",
            study,
        )
    return study.left(
        site,
        RULE.code,
        "no enable_wrap in the given paths says what it wraps with",
        "give the path that calls enable_wrap as well; where a framework calls it, keep wrap and "
        "change the framework's strategy",
    )


def _left(site: Site, reason: str, help: str, study: Study, *, final: bool = False) -> Decision:
    models = frozenset(study.constructors.values())
    return study.left(site, RULE.code, reason, help, models=models, quiet=True, final=final)


def _wrap(site: Site, constructor: Constructor, study: Study) -> Decision:
    if constructor.is_wrong:
        return _left(
            site,
            f"this call cannot be read: {constructor.problem}",
            "correct it",
            study,
            final=True,
        )
    if wrapping.is_outer_of_two(constructor, study):
        return run_time.without_outer(site, constructor, study)
    if wrapping.is_wrapped_before(constructor, study):
        return _left(site, *wrapping.TWICE, study, final=True)
    if study.wrapping.contexts[constructor] == (constructor,):
        study.unwritten.append(constructor)
        reason = "its own arguments go before those of enable_wrap"
        return _left(site, reason, "write them as fully_shard's", study)
    return study.rewritten(
        site,
        RULE.code,
        "kept: it shards with what enable_wrap is given",
        models=study.wrapping.constructors,
    )


def _context(site: Site, constructor: Constructor, study: Study) -> Decision:
    if constructor.problem:
        return _left(
            site,
            f"the arguments of FSDP cannot be read: {constructor.problem}",
            "write them out at the call",
            study,
            final=constructor.is_wrong,
        )
    plan = study.plans[constructor]
    roots, problem = _roots(plan, study)
    problem = problem or _problem(plan)
    if problem:
        return _left(site, problem, "write wrapper_cls=fully_shard and its arguments", study)
    render_context(plan, [(wrap.module, wrap.call) for wrap in roots])
    models = study.wrapping.constructors
    return study.rewritten(
        site, RULE.code, "kept, and wraps with fully_shard", plan.proposal, models=models
    )


def _problem(plan: ShardPlan) -> str:
    """Why the context's arguments cannot be said once for all units."""
    constructor = plan.constructor
    for name, value in constructor.arguments.items():
        off = isinstance(value, ast.Constant) and not value.value
        if name not in SHARED and not off:
            return f"{name} asks for something to be done around every unit"
    once = (plan.targets, plan.walk, plan.before, plan.after, plan.finish, plan.batch_norm)
    if any(once):
        return "something is to be done around every unit"
    statement = constructor.statement
    later = isinstance(statement, (ast.With, ast.AsyncWith)) and not any(
        node is constructor.call for node in ast.walk(statement.items[0])
    )
    if (plan.setup or plan.precision) and (later or placement_problem(constructor)):
        return "statements are needed in front of the context, and cannot stand there"
    return ""


def _roots(plan: ShardPlan, study: Study) -> tuple[list[Constructor], str]:
    """The ``wrap`` calls that need a policy of their own, and why that cannot be told."""
    if plan.precision is None or plan.precision.same:
        return [], ""
    found = study.wrapping
    concerned = [w for w in found.contexts if plan.constructor in found.may_be_in(w)]
    places = {wrap: role(wrap, study) for wrap in concerned}
    if Role.UNKNOWN in places.values():
        return (
            [],
            "which wrap makes a whole model, whose inputs are cast, is only known at run time",
        )
    roots = [wrap for wrap, place in places.items() if place is Role.ROOT]
    if len(roots) == len(places):
        return [], ""
    if any(found.around.get(root) is not plan.constructor for root in roots):
        return [], "the model is wrapped where the policy for its root cannot be written"
    return roots, ""
