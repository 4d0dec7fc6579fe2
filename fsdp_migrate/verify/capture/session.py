"""What one training process remembers between two records."""

from __future__ import annotations

import atexit
import functools
import gc
import io
import json
import os
import platform
import resource
import sys
import time
import types
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ParamSpec

import torch
import torch.distributed as dist

from fsdp_migrate.verify.capture import SCHEMA
from fsdp_migrate.verify.capture.discovery import Explorer
from fsdp_migrate.verify.capture.extent import Extent
from fsdp_migrate.verify.capture.imported import imported
from fsdp_migrate.verify.capture.recorder import Recorder
from fsdp_migrate.verify.inject.config import ENDED, SOURCES, Config

P = ParamSpec("P")

# How long a rank that is done waits for the others before it leaves. Leaving early could cut the
# connection of a rank that is still receiving; waiting in a collective could hang.
_PEER_WAIT_S = 15.0


@dataclass
class Entered:
    """What entered the models and in which modes they were, and in evaluation what came out."""

    inputs: list[int] = field(default_factory=list)
    modes: list[list[int]] = field(default_factory=list)
    evaluation_inputs: list[int] = field(default_factory=list)
    evaluation_modes: list[list[int]] = field(default_factory=list)
    evaluation_outputs: list[list[float]] = field(default_factory=list)


class Session:
    """State shared by the hooks of one process. All counters are plain and process-wide: on GPUs
    autograd runs hooks in threads of its own."""

    def __init__(self, config: Config) -> None:
        self.config = config
        self.recorder = Recorder(Path(config.folder))
        self.extent = Extent(config)
        self.quiet = config.timing
        """Whether nothing is recorded of what happens, in a timed run or after the last step."""
        self.aside: Callable[[], AbstractContextManager[None]] = nullcontext
        """In which the recorder works: without the modes that the program is given."""
        self.leave_model: Callable[[], object] = lambda: None
        """Writes what the models are at the end."""
        self.steps = 0
        self.backward_depth = 0
        self.optimizer_depth = 0
        self.clip_depth = 0
        self.collective_depth = 0
        self.issued = 0
        """Collectives so far. All ranks of a correct program issue the same sequence."""
        self.last = "-"
        """The last of them."""
        self.explorer = Explorer()
        self.program = ""
        """The file that the program was started from; ``-m`` forgets it when it ends."""
        self.device = accelerator()
        """The kind of device there is, whatever the program is made to believe."""
        self.forward_owner: int | None = None
        self.method_owner: int | None = None
        """The module of which a method runs that is registered as a forward."""
        self.forward_trains = True
        self.autocast: str | None = None
        self.deferred = False
        """Whether parameters were on the meta device when FSDP got them."""
        # What happened since the last optimizer step; emptied into its record.
        self.losses: list[tuple[torch.Tensor, str]] = []
        self.clips: list[dict[str, Any]] = []
        self.entered = Entered()
        self.by_methods = Entered()
        self.methods_entered = 0
        self.evaluated = 0
        self.batches: list[int] = []
        self.recomputed = 0
        self.collectives: Counter[tuple[str, str, str]] = Counter()
        self.collective_bytes: Counter[tuple[str, str, str]] = Counter()
        self._said: set[str] = set()
        self._last_step_at = time.monotonic()
        atexit.register(self.end, ENDED)

    @property
    def phase(self) -> str:
        """What the program is doing, as far as the hooks can tell."""
        if self.clip_depth:
            return "clip"
        if self.backward_depth:
            return "backward"
        if self.forward_owner is not None or self.method_owner is not None:
            return "forward" if self.forward_trains else "evaluation"
        return "optimizer" if self.optimizer_depth else "other"

    def identify(self) -> None:
        """Open the record files as soon as the rank can be known.

        Called from collectives, backward and optimizer steps only: data loader workers import
        torch too, inherit RANK, and must not be taken for ranks.
        """
        recorder = self.recorder
        if recorder.opened:
            return
        if dist.is_available() and dist.is_initialized():
            rank, world = dist.get_rank(), dist.get_world_size()
            backend = _backend(self.device)
        else:
            rank, world, backend = int(os.environ.get("RANK", "0")), 1, "none"
        meta = {
            "schema": SCHEMA,
            "backend": backend,
            "torch": torch.__version__,
            "python": platform.python_version(),
            "device": self.device,
            "simulated": self.config.simulate,
            "deterministic": torch.are_deterministic_algorithms_enabled(),
        }
        recorder.open(rank, world, meta)
        self.program = getattr(sys.modules.get("__main__"), "__file__", None) or ""

    def beat(self, what: str, state: str) -> None:
        """Refresh the pulse: number of the last collective, step, phase, what, ENTER or LEFT."""
        self.recorder.beat(f"{self.issued} {self.steps} {self.phase} {what} {state}")

    def attempt(
        self, where: str, work: Callable[P, object], *args: P.args, **kwargs: P.kwargs
    ) -> None:
        """Do ``work``; if it fails, record that instead of disturbing the program."""
        try:
            with self.aside():
                work(*args, **kwargs)
        except Exception:
            self.recorder.error(where)

    def say_once(self, kind: str, what: str) -> None:
        """Record ``what`` under ``kind`` the first time only."""
        if what not in self._said:
            self._said.add(what)
            self.recorder.write(kind, what=what)

    def take_step_facts(self) -> dict[str, Any]:
        """What accumulated since the last step, ready to be written; starts afresh."""
        now = time.monotonic()
        facts: dict[str, Any] = {
            "losses": [
                [float(loss.double()), str(loss.dtype)[6:], kind] for loss, kind in self.losses
            ],
            "clips": [_readable(clip) for clip in self.clips],
            **vars(self.entered),
            "by_methods": vars(self.by_methods) if self.methods_entered else None,
            "evaluated": self.evaluated,
            "batches": self.batches,
            "collectives": [
                [*key, count, self.collective_bytes[key]]
                for key, count in sorted(self.collectives.items())
            ],
            "recomputed": self.recomputed,
            "autocast": self.autocast,
            "seconds": round(now - self._last_step_at, 4),
        }
        self._last_step_at = now
        self.losses, self.clips, self.batches = [], [], []
        self.entered, self.by_methods = Entered(), Entered()
        self.recomputed = self.evaluated = self.methods_entered = 0
        self.collectives, self.collective_bytes = Counter(), Counter()
        return facts

    def record_time(self) -> None:
        """Write how long the step took and how much memory was used at most so far.

        The device is waited for, so that the time is that of the step and not of its launch.
        """
        if self.device == "cpu":
            memory = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
        else:
            device = torch.get_device_module(self.device)
            device.synchronize()
            memory = device.max_memory_allocated()
        now = time.monotonic()
        self.recorder.write(
            "timed", n=self.steps, seconds=round(now - self._last_step_at, 6), memory=memory
        )
        self._last_step_at = now

    def end(self, why: str) -> None:
        """Write the last record of this rank, with what happened after the last step."""
        if self.recorder.opened and "end" not in self._said:
            self._said.add("end")
            self.attempt("imported", self._record_imported)
            self.attempt("the models at the end", self.leave_model)
            self._close("end", why=why)

    def _close(self, kind: str, **fields: Any) -> None:
        write = self.recorder.write
        self.attempt(kind, lambda: write(kind, n=self.steps, **fields, **self.take_step_facts()))
        self.recorder.flush()

    def goes_on(self) -> None:
        """The next step begins: stop the program if no more of it is wanted.

        If it is to go on unrecorded, what happened since the last step is written now.
        """
        config = self.config
        if not self.extent.is_reached(self.steps):
            return
        if not config.to_the_end or (config.last is not None and self.steps >= config.last):
            self.stop()
        if not self.quiet:
            self.attempt("the models after the last step", self.leave_model)
            self._close("judged")
            self.quiet = True

    def _record_imported(self) -> None:
        """Write which of the project's files this process imported, and which from elsewhere."""
        listed = Path(self.config.folder, SOURCES)
        if listed.exists():
            sources = json.loads(listed.read_text(encoding="utf-8"))
            inside, outside = imported(self.config.tree, sources, self.program)
            self.recorder.write("imported", inside=inside, outside=outside)

    def stop(self) -> None:
        """End this process now, cleanly, because enough steps were recorded. Does not return.

        ``os._exit`` rather than ``SystemExit``: the program may catch that, or run collectives and
        write checkpoints in its ``finally`` clauses. Peers are waited for through files, because a
        collective could hang.
        """
        self.end("max_steps")
        folder, recorder = self.recorder.folder, self.recorder
        (folder / f"done-{recorder.rank}").touch()
        deadline = time.monotonic() + _PEER_WAIT_S
        while time.monotonic() < deadline:
            if all((folder / f"done-{r}").exists() for r in range(recorder.world)):
                break
            time.sleep(0.01)
        self.attempt("flush", flush_files)
        os._exit(0)


def flush_files() -> None:
    """Write out what the program has written into its files so far."""
    files = [sys.stdout, sys.stderr]
    files += [f for f in gc.get_objects() if type(f) in (io.TextIOWrapper, io.BufferedWriter)]
    for file in files:
        with suppress(OSError, ValueError):  # closed already
            file.flush()


def _backend(device: str) -> str:
    """The backend that serves the device the program trains on."""
    backend = str(dist.get_backend())
    if backend != "undefined":
        return backend
    # init_process_group() without a backend: one for each kind of device, "cpu:gloo,cuda:nccl".
    served = dict(entry.split(":") for entry in dist.get_backend_config().split(","))
    return served.get(device, backend)


def _readable(clip: dict[str, Any]) -> dict[str, Any]:
    """Read a clip norm from its device, now that the step waits anyway."""
    return {k: float(v.double()) if isinstance(v, torch.Tensor) else v for k, v in clip.items()}


def accelerator() -> str:
    """The kind of device the program can train on: ``cuda``, ``xpu``, ..., or ``cpu``."""
    if torch.cuda.is_available():
        return "cuda"
    modern = getattr(torch, "accelerator", None)
    device = modern.current_accelerator() if modern and modern.is_available() else None
    return str(device.type) if device is not None else "cpu"


@contextmanager
def nested(session: Session, counter: str) -> Iterator[bool]:
    """Count nesting in ``session.<counter>``; gives True to the outermost entry."""
    depth: int = getattr(session, counter)
    setattr(session, counter, depth + 1)
    try:
        yield depth == 0
    finally:
        setattr(session, counter, getattr(session, counter) - 1)


def replace(owner: object, name: str, work: Callable[..., Any]) -> None:
    """Replace ``owner.name`` by a function that calls ``work(original, *args, **kwargs)``.

    It keeps the original's name, signature and attributes. Where ``owner`` is a module, other
    modules of torch that have imported the name get the replacement as well.
    """
    original = getattr(owner, name)

    def replacement(*args: Any, **kwargs: Any) -> Any:
        return work(original, *args, **kwargs)

    functools.update_wrapper(replacement, original)
    setattr(owner, name, replacement)
    if isinstance(owner, types.ModuleType):
        for module in holders(name):
            if vars(module).get(name) is original:
                setattr(module, name, replacement)


_looked_at: set[str] = set()
_holders: dict[str, dict[str, types.ModuleType]] = {}


def holders(name: str) -> list[types.ModuleType]:
    """The modules of torch that have a function of that name, or had when they were looked at.
    There are thousands of them, and each is looked at once, when it has been imported."""
    for key in sys.modules.keys() - _looked_at:
        module = sys.modules[key]
        if not getattr(getattr(module, "__spec__", None), "_initializing", False):
            _looked_at.add(key)
        if key.startswith("torch."):
            for each, value in list(vars(module).items()):
                if callable(value) and not isinstance(value, type):
                    _holders.setdefault(each, {})[key] = module
    return list(_holders.get(name, {}).values())
