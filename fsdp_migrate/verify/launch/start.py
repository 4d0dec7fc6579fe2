"""One recorded run from tree to outcome."""

from __future__ import annotations

import dataclasses
import uuid
from collections.abc import Callable
from pathlib import Path

from fsdp_migrate.verify.events import Event, Role, Stage
from fsdp_migrate.verify.inject.config import Config, Noise
from fsdp_migrate.verify.launch import aftermath, torchrun
from fsdp_migrate.verify.launch.environment import environment
from fsdp_migrate.verify.launch.outcome import End, Outcome
from fsdp_migrate.verify.launch.scratch import copy_tree
from fsdp_migrate.verify.launch.watch import Patience, run_watched
from fsdp_migrate.verify.plan import Plan, PlanError

FALLBACK = (
    "the recorder was started through a wrapper script, because the interpreter did not import the "
    "injected sitecustomize; processes that the program starts by itself were not recorded"
)


def train(
    plan: Plan,
    role: Role,
    *,
    room: Path,
    patience: Patience,
    noise: Noise | None = None,
    on_event: Callable[[Event], None],
) -> Outcome:
    """Copy the tree of ``role``, run the program in the copy, and read how it ended.

    ``room`` is an empty folder for the copy, the records and the logs of this run.

    Raises :class:`PlanError` when the tree cannot be copied or the interpreter not be started.
    """
    outcome = _once(plan, role, room / "1", patience, noise, on_event, worker=False)
    if outcome.end is not End.DEFEATED:
        return outcome
    again = _once(plan, role, room / "2", patience, noise, on_event, worker=True)
    return dataclasses.replace(again, notes=(FALLBACK, *again.notes))


def _once(
    plan: Plan,
    role: Role,
    room: Path,
    patience: Patience,
    noise: Noise | None,
    on_event: Callable[[Event], None],
    *,
    worker: bool,
) -> Outcome:
    source = plan.after if role is Role.AFTER else plan.before
    tree, records, logs, scratch = (room / part for part in ("tree", "records", "logs", "tmp"))
    for folder in (records, scratch):
        folder.mkdir(parents=True)
    on_event(Event(Stage.COPY, role))
    try:
        copy_tree(source, tree, share=plan.share)
    except OSError as error:
        raise PlanError(f"the '{role.value}' tree could not be copied: {error}") from None
    config = Config(
        folder=str(records),
        run=f"fsdp-migrate-{uuid.uuid4().hex}",
        max_steps=plan.max_steps,
        seed=plan.seed,
        noise=noise,
    )
    on_event(Event(Stage.START, role))
    try:
        watched = run_watched(
            torchrun.command(plan, tree=tree, logs=logs, worker=worker),
            env=environment(config, extra=plan.env, scratch=scratch),
            cwd=tree / plan.workdir,
            run=config.run,
            folder=records,
            logs=logs,
            patience=patience,
            on_step=lambda step: on_event(Event(Stage.STEP, role, step)),
        )
    except OSError as error:
        raise PlanError(f"{plan.python} could not be started: {error}") from None
    outcome = aftermath.read(watched, folder=records, logs=logs, tree=tree)
    on_event(Event(Stage.FINISH, role, says=outcome.says))
    return outcome
