"""Make unseeded programs repeatable, without hiding what depends on ranks being different."""

from __future__ import annotations

import multiprocessing
import os
import random
import sys

import torch


def seed(base: int) -> None:
    """Seed Python, NumPy (if imported) and torch with ``base + 1000 * n``, n being the rank.

    Called right after torch was imported; a program that seeds itself simply does so later. Ranks
    get different seeds on purpose: with the same seed everywhere, a migration that lost
    ``sync_module_states`` would still start from equal weights.
    """
    value = base + 1000 * _number()
    random.seed(value)
    torch.manual_seed(value)
    numpy = sys.modules.get("numpy")
    if numpy is not None:
        numpy.random.seed(value % 2**32)


def _number() -> int:
    """A number that tells this rank from the others: its rank where a launcher set it, else the
    number in the name of a process that the program made (``SpawnProcess-2``)."""
    rank = os.environ.get("RANK", "")
    if rank.isdigit():
        return int(rank)
    name = multiprocessing.current_process().name
    number = name.rpartition("-")[2]
    return int(number) if number.isdigit() else 0
