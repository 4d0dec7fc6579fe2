"""Writes arguments that stand in a dictionary: what each one's rule asks for, at its entry."""

from __future__ import annotations

import ast
import re
from dataclasses import dataclass, field

from fsdp_migrate.analysis.module import Module
from fsdp_migrate.analysis.values import Class, Function
from fsdp_migrate.planning.context import Study
from fsdp_migrate.planning.edits import Code, code
from fsdp_migrate.planning.model import Entry, KeywordDictionary
from fsdp_migrate.planning.rendering import root_policy
from fsdp_migrate.planning.shard_plan import Precision, ShardPlan
from fsdp_migrate.syntax.kinds import of_kind, present

SILENT = frozenset({"forward_prefetch", "limit_all_gathers"})  # nothing is to be said of them


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


def write(plan: ShardPlan, added: dict[str, Added], study: Study) -> str:
    """Write the entries of the constructor's dictionary down, or say why they cannot be.

    Args:
        added: what each argument's rule added to the plan.
    """
    constructor = plan.constructor
    dictionary = constructor.dictionary
    if dictionary is None:
        return ""
    kept: dict[Entry, tuple[str, Code]] = {}
    setup: dict[Entry, list[Code]] = {}
    for entry in () if dictionary.is_partial else dictionary.entries:
        new = added[entry.name]
        if entry.name == "mixed_precision" and plan.precision is not None:
            if _is_precision_at_call(plan):
                if entry.is_conditional:
                    return "the precision of some parts depends on whether the dictionary has one"
                continue
            if entry.is_conditional and (new.is_more or not _is_same(plan)):
                return "what else the precision needs depends on whether the dictionary has one"
            policy = _shared_policy(plan)
            if len(new.setup) == 1 and new.setup[0].preview().startswith(f"{policy.preview()} = "):
                line = new.setup[0]  # a name for it, which the dictionary makes superfluous
                policy = Code(line.template.removeprefix("{n} = "), line.parts)
                plan.setup.remove(line)
                new.setup = []
            kept[entry] = "mp_policy", policy
        elif new.is_more or len(new.everywhere) > 1 or _is_too_early(entry, new, plan, study):
            if entry.is_conditional:
                return f"{entry.name} needs more than an entry of the dictionary"
            continue
        elif new.everywhere:
            kept[entry] = next(iter(new.everywhere.items()))
        setup[entry] = new.setup
    for entry, lines in setup.items():
        converted = any(node in study.conversions for node in ast.walk(entry.value))
        if converted and any(entry.value in _taken_over(line) for line in lines):
            return f"{entry.name} is made and asked for at once"
        setup[entry] = [_spelled_out(line, entry, _text(entry, plan)) for line in lines]
    moved = [c for lines in setup.values() for c in lines] + [c for _, c in kept.values()]
    going = {line for entry in setup for line in added[entry.name].setup}
    staying = [line for line in plan.setup if line not in going]
    if problem := _misplaced(moved, staying, plan, dictionary):
        return problem
    plan.setup = staying
    for key, _ in kept.values():
        plan.everywhere.pop(key, None)
    plan.spread = dictionary.name if kept else ""
    plan.spread_precision = any(key == "mp_policy" for key, _ in kept.values())
    if plan.spread_precision:
        policy = code('{d}["mp_policy"]', d=dictionary.name)
        plan.precision = Precision(policy, same=_is_same(plan))
    written = {e.name: f"{key}={value.preview()}" for e, (key, value) in kept.items()}
    if dictionary.written is not None:
        differ = dictionary.written != written
        return "the calls that share the dictionary need different ones" if differ else ""
    dictionary.written = written
    bound = _bound(moved)
    dictionary.names = {w: n for w, n in plan.names.items() if n in bound}
    _edit(dictionary, kept, setup, plan)
    return ""


def _is_too_early(entry: Entry, new: Added, plan: ShardPlan, study: Study) -> bool:
    """Whether the processes may not know each other yet where the dictionary is made, though what
    an argument needs, as a mesh does, asks for them."""
    if not new.setup:
        return False
    module = plan.constructor.module
    within = module.table.scope_of(plan.constructor.call).home()
    for call in module.table.calls:
        between = entry.statement.lineno < call.lineno < plan.constructor.call.lineno
        if not between or module.table.within[call].home() is not within:
            continue
        if "torch.distributed.init_process_group" in study.external(call.func, module):
            return True
        if any(isinstance(v, (Function, Class)) for v in study.values(call.func, module)) and any(
            each.mentions("init_process_group") for each in study.project.modules
        ):
            return True
    return False


def _has_units(plan: ShardPlan) -> bool:
    return bool(plan.targets or plan.walk or plan.batch_norm)


def _is_shared(plan: ShardPlan) -> bool:
    return len(plan.constructor.sharers) > 1


def _is_same(plan: ShardPlan) -> bool:
    """Whether one policy serves every ``fully_shard`` of a call."""
    return present(plan.precision).same or not (_has_units(plan) or _is_shared(plan))


def _is_precision_at_call(plan: ShardPlan) -> bool:
    """Whether the calls need several policies, which are written in front of them."""
    return plan.batch_norm or not (_is_same(plan) or _is_shared(plan))


def _shared_policy(plan: ShardPlan) -> Code:
    precision = present(plan.precision)
    alone = not (_has_units(plan) or _is_shared(plan))
    return root_policy(plan, precision) if alone else precision.policy


def _taken_over(line: Code) -> list[ast.expr]:
    nodes: list[ast.expr] = []
    line.flatten(nodes)
    return nodes


def _text(entry: Entry, plan: ShardPlan) -> str:
    """An entry's value as the file spells it, on one line."""
    text = ast.get_source_segment(plan.constructor.module.source.text, entry.value)
    return ast.unparse(entry.value) if text is None or "\n" in text else text


def _spelled_out(line: Code, entry: Entry, text: str) -> Code:
    """A statement with the text of an entry's value: where that stood, something else will be."""
    parts: dict[str, Code | ast.expr | str] = {}
    for name, part in line.parts.items():
        inner = _spelled_out(part, entry, text) if isinstance(part, Code) else part
        parts[name] = text if part is entry.value else inner
    return Code(line.template, parts)


def _misplaced(
    moved: list[Code], staying: list[Code], plan: ShardPlan, dictionary: KeywordDictionary
) -> str:
    """Why code that the arguments need cannot stand where the dictionary is made."""
    table = plan.constructor.module.table
    later = _bound(staying)
    texts = [line.flatten([]) for line in moved]
    nodes = [node for line in moved for node in _taken_over(line)]
    if any(later & set(re.findall(r"\w+", text)) for text in texts):
        return "the dictionary is made before what its entries need"
    inside = {entry.statement for entry in dictionary.entries}
    if any(table.statement(node) not in inside for node in nodes):
        return "the dictionary is made before what its entries need"
    scope, at_call = table.scope_of(dictionary.statement), table.scope_of(plan.constructor.call)
    if scope.home() is not at_call.home() and (_bound(moved) or not _is_global(plan)):
        return "the dictionary is made in another function"
    return ""


def _is_global(plan: ShardPlan) -> bool:
    """Whether what the constructor is called by is known in the whole file."""
    table = plan.constructor.module.table
    names = [n for n in ast.walk(plan.constructor.reference) if isinstance(n, ast.Name)]
    return all(table.scope_of(n).lookup(n.id) is table.module for n in names)


def _bound(lines: list[Code]) -> set[str]:
    """The names that some statements bind."""
    texts = [line.flatten([]) for line in lines]
    return {name for text in texts for name in re.findall(r"^ *(\w+) = ", text, re.M)}


def _edit(
    dictionary: KeywordDictionary,
    kept: dict[Entry, tuple[str, Code]],
    setup: dict[Entry, list[Code]],
    plan: ShardPlan,
) -> None:
    module, proposal = plan.constructor.module, plan.proposal
    for entry in dictionary.entries:
        lines = setup.get(entry, ())
        if lines:
            proposal.insert_before(module, entry.statement, *lines)
        if entry in kept:
            key, value = kept[entry]
            if isinstance(entry.key, ast.keyword):
                made = of_kind(dictionary.made, ast.Call)
                proposal.rename_keyword(module, made, entry.key, key)
            else:
                proposal.replace(module, entry.key, code('"{k}"', k=key))
            if value.preview() != ast.unparse(entry.value):
                proposal.replace(module, entry.value, value)
        elif entry.statement is not dictionary.statement:
            proposal.delete(module, _condition_of(entry, module) or entry.statement)
        elif isinstance(entry.node, ast.keyword) and kept:
            proposal.remove_argument(module, of_kind(dictionary.made, ast.Call), entry.node)
        elif kept:
            proposal.remove_item(module, of_kind(dictionary.made, ast.Dict), entry.value)
    if not kept:
        proposal.delete(module, dictionary.statement)


def _condition_of(entry: Entry, module: Module) -> ast.If | None:
    """The ``if`` that stands there for nothing but an argument that goes without a word."""
    parents = module.table.parents
    match parents[entry.statement]:
        case ast.If(test=ast.Name() | ast.Attribute(), body=[_], orelse=[]) as only:
            is_elif = getattr(parents[only], "orelse", None) == [only]
            return None if is_elif or entry.name not in SILENT else only
    return None
