"""Which FSDP calls wrap a whole model, and which wrap a part of one that is wrapped later.

Only the root casts its inputs in FSDP1 (``MixedPrecision.cast_root_forward_inputs``), so the two
get different policies. The question is asked of manual wrapping only: ``auto_wrap_policy`` tells
root and units apart by itself.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterable, Iterator
from enum import Enum, auto

from fsdp_migrate.analysis.flow import access_path
from fsdp_migrate.analysis.module import Module
from fsdp_migrate.analysis.values import Class, Made, Unknown
from fsdp_migrate.families.wrapping import second_wrappers, wrap_contexts
from fsdp_migrate.families.wrapping.model_contents import contents
from fsdp_migrate.families.wrapping.stored_models import holders_of, is_module
from fsdp_migrate.fsdp1 import references
from fsdp_migrate.planning.context import Study
from fsdp_migrate.planning.model import Constructor, Wrapped
from fsdp_migrate.syntax.kinds import of_kind
from fsdp_migrate.syntax.scopes import Kind
from fsdp_migrate.syntax.trees import FUNCTIONS

LOOPS_DEEP = 4
CHILDREN = frozenset({"children", "named_children", "modules", "named_modules", "items", "values"})
PARTS = CHILDREN | {"get_submodule"}
PARTS_DEEP = 8
PARTIAL = frozenset({"functools.partial"})  # whose calls are followed


class Role(Enum):
    ROOT = auto()
    PART = auto()
    UNKNOWN = auto()  # one or the other, depending on the call, or nothing tells


def role(constructor: Constructor, study: Study) -> Role:
    """Whether a constructor's model is a root or a part of another one.

    Of ``enable_wrap``: a part or unsure if the models wrapped in it are.
    """
    if constructor.is_context:
        wraps = study.wrapping.contexts
        places = {role(w, study) for w in wraps if constructor in study.wrapping.may_be_in(w)}
        if Role.UNKNOWN in places:
            return Role.UNKNOWN
        return Role.PART if places == {Role.PART} else Role.ROOT
    found, seconds = set(), []
    for holder, module in holders_of(constructor, study):
        outer = study.constructors.get(holder) if holder is not None else None
        if outer in study.second_wrappers:
            seconds.append(outer)
            continue
        if outer is not None and wrap_contexts.is_outer_of_two(outer, study):
            return role(outer, study)
        found.add(_kept_in(holder, module, constructor, study))
    if _is_called_back(constructor, study) or _may_make_parts(constructor):
        found |= {Role.PART, Role.ROOT}
    if not found and seconds:
        found = {_inside(outer, study) for outer in seconds}
    if not found:
        return Role.ROOT
    return found.pop() if len(found) == 1 else Role.UNKNOWN


def _inside(second: Constructor, study: Study) -> Role:
    """What a model in nothing but a second wrapper is: FSDP1 cast inputs as that one said."""
    return role(second, study) if second_wrappers.casts_inputs(second, study) else Role.PART


def casts_more(second: Constructor, study: Study) -> bool:
    """Whether inputs are cast that were not, once a second wrapper is gone."""
    inner = study.second_wrappers[second]
    roots = any(role(each, study) is not Role.PART for each in inner)
    return roots and not second_wrappers.casts_inputs(second, study)


def _is_called_back(constructor: Constructor, study: Study) -> bool:
    """Whether a function that gives the model is handed to another one, which may call it for every
    part of a model: ``apply_to_layers(model, wrap)``."""
    module = constructor.module
    function = references.enclosing_function(module, constructor.call)
    if not isinstance(function, FUNCTIONS) or isinstance(function, ast.Lambda):
        return False
    returned = (r.value for r in module.table.returns.get(function, ()) if r.value is not None)
    if not any(v.node is constructor.call for r in returned for v in study.values(r, module)):
        return False
    return any(
        value.node is function
        for given, call, where in study.tracer.arguments_named(function.name)
        if study.external(call.func, where).isdisjoint(PARTIAL)
        for value in study.values(given, where)
    )


def _may_make_parts(constructor: Constructor) -> bool:
    """Whether a ``functools.partial`` makes something that is not just given a name or returned:
    ``model.blocks[i] = wrap(block)``, before ``model = wrap(model)``."""
    call, table = constructor.call, constructor.module.table
    if constructor.reference not in call.args:
        return False
    match table.parents[call]:
        case ast.Assign(targets=[ast.Name(id=name)]) as statement:
            scope = table.scope_of(statement).lookup(name)
        case _:
            return True
    for use in table.reads(name, scope) if scope is not None else ():
        made = table.parents[use]
        if not isinstance(made, ast.Call) or made.func is not use:
            return True
        match table.parents[made]:
            case ast.Assign(targets=[ast.Name()]) | ast.Return():
                pass
            case ast.Tuple() as both if isinstance(table.parents[both], ast.Return):
                pass
            case _:
                return True
    return False


def enclosing_constructors(constructor: Constructor, study: Study) -> frozenset[Constructor]:
    """The constructors whose models a constructor's model may be a part of.

    A part that stays FSDP1 trains otherwise in a model that ``fully_shard`` has taken, and says
    nothing: the two are migrated together or not at all.
    """
    others = [c for c in study.constructors.values() if c is not constructor and not c.is_context]
    if not others or constructor.is_context:
        return frozenset()
    found: set[Constructor] = set()
    for holder, module in holders_of(constructor, study):
        if holder in study.constructors:
            found |= {other for other in others if other.call is holder}
        elif holder is not None:
            for other in others:
                if _kept_in(holder, module, constructor, study, among=(other,)) is not Role.ROOT:
                    found.add(other)
    return frozenset(found)


def owners(constructor: Constructor, study: Study) -> Iterator[ast.AST]:
    """What a constructor's model is stored in: classes, of whose instances it is an attribute or
    an element of one, calls that make something else, and what nobody here makes: a parameter."""
    for holder, module in holders_of(constructor, study):
        if not isinstance(holder, ast.expr) or holder in study.constructors:
            continue
        yield from _around(holder, module, study, PARTS_DEEP)


def _around(part: ast.expr, module: Module, study: Study, depth: int) -> Iterator[ast.AST]:
    """What makes an object, and the objects that it is a part of."""
    for value in study.values(part, module):
        if isinstance(value, Made):
            yield value.callee.node if isinstance(value.callee, Class) else value.node
        elif isinstance(value, Unknown):
            yield value.node
        whole = _asked_for_part(value.node)
        if whole is None and isinstance(value, Unknown) and value.node is not part:
            whole = value.node.value if isinstance(value.node, ast.Attribute) else None
        if whole is not None and depth:
            yield from _around(whole, value.module, study, depth - 1)
    if isinstance(part, (ast.Attribute, ast.Subscript)) and depth:
        yield from _around(part.value, module, study, depth - 1)


def _asked_for_part(node: ast.AST) -> ast.expr | None:
    """``model`` of ``model.named_children()``, ``model.get_submodule(name)`` and the like."""
    match node:
        case ast.Call(func=ast.Attribute(value=whole, attr=method)) if method in PARTS:
            return whole
        case ast.Call(func=ast.Name(id="getattr"), args=[whole, *_]):
            return whole
        case ast.Call(func=ast.Name(id="list" | "dict" | "enumerate" | "reversed"), args=[inner]):
            return _asked_for_part(inner)
    return None


def _kept_in(
    holder: ast.AST | None,
    module: Module,
    own: Constructor,
    study: Study,
    among: Iterable[Constructor] | None = None,
) -> Role:
    """Whether an object that holds the model is wrapped itself, or is a part of what is.

    Args:
        among: the other models that count, all by default.
    """
    if holder is None:
        return Role.ROOT
    if isinstance(holder, ast.Call) and holder in study.constructors:
        return Role.PART
    holder = of_kind(holder, ast.expr)
    counted = among
    if counted is None:
        counted = (c for c in study.constructors.values() if c not in study.second_wrappers)
    others = [w for c in counted if c is not own for w in c.wraps]

    scope = module.table.scope_of(holder).function()
    elsewhere = scope is not own.module.table.scope_of(own.defined_by or own.call).function()
    if among is None and elsewhere:
        others += own.wraps  # called through a function, which may wrap more than one model
    if not others:
        return Role.ROOT
    path = access_path(holder)
    base = _base(path) if path is not None else ""
    whole = _looped_over(holder, module, study)
    for other in others:
        same_place = other.module is module and (
            module.table.scope_of(other.wrapped).function() is scope
        )
        if base and base != "self" and same_place and access_path(other.wrapped) in {base, whole}:
            return Role.PART
    owner = class_of(holder, module) if base == "self" else None
    if owner is not None and not is_module(owner, study):
        return Role.ROOT  # an attribute of a trainer, say
    made = {v.node for v in study.values(holder, module) if isinstance(v, Made)}
    family = {c.node for c in study.tracer.family(owner)} if owner is not None else set()
    unknown = False
    for other in others:
        beside = owner is not None and _is_attribute_of(other, family)
        for value in study.values(other.wrapped, other.module):
            if value.node in made:
                return Role.PART
            if isinstance(value, Made) and isinstance(value.callee, Class):
                if value.callee.node in family:
                    return Role.PART
                if beside:
                    continue  # what holds both is in neither
                # Its class may be made deep inside of what is wrapped.
                inside = contents(other.wrapped, other.module, study)
                if not family.isdisjoint(c.node for c in inside.classes):
                    return Role.PART
                unknown = unknown or not inside.complete
            elif isinstance(value, Made):
                if not beside and not family.isdisjoint(_given(value, study)):
                    return Role.PART
            elif not isinstance(value, Made):
                unknown = True
    return Role.UNKNOWN if unknown or not owner else Role.ROOT


def _is_attribute_of(other: Wrapped, family: set[ast.ClassDef]) -> bool:
    """Whether what is wrapped is an attribute of an instance of one of these classes."""
    path = access_path(other.wrapped)
    if path is None or _base(path) != "self" or not isinstance(other.wrapped, ast.Attribute):
        return False
    owner = class_of(other.wrapped.value, other.module)
    return owner is not None and owner.node in family


def _looped_over(node: ast.expr, module: Module, study: Study) -> str:
    """The path of the model whose children a loop goes over, if ``node`` is its variable."""
    for _ in range(LOOPS_DEEP):
        while isinstance(node, (ast.Attribute, ast.Subscript)):
            node = node.value
        if not isinstance(node, ast.Name):
            return ""
        found = list(study.defined_by(node, module))
        if len(found) != 1 or found[0].kind is not Kind.ELEMENT or found[0].value is None:
            return node.id if node.id != "self" else ""
        node = found[0].value
        match node:
            case ast.Call(func=ast.Name(id="enumerate"), args=[first, *_]):
                node = first
        match node:
            case ast.Call(func=ast.Attribute(attr=attr, value=holder)) if attr in CHILDREN:
                node = holder
    return ""


def _given(made: Made, study: Study) -> set[ast.AST]:
    """The classes of modules that are given to a call of something from outside."""
    found: set[ast.AST] = set()
    arguments = [*made.node.args, *made.node.keywords] if isinstance(made.node, ast.Call) else []
    for argument in arguments:
        for node in ast.walk(argument):
            if isinstance(node, (ast.Name, ast.Attribute, ast.Call)):
                inside = contents(node, made.module, study)
                found |= {c.node for c in inside.classes if is_module(c, study)}
    return found


def _base(path: str) -> str:
    return re.split(r"[.\[]", path, maxsplit=1)[0]


def class_of(node: ast.AST, module: Module) -> Class | None:
    """The class around a node."""
    for parent in module.table.ancestors(node):
        if isinstance(parent, ast.ClassDef):
            return Class(parent, module)
    return None
