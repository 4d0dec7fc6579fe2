"""Drop FSDP1 names that are imported and never used.

## What changes
An FSDP1 name that nothing in the module uses, and that the module does not offer to others, is
removed from its import. Imports whose last use another rule took away go with that rule.

## Why
A migrated project should not import FSDP1.

## What stays for you
Names that a package or `__all__` offers to others.

## Since torch
2.4

## References
- https://docs.pytorch.org/docs/stable/fsdp.html
"""

import ast

from fsdp_migrate.rule import Example, Keep, Rule
from fsdp_migrate.sites import Site
from fsdp_migrate.study import Decision, Study

RULE = Rule(code="FSDP100", name="imports", handles=("import",), since="2.4")

EXAMPLES = [
    Example(
        title="a name that nothing uses goes, the others stay",
        before="""\
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP, StateDictType

model = FSDP(model)
""",
        after="""\
from torch.distributed.fsdp import fully_shard

model = fully_shard(model)
""",
    ),
    Example(
        title="an import that becomes empty disappears with its line",
        before="""\
import torch
from torch.distributed.fsdp import FullStateDictConfig

print(torch.__version__)
""",
        after="""\
import torch

print(torch.__version__)
""",
    ),
    Example(
        title="comments next to the names that stay are kept",
        before="""\
from torch.distributed.fsdp import (
    FullStateDictConfig,  # not used any more
    FullyShardedDataParallel as FSDP,  # the wrapper
)

model = FSDP(model)
""",
        after="""\
from torch.distributed.fsdp import fully_shard

model = fully_shard(model)
""",
    ),
]

KEEP = [
    Keep(
        title="a name that is offered to others",
        source="""\
from torch.distributed.fsdp import FullyShardedDataParallel

__all__ = ["FullyShardedDataParallel"]
""",
        left=True,
    ),
    Keep(
        title="an import that is marked as wanted",
        source="""\
from torch.distributed.fsdp import FullyShardedDataParallel  # noqa: F401
""",
        left=True,
    ),
    Keep(
        title="FSDP2's own names",
        source="""\
from torch.distributed.fsdp import FSDPModule, fully_shard
""",
    ),
    Keep(
        title="another package's class of the same name",
        source="""\
from fairscale.nn.data_parallel import FullyShardedDataParallel
""",
    ),
]


def decide(site: Site, study: Study) -> Decision:
    assert isinstance(site.node, ast.alias)
    name = site.node.asname or site.node.name
    statement = site.module.table.parents[site.node]
    assert isinstance(statement, (ast.Import, ast.ImportFrom))
    asked_for = name in study.project.asked_for(site.module)
    offered = site.module.is_package or _in_all(site, name) or asked_for
    silenced = "noqa" in site.module.source.lines[statement.lineno - 1]
    if offered or silenced:
        return study.left(
            site,
            RULE.code,
            f"{name} is imported here for others to use",
            "drop it once nobody does",
        )
    proposal = study.proposal()
    proposal.remove_import(site.module, site.node)
    return study.rewritten(site, RULE.code, "removed, nothing uses it", proposal)


def _in_all(site: Site, name: str) -> bool:
    listed = site.module.table.module.bindings.get("__all__", [])
    return any(
        isinstance(n, ast.Constant) and n.value == name
        for binding in listed
        if binding.value is not None
        for n in ast.walk(binding.value)
    )
