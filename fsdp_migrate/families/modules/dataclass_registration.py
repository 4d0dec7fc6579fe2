"""Whether a dataclass can be registered as a pytree node.

Registering one means that FSDP2 makes it again from its fields. One that would not come back as it
was is left.
"""

from __future__ import annotations

import ast

from fsdp_migrate.analysis.module import Module
from fsdp_migrate.analysis.values import Class
from fsdp_migrate.families.modules.dataclass_nodes import Found
from fsdp_migrate.families.modules.dataclass_reader import decorator_of
from fsdp_migrate.planning.context import Study
from fsdp_migrate.syntax.trees import FUNCTIONS, walk

PLAIN_BASES = ("typing.", "typing_extensions.", "abc.", "builtins.object")
PYTREES = ("torch.utils._pytree", "torch.utils._cxx_pytree", "optree")
CHANGING = frozenset(
    {"append", "extend", "insert", "pop", "clear", "update", "setdefault", "add", "popitem"}
)


def registration_problem(found: Found, study: Study) -> str:
    """Why a dataclass cannot be registered as it stands, or nothing when it can."""
    cls = found.cls
    name = cls.node.name
    if cls.module not in study.project.modules:
        return f"{name} is defined in {cls.module.display}, which has nothing else to migrate"
    table = cls.module.table
    scope = table.module
    around = [*table.ancestors(cls.node)]
    nested = any(isinstance(n, (*FUNCTIONS, ast.ClassDef, ast.For, ast.While)) for n in around)
    if nested or len(scope.bindings.get(name, [])) != 1:
        return f"{name} is not defined once and for all at the top of its file"
    for base in study.tracer.lineage(cls):
        remade = _remade(base, study)
        if remade:
            return f"{name} {remade}"
    outside = study.tracer.external_bases(cls)
    if any(not b.startswith(PLAIN_BASES) for b in outside):
        return f"{name} has a base class from outside the project"
    mentioning = study.project.modules_mentioning("pytree")
    if any(b.qualified.startswith(PYTREES) for m in mentioning for b in m.table.imports):
        return f"the project uses pytrees itself, to which {name} is a leaf"
    if _is_changed(cls, study):
        return f"a forward changes the {name} that it is given"
    return ""


def _remade(cls: Class, study: Study) -> str:
    """Why an instance that is made again from its fields may differ from the first."""
    methods = {s.name for s in cls.node.body if isinstance(s, ast.FunctionDef)}
    for name in ("__post_init__", "__init__", "__new__"):
        if name in methods:
            return f"has {name}(), which would run again"
    decorator = decorator_of(cls, study)
    settings = decorator.keywords if isinstance(decorator, ast.Call) else []
    for statement in cls.node.body:
        if isinstance(statement, ast.AnnAssign):
            if "InitVar" in ast.unparse(statement.annotation):
                return "has an InitVar, which it does not keep"
            if isinstance(statement.value, ast.Call):
                settings = [*settings, *statement.value.keywords]
    for keyword in settings:
        if keyword.arg in {"init", None} and not _is_true(keyword.value):
            return "has fields that its constructor does not take"
    return ""


def _is_true(node: ast.expr) -> bool:
    return isinstance(node, ast.Constant) and node.value is True


def _is_changed(cls: Class, study: Study) -> bool:
    """Whether a ``forward`` changes a field of an instance it is given.

    FSDP2 gives it another instance, once the class is registered, with other lists and dicts in it.
    """
    fields = {
        s.target.id
        for base in study.tracer.lineage(cls)
        for s in base.node.body
        if isinstance(s, ast.AnnAssign) and isinstance(s.target, ast.Name)
    }
    modules = dict.fromkeys((*study.project.modules, cls.module))
    for module in modules:
        for attribute in module.table.attributes_by_name.of(fields):
            owner = attribute.value
            if not _is_written(attribute, module):
                continue
            scope = module.table.within[attribute].function()
            function = scope.node if scope is not None else None
            if (
                isinstance(owner, ast.Name)
                and isinstance(function, (ast.FunctionDef, ast.AsyncFunctionDef))
                and function.name == "forward"
                and owner.id in _given_as(cls, function, study)
            ):
                return True
    return False


def _is_written(attribute: ast.Attribute, module: Module) -> bool:
    """Whether an attribute is assigned, or what it holds gets another element."""
    parents = module.table.parents
    node: ast.AST = attribute
    while isinstance(parent := parents[node], ast.Subscript) and parent.value is node:
        node = parent
    if isinstance(node, (ast.Attribute, ast.Subscript)) and not isinstance(node.ctx, ast.Load):
        return True
    return isinstance(parent, ast.Attribute) and parent.attr in CHANGING


def _given_as(
    cls: Class, function: ast.FunctionDef | ast.AsyncFunctionDef, study: Study
) -> set[str]:
    """The parameters of a function that may be instances of a class, and are not assigned."""
    args = function.args
    stored = {
        n.id for n in walk(function) if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Store)
    }
    names = {base.node.name for base in study.tracer.lineage(cls)}
    return {
        a.arg
        for a in [*args.posonlyargs, *args.args, *args.kwonlyargs][1:]
        if a.annotation is None or any(name in ast.unparse(a.annotation) for name in names)
    } - stored
