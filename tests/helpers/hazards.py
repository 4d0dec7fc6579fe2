"""What ``check`` finds wrong in code that uses FSDP2."""

from __future__ import annotations

from collections.abc import Mapping

from fsdp_migrate.migration.engine import Options
from fsdp_migrate.planning.hazard import Hazard
from tests.helpers.migrating import migrate


def hazards(files: Mapping[str, str], options: Options | None = None) -> list[Hazard]:
    """The hazards of a project, relative path -> source, less those that there may be."""
    result, _ = migrate(files, options or Options(hazards=True), edit=False)
    assert not result.problems
    return [hazard for hazard in result.hazards if not hazard.is_note]


def notes(source: str) -> list[str]:
    """The codes of what may be wrong in one file."""
    result, _ = migrate({"train.py": source}, Options(hazards=True), edit=False)
    return [hazard.code for hazard in result.hazards if hazard.is_note]


def mended(source: str) -> str:
    """One file with what is surely wrong in it put right."""
    result, after = migrate({"train.py": source}, Options(hazards=True, mend=True))
    assert not result.problems
    return after["train.py"]


def found(files: Mapping[str, str]) -> list[tuple[str, str]]:
    """The code and the place of each hazard."""
    listed = [(h.code, h.module.display, h.module.position(h.node)[0]) for h in hazards(files)]
    return [(code, f"{path}:{line}") for code, path, line in listed]


def codes(source: str) -> list[str]:
    """The codes of the hazards of one file."""
    return [hazard.code for hazard in hazards({"train.py": source})]
