"""Which sites are to blame where the new version of a file fails its check.

A mistake of one rule, or of two that do not know of each other, shows in the file that it is
written into. It costs those sites: they are left with the reason, like any other that no rule can
rewrite, and the file is edited without them. Only where no single site is to blame does the whole
file stay as it is.
"""

from __future__ import annotations

import ast
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from fsdp_migrate.analysis.module import Module
from fsdp_migrate.fsdp1.construct import Construct
from fsdp_migrate.planning.edits import Mark
from fsdp_migrate.planning.model import Decision
from fsdp_migrate.planning.outcome import Outcome

SCOPES = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)
MOST = 60  # sites that are tried one by one
ROUNDS = 8  # sites of one file that are left so, before all of it is


@dataclass(frozen=True)
class Defect:
    """What is wrong with the new version of a file.

    ``found`` is what a second run would find in it. ``crashed``: the process that made it ended,
    and so might this one.
    """

    message: str
    found: Decision | None = None
    crashed: bool = False


def blamed(
    module: Module,
    defect: Defect,
    decisions: Sequence[Decision],
    is_sound: Callable[[Sequence[Decision]], bool],
) -> list[Decision]:
    """The decisions without which the new version of ``module`` has no defect; none where that is
    not known. ``is_sound`` tries others than all."""
    if defect.crashed:
        return []
    editing = [d for d in decisions if _edits(d, module)]
    if defect.found is not None:
        alike = (_construct, _code, _function)
        same = ([d for d in editing if like(d) == like(defect.found)] for like in alike)
        return next(filter(None, same), [])
    gone: list[Decision] = []
    for decision in editing[:MOST]:
        if is_sound([d for d in decisions if d is not decision]):
            return [decision]
    for decision in editing[:MOST]:
        gone.append(decision)
        if is_sound([d for d in decisions if d not in gone]):
            return _needed(gone, decisions, is_sound)
    return []


def _needed(
    gone: Sequence[Decision],
    decisions: Sequence[Decision],
    is_sound: Callable[[Sequence[Decision]], bool],
) -> list[Decision]:
    """Those of ``gone`` that have to be: the others are put back one by one."""
    needed = list(gone)
    for decision in gone:
        fewer = [d for d in needed if d is not decision]
        if is_sound([d for d in decisions if d not in fewer]):
            needed = fewer
    return needed


def _construct(decision: Decision) -> Construct:
    return decision.site.construct


def _code(decision: Decision) -> str:
    return decision.code


def _function(decision: Decision) -> tuple[str, ...]:
    """The names of the functions and classes around a site, the innermost first."""
    around = decision.site.module.table.ancestors(decision.site.node)
    return tuple(node.name for node in around if isinstance(node, SCOPES))


def _edits(decision: Decision, module: Module) -> bool:
    """Whether a decision changes more than comments of ``module``, and a site in it."""
    own = decision.site.module is module and decision.outcome is not Outcome.LEFT
    return own and any(e.module is module and not isinstance(e, Mark) for e in decision.edits)
