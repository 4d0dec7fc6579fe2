"""Models that a project shards with torch's ``fully_shard`` itself, as values."""

from __future__ import annotations

import ast
from collections.abc import Collection, Iterator
from dataclasses import dataclass

from fsdp_migrate.analysis.module import Module
from fsdp_migrate.analysis.values import Unknown, Value
from fsdp_migrate.planning.context import Study
from fsdp_migrate.syntax.expressions import first_argument

FUNCTION = "fully_shard"
PACKAGE = "torch.distributed."


@dataclass(frozen=True, eq=False)
class Sharding:
    """One call of ``fully_shard`` and what it is given."""

    call: ast.Call
    module: Module
    subject: ast.expr


def shardings(study: Study) -> tuple[Sharding, ...]:
    """Every call of torch's ``fully_shard`` in the project, in order."""
    return study.cache(_shardings)


def _shardings(study: Study) -> tuple[Sharding, ...]:
    return tuple(s for module in study.project.modules for s in _in_file(module, study))


def _in_file(module: Module, study: Study) -> Iterator[Sharding]:
    for call in calls(module, study):
        subject = first_argument(call)
        if subject is not None and call not in study.project.outdated:
            yield Sharding(call, module, subject)


def calls(module: Module, study: Study) -> Iterator[ast.Call]:
    """The calls of torch's ``fully_shard`` in a file, whatever they are given."""
    if not module.mentions(FUNCTION):
        return
    for call in module.table.calls:
        if is_function(study.external(call.func, module)):
            yield call


def is_called(study: Study) -> bool:
    """Whether the project calls torch's ``fully_shard``."""
    return bool(shardings(study)) or any(
        True for module in study.project.modules for _ in calls(module, study)
    )


def is_function(names: Collection[str]) -> bool:
    """Whether a name is torch's ``fully_shard``, and nothing else."""
    return bool(names) and all(n.startswith(PACKAGE) and n.endswith(f".{FUNCTION}") for n in names)


def sharded(study: Study) -> dict[Value, list[Sharding]]:
    """What is given to ``fully_shard``, and what that gives back, with the calls."""
    return study.cache(_sharded)


def _sharded(study: Study) -> dict[Value, list[Sharding]]:
    found: dict[Value, list[Sharding]] = {}
    for sharding in shardings(study):
        for node in (sharding.subject, sharding.call):
            for value in study.values(node, sharding.module):
                if not isinstance(value, Unknown) or isinstance(value.node, ast.arg):
                    found.setdefault(value, []).append(sharding)
    return found
