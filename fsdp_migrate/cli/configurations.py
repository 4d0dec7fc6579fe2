"""The configurations of a run: read, decided, and their answers put beside those about code."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from fsdp_migrate import shown
from fsdp_migrate.configurations import engine, plugin_calls
from fsdp_migrate.configurations.recognise import ACCELERATE, COMPOSER, TRANSFORMERS
from fsdp_migrate.fsdp1 import api as fsdp1
from fsdp_migrate.planning import wrapped_elsewhere
from fsdp_migrate.planning.chosen import Chosen
from fsdp_migrate.planning.outcome import Outcome
from fsdp_migrate.planning.result import Result

if TYPE_CHECKING:
    from fsdp_migrate.fsdp1.site import Key
    from fsdp_migrate.migration.units import Unit


@dataclass
class Configs:
    """The configurations of a run, and which of their codes are wanted."""

    found: engine.Configurations
    width: int
    chosen: Chosen
    edit: bool

    @classmethod
    def read(
        cls,
        files: Mapping[Path, bytes],
        display: Callable[[Path], str],
        root: Path,
        width: int,
        chosen: Chosen,
        *,
        edit: bool,
        pinned: engine.Pinned = lambda name, path: (),
        sources: Mapping[Path, bytes] | None = None,
        python: Callable[[], Iterable[tuple[Path, bytes]]] = tuple,
    ) -> Configs:
        found = engine.read(files, display, root, pinned, sources, python)
        return cls(found, width, chosen, edit)

    def decide_in(self, result: Result, refused: Mapping[Key, str]) -> None:
        """Add to ``result`` what becomes of the settings, less what was ``refused``."""

        def refusal(code: str, key: Key) -> str:
            if not self.chosen.has(code):
                return f"{code} is not selected"
            return refused.get(key, "")

        asks = _asks_version_1(result)
        programs = {ACCELERATE: _what_stays(result) or asks, TRANSFORMERS: asks, COMPOSER: asks}
        result.configured, changes = self.found.decide(
            self.width, refusal, programs=programs, rewritten=result.changes
        )
        result.configured = [
            each if self.chosen.has(each.code) else replace(each, unreported=True)
            for each in result.configured
        ]
        result.problems += [p for p in self.found.problems if p not in result.problems]
        result.remarks = self.found.remarks
        if self.edit:
            result.changes |= changes

    def places(self) -> Iterator[tuple[Key, Path]]:
        """What is changed together, with each file that it is in."""
        for group in self.found.groups:
            for path in dict.fromkeys(block.file.path for block in group.blocks()):
                yield engine.key(group), path

    def units(self) -> list[Unit]:
        """What there is to ask about in a review: what is changed together is asked together."""
        from fsdp_migrate.migration.units import Unit

        found = []
        for group in self.found.groups:
            if not any(group.edits.values()):
                continue
            places = dict.fromkeys(block.file.display for block in group.blocks())
            names = ", ".join(map(shown.path, places))
            found.append(Unit(f"the settings in {names}", {engine.key(group)}))
        return found


PLUGIN = "FSDP511"


def _asks_version_1(result: Result) -> str:
    """Why what is set for a library stays: a program asks its models for what FSDP1 alone has."""
    for decision in result.decisions:
        construct, site = decision.site.construct, decision.site
        asked = construct.kind in plugin_calls.ON_MODELS and construct.name == fsdp1.FSDP
        left = decision.outcome is Outcome.LEFT and not site.doubt
        if asked and left and decision.message.startswith(wrapped_elsewhere.BY_LIBRARY):
            place = f"{site.module.source.display}:{site.node.lineno}"
            return f"{construct.shown} at {place} knows version 1's models alone"
    return ""


def _what_stays(result: Result) -> str:
    """Why accelerate's settings beside a program stay: a call of its plugin there does."""
    for decision in result.decisions:
        if decision.code == PLUGIN and decision.outcome is Outcome.LEFT:
            site = decision.site
            place = f"{site.module.source.display}:{site.node.lineno}"
            return (
                f"stays with {site.construct.shown} at {place}, which is left: a program and what "
                "is set beside it belong together"
            )
    return ""
