"""FSDP1's class given to the project's own code, which only picks or refuses by ``isinstance``.

``def parts(model, kind): return [m for m in model.modules() if isinstance(m, kind)]`` and
``parts(model, FSDP)``; or a class that keeps it and hands it to pydantic, which asks; or a test's
``self.assertIsInstance(model, FSDP)``.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator

from fsdp_migrate.analysis.module import Module
from fsdp_migrate.analysis.tracing.functions import argument_of, is_static
from fsdp_migrate.analysis.values import Class, Function
from fsdp_migrate.fsdp1.site import Site
from fsdp_migrate.planning.context import Study
from fsdp_migrate.syntax.expressions import last_name

ASKING = frozenset({"isinstance", "issubclass"})
SCHEMAS = "pydantic_core.core_schema."
OF_SCHEMAS = frozenset({"is_instance_schema", "is_subclass_schema"})
Use = tuple[ast.expr, Module]


def is_only_asked(site: Site, study: Study) -> bool:
    """Whether the class that stands at a site goes to a function that only asks with it."""
    given: ast.AST = site.mention
    parents = site.module.table.parents
    call = parents[given]
    if isinstance(call, ast.keyword):
        call = parents[call]
    if not isinstance(call, ast.Call) or call.func is given:
        return False
    called = study.values(call.func, site.module)
    if _is_asserted(call, given) and not any(isinstance(v, (Function, Class)) for v in called):
        return True
    uses = [use for value in called for use in _uses(value, call, site.mention, study)]
    known = all(isinstance(value, (Function, Class)) for value in called)
    return known and bool(uses) and all(_asks(*use, study) for use in uses)


def _is_asserted(call: ast.Call, kind: ast.AST) -> bool:
    """``self.assertIsInstance(model, kind)``, of ``unittest``, perhaps with a message."""
    match call:
        case ast.Call(func=ast.Attribute(attr="assertIsInstance"), args=[_, asked, *_]):
            return asked is kind
        case ast.Call(func=ast.Attribute(attr="assertIsInstance"), keywords=keywords):
            return any(k.arg == "cls" and k.value is kind for k in keywords)
    return False


def _uses(value: object, call: ast.Call, given: ast.expr, study: Study) -> Iterator[Use]:
    """The uses of what a call gives, in the function, and of the attributes that keep it."""
    functions = [value] if isinstance(value, Function) else []
    if isinstance(value, Class):
        found = study.tracer.attribute(value, "__init__", value.node, value.module)
        functions = [each for each in found if isinstance(each, Function)]
    for function in functions:
        node, module = function.node, function.module
        bound = isinstance(value, Class) or (function.owner is not None and not is_static(node))
        arguments = node.args
        for each in (*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs):
            if argument_of(call, node, each.arg, bound=bound) is given:
                for use in module.table.reads(each.arg, module.table.scopes[node]):
                    yield from _kept(use, module, study)


def _kept(use: ast.expr, module: Module, study: Study) -> Iterator[Use]:
    """A use, or those of the attribute that it is kept in, of whatever object."""
    match module.table.parents[use]:
        case ast.Assign(targets=[ast.Attribute(value=ast.Name(id="self"), attr=name)]):
            for other in study.project.modules:
                if other.mentions(name):
                    for attribute in other.table.attributes_by_name.named(name):
                        if isinstance(attribute.ctx, ast.Load):
                            yield attribute, other
        case _:
            yield use, module


def _asks(use: ast.expr, module: Module, study: Study) -> bool:
    """Whether a class is used to ask whether something is of it, and nothing else."""
    call = module.table.parents[use]
    if isinstance(call, ast.keyword):
        call = module.table.parents[call]
    if not isinstance(call, ast.Call) or call.func is use:
        return False
    if isinstance(call.func, ast.Name) and call.func.id in ASKING:
        return call.args[1:] == [use] and _picks(call, module)
    names = study.external(call.func, module)
    return last_name(call.func) in OF_SCHEMAS and all(n.startswith(SCHEMAS) for n in names)


def _picks(call: ast.Call, module: Module) -> bool:
    """Whether units are picked by an ``isinstance``, or what is none is refused.

    Where units are passed over, the module in FSDP1's wrapper was not: FSDP404 knows more of that.
    """
    parents = module.table.parents
    match parents[call]:
        case ast.comprehension(ifs=ifs):
            return call in ifs
        case ast.Assert(test=test):
            return test is call
        case ast.UnaryOp(op=ast.Not()) as opposite:
            refusing = parents[opposite]
            return isinstance(refusing, ast.If) and all(
                isinstance(statement, ast.Raise) for statement in refusing.body
            )
    return False
