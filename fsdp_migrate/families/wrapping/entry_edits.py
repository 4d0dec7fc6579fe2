"""Edits of a dictionary's entries: each gets its new name and value, or goes, where it stands."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterable, Set

from fsdp_migrate.analysis.flow import access_path
from fsdp_migrate.analysis.module import Module
from fsdp_migrate.families.wrapping import prefetch
from fsdp_migrate.planning.context import Study
from fsdp_migrate.planning.edits import Code, code
from fsdp_migrate.planning.model import Entry, KeywordDictionary
from fsdp_migrate.planning.shard_plan import ShardPlan
from fsdp_migrate.syntax.kinds import of_kind

Pairs = dict[Entry, list[tuple[str, Code]]]  # what an entry becomes: keys and values
Lines = dict[Entry, list[Code]]  # what stands in front of an entry

# Nothing is to be said of them.
SILENT = frozenset({"forward_prefetch", "limit_all_gathers", "use_orig_params"})


def edit(
    dictionary: KeywordDictionary,
    kept: Pairs,
    setup: Lines,
    handed_over: frozenset[Entry],
    plan: ShardPlan,
    study: Study,
) -> None:
    """Write the entries down, where they stand.

    Args:
        handed_over: those that stay as they are, and that the call takes out of the dictionary.
    """
    module, proposal = plan.constructor.module, plan.proposal
    staying = {entry.statement for entry in (*kept, *handed_over)}
    if dictionary.function is not None or kept or dictionary.is_told or _has_more(dictionary):
        staying.update(dictionary.statements)
    other = _made_in_else(dictionary, kept, setup, staying, plan)
    if other is not None:
        first, mesh, place = other
        kept, setup = {**kept, first: kept[first][1:]}, {**setup, first: []}
        line = code('{d}["mesh"] = {m}', d=dictionary.name, m=mesh)
        proposal.replace_statement(module, place, line)
        staying.add(place)
    silent = {
        each.statement for each in plan.constructor.entries if _goes_silently(each, plan, study)
    }
    for entry in plan.constructor.entries:
        if entry.node in dictionary.settled:
            continue
        lines = setup.get(entry, ())
        if lines:
            proposal.insert_before(module, entry.statement, *lines)
        if kept.get(entry):
            _write_entry(entry, kept[entry], dictionary, plan)
        elif entry in handed_over:
            pass
        elif entry.statement not in staying or (entry in kept and entry.is_statement):
            staying.update(_delete(entry, module, silent, plan, has_lines=bool(lines)))
        elif isinstance(entry.node, ast.keyword):
            proposal.remove_argument(module, of_kind(entry.display, ast.Call), entry.node)
        elif entry.display is not None:
            proposal.remove_item(module, of_kind(entry.display, ast.Dict), entry.value)
    for statement in () if dictionary.settled else dictionary.statements:
        if statement not in staying:
            proposal.delete(module, statement)


def _has_more(dictionary: KeywordDictionary) -> bool:
    """Whether a branch adds an entry that none of the calls gets, and that stays there."""
    given = {entry.node for each in dictionary.constructors for entry in each.entries}
    return any(entry.node not in given for entry in dictionary.entries)


def _made_in_else(
    dictionary: KeywordDictionary,
    kept: Pairs,
    setup: Lines,
    staying: Set[ast.stmt],
    plan: ShardPlan,
) -> tuple[Entry, Code, ast.stmt] | None:
    """The entry that makes a mesh of all ranks where a condition puts another in its place.

    If the condition has an ``else``, with an entry that goes, the mesh can be made there.

    Returns:
        The entry, the mesh, and the statement in the ``else``.
    """
    given = [entry for entry, pairs in kept.items() if pairs[:1] and pairs[0][0] == "mesh"]
    if dictionary.function is None or len(dictionary.constructors) > 1 or not given[1:]:
        return None
    first, second, *further = given
    lines = setup.get(first, [])
    if further or first.is_conditional or not second.is_conditional or len(lines) != 1:
        return None
    (line,), value = lines, kept[first][0][1]
    name, mesh = line.preview().partition(" = ")[0], line.parts.get("m")
    codes = [c for entry in setup if entry is not first for c in setup[entry]]
    codes += [c for entry, pairs in kept.items() if entry is not first for _, c in pairs]
    is_read = any(name in re.findall(r"\w+", each.preview()) for each in codes)
    if value.preview() != name or is_read or not isinstance(mesh, Code):
        return None
    table = plan.constructor.module.table
    match table.parents[second.statement]:
        case ast.If(body=body, orelse=[place]) as chosen if second.statement in body:
            is_free = place not in staying and any(
                entry.statement is place and not setup.get(entry) for entry in dictionary.entries
            )
            beside = table.parents[chosen] is table.parents[first.statement]
            between = (
                n
                for n in table.names
                if first.statement.lineno < n.lineno < chosen.lineno
                and isinstance(n.ctx, ast.Store)
            )
            used = set(re.findall(r"\w+", mesh.preview()))
            if is_free and beside and not any(n.id in used for n in between):
                return first, mesh, place
    return None


def remove(going: Iterable[tuple[Entry, Module]], plan: ShardPlan, study: Study) -> None:
    """Remove entries from a dictionary that stays."""
    going = list(going)
    silent = {entry.statement for entry, _ in going if _goes_silently(entry, plan, study)}
    gone: set[ast.stmt] = set()
    for entry, module in going:
        if entry.display is None and entry.statement not in gone:
            gone.update(_delete(entry, module, silent, plan))
        elif isinstance(entry.node, ast.keyword):
            plan.proposal.remove_argument(module, of_kind(entry.display, ast.Call), entry.node)
        elif entry.display is not None:
            plan.proposal.remove_item(module, of_kind(entry.display, ast.Dict), entry.value)
        plan.proposal.claims.gone.add(entry.value)


def _delete(
    entry: Entry,
    module: Module,
    silent: Set[ast.stmt],
    plan: ShardPlan,
    *,
    has_lines: bool = False,
) -> list[ast.stmt]:
    """Delete the statement that puts an entry there, with conditions or an ``else`` for it alone.

    Args:
        silent: the statements of entries that go without a word.
        has_lines: others are written in front of it, and stay.

    Returns:
        The statements of entries that went.
    """
    chosen = _chosen_among(entry, module, silent)
    above = module.table.parents[entry.statement]
    if chosen:
        plan.proposal.delete(module, chosen[0])
        return chosen[1:]
    if isinstance(above, ast.If) and above.orelse == [entry.statement] and not has_lines:
        plan.proposal.drop_else(module, above)
    else:
        plan.proposal.delete(module, entry.statement)
    return [entry.statement]


def _write_entry(
    entry: Entry, pairs: list[tuple[str, Code]], dictionary: KeywordDictionary, plan: ShardPlan
) -> None:
    """Give an entry its new name and value, with what else belongs to it."""
    module, proposal = plan.constructor.module, plan.proposal
    (key, value), *others = pairs
    if isinstance(entry.key, ast.keyword):
        proposal.rename_keyword(module, of_kind(entry.display, ast.Call), entry.key, key)
    else:
        proposal.replace(module, entry.key, code('"{k}"', k=key))
    if value.preview() != ast.unparse(entry.value):
        proposal.replace(module, entry.value, value)
    for name, added in others:
        if isinstance(entry.display, ast.Dict):
            proposal.add_item(module, entry.display, name, added)
        elif entry.display is not None:
            proposal.add_keyword(module, entry.display, name, added)
        else:
            line = code('{d}["{k}"] = {v}', d=dictionary.name, k=name, v=added)
            proposal.insert_after(module, entry.statement, line)


def _only_asks(test: ast.expr) -> bool:
    """Whether a test has no effect but its answer."""
    match test:
        case ast.UnaryOp(op=ast.Not(), operand=operand):
            return _only_asks(operand)
        case ast.Compare(left=left, comparators=others):
            return all(map(_only_asks, (left, *others)))
    return isinstance(test, ast.Constant) or access_path(test) is not None


def _chosen_among(entry: Entry, module: Module, silent: Set[ast.stmt]) -> list[ast.stmt]:
    """What an ``if`` with its ``elif`` and ``else`` chooses among, if each is nothing but an
    argument that goes without a word: the condition, then the statements; else nothing."""
    parents = module.table.parents
    first = parents[entry.statement]
    while isinstance(above := parents.get(first), ast.If) and above.orelse == [first]:
        first = above
    if not isinstance(first, ast.If):
        return []
    found: list[ast.stmt] = [first]
    rest: list[ast.stmt] = [first]
    while rest:
        match rest:
            case [ast.If(test=test, body=[only], orelse=rest)] if _only_asks(test):
                pass
            case [only]:
                rest = []
            case _:
                return []
        if only not in silent:
            return []
        found.append(only)
    return found


def _goes_silently(entry: Entry, plan: ShardPlan, study: Study) -> bool:
    """Whether nothing is said of an argument that goes."""
    if entry.name == "mixed_precision":
        return plan.precision is None
    return entry.name in SILENT or (
        entry.name == prefetch.ARGUMENT and prefetch.may_be_default(plan.constructor, study)
    )
