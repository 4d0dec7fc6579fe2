"""Everything that may read or write a field of a project's dataclass."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass

from fsdp_migrate.analysis import name_uses
from fsdp_migrate.analysis.module import Module
from fsdp_migrate.analysis.project import Project
from fsdp_migrate.analysis.tracing.functions import has_decorator, is_dataclass
from fsdp_migrate.analysis.tracing.tracer import Tracer
from fsdp_migrate.analysis.values import Class, Made
from fsdp_migrate.syntax.expressions import last_name
from fsdp_migrate.syntax.kinds import of_kind
from fsdp_migrate.syntax.trees import FUNCTIONS

# What looks at all fields of an object, or makes another object of them.
REFLECTING = frozenset(
    f"dataclasses.{name}" for name in ("asdict", "astuple", "fields", "replace", "make_dataclass")
)


@dataclass(eq=False)
class Field:
    """A field, with all that a project does with it.

    ``uses`` are the attributes of its name, of whatever object, and those that are stored among
    them. ``given`` are the keyword arguments that give it a value.
    """

    statement: ast.AnnAssign
    cls: ast.ClassDef
    module: Module
    uses: list[tuple[ast.Attribute, Module]]
    given: list[tuple[ast.Call, ast.keyword, Module]]
    is_last: bool  # no argument by position is for it, or for a field behind it


def field_at(node: ast.AST, module: Module, project: Project) -> Field | None:
    """The field in whose definition ``node`` stands; None if there is none, or not all that reads
    and writes it can be seen."""
    statement = module.table.statement(node)
    cls = module.table.parents.get(statement)
    match statement, cls:
        case ast.AnnAssign(target=ast.Name(id=name)), ast.ClassDef(bases=[], keywords=[]):
            pass
        case _:
            return None
    if not is_dataclass(cls) or module.table.scopes[cls].parent is not module.table.module:
        return None
    calls = _calls_of(cls, module, project)
    targets = [s.target for s in cls.body if isinstance(s, ast.AnnAssign)]
    names = [target.id for target in targets if isinstance(target, ast.Name)]
    scope = module.table.scopes[cls]
    uses = name_uses.uses_of(name, scope, module, project)
    if calls is None or uses is None or names.count(name) != 1 or len(scope.bindings[name]) != 1:
        return None
    if any(_looks_at(name, each) for each in project.read):
        return None
    attributes = [(u, m) for u, m in uses if isinstance(u, ast.Attribute)]
    if len(attributes) + 1 != len(uses):
        return None  # another name of the class body, or a parameter
    given = list(_given(name, project))
    if any(call not in calls for call, _, _ in given):
        return None  # an argument of that name of something else
    is_last = all(len(call.args) <= names.index(name) for call in calls)
    return Field(statement, cls, module, attributes, given, is_last)


def is_written_in_sight(node: ast.expr, module: Module, tracer: Tracer) -> bool:
    """Whether all that an attribute may be is written where tracing sees it: by name.

    Tracing knows the assignments, and the calls that name a dataclass. It does not know what is
    set under a name that the running program has, or when an object is made out of another.
    """
    project = tracer.project
    if not isinstance(node, ast.Attribute) or project.external(node, module):
        return True
    name = node.attr
    owners = _classes_of(node.value, module, tracer)
    for each in project.read:
        if any(string.value == name for string in each.table.strings):
            return False
        if any(_may_be_of(owners, n, each, tracer) for n in _set_by_any_name(name, each)):
            return False
        for call, _, _ in _given_in(name, each):
            if last_name(call.func) in {"replace", "evolve", "_replace", "setattr", "update"}:
                return False
        if any(_calls_of(cls, each, project) is None for cls in _with_field(name, each)):
            return False
    return True


def _classes_of(node: ast.expr, module: Module, tracer: Tracer) -> list[Class] | None:
    """The project's classes that an object is of; None if it may be of any.

    ``self`` is of the class that the method stands in, or of one derived from it.
    """
    scope = module.table.scope_of(node).function()
    method = scope.node if scope is not None else None
    cls = module.table.parents.get(method) if isinstance(method, ast.FunctionDef) else None
    if isinstance(node, ast.Name) and isinstance(cls, ast.ClassDef):
        assert isinstance(method, ast.FunctionDef)
        first = [*method.args.posonlyargs, *method.args.args][:1]
        bound = scope is not None and len(scope.bindings.get(node.id, ())) == 1
        if not method.decorator_list and bound and [arg.arg for arg in first] == [node.id]:
            return [Class(cls, module)]
    found = [v.callee if isinstance(v, Made) else None for v in tracer.evaluate(node, module)]
    classes = [each for each in found if isinstance(each, Class)]
    return classes if classes and len(classes) == len(found) else None


def _may_be_of(owners: list[Class] | None, node: ast.expr, module: Module, tracer: Tracer) -> bool:
    """Whether an object may be of one of some classes, or of one that is derived from both."""
    others = _classes_of(node, module, tracer)
    if owners is None or others is None:
        return True
    derived = {c.node for cls in owners for c in (cls, *tracer.subclasses(cls))}
    return any(c.node in derived for cls in others for c in (cls, *tracer.subclasses(cls)))


def _with_field(name: str, module: Module) -> Iterator[ast.ClassDef]:
    """The dataclasses of a file that have a field of a name."""
    for cls in module.table.scopes if module.mentions(name) else ():
        is_one = isinstance(cls, ast.ClassDef) and is_dataclass(cls)
        if is_one and name in module.table.scopes[cls].bindings:
            yield of_kind(cls, ast.ClassDef)


def _calls_of(cls: ast.ClassDef, module: Module, project: Project) -> set[ast.Call] | None:
    """The calls that make objects of a class; None if something else may do so."""
    if any(has_decorator(each, "classmethod") for each in cls.body):
        return None
    uses = name_uses.uses_of(cls.name, module.table.module, module, project)
    if uses is None:
        return None
    found: set[ast.Call] = set()
    for use, where in uses:
        parent = where.table.parents[use]
        if isinstance(parent, ast.Call) and parent.func is use:
            if any(k.arg is None for k in parent.keywords) or any(
                isinstance(a, ast.Starred) for a in parent.args
            ):
                return None
            found.add(parent)
        elif not _is_annotation(use, where):
            return None
    return found


def _is_annotation(node: ast.expr, module: Module) -> bool:
    child: ast.AST = node
    for parent in module.table.ancestors(node):
        if isinstance(parent, (ast.arg, ast.AnnAssign)):
            return parent.annotation is child
        if isinstance(parent, FUNCTIONS):
            return getattr(parent, "returns", None) is child
        if isinstance(parent, (ast.stmt, ast.Call)):
            return False
        child = parent
    return False


def _given(name: str, project: Project) -> Iterator[tuple[ast.Call, ast.keyword, Module]]:
    for module in project.read:
        yield from _given_in(name, module)


def _given_in(name: str, module: Module) -> Iterator[tuple[ast.Call, ast.keyword, Module]]:
    """The keyword arguments of a name."""
    for call in module.table.calls if module.mentions(name) else ():
        for keyword in call.keywords:
            if keyword.arg == name:
                yield call, keyword, module


def _looks_at(field: str, module: Module) -> bool:
    """Whether a file may look at a field of objects without naming it."""
    reads = any(_may_name(call, field) for call in _named("getattr", module))
    imported = any(binding.qualified in REFLECTING for binding in module.table.imports)
    names = {name.removeprefix("dataclasses.") for name in REFLECTING}
    asked = any(
        not REFLECTING.isdisjoint(module.table.qualify(each))
        for each in module.table.attributes_by_name.of(names)
    )
    return reads or imported or asked or bool(_named("vars", module)) or _may_set(field, module)


def _may_set(field: str, module: Module) -> bool:
    """Whether a file may set a field under a name that only the running program knows."""
    return any(True for _ in _set_by_any_name(field, module))


def _set_by_any_name(field: str, module: Module) -> Iterator[ast.expr]:
    """The objects of which a file may set a field so."""
    for call in _named("setattr", module):
        if _may_name(call, field):
            yield call.args[0] if call.args else call
    for attribute in module.table.attributes_by_name.named("__dict__"):
        yield attribute.value


def _named(name: str, module: Module) -> list[ast.Call]:
    return list(module.table.calls_by_name.named(name))


def _may_name(call: ast.Call, field: str) -> bool:
    """Whether the name in ``setattr(model, name, value)`` may turn out to be that of a field."""
    match call.args[1:2]:
        case [] | [ast.Constant(value=str())]:
            return False
        case [ast.JoinedStr(values=[ast.Constant(value=str(start)), *_])]:
            return field.startswith(start)
    return True
