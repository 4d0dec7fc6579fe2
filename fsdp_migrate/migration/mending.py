"""Edits that put hazards right: which of them come out, and which a run makes."""

from __future__ import annotations

from collections.abc import Iterable, Sequence, Set
from dataclasses import replace

from fsdp_migrate.analysis.module import Module
from fsdp_migrate.analysis.project import Project
from fsdp_migrate.migration.renewing import renewer
from fsdp_migrate.migration.selection import Options
from fsdp_migrate.planning.hazard import Hazard
from fsdp_migrate.rewriting import cells


def proved(hazards: Iterable[Hazard], project: Project, options: Options) -> list[Hazard]:
    """``hazards``, each with the file that its edits make; without edits where nothing comes of
    them, what may be right is not touched, and a comment or the settings say that it stays."""
    return [_proved(hazard, project, options) if hazard.edits else hazard for hazard in hazards]


def _proved(hazard: Hazard, project: Project, options: Options) -> Hazard:
    module = hazard.module
    stays = any(hazard.code.startswith(each) for each in options.leave)
    if stays or hazard.is_note or hazard.ignored or cells.first_refusal(hazard.edits)[0]:
        return replace(hazard, edits=())
    new, defect, _ = renewer(project, {module: hazard.edits}, options)(module)
    if defect or new == module.source.data:
        return replace(hazard, edits=())
    return replace(hazard, mended=new)


def chosen(hazards: Sequence[Hazard], failed: Set[Module], options: Options) -> list[Hazard]:
    """The hazards that a run puts right, less those in files where all of them together fail."""
    if not options.mend:
        return []
    return [
        hazard
        for hazard in hazards
        if hazard.mended and hazard.key not in options.refused and hazard.module not in failed
    ]
