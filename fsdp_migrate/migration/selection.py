"""What of a run's decisions the user chose: codes, and answers of a review."""

from __future__ import annotations

import ast
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from packaging.version import Version

from fsdp_migrate.analysis.module import Module
from fsdp_migrate.fsdp1.construct import ConstructKind
from fsdp_migrate.fsdp1.site import Key
from fsdp_migrate.migration.holding import groups, hold_back, to_stay
from fsdp_migrate.planning.chosen import is_selected
from fsdp_migrate.planning.edits import Edit, Mark, Support
from fsdp_migrate.planning.forms import PassedOver
from fsdp_migrate.planning.model import Decision, Guard
from fsdp_migrate.planning.outcome import Outcome
from fsdp_migrate.planning.prose import sentences
from fsdp_migrate.planning.seen import Seen
from fsdp_migrate.planning.support_file import Unproved
from fsdp_migrate.planning.target import DEFAULT_TARGET
from fsdp_migrate.rewriting import cells
from fsdp_migrate.syntax import suppressions
from fsdp_migrate.syntax.suppressions import Ignore, Ignored
from fsdp_migrate.syntax.trees import last_part

LEAVE = "leave, in the settings,"
UNPROVED = "no place is known for the support module"
QUESTIONS = ("isinstance", "issubclass")  # and unittest's assertIsInstance


def key(decision: Decision) -> Key:
    """What tells a decision from the others of a run."""
    return decision.site.key


@dataclass(frozen=True)
class Options:
    target: Version = DEFAULT_TARGET
    select: frozenset[str] = frozenset()  # rule codes or prefixes; empty means all
    ignore: frozenset[str] = frozenset()  # what is not reported
    leave: frozenset[str] = frozenset()  # what stays as it is
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
    hazards: bool = False  # look for what is wrong in code that uses FSDP2
    mend: bool = False  # and put right what is surely wrong
    seen: Seen = field(default_factory=Seen)  # what a run of the original has shown


def without(
    decisions: list[Decision], dropped: Mapping[Module, str], options: Options
) -> list[Decision]:
    """Turn what must not be applied into *left*: what is to stay, what nobody asked for, files that
    failed, what needs the support module where no import of it is proved, and what was refused, the
    markers of what was left before included. Less the markers of what is not to be reported."""
    changed = bool(dropped)
    not_asked = _not_asked_for(decisions, options)
    result: list[Decision] = []
    for decision in decisions:
        refused = options.refused.get(key(decision), "") if options.refused else ""
        reason, help_, loud = "", "", False
        if decision.ignored is None and (by := _leaving(decision, options)):
            changed = True
            result.append(to_stay(decision, by))
            continue
        if decision.site.module in dropped:
            reason = f"this file could not be edited: {dropped[decision.site.module]}"
        elif decision in not_asked:
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
    settled = hold_back(result) if changed else result
    return [_as_reported(decision, options) for decision in settled]


def _leaving(decision: Decision, options: Options) -> Ignored | None:
    """The user's word that what this rule is about stays as it is."""
    codes = _codes(decision)
    code = next((each for each in options.leave if any(c.startswith(each) for c in codes)), None)
    return None if code is None else Ignored(Ignore(0, 0, "", (code,)), LEAVE, code)


def _codes(decision: Decision) -> list[str]:
    return [code for code in (decision.code, decision.rule) if code]


def _silencing(decision: Decision, options: Options) -> bool | Ignored:
    """Whether nothing is to be reported of a site, or the comment that says so."""
    codes = _codes(decision)
    if options.select and not any(is_selected(c, options.select, ()) for c in codes):
        return True
    if not all(is_selected(c, (), options.ignore) for c in codes):
        return True
    site = decision.site
    said = suppressions.find(site.node, site.module.source, site.module.table, *codes, leaves=False)
    return said or False


def _not_asked_for(decisions: Sequence[Decision], options: Options) -> frozenset[Decision]:
    """What stays as it is since nothing that is to be reported changes with it.

    A model is migrated whole: where a part of it is asked for, so is the rest.
    """
    active = [d for d in decisions if d.outcome is not Outcome.LEFT]
    silent = {d for d in active if _silencing(d, options)}
    if not silent:
        return frozenset()
    group = groups(decisions)

    def migrations(decision: Decision) -> set[object]:
        return {group.get(constructor, constructor) for constructor in decision.models}

    wanted = {each for d in active if d not in silent for each in migrations(d)}
    files = {d.site.module for d in active if d not in silent or migrations(d) & wanted}
    return frozenset(
        d
        for d in silent
        if not migrations(d) & wanted
        and not (d.site.construct.kind is ConstructKind.IMPORT and d.site.module in files)
    )


def _as_reported(decision: Decision, options: Options) -> Decision:
    """``decision``, without its marker if it is not to be reported. Where the program will stop,
    that is always said."""
    silencing = False if decision.guarded else _silencing(decision, options)
    if not silencing:
        return decision
    by = decision.ignored or (silencing if isinstance(silencing, Ignored) else None)
    edits = tuple(edit for edit in decision.edits if not isinstance(edit, Mark))
    return replace(decision, unreported=True, ignored=by, edits=edits)


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
