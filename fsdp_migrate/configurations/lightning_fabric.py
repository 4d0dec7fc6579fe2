"""The one model that a Fabric sets up, and the function that shards it.

The simplest programs alone: one Fabric, one call that sets up a model, and one optimizer of torch's
that goes element by element, made where the model is set up.
"""

from __future__ import annotations

import ast

from fsdp_migrate.analysis.module import Module
from fsdp_migrate.configurations import plugin_calls
from fsdp_migrate.configurations.lightning_calls import StrategyCall, runners
from fsdp_migrate.configurations.lightning_hook import (
    ELEMENTWISE,
    Hook,
    NotSimple,
    Place,
)
from fsdp_migrate.planning.context import Study
from fsdp_migrate.planning.edits import Define, code, join
from fsdp_migrate.syntax.trees import block_of

NAME = "parallelize"
SET_UP = ("setup", "setup_module")
# What a program may do to the model itself, where sharded parameters are others than FSDP1's.
CALLS = (
    *("state_dict", "load_state_dict", "save_pretrained", "clip_grad_norm_", "compile"),
    *("init_tensor", "sharded_model", "load_raw"),
)
OF_TORCH = ("save", "load")
PARAMETERS = ("named_parameters", "grad", "param_groups", "named_modules")


def write(found: StrategyCall, hook: Hook, study: Study) -> None:
    """Write the function, and the optimizer below the call that sets up the model.

    Raises:
        NotSimple: something is not known, or it is not as simple as that.
    """
    module = found.module
    if found.runner is None:
        raise NotSimple("which Fabric it is for is not known")
    others = {each for call, each, _ in runners(study) if call is not found.runner}
    if any(each is module or study.project.asked_for(each) for each in others):
        raise NotSimple("there is another Fabric or Trainer")
    run = [each for each in study.project.modules if each not in others]  # those are programs
    for name in ("plugins", "callbacks"):
        if found.of_runner(name) is not None:
            raise NotSimple(f"the Fabric has {name}")
    if study.constructors:
        raise NotSimple("the program also wraps models itself")
    if plugin_calls.of_version_1(study):
        raise NotSimple(plugin_calls.of_version_1(study))
    where, call = _set_up(found, run, study)
    _check_uses(run, study)
    _order(where, call, hook, run)
    above = _above(module, found.call)
    if NAME in module.table.module.bindings:
        raise NotSimple(f"{module.path.name} has something named {NAME}")
    lines = hook.lines("model", "device_mesh", Place(module, found.call))
    text = [code(f"def {NAME}(model, device_mesh):"), *lines, code("    return model")]
    if isinstance(above, Define.ABOVE):
        hook.to.define(module, above, join("\n", text))
    else:
        hook.to.insert_before(module, above, join("\n", text))


def _set_up(found: StrategyCall, run: list[Module], study: Study) -> tuple[Module, ast.Call]:
    """The one call that sets up a model."""
    calls = [
        (module, call)
        for module in run
        for call in module.table.calls_by_name.of(SET_UP)
        if isinstance(call.func, ast.Attribute)
    ]
    if len(calls) != 1:
        raise NotSimple(f"{len(calls)} calls are named setup or setup_module")
    where, call = calls[0]
    owner = call.func.value if isinstance(call.func, ast.Attribute) else call.func
    values = study.values(owner, where)
    if not values or not all(v.node is found.runner for v in values):
        raise NotSimple(f"what {ast.unparse(call.func)} belongs to is not known")
    return where, call


def _above(module: Module, node: ast.expr) -> ast.stmt:
    """The outermost function or class in which something stands, or its statement."""
    found = module.table.statement(node)
    inside: ast.AST = found
    while not isinstance(inside, ast.Module):
        if isinstance(inside, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            found = inside
        inside = module.table.parents[inside]
    return found


def _check_uses(run: list[Module], study: Study) -> None:
    for module in run:
        table = module.table
        for call in table.calls_by_name.of(CALLS):
            raise NotSimple(f"{module.path.name} calls {ast.unparse(call.func)}")
        for call in table.calls_by_name.named("init_module"):
            given = [k.value for k in call.keywords]
            empty = [g for g in given if not isinstance(g, ast.Constant) or g.value]
            if empty or call.args:  # parameters without values
                raise NotSimple(f"{module.path.name} calls {ast.unparse(call)}")
        for call in table.calls_by_name.of(OF_TORCH):
            if {f"torch.{name}" for name in OF_TORCH} & study.external(call.func, module):
                raise NotSimple(f"{module.path.name} calls {ast.unparse(call.func)}")
        for attribute in table.attributes_by_name.of(PARAMETERS):
            raise NotSimple(f"{module.path.name} asks for {ast.unparse(attribute)}")
        if module.mentions("LightningModule"):
            raise NotSimple("the model is a LightningModule")


def _order(where: Module, call: ast.Call, hook: Hook, run: list[Module]) -> None:
    """See to it that the optimizer is made of the parameters that the model has when it is set up:
    ``fully_shard`` gives it others."""
    table = where.table
    statement = table.statement(call)
    block = block_of(table.parents[statement], statement)
    makes = [
        (module, each) for module in run for each in module.table.calls_by_name.named("parameters")
    ]
    if len(makes) != 1 or makes[0][0] is not where:
        raise NotSimple(f"{len(makes)} calls ask for parameters")
    asks = makes[0][1]
    maker = table.parents[asks]
    makes_it = isinstance(maker, ast.Call) and maker.args[:1] == [asks]
    if not isinstance(maker, ast.Call) or not makes_it:
        raise NotSimple("parameters are asked for by other code than an optimizer's")
    names = hook.study.external(maker.func, where)
    if not names or not names <= ELEMENTWISE:
        raise NotSimple("its optimizer is none of torch's that go element by element")
    made = table.statement(maker)
    if made not in block or not isinstance(made, ast.Assign) or made.value is not maker:
        raise NotSimple("the optimizer is not made where the model is set up")
    model = _assigned(statement, call)
    owner = asks.func.value if isinstance(asks.func, ast.Attribute) else None
    if model is None or not isinstance(owner, ast.Name) or owner.id != model[0]:
        raise NotSimple("the optimizer's parameters are not those of the model that is set up")
    if len(call.args) == 1 and not call.keywords and len(model) == 1:
        if block.index(made) < block.index(statement):
            raise NotSimple("the optimizer is made before the model is set up")
        return
    optimizer = made.targets[0]
    plain = (
        len(call.args) == len(model) == 2
        and not call.keywords
        and isinstance(optimizer, ast.Name)
        and all(isinstance(a, ast.Name) for a in call.args)
        and [a.id for a in call.args if isinstance(a, ast.Name)] == model
        and optimizer.id == model[1]
    )
    first, last = block.index(made), block.index(statement)
    between = [node for each in block[first + 1 : last] for node in ast.walk(each)]
    mentioned = {node.id for node in between if isinstance(node, ast.Name)}
    if not plain or first > last or mentioned & set(model):
        raise NotSimple("setup() is not model, optimizer = fabric.setup(model, optimizer)")
    assert isinstance(call.func, ast.Attribute)
    fabric, (one, other) = call.func.value, model
    hook.to.delete(where, made)
    hook.to.replace_statement(
        where,
        statement,
        code("{m} = {f}.setup_module({m})", m=one, f=fabric),
        code("{o} = {c}", o=other, c=maker),
        code("{o} = {f}.setup_optimizers({o})", o=other, f=fabric),
    )


def _assigned(statement: ast.stmt, call: ast.Call) -> list[str] | None:
    """The names that get what setting up gives."""
    if not isinstance(statement, ast.Assign) or statement.value is not call:
        return None
    target = statement.targets[0]
    each = target.elts if isinstance(target, ast.Tuple) else [target]
    names = [name.id for name in each if isinstance(name, ast.Name)]
    return names if len(names) == len(each) and len(statement.targets) == 1 else None
