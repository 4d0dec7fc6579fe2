"""Read the record files of a run."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from fsdp_migrate.verify.compare import observed
from fsdp_migrate.verify.compare.recording import (
    Buffer,
    Dump,
    Entered,
    Held,
    Optimizer,
    Parameter,
    Part,
    Pieces,
    Recording,
    Rest,
    Snapshot,
    Step,
    Tensors,
    Unit,
)
from fsdp_migrate.verify.compare.sketch import Sketch
from fsdp_migrate.verify.inject.config import ENDED

SCHEMA = 7
"""The record format this reader knows. Must equal the writer's."""

Event = dict[str, Any]


class LoadError(ValueError):
    """The records cannot be understood."""


def load(folder: Path) -> Recording:
    """The recording in ``folder``, which holds one ``rank-R.jsonl`` per rank.

    Raises :class:`LoadError` when ranks are missing, wrote another format, or never trained.
    """
    ranks = {
        int(path.stem.removeprefix("rank-")): list(_events(path))
        for path in folder.glob("rank-*.jsonl")
    }
    if not ranks or set(ranks) != set(range(len(ranks))):
        raise LoadError(f"records of ranks {sorted(ranks)} only")
    events = [ranks[rank] for rank in range(len(ranks))]
    metas = [_one(rank, "meta") for rank in events]
    if any(meta["schema"] != SCHEMA for meta in metas):
        raise LoadError("the records were written by another version")
    if metas[0]["world"] != len(ranks):
        raise LoadError(f"{len(ranks)} ranks recorded in a group of {metas[0]['world']}")
    models = [_last(rank, "model") for rank in events]
    snapshots = [_all(rank, "after") for rank in events]
    steps = [_all(rank, "step") for rank in events]
    count = min(len(rank) for rank in snapshots)
    return Recording(
        world=len(ranks),
        torch=metas[0]["torch"],
        device=metas[0]["device"],
        simulated=bool(metas[0]["simulated"]),
        backend=metas[0]["backend"],
        models=tuple(models[0]["models"]),
        parameters=_parameters(models),
        units=tuple(
            Unit(u["module"], u["kind"], frozenset(u["names"]), u["param_dtype"], u["reduce_dtype"])
            for u in models[0]["units"]
        ),
        optimizers_by_rank=tuple(
            tuple(_optimizer(event) for event in _all(rank, "optimizer")) for rank in events
        ),
        init=_snapshot([_first_seen(rank) for rank in events]),
        appeared=_appeared(events),
        steps=tuple(_step([rank[n] for rank in steps]) for n in range(count)),
        after=tuple(_snapshot([rank[n] for rank in snapshots]) for n in range(count)),
        dumps=_dumps(folder, events),
        held=_held([_all(rank, "held") for rank in events]),
        errors=_said(events, "error", lambda e: f"{e['where']}: {e['message']}"),
        unsupported=_said(events, "unsupported", lambda e: e["what"]),
        patches=_said(events, "patch", lambda e: e["what"]),
        notes=_said(events, "note", lambda e: e["what"]),
        drawn_alike=any(_all(rank, "alike") for rank in events),
        deferred=any(model["deferred"] for model in models),
        given=_given(events),
        imported=frozenset(
            path for rank in events for e in _all(rank, "imported") for path in e["inside"]
        ),
        executed=_executed(folder),
        from_outside=_outside(events),
        observed=observed.read(events),
        rest=_rest(events),
    )


def _given(events: list[list[Event]]) -> tuple[int, ...]:
    said = [_all(rank, "given") for rank in events]
    if not all(said) or any(event["synced"] for rank in said for event in rank):
        return ()
    return tuple(rank[0]["total"] for rank in said)


def _rest(events: list[list[Event]]) -> Rest | None:
    """None where a rank was ended before it had written its last record."""
    ends = [_all(rank, "end") for rank in events]
    if not all(ends):
        return None
    last = [rank[-1] for rank in ends]
    parted = [(_all(rank, "judged") or end)[0] for rank, end in zip(events, ends, strict=True)]
    finals = [_all(rank, "final") for rank in events]
    together = len({event["n"] for event in parted}) == 1
    models = [_snapshot([rank[n] for rank in finals]) if all(finals) else None for n in (0, -1)]
    return Rest(
        ended=all(event["why"] == ENDED for event in last),
        steps=min(event["n"] for event in last),
        moment=_step([{**_NO_STEP, **event} for event in parted]) if together else None,
        models=models[0] if together else None,
        last=models[1] if parted != last else None,
    )


_NO_STEP = {"gradients": {}, "spread": {}, "settings": {}, "states": {}, "rng": 0}


def load_parameters(folder: Path) -> dict[str, Parameter]:
    """Only the parameters by name, as far as a run that did not finish recorded them.

    Empty when some rank never got that far, or its records are damaged.
    """
    try:
        ranks = [list(_events(path)) for path in sorted(folder.glob("rank-*.jsonl"))]
        models = [_last(events, "model") for events in ranks]
    except LoadError:
        return {}
    return _parameters(models) if models else {}


def _events(path: Path) -> Iterable[Event]:
    """All complete lines; a killed process may leave half a line at the end."""
    lines = path.read_text(encoding="utf-8").split("\n")
    for number, line in enumerate(lines[:-1]):
        try:
            yield json.loads(line)
        except ValueError:
            raise LoadError(f"{path.name}:{number + 1} is damaged") from None


def _all(events: list[Event], kind: str) -> list[Event]:
    return [event for event in events if event["t"] == kind]


def _one(events: list[Event], kind: str) -> Event:
    found = _all(events, kind)
    if not found:
        raise LoadError(f"a rank has no '{kind}' record")
    return found[0]


def _last(events: list[Event], kind: str) -> Event:
    _one(events, kind)
    return _all(events, kind)[-1]


def _first_seen(events: list[Event]) -> Event:
    """Every parameter and buffer as it was when it was first looked at."""
    found: Event = {"params": {}, "buffers": {}}
    for event in (_one(events, "init"), *_all(events, "seen")):
        for kind, values in found.items():
            values.update({n: v for n, v in event[kind].items() if n not in values})
    return found


def _appeared(events: list[list[Event]]) -> frozenset[str]:
    """Names of the parameters that were not there from the beginning, on any rank."""
    return frozenset(
        name
        for rank in events
        for event in _all(rank, "seen")
        for name in event["params"].keys() - _one(rank, "init")["params"].keys()
    )


def _said(events: list[list[Event]], kind: str, text: Any) -> tuple[str, ...]:
    """What any rank said, each thing once."""
    return tuple(dict.fromkeys(text(event) for rank in events for event in _all(rank, kind)))


def _outside(events: list[list[Event]]) -> tuple[tuple[str, str], ...]:
    found = {
        (source, place)
        for rank in events
        for event in _all(rank, "imported")
        for source, place in event["outside"]
    }
    return tuple(sorted(found))


def _executed(folder: Path) -> dict[str, frozenset[int]]:
    found: dict[str, set[int]] = {}
    for path in folder.glob("executed-*.txt"):
        for text in path.read_text(encoding="utf-8").splitlines():
            line, _, name = text.partition(" ")
            found.setdefault(name, set()).add(int(line))
    return {name: frozenset(lines) for name, lines in found.items()}


def _parameters(models: list[Event]) -> dict[str, Parameter]:
    return {
        name: Parameter(
            name=name,
            shape=tuple(facts["shape"]),
            dtype=facts["dtype"],
            trains=facts["trains"],
            kind=facts["kind"],
            held=tuple(m["parameters"].get(name, {}).get("count", 0) for m in models),
        )
        for name, facts in models[0]["parameters"].items()
    }


def _optimizer(event: Event) -> Optimizer:
    return Optimizer(
        kind=event["kind"],
        held=event["held"],
        stale=tuple(tuple(shape) for shape in event["stale"]),
        gathered=event["gathered"],
        groups=tuple(tuple(names) for names in event["groups"]),
        number=event["n"],
        since=event["since"],
        inside=event["inside"],
    )


def _tensors(ranks: list[Mapping[str, Any]]) -> Tensors:
    names = dict.fromkeys(name for rank in ranks for name in rank)
    return Tensors({name: tuple(_piece(rank.get(name)) for rank in ranks) for name in names})


def _piece(value: Any) -> Pieces | None:
    return None if value is None else (value[0], Sketch.read(value[1]))


def _snapshot(events: list[Event]) -> Snapshot:
    return Snapshot(
        _tensors([event["params"] for event in events]),
        tuple({name: _buffer(v) for name, v in event["buffers"].items()} for event in events),
    )


def _buffer(value: Any) -> Buffer:
    return value[0], tuple(value[1]), float(value[2]), float(value[3])


def _step(events: list[Event]) -> Step:
    spread: dict[str, dict[int, int]] = {}
    for event in events:
        for name, counts in event["spread"].items():
            into = spread.setdefault(name, {})
            for exponent, count in counts:
                into[exponent] = into.get(exponent, 0) + count
    methods = any(event["by_methods"] for event in events)
    return Step(
        number=events[0]["n"],
        losses=tuple(tuple(loss[0] for loss in event["losses"]) for event in events),
        scaled=any(loss[2] == "unscaled" for event in events for loss in event["losses"]),
        clips=tuple(tuple(event["clips"]) for event in events),
        batches=tuple(tuple(event["batches"]) for event in events),
        evaluated=events[0]["evaluated"],
        random=tuple(event["rng"] for event in events),
        settings=tuple(
            {int(number): tuple(groups) for number, groups in event["settings"].items()}
            for event in events
        ),
        collectives=tuple(
            {(p, f, d): (count, size) for p, f, d, count, size in event["collectives"]}
            for event in events
        ),
        recomputed=tuple(event["recomputed"] for event in events),
        gradients=_tensors([event["gradients"] for event in events]),
        states=_tensors([event["states"] for event in events]),
        spread=spread,
        autocast=events[0]["autocast"],
        seconds=max(event["seconds"] for event in events),
        by_methods=Entered(**_entered([e["by_methods"] or e for e in events])) if methods else None,
        **_entered(events),
    )


def _entered(events: list[Event]) -> dict[str, Any]:
    return {
        "inputs": tuple(tuple(event["inputs"]) for event in events),
        "evaluation_inputs": tuple(tuple(event["evaluation_inputs"]) for event in events),
        "evaluation_outputs": tuple(_threes(event["evaluation_outputs"]) for event in events),
        "modes": tuple(_threes(event["modes"]) for event in events),
        "evaluation_modes": tuple(_threes(event["evaluation_modes"]) for event in events),
    }


def _threes(values: Any) -> tuple[Any, ...]:
    return tuple((v[0], v[1], v[2]) for v in values)


def _held(ranks: list[list[Event]]) -> tuple[Held, ...]:
    found = []
    for events in zip(*ranks, strict=False):
        groups: dict[str, dict[str, tuple[Part | None, ...]]] = {}
        for path in dict.fromkeys(path for event in events for path in event["groups"]):
            parts = [event["groups"].get(path, {}) for event in events]
            names = dict.fromkeys(name for part in parts for name in part)
            groups[path] = {name: tuple(_part(part.get(name)) for part in parts) for name in names}
        facts = tuple(event["facts"] for event in events)
        unread = frozenset.intersection(*(frozenset(event["unread"]) for event in events))
        found.append(Held(events[0]["n"], facts, groups, unread))
    return tuple(found)


def _part(value: Any) -> Part | None:
    return None if value is None else (tuple(value[0]), value[1], Sketch.read(value[2]))


def _dumps(folder: Path, events: list[list[Event]]) -> tuple[Dump, ...]:
    dumps = []
    for rank, of_rank in enumerate(events):
        written = _all(of_rank, "dump")
        if not written or not written[-1]["index"]:
            return ()
        index = {
            name: (key, dtype, int(count), tuple(shape))
            for name, (key, dtype, count, shape) in written[-1]["index"].items()
        }
        path = folder / f"rank-{rank}.params"
        dumps.append(Dump(path, index, tuple(written[-1]["left_out"])))
    return tuple(dumps)
