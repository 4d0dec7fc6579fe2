"""Which FSDP calls wrap a whole model, and which wrap a part of one that is wrapped later.

Only the root casts its inputs in FSDP1 (``MixedPrecision.cast_root_forward_inputs``), so the two
get different policies. The question is asked of manual wrapping only: ``auto_wrap_policy`` tells
root and units apart by itself.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from enum import Enum, auto

from fsdp_migrate.sharding import Constructor
from fsdp_migrate.study import Study
from fsdp_migrate.trace.flow import access_path
from fsdp_migrate.trace.project import Module
from fsdp_migrate.trace.values import Class, Made

MODULE_BASES = ("torch.nn.Module", "torch.nn.modules.module.Module", "LightningModule")
ADDERS = frozenset({"add_module", "register_module", "append", "insert", "extend", "update"})
CALLERS_DEEP = 3
PASSED_ON = (  # expressions whose value holds, or is, one of their parts
    ast.Call,
    ast.DictComp,
    ast.Dict,
    ast.GeneratorExp,
    ast.IfExp,
    ast.List,
    ast.ListComp,
    ast.NamedExpr,
    ast.SetComp,
    ast.Starred,
    ast.Tuple,
    ast.keyword,
)


class Role(Enum):
    ROOT = auto()
    PART = auto()
    UNKNOWN = auto()  # one or the other, depending on the call, or nothing tells


def role(constructor: Constructor, study: Study) -> Role:
    """What a constructor's model is to the others of the project."""
    found = {
        _kept_in(holder, module, constructor, study)
        for holder, module in _holders(constructor.call, constructor.module, study, CALLERS_DEEP)
    }
    if not found:
        return Role.ROOT
    return found.pop() if len(found) == 1 else Role.UNKNOWN


Holder = tuple[ast.AST | None, Module]


def _holders(node: ast.expr, module: Module, study: Study, depth: int) -> Iterator[Holder]:
    """The objects that the value of ``node`` is stored in; None for a value that stands alone.

    A constructor that wraps the value, or a container of it, is a holder too.
    """
    table = module.table
    child: ast.AST = node
    for parent in table.ancestors(node):
        if isinstance(parent, ast.Call) and child is not parent.func:
            holder = _receiver(parent, module)
            if parent in study.constructors:
                yield parent, module
                return
            if holder is not None:
                yield holder, module
                return
            made = study.values(parent.func, module)
            if any(isinstance(v, Class) for v in made) or not _is_container(parent, study, module):
                yield None, module
                return
        elif isinstance(parent, ast.Return):
            yield from _returned(parent, module, study, depth)
            return
        elif isinstance(parent, (ast.Assign, ast.AnnAssign)):
            yield from _assigned(parent, module, study, depth)
            return
        elif not isinstance(parent, PASSED_ON):
            yield None, module
            return
        child = parent


def _receiver(call: ast.Call, module: Module) -> ast.expr | None:
    """The object that a call such as ``setattr`` or ``add_module`` puts its argument into."""
    if isinstance(call.func, ast.Name) and call.func.id == "setattr" and call.args:
        return call.args[0]
    if isinstance(call.func, ast.Attribute) and call.func.attr in ADDERS:
        return call.func.value
    return None


def _is_container(call: ast.Call, study: Study, module: Module) -> bool:
    """Whether a call makes a module out of the modules it is given (``nn.Sequential``)."""
    names = study.external(call.func, module)
    builtin = isinstance(call.func, ast.Name) and call.func.id in {"list", "tuple", "dict"}
    return builtin or any(n.startswith(("torch.nn.", "collections.")) for n in names)


def _returned(statement: ast.Return, module: Module, study: Study, depth: int) -> Iterator[Holder]:
    scope = module.table.scope_of(statement).function()
    callers = (
        study.tracer.callers(scope.node, module)
        if scope is not None and isinstance(scope.node, (ast.FunctionDef, ast.AsyncFunctionDef))
        else []
    )
    if not callers or not depth:
        yield None, module
    for site in callers if depth else []:
        yield from _holders(site.call, site.module, study, depth - 1)


def _assigned(
    statement: ast.Assign | ast.AnnAssign, module: Module, study: Study, depth: int
) -> Iterator[Holder]:
    targets = statement.targets if isinstance(statement, ast.Assign) else [statement.target]
    for target in targets:
        if isinstance(target, (ast.Attribute, ast.Subscript)):
            yield target.value, module
        elif isinstance(target, ast.Name):
            yield from _used(target, module, study, depth)
        else:
            yield None, module


def _used(target: ast.Name, module: Module, study: Study, depth: int) -> Iterator[Holder]:
    """Where a name that an FSDP model was bound to is stored later in its scope."""
    table = module.table
    scope = table.scope_of(target)
    stored = False
    statement = table.statement(target)
    for name in table.names:
        is_use = (
            name.id == target.id
            and isinstance(name.ctx, ast.Load)
            and table.within[name].lookup(name.id) is scope
            and name.lineno > (statement.end_lineno or statement.lineno)
        )
        if not is_use:
            continue
        reaching = study.defined_by(name, module)
        if reaching and all(d.node is not statement for d in reaching):
            continue  # another value, of another branch, say
        parent = table.parents[name]
        calls_it = isinstance(parent, ast.Call) and parent.func is name
        if calls_it or isinstance(parent, ast.Attribute) or not depth:
            continue
        for holder, where in _holders(name, module, study, depth - 1):
            if holder is not None:
                stored = True
                yield holder, where
    if not stored:
        yield None, module


def _kept_in(holder: ast.AST | None, module: Module, own: Constructor, study: Study) -> Role:
    """Whether an object that holds the model is itself wrapped, or part of what is."""
    if holder is None:
        return Role.ROOT
    if isinstance(holder, ast.Call) and holder in study.constructors:
        return Role.PART
    assert isinstance(holder, ast.expr)
    others = [c for c in study.constructors.values() if c is not own and "module" in c.arguments]
    scope = module.table.scope_of(holder).function()
    if scope is not own.module.table.scope_of(own.call).function():
        others += (
            [own] if "module" in own.arguments else []
        )  # called through a function, which may wrap more than one model
    if not others:
        return Role.ROOT
    path = access_path(holder)
    base = _base(path) if path is not None else ""
    for other in others:
        wrapped = access_path(other.wrapped)
        same_place = other.module is module and (
            module.table.scope_of(other.call).function() is scope
        )
        if base and base != "self" and same_place and wrapped == base:
            return Role.PART
    owner = _class_of(holder, module, study) if base == "self" else None
    if owner is not None and not _is_module(owner, study):
        return Role.ROOT  # an attribute of a trainer, say
    made = {v.node for v in study.values(holder, module) if isinstance(v, Made)}
    family = {c.node for c in study.tracer.family(owner)} if owner is not None else set()
    unknown = False
    for other in others:
        for value in study.values(other.wrapped, other.module):
            if value.node in made:
                return Role.PART
            if isinstance(value, Made) and isinstance(value.callee, Class):
                if value.callee.node in family:
                    return Role.PART
            elif not isinstance(value, Made):
                unknown = True
    return Role.UNKNOWN if unknown or not owner else Role.ROOT


def _base(path: str) -> str:
    return re.split(r"[.\[]", path, maxsplit=1)[0]


def _class_of(node: ast.AST, module: Module, study: Study) -> Class | None:
    for parent in module.table.ancestors(node):
        if isinstance(parent, ast.ClassDef):
            return Class(parent, module)
    return None


def _is_module(cls: Class, study: Study) -> bool:
    bases = study.tracer.external_bases(cls)
    return any(b.startswith("torch.nn.") or b.endswith(MODULE_BASES) for b in bases)
