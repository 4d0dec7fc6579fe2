"""What follows from something else is told after it."""

from __future__ import annotations

from fsdp_migrate.verify.compare.evidence import Evidence
from fsdp_migrate.verify.compare.gate import Gate, Status
from fsdp_migrate.verify.compare.gates.data import inputs_may_follow, some_enter_alike
from fsdp_migrate.verify.compare.gates.start import begins_with_other_weights
from fsdp_migrate.verify.compare.gates.state import buffers_apart_since

# Gates about what a program does with a model: they make its outputs others, and so the inputs of
# a model that it feeds.
_SAME_STEP = frozenset({"mode"})
_EARLIER = frozenset(
    {"settings", "schedules", "optimizer-state", "trajectory", "evaluation", "later-start"}
)
_FROM_THE_START = frozenset({"start", "first-loss", "clipping", "gradient", "update"})


_BEFORE_UPDATE = frozenset({"first-loss", "clipping", "gradient"})
"""Gates about what the first step computes before an optimizer changes anything."""


def _numbers_before_settings(evidence: Evidence, gates: tuple[Gate, ...]) -> tuple[Gate, ...]:
    """The gates, with settings that differ in a step behind numbers that differ by then: these are
    computed before an optimizer uses its settings, and a rate may follow them."""
    settings = next((g for g in gates if g.key == "settings" and g.status is Status.FAIL), None)
    if settings is None or settings.step is None or evidence.twin is None:
        return gates
    causes = [
        gate
        for gate in gates
        if gate.status is Status.FAIL
        and (gate.key in _BEFORE_UPDATE or _later_by(gate, settings.step))
    ]
    if not causes:
        return gates
    at = gates.index(settings)
    rest = [gate for gate in gates[at:] if not any(gate is cause for cause in causes)]
    return (*gates[:at], *causes, *rest)


def _later_by(gate: Gate, step: int) -> bool:
    return gate.key == "trajectory" and gate.step is not None and gate.step <= step


def causes_first(evidence: Evidence, gates: tuple[Gate, ...]) -> tuple[Gate, ...]:
    """The gates in an order in which inputs that a model may have made come after what made them
    others: two models that feed each other differ in their inputs whatever the cause is."""
    gates = _numbers_before_settings(evidence, gates)
    at = next((n for n, g in enumerate(gates) if g.key == "inputs" and g.status is Status.FAIL), -1)
    if at < 0 or gates[at].step is None:
        return gates
    if not inputs_may_follow(evidence):
        starts = [g for g in gates[at + 1 :] if g.key == "start" and g.status is Status.FAIL]
        if not starts or not begins_with_other_weights(evidence) or not some_enter_alike(evidence):
            return gates
        rest = [gate for gate in gates[at:] if gate is not starts[0]]
        return (*gates[:at], starts[0], *rest)
    inputs, step = gates[at], gates[at].step or 0
    since = buffers_apart_since(evidence)

    def is_cause(gate: Gate) -> bool:
        if gate.status is not Status.FAIL or gate.part != inputs.part:
            return False
        if gate.key in _SAME_STEP:
            return gate.step is not None and gate.step <= step
        if gate.key in _EARLIER:
            return gate.step is not None and gate.step < step
        if gate.key == "buffers":
            return since is not None and since < step
        return gate.key in _FROM_THE_START and step > 1

    causes = [gate for gate in gates[at + 1 :] if is_cause(gate)]
    if not causes:
        return gates
    rest = [gate for gate in gates[at:] if not any(gate is cause for cause in causes)]
    return (*gates[:at], *causes, *rest)
