"""What ``check`` finds wrong in code that uses FSDP2."""

from __future__ import annotations

from collections.abc import Mapping

from fsdp_migrate.migration.engine import Options
from fsdp_migrate.planning.hazard import Hazard
from tests.helpers.migrating import migrate


def hazards(files: Mapping[str, str], options: Options | None = None) -> list[Hazard]:
    """The hazards of a project, relative path -> source."""
    result, _ = migrate(files, options or Options(hazards=True), edit=False)
    assert not result.problems
    return result.hazards


def found(files: Mapping[str, str]) -> list[tuple[str, str]]:
    """The code and the place of each hazard."""
    listed = [(h.code, h.module.display, h.module.position(h.node)[0]) for h in hazards(files)]
    return [(code, f"{path}:{line}") for code, path, line in listed]


def codes(source: str) -> list[str]:
    """The codes of the hazards of one file."""
    return [hazard.code for hazard in hazards({"train.py": source})]
