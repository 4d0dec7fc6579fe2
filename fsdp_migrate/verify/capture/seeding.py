"""Make unseeded programs repeatable, without hiding what depends on ranks being different."""

from __future__ import annotations

import os
import random
import sys

import torch


def seed(base: int) -> None:
    """Seed Python, NumPy (if imported) and torch with ``base + 1000 * rank``.

    Called right after torch was imported; a program that seeds itself simply does so later. Ranks
    get different seeds on purpose: with the same seed everywhere, a migration that lost
    ``sync_module_states`` would still start from equal weights.
    """
    value = base + 1000 * int(os.environ.get("RANK", "0"))
    random.seed(value)
    torch.manual_seed(value)
    numpy = sys.modules.get("numpy")
    if numpy is not None:
        numpy.random.seed(value % 2**32)
