"""Where ``rewrite --partial`` can stop a program at a site that is left.

A guard raises where the site would run, and nowhere else; nothing in the project catches what it
raises. Where that cannot be had, the site's model stays FSDP1.
"""

from __future__ import annotations

import ast
import textwrap
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace

from fsdp_migrate.analysis.module import Module
from fsdp_migrate.families.wrapping import vocabulary
from fsdp_migrate.fsdp1 import api as fsdp1
from fsdp_migrate.fsdp1.site import Site
from fsdp_migrate.planning.context import Study, block_of, sentences
from fsdp_migrate.planning.edits import Code, Edit, Insert, Mark, code, join
from fsdp_migrate.planning.model import Decision
from fsdp_migrate.planning.outcome import Outcome
from fsdp_migrate.syntax import guards

# What makes models: left, nothing of what is done to them may be migrated.
MAKERS = (f"{fsdp1.FSDP}(", "partial(", "class(", "value(", "import(", "enable_wrap", "wrap")
CAUGHT = frozenset({"NotImplementedError", "RuntimeError", "Exception", "BaseException"})
SUPPRESSING = frozenset({"suppress", "raises", "assertRaises", "assertRaisesRegex"})
# What runs a function where an error of it stops nothing.
ELSEWHERE = frozenset(
    {
        "Thread",
        "Timer",
        "Process",
        "submit",
        "apply_async",
        "map_async",
        "run_in_executor",
        "to_thread",
        "create_task",
        "ensure_future",
        "call_soon",
        "call_later",
    }
)
IMMEDIATE = frozenset({"all", "any", "dict", "join", "list", "max", "min", "set", "sorted", "sum"})
# Calls that may be made once more without changing anything.
ASKING = frozenset({"callable", "get_rank", "get_world_size", "hasattr", "is_available"}) | {
    "is_initialized",
    "isinstance",
    "len",
}
TEST = "test"  # the hole of a guard's condition
DEFINITIONS = (ast.FunctionDef, ast.AsyncFunctionDef)
SIMPLE = (ast.Assign, ast.AnnAssign, ast.AugAssign, ast.Expr, ast.Return, ast.For, ast.With)


@dataclass(frozen=True)
class _Place:
    """In front of ``statement``, raising under all of ``conditions``."""

    statement: ast.stmt
    conditions: tuple[Code, ...] = ()


class _Nowhere(Exception):
    """No guard can stand; the message says why."""


def guarded(decisions: Sequence[Decision], study: Study) -> list[Decision]:
    """``decisions``, those that hold migrations back with the guards that could stand there."""
    nodes: set[ast.AST] = {d.site.node for d in decisions} | {d.site.reference for d in decisions}
    if not any(map(holds, decisions)):
        return list(decisions)
    catching = _Catching.of(study)
    return [_guarded(d, nodes, study, catching) if holds(d) else d for d in decisions]


def holds(decision: Decision) -> bool:
    """Whether a decision holds a migration back and could be let go."""
    return decision.outcome is Outcome.LEFT and decision.quiet and bool(decision.models)


def edits(decisions: Iterable[Decision]) -> Iterator[Edit]:
    """What puts the guards of ``decisions`` in their places: one a place, with all markers."""
    placed: set[tuple[ast.stmt, str]] = set()
    for decision in decisions:
        for edit in decision.guard if decision.guarded else ():
            if isinstance(edit, Insert):
                test = edit.codes[0].parts.get(TEST)
                place = (edit.node, test.preview() if isinstance(test, Code) else "")
                if place in placed:
                    continue
                placed.add(place)
            yield edit


def _guarded(
    decision: Decision, nodes: set[ast.AST], study: Study, catching: _Catching
) -> Decision:
    site = decision.site
    try:
        setting = vocabulary.name_of(site.construct) in vocabulary.SETTINGS
        if setting or site.construct.startswith(MAKERS) or site.node in study.constructors:
            raise _Nowhere("it is what makes the model")
        if site.node in study.failures:
            raise _Nowhere("the rule failed")
        place = _place(site, nodes)
        _check_import(site, place.statement, decision)
        _check_caught(site.module, place.statement, study, catching)
    except _Nowhere as why:
        return replace(decision, unguarded=str(why))
    return replace(decision, guard=_edits(decision, place))


def _edits(decision: Decision, place: _Place) -> tuple[Edit, ...]:
    site, statement = decision.site, place.statement
    module = site.module
    sentence = next(
        (e.sentence for e in decision.edits if isinstance(e, Mark)),
        sentences(decision.message, decision.help),
    )
    mark = Mark(module, statement, decision.code, sentence)
    text = guards.text(decision.code, decision.message)
    parent = module.table.parents[statement]
    on_one_line = isinstance(parent, ast.stmt) and parent.lineno == statement.lineno
    if on_one_line:  # the marker's place is in the block that the line becomes
        text = f"{mark.comment}\n{text}"
    raises = code("{r}", r=text)
    if place.conditions:
        test = join(" and ", [*place.conditions])
        raises = Code(f"if {{{TEST}}}:\n{{r}}", {"r": textwrap.indent(text, "    "), TEST: test})
    inserted = Insert(module, statement, (raises,))
    return (inserted,) if on_one_line else (inserted, mark)


# -- where it stands ------------------------------------------------------------------------------


def _place(site: Site, nodes: set[ast.AST]) -> _Place:
    """The statement in front of which a guard raises exactly when the site would run.

    Raises:
        _Nowhere: there is none.
    """
    table = site.module.table
    if isinstance(site.node, ast.stmt) and not isinstance(site.node, SIMPLE):
        raise _Nowhere("it is a definition")
    conditions: list[Code] = []
    tests: list[ast.expr] = []
    child: ast.AST = site.node
    while not isinstance(child, ast.stmt):
        parent = table.parents[child]
        for test, wanted in _deciding(child, parent, table.parents.get(parent)):
            tests.append(test)
            conditions.insert(0, _condition(test, wanted))
        child = parent
    statement: ast.stmt = child
    if isinstance(statement, ast.While) and conditions:
        raise _Nowhere("it runs in some rounds of a loop")
    while isinstance(statement, ast.If) and (above := _chain(statement, site.module)) is not None:
        tests.append(above.test)  # what an elif tests is guarded above its if
        conditions.insert(0, _condition(above.test, wanted=False))
        statement = above
    if block_of(table.parents[statement], statement) is None:
        raise _Nowhere("no statement can stand in front of it")
    for test in tests:
        if not _is_plain(test):
            raise _Nowhere(
                f"'{ast.unparse(test)}' decides whether it runs, and cannot be asked twice"
            )
        if any(n in nodes for n in ast.walk(test)):
            raise _Nowhere(f"'{ast.unparse(test)}' decides whether it runs, and is FSDP1's")
    if tests and any(isinstance(n, ast.NamedExpr) for n in ast.walk(statement)):
        raise _Nowhere("what decides whether it runs is assigned on the way")
    return _Place(statement, tuple(conditions))


def _chain(statement: ast.If, module: Module) -> ast.If | None:
    """The ``if`` or ``elif`` whose ``elif`` a statement is."""
    above = module.table.parents[statement]
    line = module.source.lines[statement.lineno - 1]
    is_elif = line.lstrip().startswith("elif")
    if is_elif and isinstance(above, ast.If) and above.orelse == [statement]:
        return above
    return None


def _deciding(
    child: ast.AST, parent: ast.AST, around: ast.AST | None
) -> Iterator[tuple[ast.expr, bool]]:
    """What decides, in ``parent``, whether ``child`` is evaluated, and which way.

    Raises:
        _Nowhere: that cannot be said in front of the statement.
    """
    match parent:
        case ast.IfExp() if child is not parent.test:
            yield parent.test, child is parent.body
        case ast.BoolOp():
            index = parent.values.index(child)  # type: ignore[arg-type]
            for earlier in reversed(parent.values[:index]):
                yield earlier, isinstance(parent.op, ast.And)
        case ast.Compare() if child in parent.comparators[1:]:
            raise _Nowhere("it is part of a chain of comparisons")
        case ast.Lambda():
            raise _Nowhere("it runs when a lambda is called")
        case ast.GeneratorExp() if not _is_first(child, parent):
            name = ""
            if isinstance(around, ast.Call):
                name = getattr(around.func, "id", getattr(around.func, "attr", ""))
            if name not in IMMEDIATE:
                raise _Nowhere("it runs when a generator is asked")
        case ast.comprehension() if child is not parent.iter:
            raise _Nowhere("it is a part of a comprehension")
        case ast.match_case() | ast.ExceptHandler():
            raise _Nowhere("it belongs to a pattern or a handler")
        case ast.For() | ast.AsyncFor() if child is parent.target:
            raise _Nowhere("it is assigned to in each round of a loop")
        case ast.Assert() if child is parent.msg:
            raise _Nowhere("it is the message of an assert")
        case ast.arg() | ast.FunctionDef() | ast.AsyncFunctionDef() | ast.AnnAssign() if child in (
            getattr(parent, "annotation", None),
            getattr(parent, "returns", None),
        ):
            raise _Nowhere("it is an annotation")
        case ast.Import() | ast.ImportFrom():
            raise _Nowhere("it is an import")
    if isinstance(parent, (ast.ListComp, ast.SetComp, ast.DictComp, ast.GeneratorExp)):
        first, *more = parent.generators
        if not _is_first(child, parent) and (more or first.ifs):
            raise _Nowhere("it is a part of a comprehension")


def _is_first(child: ast.AST, comprehension: ast.expr) -> bool:
    """Whether ``child`` holds the first iterable, which is evaluated at once."""
    generators: list[ast.comprehension] = getattr(comprehension, "generators", [])
    return bool(generators) and child is generators[0]


def _condition(test: ast.expr, wanted: bool) -> Code:
    return code("{t}", t=test) if wanted else code("not {t}", t=test)


def _is_plain(node: ast.expr) -> bool:
    """Whether an expression may be asked once more."""
    match node:
        case ast.Constant() | ast.Name():
            return True
        case ast.Attribute():
            return _is_plain(node.value)
        case ast.UnaryOp():
            return _is_plain(node.operand)
        case ast.Subscript():
            return _is_plain(node.value) and _is_plain(node.slice)
        case ast.BoolOp():
            return all(map(_is_plain, node.values))
        case ast.Compare():
            return all(map(_is_plain, (node.left, *node.comparators)))
        case ast.Tuple():
            return all(map(_is_plain, node.elts))
        case ast.Call(keywords=[]):
            name = getattr(node.func, "id", getattr(node.func, "attr", ""))
            return name in ASKING and all(map(_is_plain, node.args))
    return False


def _check_import(site: Site, statement: ast.stmt, decision: Decision) -> None:
    """Refuse what runs when the module is imported, unless that is what makes the model."""
    table = site.module.table
    around = [statement, *table.ancestors(statement)]
    if any(isinstance(a, DEFINITIONS) for a in around[1:]):
        return
    if any(isinstance(a, ast.If) and "__name__" in ast.unparse(a.test) for a in around):
        return
    made_here = any(
        c.module is site.module and table.scope_of(c.call).function() is None
        for c in decision.models
    )
    if not made_here:
        raise _Nowhere("it runs when the module is imported")


# -- what becomes of the error --------------------------------------------------------------------


@dataclass
class _Catching:
    """What in a project ends errors: context managers by name, and whether any ``try`` does."""

    contexts: set[str] = field(default_factory=lambda: set(SUPPRESSING))
    anywhere: bool = False

    @classmethod
    def of(cls, study: Study) -> _Catching:
        found = cls()
        for module in study.project.modules:
            for node in ast.walk(module.source.tree):
                if isinstance(node, (ast.Try, ast.TryStar)) and _ends_errors(node):
                    found.anywhere = True
                    if any(isinstance(n, ast.Yield) for s in node.body for n in ast.walk(s)):
                        found.contexts.add(_definition(module, node))
                elif isinstance(node, ast.Return) and not _is_false(node):
                    function = _definition(module, node)
                    if function == "__exit__":
                        method = module.table.scope_of(node).node
                        found.contexts.add(_definition(module, method))
        return found


def _ends_errors(node: ast.Try | ast.TryStar) -> bool:
    return any(map(_swallows, node.handlers)) or _leaves(node.finalbody)


def _definition(module: Module, node: ast.AST) -> str:
    """The name of the function or class around ``node``."""
    around = module.table.ancestors(node)
    return next((a.name for a in around if isinstance(a, (*DEFINITIONS, ast.ClassDef))), "")


def _is_false(node: ast.Return) -> bool:
    return node.value is None or (isinstance(node.value, ast.Constant) and not node.value.value)


def _check_caught(module: Module, statement: ast.AST, study: Study, catching: _Catching) -> None:
    """Refuse a place from which an error does not stop the program, in whatever calls lead there.

    Calls are told by the name of the function, whoever's it is; of methods that are called without
    being named, no ``try`` of the project may end errors.
    """
    asked: set[str] = set()
    places: list[tuple[Module, ast.AST]] = [(module, statement)]
    while places:
        where, node = places.pop()
        function = _check_caught_here(where, node, catching)
        name = getattr(function, "name", "")
        if function is not None and name == "__init__":
            name = getattr(where.table.parents[function], "name", name)
        elif name == "__del__":
            raise _Nowhere("what __del__ raises is ignored")
        elif (name == "forward" or name.startswith("__")) and catching.anywhere:
            raise _Nowhere("what it raises may be caught")
        if isinstance(node, ast.expr) and isinstance(where.table.parents[node], ast.ClassDef):
            name = _definition(where, node)  # a subclass is made where it is named
        if name and name not in asked:
            asked.add(name)
            places += _mentions(name, study)


def _check_caught_here(module: Module, node: ast.AST, catching: _Catching) -> ast.AST | None:
    """The function around ``node``, which an error there leaves."""
    child = node
    for parent in module.table.ancestors(node):
        if isinstance(parent, DEFINITIONS):
            return parent
        if isinstance(parent, (ast.Try, ast.TryStar)) and child not in parent.finalbody:
            inside = child in parent.body
            if (inside and any(map(_swallows, parent.handlers))) or _leaves(parent.finalbody):
                raise _Nowhere("what it raises is caught")
        if isinstance(parent, (ast.With, ast.AsyncWith)) and child in parent.body:
            for item in parent.items:
                if _last_name(item.context_expr) in catching.contexts:
                    raise _Nowhere("what it raises is caught")
        child = parent
    return None


def _mentions(name: str, study: Study) -> Iterator[tuple[Module, ast.AST]]:
    """Where a function is called, or handed on."""
    for module in study.project.modules:
        table = module.table
        found: list[ast.expr] = [n for n in table.names if n.id == name]
        found += [a for a in table.attributes if a.attr == name]
        for mention in found:
            if study.external(mention, module):
                continue  # torch.save is no save of the project's
            parent = table.parents[mention]
            given = table.parents[parent] if isinstance(parent, ast.keyword) else parent
            handed_on = isinstance(given, ast.Call) and given.func is not mention
            if handed_on and _last_name(given) in ELSEWHERE:
                raise _Nowhere("what it raises stops only a thread")
            yield module, mention


def _swallows(handler: ast.ExceptHandler) -> bool:
    """Whether a handler may catch a guard's error and go on."""
    kinds = handler.type.elts if isinstance(handler.type, ast.Tuple) else [handler.type]
    names = {None if k is None else _last_name(k) for k in kinds}
    if not any(n is None or n in CAUGHT or not n[:1].isupper() for n in names):
        return False
    last = handler.body[-1]
    if isinstance(last, ast.Expr) and _last_name(last.value) in {"exit", "_exit", "quit", "abort"}:
        return False
    if not isinstance(last, ast.Raise):
        return True
    again = "" if last.exc is None else _last_name(last.exc)
    return again not in {"", handler.name, "SystemExit", *CAUGHT}


def _leaves(block: Iterable[ast.stmt]) -> bool:
    """Whether a ``finally`` block ends an error by leaving."""
    return any(
        isinstance(n, (ast.Return, ast.Break, ast.Continue)) for s in block for n in ast.walk(s)
    )


def _last_name(node: ast.AST) -> str:
    node = node.func if isinstance(node, ast.Call) else node
    return str(getattr(node, "id", getattr(node, "attr", "")))
