"""The cells of the tables that several renderings have, as text that is not escaped yet."""

from __future__ import annotations

from collections.abc import Iterable

from fsdp_migrate.verify.compare.gate import Gate
from fsdp_migrate.verify.compare.gates.training import Row
from fsdp_migrate.verify.launch.ending import Ending
from fsdp_migrate.verify.report.model import Report, World

STEPS = ("step", "loss before", "loss after", "apart", "allowed", "norm before", "norm after")


def short(value: float | None) -> str:
    """A difference in two digits; a plain 0 for none, and nothing where there is no number."""
    if value is None:
        return ""
    return f"{value:.1e}" if value else "0"


def step_cells(row: Row) -> list[str]:
    norms = [f"{norm:.6g}" for norm in row.norms] if row.norms else ["", ""]
    apart = [short(row.difference), short(row.allowed)]
    return [str(row.step), f"{row.before:.7g}", f"{row.after:.7g}", *apart, *norms]


def world_cells(world: World) -> list[str]:
    losses = [f"{value:.7g}" for value in (*world.first, *world.last)]
    apart = (world.loss_apart, world.parameters_apart, world.from_first)
    return [str(world.ranks), *losses, *map(short, apart)]


def gate_numbers(gate: Gate) -> list[str]:
    """Its numbers: measured, allowed, noise."""
    return [short(value) for value in (gate.measured, gate.allowed, gate.twin)]


def remark_lists(report: Report) -> Iterable[tuple[str, tuple[str, ...]]]:
    """The lists at the end of a report, each with its title."""
    lists = {
        "Expected differences": report.expected,
        "Patched to run here": report.patches,
        "Notes": report.notes,
        "Not checked": report.limits,
    }
    return ((title, items) for title, items in lists.items() if items)


def blamed_rank(ending: Ending) -> str:
    """``, rank 1`` where one rank is to blame."""
    return f", rank {ending.failed_rank}" if ending.failed_rank is not None else ""


def traceback_lines(ending: Ending, *, indent: str, most: int = 0) -> list[str]:
    """What the program did when it ended, without the line that ``says`` is; of every rank's stack
    the last ``most`` frames."""
    lines = [line for line in ending.traceback if line != ending.says]
    for trace in ending.ranks:
        frames = (f"{indent}{frame}" for frame in trace.stack[-most:])
        lines += [f"rank {trace.rank} {trace.last}", *frames]
    return lines
