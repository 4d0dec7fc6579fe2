"""Write an auto wrap policy out as a loop over the modules it picks.

## What changes
The modules that FSDP1's policy would have wrapped become units by a loop that shards children
before parents: `isinstance` tests for class policies (`transformer_auto_wrap_policy`,
`ModuleWrapPolicy`), the predicate for `lambda_auto_wrap_policy` and `CustomPolicy`, all of them for
`_or_policy`. A policy made in another function or file is converted where it is made. Policies that
count parameters, or that look at what is wrapped already, are walked by a support function with
FSDP1's arithmetic and order. Where units may be lists of modules that have a forward, `fully_shard`
is given `[module]`: it refuses them otherwise before torch 2.12. A `CustomPolicy` that may return arguments for single modules is
handed on to the support function `shard`.

## Why
`fully_shard` shards the module it is given and nothing else. Too few units gather the whole model
at once; units in the wrong order fail (`Invariant encountered`).

## What stays for you
Policies whose origin is outside the given paths: they are walked, and marked for review.

## Since torch
2.6

## References
- torch/distributed/fsdp/wrap.py
- https://github.com/pytorch/torchtitan/blob/main/torchtitan/models/llama3/parallelize.py
"""

from fsdp_migrate.families.wrapping import policies
from fsdp_migrate.planning.context import Study
from fsdp_migrate.planning.model import Constructor, Decision, Site
from fsdp_migrate.planning.outcome import Outcome
from fsdp_migrate.planning.rule import Example, Keep, Rule

RULE = Rule(
    code="FSDP102",
    name="auto_wrap_policy",
    handles=(
        "FullyShardedDataParallel(auto_wrap_policy=)",
        "transformer_auto_wrap_policy",
        "lambda_auto_wrap_policy",
        "size_based_auto_wrap_policy",
        "always_wrap_policy",
        "_or_policy",
        "_module_wrap_policy",
        "ModuleWrapPolicy",
        "CustomPolicy",
    ),
)

EXAMPLES = [
    Example(
        title="a transformer policy",
        before="""\
import functools

from torch.distributed.fsdp import FullyShardedDataParallel as FSDP
from torch.distributed.fsdp.wrap import transformer_auto_wrap_policy

from layers import Block, Expert


def shard(model):
    policy = functools.partial(
        transformer_auto_wrap_policy,
        transformer_layer_cls={Block, Expert},  # both kinds of layer
    )
    model = FSDP(model, auto_wrap_policy=policy)
    return model
""",
        after="""\
from torch.distributed.fsdp import fully_shard

from layers import Block, Expert


def shard(model):
    for module in reversed(list(model.modules())):
        if module is not model and isinstance(module, (Block, Expert)):
            fully_shard(module)
    fully_shard(model)
    return model
""",
    ),
    Example(
        title="a lambda policy that closes over the model",
        before="""\
from functools import partial

from torch.distributed.fsdp import FullyShardedDataParallel as FSDP
from torch.distributed.fsdp.wrap import lambda_auto_wrap_policy


def shard(model):
    layers = list(model.layers)
    return FSDP(
        model,
        auto_wrap_policy=partial(lambda_auto_wrap_policy, lambda_fn=lambda m: m in layers),
    )
""",
        after="""\
from torch.distributed.fsdp import fully_shard


def shard(model):
    layers = list(model.layers)
    units = [m for m in model.modules() if m is not model and m in layers]
    for m in reversed(units):
        fully_shard(m)
    return fully_shard(model)
""",
    ),
    Example(
        title="several policies joined",
        before="""\
from functools import partial

from torch.distributed.fsdp import FullyShardedDataParallel as FSDP
from torch.distributed.fsdp.wrap import (
    _or_policy,
    lambda_auto_wrap_policy,
    transformer_auto_wrap_policy,
)

from layers import Block


def is_trainable_leaf(module):
    return not list(module.children()) and any(p.requires_grad for p in module.parameters())


def shard(model):
    blocks = partial(transformer_auto_wrap_policy, transformer_layer_cls={Block})
    leaves = partial(lambda_auto_wrap_policy, lambda_fn=is_trainable_leaf)
    policy = partial(_or_policy, policies=[blocks, leaves])
    model = FSDP(model, auto_wrap_policy=policy)
    return model
""",
        after="""\
from torch.distributed.fsdp import fully_shard

from layers import Block


def is_trainable_leaf(module):
    return not list(module.children()) and any(p.requires_grad for p in module.parameters())


def shard(model):
    def blocks(module):
        return isinstance(module, Block)

    leaves = is_trainable_leaf
    units = [
        module
        for module in model.modules()
        if module is not model and (blocks(module) or leaves(module))
    ]
    for module in reversed(units):
        fully_shard(module)
    fully_shard(model)
    return model
""",
    ),
    Example(
        title="a policy that counts parameters",
        before="""\
import functools

from torch.distributed.fsdp import FullyShardedDataParallel as FSDP
from torch.distributed.fsdp.wrap import size_based_auto_wrap_policy



def shard(model):
    policy = functools.partial(size_based_auto_wrap_policy, min_num_params=20_000)
    model = FSDP(model, auto_wrap_policy=policy)
    return model
""",
        after="""\
import functools

from torch.distributed.fsdp import fully_shard
from torch.distributed.fsdp.wrap import size_based_auto_wrap_policy

from fsdp2_support import shard_by_policy



def shard(model):
    policy = functools.partial(size_based_auto_wrap_policy, min_num_params=20_000)
    shard_by_policy(model, policy)
    fully_shard(model)
    return model
""",
        support=("shard_by_policy",),
    ),
    Example(
        title="a policy from another file",
        before="""\
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP

from policies import wrap_policy


def shard(model):
    return FSDP(model, auto_wrap_policy=wrap_policy())
""",
        after="""\
from torch.distributed.fsdp import fully_shard

from policies import wrap_policy


def shard(model):
    wrap_classes = wrap_policy()
    for module in reversed(list(model.modules())):
        if module is not model and isinstance(module, wrap_classes):
            fully_shard(module)
    return fully_shard(model)
""",
        files={
            "policies.py": (
                """\
from torch.distributed.fsdp.wrap import ModuleWrapPolicy

from layers import Block


def wrap_policy():
    return ModuleWrapPolicy({Block})
""",
                """\
from layers import Block


def wrap_policy():
    return (Block,)
""",
            ),
        },
    ),
    Example(
        title="a policy that nobody passes here",
        before="""\
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP


def shard(model, policy):
    return FSDP(model, auto_wrap_policy=policy)
""",
        after="""\
from torch.distributed.fsdp import fully_shard

from fsdp2_support import shard_by_policy


def shard(model, policy):
    # TODO(fsdp-migrate FSDP102): The policy cannot be followed (policy is a parameter of shard, which nothing here calls); shard_by_policy takes any callable or None.
    shard_by_policy(model, policy)
    return fully_shard(model)
""",
        outcome=Outcome.REVIEW,
        support=("shard_by_policy",),
    ),
    Example(
        title="a policy from a class of the project's own",
        before="""\
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP


class Policy:
    def __call__(self, module, recurse, nonwrapped_numel):
        return recurse


model = FSDP(model, auto_wrap_policy=Policy())
""",
        after="""\
from fsdp2_support import shard


class Policy:
    def __call__(self, module, recurse, nonwrapped_numel):
        return recurse


model = shard(model, auto_wrap_policy=Policy())
""",
        support=("shard",),
    ),
    Example(
        title="a custom policy with arguments for single modules",
        before="""\
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP
from torch.distributed.fsdp.wrap import CustomPolicy


def choose(module):
    return {"sharding_strategy": module.strategy}


model = FSDP(model, auto_wrap_policy=CustomPolicy(choose))
""",
        after="""\
from torch.distributed.fsdp.wrap import CustomPolicy

from fsdp2_support import shard


def choose(module):
    return {"sharding_strategy": module.strategy}


model = shard(model, auto_wrap_policy=CustomPolicy(choose))
""",
        support=("shard",),
    ),
    Example(
        title="a custom policy whose answers come from elsewhere",
        before="""\
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP
from torch.distributed.fsdp.wrap import CustomPolicy

from settings import overrides

model = FSDP(model, auto_wrap_policy=CustomPolicy(lambda m: overrides.get(type(m), False)))
""",
        after="""\
from torch.distributed.fsdp.wrap import CustomPolicy

from settings import overrides

from fsdp2_support import shard

model = shard(model, auto_wrap_policy=CustomPolicy(lambda m: overrides.get(type(m), False)))
""",
        support=("shard",),
    ),
    Example(
        title="a predicate that asks what is wrapped already",
        before="""\
from functools import partial

from torch.distributed.fsdp import FullyShardedDataParallel as FSDP
from torch.distributed.fsdp.wrap import lambda_auto_wrap_policy


def has_no_units(module):
    return not any(isinstance(m, FSDP) for m in module.modules())


def build(net):
    return FSDP(net, auto_wrap_policy=partial(lambda_auto_wrap_policy, lambda_fn=has_no_units))
""",
        after="""\
from functools import partial

from torch.distributed.fsdp import FSDPModule, fully_shard
from torch.distributed.fsdp.wrap import lambda_auto_wrap_policy

from fsdp2_support import shard_by_policy


def has_no_units(module):
    return not any(isinstance(m, FSDPModule) for m in module.modules())


def build(net):
    shard_by_policy(net, partial(lambda_auto_wrap_policy, lambda_fn=has_no_units))
    return fully_shard(net)
""",
        support=("shard_by_policy",),
    ),
    Example(
        title="the default policies of torch",
        before="""\
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP
from torch.distributed.fsdp.wrap import always_wrap_policy, size_based_auto_wrap_policy


def build(encoder, decoder):
    encoder = FSDP(encoder, auto_wrap_policy=size_based_auto_wrap_policy)
    decoder = FSDP(decoder, auto_wrap_policy=always_wrap_policy)
    return encoder, decoder
""",
        after="""\
from torch.distributed.fsdp import fully_shard
from torch.distributed.fsdp.wrap import size_based_auto_wrap_policy
import torch.nn as nn

from fsdp2_support import shard_by_policy


def build(encoder, decoder):
    shard_by_policy(encoder, size_based_auto_wrap_policy)
    fully_shard(encoder)
    for module in reversed(list(decoder.modules())):
        if module is not decoder and not isinstance(module, (nn.ModuleList, nn.ModuleDict)):
            fully_shard(module)
    fully_shard(decoder)
    return encoder, decoder
""",
        support=("shard_by_policy",),
    ),
    Example(
        title="a function of the project that counts parameters",
        before="""\
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP


def is_large(module, recurse, nonwrapped_numel):
    return recurse or nonwrapped_numel > 1_000_000


def build(net):
    return FSDP(net, auto_wrap_policy=is_large)
""",
        after="""\
from torch.distributed.fsdp import fully_shard

from fsdp2_support import shard_by_policy


def is_large(module, recurse, nonwrapped_numel):
    return recurse or nonwrapped_numel > 1_000_000


def build(net):
    shard_by_policy(net, is_large)
    return fully_shard(net)
""",
        support=("shard_by_policy",),
    ),
    Example(
        title="classes that the model's library names",
        before="""\
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP
from torch.distributed.fsdp.wrap import ModuleWrapPolicy
from transformers.trainer_pt_utils import get_module_class_from_name


def build(net):
    names = net._no_split_modules
    policy = ModuleWrapPolicy({get_module_class_from_name(net, name) for name in names})
    return FSDP(net, auto_wrap_policy=policy)
""",
        after="""\
from torch.distributed.fsdp import fully_shard
from transformers.trainer_pt_utils import get_module_class_from_name


def build(net):
    names = net._no_split_modules
    wrap_classes = tuple({get_module_class_from_name(net, name) for name in names})
    for module in reversed(list(net.modules())):
        if module is not net and isinstance(module, wrap_classes):
            fully_shard(module)
    return fully_shard(net)
""",
    ),
    Example(
        title="classes, and a custom policy that says yes or no",
        before="""\
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP
from torch.distributed.fsdp.wrap import CustomPolicy, ModuleWrapPolicy

from layers import Block, Head


def build(encoder, decoder):
    encoder = FSDP(encoder, auto_wrap_policy=ModuleWrapPolicy([Block, Head]))
    decoder = FSDP(decoder, auto_wrap_policy=CustomPolicy(lambda m: isinstance(m, Block)))
    return encoder, decoder
""",
        after="""\
from torch.distributed.fsdp import fully_shard

from layers import Block, Head


def build(encoder, decoder):
    for module in reversed(list(encoder.modules())):
        if module is not encoder and isinstance(module, (Block, Head)):
            fully_shard(module)
    fully_shard(encoder)
    units = [m for m in decoder.modules() if m is not decoder and isinstance(m, Block)]
    for m in reversed(units):
        fully_shard(m)
    fully_shard(decoder)
    return encoder, decoder
""",
    ),
    Example(
        title="lists of modules that have a forward",
        before="""\
from torch import nn
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP
from torch.distributed.fsdp.wrap import ModuleWrapPolicy


class Stage(nn.ModuleList):
    def forward(self, x):
        for block in self:
            x = block(x)
        return x


def shard(model):
    return FSDP(model, auto_wrap_policy=ModuleWrapPolicy({Stage}))
""",
        after="""\
from torch import nn
from torch.distributed.fsdp import fully_shard


class Stage(nn.ModuleList):
    def forward(self, x):
        for block in self:
            x = block(x)
        return x


def shard(model):
    for module in reversed(list(model.modules())):
        if module is not model and isinstance(module, Stage):
            fully_shard([module])
    return fully_shard(model)
""",
    ),
    Example(
        title="a policy that a model may get in a way that is not seen",
        before="""\
from functools import partial

from torch.distributed.fsdp import FullyShardedDataParallel as FSDP
from torch.distributed.fsdp.wrap import _module_wrap_policy
from towers import Block


class Model:
    def policy(self):
        return partial(_module_wrap_policy, module_classes={Block})


def build(net, config):
    return FSDP(net, auto_wrap_policy=config.model.policy())
""",
        after="""\
from functools import partial

from torch.distributed.fsdp import fully_shard
from torch.distributed.fsdp.wrap import _module_wrap_policy
from towers import Block

from fsdp2_support import shard_by_policy


class Model:
    def policy(self):
        # TODO(fsdp-migrate FSDP102): No FSDP constructor in the given paths uses this policy. Keep it if a model gets it in a way that is not seen here, or delete it.
        return partial(_module_wrap_policy, module_classes={Block})


def build(net, config):
    # TODO(fsdp-migrate FSDP102): The policy cannot be followed (policy() is not defined in these paths); shard_by_policy takes any callable or None.
    shard_by_policy(net, config.model.policy())
    return fully_shard(net)
""",
        outcome=Outcome.LEFT,
        support=("shard_by_policy",),
    ),
]

KEEP = [
    Keep(
        title="a policy of the project's own",
        source="""\
from functools import partial

from policies import module_wrap_policy


def policy(classes):
    return partial(module_wrap_policy, module_classes=classes)
""",
    ),
    Keep(
        title="lists of modules that have a forward, with FSDP2",
        source="""\
from torch import nn
from torch.distributed.fsdp import fully_shard


class Stage(nn.ModuleList):
    def forward(self, x):
        for block in self:
            x = block(x)
        return x


def shard(model):
    for module in model.stages:
        fully_shard([module])
    return fully_shard(model)
""",
    ),
    Keep(
        title="a policy object that serves activation checkpointing",
        source="""\
from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import (
    apply_activation_checkpointing,
)
from torch.distributed.fsdp.wrap import ModuleWrapPolicy

from layers import Block

apply_activation_checkpointing(model, auto_wrap_policy=ModuleWrapPolicy({Block}))
""",
    ),
    Keep(
        title="fairscale's wrapping",
        source="""\
from fairscale.nn.wrap import auto_wrap, enable_wrap

with enable_wrap(wrapper_cls=None):
    model = auto_wrap(model)
""",
    ),
    Keep(
        title="FSDP2's own loop",
        source="""\
from torch.distributed.fsdp import fully_shard

for block in model.blocks:
    fully_shard(block)
fully_shard(model)
""",
    ),
    Keep(
        title="a set of classes is no policy",
        source="""\
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP

from layers import Block

wrap_classes = {Block}


def shard(model):
    return FSDP(model, auto_wrap_policy=wrap_classes)
""",
        left=True,
    ),
    Keep(
        title="a list of classes is no policy either",
        source="""\
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP

from layers import Block

model = FSDP(model, auto_wrap_policy=[Block])
""",
        left=True,
    ),
    Keep(
        title="a function of the project's own of that name",
        source="""\
def transformer_auto_wrap_policy(module, recurse, nonwrapped_numel):
    return recurse or module.is_block


policy = transformer_auto_wrap_policy
""",
    ),
    Keep(
        title="torch_xla's policy",
        source="""\
import functools

from torch_xla.distributed.fsdp.wrap import transformer_auto_wrap_policy

policy = functools.partial(transformer_auto_wrap_policy, transformer_layer_cls={Block})
""",
    ),
    Keep(
        title="a policy by name for another library",
        source="""\
arguments = TrainingArguments(fsdp="full_shard auto_wrap", fsdp_config={"min_num_params": 100})
""",
    ),
    Keep(
        title="a predicate that decides what is compiled",
        source="""\
def is_block(module):
    return isinstance(module, Block)


for module in model.modules():
    if is_block(module):
        module.compile()
""",
    ),
    Keep(
        title="a dictionary of policies as a policy",
        source="""\
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP


def build(net):
    return FSDP(net, auto_wrap_policy={Block: True})
""",
        left=True,
    ),
    Keep(
        title="fairscale's policy by size",
        source="""\
from fairscale.nn.wrap import auto_wrap, default_auto_wrap_policy

model = auto_wrap(model, auto_wrap_policy=default_auto_wrap_policy)
""",
    ),
    Keep(
        title="a module list of ones own",
        source="""\
units = [m for m in model.modules() if getattr(m, "always_wrap_policy", False)]
""",
    ),
    Keep(
        title="another framework's policy by size",
        source="""\
from composer.distributed import prepare_fsdp_module

prepare_fsdp_module(model, min_num_params=1_000_000, sharding_strategy="FULL_SHARD")
""",
    ),
    Keep(
        title="a policy of DeepSpeed's",
        source="""\
from deepspeed.runtime.zero import policies

policy = policies.CustomPolicy(lambda m: isinstance(m, Block))
""",
    ),
]


def decide(site: Site, study: Study) -> Decision:
    if site.construct == RULE.handles[0]:
        return _argument(site, study)
    return _origin(site, study)


def _argument(site: Site, study: Study) -> Decision:
    plan, value, _ = study.argument(site)
    try:
        use = policies.use(value, plan, study)
    except policies.Unreadable as problem:
        wrong = isinstance(problem, policies.NoPolicy)
        help = "write the loop over the modules by hand"
        return study.left(site, RULE.code, str(problem), help, final=wrong)
    plan.setup.extend(use.setup)
    plan.targets, plan.walk = use.targets, use.walk
    return study.rewritten(site, RULE.code, use.message, review=use.review)


def _origin(site: Site, study: Study) -> Decision:
    conversion = study.conversions.get(site.node)
    origin = policies.import_of(site.node, site.module)
    if conversion is None and origin is not None:
        conversion = study.conversions.get(origin)
    if conversion is None:
        help = "delete it, or migrate the code that uses it together with it"
        if any(_is_unknown(c, study) for c in study.constructors.values()):
            help = "keep it if a model gets it in a way that is not seen here, or delete it"
        return study.left(
            site,
            RULE.code,
            study.derived or "no FSDP constructor in the given paths uses this policy",
            help,
        )
    proposal = study.proposal()
    if conversion.new is not None:
        policies.convert(site, conversion.new, proposal)
    models = conversion.constructors
    return study.rewritten(site, RULE.code, conversion.message, proposal, models=models)


def _is_unknown(constructor: Constructor, study: Study) -> bool:
    """Whether a model is wrapped by a policy that may be any."""
    policy = constructor.arguments.get("auto_wrap_policy")
    if policy is None:
        return constructor.is_open
    return bool(study.unknown(study.values(policy, constructor.module)))
