"""Which release of a framework counts for a file: what the project pins, as far as that agrees."""

from __future__ import annotations

from pathlib import Path

from fsdp_migrate.configurations.frameworks import accelerate, composer, lightning, transformers
from fsdp_migrate.discovery import pins

STEPS = {
    "accelerate": (accelerate.HAS_VERSION_2, accelerate.HAS_SIZES),
    "transformers": (transformers.READS_VERSION, transformers.TRANSLATES),
    "lightning": (lightning.HAS_NEW,),
    "pytorch-lightning": (lightning.HAS_NEW,),
    "mosaicml": (composer.HAS_VERSION_2,),
}
"""The releases with which something changed that decides what becomes of settings."""


def pinned(name: str, path: Path, top: Path) -> pins.Release:
    """The release that is pinned for a file; empty where none is, or pins differ in what counts.

    An upper bound counts where no release below it has what the first step brought.
    """
    found = pins.pinned(name, path, top)
    if not found and name in STEPS:
        found = pins.at_most(name, path, top)
        return max(found) if found and max(found) < min(STEPS[name]) else ()
    steps = STEPS.get(name, found)
    sides = {tuple(release >= step for step in steps) for release in found}
    return max(found) if len(sides) == 1 else ()
