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
from fsdp_migrate.sites import Site
from fsdp_migrate.study import Decision, Study

RULE = Rule(code="FSDP499", name="no_rule", handles=("*",), since="2.4")
EXAMPLES: list[Example] = []

KEEP = [
    Keep(
        title="the precision that a model was wrapped with",
        source="""\
import torch
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP


def needs_scaler(model):
    with FSDP.summon_full_params(model):
        return model.mixed_precision.param_dtype == torch.float16
""",
        left=True,
    ),
    Keep(
        title="the precision of a plugin",
        source="""\
def needs_scaler(plugin):
    return plugin.mixed_precision.param_dtype == "fp16"
""",
    ),
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
    "mixed_precision": "keep the policy that the model is sharded with, and ask that",
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
    reason, help_ = _plainly(site.construct)
    return study.left(site, RULE.code, reason, help_)


def _plainly(construct: str) -> tuple[str, str]:
    """What is used of FSDP1, and what to do about it, in words for who meets it in the code."""
    kind, _, inner = construct.partition("(")
    whole = inner.rstrip(")") or construct
    name = whole.rpartition(".")[2]
    private = "private " if whole.startswith("private:") else ""
    if kind == "value":
        return (
            f"FSDP1's {name} is handed on, and what is done with it is not seen here",
            "hand on fully_shard, FSDPModule or what else it is used for",
        )
    if kind == "isinstance":
        return (
            f"FSDP1's {private}{name} is asked for, of which migrated code makes none",
            "ask for what takes its place, or drop the question",
        )
    if kind == "annotation":
        return (
            f"FSDP1's {private}{name} is the type here, of which migrated code makes none",
            "write the type of what takes its place",
        )
    if private:
        return f"{name} is private to FSDP1, and knows nothing of FSDP2 models", (
            PRIVATE.get(name, "do what it is used for on the FSDP2 model, or drop it")
        )
    return f"there is no FSDP2 form of {construct} that is known to do the same", (
        "migrate it by hand"
    )


# What to use in place of functions that are private to FSDP1.
PRIVATE = {
    "_is_fsdp_flattened": "ask whether the parameter is a DTensor; one that is still on the meta "
    "device is in no sharded unit",
    "_lazy_init": "drop it: an FSDP2 model needs no such call before its parameters are used",
    "_recursive_wrap": "go over the modules and wrap those that the policy picks",
}


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
