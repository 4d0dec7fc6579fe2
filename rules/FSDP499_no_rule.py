"""FSDP1 names that no rule knows.

## What changes
Nothing: the site is reported and marked, and holds its model's migration back where it would go
wrong without FSDP1.

## Why
Private modules, subclasses of the wrapper, the class itself used as a value, names in strings
(`import_module("torch.distributed.fsdp")`, `mock.patch`, `getattr(model, "clip_grad_norm_")`), commands of
notebooks: what such code means for FSDP2 cannot be read off the name. It is counted all the same, so that no reference to FSDP1 is
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

from fsdp_migrate.families.names import passing
from fsdp_migrate.families.wrapping import chosen
from fsdp_migrate.fsdp1.api import FLAT_FIELDS, FSDP, PACKAGE, UNMISTAKABLE
from fsdp_migrate.fsdp1.references import COMMAND, FLAT
from fsdp_migrate.planning import string_references
from fsdp_migrate.planning.context import Study
from fsdp_migrate.planning.model import Constructor, Decision, Site
from fsdp_migrate.planning.outcome import Outcome
from fsdp_migrate.planning.rule import Example, Keep, Rule

RULE = Rule(code="FSDP499", name="no_rule", handles=("*",), since="2.4")
EXAMPLES = [
    Example(
        title="flat parameters, and what they know",
        before="""\
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP


def sizes(net):
    model = FSDP(net)
    print(model.cpu_offload)
    for module in model.modules():
        if isinstance(module, FSDP):
            for parameter in module.params:
                print(parameter._numels_with_padding)
    return model
""",
        after="""\
from torch.distributed.fsdp import FSDPModule, fully_shard


def sizes(net):
    model = fully_shard(net)
    # TODO(fsdp-migrate FSDP499): An FSDP2 model has no cpu_offload. Drop what was done with it.
    print(model.cpu_offload)
    for module in model.modules():
        if isinstance(module, FSDPModule):
            # TODO(fsdp-migrate FSDP499): An FSDP2 model has no params. Go over the parameters instead, which are DTensors of their own name and shape.
            for parameter in module.params:
                # TODO(fsdp-migrate FSDP499): An FSDP2 model has no flat parameters, and so no _numels_with_padding. Go over the parameters instead, which are DTensors of their own name and shape.
                print(parameter._numels_with_padding)
    return model
""",
        outcome=Outcome.LEFT,
    ),
    Example(
        title="how far FSDP1 prefetches, where a model is asked first",
        before="""\
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP


def build(net, limit):
    model = FSDP(net, forward_prefetch=True)
    if hasattr(model, "_exec_order_data"):
        model._exec_order_data._forward_prefetch_limit = limit
    return model
""",
        after="""\
from torch.distributed.fsdp import fully_shard


def build(net, limit):
    model = fully_shard(net)
    if hasattr(model, "_exec_order_data"):
        # TODO(fsdp-migrate FSDP499): What is set here for FSDP1's prefetching no longer has an effect: FSDP2 prefetches by itself, set_modules_to_forward_prefetch and set_modules_to_backward_prefetch say how far.
        model._exec_order_data._forward_prefetch_limit = limit
    return model
""",
        outcome=Outcome.REVIEW,
    ),
]

KEEP = [
    Keep(
        title="an FSDP2 model that is asked",
        source="""\
from torch.distributed.fsdp import FSDPModule, fully_shard


def build(net, layers):
    model = fully_shard(net)
    if isinstance(model, FSDPModule) and hasattr(model, "_exec_order_data"):
        raise RuntimeError("not FSDP2's")
    return model
""",
    ),
    Keep(
        title="what flat parameters know",
        source="""\
from torch.distributed.fsdp._traversal_utils import _get_fsdp_handles


def names(model):
    for handle in _get_fsdp_handles(model):
        yield from handle.flat_param._fqns
""",
        left=True,
    ),
    Keep(
        title="fields of those names of the project's own",
        source="""\
class Sizes:
    def __init__(self, numels, rank):
        self._numels, self._fqns, self.rank = numels, [], rank

    def total(self):
        return sum(self._numels) + self.rank
""",
    ),
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
        title="handles that are asked for first",
        source="""\
import torch
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP


def handles(module):
    if hasattr(module, "_handle") and module._handle is not None:
        return [module._handle]
    return []


def save(net, path):
    model = FSDP(net)
    pieces = [h.flat_param.data for m in model.modules() for h in handles(m)]
    torch.save(pieces, path)
""",
        left=True,
    ),
    Keep(
        title="a missing handle that is caught",
        source="""\
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP


def sizes(net):
    model = FSDP(net)
    found = []
    for module in model.modules():
        try:
            found.append(module._handle.flat_param.numel())
        except AttributeError:
            continue
    return found
""",
        left=True,
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
        title="a table of classes that are called, beside a model",
        source="""\
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP

WRAPPERS = {"fsdp": FSDP}


def first(net, kind):
    return WRAPPERS[kind](net)


def second(net):
    return FSDP(net)
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
        title="the class among others that are gone through",
        source="""\
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP
from torch.nn.parallel import DistributedDataParallel as DDP

WRAPPERS = [FSDP, DDP]


def is_wrapped(model):
    return any(isinstance(model, wrapper) for wrapper in WRAPPERS)


def build(net):
    return FSDP(net)
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
    Keep(
        title="a module that is imported by its name",
        source="""\
import importlib

from torch.distributed.fsdp import FullyShardedDataParallel as FSDP

fsdp = importlib.import_module("torch.distributed.fsdp")


def build(net, other):
    return FSDP(net), fsdp.FullyShardedDataParallel(other)
""",
        left=True,
    ),
    Keep(
        title="a class that is named in a string",
        source="""\
from unittest import mock

CONFIG = {"_target_": "torch.distributed.fsdp.FullyShardedDataParallel"}


@mock.patch("torch.distributed.fsdp.fully_sharded_data_parallel.FullyShardedDataParallel")
def test_wrapping(wrapper): ...
""",
        left=True,
    ),
    Keep(
        title="a name of the project's that is replaced",
        source="""\
from unittest import mock

import example
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP


@mock.patch("example.FSDP")
def test_build(wrapper):
    example.KINDS["fsdp"](1)


def test_build_alike(monkeypatch):
    monkeypatch.setattr(example, "FSDP", lambda net: net)
    example.KINDS["fsdp"](1)


KINDS = {"fsdp": FSDP}
""",
        left=True,
    ),
    Keep(
        title="a method that is asked for by its name",
        source="""\
import torch
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP


def step(net):
    model = FSDP(net)
    clip = getattr(model, "clip_grad_norm_", None)
    if clip is not None:
        clip(1.0)
""",
        left=True,
    ),
    Keep(
        title="code in a string that is run",
        source="""\
import subprocess
import sys

SCRIPT = '''
from torch.distributed.fsdp import FullyShardedDataParallel
'''
subprocess.run([sys.executable, "-c", SCRIPT], check=True)
""",
        left=True,
    ),
]


HANDLES = (
    "go over the parameters instead; to free or gather a unit, call reshard() or unshard() of the "
    "module, which do no harm to one that is replicated"
)
FLAT_HELP = "go over the parameters instead, which are DTensors of their own name and shape"
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
    "params": FLAT_HELP,
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
    kind, _, named = site.construct.rstrip(")").partition("(")
    if kind == "attribute by name":
        return _asked_by_name(named, site, study)
    if kind == "name":
        return _named(named, site, study)
    if site.construct == string_references.TEXT:
        return study.left(
            site,
            RULE.code,
            "this string holds code that imports FSDP1",
            "migrate that code by hand, or in a file of its own",
        )
    if kind == "bytes":
        return study.left(
            site,
            RULE.code,
            "FSDP2 has no such part in its names",
            "drop what was done for FSDP1's names",
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
    flat = site.construct.startswith(f"{FLAT}._") and site.receiver is not None
    name = site.construct.removeprefix(f"{FSDP}.")
    if name != site.construct or flat:
        reason = f"an FSDP2 model has no {name}"
        help_ = INSTEAD.get(name, "drop what was done with it")
        if flat:
            reason = f"an FSDP2 model has no flat parameters, and so no {name.rpartition('.')[2]}"
            help_ = FLAT_HELP
        quiet = isinstance(site.reference, ast.Attribute) and passing.is_passed_over(
            site.reference, site.module, study
        )
        if quiet and name in ORDER:
            message = "kept: it is passed over for an FSDP2 model"
            return study.rewritten(
                site,
                RULE.code,
                message,
                models=_concerned(site, study),
                review=PREFETCHING,
            )
        return study.left(
            site,
            RULE.code,
            reason,
            help_,
            models=_concerned(site, study) if quiet else (),
            quiet=quiet,
        )
    listed = isinstance(asked, (ast.Tuple, ast.List, ast.Set))
    if kind == "value" and listed and study.constructors:
        return study.left(
            site,
            RULE.code,
            "FSDP stands among classes that FSDP2 models may be told by",
            "put FSDPModule in its place if they are for isinstance, and run again",
            models=study.constructors.values(),
            quiet=True,
        )
    reason, help_ = _plainly(site.construct)
    if site.construct == chosen.VALUE and chosen.is_called(site, study):
        models = study.reached_from(site.module)  # what it makes may be taken for theirs
        return study.left(site, RULE.code, reason, help_, models=models, quiet=True)
    return study.left(site, RULE.code, reason, help_)


# What FSDP1 keeps of the order it gathers in: when it gathers changes no number.
ORDER = frozenset({"_exec_order_data"})
PREFETCHING = (
    "what is set here for FSDP1's prefetching no longer has an effect: FSDP2 prefetches by itself, "
    "set_modules_to_forward_prefetch and set_modules_to_backward_prefetch say how far"
)


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


def _named(named: str, site: Site, study: Study) -> Decision:
    """FSDP1 that is got by its name. A model that it wraps would meet code that was migrated."""
    parent = site.module.table.parents[site.node]
    function = parent.func if isinstance(parent, ast.Call) else None
    name = getattr(function, "attr", getattr(function, "id", ""))
    replaced = isinstance(site.node, ast.Constant) and name in string_references.REPLACERS
    if replaced and not _is_torchs(site.node):
        return _replaced(named, parent, site, study)
    makes_models = named in {FSDP, PACKAGE, f"{PACKAGE}.fully_sharded_data_parallel"}
    wraps = makes_models and not replaced and not _asked(site.node)
    named = named.removeprefix("private:")
    return study.left(
        site,
        RULE.code,
        f"{named} of FSDP1 is got by its name" if named != PACKAGE else "FSDP1 is got by its name",
        "import it by a statement, and run again, or migrate it by hand",
        models=study.constructors.values() if wraps else (),
        quiet=wraps,
    )


def _is_torchs(node: ast.AST) -> bool:
    return string_references.DOTTED.fullmatch(str(getattr(node, "value", ""))) is not None


def _replaced(named: str, call: ast.AST, site: Site, study: Study) -> Decision:
    """``patch("train.FSDP")``: migrated code has no such name, and does not ask for it."""
    keywords = call.keywords if isinstance(call, ast.Call) else []
    quiet = any(k.arg in {"create", "raising"} for k in keywords)  # a missing name is no error
    named = named.removeprefix("private:")
    return study.left(
        site,
        RULE.code,
        f"{named} is replaced by its name, which migrated code does not use",
        "replace fully_shard in its place" if named == FSDP else "replace what takes its place",
        models=study.constructors.values() if quiet else (),
        quiet=quiet,
    )


def _asked(node: ast.AST) -> bool:
    """``hasattr(fsdp, "FullyShardedDataParallel")`` gets nothing."""
    return isinstance(node, ast.Call) and getattr(node.func, "id", "") in {"hasattr", "delattr"}


def _asked_by_name(named: str, site: Site, study: Study) -> Decision:
    """``getattr(model, "clip_grad_norm_", None)`` is quiet about what an FSDP2 model has not."""
    assert isinstance(site.node, ast.Call)
    assert site.receiver is not None
    asked = getattr(site.node.func, "id", "")
    quiet = asked == "hasattr" or len(site.node.args) > 2
    private = named in UNMISTAKABLE | FLAT_FIELDS
    help_ = f"call {named} on the model where it is FSDP1's, and run again"
    return study.left(
        site,
        RULE.code,
        f"an FSDP2 model has no {named}",
        FLAT_HELP if named in FLAT_FIELDS else INSTEAD.get(named, help_) if private else help_,
        models=_concerned(site, study),
        quiet=quiet and not (private and not passing.matters(site.node, site.module)),
    )


def _concerned(site: Site, study: Study) -> frozenset[Constructor]:
    """The models that a site may be about: all, where nothing tells which."""
    assert site.receiver is not None
    known = study.models(site.receiver, site.module).constructors
    return known or frozenset(study.constructors.values())


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
