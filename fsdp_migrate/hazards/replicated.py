"""Sums over all ranks of what each replica of a sharded model has."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from fsdp_migrate.analysis.module import Module
from fsdp_migrate.analysis.values import Made
from fsdp_migrate.families.wrapping import fully_sharded
from fsdp_migrate.families.wrapping.fully_sharded import Sharding
from fsdp_migrate.fsdp1.references import enclosing_function
from fsdp_migrate.hazards.norms import LOCAL
from fsdp_migrate.hazards.parameters import model_of
from fsdp_migrate.planning.context import Study
from fsdp_migrate.syntax.expressions import last_name, names_in
from fsdp_migrate.syntax.trees import walk

REDUCE = "torch.distributed.all_reduce"
MESH = "torch.distributed.device_mesh.init_device_mesh"


def find_doubled(study: Study, module: Module) -> Iterator[ast.Call]:
    """Calls of ``all_reduce`` over all ranks, of sums of squares of local gradients, where the
    model's mesh replicates as well as it shards."""
    for call in module.table.calls_by_name.named("all_reduce"):
        match call:
            case ast.Call(args=[ast.Name(id=total), *others], keywords=keywords):
                if any(k.arg != "op" for k in keywords) or len(others) > 1:
                    continue
            case _:
                continue
        operations = [*others, *(k.value for k in keywords)]
        if any(last_name(each) != "SUM" for each in operations):
            continue
        function = enclosing_function(module, call)
        if _is_divided(total, function) or study.external(call.func, module) != {REDUCE}:
            continue
        models = [
            model
            for model, names in _squares(function, module)
            if total in names or _comes_of(total, names, function)
        ]
        if any(_replicates(model, study, module) for model in models):
            yield call


def _squares(function: ast.AST, module: Module) -> Iterator[tuple[ast.expr, set[str]]]:
    """The models whose local gradients are added up in a function, and the names of the sums."""
    for read in walk(function):
        if not isinstance(read, ast.Attribute) or read.attr not in LOCAL:
            continue
        gradient = read.value
        if isinstance(gradient, ast.Attribute) and gradient.attr == "grad":
            model = model_of(gradient.value, module)
            statement = module.table.statement(read)
            if model is not None and isinstance(statement, (ast.Assign, ast.AugAssign)):
                yield model, _targets(statement)


def _targets(statement: ast.Assign | ast.AugAssign) -> set[str]:
    targets = statement.targets if isinstance(statement, ast.Assign) else [statement.target]
    return {target.id for target in targets if isinstance(target, ast.Name)}


def _comes_of(total: str, names: set[str], function: ast.AST) -> bool:
    """Whether a variable is made of others: ``total = torch.tensor(squares)``."""
    return any(
        isinstance(each, ast.Assign) and total in _targets(each) and names & names_in(each.value)
        for each in walk(function)
    )


def _is_divided(total: str, function: ast.AST) -> bool:
    """Whether a sum is divided, as by the number of replicas."""
    divided = [
        each.left if isinstance(each, ast.BinOp) else each.target
        for each in walk(function)
        if isinstance(each, (ast.BinOp, ast.AugAssign)) and isinstance(each.op, ast.Div)
    ]
    named = any(total in names_in(each) for each in divided)
    return named or any(
        isinstance(each, ast.Attribute) and each.attr in {"div", "div_"} for each in walk(function)
    )


def _replicates(model: ast.expr, study: Study, module: Module) -> bool:
    """Whether each call that shards a model gives it a mesh of two dimensions."""
    values = study.values(model, module)
    known = fully_sharded.sharded(study)
    shardings = [s for value in values for s in known.get(value, ())]
    return bool(shardings) and all(_is_hybrid(each, study) for each in shardings)


def _is_hybrid(sharding: Sharding, study: Study) -> bool:
    mesh = next((k.value for k in sharding.call.keywords if k.arg == "mesh"), None)
    values = [] if mesh is None else list(study.values(mesh, sharding.module))
    return bool(values) and all(_has_replicas(value) for value in values)


def _has_replicas(value: object) -> bool:
    """Whether a mesh is of two dimensions, and the first is not said to be 1."""
    if not isinstance(value, Made) or value.made_by != MESH or not isinstance(value.node, ast.Call):
        return False
    shape = next((k.value for k in value.node.keywords if k.arg == "mesh_shape"), None)
    given = value.node.args[1] if len(value.node.args) > 1 else shape
    match given:
        case ast.Tuple(elts=[first, _]):
            return not (isinstance(first, ast.Constant) and first.value == 1)
    return False
