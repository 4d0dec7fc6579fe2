"""Projects without a script to run: functions of theirs that a small driver puts together.

The functions are named in ``[tool.fsdp-migrate.verify]`` and exist under the same dotted names in
both trees, since a migration keeps names. The driver is a plain training script, and is run and
recorded like any other.
"""

from __future__ import annotations

import difflib
import json
import re
import shutil
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

TABLE = "[tool.fsdp-migrate.verify]"
DRIVER = "fsdp_migrate_verify_driver.py"
SETTINGS = "fsdp_migrate_verify_driver.json"

_SOURCE = Path(__file__).parent / "inject" / "driver.py"
_FUNCTION = re.compile(r"[A-Za-z_]\w*(\.[A-Za-z_]\w*)*:[A-Za-z_]\w*(\.[A-Za-z_]\w*)*")
_OPTIMIZERS = ("adamw", "sgd")
_FUNCTIONS = ("model", "shard", "batch", "loss", "optimizer", "clip")
_COUNTS = ("steps", "accumulate", "nproc")
_KEYS = (*_FUNCTIONS, *_COUNTS, "path", "max-norm", "lr")


class EntryError(ValueError):
    """The table is wrong. The message is one sentence meant for the user."""


@dataclass(frozen=True, kw_only=True)
class Entries:
    """What the table says."""

    model: str
    """``module:function``, () -> module."""
    shard: str
    """(model) -> model, or None when it works in place: the function that is migrated."""
    batch: str | None = None
    """(rank, world, step, device) -> (args, kwargs) of the model."""
    loss: str | None = None
    """(output, batch) -> scalar."""
    optimizer: str | None = None
    """``adamw``, ``sgd``, or (model) -> optimizer. None: one run with each of the two."""
    clip: str | None = None
    """(model, max_norm) -> norm."""
    max_norm: float | None = None
    lr: float | None = None
    steps: int | None = None
    accumulate: int = 1
    nproc: int | None = None
    path: str = "."
    """The directory below the root in which imports begin."""

    @classmethod
    def read(cls, table: Mapping[str, Any]) -> Entries:
        """From the table.

        Raises:
            EntryError: a key is missing or unknown, or a value is of the wrong kind.
        """
        for key in table:
            if key not in _KEYS:
                near = difflib.get_close_matches(key, _KEYS, n=1)
                hint = f"did you mean {near[0]!r}?" if near else f"it has {', '.join(_KEYS)}"
                raise EntryError(f"{TABLE} has no key {key!r}; {hint}")
        for key in ("model", "shard"):
            if key not in table:
                raise EntryError(f'{TABLE} needs {key} = "module:function"')
        for key in _FUNCTIONS:
            value = table.get(key)
            named = key == "optimizer" and value in _OPTIMIZERS
            if value is None or named or (isinstance(value, str) and _FUNCTION.fullmatch(value)):
                continue
            other = f", {' or '.join(_OPTIMIZERS)}" if key == "optimizer" else ""
            raise EntryError(f'{TABLE} {key} must be "module:function"{other}, not {value!r}')
        for key in _COUNTS:
            value = table.get(key, 1)
            if type(value) is not int or value < 1:
                raise EntryError(f"{TABLE} {key} must be a number of at least 1, not {value!r}")
        for key in ("max-norm", "lr"):
            value = table.get(key, 1.0)
            if isinstance(value, bool) or not isinstance(value, int | float) or value <= 0:
                raise EntryError(f"{TABLE} {key} must be a positive number, not {value!r}")
        if not isinstance(table.get("path", ""), str):
            raise EntryError(f"{TABLE} path must be a directory, not {table['path']!r}")
        return cls(**{key.replace("-", "_"): value for key, value in table.items()})

    @property
    def variants(self) -> tuple[tuple[str, ...], ...]:
        """Arguments of the driver, one list for each comparison to make.

        AdamW hides wrong scales of gradients, SGD hides little: where the choice is ours, both are
        tried.
        """
        if self.optimizer is not None:
            return ((),)
        return tuple(("--optimizer", name) for name in _OPTIMIZERS)

    def write(self, folder: Path) -> None:
        """Write the driver and its settings into ``folder``."""
        folder.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(_SOURCE, folder / DRIVER)
        said = {name: getattr(self, name) for name in (*_FUNCTIONS, "max_norm", "lr", "accumulate")}
        text = json.dumps(said, indent=2)
        (folder / SETTINGS).write_text(text, encoding="utf-8")
