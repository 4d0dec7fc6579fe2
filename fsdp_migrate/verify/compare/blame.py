"""Which sites a gate that did not pass points at."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
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
    _Pointer("clipping", "differ before it", ("FSDP402", "FSDP420", "FSDP401")),
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
    _Pointer("updated-buffers", "", ("FSDP203", "FSDP202", *_CONSTRUCTORS)),
    _Pointer("evaluation", "", ("FSDP408", "FSDP306", "FSDP407")),
    _Pointer("last-evaluation", "", ("FSDP408", "FSDP306", "FSDP407")),
    _Pointer("held", "", ("FSDP306", "FSDP407", "FSDP408")),
    _Pointer("left", "", ("FSDP306", "FSDP303")),
    _Pointer("optimizer-state", "", _LOADED),
    _Pointer("restored-state", "", _LOADED),
    _Pointer("saved", "", _SAVED),
)


def deciding(code: str) -> tuple[str, ...]:
    """The gates that tell whether what became of a rule's sites is right, by their keys."""
    return tuple(dict.fromkeys(p.gate for p in _POINTERS if code in p.codes))


_RESUMED = "resumed"  # the part of gates that look at runs which start from a checkpoint


def point(
    gates: Iterable[Gate], study: Study, observed: Observed
) -> dict[tuple[str, str], tuple[KnownSite, ...]]:
    """The sites that each gate which did not pass points at, by its key and part. A gate that
    points at none is left out: the recording does not tell.

    Sites that the run came by are preferred to those that it did not; where a gate tells in which
    step something was first otherwise, those come first that the run first came by just before.
    """
    ran = _that_ran(study, observed)
    found = {}
    for gate in gates:
        if gate.status in (Status.FAIL, Status.COST, Status.VOID):
            sites = _sites(gate, study, ran)
            if sites:
                found[gate.key, gate.part] = sites
    return found


def _codes(gate: Gate) -> tuple[str, ...]:
    if _RESUMED in gate.part:
        return _LOADED
    likely = (p.codes for p in _POINTERS if p.gate == gate.key and p.word in gate.says)
    return next(likely, ())


def _sites(gate: Gate, study: Study, ran: Mapping[KnownSite, int]) -> tuple[KnownSite, ...]:
    for code in _codes(gate):
        sites = tuple(s for s in study.sites if s.code == code and not s.edited)
        if sites:
            there = sorted((s for s in sites if s in ran), key=lambda s: _until(gate.step, ran[s]))
            return tuple(there) or sites
    return ()


def _until(step: int | None, first: int) -> tuple[bool, int]:
    """How far a step is from the one in which something ran first: what ran later comes last."""
    return (False, 0) if step is None else (first > step, abs(step - first))


def _that_ran(study: Study, observed: Observed) -> dict[KnownSite, int]:
    """The sites that the run of the original came by, and those of its constructors' arguments,
    each with how many optimizer steps there had been then."""
    made = {f"{each.file}:{each.span.line}" for each in observed.made}
    found: dict[KnownSite, int] = {}
    for use, sites in matches(observed, study).items():
        for site in sites:
            found[site] = min(use.first_step, found.get(site, use.first_step))
    for site in study.sites:
        if site.code.startswith(("FSDP1", "FSDP2")) and made & {*site.constructors}:
            found.setdefault(site, 0)
    return {site: found[site] for site in study.sites if site in found}
