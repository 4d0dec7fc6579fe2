"""What a model is stored in, once it is made: attributes, containers, other constructors."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from fsdp_migrate.analysis.module import Module
from fsdp_migrate.analysis.values import Class, Display, External, Made, Value
from fsdp_migrate.planning.context import Study
from fsdp_migrate.planning.model import Constructor

MODULE_BASES = ("torch.nn.Module", "torch.nn.modules.module.Module", "LightningModule")
ADDERS = frozenset({"add_module", "register_module", "append", "insert", "extend", "update"})
HANDING_BACK = ("checkpoint_wrapper", "offload_wrapper", "torch.compile")
CALLERS_DEEP = 3
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
    ast.comprehension,
    ast.keyword,
)
Holder = tuple[ast.AST | None, Module]


def holders_of(constructor: Constructor, study: Study) -> Iterator[Holder]:
    """The objects that a constructor's model is stored in, each with its file; None where it stands
    alone."""
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
    """Where a model with a name is stored, later in the name's scope; else where its callers have
    what it returns, alone or not."""
    table = module.table
    scope = table.scope_of(target)
    stored: list[Holder] = []
    returned: list[Holder] = []
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
        found = list(_holders(name, module, study, depth - 1))
        if isinstance(table.statement(name), ast.Return):
            returned += found
        else:
            stored += [each for each in found if each[0] is not None]
    if stored:
        yield from (each for each in [*stored, *returned] if each[0] is not None)
    else:
        yield from returned or [(None, module)]


def is_module(cls: Class, study: Study) -> bool:
    """Whether a class is one of modules."""
    bases = study.tracer.external_bases(cls)
    return any(b.startswith("torch.nn.") or b.endswith(MODULE_BASES) for b in bases)


def may_shard(constructor: Constructor, cls: Class, study: Study) -> bool:
    """Whether what a constructor shards may be of a class."""
    for wrap in constructor.wraps:
        for value in study.values(wrap.wrapped, wrap.module):
            callee = value.callee if isinstance(value, Made) else None
            if isinstance(callee, Class):
                if any(each.node is cls.node for each in study.tracer.lineage(callee)):
                    return True
            elif not isinstance(callee, External):
                return True
    return False
