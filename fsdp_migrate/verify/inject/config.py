"""What a recorded process is told, through one environment variable."""

from __future__ import annotations

import json
import os
from dataclasses import asdict, dataclass
from pathlib import Path

VARIABLE = "FSDP_MIGRATE_VERIFY"
"""The environment variable that holds the configuration; without it nothing is recorded."""

PACKAGE_ROOT = str(Path(__file__).resolve().parents[3])
"""The folder that holds the package ``fsdp_migrate``."""


@dataclass(frozen=True, kw_only=True)
class Noise:
    """Rounding-size noise for the twin run.

    ``amplitude`` is relative: every parameter (once) and every gradient element (each step) is
    multiplied by ``1 + amplitude`` or ``1 - amplitude``.
    """

    amplitude: float
    seed: int


@dataclass(frozen=True, kw_only=True)
class Config:
    """Where to record and when to stop."""

    folder: str
    """Folder for the records of all ranks; exists already."""
    run: str
    """Unique name of the run, by which its processes are found again."""
    max_steps: int
    seed: int
    noise: Noise | None = None
    package_root: str = PACKAGE_ROOT

    def to_json(self) -> str:
        """The value of :data:`VARIABLE`."""
        return json.dumps(asdict(self), sort_keys=True)

    @classmethod
    def from_environment(cls) -> Config | None:
        """The configuration of this process, or None when it is not to be recorded."""
        text = os.environ.get(VARIABLE)
        if not text:
            return None
        fields = json.loads(text)
        noise = fields.pop("noise")
        return cls(**fields, noise=Noise(**noise) if noise else None)
