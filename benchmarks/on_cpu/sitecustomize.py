"""Lets FSDP1 train on a machine without a GPU in a plain run, in the way in which ``verify`` does.

Python imports it by itself, because its folder is first on ``PYTHONPATH``.
"""

from types import SimpleNamespace

from fsdp_migrate.verify.inject.config import FSDP1
from fsdp_migrate.verify.inject.imports import after_import


def _patch(name: str) -> None:
    from fsdp_migrate.verify.capture import cpu_patches

    silent = SimpleNamespace(say_once=lambda kind, what: None)
    cpu_patches.install_torch(silent)  # type: ignore[arg-type]
    cpu_patches.install_fsdp1(silent)  # type: ignore[arg-type]


after_import(FSDP1, _patch)
