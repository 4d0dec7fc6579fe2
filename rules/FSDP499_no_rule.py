"""FSDP1 names that no rule knows.

## What changes
Nothing: the site is reported and marked.

## Why
x

## What stays for you
y

## Since torch
2.6

## References
- z
"""

from fsdp_migrate.rule import Example, Keep, Rule
from fsdp_migrate.sites import Site
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
]


def decide(site: Site, study: Study) -> Decision:
    return study.left(site, RULE.code, f"no rule for {site.construct}", "migrate it by hand")
