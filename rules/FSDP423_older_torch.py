"""Remove code that only torch releases before the target run.

## What changes
Migrated code needs the target release of torch. Where an `if` compares torch's version and no release
from the target on gets into one of its branches, a branch with FSDP1 code in it goes, and the imports
that only it used, and functions of the same file with names that begin with an underscore. What else no
such release runs stays: one-line statements, conditional expressions, what follows an `if` that returns,
other functions that only such code uses. It holds no model back, and nothing that is done there counts
elsewhere.

## Why
Code for older releases is often the most private of a project: it replaces FSDP1's own functions to mend
them. On a migrated model it would do nothing, or harm; but no torch that a migrated model runs on gets there.

## What stays for you
Delete what is left. Tests near the target (`< "2.7"` for a target of 2.7, which development versions of
2.7 pass) and versions that only the running program knows are not decided.

## Since torch
2.6

## References
- https://packaging.python.org/en/latest/specifications/version-specifiers/
- torch/torch_version.py
"""

from fsdp_migrate.migration import dead_code
from fsdp_migrate.planning.context import Study
from fsdp_migrate.planning.model import Decision, Site
from fsdp_migrate.planning.rule import Example, Keep, Rule

RULE = Rule(code="FSDP423", name="older-torch", handles=("code for older torch",))

EXAMPLES = [
    Example(
        title="what replaces FSDP1's functions in older releases",
        before="""\
import torch
from packaging import version
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP


def mended(self, module):
    print(module)


def patch():
    if version.parse(torch.__version__) < version.parse("2.0.1"):
        FSDP._auto_wrap = mended
    print("ready")


def build(net):
    patch()
    return FSDP(net)
""",
        after="""\
from torch.distributed.fsdp import fully_shard


def mended(self, module):
    print(module)


def patch():
    print("ready")


def build(net):
    patch()
    return fully_shard(net)
""",
    ),
    Example(
        title="a branch of several",
        before="""\
import torch
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP


def build(net, wide):
    if torch.__version__ < "1.13":
        # without use_orig_params
        model = FSDP(net, forward_prefetch=True)
    elif wide:
        print("wide")
        model = FSDP(net)
    else:
        model = FSDP(net.half())
    return model
""",
        after="""\
from torch.distributed.fsdp import fully_shard


def build(net, wide):
    if wide:
        print("wide")
        model = fully_shard(net)
    else:
        model = fully_shard(net.half())
    return model
""",
    ),
    Example(
        title="what stands behind a test that always holds",
        before="""\
import torch
from packaging.version import Version
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP

RECENT = Version(torch.__version__) >= Version("2.1")


def build(net):
    if RECENT:
        return FSDP(net, use_orig_params=True)
    else:
        FSDP._lazy_init = print
        return FSDP(net)
""",
        after="""\
import torch
from packaging.version import Version
from torch.distributed.fsdp import fully_shard

RECENT = Version(torch.__version__) >= Version("2.1")


def build(net):
    if RECENT:
        return fully_shard(net)
""",
    ),
    Example(
        title="functions of the file's own that go along",
        before="""\
import torch
from packaging.version import Version
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP


def _wrap_blocks(net):
    for name, block in net.named_children():
        setattr(net, name, FSDP(block))


def _wrap_all(net):
    _wrap_blocks(net)
    return FSDP(net)


def build(net):
    if Version(torch.__version__) < Version("2.0.0"):
        model = FSDP(_wrap_all(net))
    else:
        model = FSDP(net, use_orig_params=True)
    return model
""",
        after="""\
from torch.distributed.fsdp import fully_shard


def build(net):
    model = fully_shard(net)
    return model
""",
    ),
]

KEEP = [
    Keep(
        title="a private function that only older torch runs, without FSDP1",
        source="""\
import torch
from packaging.version import Version


def _old(net):
    return net


def build(net):
    if Version(torch.__version__) < Version("2.0.0"):
        net = _old(net)
    return net
""",
    ),
    Keep(
        title="tests of torch's version without FSDP1 code",
        source="""\
import torch

if torch.__version__ < "2.0":
    print("old")
""",
    ),
    Keep(
        title="a release that may be the target",
        source="""\
import torch
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP

if torch.__version__ < "2.7":
    FSDP._lazy_init = print
""",
        left=True,
    ),
    Keep(
        title="a function that only older releases use",
        source="""\
import torch
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP


def old(net):
    return FSDP(net)


def build(net):
    return old(net) if torch.__version__ < "2.0" else net
""",
        left=True,
    ),
]


def decide(site: Site, study: Study) -> Decision:
    return dead_code.decide(site, study, RULE.code)
