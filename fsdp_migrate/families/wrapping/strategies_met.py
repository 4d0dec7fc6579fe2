"""Which sharding strategies a model may have where it is used, by what the settings are there."""

from __future__ import annotations

import ast
from collections.abc import Iterator, Set

from fsdp_migrate.analysis.module import Module
from fsdp_migrate.analysis.tracing.facts import NOTHING, Facts
from fsdp_migrate.analysis.tracing.setting_facts import SettingFacts
from fsdp_migrate.families.wrapping import strategies
from fsdp_migrate.families.wrapping.strategies import Choice
from fsdp_migrate.planning.context import Study
from fsdp_migrate.planning.model import Constructor


def strategies_met(
    model: ast.expr, module: Module, constructor: Constructor, study: Study
) -> Set[str]:
    """The strategies that a constructor's model may have where it is used, or none if they are not
    all in sight.

    ``if args.mode == "zero2": model.no_sync()`` meets one of ``STRATEGIES[args.mode]`` alone.
    """
    known = strategies.strategies_of(constructor, study)
    choice = strategies.read_choice(constructor, study) if len(known) > 1 else None
    if choice is None:
        return known
    facts = study.cache(_facts)
    met = {
        strategy
        for strategy, leaf, where, told in _cases(choice, constructor.module, facts)
        if not facts.exclude((leaf, where), (model, module), told)
    }
    return met | ({"FULL_SHARD"} if choice.may_be_lacking else set())


def _facts(study: Study) -> SettingFacts:
    return SettingFacts(study.tracer)


def _cases(
    choice: Choice, module: Module, facts: SettingFacts
) -> Iterator[tuple[str, ast.expr, Module, Facts]]:
    """Each strategy that may be chosen, where, and what the settings are then."""
    looked_up: set[ast.AST] = set()
    for leaf, rows in (*choice.lookups.items(), *choice.by_name.items()):
        looked_up.update(ast.walk(rows.table or leaf))
        for name, strategy in rows.strategies.items():
            yield strategy, leaf, module, facts.equals(rows.key, name, module)
    for leaf, (strategy, where) in choice.mentions.items():
        if leaf not in looked_up or leaf in choice.lookups:
            yield strategy, leaf, where, NOTHING
