"""What becomes of an import statement that loses names, and of new ones that have a short form."""

from __future__ import annotations

import pytest

from tests.helpers.migrating import rewritten

PACKAGE = "from torch.distributed.fsdp"
FSDP = f"{PACKAGE} import FullyShardedDataParallel as FSDP\n"


@pytest.mark.parametrize(
    ("names", "left"),
    [
        ("(MixedPrecision,\n    FSDPModule)", "FSDPModule"),
        ("(MixedPrecision, FSDPModule)", "FSDPModule"),
        ("(\n    MixedPrecision,\n    FSDPModule,\n)", "FSDPModule"),
        ("(FSDPModule, MixedPrecision,\n    fully_shard)", "FSDPModule, fully_shard"),
        ("(FSDPModule, MixedPrecision, fully_shard)", "(FSDPModule, fully_shard)"),
    ],
)
def test_parentheses_go_with_the_lines(names: str, left: str) -> None:
    source = f"{PACKAGE} import {names}\n\nprint(FSDPModule)\n"
    assert rewritten(source).startswith(f"{PACKAGE} import {left}\n")


@pytest.mark.parametrize(
    "names",
    [
        "(MixedPrecision,\n    FSDPModule  # the new one\n)",
        "(  # of torch\n    MixedPrecision, FSDPModule)",
    ],
)
def test_comments_keep_their_lines(names: str) -> None:
    after = rewritten(f"{PACKAGE} import {names}\n\nprint(FSDPModule)\n")
    assert "MixedPrecision" not in after
    assert after.count("#") == 1
