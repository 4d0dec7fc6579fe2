"""Models of one unit some of whose parameters are cast to another dtype than the rest.

Neither FSDP takes trained parameters of two dtypes in a unit: FSDP1 stops when it wraps, FSDP2 in
the first forward. So there is no training to keep, and what to do is for the writer to say: one
dtype for all is a line; a unit for each needs modules that are called, which a loop cannot know.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass

from fsdp_migrate.analysis.flow import access_path
from fsdp_migrate.analysis.module import Module
from fsdp_migrate.analysis.values import External, Made
from fsdp_migrate.families.wrapping.enclosing_models import Role, role
from fsdp_migrate.families.wrapping.model_contents import contents
from fsdp_migrate.families.wrapping.wrapped_modules import wrapped_by
from fsdp_migrate.fsdp1.references import enclosing_function
from fsdp_migrate.planning.context import Study
from fsdp_migrate.planning.model import Constructor
from fsdp_migrate.syntax.trees import walk

PARTS = frozenset({"parameters", "named_parameters", "modules", "named_modules"})
BY_NAME = {name: f"torch.{name}" for name in ("bfloat16", "double", "float", "half")}
ALIASES = {"float": "float32", "half": "float16", "double": "float64"}
CASTS = frozenset({*BY_NAME, "to"})
DTYPES = frozenset({"dtype", "torch_dtype"})
SPLITTING = ("auto_wrap_policy", "ignored_modules", "ignored_states", "ignored_parameters")


@dataclass(frozen=True)
class Cast:
    """``owner.to(rest)``, and then some of its parameters or modules to ``some``."""

    owner: ast.expr
    rest: str
    some: str
    module: Module
    node: ast.AST  # that casts some

    @property
    def where(self) -> str:
        function = enclosing_function(self.module, self.node)
        name = f"{function.name} in " if isinstance(function, ast.FunctionDef) else ""
        return f"{name}{self.module.display}"


def told(constructor: Constructor, study: Study) -> str:
    """What to say of a model that may have two dtypes in the one unit that it is."""
    casts = study.cache(_casts)
    if not casts or any(constructor.may_have(each) for each in SPLITTING):
        return ""
    others = study.constructors.values()
    if any(each.is_context or role(each, study) is Role.PART for each in others):
        return ""
    for wrapped, module in wrapped_by(constructor, study):
        for cast in casts:
            if _is_of(cast, wrapped, module, constructor, study):
                name = ast.unparse(wrapped) if access_path(wrapped) else "model"
                return (
                    f"{cast.where} casts some parameters to {cast.some} and leaves others as "
                    f"{cast.rest}: a unit trains no two dtypes, and FSDP1 stopped here. Write "
                    f"{name}.to(torch.float32) in front, or fully_shard modules of one dtype first"
                )
    return ""


def _is_of(
    cast: Cast, wrapped: ast.expr, module: Module, constructor: Constructor, study: Study
) -> bool:
    """Whether a cast is of what is wrapped, in front of it, or of a part of it in its class."""
    owner = access_path(cast.owner)
    if owner != "self":
        return _is_same(cast.owner, cast.module, wrapped, module, cast.node, constructor, study)
    method = enclosing_function(cast.module, cast.node)
    cls = cast.module.table.parents.get(method)
    classes = {each.node for each in contents(wrapped, module, study).classes}
    if cls not in classes or not isinstance(method, ast.FunctionDef):
        return False
    if method.name == "__init__":
        return True
    for where in study.project.modules:
        for call in where.table.calls_by_name.of({method.name}):
            if not isinstance(call.func, ast.Attribute):
                continue
            receiver = call.func.value
            if access_path(receiver) == "self":
                caller = enclosing_function(where, call)
                in_init = isinstance(caller, ast.FunctionDef) and caller.name == "__init__"
                if in_init and where.table.parents.get(caller) is cls:
                    return True
            elif _is_same(receiver, where, wrapped, module, call, constructor, study):
                return True
    return False


def _is_same(
    node: ast.expr,
    where: Module,
    wrapped: ast.expr,
    module: Module,
    cast: ast.AST,
    constructor: Constructor,
    study: Study,
) -> bool:
    """Whether an expression is the wrapped module, and nothing casts all of it afterwards."""
    made = {v.node for v in study.values(wrapped, module) if isinstance(v, Made)}
    if not made & {v.node for v in study.values(node, where)}:
        return False
    path, function = access_path(node), enclosing_function(where, cast)
    line = where.position(cast)
    is_beside = function is enclosing_function(module, constructor.call)
    if is_beside and line > module.position(constructor.call):
        return False
    return not any(
        access_path(call.func.value) == path and where.position(call) > line
        for call in where.table.calls_by_name.of(CASTS)
        if isinstance(call.func, ast.Attribute) and enclosing_function(where, call) is function
        if _dtype(call, where, study)
    )


def _casts(study: Study) -> list[Cast]:
    return [
        cast
        for module in study.project.modules
        if module.mentions(*PARTS)
        for loop in module.table.loops
        if isinstance(loop, ast.For)
        for cast in _of_loop(loop, module, study)
    ]


def _of_loop(loop: ast.For, module: Module, study: Study) -> Iterator[Cast]:
    """``for p in model.parameters(): if ...: p.data = p.data.to(dtype)``, behind a cast of all."""
    match loop.iter:
        case ast.Call(func=ast.Attribute(value=owner, attr=attr), args=[]) if attr in PARTS:
            pass
        case _:
            return
    names = {each.id for each in walk(loop.target) if isinstance(each, ast.Name)}
    line, path = module.position(loop), access_path(owner)
    function = enclosing_function(module, loop)
    whole = {
        module.position(call): _dtype(call, module, study)
        for call in module.table.calls_by_name.of(CASTS)
        if isinstance(call.func, ast.Attribute) and access_path(call.func.value) == path
        if path is not None and enclosing_function(module, call) is function
    }
    if any(dtype for at, dtype in whole.items() if at > line):
        return
    before = [*_made_as(owner, module, study), *(whole[at] for at in sorted(whole) if whole[at])]
    for test in loop.body:
        if not isinstance(test, ast.If):
            continue
        others = [_in_place(each, names, module, study) for each in test.orelse] or before
        for statement in test.body:
            some = _in_place(statement, names, module, study)
            rest = [each for each in others if each and each != some]
            if some and rest:
                yield Cast(owner, rest[-1], some, module, statement)


def _made_as(owner: ast.expr, module: Module, study: Study) -> Iterator[str]:
    """The dtypes that a model is made in: ``from_pretrained(name, torch_dtype=torch.bfloat16)``."""
    for value in study.values(owner, module):
        if isinstance(value, Made) and isinstance(value.node, ast.Call):
            yield from _given(value.node, value.module, study)


def _in_place(statement: ast.stmt, names: set[str], module: Module, study: Study) -> str:
    """The dtype that a statement gives to a parameter, or to all those of a module."""
    match statement:
        case ast.Assign(targets=[ast.Attribute(value=ast.Name(id=name), attr="data")]):
            pass
        case ast.Expr(value=ast.Call(func=ast.Attribute(value=ast.Name(id=name)))):
            pass
        case ast.Assign(targets=[ast.Name(id=name)]):
            pass
        case _:
            return ""
    match statement.value:
        case ast.Call(func=ast.Attribute(value=receiver, attr=attr)) as call if attr in CASTS:
            path = access_path(receiver)
            if name in names and path in {name, f"{name}.data"}:
                return _dtype(call, module, study)
    return ""


def _dtype(call: ast.Call, module: Module, study: Study) -> str:
    """The dtype that a call certainly casts to."""
    assert isinstance(call.func, ast.Attribute)
    if call.func.attr != "to":
        return _plain(BY_NAME[call.func.attr]) if not call.args else ""
    return next(_given(call, module, study, *call.args), "")


def _given(call: ast.Call, module: Module, study: Study, *places: ast.expr) -> Iterator[str]:
    """The dtypes of torch that a call is certainly given, by name or in these places."""
    for given in (*places, *(each.value for each in call.keywords if each.arg in DTYPES)):
        match list(study.values(given, module)):
            case [External(name=name)] if name.startswith("torch."):
                yield _plain(name)


def _plain(name: str) -> str:
    """``torch.float32`` of ``torch.float``."""
    last = name.removeprefix("torch.")
    return f"torch.{ALIASES.get(last, last)}"
