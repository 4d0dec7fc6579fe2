"""Put all gates to two recordings."""

from __future__ import annotations

from dataclasses import dataclass

from fsdp_migrate.verify.compare.evidence import Evidence
from fsdp_migrate.verify.compare.gate import Gate, Status
from fsdp_migrate.verify.compare.gates import BEFORE_NUMBERS, NUMBERS, Check


@dataclass(frozen=True)
class Judgement:
    """All answers, in order."""

    gates: tuple[Gate, ...]

    @property
    def first_failure(self) -> Gate | None:
        """The gate that names the cause: the first that failed.

        A different state of the random number generators is no failure by itself; but where numbers
        differ after it, it came first and is the likely cause.
        """
        failed = [gate for gate in self.gates if gate.status is Status.FAIL]
        return failed[0] if failed else None

    @property
    def first_void(self) -> Gate | None:
        """The first gate that could not be decided."""
        return next((gate for gate in self.gates if gate.status is Status.VOID), None)


def exact_gates(evidence: Evidence) -> tuple[Gate, ...]:
    """The gates that need no tolerance, and so no twin."""
    return tuple(_ask(check, evidence) for check in BEFORE_NUMBERS)


def decided(gates: tuple[Gate, ...]) -> bool:
    """Whether the exact gates already found a cause, which makes the twin superfluous."""
    return any(gate.status is Status.FAIL for gate in gates)


def judge(evidence: Evidence) -> Judgement:
    """Ask every gate."""
    exact = exact_gates(evidence)
    numbers = tuple(_ask(check, evidence) for check in NUMBERS)
    return Judgement(_blame_random(exact, numbers))


def _ask(check: Check, evidence: Evidence) -> Gate:
    """A gate that cannot digest the recordings is void; it must not take the verdict with it."""
    try:
        return check(evidence)
    except (ArithmeticError, IndexError, KeyError, ValueError) as error:
        says = f"could not be judged: {type(error).__name__}: {error}"
        name = check.__name__.replace("_", " ")
        return Gate(key=check.__name__, title=name, status=Status.VOID, says=says)


# What other random numbers can cause; a lost unit or collective they cannot.
_BY_CHANCE = frozenset({"start", "first-loss", "clipping", "gradient", "update", "trajectory"})


def _blame_random(exact: tuple[Gate, ...], numbers: tuple[Gate, ...]) -> tuple[Gate, ...]:
    gates = [*exact, *numbers]
    first = next((gate for gate in gates if gate.status is Status.FAIL), None)
    if first is None or first.key not in _BY_CHANCE:
        return tuple(gates)
    return tuple(
        Gate(key=g.key, title=g.title, status=Status.FAIL, says=g.says, hint=g.hint)
        if g.key == "random" and g.status is Status.NOTE
        else g
        for g in gates
    )
