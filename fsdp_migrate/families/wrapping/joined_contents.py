"""Dictionaries of several functions, of which some constructor may be given either.

``settings.get("adapter_settings", settings)`` may be the one that a function makes for adapters, or
the one for all else. Each constructor reads what it may be given, and an entry goes only if all
that may meet it can do without.
"""

from __future__ import annotations

import ast
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from fsdp_migrate.analysis.module import Module
from fsdp_migrate.families.wrapping.taken_contents import Contents
from fsdp_migrate.families.wrapping.written_dictionaries import Unreadable
from fsdp_migrate.planning.context import Study
from fsdp_migrate.planning.model import Constructor, Entry

# What FSDP1 takes for arguments that are not given, where that is not None.
DEFAULTS = {
    "forward_prefetch": False,
    "limit_all_gathers": True,
    "sync_module_states": False,
    "use_orig_params": False,
}


@dataclass(eq=False)
class Joined(Contents):
    """Several dictionaries, and which of them each constructor may be given."""

    parts: Sequence[Contents] = ()
    given: Mapping[Constructor, Sequence[Contents]] = field(default_factory=dict)
    strategies: Mapping[Contents, frozenset[str]] = field(default_factory=dict)
    _views: dict[Constructor, Contents] = field(default_factory=dict)

    @classmethod
    def of(
        cls, parts: Sequence[Contents], given: Mapping[Constructor, Sequence[Contents]]
    ) -> Joined:
        """Dictionaries that are read, in the order of what makes them."""
        return cls(parts[0].module, (), made=parts[0].made, parts=parts, given=given)

    @property
    def going(self) -> list[tuple[Entry, Module]]:
        """Those of each dictionary."""
        return [each for part in self.parts for each in part.going]

    def find_idle(self, study: Study) -> None:
        """Note in each what says what saying nothing does."""
        for part in self.parts:
            part.find_idle(study)
        self.strategies = {part: _strategies(part, study) for part in self.parts}

    def view(self, constructor: Constructor) -> Contents:
        """What a constructor may be given.

        Raises:
            Unreadable: one dictionary lacks, once the migrated program runs, what another has.
        """
        if constructor not in self._views:
            parts = [*self.given[constructor]]
            self._views[constructor] = parts[0] if len(parts) == 1 else self._joined(parts)
        return self._views[constructor]

    def _joined(self, parts: Sequence[Contents]) -> Contents:
        result = Contents(parts[0].module, (), made=parts[0].made)
        for part in parts:
            result.asked |= part.asked
            result.lacking |= part.lacking
            for name, values in part.places.items():
                result.places[name] += values
        for name in result.places:
            having = [part for part in parts if name in part.places]
            gone = [part for part in having if _is_gone(name, part)]
            if len(having) < len(parts):
                result.lacking.add(name)
            if gone and len(gone) == len(having):
                self._check_same(name, gone, result)
            elif gone and all(_says_nothing(name, part) for part in gone):
                result.lacking.add(name)
            elif gone:
                raise Unreadable("one dictionary has what another one has no more")
        idle = [part.idle for part in parts]
        result.idle = frozenset(
            name
            for name in frozenset().union(*idle)
            if all(name in part.idle or name not in part.places for part in parts)
        )
        return result

    def _check_same(self, name: str, gone: Sequence[Contents], result: Contents) -> None:
        """Refuse what goes from each dictionary, and was not the same there."""
        if name == "sharding_strategy":
            said = frozenset().union(*(self.strategies[part] for part in gone))
            if len(said) > 1 or name in result.lacking:
                raise Unreadable("the dictionaries have several strategies")
        elif any(part.is_constant(name) for part in gone):
            texts = {ast.unparse(value) for value, _ in result.places[name]}
            if len(texts) > 1:
                raise Unreadable("the dictionaries have several constants")


def _strategies(part: Contents, study: Study) -> frozenset[str]:
    given = part.places.get("sharding_strategy", ())
    return frozenset(name for value, module in given for name in study.external(value, module))


def _is_gone(name: str, part: Contents) -> bool:
    """Whether nothing puts an argument into a dictionary any more."""
    going = {entry for entry, _ in part.going}
    known = [e for e, _ in part.written if e.name == name and not part.is_replaced(e)]
    return len(known) == len(part.places[name]) and all(entry in going for entry in known)


def _says_nothing(name: str, part: Contents) -> bool:
    """Whether a dictionary has for an argument what FSDP1 takes where it is not given."""
    default = DEFAULTS.get(name)
    values = [value for value, _ in part.places[name]]
    return name in part.idle or all(
        isinstance(value, ast.Constant) and value.value is default for value in values
    )
