"""Strategies that a variable is assigned where each is chosen, some of which need a mesh.

What is assigned becomes the keyword arguments that a strategy means for ``fully_shard``, with the
mesh that it needs: ``strategy = ShardingStrategy.NO_SHARD`` in one branch of several.
"""

from __future__ import annotations

import ast

from fsdp_migrate.analysis.values import Class, Function
from fsdp_migrate.families.wrapping import device_code, devices
from fsdp_migrate.planning.context import Study
from fsdp_migrate.planning.edits import Code, code, join
from fsdp_migrate.planning.model import Constructor
from fsdp_migrate.planning.shard_plan import ShardPlan
from fsdp_migrate.syntax.kinds import of_kind, present

NAME = "strategy_kwargs"
INIT = "init_process_group"


def can_be_assigned(names: list[ast.Name], constructor: Constructor, study: Study) -> bool:
    """Whether a variable's statements can make meshes.

    Args:
        names: the variable's names; the first is the constructor's argument.
    """
    device = devices.read(constructor, study)
    table = constructor.module.table
    assigned = [table.parents[name] for name in names[1:]]
    first = _first(names, constructor)
    return (
        bool(assigned)
        and all(isinstance(statement, ast.Assign) for statement in assigned)
        and constructor.dictionary is None
        and not constructor.has("device_mesh")
        and not constructor.has("process_group")
        and (bool(device.certain) or device.is_accelerator)
        and first is not None
        and not may_start_between(first, constructor, study)
        and not (device.chooses and _may_be_chosen_between(first, constructor, study))
    )


def _first(names: list[ast.Name], constructor: Constructor) -> ast.stmt | None:
    """The first statement, of those in the constructor's block or one around that, in which the
    variable is assigned; None where they stand in several blocks."""
    table = constructor.module.table
    around = {constructor.statement, *table.ancestors(constructor.statement)}
    found = []
    for name in names[1:]:
        path = [name, *table.ancestors(name)]
        at = next(i for i, node in enumerate(path) if table.parents[node] in around)
        found.append(path[at])
    blocks = {table.parents[statement] for statement in found}
    first = min(found, key=lambda node: getattr(node, "lineno", 0))
    return first if isinstance(first, ast.stmt) and len(blocks) == 1 else None


def _may_be_chosen_between(made: ast.stmt, constructor: Constructor, study: Study) -> bool:
    """Whether the device may not be the current one yet where a mesh is made on it."""
    module = constructor.module
    return not devices.sets_device(constructor, study) or any(
        made.lineno < call.lineno <= constructor.call.lineno
        and (devices.is_setter(call, module, study) or _is_own(call, constructor, study))
        for call in module.table.calls
    )


def _is_own(call: ast.Call, constructor: Constructor, study: Study) -> bool:
    """Whether a call runs code of the project."""
    values = study.values(call.func, constructor.module)
    return any(isinstance(v, (Function, Class)) for v in values)


def may_start_between(made: ast.AST, constructor: Constructor, study: Study) -> bool:
    """Whether the processes may not know each other yet where something stands in front of a
    constructor, in its function: a mesh asks for them."""
    module = constructor.module
    within = module.table.scope_of(constructor.call).home()
    start = getattr(made, "lineno", 0)
    for call in module.table.calls:
        between = start < call.lineno < constructor.call.lineno
        if not between or module.table.within[call].home() is not within:
            continue
        if f"torch.distributed.{INIT}" in study.external(call.func, module):
            return True
        if study.project.mentions(INIT) and _is_own(call, constructor, study):
            return True
    return False


def write(
    names: list[ast.Name], meaning: dict[str, tuple[bool, str]], plan: ShardPlan, study: Study
) -> dict[str, Code]:
    """What each strategy becomes where it is assigned.

    Args:
        meaning: of each strategy, whether parameters stay gathered after a forward, and the shape
            of its mesh, in words of ``device_code``; no shape for the default.
    """
    constructor = plan.constructor
    before = len(plan.setup)
    kind = device_code.type_code(plan, study)
    world = code("{d}.get_world_size()", d=plan.dist())
    found: dict[str, Code] = {}
    for name, (stays, shape) in meaning.items():
        items = [code('"reshard_after_forward": False')] if stays else []
        written = _shape(shape, world, plan, study)
        if written is None and not devices.read(constructor, study).is_accelerator:
            written = code("({w},)", w=world)
        if written is not None:
            items.insert(0, code('"mesh": {m}', m=_mesh(written, kind, plan, named=bool(shape))))
        found[name] = code("{{{i}}}", i=join(", ", items))
    made = plan.setup[before:]
    del plan.setup[before:]
    plan.settled -= len(made)
    if made:
        first = of_kind(present(_first(names, constructor)), ast.stmt)
        plan.proposal.insert_before(constructor.module, first, *made)
    return found


def _shape(shape: str, world: Code, plan: ShardPlan, study: Study) -> Code | None:
    if shape == "hybrid":
        return code("({w} // {c}, {c})", w=world, c=device_code.count_code(plan, study))
    return code("({w}, 1)", w=world) if shape else None


def _mesh(shape: Code, kind: Code, plan: ShardPlan, *, named: bool) -> Code:
    init = plan.name("torch.distributed.device_mesh", "init_device_mesh")
    names = ', mesh_dim_names=("replicate", "shard")' if named else ""
    return code(f"{{i}}({{k}}, {{s}}{names})", i=init, k=kind, s=shape)
