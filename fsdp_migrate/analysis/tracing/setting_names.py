"""What a program's settings are called, wherever they are used.

``args.fsdp`` in one function and ``self.options.fsdp`` in a method are one setting if ``args`` was
given there as ``options``. Names, parameters and attributes that are assigned once are followed to
what they stand for. Of objects that cannot be followed, those that the same call makes are taken
for the same, ``parse_args()`` for instance.
"""

from __future__ import annotations

import ast
import itertools
from collections.abc import Iterator

from fsdp_migrate.analysis.flow import Definition, access_path
from fsdp_migrate.analysis.module import Module
from fsdp_migrate.analysis.tracing.functions import class_of_method, has_decorator
from fsdp_migrate.analysis.tracing.tracer import Tracer
from fsdp_migrate.analysis.values import Class, Computed, Made, Unknown, Value
from fsdp_migrate.syntax.expressions import last_name
from fsdp_migrate.syntax.scopes import Binding, Kind, Scope
from fsdp_migrate.syntax.trees import FUNCTIONS, LOOPS, walk

DEPTH = 6  # definitions and calls that are followed
UNCHANGED = frozenset({"lower", "upper", "strip"})  # of text, with no argument
READERS = frozenset({"os.getenv", "os.environ.get"})
ONE_BY_ONE = frozenset({"next", "pop", "popleft", "popitem", "get", "recv"})  # not twice the same
OBJECT = ":self"  # in the names of an object's
DISPLAYS = (ast.Dict, ast.DictComp, ast.List, ast.ListComp, ast.Set, ast.SetComp)
CHANGING = frozenset(
    {"add", "append", "clear", "discard", "extend", "insert", "pop", "popitem", "remove"}
) | {"setdefault", "update"}
OWN = "own:"  # begins the name of a setting that each call of a function, or each object, has


class SettingNames:
    """Answers for one project, through its tracer."""

    def __init__(self, tracer: Tracer) -> None:
        self.tracer = tracer
        self._set_outside: dict[tuple[ast.ClassDef, str], bool] = {}

    def setting(
        self, node: ast.expr, module: Module, depth: int = 0, *, is_owner: bool = False
    ) -> str:
        """What a path is called wherever it is used; empty where that cannot be said.

        Args:
            is_owner: whether the path is asked for what it has, as ``args`` is for ``args.fsdp``.
        """
        if depth > DEPTH:
            return ""
        match node:
            case ast.Name():
                return self._named(node, module, depth, is_owner=is_owner)
            case ast.Attribute(value=base, attr=last):
                cls = _own_class(node, module)
                if cls is not None and self._is_set_outside(last, cls):
                    return ""
                kept = self.assigned(node, module)
                found = self.setting(*kept, depth + 1, is_owner=is_owner) if kept else ""
                if found:
                    return found
                last = self._read_by_property(base, last, module) or last
            case ast.Subscript(value=base, slice=ast.Constant(value=str(last))):
                pass
            case ast.Call(
                func=ast.Name(id="getattr"), args=[base, ast.Constant(value=str(last)), *_]
            ):
                pass
            case ast.Call(func=func, args=[ast.Constant(value=str(last)), *_]) if (
                self.tracer.project.external(func, module) & READERS
            ):
                return f"os.environ.{last}"
            case ast.Call(
                func=ast.Attribute(value=base, attr="get"), args=[ast.Constant(value=str(last)), *_]
            ):
                pass
            case ast.Call(
                func=ast.Name(id="bool" | "int" | "str" as kind), args=[inner], keywords=[]
            ):
                read = self.setting(inner, module, depth + 1)
                return f"{kind}({read})" if read and not (kind == "bool" and OWN in read) else ""
            case ast.Call(func=ast.Attribute(value=base, attr=name), args=[], keywords=[]) if (
                name in UNCHANGED
            ):
                last = f"{name}()"
            case _:
                return ""
        owner = self.setting(base, module, depth, is_owner=True)
        return f"{owner}.{last}" if owner else ""

    def _read_by_property(self, base: ast.expr, attr: str, module: Module) -> str:
        """The path that a property does nothing but read: ``train.fsdp`` of ``config.use_fsdp``,
        which returns ``self.train.fsdp``, of whatever class the object may be."""
        read: set[str] = set()
        for value in self.tracer.evaluate(base, module):
            cls = value.callee if isinstance(value, Made) else None
            if not isinstance(cls, Class):
                return ""
            bound = [
                binding.node
                for each in self.tracer.lineage(cls)
                for binding in each.module.table.scopes[each.node].bindings.get(attr, [])
            ]
            read.add(_path_read(bound[0]) if len(bound) == 1 else "")
        return read.pop() if len(read) == 1 else ""

    def default(self, node: ast.expr, module: Module) -> ast.expr | None:
        """What a read gives where there is no such setting, or a name that may have been given
        something like that; None of reads that stop there."""
        kept = self.assigned(node, module)
        for _ in range(DEPTH):
            if kept is None:
                break
            node, module = kept
            kept = self.assigned(node, module)
        match node:
            case ast.Call(func=ast.Name(id="bool"), args=[inner], keywords=[]):
                return self.default(inner, module)
            case ast.Call(func=ast.Name(id="getattr"), args=[_, _]):
                return None
            case ast.Call(args=[_]):
                return ast.Constant(None)
            case ast.Call(args=[*_, default]):
                return default
            case ast.Name():
                return node
        return None

    def _named(self, node: ast.Name, module: Module, depth: int, *, is_owner: bool) -> str:
        """What a name stands for: what all callers give, or what it was assigned."""
        owner = module.table.scope_of(node).lookup(node.id)
        bindings = owner.bindings.get(node.id, []) if owner is not None else []
        if owner is None or not bindings:
            return ""
        binding, function = bindings[0], owner.node
        place = f"{getattr(function, 'name', '')}:{getattr(function, 'lineno', '')}"
        if (
            isinstance(function, ast.FunctionDef)
            and function.name == "__init__"
            and class_of_method(function, module) is not None
        ):
            place += OBJECT  # it runs once for each
        here = f"{module.name}:{place}:{node.id}"
        if not is_owner and _is_filled(node.id, owner, module):
            return ""
        if len(bindings) > 1:
            settled = not is_owner and _is_settled(node, owner, module)
            return "" if not settled else OWN + here if owner.is_function else here
        if binding.kind is Kind.IMPORT:
            return binding.qualified
        if binding.kind is Kind.ASSIGN and binding.value is not None:
            if _is_repeated(binding, module):
                return ""
            if binding.unpack:  # ``rank, world_size = set_up()``
                return "" if is_owner else (OWN + here if owner.is_function else here)
            found = self.setting(binding.value, module, depth + 1, is_owner=is_owner)
            if found or not owner.is_function:
                return found or here
            if not is_owner:
                return OWN + here
            return here if _is_given(binding.value, module) else ast.unparse(binding.value)
        if binding.kind is not Kind.PARAMETER or not isinstance(function, FUNCTIONS):
            return ""
        cls = class_of_method(function, module)
        if cls is not None and node.id in {"self", "cls"}:
            return f"{OWN}{module.name}:{cls.name}{OBJECT}"
        callers = self.tracer.callers(function, module)
        given = [(c.argument(function, node.id), c.module) for c in callers]
        names = {
            self.setting(a, m, depth + 1, is_owner=is_owner) if a is not None else ""
            for a, m in given
        }
        return (names.pop() if len(names) == 1 else "") or (OWN + here if given else here)

    def assigned(self, node: ast.expr, module: Module) -> tuple[ast.expr, Module] | None:
        """The only value that a name, or an attribute of ``self``, is ever given."""
        scope = module.table.scope_of(node)
        kept: list[tuple[Binding | Definition, Module]] = []
        match node:
            case ast.Name(id=name):
                owner = scope.lookup(name)
                kept = [(b, module) for b in owner.bindings.get(name, [])] if owner else []
            case ast.Attribute(attr=attr):
                cls = _own_class(node, module)
                if cls is not None and not self._is_set_outside(attr, cls):
                    stores = self.tracer.stores(Class(cls, module), attr)
                    kept = [(definition, related.module) for related, _, definition in stores]
        match kept:
            case [(only, where)] if only.kind is Kind.ASSIGN and only.value:
                value = _unpacked(only.value, only.unpack)
                return None if value is None else (value, where)
        return None

    def _is_set_outside(self, attr: str, cls: ast.ClassDef) -> bool:
        """Whether others may give an object's attribute a value: ``trainer.strategy = "ddp"``, of
        an object of that class, or of one that nothing is known of."""
        if (cls, attr) not in self._set_outside:
            self._set_outside[cls, attr] = any(
                self._may_be_of(value, cls)
                for other in self.tracer.project.modules
                if other.mentions(attr)
                for owner in _owners_of_stores(attr, other)
                if not _is_self(owner)
                for value in self.tracer.evaluate(owner, other)
            )
        return self._set_outside[cls, attr]

    def _may_be_of(self, value: Value, cls: ast.ClassDef) -> bool:
        """Whether a value may be an object of a class."""
        if isinstance(value, Made) and isinstance(value.callee, Class):
            return any(each.node is cls for each in self.tracer.lineage(value.callee))
        return isinstance(value, (Unknown, Computed))


def _path_read(function: ast.AST) -> str:
    """``train.fsdp`` of a property that returns ``self.train.fsdp``."""
    if not isinstance(function, ast.FunctionDef) or not has_decorator(function, "property"):
        return ""
    match function.body:
        case [*texts, ast.Return(value=ast.Attribute() as read)] if all(
            isinstance(each, ast.Expr) and isinstance(each.value, ast.Constant) for each in texts
        ):
            owner, _, path = (access_path(read) or "").partition(".")
            return path if owner == "self" else ""
    return ""


def _own_class(node: ast.expr, module: Module) -> ast.ClassDef | None:
    """The class of the method in which ``self.strategy`` stands."""
    if not isinstance(node, ast.Attribute) or not _is_self(node.value):
        return None
    method = module.table.scope_of(node).function()
    cls = module.table.parents.get(method.node) if method is not None else None
    return cls if isinstance(cls, ast.ClassDef) else None


def _owners_of_stores(attr: str, module: Module) -> Iterator[ast.expr]:
    """The objects of which a file gives an attribute a value, by a statement or ``setattr``."""
    yield from (s.value for s in module.table.stored_attributes if s.attr == attr)
    for call in module.table.calls_by_name.named("setattr"):
        match call.args:
            case [owner, ast.Constant(value=name), _] if name == attr:
                yield owner


def _unpacked(value: ast.expr, places: tuple[int, ...]) -> ast.expr | None:
    """What one of several names is given: ``args`` of ``self.args, self.net = args, net``."""
    for place in places:
        listed = value.elts if isinstance(value, (ast.Tuple, ast.List)) else []
        if not 0 <= place < len(listed) or any(isinstance(each, ast.Starred) for each in listed):
            return None
        value = listed[place]
    return value


def _is_self(node: ast.expr) -> bool:
    return isinstance(node, ast.Name) and node.id == "self"


def _is_settled(use: ast.Name, owner: Scope, module: Module) -> bool:
    """Whether a name that has several assignments, as one in each branch of an ``if``, keeps from a
    use on what it was given by the last that ran: all stand above it, in no loop."""
    return module.table.scope_of(use) is owner and all(
        binding.kind is Kind.ASSIGN
        and binding.value is not None
        and module.table.scope_of(binding.node) is owner
        and (binding.value.end_lineno or 0) < use.lineno
        and not _is_repeated(binding, module)
        for binding in owner.bindings[use.id]
    )


def _is_filled(name: str, owner: Scope, module: Module) -> bool:
    """Whether a list, a set or a dictionary of that name gets more, or less, later on."""
    if not any(isinstance(binding.value, DISPLAYS) for binding in owner.bindings[name]):
        return False
    parents = module.table.parents
    for use in module.table.names_by_id.named(name):
        parent = parents[use]
        called = isinstance(parent, ast.Attribute) and parent.attr in CHANGING
        stored = isinstance(parent, ast.Subscript) and not isinstance(parent.ctx, ast.Load)
        if (called or stored) and module.table.scope_of(use).lookup(name) is owner:
            return True
    return False


def _is_repeated(binding: Binding, module: Module) -> bool:
    """Whether a name is given something else time and again."""
    taken = isinstance(binding.value, ast.Call) and last_name(binding.value.func) in ONE_BY_ONE
    parents = itertools.takewhile(
        lambda node: node is not binding.scope.node, module.table.ancestors(binding.node)
    )
    return taken or any(isinstance(node, LOOPS) for node in parents)


def _is_given(value: ast.expr, module: Module) -> bool:
    """Whether a value is made of a parameter: spelled alike elsewhere, it is another one."""
    for node in walk(value):
        owner = module.table.scope_of(node).lookup(node.id) if isinstance(node, ast.Name) else None
        bindings = owner.bindings.get(node.id, []) if owner and isinstance(node, ast.Name) else []
        if any(binding.kind is Kind.PARAMETER for binding in bindings):
            return True
    return False
