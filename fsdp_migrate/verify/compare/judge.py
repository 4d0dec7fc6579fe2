"""Put all gates to two recordings."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable
from dataclasses import dataclass

from fsdp_migrate.verify.compare.evidence import Evidence
from fsdp_migrate.verify.compare.gate import AMPLIFIES, Gate, Status, first_of
from fsdp_migrate.verify.compare.gates import BUFFERS, END, EXACT, NUMBERS, STRUCTURE, Check
from fsdp_migrate.verify.compare.gates.data import inputs_may_follow, settings_may_follow
from fsdp_migrate.verify.compare.symptoms import causes_first

FULL = "in float32"
"""The part of the gates that look at the program computed in float32."""

NATIVE = "in its own precision"
"""The part of the gates that look at its numbers again as it computes them itself."""


@dataclass(frozen=True)
class Judgement:
    """All answers, in order."""

    gates: tuple[Gate, ...]

    @property
    def first_failure(self) -> Gate | None:
        """The first gate that failed: it names the cause."""
        return first_of(self.gates, Status.FAIL)

    @property
    def first_void(self) -> Gate | None:
        """The first gate that could not be decided."""
        return first_of(self.gates, Status.VOID)

    @property
    def first_cost(self) -> Gate | None:
        """The first gate that found the same training at another cost."""
        return first_of(self.gates, Status.COST)


def exact_gates(evidence: Evidence) -> tuple[Gate, ...]:
    """The gates that need no tolerance, and so no twin."""
    return _ask(EXACT, evidence)


def cause_is_found(evidence: Evidence) -> bool:
    """Whether the exact gates already find a cause, which makes the twin superfluous."""
    failed = {gate.key for gate in exact_gates(evidence) if gate.status is Status.FAIL}
    if failed == {"inputs"}:
        return not inputs_may_follow(evidence)
    if failed and failed <= {"settings", "schedules"}:
        return "settings" in failed and not settings_may_follow(evidence)
    return bool(failed)


def judge(evidence: Evidence, full: Evidence | None = None, told: int | None = None) -> Judgement:
    """Ask every gate.

    ``full`` is the same program computed in float32. With it, the numbers are compared there first:
    a defect shows clearly, and what then still differs in the program's own precision is a matter
    of dtypes. ``told`` is the last step of which numbers can tell anything.
    """
    exact = exact_gates(evidence)
    if told is not None:
        evidence, full = evidence.until(told), full.until(told) if full is not None else None
    if full is None:
        numbers = _ask((*NUMBERS, *STRUCTURE, *END, *BUFFERS), evidence)
        return Judgement(causes_first(evidence, _blame_random(exact, _while_told(numbers))))
    # Whether the two can be compared at all has to be asked of the float32 runs as well.
    sound = [gate for gate in exact_gates(full) if gate.status in (Status.FAIL, Status.VOID)]
    numbers = (
        *_in_part(FULL, (*sound, *_ask(NUMBERS, full))),
        *_ask(STRUCTURE, evidence),
        *_in_part(FULL, _ask(END, full)),
        *_ask(BUFFERS, evidence),
        *_in_part(NATIVE, map(_told_in_full, _ask((*NUMBERS, *END), evidence))),
    )
    return Judgement(causes_first(evidence, _blame_random(exact, _while_told(numbers))))


def _while_told(gates: tuple[Gate, ...]) -> tuple[Gate, ...]:
    """All gates, of which none fails by a number once rounding alone has carried numbers too far:
    what follows from those cannot be told either."""
    found: list[Gate] = []
    lost: set[str] = set()
    for gate in gates:
        follows = gate.part in lost and gate.status is Status.FAIL and gate.measured is not None
        if gate.hint == AMPLIFIES:
            lost.add(gate.part)
        if follows:
            found.append(dataclasses.replace(gate, status=Status.VOID, hint=AMPLIFIES))
        else:
            found.append(gate)
    return tuple(found)


def _told_in_full(gate: Gate) -> Gate:
    """What rounding of 16 bits leaves undecided has been decided in float32."""
    return dataclasses.replace(gate, status=Status.NOTE) if gate.status is Status.VOID else gate


def _in_part(part: str, gates: Iterable[Gate]) -> tuple[Gate, ...]:
    return tuple(dataclasses.replace(gate, part=part) for gate in gates)


def _ask(checks: Iterable[Check], evidence: Evidence) -> tuple[Gate, ...]:
    answers = (_answer(check, evidence) for check in checks)
    return _by_step(tuple(gate for gate in answers if gate is not None))


def _by_step(gates: tuple[Gate, ...]) -> tuple[Gate, ...]:
    """Put the gate of evaluations first if they differ no later than the losses do.

    An example: a teacher model sees other weights, and its student trains otherwise from then on.
    """
    keys = [gate.key for gate in gates]
    if not {"trajectory", "evaluation"} <= set(keys):
        return gates
    n, m = keys.index("trajectory"), keys.index("evaluation")
    later, evaluated = gates[n].step, gates[m].step
    if later is None or evaluated is None or evaluated > later:
        return gates
    ordered = list(gates)
    ordered.insert(n, ordered.pop(m))
    return tuple(ordered)


def _answer(check: Check, evidence: Evidence) -> Gate | None:
    """The answer of one gate. If the gate raises, it is void, and the other gates still decide."""
    try:
        return check(evidence)
    except (ArithmeticError, IndexError, KeyError, ValueError) as error:
        says = f"could not be judged: {type(error).__name__}: {error}"
        name = check.__name__.replace("_", " ")
        return Gate(key=check.__name__, title=name, status=Status.VOID, says=says)


# Gates that fail where random numbers differ. A lost unit or collective has another cause.
_BY_CHANCE = frozenset({"start", "first-loss", "clipping", "gradient", "update", "trajectory"})


def _blame_random(exact: tuple[Gate, ...], numbers: tuple[Gate, ...]) -> tuple[Gate, ...]:
    """All gates. If other random numbers can explain the first failure, their gate fails too.

    Another state of the random number generators is no failure by itself, so its gate only notes
    it; but where numbers differ later, it came first and is the likely cause.
    """
    gates = [*exact, *numbers]
    first = next((gate for gate in gates if gate.status is Status.FAIL), None)
    if first is None or first.key not in _BY_CHANCE:
        return tuple(gates)
    return tuple(
        dataclasses.replace(gate, status=Status.FAIL)
        if gate.key == "random" and gate.status is Status.NOTE
        else gate
        for gate in gates
    )
