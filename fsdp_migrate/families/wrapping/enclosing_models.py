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
from fsdp_migrate.analysis.values import Class, Display, Made, Value
from fsdp_migrate.families.wrapping import wrap_contexts
from fsdp_migrate.families.wrapping.model_contents import contents
from fsdp_migrate.fsdp1 import references
from fsdp_migrate.planning.context import Study
from fsdp_migrate.planning.model import Constructor, Wrapped
from fsdp_migrate.syntax.kinds import of_kind
from fsdp_migrate.syntax.scopes import Kind
from fsdp_migrate.syntax.trees import FUNCTIONS

MODULE_BASES = ("torch.nn.Module", "torch.nn.modules.module.Module", "LightningModule")
ADDERS = frozenset({"add_module", "register_module", "append", "insert", "extend", "update"})
HANDING_BACK = ("checkpoint_wrapper", "offload_wrapper", "torch.compile")
CALLERS_DEEP = 3
LOOPS_DEEP = 4
CHILDREN = frozenset({"children", "named_children", "modules", "named_modules", "items", "values"})
PARTS = CHILDREN | {"get_submodule"}
PARTS_DEEP = 8
PARTIAL = frozenset({"functools.partial"})  # whose calls are followed
PASSED_ON = (  # expressions whose value holds, or is, one of their parts
    ast.Await,
    ast.BoolOp,
    ast.Call,
    ast.DictComp,
    ast.Dict,
    ast.GeneratorExp,
    ast.IfExp,
    ast.Lambda,
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
    """Whether a constructor's model is a root or a part of another one.

    Of ``enable_wrap``: a part or unsure if the models wrapped in it are.
    """
    if constructor.is_context:
        wraps = study.wrapping.contexts
        places = {role(w, study) for w in wraps if constructor in study.wrapping.may_be_in(w)}
        if Role.UNKNOWN in places:
            return Role.UNKNOWN
        return Role.PART if places == {Role.PART} else Role.ROOT
    found = set()
    for holder, module in _holders_of(constructor, study):
        outer = study.constructors.get(holder) if holder is not None else None
        if outer is not None and wrap_contexts.is_outer_of_two(outer, study):
            return role(outer, study)
        found.add(_kept_in(holder, module, constructor, study))
    if _is_called_back(constructor, study):
        found |= {Role.PART, Role.ROOT}
    if not found:
        return Role.ROOT
    return found.pop() if len(found) == 1 else Role.UNKNOWN


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


def enclosing_constructors(constructor: Constructor, study: Study) -> frozenset[Constructor]:
    """The constructors whose models a constructor's model may be a part of.

    A part that stays FSDP1 trains otherwise in a model that ``fully_shard`` has taken, and says
    nothing: the two are migrated together or not at all.
    """
    others = [c for c in study.constructors.values() if c is not constructor and not c.is_context]
    if not others or constructor.is_context:
        return frozenset()
    found: set[Constructor] = set()
    for holder, module in _holders_of(constructor, study):
        if holder in study.constructors:
            found |= {other for other in others if other.call is holder}
        elif holder is not None:
            for other in others:
                if _kept_in(holder, module, constructor, study, among=(other,)) is not Role.ROOT:
                    found.add(other)
    return frozenset(found)


def owners(constructor: Constructor, study: Study) -> Iterator[ast.AST]:
    """What a constructor's model is stored in: classes, of whose instances it is an attribute or
    an element of one, and calls that make something else."""
    for holder, module in _holders_of(constructor, study):
        if not isinstance(holder, ast.expr) or holder in study.constructors:
            continue
        yield from _around(holder, module, study, PARTS_DEEP)


def _around(part: ast.expr, module: Module, study: Study, depth: int) -> Iterator[ast.AST]:
    """What makes an object, and the objects that it is a part of."""
    for value in study.values(part, module):
        if isinstance(value, Made):
            yield value.callee.node if isinstance(value.callee, Class) else value.node
        whole = _asked_for_part(value.node)
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


Holder = tuple[ast.AST | None, Module]


def _holders_of(constructor: Constructor, study: Study) -> Iterator[Holder]:
    for call, module in constructor.made_at or ((constructor.call, constructor.module),):
        yield from _holders(call, module, study, CALLERS_DEEP)


def _holders(node: ast.expr, module: Module, study: Study, depth: int) -> Iterator[Holder]:
    """The objects that the value of ``node`` is stored in; None for a value that stands alone.

    A constructor that wraps the value, or a container of it, is a holder too.
    """
    table = module.table
    child: ast.AST = node
    for parent in table.ancestors(node):
        if isinstance(parent, ast.Call) and child is not parent.func:
            holder = _receiver(parent)
            if parent in study.constructors:
                yield parent, module
                return
            if holder is not None:
                yield from _put_into(holder, module, study, depth)
                return
            if not _is_container(parent, study, module):
                yield None, module
                asked = isinstance(table.parents[parent], ast.Attribute)  # Holder(model).model
                made = any(isinstance(v, Class) for v in study.values(parent.func, module))
                if made and not asked:
                    return
                # A function may hand back what it is given, or something that holds it.
        elif isinstance(parent, ast.Return):
            yield from _returned(parent, module, study, depth)
            return
        elif isinstance(parent, (ast.Assign, ast.AnnAssign)):
            yield from _assigned(parent, module, study, depth)
            return
        elif isinstance(parent, (ast.Attribute, ast.Subscript)) and parent.value is child:
            if not isinstance(child, (ast.Call, ast.Dict, ast.List, ast.Tuple)):
                yield None, module
                return
            # Holder(model).model, [model][0]
        elif not isinstance(parent, PASSED_ON):
            yield None, module
            return
        child = parent


def _put_into(holder: ast.expr, module: Module, study: Study, depth: int) -> Iterator[Holder]:
    """The objects that a part is added to; for a list, what is made of the list."""
    values = study.values(holder, module)
    if values and all(_keeps_no_argument(v, study) for v in values):
        yield None, module  # a method of the project's own: ema.update(model)
        return
    is_list = bool(values) and all(isinstance(v, Display) for v in values)
    targets = [
        node
        for definition in (study.defined_by(holder, module) if is_list else ())
        for node in ast.walk(definition.node)
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store)
    ]
    named = [t for t in targets if isinstance(holder, ast.Name) and t.id == holder.id]
    if not named or not depth:
        yield holder, module
    for target in named if depth else ():
        yield from _used(target, module, study, depth - 1)


def _keeps_no_argument(value: Value, study: Study) -> bool:
    """Whether it is an instance of a class of the project's own, neither module nor container,
    whose methods called like those that add something only use what they are given."""
    owner = value.callee if isinstance(value, Made) else None
    if not isinstance(owner, Class) or study.tracer.external_bases(owner) - {"builtins.object"}:
        return False
    methods = [
        (node, related.module)
        for related in study.tracer.family(owner)
        for node in related.node.body
        if isinstance(node, ast.FunctionDef) and node.name in ADDERS
    ]
    return bool(methods) and all(_only_uses_arguments(m, where) for m, where in methods)


def _only_uses_arguments(method: ast.FunctionDef, module: Module) -> bool:
    given = {a.arg for a in (*method.args.args[1:], *method.args.kwonlyargs)}
    if method.args.vararg is not None or method.args.kwarg is not None:
        return False
    for node in ast.walk(method):
        if not isinstance(node, ast.Name) or node.id not in given:
            continue
        parent = module.table.parents[node]
        asked = isinstance(parent, ast.Attribute) and isinstance(node.ctx, ast.Load)
        passed = (
            isinstance(parent, ast.Call)
            and _receiver(parent) is None
            and isinstance(module.table.parents[parent], (ast.Expr, ast.withitem))
        )
        if not asked and not passed:
            return False
    return True


def _receiver(call: ast.Call) -> ast.expr | None:
    """The object that a call such as ``setattr`` or ``add_module`` puts its argument into."""
    if isinstance(call.func, ast.Name) and call.func.id == "setattr" and call.args:
        return call.args[0]
    if isinstance(call.func, ast.Attribute) and call.func.attr in ADDERS:
        return call.func.value
    return None


def _is_container(call: ast.Call, study: Study, module: Module) -> bool:
    """Whether a call makes a module out of the modules it is given (``nn.Sequential``)."""
    made = study.values(call.func, module)
    if any(isinstance(v, Class) for v in made):
        return any(isinstance(v, Class) and is_module(v, study) for v in made)
    names = study.external(call.func, module)
    builtin = isinstance(call.func, ast.Name) and call.func.id in {"list", "tuple", "dict"}
    return builtin or any(
        n.startswith(("torch.nn.", "collections.")) or n.endswith(HANDING_BACK) for n in names
    )


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
    """Where a model with a name is stored, later in the name's scope."""
    table = module.table
    scope = table.scope_of(target)
    stored = False
    statement = table.statement(target)
    for name in table.reads(target.id, scope):
        if name.lineno <= (statement.end_lineno or statement.lineno):
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
    counted = study.constructors.values() if among is None else among
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


def is_module(cls: Class, study: Study) -> bool:
    """Whether a class is one of modules."""
    bases = study.tracer.external_bases(cls)
    return any(b.startswith("torch.nn.") or b.endswith(MODULE_BASES) for b in bases)
