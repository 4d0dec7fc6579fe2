"""Parameters of a sharded model that are replaced by others: ``layer.weight = nn.Parameter(x)``.

FSDP1 with ``use_orig_params=True`` found them before the next forward, and took their values over.
``fully_shard`` puts its own parameter back then, without an error, and what was assigned is lost.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator

from fsdp_migrate.analysis.module import Module
from fsdp_migrate.analysis.tracing.functions import is_self
from fsdp_migrate.analysis.values import Made
from fsdp_migrate.families.modules.visited_modules import model_in, visited_model
from fsdp_migrate.families.parameters.attributes import PARAMETER, keeps_attributes
from fsdp_migrate.families.parameters.looped_parts import looped_over
from fsdp_migrate.families.wrapping.computing_methods import LEAVES
from fsdp_migrate.fsdp1.construct import Construct
from fsdp_migrate.fsdp1.references import enclosing_function
from fsdp_migrate.fsdp1.site import Site
from fsdp_migrate.planning.context import Study
from fsdp_migrate.syntax.expressions import holder_of_attributes

REPLACED = Construct.parse("parameter of a sharded model replaced")
SWAPPING = "torch.utils.swap_tensors"


def find_replaced_parameters(study: Study, module: Module) -> Iterator[Site]:
    """Sites for parameters that are put in the place of those of a sharded model."""
    if all(keeps_attributes(c, study) is None for c in study.constructors.values()):
        return
    for node, owner in replacing(study, module):
        model = _model(owner, study, module)
        if model is not None or _is_own(owner, study, module):
            yield Site(REPLACED, module, node, node, model or owner)


def replacing(study: Study, module: Module) -> Iterator[tuple[ast.expr, ast.expr]]:
    """What puts a parameter into a module, and that module."""
    for node, owner, value in _stores(module):
        if _is_parameter(value, study, module):
            yield node, owner
    for call in module.table.calls_by_name.named("swap_tensors"):
        if SWAPPING in study.external(call.func, module):
            owners = (each.value for each in call.args if isinstance(each, ast.Attribute))
            yield from ((call, owner) for owner in owners)


def _stores(module: Module) -> Iterator[tuple[ast.expr, ast.expr, ast.expr]]:
    """What is written, whose attribute it is, and what becomes it."""
    stored = [a for a in module.table.attributes if isinstance(a.ctx, ast.Store)]
    targets = [(a, a.value) for a in stored]
    for entry in module.table.subscripts:
        holder = holder_of_attributes(entry.value)
        if isinstance(entry.ctx, ast.Store) and holder is not None:
            targets.append((entry, holder))  # type: ignore[arg-type]
    for target, owner in targets:
        statement = module.table.parents.get(target)
        if isinstance(statement, ast.Assign) and target in statement.targets:
            yield target, owner, statement.value
    for call in module.table.calls_by_name.of(("register_parameter", "setattr")):
        match call:
            case ast.Call(func=ast.Attribute(value=owner), args=[_, value]):
                yield call, owner, value
            case ast.Call(func=ast.Name(id="setattr"), args=[owner, _, value]):
                yield call, owner, value


def _model(owner: ast.expr, study: Study, module: Module) -> ast.expr | None:
    """The sharded model whose module, or a part of one, something is."""
    model = model_in(owner, study, module) or visited_model(owner, study, module, {})
    wholes = looped_over(owner, module, study)
    return model or next((w for w in wholes if study.traced(w, module)), None)


def _is_own(owner: ast.expr, study: Study, module: Module) -> bool:
    """Whether something is a part of ``self`` in a method that is called on a sharded model."""
    while isinstance(owner, (ast.Attribute, ast.Subscript)):
        owner = owner.value
    method = enclosing_function(module, owner)
    if not is_self(owner, module) or not isinstance(method, ast.FunctionDef):
        return False
    called = (site.call.func for site in study.tracer.callers(method, module) if site.bound)
    where = {site.call.func: site.module for site in study.tracer.callers(method, module)}
    return method.name != "__init__" and any(
        isinstance(each, ast.Attribute) and study.traced(each.value, where[each]) for each in called
    )


def _is_parameter(node: ast.expr, study: Study, module: Module) -> bool:
    if isinstance(node, ast.Attribute) and node.attr in LEAVES:
        return True  # weights that are tied: ``model.head.weight = model.embed.weight``
    values = study.values(node, module)
    return any(isinstance(v, Made) and v.made_by in PARAMETER for v in values)
