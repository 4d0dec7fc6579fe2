"""One module's name table: scopes, what binds each name, and what imports mean.

Built in a single walk of the ``ast``. Scoping follows the language reference (4.2 Naming and
binding): class bodies are skipped by nested functions, comprehensions have a scope of their own,
``global`` and ``nonlocal`` redirect.
"""

from __future__ import annotations

import ast
from collections import defaultdict
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum, auto
from functools import cached_property
from typing import Generic, TypeVar

from fsdp_migrate.syntax.kinds import of_kind

ScopeNode = (
    ast.Module
    | ast.FunctionDef
    | ast.AsyncFunctionDef
    | ast.ClassDef
    | ast.Lambda
    | ast.ListComp
    | ast.SetComp
    | ast.DictComp
    | ast.GeneratorExp
)
Node = TypeVar("Node", bound=ast.AST)
FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda)
COMPREHENSIONS = (ast.ListComp, ast.SetComp, ast.DictComp, ast.GeneratorExp)


ITEM = "[]"


class Kind(Enum):
    """How a name (or a dotted path such as ``self.model``) got its value."""

    IMPORT = auto()
    ASSIGN = auto()
    AUGMENT = auto()
    PARAMETER = auto()
    FUNCTION = auto()
    CLASS = auto()
    ELEMENT = auto()  # the target of a for loop or a comprehension
    ENTER = auto()  # ``with x as name``
    DELETE = auto()
    OTHER = auto()  # except handlers, patterns


@dataclass(eq=False)
class Binding:
    """One binding of one name.

    ``value`` is the expression the value comes from: the right-hand side, the iterable of a loop,
    the context manager of a ``with``, a parameter's default. ``unpack`` says which element of it
    when the target is a tuple: ``(1,)`` for ``_, name = value``.
    """

    name: str
    kind: Kind
    node: ast.AST  # the statement, alias, arg or definition that binds
    scope: Scope
    value: ast.expr | None = None
    unpack: tuple[int, ...] = ()
    qualified: str = ""  # imports: the absolute dotted name


@dataclass(eq=False)
class Scope:
    node: ScopeNode
    parent: Scope | None
    bindings: dict[str, list[Binding]] = field(default_factory=dict)
    redirected: dict[str, str] = field(default_factory=dict)  # name -> "global" | "nonlocal"

    @property
    def is_class(self) -> bool:
        return isinstance(self.node, ast.ClassDef)

    @property
    def is_function(self) -> bool:
        return isinstance(self.node, FUNCTIONS)

    def home(self) -> Scope:
        """The scope whose statements run here: of a function, a class or the module,
        comprehensions looked through."""
        scope = self
        while scope.parent is not None and not (scope.is_function or scope.is_class):
            scope = scope.parent
        return scope

    def is_free(self, name: str) -> bool:
        """Whether nothing in the statements that run here gives ``name`` a value."""
        scope, home = self, self.home()
        while name not in scope.bindings and name not in scope.redirected:
            if scope is home or scope.parent is None:
                return True
            scope = scope.parent
        return False

    def module_scope(self) -> Scope:
        scope = self
        while scope.parent is not None:
            scope = scope.parent
        return scope

    def function(self) -> Scope | None:
        """The innermost enclosing function scope, comprehensions looked through."""
        scope: Scope | None = self
        while scope is not None and not scope.is_function:
            scope = scope.parent
        return scope

    def lookup(self, name: str) -> Scope | None:
        """The scope whose binding a load of ``name`` here refers to; None for builtins."""
        if name in self.bindings and not self.redirected:
            return self  # as is most often asked
        scope: Scope | None = self
        first = True
        while scope is not None:
            redirect = scope.redirected.get(name)
            if redirect == "global":
                top = scope.module_scope()
                return top if name in top.bindings else None
            visible = first or not scope.is_class
            if redirect is None and visible and name in scope.bindings:
                return scope
            first = False
            scope = scope.parent
        return None


def differ(every: Sequence[Binding]) -> bool:
    """Whether bindings of one name, an import among them, may give it different values."""
    if len(every) < 2:
        return False
    imported = {b.qualified for b in every if b.kind is Kind.IMPORT}
    return bool(imported) and (len(imported) > 1 or any(b.kind is not Kind.IMPORT for b in every))


def watched(scope: Scope) -> list[str]:
    """The names of a scope whose bindings have to be told apart in functions inside of it."""
    return [name for name, every in scope.bindings.items() if differ(every)]


class Index(Generic[Node]):
    """Nodes by the names that they have, in the order of the source for any number of names."""

    def __init__(self, nodes: Sequence[Node], name: Callable[[Node], str]) -> None:
        self._nodes = nodes
        self._places: dict[str, list[int]] = defaultdict(list)
        for place, node in enumerate(nodes):
            self._places[name(node)].append(place)

    def of(self, names: Collection[str]) -> list[Node]:
        """The nodes that have one of some names."""
        places = self._places
        asked = names if len(names) < len(places) else places.keys() & names
        found = [place for name in asked for place in places.get(name, ())]
        return [self._nodes[place] for place in sorted(found)]

    @property
    def names(self) -> Collection[str]:
        """Every name that some node has."""
        return self._places.keys()

    def named(self, name: str) -> list[Node]:
        """The nodes of one name."""
        return [self._nodes[place] for place in self._places.get(name, ())]


def _called(call: ast.Call) -> str:
    """``AdamW`` of ``torch.optim.AdamW(...)``."""
    func = call.func
    return func.attr if isinstance(func, ast.Attribute) else getattr(func, "id", "")


@dataclass(eq=False)
class NameTable:
    """Everything one walk learns about a module."""

    tree: ast.Module
    module: Scope
    scopes: dict[ast.AST, Scope] = field(default_factory=dict)  # scope-opening node -> its scope
    parents: dict[ast.AST, ast.AST] = field(default_factory=dict)
    within: dict[ast.AST, Scope] = field(default_factory=dict)  # Name, Attribute, Call -> scope
    calls: list[ast.Call] = field(default_factory=list)
    attributes: list[ast.Attribute] = field(default_factory=list)
    names: list[ast.Name] = field(default_factory=list)
    strings: list[ast.Constant] = field(default_factory=list)
    imports: list[Binding] = field(default_factory=list)
    stars: list[tuple[Scope, str]] = field(default_factory=list)  # ``from x import *``
    returns: dict[ast.AST, list[ast.Return]] = field(default_factory=dict)  # by function
    generators: set[ast.AST] = field(default_factory=set)  # functions that yield
    subscripts: list[ast.Subscript] = field(default_factory=list)
    import_statements: list[ast.Import | ast.ImportFrom] = field(default_factory=list)
    _calls_in: dict[ast.AST, list[ast.Call]] = field(default_factory=dict)

    @cached_property
    def imported_by(self) -> dict[tuple[ast.AST, str], Binding]:
        """The binding of a name by an import."""
        return {(binding.node, binding.name): binding for binding in self.imports}

    @cached_property
    def calls_by_name(self) -> Index[ast.Call]:
        """The calls by the last part of what is called."""
        return Index(self.calls, _called)

    @cached_property
    def attributes_by_name(self) -> Index[ast.Attribute]:
        """The attributes, as they are read, set and called."""
        return Index(self.attributes, lambda attribute: attribute.attr)

    @cached_property
    def stored_attributes(self) -> list[ast.Attribute]:
        """The attributes that something is assigned to."""
        return [node for node in self.attributes if isinstance(node.ctx, ast.Store)]

    @cached_property
    def written(self) -> dict[Scope, frozenset[str]]:
        """The attributes that the statements of a scope assign or delete, on whatever object;
        ``ITEM`` where they do so with items of something."""
        found: dict[Scope, set[str]] = defaultdict(set)
        nodes: list[ast.Attribute | ast.Subscript] = [*self.attributes, *self.subscripts]
        for node in nodes:
            if not isinstance(node.ctx, ast.Load):
                found[self.scope_of(node).home()].add(last_part(node))
        return {scope: frozenset(names) for scope, names in found.items()}

    @cached_property
    def tested(self) -> Mapping[str, set[Scope]]:
        """The last parts of the paths that are asked ``isinstance`` of, with the scopes whose
        statements do."""
        found: dict[str, set[Scope]] = {}
        for test in self.calls_by_name.named("isinstance"):
            if test.args:
                found.setdefault(last_part(test.args[0]), set()).add(self.within[test].home())
        return found

    @cached_property
    def keywords(self) -> frozenset[str | None]:
        """The keywords by which calls give something; None for ``**``."""
        return frozenset(keyword.arg for call in self.calls for keyword in call.keywords)

    @cached_property
    def opened_calls(self) -> list[ast.Call]:
        """The calls that give ``**`` of something."""
        return [
            call for call in self.calls if call.keywords and any(not k.arg for k in call.keywords)
        ]

    @cached_property
    def names_by_id(self) -> Index[ast.Name]:
        """The uses of names, in whatever scope."""
        return Index(self.names, lambda name: name.id)

    @cached_property
    def own_calls(self) -> dict[Scope, list[ast.Call]]:
        """The calls that a function, or a module outside of its functions, makes itself."""
        found: dict[Scope, list[ast.Call]] = defaultdict(list)
        for call in self.calls:
            own = self.within[call]
            found[own.function() or own.module_scope()].append(call)
        return found

    @cached_property
    def methods(self) -> dict[str, list[ast.Call]]:
        """The calls of attributes, by the attribute."""
        found: dict[str, list[ast.Call]] = {}
        for call in self.calls:
            if isinstance(call.func, ast.Attribute):
                found.setdefault(call.func.attr, []).append(call)
        return found

    def calls_in(self, node: ast.AST) -> list[ast.Call]:
        """The calls inside a class or function, or a part of one."""
        known = self._calls_in.get(node)
        if known is None:
            calls = [n for n in walk(node) if isinstance(n, ast.Call) and n in self.within]
            known = self._calls_in[node] = calls
        return known

    def reads(self, name: str, scope: Scope | None) -> list[ast.Name]:
        """Where the variable of that name in a scope is read, in functions inside of it too."""
        named = self.names_by_id.named(name)
        loads = (n for n in named if isinstance(n.ctx, ast.Load))
        return [n for n in loads if self.within[n].lookup(name) is scope]

    def scope_of(self, node: ast.AST) -> Scope:
        """The scope in which ``node`` is evaluated."""
        current: ast.AST | None = node
        while current is not None:
            if current in self.within:
                return self.within[current]
            parent = self.parents.get(current)
            if parent is not None and parent in self.scopes and _inside(parent, current):
                return self.scopes[parent]
            current = parent
        return self.module

    def statement(self, node: ast.AST) -> ast.stmt:
        """The innermost statement that contains ``node`` (``node`` itself if it is one)."""
        current = node
        while not isinstance(current, ast.stmt):
            current = self.parents[current]
        return current

    def has_run(self, statement: ast.stmt, near: ast.AST) -> bool:
        """Whether ``statement`` stands before ``near`` in a block around it."""
        parent = self.parents[statement]
        block: list[ast.stmt] = [statement]
        for name in ("body", "orelse", "finalbody"):
            listed = getattr(parent, name, None)
            if isinstance(listed, list) and statement in listed:
                block = listed
        for each in (near, *self.ancestors(near)):
            if each in block:
                return block.index(statement) <= block.index(each)
        return False

    @cached_property
    def postpones_annotations(self) -> bool:
        """Whether ``from __future__ import annotations`` keeps them from being evaluated."""
        return any(
            isinstance(node, ast.ImportFrom)
            and node.module == "__future__"
            and any(alias.name == "annotations" for alias in node.names)
            for node in self.import_statements
        )

    def ancestors(self, node: ast.AST) -> Iterator[ast.AST]:
        current = self.parents.get(node)
        while current is not None:
            yield current
            current = self.parents.get(current)

    def qualify(self, node: ast.expr) -> frozenset[str]:
        """Dotted names an expression may stand for through imports; empty if it is not one."""
        if isinstance(node, ast.Attribute):
            return frozenset(f"{base}.{node.attr}" for base in self.qualify(node.value))
        if not isinstance(node, ast.Name):
            return frozenset()
        scope = self.scope_of(node).lookup(node.id)
        if scope is None:
            return frozenset()
        found = [b for b in scope.bindings[node.id] if b.kind is Kind.IMPORT]
        return frozenset(b.qualified for b in found)


def last_part(path: ast.expr) -> str:
    """``model`` of ``self.model``, and ``ITEM`` of what ends in one; nothing of what is no path."""
    if isinstance(path, ast.Subscript):
        return ITEM
    return path.attr if isinstance(path, ast.Attribute) else getattr(path, "id", "")


def children(node: ast.AST) -> list[ast.AST]:
    """The nodes directly in another, but for operators and contexts, which have no place."""
    found: list[ast.AST] = []
    for name in NODE_FIELDS[node.__class__]:
        value = getattr(node, name)
        if value.__class__ is list:
            found += [item for item in value if isinstance(item, ast.AST)]
        elif isinstance(value, ast.AST):
            found.append(value)
    return found


def walk(node: ast.AST) -> Iterator[ast.AST]:
    """As ``ast.walk``, in the same order and three times as fast, of what :func:`children` has."""
    found = [node]
    for each in found:  # which grows meanwhile
        yield each
        found += children(each)


def _inside(scope_node: ast.AST, child: ast.AST) -> bool:
    """Whether a direct child of a scope-opening node is evaluated inside that scope.

    Decorators, defaults, annotations, base classes and the first iterable are not.
    """
    if isinstance(scope_node, (ast.FunctionDef, ast.AsyncFunctionDef)):
        return child in scope_node.body
    if isinstance(scope_node, ast.ClassDef):
        return child in scope_node.body
    if isinstance(scope_node, ast.Lambda):
        return child is scope_node.body
    return True


def build(tree: ast.Module, package: str = "", *, redirects: bool = True) -> NameTable:
    """Walk ``tree`` once. ``package`` is the dotted package relative imports start from;
    ``redirects`` is False when the source is known to hold no ``global`` and no ``nonlocal``."""
    top = Scope(tree, None)
    table = NameTable(tree, top)
    table.scopes[tree] = top
    _Builder(table, package, redirects=redirects).visit_module()
    return table


# Looked up as globals they cost half as much, a million times.
Attribute, Call, Constant, Name = ast.Attribute, ast.Call, ast.Constant, ast.Name


class _Builder:
    """The walk. Plain recursion over fields: ``ast.NodeVisitor`` costs twice as much."""

    def __init__(self, table: NameTable, package: str, *, redirects: bool) -> None:
        self.table = table
        self.package = package
        self.redirects = redirects
        # One attribute less for each node.
        self.parents, self.within = table.parents, table.within
        self.names, self.attributes, self.calls = table.names, table.attributes, table.calls
        self.strings = table.strings

    def visit_module(self) -> None:
        self.body(self.table.tree.body, self.table.tree, self.table.module)

    def body(self, nodes: list[ast.stmt], parent: ast.AST, scope: Scope) -> None:
        for node in nodes:
            self.visit(node, parent, scope)

    def bind(
        self,
        name: str,
        kind: Kind,
        node: ast.AST,
        scope: Scope,
        value: ast.expr | None = None,
        unpack: tuple[int, ...] = (),
        qualified: str = "",
    ) -> Binding:
        target = scope
        redirect = scope.redirected.get(name)
        if redirect == "global":
            target = scope.module_scope()
        elif redirect == "nonlocal" and scope.parent is not None:
            target = scope.parent.lookup(name) or scope
        binding = Binding(name, kind, node, target, value, unpack, qualified)
        target.bindings.setdefault(name, []).append(binding)
        if kind is Kind.IMPORT:
            self.table.imports.append(binding)
        return binding

    def target(
        self,
        target: ast.expr,
        kind: Kind,
        node: ast.AST,
        scope: Scope,
        value: ast.expr | None,
        unpack: tuple[int, ...] = (),
    ) -> None:
        """Bind the names in an assignment target; the target's own nodes are visited elsewhere."""
        if isinstance(target, ast.Name):
            self.bind(target.id, kind, node, scope, value, unpack)
        elif isinstance(target, (ast.Tuple, ast.List)):
            for index, element in enumerate(target.elts):
                self.target(element, kind, node, scope, value, (*unpack, index))
        elif isinstance(target, ast.Starred):
            self.target(target.value, Kind.OTHER, node, scope, None)

    def visit(self, node: ast.AST, parent: ast.AST, scope: Scope) -> None:
        self.parents[node] = parent
        kind = node.__class__
        while kind is Attribute:
            self.attributes.append(node)  # type: ignore[arg-type]  # its class was compared
            self.within[node] = scope
            inner = node.value  # type: ignore[attr-defined]
            self.parents[inner] = node
            node, kind = inner, inner.__class__
        if kind is Name:
            self.names.append(node)  # type: ignore[arg-type]
            self.within[node] = scope
            return
        if kind is Constant:
            if node.value.__class__ is str:  # type: ignore[attr-defined]
                self.strings.append(node)  # type: ignore[arg-type]
            return
        if kind is Call:
            self.calls.append(node)  # type: ignore[arg-type]
            self.within[node] = scope
            self.call(node, scope)  # type: ignore[arg-type]
            return
        handler = _HANDLERS.get(kind)
        if handler is not None:
            handler(self, node, scope)
        else:
            self.children(node, scope)

    def children(self, node: ast.AST, scope: Scope) -> None:
        visit = self.visit
        for name in NODE_FIELDS[node.__class__]:
            value = getattr(node, name)
            if value is None:
                continue
            if value.__class__ is list:
                for item in value:
                    if item is not None:
                        visit(item, node, scope)
            elif isinstance(value, ast.AST):
                visit(value, node, scope)

    def call(self, node: ast.Call, scope: Scope) -> None:
        visit = self.visit
        visit(node.func, node, scope)
        for argument in node.args:
            visit(argument, node, scope)
        for keyword in node.keywords:
            self.parents[keyword] = node
            visit(keyword.value, keyword, scope)

    # -- scopes ---------------------------------------------------------------------------------

    def function(self, node: ast.AST, scope: Scope) -> None:
        assert isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef))
        self.bind(node.name, Kind.FUNCTION, node, scope)
        for decorator in node.decorator_list:
            self.visit(decorator, node, scope)
        inner = Scope(node, scope)
        self.table.scopes[node] = inner
        self.arguments(node.args, node, scope, inner)
        if node.returns is not None:
            self.visit(node.returns, node, scope)
        if self.redirects:
            _redirects(node.body, inner)
        self.body(node.body, node, inner)

    def lambda_(self, node: ast.AST, scope: Scope) -> None:
        node = of_kind(node, ast.Lambda)
        inner = Scope(node, scope)
        self.table.scopes[node] = inner
        self.arguments(node.args, node, scope, inner)
        self.visit(node.body, node, inner)

    def arguments(self, args: ast.arguments, owner: ast.AST, outer: Scope, inner: Scope) -> None:
        self.table.parents[args] = owner
        positional = [*args.posonlyargs, *args.args]
        defaults: list[ast.expr | None] = [None] * (len(positional) - len(args.defaults))
        defaults += args.defaults
        pairs = [*zip(positional, defaults, strict=True)]
        pairs += [*zip(args.kwonlyargs, args.kw_defaults, strict=True)]
        for arg, default in pairs:
            self.parameter(arg, args, default, outer, inner)
        for extra in (args.vararg, args.kwarg):
            if extra is not None:
                self.parameter(extra, args, None, outer, inner)

    def parameter(
        self,
        arg: ast.arg,
        args: ast.arguments,
        default: ast.expr | None,
        outer: Scope,
        inner: Scope,
    ) -> None:
        self.table.parents[arg] = args
        self.bind(arg.arg, Kind.PARAMETER, arg, inner, default)
        if arg.annotation is not None:
            self.visit(arg.annotation, arg, outer)
        if default is not None:
            self.visit(default, args, outer)

    def class_(self, node: ast.AST, scope: Scope) -> None:
        node = of_kind(node, ast.ClassDef)
        self.bind(node.name, Kind.CLASS, node, scope)
        for expression in [*node.decorator_list, *node.bases]:
            self.visit(expression, node, scope)
        for keyword in node.keywords:
            self.visit(keyword, node, scope)
        inner = Scope(node, scope)
        self.table.scopes[node] = inner
        self.body(node.body, node, inner)

    def comprehension(self, node: ast.AST, scope: Scope) -> None:
        assert isinstance(node, COMPREHENSIONS)
        inner = Scope(node, scope)
        self.table.scopes[node] = inner
        for index, generator in enumerate(node.generators):
            self.table.parents[generator] = node
            self.target(generator.target, Kind.ELEMENT, generator, inner, generator.iter)
            self.visit(generator.target, generator, inner)
            self.visit(generator.iter, generator, scope if index == 0 else inner)
            for condition in generator.ifs:
                self.visit(condition, generator, inner)
        if isinstance(node, ast.DictComp):
            self.visit(node.key, node, inner)
            self.visit(node.value, node, inner)
        else:
            self.visit(node.elt, node, inner)

    # -- bindings -------------------------------------------------------------------------------

    def import_(self, node: ast.AST, scope: Scope) -> None:
        node = of_kind(node, ast.Import)
        self.table.import_statements.append(node)
        for alias in node.names:
            self.table.parents[alias] = node
            if alias.asname:
                self.bind(alias.asname, Kind.IMPORT, alias, scope, qualified=alias.name)
            else:
                top = alias.name.split(".")[0]
                self.bind(top, Kind.IMPORT, alias, scope, qualified=top)

    def import_from(self, node: ast.AST, scope: Scope) -> None:
        node = of_kind(node, ast.ImportFrom)
        self.table.import_statements.append(node)
        base = self.absolute(node)
        for alias in node.names:
            self.table.parents[alias] = node
            if alias.name == "*":
                self.table.stars.append((scope, base))
            else:
                name = alias.asname or alias.name
                qualified = f"{base}.{alias.name}" if base else alias.name
                self.bind(name, Kind.IMPORT, alias, scope, qualified=qualified)

    def absolute(self, node: ast.ImportFrom) -> str:
        if not node.level:
            return node.module or ""
        parts = self.package.split(".") if self.package else []
        parts = parts[: len(parts) - (node.level - 1)]
        return ".".join([*parts, *([node.module] if node.module else [])])

    def assign(self, node: ast.AST, scope: Scope) -> None:
        node = of_kind(node, ast.Assign)
        for target in node.targets:
            self.target(target, Kind.ASSIGN, node, scope, node.value)
        self.children(node, scope)

    def ann_assign(self, node: ast.AST, scope: Scope) -> None:
        node = of_kind(node, ast.AnnAssign)
        if node.value is not None or scope.is_class:
            self.target(node.target, Kind.ASSIGN, node, scope, node.value)
        self.children(node, scope)

    def aug_assign(self, node: ast.AST, scope: Scope) -> None:
        node = of_kind(node, ast.AugAssign)
        self.target(node.target, Kind.AUGMENT, node, scope, None)
        self.children(node, scope)

    def named(self, node: ast.AST, scope: Scope) -> None:
        node = of_kind(node, ast.NamedExpr)
        outer = scope
        while isinstance(outer.node, COMPREHENSIONS) and outer.parent is not None:
            outer = outer.parent
        self.target(node.target, Kind.ASSIGN, node, outer, node.value)
        self.children(node, scope)

    def for_(self, node: ast.AST, scope: Scope) -> None:
        assert isinstance(node, (ast.For, ast.AsyncFor))
        self.target(node.target, Kind.ELEMENT, node, scope, node.iter)
        self.children(node, scope)

    def with_(self, node: ast.AST, scope: Scope) -> None:
        assert isinstance(node, (ast.With, ast.AsyncWith))
        for item in node.items:
            if item.optional_vars is not None:
                self.target(item.optional_vars, Kind.ENTER, node, scope, item.context_expr)
        self.children(node, scope)

    def handler(self, node: ast.AST, scope: Scope) -> None:
        node = of_kind(node, ast.ExceptHandler)
        if node.name:
            self.bind(node.name, Kind.OTHER, node, scope)
        self.children(node, scope)

    def pattern(self, node: ast.AST, scope: Scope) -> None:
        name = getattr(node, "name", None) or getattr(node, "rest", None)
        if name:
            self.bind(name, Kind.OTHER, node, scope)
        self.children(node, scope)

    def delete(self, node: ast.AST, scope: Scope) -> None:
        node = of_kind(node, ast.Delete)
        for target in node.targets:
            self.target(target, Kind.DELETE, node, scope, None)
        self.children(node, scope)

    def return_(self, node: ast.AST, scope: Scope) -> None:
        node = of_kind(node, ast.Return)
        self.table.returns.setdefault(scope.node, []).append(node)
        if node.value is not None:
            self.visit(node.value, node, scope)

    def yield_(self, node: ast.AST, scope: Scope) -> None:
        self.table.generators.add(scope.node)
        self.children(node, scope)

    def subscript(self, node: ast.AST, scope: Scope) -> None:
        node = of_kind(node, ast.Subscript)
        self.table.subscripts.append(node)
        self.visit(node.value, node, scope)
        self.visit(node.slice, node, scope)

    def redirect(self, node: ast.AST, scope: Scope) -> None:
        """``global`` and ``nonlocal`` were read when the scope was opened."""


def _redirects(body: list[ast.stmt], scope: Scope) -> None:
    """Record ``global``/``nonlocal`` before any binding of the body is seen."""
    stack: list[ast.AST] = list(body)
    while stack:
        node = stack.pop()
        if isinstance(node, (ast.Global, ast.Nonlocal)):
            word = "global" if isinstance(node, ast.Global) else "nonlocal"
            scope.redirected.update(dict.fromkeys(node.names, word))
        elif not isinstance(node, (*FUNCTIONS, ast.ClassDef, ast.expr)):
            stack += children(node)


def _node_fields(kind: type[ast.AST]) -> tuple[str, ...]:
    """The fields in which a node may have others that have a place in the source."""
    if kind is ast.Constant:
        return ()
    return tuple(name for name in kind._fields if name not in _PLAIN)


_PLAIN = frozenset(
    (
        *("ctx", "op", "ops", "id", "attr", "arg", "asname", "module", "level", "rest"),
        *("kwd_attrs",),
        *("type_comment", "type_ignores", "kind", "is_async", "conversion", "simple"),
    )
)
NODE_FIELDS = {
    kind: _node_fields(kind)
    for kind in vars(ast).values()
    if isinstance(kind, type) and issubclass(kind, ast.AST)
}
_HANDLERS = {
    ast.FunctionDef: _Builder.function,
    ast.AsyncFunctionDef: _Builder.function,
    ast.Lambda: _Builder.lambda_,
    ast.ClassDef: _Builder.class_,
    ast.ListComp: _Builder.comprehension,
    ast.SetComp: _Builder.comprehension,
    ast.DictComp: _Builder.comprehension,
    ast.GeneratorExp: _Builder.comprehension,
    ast.Import: _Builder.import_,
    ast.ImportFrom: _Builder.import_from,
    ast.Assign: _Builder.assign,
    ast.AnnAssign: _Builder.ann_assign,
    ast.AugAssign: _Builder.aug_assign,
    ast.NamedExpr: _Builder.named,
    ast.For: _Builder.for_,
    ast.AsyncFor: _Builder.for_,
    ast.With: _Builder.with_,
    ast.AsyncWith: _Builder.with_,
    ast.ExceptHandler: _Builder.handler,
    ast.MatchAs: _Builder.pattern,
    ast.MatchStar: _Builder.pattern,
    ast.MatchMapping: _Builder.pattern,
    ast.Delete: _Builder.delete,
    ast.Subscript: _Builder.subscript,
    ast.Return: _Builder.return_,
    ast.Yield: _Builder.yield_,
    ast.YieldFrom: _Builder.yield_,
    ast.Global: _Builder.redirect,
    ast.Nonlocal: _Builder.redirect,
}
