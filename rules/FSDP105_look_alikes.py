"""Leave names that may be another library's class, or the project's own.

## What changes
Nothing. Where every definition that reaches a use leads to torch's FSDP, the use is migrated; where none does,
it is not FSDP1's and nothing is said of it; where some do, it is marked, and the model that is made there stays FSDP1.

## Why
`FSDP` is a name that fairscale, Megatron, XLA and many projects give to classes of their own. Which one a name means is
told by the imports and assignments that reach it: on two branches of an `if` or a `try`, it may be two things.
What stands for a class that is missing (`except ImportError: FSDP = None`) is no other class.

## What stays for you
Give the two classes names of their own, or import torch's in the branch that uses it, and run again.

## Since torch
2.4

## References
- https://docs.python.org/3/reference/executionmodel.html#naming-and-binding
"""

import ast
from collections.abc import Sequence
from dataclasses import replace

from fsdp_migrate.analysis.project import Lead
from fsdp_migrate.planning import string_references
from fsdp_migrate.planning.context import Study
from fsdp_migrate.planning.model import Decision, Site
from fsdp_migrate.planning.outcome import Outcome
from fsdp_migrate.planning.rule import Example, Keep, Rule
from fsdp_migrate.syntax import string_annotations

RULE = Rule(code="FSDP105", name="look_alikes", handles=("look-alike",), since="2.4")

EXAMPLES = [
    Example(
        title="two classes under one name, and a place where it is torch's",
        before="""\
def wrap(model, xla):
    if xla:
        from torch_xla.distributed.fsdp import XlaFullyShardedDataParallel as FSDP
    else:
        from torch.distributed.fsdp import FullyShardedDataParallel as FSDP
    return FSDP(model)


def wrap_on_gpus(model):
    from torch.distributed.fsdp import FullyShardedDataParallel as FSDP

    return FSDP(model)
""",
        after="""\
def wrap(model, xla):
    if xla:
        from torch_xla.distributed.fsdp import XlaFullyShardedDataParallel as FSDP
    else:
        from torch.distributed.fsdp import FullyShardedDataParallel as FSDP
    # TODO(fsdp-migrate FSDP105): FSDP may also be torch_xla.distributed.fsdp.XlaFullyShardedDataParallel here. Give the two classes names of their own, or import torch's in the branch that uses it.
    return FSDP(model)


def wrap_on_gpus(model):
    from torch.distributed.fsdp import fully_shard

    return fully_shard(model)
""",
        outcome=Outcome.LEFT,
    ),
    Example(
        title="a class of its own on every branch",
        before="""\
from torch.distributed.fsdp import ShardingStrategy


def wrap(model, xla):
    if xla:
        from torch_xla.distributed.fsdp import XlaFullyShardedDataParallel as FSDP

        return FSDP(model, reshard_after_forward=True)
    from torch.distributed.fsdp import FullyShardedDataParallel as FSDP

    return FSDP(model, sharding_strategy=ShardingStrategy.FULL_SHARD)


def load(model, megatron):
    if megatron:
        from megatron.core.distributed import custom_FSDP as Sharded
    else:
        from torch.distributed.fsdp import FullyShardedDataParallel as Sharded
    return Sharded(model)
""",
        after="""\
def wrap(model, xla):
    if xla:
        from torch_xla.distributed.fsdp import XlaFullyShardedDataParallel as FSDP

        return FSDP(model, reshard_after_forward=True)
    from torch.distributed.fsdp import fully_shard

    return fully_shard(model)


def load(model, megatron):
    if megatron:
        from megatron.core.distributed import custom_FSDP as Sharded
    else:
        from torch.distributed.fsdp import FullyShardedDataParallel as Sharded
    # TODO(fsdp-migrate FSDP105): Sharded may also be megatron.core.distributed.custom_FSDP here. Give the two classes names of their own, or import torch's in the branch that uses it.
    return Sharded(model)
""",
        outcome=Outcome.LEFT,
    ),
    Example(
        title="a type that may be either",
        before="""\
from torch.distributed.fsdp import FullyShardedDataParallel

try:
    from fairscale.nn import FullyShardedDataParallel as Wrapped
except ImportError:
    from torch.distributed.fsdp import FullyShardedDataParallel as Wrapped


def wrap(model) -> "Wrapped":
    return FullyShardedDataParallel(model)


def size(model: Wrapped) -> int:
    return sum(1 for _ in model.modules())
""",
        after="""\
from torch.distributed.fsdp import fully_shard

try:
    from fairscale.nn import FullyShardedDataParallel as Wrapped
except ImportError:
    from torch.distributed.fsdp import FullyShardedDataParallel as Wrapped


# TODO(fsdp-migrate FSDP105): Wrapped may also be fairscale.nn.FullyShardedDataParallel here. Give the two classes names of their own, or import torch's in the branch that uses it.
def wrap(model) -> "Wrapped":
    return fully_shard(model)


# TODO(fsdp-migrate FSDP105): Wrapped may also be fairscale.nn.FullyShardedDataParallel here. Give the two classes names of their own, or import torch's in the branch that uses it.
def size(model: Wrapped) -> int:
    return sum(1 for _ in model.modules())
""",
        outcome=Outcome.LEFT,
    ),
]

KEEP = [
    Keep(
        title="a class of another library where an import fails",
        source="""\
try:
    from torch.distributed.fsdp import FullyShardedDataParallel as FSDP
except ImportError:
    from fairscale.nn import FullyShardedDataParallel as FSDP


def wrap(model):
    return FSDP(model)
""",
        left=True,
    ),
    Keep(
        title="a class of the project's own",
        source="""\
import os

from torch.distributed.fsdp import FullyShardedDataParallel as FSDP

if os.environ.get("SHARD_BY_HAND"):

    class FSDP:
        def __init__(self, module):
            self.module = module


def wrap(model):
    return FSDP(model)
""",
        left=True,
    ),
    Keep(
        title="another library's class that takes the name over",
        source="""\
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP  # noqa: F401
from fairscale.nn import FullyShardedDataParallel as FSDP  # noqa: F811


def wrap(model):
    return FSDP(model)
""",
        left=True,
    ),
    Keep(
        title="a project without torch's FSDP",
        source="""\
import logging

logging.getLogger("torch.distributed.fsdp._debug_utils").setLevel(logging.ERROR)


class FullyShardedDataParallel:
    def __init__(self, module):
        self._fsdp_wrapped_module = module

    def clean(self, name):
        return name.replace("_fsdp_wrapped_module.", "")
""",
    ),
]


def decide(site: Site, study: Study) -> Decision:
    named, others = _doubtful(site, study)
    makes = study.constructors.get(site.node)
    is_type = site.construct == string_references.QUOTED or site.construct.startswith("annotation(")
    models = [makes] if makes is not None else study.reached_from(site.module)
    words = " or ".join(dict.fromkeys(map(str, others)))
    reason = f"{named} may also be {words} here"
    left = study.left(
        site,
        RULE.code,
        reason,
        "give the two classes names of their own, or import torch's in the branch that uses it",
        models=() if is_type else models,
        quiet=makes is None and not is_type,
    )
    # The marker says no line: it must stay true when lines move.
    return replace(left, message=f"{reason} ({_lines(others)})")


def _doubtful(site: Site, study: Study) -> tuple[str, list[Lead]]:
    """The reference as it is written, and what else it may be."""
    nodes = [site.reference]
    for each in string_annotations.in_annotations(site.module.table):
        if each.string is site.node:
            nodes += [node for node, _ in string_references.references(each, study, site.module)]
    for node in nodes:
        others = study.project.look_alikes(node, site.module)
        if others:
            return ast.unparse(node), others
    raise AssertionError(f"{site.construct} is no look-alike's")


def _lines(others: Sequence[Lead]) -> str:
    """Where the other definitions stand."""
    nodes = [lead.binding.node for lead in others if lead.binding is not None]
    lines = sorted({getattr(node, "lineno", 0) for node in nodes})
    return f"line {', '.join(map(str, lines))}" if lines else "by a star import"
