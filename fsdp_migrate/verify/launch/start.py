"""The runs of one verification, each from tree to ending."""

from __future__ import annotations

import dataclasses
import json
import os
import re
import tempfile
import time
import uuid
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from fsdp_migrate.verify.compare.gate import plural
from fsdp_migrate.verify.compare.not_executed import changed_statements
from fsdp_migrate.verify.events import Event, Stage
from fsdp_migrate.verify.inject.config import ASKED, SOURCES, VARIABLE, WATCHED, Changes, Config
from fsdp_migrate.verify.launch import aftermath
from fsdp_migrate.verify.launch.ending import End, Ending
from fsdp_migrate.verify.launch.environment import environment
from fsdp_migrate.verify.launch.job import Job
from fsdp_migrate.verify.launch.launcher import (
    LOG,
    Launcher,
    LaunchMethod,
    has_accelerator,
    program_words,
)
from fsdp_migrate.verify.launch.scratch import (
    add_files,
    changed_sources,
    copy_tree,
    input_files,
)
from fsdp_migrate.verify.launch.warm import NotStarted, WarmServer
from fsdp_migrate.verify.launch.watch import Command, Patience, Running, watch
from fsdp_migrate.verify.plan import Plan, PlanError

FALLBACK = (
    "the recorder was started through a wrapper script, because the interpreter did not import the "
    "injected sitecustomize; processes that the program starts by itself were not recorded"
)

_PORT_TAKEN = re.compile(r"EADDRINUSE|address already in use", re.IGNORECASE)
_NOT_FORKED = "Cannot re-initialize CUDA in forked subprocess"
"""torch's words where the parent has touched CUDA (torch/cuda/__init__.py)."""

_WANTS_GPU = re.compile(r"cuda|nccl|nvidia|accelerator", re.IGNORECASE)
_TOO_FEW_GPUS = re.compile(r"invalid device ordinal|Duplicate GPU detected")
_ATTEMPTS = 4
_POLL_S = 0.02
_FORKED = (LaunchMethod.FORK, LaunchMethod.SINGLE)


def warm_server(python: str, folder: Path, extra: Mapping[str, str] | None = None) -> WarmServer:
    """A server for many verifications of programs that CUDA need not be imitated for, and whose
    environment gets nothing but ``extra``. It starts with the first run that it fits."""
    config = Config(folder=str(folder), run="none", max_steps=1, seed=0)
    env = environment(config, extra=extra or {}, scratch=folder)
    return WarmServer(python, env, folder / "server.log")


class Runner:
    """Runs jobs of one plan, and remembers what the first of them taught about the program: that it
    makes its own processes, that it wants CUDA, that the recorder has to come in another way.

    Close it after use. A ``server`` that is handed in is used when it fits, and left open.
    """

    def __init__(
        self,
        plan: Plan,
        room: Path,
        on_event: Callable[[Event], None],
        server: WarmServer | None = None,
    ) -> None:
        self.plan = plan
        self.room = room
        self.on_event = on_event
        self.launcher = Launcher.of(plan)
        self.simulate = plan.device == "simulate"
        self._worker = False
        self._given = server
        self._own: WarmServer | None = None

    def close(self) -> None:
        """End the server that forks ranks, if it was started here."""
        if self._own is not None:
            self._own.close()
            self._own = None

    def run(self, job: Job, patience: Patience) -> Ending:
        """Copy the tree, run the program in the copy, and read how it ended.

        Raises :class:`PlanError` when the tree cannot be copied or the program not be started.
        """
        notes: tuple[str, ...] = ()
        for attempt in range(1, _ATTEMPTS + 1):
            ending = self._once(job, self.room / job.name / str(attempt), patience)
            again = self._learn(job, ending) if attempt < _ATTEMPTS else None
            if again is None:
                break
            notes += (again,) if again else ()
        if self._worker:
            notes += (FALLBACK,)
        return dataclasses.replace(ending, notes=(*dict.fromkeys(notes), *ending.notes))

    def run_ours(self, script: Path, words: Sequence[str]) -> str | None:
        """Run a script of this package in a plain process of the project's interpreter: the last
        line of what it printed if it failed, else None."""
        room = Path(tempfile.mkdtemp(dir=self.room))
        config = Config(folder=str(room), run="", max_steps=0, seed=0)
        env = environment(config, extra=self.plan.env, scratch=room)
        del env[VARIABLE]
        command = [str(script), *words]
        log = room / LOG
        running: Running
        if self.launcher.method in _FORKED:
            try:
                running = self._server(env).run(command, env=env, cwd=room, world=0, logs=room)
            except NotStarted as error:
                return str(error)
        else:
            running = Command([self.plan.python, *command], env=env, cwd=room, log=log)
        while (code := running.poll()) is None:
            time.sleep(_POLL_S)
        lines = log.read_text(encoding="utf-8", errors="replace").strip().splitlines()
        return (lines or ["it ended without a word"])[-1] if code else None

    def adopt(self, ending: Ending) -> None:
        """Go on as a run that was kept from an earlier verification had gone."""
        self.simulate = ending.simulated
        if self.plan.launcher == "auto" and ending.launcher in (k.value for k in LaunchMethod):
            self.launcher = Launcher(LaunchMethod(ending.launcher))

    def _learn(self, job: Job, ending: Ending) -> str | None:
        """Why the run is worth another try, changed accordingly; None when it is not.

        An empty text means there is nothing to tell the user.
        """
        if ending.end is End.DEFEATED and not self._worker:
            self._worker = True
            return ""
        if ending.end is End.SPAWNS and self.plan.launcher == "auto":
            forked = self.launcher.method is LaunchMethod.FORK
            self.launcher = Launcher(LaunchMethod.SINGLE if forked else LaunchMethod.PYTHON)
            return "the program makes its own processes, so it was started as a single one"
        if ending.end is not End.CRASHED:
            return None
        if _NOT_FORKED in ending.full and self.launcher.method in _FORKED:
            forked = self.launcher.method is LaunchMethod.FORK
            self.launcher = Launcher(LaunchMethod.TORCHRUN if forked else LaunchMethod.PYTHON)
            return "CUDA does not work in forked processes here, so every run was started anew"
        if _PORT_TAKEN.search(ending.full):
            return "another process took the port of the first attempt"
        wants = _WANTS_GPU.search(ending.full + ending.says)
        may = self.plan.device == "auto" and not job.migrated and not self.simulate
        if not wants or not may:
            return None
        if _TOO_FEW_GPUS.search(ending.full):
            self.simulate = True
            return f"this machine has too few GPUs for {plural(job.nproc, 'rank')}"
        if not has_accelerator({**os.environ, **self.plan.env}):
            self.simulate = True
            return ""
        return None

    def _once(self, job: Job, room: Path, patience: Patience) -> Ending:
        plan, nodes = self.plan, self.launcher.nodes
        records = room / "records"
        if nodes > 1:  # every machine records into the same folder, and works in one of its own
            records = room.parent / "records"
            room = room.parent / f"node-{self.launcher.node}" / room.name
        tree, logs, scratch = (room / part for part in ("tree", "logs", "tmp"))
        for folder in (records, scratch, logs):
            folder.mkdir(parents=True, exist_ok=True)
        if aftermath.complete_ranks(records):
            raise PlanError(f"{records} holds an earlier verification; give another --rdzv-id")
        self.on_event(Event(Stage.COPY, job.role))
        try:
            copy_tree(plan.after if job.migrated else plan.before, tree, share=plan.share)
            for files in filter(None, (plan.files, job.files)):
                add_files(files, tree)
        except OSError as error:
            raise PlanError(f"the '{job.role.value}' tree could not be copied: {error}") from None
        sources = [name for name, _ in input_files(tree) if name.endswith(".py")]
        (records / SOURCES).write_text(json.dumps(sources), encoding="utf-8")
        if job.migrated and not job.timing:
            (records / WATCHED).write_text(json.dumps(_changed(plan)), encoding="utf-8")
        if job.observed and plan.asked:
            (records / ASKED).write_text(json.dumps(dict(plan.asked)), encoding="utf-8")
        config = self._config(job, records, tree)
        self.on_event(Event(Stage.START, job.role))
        watched = watch(
            self._start(job, config, tree=tree, logs=logs, scratch=scratch),
            run=config.run,
            folder=records,
            logs=logs,
            patience=patience,
            on_step=lambda step: self.on_event(Event(Stage.STEP, job.role, step)),
        )
        if nodes > 1:
            aftermath.await_others(records, patience.start)
        ending = aftermath.read_ending(watched, folder=records, logs=logs, tree=tree)
        self.on_event(Event(Stage.FINISH, job.role, says=ending.says))
        return dataclasses.replace(
            ending, tree=tree, simulated=self.simulate, launcher=self.launcher.method.value
        )

    def _config(self, job: Job, records: Path, tree: Path) -> Config:
        return Config(
            **{f.name: getattr(job, f.name) for f in dataclasses.fields(Changes)},
            folder=str(records.resolve()),
            tree=str(tree.absolute()),
            trees=(str(self.plan.before), str(self.plan.after)),
            run=f"fsdp-migrate-{uuid.uuid4().hex}",
            max_steps=self.plan.max_steps,
            grow_after=self.plan.grow_after,
            seed=self.plan.seed,
            simulate=self.simulate,
            devices=job.nproc,
            observe=job.observed,
            per_process=self.launcher.method in (LaunchMethod.TORCHRUN, LaunchMethod.FORK),
        )

    def _start(self, job: Job, config: Config, *, tree: Path, logs: Path, scratch: Path) -> Running:
        env = environment(config, extra=self.plan.env, scratch=scratch)
        cwd = tree / self.plan.workdir
        words = program_words(self.plan, job, tree=tree)
        if self.launcher.method in _FORKED:
            world = job.nproc if self.launcher.method is LaunchMethod.FORK else 0
            try:
                return self._server(env).run(words, env=env, cwd=cwd, world=world, logs=logs)
            except NotStarted:
                # torchrun will fail as well, in a way that names the rank and the reason.
                self.launcher = Launcher(LaunchMethod.TORCHRUN if world else LaunchMethod.PYTHON)
        command = self.launcher.command(
            self.plan, job, target=words, logs=logs, worker=self._worker
        )
        try:
            return Command(command, env=env, cwd=cwd, log=logs / LOG)
        except OSError as error:
            raise PlanError(f"{command[0]} could not be started: {error}") from None

    def _server(self, env: dict[str, str]) -> WarmServer:
        for server in (self._given, self._own):
            if server is not None and server.fits(self.plan.python, env):
                return server
        self.close()
        self.room.mkdir(parents=True, exist_ok=True)
        self._own = WarmServer(self.plan.python, env, self.room / "server.log")
        return self._own


def _changed(plan: Plan) -> dict[str, list[tuple[int, int]]]:
    """The changed statements of each changed file of the migrated tree."""
    return {
        name: changed_statements(*(_source(tree / name) for tree in (plan.before, plan.after)))
        for name in sorted(changed_sources(plan.before, plan.after))
    }


def _source(place: Path) -> bytes:
    return place.read_bytes() if place.is_file() else b""
