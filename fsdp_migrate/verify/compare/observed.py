"""What the original did with FSDP1, as its ranks noted it. ``--observed`` saves it as JSON."""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from typing import Any

SCHEMA = 3
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
    buffers: tuple[str, ...] = ()
    """The dtypes of the floating-point buffers in the module."""


@dataclass(frozen=True, order=True)
class Seen:
    """A value that an expression had which the rewriter asked about.

    ``kind``: ``model`` of FSDP1's, ``optimizer``, ``holder`` of one of both, ``other``; ``unseen``
    where it could not be looked at.
    """

    file: str
    span: Span
    kind: str
    class_: str = ""
    value: str = ""
    """As JSON, where it is plain."""
    models: tuple[int, ...] = ()
    """Numbers of the constructors that made the models."""
    ranks: tuple[int, ...] = ()
    first_step: int = 0


@dataclass(frozen=True)
class Placed:
    """A unit that has parameters, by the path of its module in the whole model, without the levels
    that wrappers add."""

    module: str
    param_dtype: str
    reduce_dtype: str
    parameters: tuple[str, ...]


@dataclass(frozen=True)
class Layout:
    """The models as they were when training began."""

    models: tuple[str, ...] = ()
    """Their classes."""
    units: tuple[Placed, ...] = ()
    outside: tuple[str, ...] = ()
    """Parameters that are in no unit."""

    @property
    def parameters(self) -> frozenset[str]:
        return frozenset(self.outside).union(*(unit.parameters for unit in self.units))

    @classmethod
    def of_dict(cls, facts: dict[str, Any]) -> Layout:
        units = [Placed(**{**u, "parameters": tuple(u["parameters"])}) for u in facts["units"]]
        return cls(tuple(facts["models"]), tuple(units), tuple(facts["outside"]))


@dataclass(frozen=True)
class Observed:
    """What all ranks noted together. ``problems``: what could not be noted."""

    uses: tuple[Use, ...] = ()
    made: tuple[Made, ...] = ()
    problems: tuple[str, ...] = ()
    seen: tuple[Seen, ...] = ()
    """The values of places that were asked about."""
    world: int = 0
    """How many ranks there were."""
    layout: Layout = Layout()

    def to_dict(self) -> dict[str, Any]:
        """The facts as JSON values; the keys are stable within one ``schema``."""
        return {
            "schema": SCHEMA,
            "uses": [asdict(use) for use in self.uses],
            "constructors": [asdict(made) for made in self.made],
            "problems": list(self.problems),
            "seen": [asdict(each) for each in self.seen],
            "world": self.world,
            "layout": asdict(self.layout),
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
            Made(
                **{
                    **m,
                    "span": Span(**m["span"]),
                    "units": tuple(map(tuple, m["units"])),
                    "buffers": tuple(m["buffers"]),
                }
            )
            for m in facts["constructors"]
        ]
        seen = [
            Seen(
                **{**s, "span": Span(**s["span"]), **{n: tuple(s[n]) for n in ("models", "ranks")}}
            )
            for s in facts["seen"]
        ]
        problems, world = tuple(facts["problems"]), facts["world"]
        layout = Layout.of_dict(facts["layout"])
        return cls(tuple(uses), tuple(made), problems, tuple(seen), world, layout)


NOTHING = Observed()


def together(runs: Iterable[Observed]) -> Observed:
    """What several runs of one program did, each thing once."""
    uses: dict[tuple[Any, ...], Use] = {}
    made: dict[str, Made] = {}
    problems: dict[str, None] = {}
    seen: dict[tuple[Any, ...], Seen] = {}
    world, layout = 0, Layout()
    for run in runs:
        for use in run.uses:
            uses.setdefault((use.file, use.span, use.what, use.through), use)
        for each in run.made:
            made.setdefault(repr(each), each)
        problems |= dict.fromkeys(run.problems)
        for value in run.seen:
            key = (value.file, value.span, value.kind, value.class_, value.value, value.models)
            seen.setdefault(key, value)
        world = max(world, run.world)
        layout = layout if layout.units else run.layout
    every = tuple(sorted(uses.values())), tuple(made.values()), tuple(problems)
    return Observed(*every, tuple(sorted(seen.values())), world, layout)


def read(ranks: Iterable[Iterable[Event]]) -> Observed:
    """Put together what each rank wrote."""
    written = [list(rank) for rank in ranks]
    events = [(rank, event) for rank, each in enumerate(written) for event in each]
    places: dict[tuple[Any, ...], list[tuple[int, Event]]] = {}
    made: dict[int, Made] = {}
    problems: dict[str, None] = {}
    seen: dict[tuple[Any, ...], list[tuple[int, Event]]] = {}
    for rank, event in events:
        if event["t"] == "use":
            key = (event["file"], _span(event), event["what"], event["through"])
            places.setdefault(key, []).append((rank, event))
        elif event["t"] == "constructor":
            made.setdefault(event["number"], _made(event))
        elif event["t"] == "value at":
            what = (event["file"], _span(event), event["kind"], event["class"], _plain(event))
            seen.setdefault(what, []).append((rank, event))
        elif event["t"] == "unobserved":
            problems[event["what"]] = None
    uses = [
        Use(
            file=key[0],
            span=key[1],
            what=key[2],
            through=key[3],
            **_who(found),
        )
        for key, found in places.items()
    ]
    values = [Seen(*key, **_who(found)) for key, found in seen.items()]
    return Observed(
        tuple(sorted(uses)),
        tuple(made[n] for n in sorted(made)),
        tuple(problems),
        tuple(sorted(values)),
        len(written),
        _layout(written),
    )


def _layout(written: list[list[Event]]) -> Layout:
    """What rank 0 wrote of the models last."""
    events = [event for event in (written[0] if written else ()) if event["t"] == "model"]
    if not events:
        return Layout()
    units = tuple(
        Placed(u["module"], u["param_dtype"], u["reduce_dtype"], tuple(u["names"]))
        for u in events[-1]["units"]
    )
    managed = {name for unit in units for name in unit.parameters}
    outside = tuple(name for name in events[-1]["parameters"] if name not in managed)
    return Layout(tuple(events[-1]["models"]), units, outside)


def _who(found: list[tuple[int, Event]]) -> dict[str, Any]:
    """By which models and ranks something was met, and at which step first."""
    return {
        "models": tuple(sorted({e["model"] for _, e in found if e["model"] is not None})),
        "ranks": tuple(sorted({rank for rank, _ in found})),
        "first_step": min(e["step"] for _, e in found),
    }


def _plain(event: Event) -> str:
    return (
        ""
        if event["value"] is None and event["class"] != "NoneType"
        else json.dumps(event["value"])
    )


def _span(event: Event) -> Span:
    line, column, last, last_column = event["span"]
    if column is None:
        return Span(line, -1, line, -1)
    return Span(line, column, last, last_column)


def _made(event: Event) -> Made:
    units = tuple((name, kind) for name, kind in event["units"])
    plain = {n: event[n] for n in ("number", "file", "module", "arguments", "count")}
    buffers = tuple(event.get("buffers", ()))
    return Made(**plain, span=_span(event), units=units, buffers=buffers)
