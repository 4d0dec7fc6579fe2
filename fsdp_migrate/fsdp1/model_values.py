"""Which values are FSDP1 models, and which expressions are taken for one."""

from __future__ import annotations

import ast
import itertools
from collections.abc import Iterator

from fsdp_migrate.analysis.flow import Definition, access_path
from fsdp_migrate.analysis.module import Module
from fsdp_migrate.analysis.tracing.tracer import Tracer
from fsdp_migrate.analysis.values import Class, Computed, Made, Unknown, Values, is_open
from fsdp_migrate.fsdp1 import api as fsdp1
from fsdp_migrate.fsdp1 import declared
from fsdp_migrate.syntax import conditions
from fsdp_migrate.syntax.kinds import method_of
from fsdp_migrate.syntax.scopes import Scope
from fsdp_migrate.syntax.trees import DEFINITIONS


def is_taken_for_model(node: ast.expr, module: Module, tracer: Tracer) -> bool:
    """Whether an expression nothing is known about is said to be an FSDP1 model, by its type or
    by being given to an FSDP1 static in its function.

    ``with FSDP.state_dict_type(model, ...): model.state_dict()`` tells what ``model`` is, even
    when no call of the function is in the given paths; so does ``isinstance(model, FSDP)``.
    """
    told = tracer.told(node, module)
    if told is not None:
        found = tracer.evaluate(node, module)
        return told and bool(found) and is_open(found)
    if declared.model(tracer.evaluate(node, module), tracer).model:
        return True
    call = _static_that_tells(node, module, tracer)
    return call is not None and not _excludes(call, node, module)


def told_elsewhere(node: ast.expr, module: Module, tracer: Tracer) -> str:
    """Why an expression that nothing else is known about may be an FSDP1 model: an FSDP1 static is
    given it where its function goes another way, or in another method of the class. Empty where
    none is."""
    if tracer.told(node, module) is not None:
        return ""
    call = _static_that_tells(node, module, tracer)
    if call is not None:
        given = f"FSDP.{method_of(call).attr} is given it"
        return f"{given} in another branch" if _excludes(call, node, module) else ""
    path, here = access_path(node), _method_around(node, module)
    if path is None or here is None or not path.startswith("self."):
        return ""
    if isinstance(node, ast.Attribute) and tracer.assigned_later(node, module):
        return ""
    if models(tracer.evaluate(node, module), tracer):
        return ""
    for call in _statics_given(path, module, tracer):
        other = _method_around(call, module)
        if other in (None, here):
            continue
        if any(models(tracer.evaluate(a, module), tracer) for a in call.args[:1]):
            continue  # a model that is followed, and is none of those that come here
        if module.table.parents[other] is module.table.parents[here]:
            return f"FSDP.{method_of(call).attr} is given it in {other.name}()"
    return ""


def _method_around(node: ast.AST, module: Module) -> ast.FunctionDef | ast.AsyncFunctionDef | None:
    """The method that a node stands in; None outside of classes."""
    for function in module.table.ancestors(node):
        if isinstance(function, (ast.FunctionDef, ast.AsyncFunctionDef)):
            in_class = isinstance(module.table.parents[function], ast.ClassDef)
            return function if in_class else None
    return None


def _static_that_tells(node: ast.expr, module: Module, tracer: Tracer) -> ast.Call | None:
    """The call that gives an FSDP1 static the model that ``node`` uses; one in the same branch, if
    there is one."""
    path = access_path(node)
    found = tracer.evaluate(node, module)
    if path is None or (found and not any(isinstance(v, (Computed, Unknown)) for v in found)):
        return None
    # Something is: the attribute of a model, or one of several objects that it may be.
    is_known = not all(isinstance(v, Unknown) for v in found)
    here = module.table.scope_of(node).function()
    elsewhere = None
    for call in _statics_given(path, module, tracer):
        if module.table.within[call].function() is not here:
            continue
        if is_known and not _stands_in_context(node, call, module):
            continue
        given = [*call.args, *(k.value for k in call.keywords)]
        if any(_may_be_same(g, node, path, module) for g in given[:3]):
            if not _excludes(call, node, module):
                return call
            elsewhere = elsewhere or call
    return elsewhere


def _stands_in_context(node: ast.expr, call: ast.Call, module: Module) -> bool:
    """Whether a ``with`` statement that enters what a call makes is around ``node``."""
    item = module.table.parents[call]
    return isinstance(item, ast.withitem) and module.table.parents[item] in (
        module.table.ancestors(node)
    )


def _statics_given(path: str, module: Module, tracer: Tracer) -> Iterator[ast.Call]:
    """The calls of FSDP1's statics in a module that are given a path as their model."""
    methods = module.table.methods
    calls = [call for name in fsdp1.STATICS if name in methods for call in methods[name]]
    for call in sorted(calls, key=lambda c: (c.lineno, c.col_offset)):
        if _is_model_argument(call, path):
            method = method_of(call)
            names = {fsdp1.canonical(q) for q in tracer.project.external(method, module)}
            if f"{fsdp1.FSDP}.{method.attr}" in names:
                yield call


def _excludes(call: ast.Call, node: ast.expr, module: Module) -> bool:
    """Whether one condition keeps ``node`` from running where it lets ``call`` run."""
    told = dict(conditions.around(call, module.table))
    here = conditions.around(node, module.table)
    return any(told.get(test, holds) is not holds for test, holds in here)


def _may_be_same(given: ast.expr, node: ast.expr, path: str, module: Module) -> bool:
    """Whether two uses of ``path`` may mean one object: ``net = shard(net)`` between them tells
    them apart."""
    if access_path(given) != path:
        return False
    first, second = definitions(given, module), definitions(node, module)
    return not (first and second) or bool(first & second)


def definitions(node: ast.expr, module: Module) -> frozenset[Definition]:
    """The definitions that reach a use of a name or dotted path in its own scope; of a name that
    a lambda or a function inside of another takes from there, all that are there."""
    scope = module.table.scope_of(node)
    found = module.flow(scope.home()).reaching.get(node)
    if found is None and isinstance(node, ast.Name) and scope.is_free(node.id):
        owner = scope.lookup(node.id)
        if owner is not None and _runs_inside(scope, owner):
            return frozenset(module.defined_in(owner, node.id))
    return found or frozenset()


def _runs_inside(scope: Scope, owner: Scope) -> bool:
    """Whether a name's owner is a function, or lambdas alone stand between the two."""
    around = itertools.takewhile(lambda each: each is not owner, scope.outwards())
    return owner.is_function or all(not isinstance(s.node, DEFINITIONS) for s in around)


def _is_model_argument(call: ast.Call, path: str) -> bool:
    """Whether ``path`` is passed where a static expects the model."""
    for keyword in call.keywords:
        if keyword.arg in {"model", "module"}:
            return access_path(keyword.value) == path
    name = method_of(call).attr
    if name == "optim_state_dict_to_load":
        return False  # torch 2.0 took the state first, later releases the model
    first = name in fsdp1.STATE_FIRST
    index = 1 if first else 0
    return len(call.args) > index and access_path(call.args[index]) == path


def is_model(value: object, tracer: Tracer) -> bool:
    """Whether a traced value is an instance of FSDP1's wrapper or of a subclass of it."""
    if type(value) is not Made:  # no isinstance: little is asked more often
        return False
    if isinstance(value.callee, Class):
        return is_class_of_models(value.callee, tracer)
    return value.node in tracer.wraps or fsdp1.canonical(value.made_by) == fsdp1.FSDP


def is_class_of_models(value: object, tracer: Tracer) -> bool:
    """Whether a traced value is a class of the project's that is derived from FSDP1's wrapper."""
    derived = tracer.external_bases(value) if isinstance(value, Class) else ()
    return any(fsdp1.canonical(name) == fsdp1.FSDP for name in derived)


def look_alike(value: object, method: str, tracer: Tracer) -> str:
    """The class of an object that is none of FSDP1's models, and answers to ``method`` as they do:
    others call it FSDP too, or it is the project's own, and has such a method. Or nothing."""
    if not isinstance(value, Made) or is_model(value, tracer):
        return ""
    names = [value.made_by]
    if isinstance(value.callee, Class):
        lineage = tracer.lineage(value.callee)
        own = [cls.node.name for cls in lineage if fsdp1.is_alike(cls.node.name)]
        names = sorted(tracer.external_bases(value.callee))
        # To call a module is right for any: it runs its forward.
        is_called = method == fsdp1.FORWARD and any(n.startswith("torch.nn.") for n in names)
        if not is_called and tracer.has_attribute(value.callee, method):
            own.append(value.callee.node.name)
        if own:
            return f"the project's own {own[0]}"
    return next((name for name in names if fsdp1.is_alike(name)), "")


PLAIN_BASES = frozenset({"abc.ABC", "builtins.object", "typing.Generic", "typing.Protocol"})


def is_plain_class(cls: Class, tracer: Tracer) -> bool:
    """Whether a class, its bases and what derives from it are the project's own alone: no module,
    and no optimizer."""
    for related in tracer.family(cls):
        for base in related.node.bases:
            plain = base.value if isinstance(base, ast.Subscript) else base  # Generic[T]
            for found in tracer.evaluate(plain, related.module):
                if not isinstance(found, Class) and getattr(found, "name", "") not in PLAIN_BASES:
                    return False
    return True


def models(values: Values, tracer: Tracer) -> list[Made]:
    return [v for v in values if type(v) is Made and is_model(v, tracer)]
