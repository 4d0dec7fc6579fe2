"""All gates, in the order in which a cause shows: the first that fails names it."""

from __future__ import annotations

from collections.abc import Callable

from fsdp_migrate.verify.compare.evidence import Evidence
from fsdp_migrate.verify.compare.gate import Gate
from fsdp_migrate.verify.compare.gates import (
    data,
    ending,
    first_step,
    held,
    shape,
    start,
    state,
    traffic,
    training,
)

Check = Callable[[Evidence], Gate | None]
"""Answers None where there is nothing to ask."""

# Exact questions: no tolerance, no twin needed.
EXACT: tuple[Check, ...] = (
    shape.migrated_code_ran,
    shape.same_steps,
    shape.recorded,
    shape.same_names,
    shape.optimizer_alive,
    shape.same_placement,
    shape.gradients_present,
    held.same_samplers,
    data.same_inputs,
    data.same_modes,
    data.same_random,
    start.drawn,
    start.same_start,
    data.same_updated_buffers,
    start.same_first_buffers,
    data.same_settings,
    held.same_schedules,
    data.same_memory,
    ending.same_end,
    ending.same_remainder,
)

# Questions with a tolerance, best asked in float32.
NUMBERS: tuple[Check, ...] = (
    first_step.same_loss,
    first_step.same_clipping,
    first_step.same_gradient,
    data.same_restored_memory,
    first_step.same_update,
    start.same_later_start,
    training.same_trajectory,
    training.same_evaluation,
    held.same_averages,
)

# Questions about structure, exact again, but less telling than a number that differs.
STRUCTURE: tuple[Check, ...] = (
    training.all_move,
    shape.same_units,
    traffic.same_recomputation,
    traffic.same_traffic,
)

END: tuple[Check, ...] = (
    state.same_parameters,
    ending.same_left_weights,
    ending.same_last_evaluation,
    ending.same_last_weights,
)

BUFFERS: tuple[Check, ...] = (state.same_buffers,)
