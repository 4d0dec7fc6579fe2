"""Imports of what ``torch.distributed.fsdp`` has elsewhere, or nowhere."""

import pytest

from fsdp_migrate.fsdp1 import api as fsdp1
from fsdp_migrate.planning.outcome import Outcome
from tests.helpers.migrating import migrate, outcomes, rewritten, worst

WRAPPED = """\
import torch
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP
IMPORT


def build(net):
    return FSDP(net, mixed_precision=MixedPrecision(param_dtype=torch.bfloat16))
"""


@pytest.mark.parametrize(
    "imported",
    [
        "from torch.distributed.fsdp.mixed_precision import MixedPrecision",
        "from torch.distributed.fsdp.mixed_precision import BackwardPrefetch, MixedPrecision",
        "from torch.distributed.fsdp.wrap import MixedPrecision",
        "from torch.distributed.fsdp.MixedPrecision import MixedPrecision",
        "from torch.distributed.fsdp.policies import MixedPrecision as MixedPrecision",
        "from torch.distributed.fsdp.sharded_grad_scaler import MixedPrecision",
    ],
)
def test_a_name_of_fsdp1s_that_torch_has_elsewhere_is_taken_for_it_and_marked(
    imported: str,
) -> None:
    result, after = migrate({"train.py": WRAPPED.replace("IMPORT", imported)})
    text = after["train.py"]
    assert worst(result) is Outcome.REVIEW
    assert "TODO(fsdp-migrate FSDP499): Torch has no" in text
    assert "MixedPrecisionPolicy(param_dtype=torch.bfloat16" in text
    assert "import MixedPrecision\n" not in text
    assert "MixedPrecision is taken for" in " ".join(text.replace("#", "").split())


def test_a_policy_imported_from_the_package_is_read_and_marked() -> None:
    source = """\
from functools import partial

from torch.distributed.fsdp import FullyShardedDataParallel as FSDP, transformer_auto_wrap_policy

from models import Block


def build(net):
    policy = partial(transformer_auto_wrap_policy, transformer_layer_cls={Block})
    return FSDP(net, auto_wrap_policy=policy)
"""
    result, after = migrate({"train.py": source})
    assert worst(result) is Outcome.REVIEW
    assert "isinstance(module, Block)" in after["train.py"]
    assert "transformer_auto_wrap_policy\n" not in after["train.py"].partition("class")[0]


@pytest.mark.parametrize(
    "imported",
    [
        "from torch.distributed.fsdp.policies import Policy",
        "from torch.distributed.fsdp import Nothing",
        "import torch.distributed.fsdp.policies",
    ],
)
def test_an_import_that_torch_has_nowhere_is_left(imported: str) -> None:
    source = f"""\
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP
{imported}


def build(net):
    return FSDP(net)
"""
    result, after = migrate({"train.py": source})
    assert ("FSDP499", Outcome.LEFT) in outcomes(result)
    assert "Torch has no torch.distributed.fsdp." in after["train.py"]
    assert "return fully_shard(net)" in after["train.py"]


@pytest.mark.parametrize(
    "imported",
    [
        "from torch.distributed.fsdp import MixedPrecision",
        "from torch.distributed.fsdp.api import MixedPrecision",
        "from torch.distributed.fsdp.fully_sharded_data_parallel import MixedPrecision",
        "try:\n    from torch.distributed.fsdp import MixedPrecision, Nothing\n"
        "except ImportError:\n    from torch.distributed.fsdp.api import MixedPrecision",
    ],
)
def test_what_torch_has_or_may_have_is_not_doubted(imported: str) -> None:
    assert "Torch has no" not in rewritten(WRAPPED.replace("IMPORT", imported))


@pytest.mark.parametrize(
    "imported",
    [
        "from torch.distributed.fsdp import FSDPModule, fully_shard, wrap, api",
        "from torch.distributed.fsdp import DataParallelMeshDims, _common_utils",
        "from torch.distributed.fsdp._fully_shard._fsdp_param import FSDPParam",
        "from torch.distributed.fsdp._fully_shard import FSDPModule",
        "from torch.distributed.fsdp import *",
        "import torch.distributed.fsdp as fsdp",
        "import torch.distributed.fsdp.wrap",
        "from torch.distributed.fsdp.wrap import _recursive_wrap",
    ],
)
def test_names_of_fsdp2_and_private_modules_are_not_doubted(imported: str) -> None:
    assert "Torch has no" not in rewritten(f"{imported}\n\nprint(fully_shard)\n")


def test_every_public_name_has_its_place() -> None:
    for name in fsdp1.SETTINGS | fsdp1.POLICIES | {fsdp1.FSDP, "ShardedGradScaler"}:
        assert fsdp1.absent(f"{fsdp1.place_of(name)}.{name}") == ""
        assert fsdp1.canonical(f"{fsdp1.place_of(name)}.{name}") == name


def test_a_class_that_is_taken_for_its_module_is_the_class() -> None:
    source = """\
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP
from torch.distributed.fsdp.ShardedGradScaler import ShardedGradScaler

model = FSDP(net)
scaler = ShardedGradScaler("cuda", 1024.0)
"""
    result, after = migrate({"train.py": source})
    assert not result.problems
    assert worst(result) is Outcome.REVIEW
    assert 'scaler = torch.amp.GradScaler("cuda", init_scale=1024.0)' in after["train.py"]
    assert "FSDP499" in after["train.py"]
