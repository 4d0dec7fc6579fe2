"""All gates, in the order in which a cause shows: the first that fails names it."""

from __future__ import annotations

from collections.abc import Callable

from fsdp_migrate.verify.compare.evidence import Evidence
from fsdp_migrate.verify.compare.gate import Gate
from fsdp_migrate.verify.compare.gates import data, first_step, shape, state, traffic, training

Check = Callable[[Evidence], Gate]

# Exact questions: no tolerance, no twin needed.
BEFORE_NUMBERS: tuple[Check, ...] = (
    shape.same_steps,
    shape.recorded,
    shape.same_names,
    shape.optimizer_alive,
    shape.same_placement,
    shape.gradients_present,
    data.same_inputs,
    data.same_random,
    data.same_start,
    data.same_settings,
)

NUMBERS: tuple[Check, ...] = (
    first_step.same_loss,
    first_step.same_clipping,
    first_step.same_gradient,
    first_step.same_update,
    training.same_trajectory,
    training.all_move,
    shape.same_units,
    traffic.same_traffic,
    state.same_parameters,
    state.same_buffers,
)
