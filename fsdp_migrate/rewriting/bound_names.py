"""Which reads of names may find nothing bound, in the order in which a file runs.

A forward analysis over a whole module: the state is what is surely bound, branches joined by
intersection. A function runs at the earliest where its name is first read, or what holds it
(``TABLE = {"a": build}``) is; where a decorator, a base class or another module that is imported
below it may call it; and after the module has been loaded. At each of these events everything
that it needs from outside, with what it calls in turn, is looked up in the state.

This reads the finished file and nothing else: it shares no code with the placing of imports, which
it is there to doubt.
"""

from __future__ import annotations

import ast
import builtins
import sys
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, field

from fsdp_migrate.analysis.flow import access_path
from fsdp_migrate.syntax.name_table import NameTable
from fsdp_migrate.syntax.scopes import Kind, Scope
from fsdp_migrate.syntax.trees import (
    COMPREHENSIONS,
    FUNCTIONS,
    NODE_FIELDS,
    children,
    last_part,
    walk,
)

Key = tuple[Scope, str]  # a name of a scope
Atoms = frozenset[tuple[str, bool]]  # conditions that hold, or do not
Fact = tuple[str, Atoms, Key]  # where the conditions are so, the name is bound
State = set[Key | Fact]
Definition = ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef

MODULE_ATTRIBUTES = frozenset(
    ("__file__", "__name__", "__doc__", "__path__", "__spec__", "__package__", "__loader__")
)
ALWAYS = frozenset(dir(builtins)) | MODULE_ATTRIBUTES
ENDS = frozenset(("sys.exit", "exit", "quit", "os._exit", "os.abort"))
OPPOSITES: dict[type[ast.cmpop], type[ast.cmpop]] = {
    ast.NotEq: ast.Eq,
    ast.IsNot: ast.Is,
    ast.NotIn: ast.In,
}
FAILED_IMPORTS = frozenset(("ImportError", "ModuleNotFoundError", "Exception", "BaseException"))


@dataclass(frozen=True)
class Doubt:
    """A read of a name that may be bound nowhere by then."""

    name: str
    place: str  # the functions and classes that the read stands in
    event: str  # what brings the read about
    imported: bool = field(compare=False)  # whether imports are all that bind the name
    line: int = field(compare=False)


@dataclass(eq=False)
class _Summary:
    """What a function needs from outside of itself: each name, and where it is read."""

    needs: dict[Key, ast.Name] = field(default_factory=dict)


def doubts(
    table: NameTable, holding: Collection[str] = (), wanting: Collection[str] = ()
) -> set[Doubt]:
    """The reads of a module that may fail because nothing is bound to the name yet, or any more.

    ``holding`` are conditions, as :func:`written` gives them, that are known to hold;
    ``wanting`` names that are as good as unbound where they are None.
    """
    return _Order(table, holding, wanting).run()


def written(condition: ast.expr) -> str:
    """A condition as text: what is asked twice in the same words has the same answer."""
    return ast.dump(condition)


class _Order:
    def __init__(
        self, table: NameTable, holding: Collection[str], wanting: Collection[str]
    ) -> None:
        self.table = table
        self.holding = holding
        self.wanting = wanting
        self.conditions: dict[Atoms, frozenset[str]] = {}  # of facts -> the names they ask
        self.found: set[Doubt] = set()
        self.summaries: dict[Scope, _Summary] = {}
        self.all_needed: dict[Key, dict[Key, ast.Name]] = {}
        self.needed_directly: dict[Key, dict[Key, ast.Name]] = {}
        self.owner = table.module  # the function whose statements are being read
        self.summary = _Summary()  # and what it needs
        # What was bound with a function that is not always: who calls it has come that way.
        self.companions: dict[Key, State] = {}
        # The same for each of several functions of one name, which branches define.
        self.made_with: dict[Scope, State] = {}
        self.unbound: State = set()  # what was deleted anywhere
        self.loops: list[list[State]] = []  # what is bound where a loop is left by ``break``
        self.event = ""
        self.postponed = table.postpones_annotations
        self.inside: dict[Scope, list[Scope]] = {}
        for scope in table.scopes.values():
            if scope.parent is not None:
                self.inside.setdefault(scope.parent, []).append(scope)

    def run(self) -> set[Doubt]:
        state = self.block(self.table.tree.body, set(), self.table.module)
        if state is not None:  # what is called from outside, when all has been loaded
            for scope in self.table.scopes.values():
                if scope.is_function:
                    self.at_the_end(scope, state)
        return self.found

    def at_the_end(self, scope: Scope, state: State) -> None:
        needs = self.of(scope).needs
        lost = [key for key in needs if key[0] is self.table.module and key not in state]
        if not lost:
            return
        outer: list[ast.AST] = [scope.node, *self.table.ancestors(scope.node)]
        name = next((n.name for n in reversed(outer) if isinstance(n, Definition)), "")
        companions = self.companions.get((self.table.module, name), set()) - self.unbound
        self.event = "later"
        for key in lost:
            if key not in companions and not self.is_made_with(scope, key):
                self.doubt(key, needs[key])

    def is_made_with(self, scope: Scope, key: Key) -> bool:
        return key in self.made_with.get(scope, ()) and key not in self.unbound

    # -- reads ----------------------------------------------------------------------------------

    def read(self, node: ast.Name, state: State, scope: Scope) -> None:
        home = scope.lookup(node.id)
        if home is None or isinstance(home.node, COMPREHENSIONS):
            return
        if home.is_class and home is scope and (home, node.id) not in state:
            # A class body that has not bound a name yet looks for it further out.
            outer = home.parent.lookup(node.id) if home.parent is not None else None
            home = outer or home
        key = (home, node.id)
        self.event = "directly"
        self.missing(key, node, state)
        if self.is_own(key):
            self.reach(key, f"by {node.id}", state)

    def is_own(self, key: Key) -> bool:
        """Whether the statements that are being read bind the name, not those around them."""
        return key[0].function() is self.owner.function()

    def missing(self, key: Key, node: ast.Name, state: State) -> None:
        """A name that is not surely bound: a doubt where this function binds it, else a need."""
        if key in state:
            return
        if self.is_own(key):
            self.doubt(key, node)
        else:
            self.summary.needs.setdefault(key, node)

    def doubt(self, key: Key, node: ast.Name) -> None:
        scope, name = key
        if name in ALWAYS and (scope is self.table.module or scope.is_class):
            return
        imported = all(b.kind is Kind.IMPORT for b in scope.bindings.get(name, ()))
        self.found.add(Doubt(name, self.place(node), self.event, imported, node.lineno))

    def place(self, node: ast.AST) -> str:
        names = []
        for around in self.table.ancestors(node):
            if isinstance(around, Definition):
                names.append(around.name)
        return ".".join(reversed(names))

    # -- what runs in turn ----------------------------------------------------------------------

    def reach(self, key: Key, event: str, state: State) -> None:
        """Look up what runs when ``key`` is called, or taken to where it may be."""
        needed = self.needed(key)
        if needed.keys() <= state:
            return
        state = state | (self.companions.get(key, set()) - self.unbound)
        for other, node in needed.items():
            if other not in state:
                self.event = event
                self.missing(other, node, state)

    def run_now(self, scopes: Iterable[Scope], event: str, state: State) -> None:
        """Look up what functions need that may be called here without their names."""
        for scope in scopes:
            for key, node in self.of(scope).needs.items():
                self.event = event
                self.missing(key, node, state)
                self.reach(key, event, state)

    def needed(self, key: Key) -> dict[Key, ast.Name]:
        """All that what a name holds needs when it is called, and what that calls needs."""
        known = self.all_needed.get(key)
        if known is not None:
            return known
        found: dict[Key, ast.Name] = {}
        seen, stack = {key}, [key]
        while stack:
            for other, node in self.direct(stack.pop()).items():
                found.setdefault(other, node)
                if other not in seen:
                    seen.add(other)
                    stack.append(other)
        self.all_needed[key] = found
        return found

    def direct(self, key: Key) -> dict[Key, ast.Name]:
        """What the functions need that a name holds."""
        known = self.needed_directly.get(key)
        if known is not None:
            return known
        scope, name = key
        found: dict[Key, ast.Name] = {}
        for binding in scope.bindings.get(name, ()):
            if isinstance(binding.node, Definition):
                scopes = self.functions(self.table.scopes[binding.node])
            elif binding.kind is Kind.ASSIGN and binding.value is not None:
                held, scopes = self.held(binding.value)
                for each, node in held.items():
                    found.setdefault(each, node)
            else:
                continue
            for inner in scopes:
                for other, node in self.of(inner).needs.items():
                    if not self.is_made_with(inner, other):
                        found.setdefault(other, node)
        if self.owner is self.table.module:  # else a function may have been read in part only
            self.needed_directly[key] = found
        return found

    def held(self, value: ast.expr) -> tuple[dict[Key, ast.Name], list[Scope]]:
        """The functions that a value mentions, by name and as lambdas.

        A name is only followed when it leads to a function: what else the value is made from was
        read when it was made.
        """
        found: dict[Key, ast.Name] = {}
        scopes: list[Scope] = []
        stack: list[ast.AST] = [value]
        while stack:
            node = stack.pop()
            if isinstance(node, ast.Lambda):
                scopes.append(self.table.scopes[node])
            elif isinstance(node, ast.Name):
                home = self.table.within[node].lookup(node.id)
                bindings = home.bindings[node.id] if home is not None else []
                if home is not None and any(isinstance(b.node, Definition) for b in bindings):
                    found[home, node.id] = node
            else:
                stack += children(node)
        return found, scopes

    def functions(self, scope: Scope) -> list[Scope]:
        """A function; all methods of a class."""
        if not scope.is_class:
            return [scope]
        inner = (s for s in self.inside.get(scope, ()) if s.is_function or s.is_class)
        return [each for s in inner for each in self.functions(s)]

    def of(self, scope: Scope) -> _Summary:
        """What a function needs; its own names are looked up in its own order meanwhile."""
        known = self.summaries.get(scope)
        if known is not None:
            return known
        made = self.summaries[scope] = _Summary()
        before = self.owner, self.summary, self.loops, self.event
        self.owner, self.summary, self.loops = scope, made, []
        state: State = {
            (scope, name)
            for name, bindings in scope.bindings.items()
            if any(b.kind is Kind.PARAMETER for b in bindings)
        }
        if isinstance(scope.node, ast.Lambda):
            self.evaluate(scope.node.body, state, scope)
        else:
            assert isinstance(scope.node, ast.FunctionDef | ast.AsyncFunctionDef)
            self.block(scope.node.body, state, scope)
        self.owner, self.summary, self.loops, self.event = before
        return made

    # -- statements -----------------------------------------------------------------------------

    def block(self, body: Sequence[ast.stmt], state: State | None, scope: Scope) -> State | None:
        """What is surely bound behind statements; None where they do not go on."""
        for statement in body:
            if state is None:
                return None
            state = self.statement(statement, state, scope)
        return state

    def statement(self, node: ast.stmt, state: State, scope: Scope) -> State | None:
        match node:
            case ast.FunctionDef() | ast.AsyncFunctionDef() | ast.ClassDef():
                return self.define(node, state, scope)
            case ast.Import() | ast.ImportFrom():
                return self.bring_in(node, state, scope)
            case ast.If():
                return self.branch(node, state, scope)
            case ast.For() | ast.AsyncFor() | ast.While():
                return self.loop(node, state, scope)
            case ast.Try() | ast.TryStar():
                return self.attempt(node, state, scope)
            case ast.With() | ast.AsyncWith():
                return self.enter(node, state, scope)
            case ast.Match(subject=subject, cases=cases):
                self.evaluate(subject, state, scope)
                ends: list[State | None] = [] if _is_exhaustive(cases) else [state]
                for case in cases:
                    inner = set(state)
                    self.evaluate(case.pattern, inner, scope)
                    if case.guard is not None:
                        self.evaluate(case.guard, inner, scope)
                    ends.append(self.block(case.body, inner, scope))
                return self.join(ends)
            case ast.Return() | ast.Raise():
                self.parts(node, state, scope)
                return None
            case ast.Break():
                if self.loops:
                    self.loops[-1].append(state)
                return None
            case ast.Continue():
                return None
            case ast.Assign(targets=targets, value=value):
                self.evaluate(value, state, scope)
                nothing = isinstance(value, ast.Constant) and value.value is None
                for target in targets:
                    if not (nothing and getattr(target, "id", "") in self.wanting):
                        self.evaluate(target, state, scope)
                return state
            case ast.AugAssign(target=target, value=value):
                if isinstance(target, ast.Name):
                    self.read(target, state, scope)
                self.evaluate(value, state, scope)
                self.evaluate(target, state, scope)
                return state
            case ast.AnnAssign(target=target, annotation=annotation, value=value):
                if value is not None:
                    self.evaluate(value, state, scope)
                if not (self.postponed or scope.is_function):
                    self.evaluate(annotation, state, scope)
                if value is not None or not isinstance(target, ast.Name):
                    self.evaluate(target, state, scope)
                return state
            case ast.Assert(test=ast.Constant(value=False)):
                return None
            case ast.Expr(value=ast.Call(func=func) as call):
                self.evaluate(call, state, scope)
                return None if access_path(func) in ENDS else state
        self.parts(node, state, scope)
        return state

    def branch(self, node: ast.If, state: State, scope: Scope) -> State | None:
        """Both ways of an ``if``; what one of them binds is bound where it is asked again."""
        self.evaluate(node.test, state, scope)
        known = _known(node.test)
        if self.holding and written(node.test) in self.holding:
            known = True
        ends: list[State | None] = []
        for body, holds in ((node.body, True), (node.orelse, False)):
            inner = set(state)
            if self.conditions:
                atoms = _atoms(node.test, holds)
                inner |= {fact[2] for fact in state if len(fact) == 3 and fact[1] <= atoms}
            end = None if known is (not holds) else self.block(body, inner, scope)
            ends.append(end)
            if end is not None and scope is self.table.module:
                self.note_made_with(body, end)
        yes, no = ends
        joined = self.join(ends)
        if yes is not None and no is not None and joined is not None and _is_steady(node.test):
            asked = frozenset(n.id for n in walk(node.test) if isinstance(n, ast.Name))
            for bound, other, holds in ((yes, no, True), (no, yes, False)):
                atoms = _atoms(node.test, holds)
                self.conditions[atoms] = asked
                joined |= {("if", atoms, key) for key in bound - other if len(key) == 2}
        return joined

    def note_made_with(self, body: Sequence[ast.stmt], end: State) -> None:
        """Who calls a function that is made in a branch has what the branch binds."""
        for statement in body:
            for node in walk(statement):
                inner = self.table.scopes.get(node)
                if inner is not None and inner.is_function:
                    self.made_with.setdefault(inner, set()).update(end)

    def join(self, states: Iterable[State | None]) -> State | None:
        """What is bound on every way that goes on."""
        alive = [state for state in states if state is not None]
        if not alive:
            return None
        joined = set.intersection(*alive)
        for state in alive:
            for key in state - joined:
                if len(key) == 2 and self.is_defined(key):
                    known = self.companions.get(key, state)
                    self.companions[key] = known & state
        return joined

    def define(self, node: Definition, state: State, scope: Scope) -> State:
        for decorator in node.decorator_list:
            self.evaluate(decorator, state, scope)
        inner = self.table.scopes[node]
        if isinstance(node, ast.ClassDef):
            for base in (*node.bases, *(k.value for k in node.keywords)):
                self.evaluate(base, state, scope)
            self.block(node.body, state, inner)
            if node.decorator_list or node.bases or node.keywords:
                self.run_now(self.functions(inner), f"as {node.name} is made", state)
        else:
            arguments = node.args
            for default in (*arguments.defaults, *arguments.kw_defaults):
                if default is not None:
                    self.evaluate(default, state, scope)
            if not self.postponed:
                for annotation in (*_annotations(arguments), node.returns):
                    if annotation is not None:
                        self.evaluate(annotation, state, scope)
            if node.decorator_list:
                self.run_now([inner], f"as {node.name} is made", state)
        self.bind(node.name, state, scope)
        return state

    def bring_in(self, node: ast.Import | ast.ImportFrom, state: State, scope: Scope) -> State:
        module = node.module or "" if isinstance(node, ast.ImportFrom) else node.names[0].name
        level = node.level if isinstance(node, ast.ImportFrom) else 0
        top = module.split(".")[0]
        foreign = not level and (top in sys.stdlib_module_names or top == "torch")
        if not (foreign or _is_support(module)) and scope is self.table.module:
            # It may be of the project, import this module back, and call what there is of it.
            for fact in list(state):
                if len(fact) == 2 and self.is_defined(fact):
                    self.reach(fact, f"by the import of {module}", state)
        for alias in node.names:
            if alias.name != "*":
                plain = alias.name.split(".")[0] if isinstance(node, ast.Import) else alias.name
                self.bind(alias.asname or plain, state, scope)
        return state

    @staticmethod
    def is_defined(key: Key) -> bool:
        """Whether a name is that of a function or a class."""
        return any(isinstance(b.node, Definition) for b in key[0].bindings.get(key[1], ()))

    def loop(
        self, node: ast.For | ast.AsyncFor | ast.While, state: State, scope: Scope
    ) -> State | None:
        if isinstance(node, ast.While):
            self.evaluate(node.test, state, scope)
            endless = _known(node.test) is True
        else:
            self.evaluate(node.iter, state, scope)
            endless = False
        state = state - self.deleted(node.body, scope)
        inner = set(state)
        if not isinstance(node, ast.While):
            self.evaluate(node.target, inner, scope)
        self.loops.append([])
        self.block(node.body, inner, scope)
        breaks = self.loops.pop()
        done = None if endless else self.block(node.orelse, set(state), scope)
        return self.join([done, *breaks])

    def enter(self, node: ast.With | ast.AsyncWith, state: State, scope: Scope) -> State | None:
        swallows = False
        for item in node.items:
            self.evaluate(item.context_expr, state, scope)
            if item.optional_vars is not None:
                self.evaluate(item.optional_vars, state, scope)
            called = item.context_expr
            if isinstance(called, ast.Call):
                swallows |= last_part(called.func) == "suppress"
        if swallows and not _surely_imports(node.body):
            before = state - self.deleted(node.body, scope)
            return self.join([before, self.block(node.body, set(state), scope)])
        return self.block(node.body, state, scope)

    def attempt(self, node: ast.Try | ast.TryStar, state: State, scope: Scope) -> State | None:
        start = state - self.deleted(node.body, scope)
        done = self.block(node.body, set(state), scope)
        if done is not None:
            done = self.block(node.orelse, done, scope)
        ends = [done]
        for handler in node.handlers:
            if handler.type is not None:
                self.evaluate(handler.type, start, scope)
            inner = set(start)
            if _surely_imports(node.body) and _only_imports_fail(handler):
                self.block(handler.body, inner, scope)
                continue  # torch is there
            if handler.name:
                self.bind(handler.name, inner, scope)
            end = self.block(handler.body, inner, scope)
            if end is not None and handler.name:
                end -= {self.key(handler.name, scope)}  # the language deletes it
                self.unbound.add(self.key(handler.name, scope))
            ends.append(end)
        joined = self.join(ends)
        if not node.finalbody:
            return joined
        for part in (*node.handlers, node):
            start -= self.deleted(part.body, scope)
        if joined is None:
            self.block(node.finalbody, start, scope)
            return None
        # The block runs in any case; what it reads must be there even if something failed.
        self.block(node.finalbody, set(start), scope)
        return self.block(node.finalbody, joined, scope)

    def deleted(self, body: Sequence[ast.stmt], scope: Scope) -> State:
        """What statements may unbind."""
        found: State = set()
        stack: list[ast.AST] = list(body)
        while stack:
            node = stack.pop()
            if isinstance(node, ast.Delete):
                found |= {self.key(t.id, scope) for t in node.targets if isinstance(t, ast.Name)}
            elif isinstance(node, ast.ExceptHandler) and node.name:
                found.add(self.key(node.name, scope))
            if not isinstance(node, (*FUNCTIONS, ast.ClassDef, ast.expr)):
                for name in ("body", "orelse", "handlers", "finalbody", "cases"):
                    stack += getattr(node, name, ())
        return found

    # -- expressions ----------------------------------------------------------------------------

    def parts(self, node: ast.AST, state: State, scope: Scope) -> None:
        for name in NODE_FIELDS[node.__class__]:
            part = getattr(node, name)
            if part.__class__ is list:
                for each in part:
                    if isinstance(each, ast.AST):
                        self.evaluate(each, state, scope)
            elif isinstance(part, ast.AST):
                self.evaluate(part, state, scope)

    def evaluate(self, node: ast.AST, state: State, scope: Scope) -> None:
        """Read and bind the names of an expression, a target or a pattern."""
        kind = node.__class__
        if kind is ast.Constant:
            return
        if isinstance(node, ast.Name):
            if isinstance(node.ctx, ast.Load):
                self.read(node, state, scope)
            elif isinstance(node.ctx, ast.Store):
                self.bind(node.id, state, scope)
            else:
                self.read(node, state, scope)
                state.discard(self.key(node.id, scope))
                self.unbound.add(self.key(node.id, scope))
        elif isinstance(node, ast.Lambda):
            for default in (*node.args.defaults, *node.args.kw_defaults):
                if default is not None:
                    self.evaluate(default, state, scope)
            self.run_now([self.table.scopes[node]], "by a lambda", state)
        elif isinstance(node, COMPREHENSIONS):
            inner = self.table.scopes[node]
            for index, generator in enumerate(node.generators):
                self.evaluate(generator.iter, state, inner if index else scope)
                for condition in generator.ifs:
                    self.evaluate(condition, state, inner)
            results = [node.key, node.value] if isinstance(node, ast.DictComp) else [node.elt]
            for result in results:
                self.evaluate(result, state, inner)
        elif isinstance(node, ast.NamedExpr):
            self.evaluate(node.value, state, scope)
            while isinstance(scope.node, COMPREHENSIONS) and scope.parent is not None:
                scope = scope.parent
            self.bind(node.target.id, state, scope)
        elif isinstance(node, ast.IfExp):
            self.evaluate(node.test, state, scope)
            for part, holds in ((node.body, True), (node.orelse, False)):
                if _known(node.test) is not (not holds):
                    self.evaluate(part, set(state), scope)
        else:
            name = getattr(node, "name", None) or getattr(node, "rest", None)
            self.parts(node, state, scope)
            if isinstance(name, str) and isinstance(node, ast.pattern):
                self.bind(name, state, scope)

    def bind(self, name: str, state: State, scope: Scope) -> None:
        state.add(self.key(name, scope))
        stale = {atoms for atoms, names in self.conditions.items() if name in names}
        if stale:
            state -= {fact for fact in state if len(fact) == 3 and fact[1] in stale}

    def key(self, name: str, scope: Scope) -> Key:
        """Where a scope binds a name."""
        redirect = scope.redirected.get(name)
        if redirect == "global":
            return scope.module_scope(), name
        if redirect == "nonlocal" and scope.parent is not None:
            return scope.parent.lookup(name) or scope, name
        return scope, name


def _known(test: ast.expr) -> bool | None:
    """How a condition always comes out when the program runs, if that is plain."""
    match test:
        case ast.Constant(value=value):
            return bool(value)
        case ast.Name(id="TYPE_CHECKING") | ast.Attribute(attr="TYPE_CHECKING"):
            return False
        case ast.UnaryOp(op=ast.Not(), operand=operand):
            known = _known(operand)
            return None if known is None else not known
    return None


def _atoms(test: ast.expr, holds: bool) -> Atoms:
    """The conditions that are known to hold, or not to, where a whole one does or does not."""
    if isinstance(test, ast.UnaryOp) and isinstance(test.op, ast.Not):
        return _atoms(test.operand, not holds)
    if isinstance(test, ast.BoolOp) and isinstance(test.op, ast.And) is holds:
        return frozenset().union(*(_atoms(value, holds) for value in test.values))
    if isinstance(test, ast.Compare) and len(test.ops) == 1:
        opposite = OPPOSITES.get(type(test.ops[0]))
        if opposite is not None:  # ``a != b`` is ``a == b`` that does not hold
            plain = ast.Compare(test.left, [opposite()], test.comparators)
            return frozenset({(written(plain), not holds)})
    return frozenset({(written(test), holds)})


def _is_steady(test: ast.expr) -> bool:
    """Whether a condition is asked of names and constants only, so that asking changes nothing."""
    moving = (ast.Call, ast.NamedExpr, ast.Await, ast.Yield, ast.YieldFrom)
    return not any(isinstance(node, moving) for node in walk(test))


def _is_exhaustive(cases: Sequence[ast.match_case]) -> bool:
    last = cases[-1]
    return last.guard is None and isinstance(last.pattern, ast.MatchAs) and not last.pattern.pattern


def _surely_imports(body: Sequence[ast.stmt]) -> bool:
    """Whether statements do nothing but import what is installed wherever migrated code runs, and
    say so in a flag."""

    def known(name: str) -> bool:
        top = name.split(".", maxsplit=1)[0]
        return top == "torch" or top in sys.stdlib_module_names

    for node in body:
        if isinstance(node, ast.ImportFrom):
            module = node.module or ""
            if not _is_support(module) and (node.level or not known(module)):
                return False
        elif isinstance(node, ast.Import):
            if not all(known(alias.name) for alias in node.names):
                return False
        elif not _sets_flag(node):
            return False
    return True


def _sets_flag(node: ast.stmt) -> bool:
    """Whether a statement is as plain as ``HAVE_TORCH = True``, which cannot fail."""
    return (
        isinstance(node, ast.Assign)
        and isinstance(node.value, ast.Constant)
        and all(isinstance(target, ast.Name) for target in node.targets)
    )


def _is_support(module: str) -> bool:
    """Whether a module is a support file, which imports torch alone."""
    return module.rpartition(".")[2].startswith("fsdp2_support")


def _only_imports_fail(handler: ast.ExceptHandler) -> bool:
    """Whether a handler is for imports that failed."""
    caught = handler.type.elts if isinstance(handler.type, ast.Tuple) else [handler.type]
    return all(c is None or (isinstance(c, ast.Name) and c.id in FAILED_IMPORTS) for c in caught)


def _annotations(arguments: ast.arguments) -> list[ast.expr | None]:
    every = (*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs)
    extra = (arguments.vararg, arguments.kwarg)
    return [each.annotation for each in (*every, *extra) if each is not None]
