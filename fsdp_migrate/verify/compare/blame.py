"""Which sites a gate that did not pass points at."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from fsdp_migrate.verify.compare.gate import Gate, Status
from fsdp_migrate.verify.compare.observed import Observed
from fsdp_migrate.verify.compare.sites import KnownSite, Study, matches


@dataclass(frozen=True)
class _Pointer:
    """A gate, by its key and a word of its answer, and the rules that it points at, the likeliest
    first: the first of them that has a site in the program is it."""

    gate: str
    word: str
    codes: tuple[str, ...]


_CONSTRUCTORS = ("FSDP101", "FSDP103")
_UNITS = ("FSDP102", "FSDP104", *_CONSTRUCTORS)
_SAVED = ("FSDP302", "FSDP304", "FSDP310", "FSDP301", "FSDP309")
_LOADED = ("FSDP303", "FSDP305", *_SAVED)

_POINTERS = (
    # The same bound of another norm: the gradients differ that are clipped.
    _Pointer("clipping", "norm ", ("FSDP402", "FSDP401")),
    _Pointer("clipping", "", ("FSDP401",)),
    _Pointer("gradients-present", "", ("FSDP402", "FSDP420", *_CONSTRUCTORS)),
    _Pointer("gradient", "", ("FSDP420", "FSDP419", "FSDP417", "FSDP402")),
    _Pointer("steps", "backward calls", ("FSDP405",)),
    _Pointer("recomputation", "", ("FSDP117",)),
    _Pointer("collectives", "all-gather calls", ("FSDP201", *_CONSTRUCTORS)),
    _Pointer("collectives", " calls", ("FSDP402", "FSDP201", *_CONSTRUCTORS)),
    _Pointer("collectives", "", ("FSDP202", *_CONSTRUCTORS)),
    _Pointer("units", "_dtype", ("FSDP202", *_CONSTRUCTORS)),
    _Pointer("units", "", _UNITS),
    _Pointer("placement", "managed by FSDP before", ("FSDP113", *_CONSTRUCTORS)),
    _Pointer("placement", "in no fully_shard unit", _CONSTRUCTORS),
    _Pointer("placement", "", ("FSDP114", "FSDP201", *_CONSTRUCTORS)),
    _Pointer("optimizer-alive", "", ("FSDP403", *_CONSTRUCTORS)),
    _Pointer("start", "", ("FSDP110", "FSDP111", *_CONSTRUCTORS)),
    _Pointer("drawn", "", ("FSDP111", "FSDP110", *_CONSTRUCTORS)),
    _Pointer("buffers", "", ("FSDP203", "FSDP202", *_CONSTRUCTORS)),
    _Pointer("first-loss", "", ("FSDP202",)),
    _Pointer("evaluation", "", ("FSDP408", "FSDP306", "FSDP407")),
    _Pointer("optimizer-state", "", _LOADED),
    _Pointer("saved", "", _SAVED),
)
_RESUMED = "resumed"  # the part of gates that look at runs which start from a checkpoint


def point(
    gates: Iterable[Gate], study: Study, observed: Observed
) -> dict[tuple[str, str], tuple[KnownSite, ...]]:
    """The sites that each gate which did not pass points at, by its key and part. A gate that
    points at none is left out: the recording does not tell.

    Sites that the run came by are preferred to those that it did not.
    """
    ran = frozenset(_that_ran(study, observed))
    found = {}
    for gate in gates:
        if gate.status in (Status.FAIL, Status.COST, Status.VOID):
            sites = _sites(_codes(gate), study, ran)
            if sites:
                found[gate.key, gate.part] = sites
    return found


def _codes(gate: Gate) -> tuple[str, ...]:
    if _RESUMED in gate.part:
        return _LOADED
    likely = (p.codes for p in _POINTERS if p.gate == gate.key and p.word in gate.says)
    return next(likely, ())


def _sites(
    codes: tuple[str, ...], study: Study, ran: frozenset[KnownSite]
) -> tuple[KnownSite, ...]:
    for code in codes:
        sites = tuple(s for s in study.sites if s.code == code and not s.edited)
        if sites:
            return tuple(site for site in sites if site in ran) or sites
    return ()


def _that_ran(study: Study, observed: Observed) -> Iterator[KnownSite]:
    """The sites that the run of the original came by, and those of its constructors' arguments."""
    made = {f"{each.file}:{each.span.line}" for each in observed.made}
    used = {site for sites in matches(observed, study).values() for site in sites}
    for site in study.sites:
        argument = site.code.startswith(("FSDP1", "FSDP2"))
        if site in used or (argument and made & {*site.constructors}):
            yield site
