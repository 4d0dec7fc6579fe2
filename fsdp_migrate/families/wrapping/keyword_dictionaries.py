"""Arguments that stand in a dictionary: ``params = dict(...)``, then ``FSDP(model, **params)``.

They are read as if they were written at the call, and written where they stood: the dictionary gets
FSDP2's keys, and ``fully_shard(model, **params)`` takes it. What a loop or another statement at the
call needs, such as a wrap policy, leaves the dictionary.
"""

from __future__ import annotations

import ast
import re
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field

from fsdp_migrate.analysis.module import Module
from fsdp_migrate.analysis.values import Class, Function
from fsdp_migrate.fsdp1 import api as fsdp1
from fsdp_migrate.planning.context import Study, block_of
from fsdp_migrate.planning.edits import Code, code
from fsdp_migrate.planning.model import Constructor, Entry, KeywordDictionary
from fsdp_migrate.planning.rendering import root_policy
from fsdp_migrate.planning.shard_plan import Precision, ShardPlan
from fsdp_migrate.syntax.kinds import of_kind, present
from fsdp_migrate.syntax.scopes import Kind, Scope

# What a dictionary may have or lack: nothing but the value of its entry depends on these.
OPTIONAL = frozenset(
    {"backward_prefetch", "forward_prefetch", "limit_all_gathers", "mixed_precision"}
)

SILENT = frozenset({"forward_prefetch", "limit_all_gathers"})  # nothing is to be said of them


class Unreadable(Exception):
    """The dictionary is used in a way that is not understood."""


# -- reading --------------------------------------------------------


def register(study: Study) -> None:
    """Give constructors the arguments that stand in dictionaries."""
    _register_partials(study)
    given: dict[tuple[Scope, str], list[Constructor]] = defaultdict(list)
    for constructor in study.constructors.values():
        name = _spread_name(constructor, study)
        if name is not None:
            scope = constructor.module.table.scope_of(name).lookup(name.id)
            if scope is not None and not scope.is_class:
                given[scope, name.id].append(constructor)
    for (scope, spelled), constructors in given.items():
        try:
            dictionary = _read(spelled, scope, constructors, study)
        except Unreadable:
            continue
        for constructor in constructors:
            constructor.dictionary = dictionary
            constructor.problem, constructor.is_open = "", False
            constructor.arguments |= {e.name: e.value for e in dictionary.entries}
        study.entries |= {entry.node: constructors[0] for entry in dictionary.entries}
        study.entries |= {entry.value: constructors[0] for entry in dictionary.entries}


def _register_partials(study: Study) -> None:
    """Read ``wrap = functools.partial(FSDP, ...)`` as if ``wrap(model)`` had the arguments."""
    for partial, constructor in study.constructors.items():
        if (
            partial in study.run_time
            or constructor.problem != "they are bound by functools.partial"
        ):
            continue
        try:
            call, dictionary = _read_partial(constructor, study)
        except Unreadable:
            constructor.call = of_kind(partial, ast.Call)
            continue
        constructor.call, constructor.dictionary = call, dictionary
        constructor.problem, constructor.is_open = "", False
        constructor.arguments = {"module": call.args[0]}
        constructor.arguments |= {e.name: e.value for e in dictionary.entries}
        study.entries |= {entry.node: constructor for entry in dictionary.entries}


def _read_partial(constructor: Constructor, study: Study) -> tuple[ast.Call, KeywordDictionary]:
    """The only call of what ``functools.partial`` made, and the arguments that it has from there.

    Raises:
        Unreadable: it is used in another way.
    """
    partial, module = constructor.call, constructor.module
    table = module.table
    statement = table.parents[partial]
    match statement, partial.args:
        case ast.Assign(targets=[ast.Name(id=name)]), [_]:
            scope = present(table.scope_of(statement).lookup(name))
        case _:
            raise Unreadable("it has no name, or further arguments")
    if (
        len(scope.bindings[name]) != 1
        or scope.is_class
        or _is_known_elsewhere(name, scope, module, study)
    ):
        raise Unreadable("its name has several values")
    match [table.parents[use] for use in table.reads(name, scope)]:
        case [ast.Call(func=ast.Name(id=called), args=[given], keywords=[]) as call] if (
            called == name and not isinstance(given, ast.Starred)
        ):
            pass
        case _:
            raise Unreadable("it is not just called once, with a model")
    entries = tuple(_items(partial, statement, module))
    if not {entry.name for entry in entries} <= set(fsdp1.CONSTRUCTOR_ARGUMENTS[1:]):
        raise Unreadable("it has what is no argument")
    if call.lineno <= partial.lineno or table.scope_of(call).home() is not scope.home():
        raise Unreadable("it is called elsewhere")
    constructor.call = call
    for entry in entries:
        _check_names(entry, scope, constructor)
    shared = frozenset({constructor})
    return call, KeywordDictionary(name, statement, partial, entries, shared, is_partial=True)


def _is_known_elsewhere(name: str, scope: Scope, module: Module, study: Study) -> bool:
    """Whether another file may read or change what has a name at the top of a file."""
    return scope is module.table.module and any(
        other is not module and other.mentions(name) for other in study.project.modules
    )


def _spread_name(constructor: Constructor, study: Study) -> ast.Name | None:
    """``params``, where ``**params`` is all that cannot be read at a call."""
    if constructor.call in study.run_time or constructor in study.wrapping.constructors:
        return None
    if constructor.is_wrong or not constructor.has_module or constructor.defined_by:
        return None
    if any(isinstance(argument, ast.Starred) for argument in constructor.call.args):
        return None
    opened = [k.value for k in constructor.call.keywords if k.arg is None]
    name = opened[0] if len(opened) == 1 else None
    is_all = (
        constructor.problem == f"its keyword arguments come from **{name and ast.unparse(name)}"
    )
    return name if isinstance(name, ast.Name) and is_all else None


def _read(
    name: str, scope: Scope, constructors: list[Constructor], study: Study
) -> KeywordDictionary:
    """The dictionary that has a name in a scope.

    Raises:
        Unreadable: it is made, changed or read in another way, or has what is no argument.
    """
    module = constructors[0].module
    if _is_known_elsewhere(name, scope, module, study):
        raise Unreadable("another file may change it")
    statement, made = _made(name, scope)
    entries = list(_items(made, statement, module))
    calls = {constructor.call for constructor in constructors}
    for use in module.table.names_by_id.named(name):
        if module.table.within[use].lookup(name) is not scope:
            continue
        parent = module.table.parents[use]
        if isinstance(parent, ast.keyword) and module.table.parents[parent] in calls:
            continue
        if parent is not statement:
            entries.append(_set_item(parent, statement, module))
    names = [entry.name for entry in entries]
    last = max(e.statement.end_lineno or e.statement.lineno for e in entries) if entries else 0
    written = {name for c in constructors for name in c.arguments}
    if (
        not entries
        or len(set(names)) < len(names)
        or not set(names) <= set(fsdp1.CONSTRUCTOR_ARGUMENTS[1:]) - written
        or any(call.lineno <= last for call in calls)
    ):
        raise Unreadable("it does not have each argument once, before the calls")
    for entry in entries:
        if entry.is_conditional and entry.name not in OPTIONAL:
            raise Unreadable(f"it may lack {entry.name}")
        for constructor in constructors:
            _check_names(entry, scope, constructor)
    return KeywordDictionary(name, statement, made, tuple(entries), frozenset(constructors))


def _made(name: str, scope: Scope) -> tuple[ast.stmt, ast.Call | ast.Dict]:
    """The only statement that gives the name a value, and the dictionary made there."""
    match scope.bindings[name]:
        case [binding] if binding.kind is Kind.ASSIGN and not binding.unpack:
            pass
        case _:
            raise Unreadable("its name has several values")
    statement, made = binding.node, binding.value
    targets = statement.targets if isinstance(statement, ast.Assign) else []
    if len(targets) != 1 and not isinstance(statement, ast.AnnAssign):
        raise Unreadable("it has several names")
    match made:
        case ast.Dict():
            return of_kind(statement, ast.stmt), made
        case ast.Call(func=ast.Name(id="dict"), args=[]) if scope.lookup("dict") is None:
            return of_kind(statement, ast.stmt), made
    raise Unreadable("it is made in another way")


def _items(made: ast.Call | ast.Dict, statement: ast.stmt, module: Module) -> Iterator[Entry]:
    """The entries that are written where the dictionary is made."""
    if isinstance(made, ast.Call):
        for keyword in made.keywords:
            name = _argument(keyword.arg)
            yield Entry(name, keyword, keyword.value, keyword, statement, is_conditional=False)
        return
    for key, value in zip(made.keys, made.values, strict=True):
        name = _argument(key.value if isinstance(key, ast.Constant) else None)
        yield Entry(name, value, value, present(key), statement, is_conditional=False)


def _set_item(node: ast.AST, made: ast.stmt, module: Module) -> Entry:
    """``params["name"] = value``, in the dictionary's own block or under an ``if`` of it."""
    statement = module.table.parents[node]
    match node, statement:
        case ast.Subscript(slice=ast.Constant(value=key)), ast.Assign(targets=[target]) if (
            target is node
        ):
            name = _argument(key)
        case _:
            raise Unreadable("it is used for something else")
    block = block_of(module.table.parents[made], made)
    child: ast.stmt = statement
    while block_of(module.table.parents[child], child) is not block:
        parent = module.table.parents[child]
        if not isinstance(parent, ast.If):
            raise Unreadable("it changes under more than a condition")
        child = parent
    if statement.lineno <= (made.end_lineno or 0):
        raise Unreadable("it changes before it is made")
    conditional = child is not statement
    value = statement.value
    return Entry(name, value, value, of_kind(node, ast.Subscript).slice, statement, conditional)


def _argument(key: object) -> str:
    """The name that an argument of FSDP1 has today."""
    if not isinstance(key, str):
        raise Unreadable("a key is not written out")
    return fsdp1.EARLIER_NAMES.get(key, key)


def _check_names(entry: Entry, scope: Scope, constructor: Constructor) -> None:
    """Refuse a value that would be another if it was asked for at the call."""
    table = constructor.module.table
    at_call = table.scope_of(constructor.call)
    for node in ast.walk(entry.value):
        if not isinstance(node, ast.Name):
            continue
        meant = table.within[node].lookup(node.id)
        if meant is not scope.lookup(node.id):
            continue  # a variable of the value's own
        bindings = scope.bindings[node.id] if meant is scope and scope.is_function else []
        later = any(_line(binding.node) > entry.statement.lineno for binding in bindings)
        if at_call.lookup(node.id) is not meant or later:
            raise Unreadable(f"{node.id} is another at the call")


def _line(node: ast.AST) -> int:
    return getattr(node, "lineno", 0)


# -- writing --------------------------------------------------------


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
