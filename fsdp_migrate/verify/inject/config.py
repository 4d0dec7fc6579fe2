"""What a recorded process is told, through one environment variable."""

from __future__ import annotations

import json
import os
from dataclasses import asdict, dataclass
from enum import Enum
from pathlib import Path

GROW_S = 5.0
"""How long a program trains, recorded, while the number of steps is left to verify."""

ENDED = "the script ended"
"""Why there are no more records of a program that was not stopped."""

SOURCES = "sources.json"
"""The file among the records that lists the Python files of the tree."""

WATCHED = "watched.json"
"""The file among the records that lists those of which executed lines are written down."""

ASKED = "asked.json"
"""The file among the records that lists the expressions whose values are looked at."""

VARIABLE = "FSDP_MIGRATE_VERIFY"
"""The environment variable that holds the configuration; without it nothing is recorded."""

PACKAGE_ROOT = str(Path(__file__).resolve().parents[3])
"""The folder that holds the package ``fsdp_migrate``."""


FSDP1 = "torch.distributed.fsdp.fully_sharded_data_parallel"
FSDP2 = "torch.distributed.fsdp._fully_shard._fully_shard"
"""The modules of torch in which the two are."""


class Precision(Enum):
    """In which precision a run computes."""

    NATIVE = "native"
    """As the program says."""
    FLOAT32 = "float32"
    """FSDP's mixed precision and autocast are replaced by float32."""
    STORED_FLOAT32 = "stored-float32"
    """The same, and tensors that the program asks for in a 16-bit dtype are made in float32."""


@dataclass(frozen=True, kw_only=True)
class Noise:
    """Rounding-size noise for the twin run.

    ``amplitude`` is relative: every parameter (once) and every gradient element (each step) is
    multiplied by ``1 + amplitude`` or ``1 - amplitude``.
    """

    amplitude: float
    seed: int


@dataclass(frozen=True, kw_only=True)
class Changes:
    """What one run of a program does otherwise than a plain run."""

    noise: Noise | None = None
    precision: Precision = Precision.NATIVE
    start: str | None = None
    """Folder of a finished run whose first weights, buffers and random state are taken over."""
    steps: int | None = None
    """How many optimizer steps are recorded, where an earlier run has decided it."""
    to_the_end: bool = False
    """Whether the program then goes on, with nothing recorded, until it ends by itself."""
    last: int | None = None
    """The step after which it is stopped even so: the original has ended before that."""
    timing: bool = False
    """Record times and memory, and nothing else."""


@dataclass(frozen=True, kw_only=True)
class Config(Changes):
    """Where to record, what to change, and when to stop."""

    folder: str
    """Folder for the records of all ranks; exists already."""
    run: str
    """Unique name of the run, by which its processes are found again."""
    max_steps: int
    """How many optimizer steps are recorded. The program is stopped when the next one begins, so
    that what follows a step (evaluation, checkpoints) still happens."""
    seed: int
    grow_after: int | None = None
    """From this step on, further ones are recorded only while it trains no longer than
    :data:`GROW_S` seconds."""
    tree: str = ""
    """The copy of a tree that the program is run in."""
    trees: tuple[str, ...] = ()
    """The trees themselves, of both sides: what is installed from there comes from the copy."""
    simulate: bool = False
    """Pretend that the CPUs are CUDA devices and gloo is NCCL."""
    devices: int = 1
    """How many devices it pretends to have, for a program that makes its ranks itself."""
    per_process: bool = False
    """Whether a launcher of ours made one process per rank. A program that then makes its own
    (``torch.multiprocessing.spawn``) has to be started as a single process instead."""
    observe: bool = False
    """Record where the project uses FSDP1, and what reached its constructors."""
    package_root: str = PACKAGE_ROOT

    def to_json(self) -> str:
        """The value of :data:`VARIABLE`."""
        return json.dumps({**asdict(self), "precision": self.precision.value}, sort_keys=True)

    @classmethod
    def from_environment(cls) -> Config | None:
        """The configuration of this process, or None when it is not to be recorded."""
        text = os.environ.get(VARIABLE)
        if not text:
            return None
        fields = json.loads(text)
        noise = fields.pop("noise")
        precision = Precision(fields.pop("precision"))
        trees = tuple(fields.pop("trees"))
        noise = Noise(**noise) if noise else None
        return cls(**fields, precision=precision, noise=noise, trees=trees)
