"""Remove ignore comments that ignore nothing.

## What changes
Nothing: `check` reports the comment. An ignore comment names places that stay FSDP1 on purpose,
`# fsdp-migrate: ignore[FSDP101] reason`; where there is nothing of the kind (any more), it says
something untrue, and would hide what somebody writes there later.

## Why
Comments outlive the code they were written for. This one also stands for a decision: what it
ignores keeps a model FSDP1.

## What stays for you
Remove the comment, or those of its codes that are named. Where it should ignore something: it counts
for the statement that it stands in, at the end of its first or last line, or of the line of an
argument; alone on a line it counts for the next one. `ignore-file` must stand above the first
statement. What it cannot do is told only when a directory is checked: a single file may be half of a
model.

## Since torch
2.6

## References
- docs/configuration.md, "Leaving a place alone"
"""

from fsdp_migrate.planning.rule import Example, Keep, Rule

RULE = Rule(code="FSDP990", name="unused_ignore", handles=())

EXAMPLES: list[Example] = []  # it is about comments, and changes none

KEEP = [
    Keep(
        title="a comment on code that is migrated already",
        source="""\
from torch.distributed.fsdp import fully_shard


def build(model):
    fully_shard(model)  # fsdp-migrate: ignore[FSDP101] stays for the benchmark
    return model
""",
    ),
    Keep(
        title="a comment for a whole file without FSDP1",
        source="""\
# fsdp-migrate: ignore-file
import torch


def build(model):
    return torch.nn.parallel.DistributedDataParallel(model)
""",
    ),
    Keep(
        title="text that looks like a comment",
        source='''\
HELP = """
model = FSDP(model)  # fsdp-migrate: ignore
"""
''',
    ),
]
