"""Where a program goes over the children of a sharded model.

FSDP1's wrapper had one child, the module inside it. What ``fully_shard`` gives is that module, and
has its own. Who visits them deeper and deeper comes to the same modules either way.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator

from fsdp_migrate.analysis.module import Module
from fsdp_migrate.families.modules.exact_classes import is_said
from fsdp_migrate.families.modules.visited_modules import is_visited
from fsdp_migrate.fsdp1 import class_questions
from fsdp_migrate.fsdp1.construct import Construct
from fsdp_migrate.fsdp1.references import enclosing_function
from fsdp_migrate.fsdp1.site import Site
from fsdp_migrate.planning.context import Study
from fsdp_migrate.syntax.expressions import last_name

CONSTRUCT = Construct.parse("children of a model")
METHODS = frozenset({"children", "named_children"})
ANSWERS = (ast.If, ast.IfExp, ast.While, ast.UnaryOp, ast.BoolOp, ast.Compare)


def find_children(study: Study, module: Module) -> Iterator[Site]:
    """Sites for ``model.children()``, ``model.named_children()`` and ``model._modules``."""
    if not study.constructors:
        return
    calls = module.table.calls_by_name.of(METHODS)
    asked = [(c, c.func.value) for c in calls if isinstance(c.func, ast.Attribute)]
    holders = module.table.attributes_by_name.named("_modules")
    asked += [(a, a.value) for a in holders if not _is_one(a, module)]  # type: ignore[misc]
    for node, model in asked:
        values = study.values(model, module)
        if not study.traced(model, module) or class_questions.is_unwrapped(values):
            continue
        if is_visited(model, study, module) or _goes_deeper(node, module):
            continue
        if not is_said(node, module) and not _is_asked_for_any(node, module):
            yield Site(CONSTRUCT, module, node, node, model)


def _is_one(holder: ast.Attribute, module: Module) -> bool:
    """``model._modules["head"]``, which is no way to go over them."""
    return isinstance(module.table.parents[holder], ast.Subscript)


def _goes_deeper(node: ast.AST, module: Module) -> bool:
    """Whether the function around a node calls itself, for the children of children: by its name,
    or as a method of the same object."""
    function = enclosing_function(module, node)
    if not isinstance(function, (ast.FunctionDef, ast.AsyncFunctionDef)):
        return False
    own = [argument.arg for argument in (*function.args.posonlyargs, *function.args.args)][:1]
    calls = (call.func for call in ast.walk(function) if isinstance(call, ast.Call) and call.args)
    if isinstance(module.table.parents[function], ast.ClassDef):
        return any(
            isinstance(called, ast.Attribute)
            and called.attr == function.name
            and getattr(called.value, "id", "") in own
            for called in calls
        )
    return any(isinstance(called, ast.Name) and called.id == function.name for called in calls)


def _is_asked_for_any(node: ast.AST, module: Module) -> bool:
    """Whether all that is asked is whether there are children: ``not list(model.children())``."""
    parent = module.table.parents[node]
    while isinstance(parent, ast.Call) and last_name(parent.func) in {"any", "len", "list"}:
        parent = module.table.parents[parent]
    return isinstance(parent, ANSWERS)
