"""``hasattr(model, "module")``: whether something is wrapped, which an FSDP2 model is not."""

from __future__ import annotations

import ast

from fsdp_migrate.analysis.flow import access_path
from fsdp_migrate.analysis.module import Module
from fsdp_migrate.syntax.conditions import leaves
from fsdp_migrate.syntax.trees import FUNCTIONS

NOT_DONE = (
    "an FSDP2 model has no inner module, so that this is not done for it: ask for "
    "isinstance(model, FSDPModule) as well, and take the model itself then"
)
Asking = ast.If | ast.IfExp | ast.While


def asked_first(attribute: ast.Attribute, module: Module) -> Asking | None:
    """What asks ``hasattr(model, "module")`` around ``model.module``, if anything does; so it is
    with ``_fsdp_wrapped_module``."""
    path = access_path(attribute.value)
    child: ast.AST = attribute
    for parent in module.table.ancestors(attribute):
        if isinstance(parent, FUNCTIONS):
            return None
        body = getattr(parent, "body", None)
        inside = body is child or (isinstance(body, list) and child in body)
        if inside and isinstance(parent, (ast.If, ast.IfExp, ast.While)):
            tests = [parent.test]
            if isinstance(parent.test, ast.BoolOp) and isinstance(parent.test.op, ast.And):
                tests = parent.test.values
            if path is not None and any(_is_question(t, path, attribute.attr) for t in tests):
                return parent
        child = parent
    return None


def _is_question(test: ast.expr, path: str, name: str) -> bool:
    match test:
        case ast.Call(func=ast.Name(id="hasattr"), args=[asked, ast.Constant(value=given)]):
            return given == name and access_path(asked) == path
    return False


def has_other_way(asking: Asking, attribute: ast.Attribute) -> bool:
    """Whether something is done for what is not wrapped: in the ``else``, behind the branch, which
    leaves, or with the name that the branch gives the module inside."""
    if not isinstance(asking, ast.If) or asking.orelse:
        return True
    return _names(asking, attribute) or leaves(asking.body)


def takes_model_itself(asking: Asking, attribute: ast.Attribute) -> bool:
    """Whether what is not wrapped is itself what the module inside would be."""
    if not isinstance(asking, ast.If):
        return True
    path = access_path(attribute.value)
    others = (n for s in asking.orelse for n in ast.walk(s) if isinstance(n, ast.expr))
    return any(access_path(each) == path for each in others) or (
        not asking.orelse and _names(asking, attribute)
    )


def _names(asking: ast.If, attribute: ast.Attribute) -> bool:
    """Whether a branch does nothing but give the module inside, and more, a name."""
    assigned = [each.value for each in asking.body if isinstance(each, ast.Assign)]
    return len(assigned) == len(asking.body) and attribute in assigned
