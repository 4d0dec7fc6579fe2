"""A kind of state that an object keeps in its attributes, and sets its model to.

``FSDP.set_state_dict_type(model, self.kind, self.config)`` in a method: where these are set while
the object is made, and never again, its other methods can ask for them wherever they ask for a
state of the model.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass

from fsdp_migrate.analysis.flow import access_path
from fsdp_migrate.analysis.module import Module
from fsdp_migrate.analysis.tracing.functions import class_of_method, is_self
from fsdp_migrate.analysis.values import Class, Made, Unknown
from fsdp_migrate.fsdp1 import model_values
from fsdp_migrate.fsdp1.state_types import ARGUMENTS
from fsdp_migrate.planning.context import Study
from fsdp_migrate.planning.model import is_none
from fsdp_migrate.syntax.expressions import bind_arguments, first_argument, given_arguments
from fsdp_migrate.syntax.trees import FUNCTIONS


@dataclass(frozen=True, eq=False)
class Method:
    """A method of a class, and what it calls its object."""

    node: ast.FunctionDef
    cls: Class
    itself: str


def is_kept(call: ast.Call, module: Module, study: Study) -> bool:
    """Whether a call of ``set_state_dict_type`` reads all that it sets off attributes of an object
    that no longer change."""
    method = _method_around(call, module)
    bound = bind_arguments(call, ARGUMENTS)
    if method is None or bound is None or "state_dict_type" not in bound:
        return False
    names: dict[str, bool] = {}  # and whether it is an attribute of the object itself
    for name, given in bound.items():
        path = access_path(given)
        if name == "module" or (name != "state_dict_type" and is_none(given)):
            continue
        if path is None or not path.startswith(f"{method.itself}."):
            return False
        first, *deeper = path.split(".")[1:]
        names |= {first: True} | {each: names.get(each, False) for each in deeper}
    if not all(names.values()) and study.cache(_sets_by_any_name):
        return False
    return all(
        _is_settled(name, call, module, method, study, own=own) for name, own in names.items()
    )


def can_ask(call: ast.Call, where: Module, node: ast.AST, module: Module, study: Study) -> bool:
    """Whether a method that asks for a state at ``node`` has the object whose attributes a call of
    ``set_state_dict_type`` read, for a model that this has set."""
    setter, asker = _method_around(call, where), _method_around(node, module)
    if setter is None or asker is None or asker.itself != setter.itself:
        return False
    if setter.cls.node not in {each.node for each in study.tracer.lineage(asker.cls)}:
        return False
    model = model_asked(node, module, study)
    path = access_path(model) if model is not None else None
    if path is None or not path.startswith(f"{asker.itself}."):
        return False
    return not _made(model, module, study) - _made(first_argument(call), where, study) and is_kept(
        call, where, study
    )


def model_asked(node: ast.AST, module: Module, study: Study) -> ast.expr | None:
    """The model whose state a call asks for, or loads: what has the method, or is given to one of
    FSDP1's static methods."""
    if not isinstance(node, ast.Call):
        return None
    subject = [node.func.value] if isinstance(node.func, ast.Attribute) else []
    asked = (each for each in (*subject, *given_arguments(node)) if _made(each, module, study))
    return next(asked, None)


def is_of_others(
    call: ast.Call, where: Module, asker: ast.AST, module: Module, study: Study
) -> tuple[bool, bool]:
    """Whether the models at ``asker`` are all made elsewhere than those which a call of
    ``set_state_dict_type`` sets; and whether something that nobody knows may be there as well."""
    model = model_asked(asker, module, study)
    asked, given = _made(model, module, study), _made(first_argument(call), where, study)
    apart = bool(asked) and bool(given) and asked.isdisjoint(given)
    places = [(model, module), (first_argument(call), where)] if apart else []
    values = (v for node, of in places if node is not None for v in study.values(node, of))
    return apart, any(isinstance(value, Unknown) for value in values)


def _made(node: ast.expr | None, module: Module, study: Study) -> set[ast.AST]:
    """Where FSDP1's models are made that an expression is known to be."""
    found = study.values(node, module) if node is not None else frozenset[Made]()
    return {value.node for value in model_values.models(found, study.tracer)}


def _method_around(node: ast.AST, module: Module) -> Method | None:
    """The method in which a node stands, if its first parameter is the object throughout."""
    function = next((n for n in module.table.ancestors(node) if isinstance(n, FUNCTIONS)), None)
    if not isinstance(function, ast.FunctionDef) or function.decorator_list:
        return None
    cls = class_of_method(function, module)
    first = [*function.args.posonlyargs, *function.args.args][:1]
    if cls is None or not first:
        return None
    bindings = module.table.scopes[function].bindings[first[0].arg]
    return Method(function, Class(cls, module), first[0].arg) if len(bindings) == 1 else None


def _is_settled(
    name: str, call: ast.Call, module: Module, method: Method, study: Study, *, own: bool
) -> bool:
    """Whether an attribute is set while the object is made, above a call, and never again.

    Args:
        own: it is the object's. Those of what the object keeps (``self.args.kind``) may come from
            elsewhere, and be set nowhere in sight.
    """
    family = study.tracer.family(method.cls)
    members = {each.node for each in family}
    moments = [*_moments(call, module, study, set())]
    if any(_is_set_by_any_name(each) for each in family):
        return False
    stores = [
        (stored, where)
        for where in study.project.modules
        if where.mentions(name)
        for stored in where.table.stored_attributes
        if stored.attr == name
    ]
    for stored, where in stores:
        owner = _method_around(stored, where)
        if not is_self(stored.value, where):
            return False  # of any object
        if owner is None:
            return False
        if owner.cls.node not in members:
            continue  # of an object of another class
        for made_in, line in _moments(stored, where, study, set()):
            if made_in is None:
                return False  # at any time
            for other, later in moments:
                if other is not None and (other is not made_in or later <= line):
                    return False
    return bool(stores) or not own


def _sets_by_any_name(study: Study) -> bool:
    """Whether the project sets attributes of any object under names that its code does not say."""
    return any(
        len(call.args) > 1 and not isinstance(call.args[1], ast.Constant)
        for module in study.project.modules
        for call in module.table.calls_by_name.named("setattr")
    )


def _is_set_by_any_name(cls: Class) -> bool:
    """Whether a class sets attributes of its objects under names that its code does not say."""
    table = cls.module.table
    named = {
        call.args[0]
        for call in table.calls_by_name.named("setattr")
        if len(call.args) > 1 and not isinstance(call.args[1], ast.Constant)
    }
    named |= {each.value for each in table.attributes_by_name.named("__dict__")}
    named |= {call.args[0] for call in table.calls_by_name.named("vars") if call.args}
    return any(is_self(node, cls.module) and cls.node in table.ancestors(node) for node in named)


def _moments(
    node: ast.AST, module: Module, study: Study, seen: set[ast.AST]
) -> Iterator[tuple[ast.AST | None, int]]:
    """The lines of an ``__init__`` at which a node of a method runs; none, where it may be at any
    other time."""
    method = _method_around(node, module)
    if method is None or method.node in seen:
        yield None, 0
        return
    if method.node.name == "__init__":
        yield method.node, getattr(node, "lineno", 0)
        return
    seen.add(method.node)
    callers = study.tracer.callers(method.node, module)
    if not callers:
        yield None, 0
    for site in callers:
        yield from _moments(site.call, site.module, study, seen)
