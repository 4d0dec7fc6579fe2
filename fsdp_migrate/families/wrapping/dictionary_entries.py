"""Writes arguments that stand in a dictionary: what each one's rule asks for, at its entry."""

from __future__ import annotations

import ast
import re
from dataclasses import dataclass, field

from fsdp_migrate.families.wrapping import entry_edits, returned_dictionaries, strategies
from fsdp_migrate.families.wrapping.assigned_strategies import may_start_between
from fsdp_migrate.families.wrapping.entries_at_call import AtCall, PlanCode
from fsdp_migrate.families.wrapping.entry_edits import Lines, Pairs
from fsdp_migrate.families.wrapping.keyword_dictionaries import SEVERAL
from fsdp_migrate.planning.context import Study
from fsdp_migrate.planning.edits import Code, code
from fsdp_migrate.planning.model import Entry, KeywordDictionary
from fsdp_migrate.planning.rendering import root_policy
from fsdp_migrate.planning.shard_plan import FULLY_SHARD, Precision, ShardPlan
from fsdp_migrate.syntax.kinds import present


@dataclass
class Added:
    """What the rule of an entry's argument adds to a plan: found out by comparing."""

    plan: ShardPlan
    everywhere: dict[str, Code] = field(init=False)
    setup: list[Code] = field(init=False)
    others: tuple[object, ...] = field(init=False)

    def __post_init__(self) -> None:
        self.everywhere, self.setup = dict(self.plan.everywhere), list(self.plan.setup)
        self.others = self._others()

    def _others(self) -> tuple[object, ...]:
        plan = self.plan
        lines = len(plan.before) + len(plan.after) + len(plan.finish)
        return (lines, len(plan.further), plan.targets, plan.walk, plan.from_rank0)

    def stop(self) -> None:
        """The argument is decided: keep what is new."""
        before = self.everywhere
        self.everywhere = {
            key: value
            for key, value in self.plan.everywhere.items()
            if before.get(key) is not value
        }
        self.setup = [line for line in self.plan.setup if line not in self.setup]
        self.is_more = self._others() != self.others


DIFFERENT = "the calls that share the dictionary need different ones"


class Unwritable(Exception):
    """The entries cannot be written down; the message says why."""


def write(plan: ShardPlan, added: dict[str, Added], study: Study) -> str:
    """Write the entries of the constructor's dictionary down, or say why they cannot be.

    Args:
        added: what each argument's rule added to the plan.
    """
    dictionary = plan.constructor.dictionary
    if dictionary is None:
        return ""
    if dictionary.stays:
        PlanCode(plan, study.tracer.stands_for).rewrite()
        if dictionary.written is None:
            entry_edits.remove(dictionary.going, plan, study)
        if dictionary.place is None:
            dictionary.written = {}
        return ""
    if dictionary.is_context:  # it goes, whatever becomes of what it has
        for each in dictionary.constructors:
            present(each.dictionary).written = {}
        return ""
    try:
        _write(plan, dictionary, added, study)
    except Unwritable as problem:
        return str(problem)
    return ""


def _write(
    plan: ShardPlan, dictionary: KeywordDictionary, added: dict[str, Added], study: Study
) -> None:
    kept, setup, named = _kept(plan, dictionary, added, study)
    moved = [c for lines in setup.values() for c in lines]
    moved += [value for pairs in kept.values() for _, value in pairs]
    going = {line for entry in setup for line in added[entry.name].setup}
    staying = [line for line in plan.setup if line not in going]
    _check_places(moved, staying, plan, dictionary)
    _check_order(setup, kept)
    plan.setup = staying
    for key in (key for pairs in kept.values() for key, _ in pairs):
        plan.everywhere.pop(key, None)
    handed_over: frozenset[Entry] = frozenset()
    if dictionary.function is not None:
        at_call = AtCall(plan, [e for e in dictionary.entries if e not in kept], study)
        at_call.rewrite()
        if at_call.problem:
            raise Unwritable(at_call.problem)
        if at_call.words & _bound(moved):
            raise Unwritable("the call needs what the dictionary is made of")
        taken = {entry.name for entry in at_call.taken}
        handed_over = frozenset(entry for entry in dictionary.entries if entry.name in taken)
        has_precision = any(entry.name == "mixed_precision" for entry in kept)
        if kept or handed_over or moved or not returned_dictionaries.is_only_for(dictionary):
            at_call.name_dictionary(is_read=has_precision and not _is_same(plan))
        else:
            if dictionary.written:
                raise Unwritable(DIFFERENT)
            returned_dictionaries.remove(plan, first=dictionary.written is None)
            dictionary.written = {}
            return
    elif kept:
        plan.spread = code(dictionary.name)
    _take_precision_from(plan, kept)
    if named is not None and named.preview() in _words([*plan.before, *plan.after, *plan.finish]):
        policy = present(plan.precision).policy  # what is done to buffers asks for it
        plan.setup.append(code("{n} = {p}", n=named, p=policy))
    entries = plan.constructor.entries
    written = {
        e.node: ", ".join(f"{key}={value.preview()}" for key, value in pairs)
        for e, pairs in kept.items()
    }
    written |= {entry.node: "taken" for entry in handed_over}
    settled = dictionary.settled
    new = [entry for entry in entries if entry.node not in settled]
    is_gone = dictionary.written is not None and not any(settled.values())
    if any(settled.get(e.node, "") != written.get(e.node, "") for e in entries if e not in new) or (
        is_gone and any(entry.node in written for entry in new)
    ):
        raise Unwritable(DIFFERENT)
    if new or dictionary.written is None:
        bound = _bound(moved)
        dictionary.names |= {w: n for w, n in plan.names.items() if n in bound}
        entry_edits.edit(dictionary, kept, setup, handed_over, plan, study)
        dictionary.settled |= {entry.node: written.get(entry.node, "") for entry in entries}
        dictionary.written = {}


def _kept(
    plan: ShardPlan, dictionary: KeywordDictionary, added: dict[str, Added], study: Study
) -> tuple[Pairs, Lines, Code | None]:
    """What stays in the dictionary under other names, and the statements that it needs in front;
    and the name of its precision, which only these had and are written without.

    Raises:
        Unwritable: an entry that the dictionary may lack needs more than that.
    """
    kept: Pairs = {}
    setup: Lines = {}
    named: Code | None = None
    for entry in () if dictionary.is_partial else plan.constructor.entries:
        new = added[entry.name]
        if not _is_said_in_each_place(entry, new, plan):
            raise Unwritable(f"{entry.name} needs more than an entry of the dictionary")
        if entry.name == "mixed_precision" and plan.precision is not None:
            if entry.is_conditional and (new.is_more or plan.batch_norm):
                why = "what else the precision needs depends on whether the dictionary has one"
                raise Unwritable(why)
            if _is_precision_at_call(plan, entry):
                continue
            policy = _shared_policy(plan)
            if len(new.setup) == 1 and new.setup[0].preview().startswith(f"{policy.preview()} = "):
                line, named = new.setup[0], policy  # which the dictionary makes superfluous
                policy = Code(line.template.removeprefix("{n} = "), line.parts)
                plan.setup.remove(line)
                new.setup = []
            kept[entry] = [("mp_policy", policy)]
        elif new.is_more or "**" in new.everywhere or _is_too_early(entry, new, plan, study):
            if entry.is_conditional or (dictionary.function and _is_named_there(new, plan)):
                raise Unwritable(f"{entry.name} needs more than an entry of the dictionary")
            continue
        elif new.everywhere:
            kept[entry] = [
                (key, _of_entry(value, entry, plan)) for key, value in new.everywhere.items()
            ]
        given = plan.constructor.arguments[entry.name]
        converted = any(node in study.conversions for node in ast.walk(entry.value))
        if converted and any(given in line.old_nodes() for line in new.setup):
            raise Unwritable(f"{entry.name} is made and asked for at once")
        setup[entry] = [_spelled_out(line, given, _text(entry, plan)) for line in new.setup]
    return kept, setup, named


def _words(lines: list[Code]) -> set[str]:
    return {word for line in lines for word in re.findall(r"\w+", line.flatten([]))}


def _is_said_in_each_place(entry: Entry, new: Added, plan: ShardPlan) -> bool:
    """Whether what became of an argument can be written wherever the dictionary has it.

    Of values that may be others in each place, none can be meant at the call or in front of it.
    """
    values = plan.constructor.values(entry.name)
    if len(values) == 1:
        return True
    if entry.name == "mixed_precision":  # the same value everywhere, and a name for its policy
        return not new.setup
    given = plan.constructor.arguments[entry.name]
    own = all(given in value.parts.values() for value in new.everywhere.values())
    return entry.name not in SEVERAL or (own and not (new.setup or new.is_more))


def _of_entry(value: Code, entry: Entry, plan: ShardPlan) -> Code:
    """What an argument became, for an entry that has it too, in another place."""
    given = plan.constructor.arguments[entry.name]
    parts = {name: entry.value if part is given else part for name, part in value.parts.items()}
    return Code(value.template, parts)


def _is_named_there(new: Added, plan: ShardPlan) -> bool:
    """Whether what an argument is has a new name that only the dictionary's function binds."""
    words = {w for value in new.everywhere.values() for w in re.findall(r"\w+", value.flatten([]))}
    return bool(words & {*plan.names.values()} - _bound(new.setup))


def _take_precision_from(plan: ShardPlan, kept: Pairs) -> None:
    """Let the plan's precision be the one that its dictionary has."""
    entry = next((e for e in kept if e.name == "mixed_precision"), None)
    plan.spread_precision = entry is not None
    if entry is None:
        return
    spread = present(plan.spread)
    policy = code('{d}["mp_policy"]', d=spread)
    if entry.is_conditional and not _is_same(plan):
        default = plan.name(FULLY_SHARD, "MixedPrecisionPolicy")
        policy = code('{d}.get("mp_policy", {c}())', d=spread, c=default)
    plan.precision = Precision(policy, same=_is_same(plan))


def _check_order(setup: Lines, kept: Pairs) -> None:
    """Refuse an entry that needs what another one's statements only bind later, or not at all."""
    for entry, lines in setup.items():
        bound = _bound(lines)
        for other in setup:
            written = [*setup[other], *(value for _, value in kept.get(other, ()))]
            words = {w for c in written for w in re.findall(r"\w+", c.flatten([]))}
            is_before = other.statement.lineno < entry.statement.lineno or entry.is_conditional
            if other.name != entry.name and is_before and bound & words:
                raise Unwritable(f"{other.name} needs what is made for {entry.name}")


def _is_too_early(entry: Entry, new: Added, plan: ShardPlan, study: Study) -> bool:
    """Whether the processes may not know each other yet where the dictionary is made, though what
    an argument needs, as a mesh does, asks for them."""
    if not new.setup:
        return False
    made = plan.constructor.maker or entry.statement
    return may_start_between(made, plan.constructor, study)


def _has_units(plan: ShardPlan) -> bool:
    return bool(plan.targets or plan.walk or plan.batch_norm)


def _is_shared(plan: ShardPlan) -> bool:
    return len(plan.constructor.sharers) > 1


def _is_same(plan: ShardPlan) -> bool:
    """Whether one policy serves every ``fully_shard`` of a call."""
    return present(plan.precision).same or not (_has_units(plan) or _is_shared(plan))


def _is_precision_at_call(plan: ShardPlan, entry: Entry) -> bool:
    """Whether the calls need several policies, which are written in front of them."""
    stays = _is_shared(plan) or entry.is_conditional or plan.constructor.maker is not None
    return plan.batch_norm or not (_is_same(plan) or stays)


def _shared_policy(plan: ShardPlan) -> Code:
    precision = present(plan.precision)
    alone = not (_has_units(plan) or _is_shared(plan))
    return root_policy(plan, precision) if alone else precision.policy


def _text(entry: Entry, plan: ShardPlan) -> str:
    """An entry's value as the file spells it, on one line."""
    text = ast.get_source_segment(plan.constructor.module.source.text, entry.value)
    return ast.unparse(entry.value) if text is None or "\n" in text else text


def _spelled_out(line: Code, given: ast.expr, text: str) -> Code:
    """A statement with the text of an entry's value: where that stood, something else will be."""
    parts: dict[str, Code | ast.expr | str] = {}
    for name, part in line.parts.items():
        inner = _spelled_out(part, given, text) if isinstance(part, Code) else part
        parts[name] = text if part is given else inner
    return Code(line.template, parts)


def _check_places(
    moved: list[Code], staying: list[Code], plan: ShardPlan, dictionary: KeywordDictionary
) -> None:
    """Refuse code that cannot stand where the dictionary is made."""
    table = plan.constructor.module.table
    later = _bound(staying)
    texts = [line.flatten([]) for line in moved]
    nodes = [node for line in moved for node in line.old_nodes()]
    inside = {entry.statement for entry in dictionary.entries}
    if any(later & set(re.findall(r"\w+", text)) for text in texts) or not all(
        table.statement(node) in inside or _is_known_there(node, plan, dictionary) for node in nodes
    ):
        raise Unwritable("the dictionary is made before what its entries need")
    scope, at_call = table.scope_of(dictionary.statement), table.scope_of(plan.constructor.call)
    if scope.home() is at_call.home():
        return
    own = {binding.scope for binding in table.imports} & {*scope.outwards(), *at_call.outwards()}
    is_known = _is_global(plan) and not own - {table.module}
    if not is_known or (_bound(moved) and dictionary.function is None):
        raise Unwritable("the dictionary is made in another function")


def _is_known_there(node: ast.expr, plan: ShardPlan, dictionary: KeywordDictionary) -> bool:
    """Whether an expression stands in front of the dictionary, in its function, and says the same
    until the call, as the key of a table of strategies does."""
    table = plan.constructor.module.table
    return (
        node.lineno < dictionary.statement.lineno
        and table.scope_of(node) is table.scope_of(dictionary.statement)
        and table.scope_of(node) is table.scope_of(plan.constructor.call)
        and strategies.says_the_same(node, plan.constructor)
    )


def _is_global(plan: ShardPlan) -> bool:
    """Whether what the constructor is called by is known in the whole file."""
    table = plan.constructor.module.table
    names = [n for n in ast.walk(plan.constructor.reference) if isinstance(n, ast.Name)]
    return all(table.scope_of(n).lookup(n.id) is table.module for n in names)


def _bound(lines: list[Code]) -> set[str]:
    """The names that some statements bind."""
    texts = [line.flatten([]) for line in lines]
    return {name for text in texts for name in re.findall(r"^ *(\w+) = ", text, re.M)}
