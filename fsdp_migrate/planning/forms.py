"""The forms in which a site may be written, in their order: native and short ones first.

A rule says which forms a site has, and of each whether it is enough by all that is known.
``rewrite`` takes the first that is. ``migrate`` trains what was written; where that shows that a
form does not do, it is passed over, and the site takes the next one.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType

Place = tuple[Path, tuple[int, int]]
"""A file, and line and column in it, from 1."""

PassedOver = Mapping[Place, Collection[str]]
"""The names of the forms that did not do, by the place of the site, or of the constructor."""

NONE: PassedOver = MappingProxyType({})

WRITTEN_OUT = "fully_shard calls"
"""The first form of a constructor; the other one is the run-time form."""
AS_SEEN = "as the run showed it"
"""The first form of what rests on a run of the original; the other one rests on the code alone. Its
place is the beginning of a line."""


@dataclass(frozen=True)
class Form:
    """One way to write a site, named in a few words for reports."""

    name: str
    enough: bool = True
    reduces_more: bool = False
    """Whether gradients are reduced more often in it than FSDP1 reduced them."""


@dataclass(frozen=True)
class Taken:
    """The form that a site is written in, and the names of those that come after it."""

    form: Form
    further: tuple[str, ...] = ()

    @property
    def name(self) -> str:
        return self.form.name


# What becomes of FSDP1's setting for the kind of a state.
AT_EACH_CALL = Form("the kind of state at each call")
IN_THE_MODEL = Form("a model that keeps the kind of its state")


def take(forms: Sequence[Form], passed_over: Collection[str]) -> Taken:
    """The first form that is enough and not passed over; the last that is enough, if all are."""
    enough = [form for form in forms if form.enough]
    first, *further = [form for form in enough if form.name not in passed_over] or enough[-1:]
    return Taken(first, tuple(form.name for form in further))
