"""Where in the project calls, arguments and assignments of some name stand."""

from __future__ import annotations

import ast
from collections import defaultdict
from collections.abc import Iterator
from functools import cached_property

from fsdp_migrate.analysis.module import Module
from fsdp_migrate.analysis.project import Project
from fsdp_migrate.analysis.tracing.functions import is_self
from fsdp_migrate.analysis.values import Class, Function
from fsdp_migrate.syntax.expressions import last_name
from fsdp_migrate.syntax.scopes import Kind

CallByText = tuple[ast.Call, ast.expr, ast.expr, Module]  # a call, an object and a name
# A function that is handed on, what runs it, where, and what it is given.
HandedOn = tuple[ast.expr, ast.Call, Module, tuple[ast.expr, ...]]
# What runs a function, and at which place that is given, in front of its arguments.
RUNNING = {"submit": 0, "to_thread": 0, "call_soon": 0, "run_in_executor": 1}
THREADS = ("Thread", "Process")  # of ``target=`` and ``args=``
ADDING = frozenset({"append", "appendleft", "add", "insert", "setdefault"})


class ProjectIndex:
    """What the syntax of all modules tells, read when it is first asked for."""

    def __init__(self, project: Project) -> None:
        self.project = project

    @cached_property
    def calls(self) -> dict[str, list[tuple[ast.Call, Module]]]:
        """Every call in the project by the last part of its callee's name. What is called without
        a name, or by one that something out of a table or a list has, is under an empty one too.
        """
        found: dict[str, list[tuple[ast.Call, Module]]] = defaultdict(list)
        for module in self.project.modules:
            renamed = {
                b.name: b.qualified.rpartition(".")[2]
                for b in module.table.imports
                if b.name != b.qualified.rpartition(".")[2]
            }
            for call in module.table.calls:
                name = last_name(call.func)
                found[name].append((call, module))  # Sharder(config)(net) has none
                if name in renamed:
                    found[renamed[name]].append((call, module))
                if isinstance(call.func, ast.Name) and _is_taken(call.func, module):
                    found[""].append((call, module))
        return found

    def calls_named(self, *names: str) -> Iterator[tuple[ast.Call, Module]]:
        """Every call in the project of what has one of these last names."""
        for name in names:
            yield from self.calls.get(name, [])

    @cached_property
    def arguments(self) -> dict[str, list[tuple[ast.expr, ast.Call, Module]]]:
        """Every argument of the project's calls that is a name, by the last part of it."""
        found: dict[str, list[tuple[ast.expr, ast.Call, Module]]] = defaultdict(list)
        for module in self.project.modules:
            for call in module.table.calls:
                for given in (*call.args, *(k.value for k in call.keywords)):
                    name = last_name(given)
                    if name:
                        found[name].append((given, call, module))
        return found

    @cached_property
    def keys(self) -> dict[str, list[str]]:
        """The keys under which something of a name is put into a dictionary, or given to a call:
        ``{"cls": Model}`` and ``dict(cls=Model)``; or that it is compared with."""
        found: dict[str, list[str]] = defaultdict(list)
        for module in self.project.modules:
            table = module.table
            for use in (*table.names, *table.attributes):
                match table.parents[use]:
                    case ast.keyword(arg=str(argument)):
                        found[last_name(use)].append(argument)
                    case ast.Dict(keys=keys, values=values) if use in values:
                        key = keys[values.index(use)]
                        if isinstance(key, ast.Constant) and isinstance(key.value, str):
                            found[last_name(use)].append(key.value)
                    case ast.Compare(
                        left=ast.Subscript(slice=ast.Constant(value=str(compared))),
                        comparators=[other],
                    ) if other is use:
                        found[last_name(use)].append(compared)
        return found

    @cached_property
    def additions(self) -> dict[str, list[tuple[ast.expr, ast.expr, Module]]]:
        """Every ``name.append(x)``, ``name.update(key=x)`` and ``name[key] = x`` of the project, by
        name."""
        found: dict[str, list[tuple[ast.expr, ast.expr, Module]]] = defaultdict(list)
        for module in self.project.modules:
            table = module.table
            for call in table.calls_by_name.of(ADDING):
                if isinstance(call.func, ast.Attribute) and call.args:
                    for owner in _either(call.func.value):
                        found[last_name(owner)].append((owner, call.args[-1], module))
            for call in table.calls_by_name.named("update"):
                if isinstance(call.func, ast.Attribute):
                    entries = [k.value for k in call.keywords if k.arg is not None]
                    for given in call.args:
                        entries += given.values if isinstance(given, ast.Dict) else []
                    for owner in _either(call.func.value):
                        found[last_name(owner)] += [(owner, entry, module) for entry in entries]
            for entry in table.subscripts:
                stored = table.parents[entry]
                if isinstance(stored, ast.Assign) and entry in stored.targets:
                    name = last_name(entry.value)
                    if name:
                        found[name].append((entry.value, stored.value, module))
        return found

    @cached_property
    def entries(self) -> dict[str, list[tuple[ast.expr, ast.expr, Module]]]:
        """What the project puts into objects under a name, and where: ``bag["name"] = value``,
        ``bag.update(name=value)``, ``bag.setdefault("name", value)``."""
        found: dict[str, list[tuple[ast.expr, ast.expr, Module]]] = defaultdict(list)
        for module in self.project.modules:
            for item in module.table.subscripts:
                match item.slice, module.table.parents[item]:
                    case ast.Constant(value=str(name)), ast.Assign(targets=targets, value=value):
                        if item in targets:
                            found[name].append((item.value, value, module))
            for call in module.table.calls_by_name.of(("update", "setdefault")):
                owner = call.func.value if isinstance(call.func, ast.Attribute) else None
                if owner is None:
                    continue
                given = [(k.arg, k.value) for k in call.keywords if k.arg is not None]
                match call.args:
                    case [ast.Constant(value=str(name)), value]:
                        given.append((name, value))
                    case [ast.Dict(keys=keys, values=values)]:
                        named = zip(keys, values, strict=True)
                        given += [(str(getattr(k, "value", "")), value) for k, value in named]
                for name, value in given:
                    found[name].append((owner, value, module))
        return found

    @cached_property
    def handed_on(self) -> list[HandedOn]:
        """Every ``pool.submit(function, x)`` and ``Thread(target=function, args=(x,))``."""
        found: list[HandedOn] = []
        for name, place in RUNNING.items():
            for call, module in self.calls_named(name):
                if len(call.args) > place:
                    found.append((call.args[place], call, module, (*call.args[place + 1 :],)))
        for call, module in self.calls_named(*THREADS):
            named = {k.arg: k.value for k in call.keywords}
            packed = named.get("args", ast.Tuple([]))
            handed: list[ast.expr] = [ast.Starred(packed)]
            if isinstance(packed, (ast.Tuple, ast.List)):
                handed = packed.elts
            if "target" in named and "kwargs" not in named:
                found.append((named["target"], call, module, (*handed,)))
        return found

    @cached_property
    def calls_by_text(self) -> list[CallByText]:
        """Every call of what ``getattr(owner, name)`` gives, there or through a variable of the
        function, with the owner and the name."""
        found: list[CallByText] = []
        for module in self.project.modules:
            for got in module.table.calls_by_name.named("getattr"):
                match got:
                    case ast.Call(func=ast.Name(), args=[owner, name, *_]):
                        found += [(c, owner, name, module) for c in _calls_of(got, module)]
        return found

    @cached_property
    def decorated(self) -> dict[str, list[tuple[ast.expr, Class | Function, Module]]]:
        """Every decorator of the project with the definition below it, by the last part of its
        name: ``register`` of ``@register`` and of ``@MODELS.register("net")``."""
        found: dict[str, list[tuple[ast.expr, Class | Function, Module]]] = defaultdict(list)
        for module in self.project.modules:
            for node in module.table.scopes:
                given: Class | Function
                if isinstance(node, ast.ClassDef):
                    given = Class(node, module)
                elif isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
                    given = Function(node, module)
                else:
                    continue
                for decorator in node.decorator_list:
                    plain = decorator.func if isinstance(decorator, ast.Call) else decorator
                    found[last_name(plain)].append((decorator, given, module))
        return found

    @cached_property
    def methods(self) -> dict[str, list[Function]]:
        """Every method of the project's classes, by name."""
        found: dict[str, list[Function]] = defaultdict(list)
        for module in self.project.modules:
            for node in module.table.scopes:
                if isinstance(node, ast.ClassDef):
                    for child in node.body:
                        if isinstance(child, (ast.FunctionDef, ast.AsyncFunctionDef)):
                            found[child.name].append(Function(child, module, owner=node))
        return found

    @cached_property
    def classes_with_bases(self) -> list[Class]:
        return [
            Class(node, module)
            for module in self.project.modules
            for node in module.table.scopes
            if isinstance(node, ast.ClassDef) and node.bases
        ]

    @cached_property
    def attribute_stores(self) -> dict[str, list[tuple[ast.Attribute, Module]]]:
        """``x.attr = v`` where ``x`` is not the ``self`` of a method."""
        found: dict[str, list[tuple[ast.Attribute, Module]]] = defaultdict(list)
        for module in self.project.modules:
            for node in module.table.stored_attributes:
                if not is_self(node.value, module):
                    found[node.attr].append((node, module))
        return found


def _is_taken(name: ast.Name, module: Module) -> bool:
    """Whether a variable may have what is taken out of a container: ``cls = TABLE[key]``, or the
    variable of a loop."""
    scope = module.table.scope_of(name).lookup(name.id)
    for binding in scope.bindings[name.id] if scope is not None else ():
        match binding.value:
            case ast.Subscript() | ast.Call(func=ast.Attribute(attr="get" | "pop")):
                return True
        if binding.kind is Kind.ELEMENT:
            return True
    return False


def _calls_of(function: ast.expr, module: Module) -> Iterator[ast.Call]:
    """The calls of an expression, and of the variable of its function that it is given to."""
    table = module.table
    match table.parents[function]:
        case ast.Call(func=called) as call if called is function:
            yield call
        case (
            ast.Assign(targets=[ast.Name(id=variable)])
            | ast.NamedExpr(target=ast.Name(id=variable))
        ):
            for call in table.calls_by_name.named(variable):
                if isinstance(call.func, ast.Name) and table.within[call] is table.within[function]:
                    yield call


def _either(owner: ast.expr) -> list[ast.expr]:
    """``decay`` and ``rest`` of ``(decay if p.ndim > 1 else rest)``."""
    if isinstance(owner, ast.IfExp):
        return [*_either(owner.body), *_either(owner.orelse)]
    return [owner]
