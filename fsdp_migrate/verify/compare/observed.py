"""What the original did with FSDP1, as its ranks noted it. ``--observed`` saves it as JSON."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import asdict, dataclass
from typing import Any

SCHEMA = 1
"""Version of :meth:`Observed.to_dict`."""

Event = dict[str, Any]


@dataclass(frozen=True, order=True)
class Span:
    """Where an expression stands, as ``ast`` counts lines and columns. Columns are -1 where the
    interpreter does not know them."""

    line: int
    column: int
    last: int
    last_column: int

    @property
    def has_columns(self) -> bool:
        return self.column >= 0

    def contains(self, other: Span) -> bool:
        """Whether all of ``other`` stands within; by lines alone where columns are not known."""
        if not (self.has_columns and other.has_columns):
            return self.line <= other.line and other.last <= self.last
        begins = (self.line, self.column) <= (other.line, other.column)
        return begins and (other.last, other.last_column) <= (self.last, self.last_column)


@dataclass(frozen=True, order=True)
class Use:
    """A place in the project that used what only FSDP1 has.

    ``what`` is its name: ``clip_grad_norm_``, ``StateDictType.FULL_STATE_DICT``. ``through``: the
    library that was called there, and called FSDP1.
    """

    file: str
    span: Span
    what: str
    through: str = ""
    models: tuple[int, ...] = ()
    """Numbers of the constructors that made the models it was done to."""
    ranks: tuple[int, ...] = ()
    first_step: int = 0
    """How many optimizer steps there had been when it was seen first."""

    @property
    def place(self) -> str:
        return f"{self.file}:{self.span.line}"

    def __str__(self) -> str:
        through = f" (through {self.through})" if self.through else ""
        return f"{self.place} {self.what}{through}"


@dataclass(frozen=True)
class Made:
    """What reached a constructor, and the units that it made."""

    number: int
    file: str
    span: Span
    module: str
    """Class of the module that was wrapped."""
    arguments: dict[str, Any]
    """Those that were given, by name; defaults are left out."""
    units: tuple[tuple[str, str], ...]
    """Names and classes of the units, the outermost with an empty name; the first of them, where
    there are many."""
    count: int


@dataclass(frozen=True)
class Observed:
    """What all ranks noted together. ``problems``: what could not be noted."""

    uses: tuple[Use, ...] = ()
    made: tuple[Made, ...] = ()
    problems: tuple[str, ...] = ()

    def to_dict(self) -> dict[str, Any]:
        """The facts as JSON values; the keys are stable within one ``schema``."""
        return {
            "schema": SCHEMA,
            "uses": [asdict(use) for use in self.uses],
            "constructors": [asdict(made) for made in self.made],
            "problems": list(self.problems),
        }

    @classmethod
    def of_dict(cls, facts: dict[str, Any]) -> Observed:
        """What :meth:`to_dict` made.

        Raises :class:`ValueError` when it is of another schema.
        """
        if facts.get("schema") != SCHEMA:
            raise ValueError("it was written by another version")
        uses = [
            Use(**{**u, "span": Span(**u["span"]), **{n: tuple(u[n]) for n in ("models", "ranks")}})
            for u in facts["uses"]
        ]
        made = [
            Made(**{**m, "span": Span(**m["span"]), "units": tuple(map(tuple, m["units"]))})
            for m in facts["constructors"]
        ]
        return cls(tuple(uses), tuple(made), tuple(facts["problems"]))


NOTHING = Observed()


def together(runs: Iterable[Observed]) -> Observed:
    """What several runs of one program did, each thing once."""
    uses: dict[tuple[Any, ...], Use] = {}
    made: dict[str, Made] = {}
    problems: dict[str, None] = {}
    for run in runs:
        for use in run.uses:
            uses.setdefault((use.file, use.span, use.what, use.through), use)
        for each in run.made:
            made.setdefault(repr(each), each)
        problems |= dict.fromkeys(run.problems)
    return Observed(tuple(sorted(uses.values())), tuple(made.values()), tuple(problems))


def read(ranks: Iterable[Iterable[Event]]) -> Observed:
    """Put together what each rank wrote."""
    events = [(rank, event) for rank, written in enumerate(ranks) for event in written]
    places: dict[tuple[Any, ...], list[tuple[int, Event]]] = {}
    made: dict[int, Made] = {}
    problems: dict[str, None] = {}
    for rank, event in events:
        if event["t"] == "use":
            key = (event["file"], _span(event), event["what"], event["through"])
            places.setdefault(key, []).append((rank, event))
        elif event["t"] == "constructor":
            made.setdefault(event["number"], _made(event))
        elif event["t"] == "unobserved":
            problems[event["what"]] = None
    uses = [
        Use(
            file=key[0],
            span=key[1],
            what=key[2],
            through=key[3],
            models=tuple(sorted({e["model"] for _, e in found if e["model"] is not None})),
            ranks=tuple(sorted({rank for rank, _ in found})),
            first_step=min(e["step"] for _, e in found),
        )
        for key, found in places.items()
    ]
    return Observed(tuple(sorted(uses)), tuple(made[n] for n in sorted(made)), tuple(problems))


def _span(event: Event) -> Span:
    line, column, last, last_column = event["span"]
    if column is None:
        return Span(line, -1, line, -1)
    return Span(line, column, last, last_column)


def _made(event: Event) -> Made:
    units = tuple((name, kind) for name, kind in event["units"])
    plain = {n: event[n] for n in ("number", "file", "module", "arguments", "count")}
    return Made(**plain, span=_span(event), units=units)
