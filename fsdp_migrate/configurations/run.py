"""What becomes of the blocks of files: runs, whose settings stand in one or several blocks.

A run's blocks are those that one start of a program reads: a file, then the flags that override
it. Its framework says what becomes of the settings. What belongs together is changed together: all
runs that share a block, or none.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from importlib import import_module

from fsdp_migrate.configurations.block import Block, said
from fsdp_migrate.configurations.formats.text import Edit, Refused
from fsdp_migrate.configurations.secrets import masked_line
from fsdp_migrate.configurations.settings import Change, Migrate, Setting
from fsdp_migrate.planning.outcome import Outcome
from fsdp_migrate.syntax.suppressions import Ignore

FRAMEWORKS = {
    "FSDP510": "accelerate",
    "FSDP520": "transformers",
    "FSDP530": "lightning_cli",
    "FSDP540": "axolotl",
    "FSDP550": "verl",
    "FSDP560": "composer",
    "FSDP570": "mindspeed",
}


@dataclass(eq=False)
class Run:
    """Blocks in the order in which later ones override; new settings go into the first."""

    blocks: list[Block]
    reason: str = ""  # why nothing of it can be decided
    beside: list[Setting] = field(default_factory=list)  # what the program beside it says

    @property
    def code(self) -> str:
        return self.blocks[0].code

    def settings(self) -> dict[str, Setting]:
        found: dict[str, Setting] = {}
        for block in self.blocks:
            found |= block.settings
        found |= {setting.name: setting for setting in self.beside}
        return found

    def holder(self, name: str) -> Block:
        """The block whose setting of a name counts."""
        return next((b for b in reversed(self.blocks) if name in b.settings), self.blocks[0])


@dataclass
class Decided:
    """A change, the block it is made in, and how it ended."""

    block: Block
    change: Change
    held: bool = False
    ignore: Ignore | None = None
    ignoring: str = ""  # the code of the comment that counted

    @property
    def outcome(self) -> Outcome:
        return self.change.outcome


@dataclass(eq=False)
class Group:
    """Runs that are changed together, or not at all."""

    runs: list[Run]
    decided: list[Decided] = field(default_factory=list)
    edits: dict[Block, list[Edit]] = field(default_factory=dict)

    def blocks(self) -> list[Block]:
        return list(dict.fromkeys(block for run in self.runs for block in run.blocks))


def framework(code: str, installed: tuple[int, ...] = ()) -> Migrate:
    """What a framework's table makes of settings, in a release."""
    module = import_module(f"{__package__}.frameworks.{FRAMEWORKS[code]}")
    migrate: Migrate = module.migrate
    return partial(module.migrate, installed=installed) if installed else migrate


def groups(runs: Sequence[Run]) -> list[Group]:
    """The runs by what they share."""
    found: list[Group] = []
    for run in runs:
        shared = [g for g in found if not set(g.blocks()).isdisjoint(run.blocks)]
        joined = Group([r for g in shared for r in g.runs] + [run])
        found = [g for g in found if g not in shared] + [joined]
    return found


def decide(
    group: Group,
    width: int,
    refusal: str,
    migrate: Callable[[str], Migrate] = framework,
) -> None:
    """Fill ``group.decided`` and ``group.edits``; ``refusal`` says why it is not to be done."""
    found, conflict = _changes(group, migrate)
    group.decided = [_with_ignore(Decided(block, change)) for block, change in found]
    if not group.decided:
        return
    reasons = [b.reason for b in group.blocks() if b.reason] + [r.reason for r in group.runs]
    reason = next(filter(None, reasons), conflict)
    if not reason and not _is_stopped(group):
        try:
            group.edits = dict(_edits(group, width))
        except Refused as refused:
            reason = str(refused)
    if refusal:
        group.edits = {}
        _leave(group, refusal, everywhere=True)
    elif reason or _is_stopped(group):
        group.edits = {}
        _leave(group, reason, APART if reason and reason == conflict else "")
        _mark(group, width)


def _changes(
    group: Group, migrate: Callable[[str], Migrate]
) -> tuple[list[tuple[Block, Change]], str]:
    """What the runs say of each block, once; and what they do not agree on."""
    found: dict[tuple[Block, str, str], Change] = {}
    conflict = ""
    for run in group.runs:
        for made in migrate(run.code)(run.settings()):
            change = replace(made, message=masked_line(made.message), help=masked_line(made.help))
            block = run.holder(change.old)
            if block.is_fixed and change.outcome is Outcome.REWRITTEN:
                continue
            key = (block, change.old, "" if change.old or not change.new else change.new[0])
            known = found.setdefault(key, change)
            if (known.new, known.outcome) != (change.new, change.outcome):
                worse = change if change.outcome is Outcome.LEFT else known
                found[key] = worse
                conflict = "the commands that use it need different settings here"
    for block, old, new in found:
        others = [b for r in group.runs if block in r.blocks for b in r.blocks if b is not block]
        beside = any(new in other.settings for other in others)
        if beside and not old and not block.is_overridden:
            conflict = f"{new} would be new for one command that uses it, and is set for another"
    order = group.blocks()
    listed = [(key[0], change) for key, change in found.items()]
    return sorted(listed, key=lambda each: order.index(each[0])), conflict


def _with_ignore(decided: Decided) -> Decided:
    """The decision with the comment that ignores it, if there is one."""
    block = decided.block
    text = block.file.text
    lines = {text.line_at(block.head.start), text.line_at(block.span(decided.change.old).start)}
    for ignore in sorted(block.file.remarks.ignores, key=lambda each: not each.target):
        if not ignore.target or ignore.target in lines:
            code = ignore.match(block.code)
            if code is not None:
                return replace(decided, ignore=ignore, ignoring=code)
    return decided


def _is_stopped(group: Group) -> bool:
    return any(d.outcome is Outcome.LEFT or d.ignore is not None for d in group.decided)


def _mark(group: Group, width: int) -> None:
    """Put markers at what is left for a reason of its own; one at each place."""
    told: dict[tuple[Block, str], list[Change]] = {}
    for decided in group.decided:
        change = decided.change
        if change.outcome is Outcome.LEFT and not decided.held and decided.ignore is None:
            name = change.old if decided.block.marks_settings else ""
            told.setdefault((decided.block, name), []).append(change)
    for (block, name), changes in told.items():
        group.edits.setdefault(block, []).extend(block.mark(name, said(changes), width))


def _edits(group: Group, width: int) -> Iterator[tuple[Block, list[Edit]]]:
    for block in group.blocks():
        changes = [d.change for d in group.decided if d.block is block]
        if changes:
            yield block, block.edit(changes, width)


APART = "give each of them settings of its own"


def _leave(group: Group, reason: str, todo: str = "", *, everywhere: bool = False) -> None:
    """Leave all of a group: what has no reason of its own waits for what has."""
    todo = todo or "; ".join(dict.fromkeys(filter(None, map(_help_by_hand, group.decided))))
    own = [d for d in group.decided if d.outcome is Outcome.LEFT]
    ignored = [d for d in group.decided if d.ignore is not None]
    cause = next(iter([*own, *ignored]), None)
    left = []
    for number, decided in enumerate(group.decided):
        change, held = decided.change, False
        if decided.ignore is not None:
            line = decided.ignore.line
            change = replace(
                change, outcome=Outcome.LEFT, message=f"ignored in line {line}", help=""
            )
        elif change.outcome is not Outcome.LEFT:
            if reason and (everywhere or (not number and cause is None)):
                help = _help(decided) if everywhere else todo
                change = replace(change, outcome=Outcome.LEFT, message=reason, help=help)
            else:
                waits = _waits(cause or group.decided[0])
                change = replace(change, outcome=Outcome.LEFT, message=waits, help="")
                held = True
        left.append(replace(decided, change=change, held=held))
    group.decided = left


def _help(decided: Decided) -> str:
    """What to write for a change; nothing for a setting that stays as it is."""
    change = decided.change
    if change.new is None:
        return f"remove {change.old}" if change.old else ""
    name, value = change.new
    setting = decided.block.settings.get(change.old)
    if setting is not None and (name, value) == (change.old, setting.value):
        return ""
    shown = str(value).lower() if isinstance(value, bool) else value
    return f"write {name}: {shown}" + (f" in the place of {change.old}" if change.old else "")


def _help_by_hand(decided: Decided) -> str:
    """What to write where not all was read: a default is right unless something else is set."""
    new, help = decided.change.new, _help(decided)
    is_default = new is not None and not decided.change.old and not new[0].endswith("version")
    return f"{help}, unless it is set to something else elsewhere" if help and is_default else help


def waits_for(group: Group) -> str:
    """What is said of what stays with a group that is left; empty for one that is not."""
    cause = next((d for d in group.decided if d.outcome is Outcome.LEFT and not d.held), None)
    return _waits(cause) if cause is not None else ""


def _waits(cause: Decided) -> str:
    block = cause.block
    name = cause.change.old or "the block"
    place = block.file.place(block.span(cause.change.old).start)
    return f"stays with {name} at {place}, which is left: the settings of one run belong together"
