"""What of a run's decisions the user chose: codes, and answers of a review."""

from __future__ import annotations

import ast
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, replace

from packaging.version import Version

from fsdp_migrate.analysis.module import Module
from fsdp_migrate.fsdp1.site import Key
from fsdp_migrate.migration.holding import hold_back
from fsdp_migrate.planning.edits import Edit, Mark, Support
from fsdp_migrate.planning.forms import PassedOver
from fsdp_migrate.planning.model import Decision, Guard
from fsdp_migrate.planning.outcome import Outcome
from fsdp_migrate.planning.prose import sentences
from fsdp_migrate.planning.seen import Seen
from fsdp_migrate.planning.support_file import Unproved
from fsdp_migrate.planning.target import DEFAULT_TARGET
from fsdp_migrate.rewriting import cells
from fsdp_migrate.syntax.trees import last_part

UNPROVED = "no place is known for the support module"
QUESTIONS = ("isinstance", "issubclass")  # and unittest's assertIsInstance


def key(decision: Decision) -> Key:
    """What tells a decision from the others of a run."""
    return decision.site.key


@dataclass(frozen=True)
class Options:
    target: Version = DEFAULT_TARGET
    select: frozenset[str] = frozenset()  # rule codes or prefixes; empty means all
    ignore: frozenset[str] = frozenset()
    markers: bool = True
    line_length: int = 100
    single_line_imports: bool = False  # each name in a statement of its own
    first_party: frozenset[str] = frozenset()  # packages that count as the project's own
    published: bool = True  # others may install the project, and use its functions
    partial: bool = False  # guards where left sites would hold a model back
    refused: Mapping[Key, str] = field(default_factory=dict)  # what is not taken, and why
    broken: Mapping[Key, str] = field(default_factory=dict)  # whose new code fails, and how
    passed_over: PassedOver = field(default_factory=dict)  # forms that sites are not to take
    unproved: Unproved = field(default_factory=dict)  # what of the support module, and why not
    jobs: int = 1  # processes that edit files
    seen: Seen = field(default_factory=Seen)  # what a run of the original has shown


def without(
    decisions: list[Decision], dropped: Mapping[Module, str], options: Options
) -> list[Decision]:
    """Turn what must not be applied into *left*: deselected rules, files that failed, what needs
    the support module where no import of it is proved, and what was refused, the markers of
    what was left before included."""
    changed = bool(dropped)
    result: list[Decision] = []
    for decision in decisions:
        refused = options.refused.get(key(decision), "") if options.refused else ""
        reason, help_, loud = "", "", False
        if decision.site.module in dropped:
            reason = f"this file could not be edited: {dropped[decision.site.module]}"
        elif not is_selected(decision.code, options.select, options.ignore):
            reason = f"{decision.code} is not selected"
        elif refused:
            reason = refused
        elif why := next(filter(None, (_unproved(e, options) for e in decision.edits)), None):
            reason, help_ = f"{UNPROVED}: {why[0]}", why[1]
            loud = _only_asks(decision)
        else:
            reason, help_ = cells.refusal(decision)
        if reason and decision.outcome is not Outcome.LEFT:
            changed = True
            result.append(
                replace(
                    decision,
                    outcome=Outcome.LEFT,
                    message=reason,
                    help=help_,
                    edits=marked(decision, reason, help_) if help_ else (),
                    quiet=not loud,
                )
            )
        elif refused or (decision.guard.edits and decision.site.module in dropped):
            edits = () if refused else decision.edits
            problem = decision.guard.problem or reason
            result.append(replace(decision, edits=edits, guard=Guard(problem=problem)))
        else:
            result.append(decision)
    return hold_back(result) if changed else result


def _unproved(edit: Edit, options: Options) -> tuple[str, str] | None:
    """Why no import is known to work of what an edit needs from the support module, and what to
    do about it."""
    if not isinstance(edit, Support):
        return None
    return options.unproved.get((edit.module.path, edit.function))


def _only_asks(decision: Decision) -> bool:
    """Whether a test asks there what something is: left as it is, it fails where that counts, and
    no model is wrong."""
    site = decision.site
    call = site.module.table.parents.get(site.reference)
    if isinstance(call, ast.Tuple):
        call = site.module.table.parents[call]
    asked = isinstance(call, ast.Call) and last_part(call.func).lower().endswith(QUESTIONS)
    return site.module.is_of_tests and (asked or isinstance(call, ast.Compare))


def marked(decision: Decision, reason: str, help_: str) -> tuple[Edit, ...]:
    """The marker of a site that is left for what its notebook cannot have."""
    site = decision.site
    return (Mark(site.module, site.node, decision.code, sentences(reason, help_)),)


def is_selected(code: str, select: Collection[str], ignore: Collection[str]) -> bool:
    """Whether a rule's results are wanted; without ``select`` every rule's are."""
    chosen = not select or any(code.startswith(s) for s in select)
    return chosen and not any(code.startswith(s) for s in ignore)
