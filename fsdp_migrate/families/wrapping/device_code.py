"""How emitted code writes the device that a model is sharded on.

Where the default mesh has the device, nothing is written. Else it is a literal, if the code tells
the type (``"cpu"``), or the device that the program gives, if only the program knows. For an index,
or no ``device_id``, it is the machine's accelerator, as FSDP1 took it.
"""

from __future__ import annotations

import ast

from packaging.version import Version

from fsdp_migrate.analysis.flow import access_path
from fsdp_migrate.analysis.module import Module
from fsdp_migrate.analysis.values import Class, Function
from fsdp_migrate.families.wrapping import cuda, devices
from fsdp_migrate.families.wrapping.devices import ACCELERATOR
from fsdp_migrate.planning.context import Study
from fsdp_migrate.planning.edits import Code, code
from fsdp_migrate.planning.shard_plan import ShardPlan

# Before, current_accelerator raises where there is none.
ACCELERATOR_OR_NONE = Version("2.7")
BUILTINS = frozenset({"int", "len", "str"})


def type_code(plan: ShardPlan, study: Study) -> Code:
    """The type of the device: a literal, one of two, or ``device.type``."""
    kind = _literal(plan, study)
    if kind:
        return code('"{k}"', k=kind)
    return _one_of_two(plan, study) or code("{d}.type", d=_device(plan, study))


def _one_of_two(plan: ShardPlan, study: Study) -> Code | None:
    """``"cuda" if torch.cuda.is_available() else "cpu"``, where ``device_id`` is written so."""
    node, module = plan.constructor.arguments.get("device_id"), plan.constructor.module
    match node:
        case ast.Call(args=[ast.IfExp() as chosen], keywords=[]) if _is_device_call(
            node, module, study
        ):
            node = chosen
    if not isinstance(node, ast.IfExp) or _is_to_be_chosen(plan, study):
        return None
    kinds = [devices.read_value(n, module, study).certain for n in (node.body, node.orelse)]
    if not all(kinds) or _does_more(node, module, study):
        return None
    return code('"{a}" if {t} else "{b}"', a=kinds[0], t=node.test, b=kinds[1])


def count_code(plan: ShardPlan, study: Study) -> Code:
    """How many devices of this type each machine has, as FSDP1 counted them."""
    kind = _literal(plan, study)
    if kind:
        return code("{t}.{k}.device_count()", t=_torch(plan), k=kind)
    device = _device(plan, study, again=True)
    count = plan.fresh("devices_per_node")
    plan.setup.append(
        code("{n} = {t}.get_device_module({d}).device_count()", n=count, t=_torch(plan), d=device)
    )
    return code("{n}", n=count)


def make_current(plan: ShardPlan, study: Study) -> str:
    """Emit what makes the given device the current one, before any mesh.

    Returns:
        What was done, in words; nothing if it is the current one already.
    """
    if not _is_to_be_chosen(plan, study):
        return ""
    device = devices.read(plan.constructor, study)
    torch = _torch(plan)
    if not device.is_accelerator or device.is_bare:
        handle = _given(plan, study, again=True)
        statement = code("{t}.get_device_module({d}).set_device({d})", t=torch, d=handle)
        if device.is_bare:
            statement = code("if {d}.index is not None:\n    {s}", d=handle, s=statement)
        plan.settle(statement)
        return "the device is made current before sharding"
    kind = _literal(plan, study)
    module = code("{t}.{k}", t=torch, k=kind or "get_device_module()")
    given = _index(plan, study)
    statement = code("{m}.set_device({v})", m=module, v=given)
    if device.is_optional:
        statement = code("if {v} is not None:\n    {s}", v=given, s=statement)
    plan.settle(statement)
    return f"{module.preview()}.set_device before sharding"


def keep_effects(plan: ShardPlan, study: Study) -> None:
    """Keep an argument that does more than name a device: ``device_id=setup_device()``."""
    node = plan.constructor.arguments["device_id"]
    if plan.device is None and _does_more(node, plan.constructor.module, study):
        plan.settle(code("{v}", v=node))


def _literal(plan: ShardPlan, study: Study) -> str:
    """The only type that the device can have, or an empty text."""
    device = devices.read(plan.constructor, study)
    if device.certain:
        return device.certain
    if device.kinds <= {"cuda", ACCELERATOR} and cuda.names_cuda(plan.constructor, study):
        return "cuda"
    return ""


def _is_to_be_chosen(plan: ShardPlan, study: Study) -> bool:
    """Whether the device may differ from the current one, and nothing makes it current.

    Making a mesh with ``init_device_mesh`` does.
    """
    device = devices.read(plan.constructor, study)
    has_mesh = plan.constructor.has("device_mesh")
    return device.chooses and not has_mesh and not devices.sets_device(plan.constructor, study)


def _device(plan: ShardPlan, study: Study, *, again: bool = False) -> Code:
    """An expression for the ``torch.device`` that a mesh is made for.

    Args:
        again: it will be written more than once, and so is a name or a path.
    """
    if devices.read(plan.constructor, study).is_accelerator:
        return _bound(plan, study, "accelerator", _accelerator(plan, study))
    return _given(plan, study, again=again or _is_to_be_chosen(plan, study))


def _accelerator(plan: ShardPlan, study: Study) -> Code:
    torch = _torch(plan)
    if study.target < ACCELERATOR_OR_NONE:
        return code("{t}.device({t}.get_device_module().current_device())", t=torch)
    return code('{t}.accelerator.current_accelerator() or {t}.device("cpu")', t=torch)


def _given(plan: ShardPlan, study: Study, *, again: bool) -> Code:
    """An expression for ``device_id`` as a ``torch.device``."""
    if plan.device is None:
        plan.device = _converted(plan, study)
    if again and access_path(ast.parse(plan.device.preview(), mode="eval").body) is None:
        plan.device = _bound(plan, study, "device", plan.device)
    return plan.device


def _converted(plan: ShardPlan, study: Study) -> Code:
    device = devices.read(plan.constructor, study)
    node, module = plan.constructor.arguments["device_id"], plan.constructor.module
    given = _index(plan, study)
    result = given if device.is_object else code("{t}.device({v})", t=_torch(plan), v=given)
    if device.is_optional:
        default = _bound(plan, study, "accelerator", _accelerator(plan, study))
        result = code("{a} if {v} is None else {d}", a=default, v=given, d=result)
        return _bound(plan, study, "device", result)
    is_plain = not device.is_object or access_path(node) or _is_device_call(node, module, study)
    if not is_plain or _does_more(node, module, study):
        return _bound(plan, study, "device", result)
    return result


def _index(plan: ShardPlan, study: Study) -> Code:
    """``device_id`` as it stands; under a name if it is asked whether it is None."""
    node = plan.constructor.arguments["device_id"]
    given = code("{v}", v=node)
    optional = devices.read(plan.constructor, study).is_optional
    if optional and access_path(node) is None:
        return _bound(plan, study, "device_id", given)
    return given


def _bound(plan: ShardPlan, study: Study, wanted: str, value: Code) -> Code:
    """A name for a value; an earlier constructor may have given the accelerator one."""
    if wanted in plan.names:
        return code("{n}", n=plan.names[wanted])
    name = study.made_before(plan.constructor, value) if wanted == "accelerator" else ""
    if not name:
        name = plan.fresh(wanted)
        plan.settle(code("{n} = {v}", n=name, v=value))
        study.make(plan.constructor, value, name)
    return code("{n}", n=name)


def _torch(plan: ShardPlan) -> str:
    module, near = plan.constructor.module, plan.constructor.reference
    return plan.proposal.module_name(module, "torch", "torch", near)


def _is_device_call(node: ast.expr, module: Module, study: Study) -> bool:
    return isinstance(node, ast.Call) and "torch.device" in study.external(node.func, module)


def _does_more(node: ast.AST, module: Module, study: Study) -> bool:
    """Whether an expression gives a name a value, or calls something of the project that may do
    more than to answer."""
    return any(isinstance(n, ast.NamedExpr) for n in ast.walk(node)) or any(
        isinstance(value, Class)
        or (isinstance(value, Function) and not _only_answers(value, study))
        for call in module.table.calls_in(node)
        for value in study.values(call.func, module)
    )


def _only_answers(function: Function, study: Study) -> bool:
    """Whether a function does nothing but compute its result from what torch says."""
    if isinstance(function.node, ast.Lambda):
        return not _does_more(function.node.body, function.module, study)
    statements = [n for n in ast.walk(function.node) if isinstance(n, ast.stmt)][1:]
    return all(map(_is_plain, statements)) and all(
        (study.external(call.func, function.module) or getattr(call.func, "id", "") in BUILTINS)
        and not devices.is_setter(call, function.module, study)
        for call in function.module.table.calls_in(function.node)
    )


def _is_plain(statement: ast.stmt) -> bool:
    """Whether a statement has no effect outside of its function."""
    match statement:
        case ast.Assign(targets=targets):
            return all(isinstance(t, ast.Name) for t in targets)
        case ast.Expr(value=value):
            return isinstance(value, ast.Constant)
    return isinstance(statement, (ast.Return, ast.If))
