"""Drop FSDP1 names that are imported and never used.

## What changes
An FSDP1 name that nothing in the module uses, and that the module does not offer to others, is
removed from its import. Imports whose last use another rule took away go with that rule.

## Why
A migrated project should not import FSDP1.

## What stays for you
Names that a package or `__all__` offers to others, those that a type comment has, and those that are bound or
deleted elsewhere as well (`except ImportError: FSDP = None`).

## Since torch
2.4

## References
- https://docs.pytorch.org/docs/stable/fsdp.html
"""

import ast

from fsdp_migrate.fsdp1.references import promised
from fsdp_migrate.planning.context import Study
from fsdp_migrate.planning.model import Decision, Site
from fsdp_migrate.planning.rule import Example, Keep, Rule
from fsdp_migrate.syntax import string_annotations

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
    Keep(
        title="a name in a type comment",
        source="""\
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP


def save(model, path):
    # type: (FSDP, str) -> None
    ...
""",
        left=True,
    ),
    Keep(
        title="a name that stands for a missing torch",
        source="""\
try:
    from torch.distributed.fsdp import FullyShardedDataParallel as FSDP
except ImportError:
    FSDP = None
""",
        left=True,
    ),
]


def decide(site: Site, study: Study) -> Decision:
    assert isinstance(site.node, ast.alias)
    name = site.node.asname or site.node.name
    statement = site.module.table.parents[site.node]
    assert isinstance(statement, (ast.Import, ast.ImportFrom))
    asked_for = name in study.project.asked_for(site.module)
    commented = name in string_annotations.in_type_comments(site.module.source)
    offered = site.module.is_package or name in promised(site.module) or asked_for
    table = site.module.table
    scope = site.module.table.scope_of(statement)
    offered = offered or (scope.is_class and study.project.mentions(f".{name}"))
    silenced = "noqa" in site.module.source.lines[statement.lineno - 1]
    if commented and not offered:
        return study.left(
            site,
            RULE.code,
            f"a type comment names {name}",
            "name what the annotated code takes now, and drop the import",
        )
    if offered or silenced:
        return study.left(
            site,
            RULE.code,
            f"{name} is imported here for others to use",
            "drop it once nobody does",
        )
    if len(scope.bindings.get(name, ())) > 1:
        used = any(table.within[n].lookup(name) is scope for n in table.names_by_id.named(name))
        return study.left(
            site,
            RULE.code,
            f"nothing uses {name}, which is bound or deleted elsewhere as well",
            "drop it here" if used else "drop both",
        )
    proposal = study.proposal()
    proposal.remove_import(site.module, site.node)
    return study.rewritten(site, RULE.code, "removed, nothing uses it", proposal)
