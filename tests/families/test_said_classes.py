"""Classes of modules that are asked for nothing but what an error says."""

from __future__ import annotations

import pytest

from tests.helpers.migrating import rewritten

HEAD = """\
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP


def check(layer):
    if "Old" in str(layer.__class__.__base__):
        {first}
{otherwise}

def main(net):
    return FSDP(net)
"""
ELSE = "    else:\n        {}\n"
OLD, NONE = 'raise TypeError("old")', 'raise TypeError("none")'


@pytest.mark.parametrize(
    ("first", "otherwise", "is_marked"),
    [
        (OLD, ELSE.format(NONE), False),
        (OLD, "", True),  # it tells whether there is an error
        ("layer.reset()", ELSE.format(NONE), True),
    ],
)
def test_bases_that_choose_an_error(first: str, otherwise: str, is_marked: bool) -> None:
    text = rewritten(HEAD.format(first=first, otherwise=otherwise))
    assert ("FSDP413" in text) is is_marked
