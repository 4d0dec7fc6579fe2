"""FSDP1 names that no rule knows.

## What changes
Nothing: the site is reported and marked, and holds its model's migration back where it would go
wrong without FSDP1.

## Why
Private modules, subclasses of the wrapper, the class itself used as a value: what such code means
for FSDP2 cannot be read off the name. It is counted all the same, so that no reference to FSDP1 is
passed over in silence.

## What stays for you
Migrate the place by hand, or write a rule for it (`rule-paths` in the configuration names the
directory of your own rules) and run again.

## Since torch
2.6

## References
- https://docs.pytorch.org/docs/stable/distributed.fsdp.fully_shard.html
"""

import ast

from fsdp_migrate.fsdp1 import FSDP
from fsdp_migrate.rule import Example, Keep, Rule
from fsdp_migrate.sites import COMMAND, Site
from fsdp_migrate.study import Decision, Study

RULE = Rule(code="FSDP499", name="no_rule", handles=("*",), since="2.4")
EXAMPLES: list[Example] = []

KEEP = [
    Keep(
        title="FSDP1's private modules",
        source="""\
from torch.distributed.fsdp._runtime_utils import _lazy_init


def prepare(model):
    _lazy_init(model, model)
""",
        left=True,
    ),
    Keep(
        title="a subclass of the wrapper",
        source="""\
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP

class Wrapped(FSDP):
    def state_dict(self):
        return super().state_dict()
""",
        left=True,
    ),
    Keep(
        title="the class handed on as a value",
        source="""\
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP

wrappers = {"fsdp": FSDP}
""",
        left=True,
    ),
    Keep(
        title="a method of FSDP1 that is replaced",
        source="""\
import torch
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP

FSDP._auto_wrap = custom_auto_wrap


def step(net):
    model = FSDP(net)
    return model.clip_grad_norm_(1.0)
""",
        left=True,
    ),
    Keep(
        title="a method that is called on the class",
        source="""\
import torch
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP


def save(net, path):
    model = FSDP(net)
    torch.save(FSDP.state_dict(model), path)
""",
        left=True,
    ),
    Keep(
        title="a method with a rule of its own that is replaced",
        source="""\
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP

FSDP.clip_grad_norm_ = clip_by_layer


def step(net):
    model = FSDP(net)
    return model.clip_grad_norm_(1.0)
""",
        left=True,
    ),
    Keep(
        title="a static that is looked up by name",
        source="""\
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP


def largest(net, gather):
    model = FSDP(net)
    with getattr(FSDP, gather)(model):
        return max(p.abs().max() for p in model.parameters())
""",
        left=True,
    ),
    Keep(
        title="a method that is taken from the class",
        source="""\
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP


def accumulate(net, pick):
    model = FSDP(net)
    with pick(FSDP.no_sync)(model):
        model(1).backward()
""",
        left=True,
    ),
]


HANDLES = (
    "go over the parameters instead; to free or gather a unit, call reshard() or unshard() of the "
    "module, which do no harm to one that is replicated"
)
# What to use in place of an attribute that FSDP2 models have not.
INSTEAD = {
    "_handle": HANDLES,
    "_handles": HANDLES,
    "_all_handles": HANDLES,
    "_has_params": "ask isinstance(module, FSDPModule), and whether the unit has parameters",
    "compute_device": "keep the device that the model is sharded on, or ask the mesh for its type",
    "sharding_strategy": "keep the setting, or ask the mesh of a parameter: one rank in its last "
    "dimension means NO_SHARD, two dimensions otherwise mean hybrid sharding",
    "training_state": "keep a flag of the project's own",
}


def decide(site: Site, study: Study) -> Decision:
    if isinstance(getattr(site.reference, "ctx", None), ast.Store):
        return study.left(
            site,
            RULE.code,
            f"{ast.unparse(site.reference)} is replaced, which a migrated model would not feel",
            "do what it is replaced for on the FSDP2 model, or drop it",
            models=study.constructors.values(),
            quiet=True,
        )
    if site.construct == COMMAND:
        return _command(site, study)
    if site.construct.startswith("unbound("):
        return _unbound(site, study)
    asked = site.module.table.parents[site.node]
    if isinstance(asked, ast.Call) and getattr(asked.func, "id", "") == "getattr":
        return study.left(
            site,
            RULE.code,
            "what is looked up on FSDP1's class passes over an FSDP2 model without an error",
            "spell it out, and run again",
            models=study.constructors.values(),
            quiet=True,
        )
    name = site.construct.removeprefix(f"{FSDP}.")
    if name != site.construct:
        reason = f"an FSDP2 model has no {name}"
        help_ = INSTEAD.get(name, "drop what was done with it")
        return study.left(site, RULE.code, reason, help_)
    return study.left(site, RULE.code, f"no rule for {site.construct}", "migrate it by hand")


def _command(site: Site, study: Study) -> Decision:
    """What a notebook runs and is not Python; it may do to a model what no longer fits it."""
    excerpt = site.module.source.excerpt
    assert excerpt is not None
    assert isinstance(site.node, ast.Name)
    mask = excerpt.masks[site.node.id]
    meets_models = mask.shares_names and not mask.text.endswith("?")
    return study.left(
        site,
        RULE.code,
        "a command of the notebook that is not read as Python speaks of FSDP1 or of its models",
        "migrate it by hand",
        models=study.constructors.values() if meets_models else (),
        quiet=meets_models,
    )


def _unbound(site: Site, study: Study) -> Decision:
    """A method of a model that is looked up on FSDP1's class: on FSDP2's it gives shards."""
    method = ast.unparse(site.reference)
    models = frozenset(study.constructors.values())
    if isinstance(site.node, ast.Call) and site.node.args:
        models = study.models(site.node.args[0], site.module).constructors or models
    return study.left(
        site,
        RULE.code,
        f"{method} is FSDP1's own, whatever model it is given",
        f"call {method.rpartition('.')[2]} on the model, and run again",
        models=models,
        quiet=True,
    )
