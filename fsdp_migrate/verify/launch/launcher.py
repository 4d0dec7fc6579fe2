"""The ways to start a training program, and the command line of each."""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum
from pathlib import Path, PurePosixPath

from fsdp_migrate.verify import inject
from fsdp_migrate.verify.launch.job import Job
from fsdp_migrate.verify.plan import Plan


class LaunchMethod(Enum):
    """How the ranks come to be."""

    TORCHRUN = "torchrun"
    FORK = "fork"
    """Forked from a process that has imported torch: a start-up of seconds is paid once."""
    SINGLE = "single"
    """One plain process that makes its ranks itself, forked from the same."""
    PYTHON = "python"
    """One plain process; the program makes its ranks itself (``torch.multiprocessing.spawn``)."""
    OTHER = "other"
    """The user's own command line: ``srun -n 8``, ``torchrun --nnodes 2 ...``."""


# These are given the script; any other launcher is given the interpreter first.
_TAKE_SCRIPTS = frozenset({"accelerate", "deepspeed", "torchrun"})

ACCELERATORS = {"/dev/nvidiactl": "CUDA_VISIBLE_DEVICES", "/dev/kfd": "HIP_VISIBLE_DEVICES"}
"""What a machine with a GPU has, and the variable that hides it from a program."""


@dataclass(frozen=True)
class Launcher:
    """A way to start, as asked for."""

    method: LaunchMethod
    words: tuple[str, ...] = ()
    """The user's command line, for :attr:`LaunchMethod.OTHER`."""

    @classmethod
    def of(cls, plan: Plan) -> Launcher:
        """The launcher that ``plan`` names; where it leaves the choice, the fastest that is sound.

        Raises :class:`ValueError` for a command line with unbalanced quotes.
        """
        if plan.launcher == "auto":
            return cls(LaunchMethod.FORK)
        for method in (LaunchMethod.TORCHRUN, LaunchMethod.FORK, LaunchMethod.PYTHON):
            if plan.launcher == method.value:
                return cls(method)
        return cls(LaunchMethod.OTHER, tuple(shlex.split(plan.launcher)))

    @property
    def is_torchrun(self) -> bool:
        """Whether it understands torchrun's options."""
        if self.method is LaunchMethod.OTHER:
            return Path(self.words[0]).name == "torchrun"
        return self.method is LaunchMethod.TORCHRUN

    @property
    def nodes(self) -> int:
        """Machines that take part, each with a verification of its own; 1 unless torchrun is told
        otherwise (``--nnodes 2``, ``--nnodes 1:2``)."""
        given = self._option("nnodes") if self.is_torchrun else None
        return int(given.rpartition(":")[2]) if given else 1

    @property
    def node(self) -> str:
        """This machine's number among :attr:`nodes`, as text."""
        return self._option("node-rank") or "0"

    @property
    def meeting(self) -> str:
        """The name under which the machines of one verification meet."""
        return self._option("rdzv-id") or "verify"

    def _option(self, name: str) -> str | None:
        """The value of ``--name value`` or ``--name=value``, with dashes or underscores."""
        spellings = {f"--{name}", f"--{name.replace('-', '_')}"}
        for n, word in enumerate(self.words):
            key, equals, value = word.partition("=")
            if key in spellings:
                return value if equals else self.words[n + 1 : n + 2][0]
        return None

    def command(
        self, plan: Plan, job: Job, *, target: list[str], logs: Path, worker: bool
    ) -> list[str]:
        """The command line that runs ``target``.

        With ``worker`` the program runs below our own start-up file, for interpreters that do not
        import the injected ``sitecustomize``.
        """
        target = [str(inject.WORKER), *target] if worker else target
        if self.method in (LaunchMethod.PYTHON, LaunchMethod.SINGLE):
            return [plan.python, *target]
        if self.method is LaunchMethod.TORCHRUN:
            launch = [plan.python, "-m", "torch.distributed.run", "--standalone"]
            launch += [f"--nproc-per-node={job.nproc}", *_logged(logs)]
            return [*launch, *target]
        if self.is_torchrun:
            return [*self._meeting_apart(job), *_logged(logs), *target]
        between = [] if Path(self.words[0]).name in _TAKE_SCRIPTS else [plan.python]
        return [*self.words, *between, *target]

    def _meeting_apart(self, job: Job) -> list[str]:
        """torchrun as the user wrote it, meeting under a name of its own in every run: a machine
        that is late must not join the run before."""
        words = []
        skip = False
        for word in self.words:
            key, equals, _ = word.partition("=")
            if not skip and key in ("--rdzv-id", "--rdzv_id"):
                skip = not equals
                continue
            if skip:
                skip = False
                continue
            words.append(word)
        dynamic = any(w.partition("=")[0] in ("--rdzv-endpoint", "--rdzv_endpoint") for w in words)
        return [*words, f"--rdzv-id={self.meeting}-{job.name}"] if dynamic else words


def _logged(logs: Path) -> list[str]:
    """``--redirects 3`` gives every rank log files of its own."""
    return [f"--log-dir={logs}", "--redirects=3"]


def has_accelerator(environment: Mapping[str, str]) -> bool:
    """Whether a program finds a GPU in ``environment``, as far as can be told without torch: the
    machine has one, and no variable hides it (``CUDA_VISIBLE_DEVICES=""``)."""
    return any(
        Path(device).exists() and environment.get(hides, "0") not in ("", "-1")
        for device, hides in ACCELERATORS.items()
    )


def program_words(plan: Plan, job: Job, *, tree: Path) -> list[str]:
    """What is run, as the arguments of an interpreter started in the working directory."""
    if plan.module is not None:
        return ["-m", plan.module, *job.args]
    script, workdir = PurePosixPath(plan.script), PurePosixPath(plan.workdir)
    # As the user would name it from the working directory.
    inside = script.is_relative_to(workdir)
    path = str(script.relative_to(workdir)) if inside else str(tree / script)
    return [path, *job.args]


LOG = "launcher.log"
"""What a launcher prints, and a program that makes its ranks itself."""


def rank_logs(logs: Path) -> dict[int, dict[str, Path]]:
    """The log files of the ranks: rank -> ``{"stdout": ..., "stderr": ...}``."""
    found: dict[int, dict[str, Path]] = {}
    for path in logs.glob("**/std*.log"):
        if path.parent.name.isdigit():
            found.setdefault(int(path.parent.name), {})[path.stem] = path
    return found
