"""Ask the rules of hazards, where a project calls torch's ``fully_shard`` at all."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace

from fsdp_migrate.families.wrapping import fully_sharded
from fsdp_migrate.planning import pages
from fsdp_migrate.planning.chosen import is_selected
from fsdp_migrate.planning.context import Study
from fsdp_migrate.planning.hazard import Hazard
from fsdp_migrate.planning.result import Problem
from fsdp_migrate.planning.rule import LoadedRule
from fsdp_migrate.syntax import suppressions


def find(
    study: Study, select: Collection[str], ignore: Collection[str]
) -> tuple[list[Hazard], list[Problem]]:
    """The hazards of a project in the order of files and lines, those that comments ignore among
    them; and which rules failed."""
    every = [each for each in study.registry.rules.values() if each.rule.hazards is not None]
    chosen = {each.code for each in every if is_selected(each.code, select, ignore)}
    if not every or not fully_sharded.is_called(study):
        return [], []
    # A comment is of use also where what it silences is not asked for.
    silenced = any(suppressions.of(m.source).ignores for m in study.project.modules)
    rules = [each for each in every if silenced or each.code in chosen]
    found: list[Hazard] = []
    problems: list[Problem] = []
    for rule in rules:
        try:
            found += _of_rule(rule, study)
        except Exception as error:  # whatever a rule does wrong, the others go on
            ours = rule.path.resolve().is_relative_to(pages.bundled())
            message = f"{rule.code} failed here: {type(error).__name__}: {error}"
            problems.append(Problem(study.project.modules[0].display, message, ours=ours))
    heeded = [h for h in map(_heeded, found) if h.code in chosen or h.ignored is not None]
    return sorted(heeded, key=lambda hazard: hazard.place), problems


def _of_rule(rule: LoadedRule, study: Study) -> list[Hazard]:
    asked = rule.rule.hazards
    assert asked is not None
    return [hazard for module in study.project.modules for hazard in asked(study, module)]


def _heeded(hazard: Hazard) -> Hazard:
    """``hazard``, with the comment that says that it is not to be reported."""
    module = hazard.module
    said = suppressions.find(hazard.node, module.source, module.table, hazard.code, leaves=False)
    return hazard if said is None else replace(hazard, ignored=said)
