"""What of a run is taken or left as one: *units*.

A unit is a migration (everything that must be rewritten together), what belongs to no model in one
file, or the comments at what is left.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from fsdp_migrate import shown
from fsdp_migrate.fsdp1.site import Key
from fsdp_migrate.migration import holding
from fsdp_migrate.migration.selection import key
from fsdp_migrate.planning.forms import Place
from fsdp_migrate.planning.hazard import Hazard
from fsdp_migrate.planning.model import Decision
from fsdp_migrate.planning.outcome import Outcome, place


@dataclass(eq=False)
class Unit:
    """Decisions that are taken or refused together."""

    title: str
    keys: set[Key] = field(default_factory=set)
    constructors: set[Place] = field(default_factory=set)
    """Those of the models whose migration it is."""


def find_units(decisions: Sequence[Decision], hazards: Sequence[Hazard] = ()) -> list[Unit]:
    """What there is to ask about: migrations in the order of their first sites, then the rest."""
    active = [d for d in decisions if d.outcome is not Outcome.LEFT or d.guarded]
    group = holding.groups(active)
    migrations: dict[object, Unit] = {}
    files: dict[object, Unit] = {}
    comments = Unit("the comments at what is left for you")
    made: dict[object, set[str]] = {}
    for constructor, first in group.items():
        node = constructor.defined_by or constructor.call
        line = constructor.module.position(node)[0]
        made.setdefault(first, set()).add(place(shown.path(constructor.module.display), line))
    for decision in decisions:
        module = decision.site.module
        if decision.outcome is Outcome.LEFT and not (decision.guarded and decision.models):
            unit = comments
        elif decision.models:
            first = group[next(iter(decision.models))]
            places = sorted(made[first])
            more = f" and {len(places) - 3} more" if len(places) > 3 else ""
            noun = "models" if len(places) > 1 else "model"
            title = f"the {noun} made at {', '.join(places[:3])}{more}"
            unit = migrations.setdefault(first, Unit(title))
            unit.constructors |= {constructor.place for constructor in decision.models}
        else:
            title = f"{shown.path(module.display)}: what belongs to no model"
            unit = files.setdefault(module, Unit(title))
        unit.keys.add(key(decision))
    mends = [Unit(_title(each), {each.key}) for each in hazards if each.is_mended]
    return [u for u in (*migrations.values(), *files.values(), *mends, comments) if u.keys]


def _title(hazard: Hazard) -> str:
    line, column = hazard.module.position(hazard.node)
    cell, line, _ = hazard.module.source.place(line, column)
    where = place(shown.path(hazard.module.display), line, cell)
    return f"{where}: {hazard.code} {hazard.message}"
