"""Materialise a model that only rank 0 has, from rank 0's weights."""

import ast

from fsdp_migrate.analysis.values import Constant, Function, Value
from fsdp_migrate.families.wrapping import device_code, first_ranks, meshes
from fsdp_migrate.fsdp1.site import Site
from fsdp_migrate.planning.context import Study
from fsdp_migrate.planning.edits import Code, code
from fsdp_migrate.planning.model import Decision
from fsdp_migrate.planning.rule import Rule
from fsdp_migrate.planning.shard_plan import DCP, ShardPlan
from fsdp_migrate.syntax.expressions import last_name, names_in
from fsdp_migrate.syntax.kinds import of_kind, present

RULE = Rule(
    code="FSDP111",
    name="param_init_fn",
    handles=("FullyShardedDataParallel(param_init_fn=)",),
)

UNUSED = "nothing here sets {}: one that is given from elsewhere is not called any more"


def decide(site: Site, study: Study) -> Decision:
    plan, value, _ = study.argument(site)
    values = study.values(value, site.module)
    real = [v for v in values if not (isinstance(v, Constant) and v.value is None)]
    if not real:
        unused = "" if not isinstance(value, ast.Attribute) else UNUSED.format(ast.unparse(value))
        return study.dropped(site, RULE.code, "dropped, it was None", review=unused)
    unknown = study.unknown(real)
    if unknown:
        reason = f"what param_init_fn does is not known: {unknown}"
        return study.left(site, RULE.code, reason, "initialise the model before it is sharded")
    if not all(_only_allocates(v) for v in real):
        return study.left(
            site,
            RULE.code,
            "param_init_fn does more than to_empty, and in FSDP2 it would see shards",
            "shard on the meta device, then to_empty() and initialise",
        )
    sync = plan.constructor.arguments.get("sync_module_states")
    flag = study.literal(sync, site.module) if sync is not None else None
    if sync is None or (flag is not None and not flag.value):
        if len(real) < len(values):
            return study.left(
                site,
                RULE.code,
                "param_init_fn may be None, and then weights are drawn",
                "shard on the meta device, then to_empty() and initialise",
            )
        plan.after += _allocate(plan, study)
        return study.rewritten(site, RULE.code, "to_empty after sharding")
    plan.from_rank0 = True
    condition = None if flag is not None else plan.sync_condition(present(sync))
    if not meshes.has_one_first_rank(plan.constructor, study):
        if plan.constructor.has("cpu_offload"):
            reason = "the weights of the first rank of a group, with parameters on the CPU"
            return study.left(site, RULE.code, reason, "load the weights after sharding")
        first_ranks.give_weights(plan, condition)
        return study.rewritten(site, RULE.code, "given by the first rank of the mesh")
    state = plan.fresh("rank0_state")
    if plan.offloads is not None:
        take, load = plan.support("take_rank0_state"), plan.support("load_rank0_state")
        first = code("{s} = {f}({m})", s=state, f=take, m=plan.model)
        give = [
            code(
                "{f}({m}, {s}, {d}, cpu_offload={o})",
                f=load,
                m=plan.model,
                s=state,
                d=device_code.type_code(plan, study),
                o=plan.offloads,
            )
        ]
        message = "take_rank0_state, load_rank0_state"
    else:
        first, give = _native(plan, state, study)
        message = "set_model_state_dict(broadcast_from_rank0=True)"
    comment = "# Only rank 0 has the weights: they are taken before sharding, given after it."
    if condition is None:
        plan.before.append(code(comment + "\n{c}", c=first))
        plan.after += give
    else:
        plan.before.append(code(comment + "\nif {c}:\n    {x}", c=condition, x=first))
        plan.after.append(_under(condition, give))
    return study.rewritten(site, RULE.code, message)


def _allocate(plan: ShardPlan, study: Study) -> list[Code]:
    """The statements that give what is on the meta device memory, as uninitialised as FSDP1's."""
    module, tensor, buffer = map(plan.fresh, ("module", "tensor", "buffer"))
    device = device_code.type_code(plan, study)
    place = device
    if plan.offloads is not None:
        place = code('"cpu" if {o} else {d}', o=plan.offloads, d=device)
        if plan.offloads.preview() == "True":
            place = code('"cpu"')
    allocate = code(
        "for {v} in {m}.modules():\n"
        "    {t}s = (*{v}.parameters(recurse=False), *{v}.buffers(recurse=False))\n"
        "    if any({t}.is_meta for {t} in {t}s):\n"
        "        {v}.to_empty(device={p}, recurse=False)",
        v=module,
        m=plan.model,
        t=tensor,
        p=place,
    )
    if plan.offloads is None:
        return [allocate]
    template = "for {b} in {m}.buffers():\n    {b}.data = {b}.to({d})"
    return [allocate, code(template, b=buffer, m=plan.model, d=device)]


def _native(plan: ShardPlan, state: str, study: Study) -> tuple[Code, list[Code]]:
    """What takes rank 0's state, and the statements that give it to every rank."""
    dist = plan.dist()
    first = code(
        "{s} = {g}({m}) if {d}.get_rank() == 0 else {{}}",
        s=state,
        g=plan.name(DCP, "get_model_state_dict"),
        m=plan.model,
        d=dist,
    )
    allocate = code(
        "if {d}.get_rank() != 0:\n    {m}.to_empty(device={t})",
        d=dist,
        m=plan.model,
        t=device_code.type_code(plan, study),
    )
    load = code(
        "{f}({m}, {s}, options={o}(full_state_dict=True, broadcast_from_rank0=True))",
        f=plan.name(DCP, "set_model_state_dict"),
        m=plan.model,
        s=state,
        o=plan.name(DCP, "StateDictOptions"),
    )
    buffers = code(
        "for {b} in {m}.buffers():\n    {d}.broadcast({b}, src=0)",
        b=plan.fresh("buffer"),
        m=plan.model,
        d=dist,
    )
    return first, [allocate, load, buffers]


def _under(condition: Code | str, statements: list[Code]) -> Code:
    """An ``if`` statement around others."""
    body = [code(each.template.replace("\n", "\n    "), **each.parts) for each in statements]
    names = {f"s{number}": each for number, each in enumerate(body)}
    lines = "".join(f"\n    {{{name}}}" for name in names)
    return code("if {c}:" + lines, c=condition, **names)


def _only_allocates(value: Value) -> bool:
    """``lambda module: module.to_empty(device=..., recurse=False)``, or a function like it.

    It may do so on some ranks only, and empty caches.
    """
    if not isinstance(value, Function):
        return False
    node = value.node
    names = [a.arg for a in (*node.args.posonlyargs, *node.args.args)]
    if isinstance(node, ast.Lambda):
        return bool(names) and _is_allocation(node.body, names[0])
    allocates = any(_is_to_empty(n, names[0]) for n in ast.walk(node)) if names else False
    return allocates and all(_is_of_allocation(s, names[0]) for s in node.body)


def _is_of_allocation(statement: ast.stmt, module: str) -> bool:
    """Whether a statement does nothing but allocate a module's memory, or free what is cached."""
    match statement:
        case ast.If(test=test):
            inner = [*statement.body, *statement.orelse]
            asks = module in names_in(test)
            return not asks and all(_is_of_allocation(s, module) for s in inner)
        case ast.Assign(targets=[ast.Name(id=name)], value=value):
            return name == module and _is_to_empty(value, module)
        case ast.Return(value=None) | ast.Pass() | ast.Expr(value=ast.Constant()):
            return True
        case ast.Return(value=value) | ast.Expr(value=value) if value is not None:
            return _is_allocation(value, module) or _frees(value)
    return False


def _is_allocation(node: ast.expr, module: str) -> bool:
    """``module.to_empty(...)``, the module itself, or one of them on some ranks."""
    match node:
        case ast.IfExp(test=test, body=body, orelse=orelse) if module not in names_in(test):
            return _is_allocation(body, module) or _is_allocation(orelse, module)
        case ast.Name(id=name):
            return name == module
    return _is_to_empty(node, module)


def _is_to_empty(node: ast.AST, module: str) -> bool:
    match node:
        case ast.Call(func=ast.Attribute(value=ast.Name(id=name), attr="to_empty")):
            return name == module
    return False


def _frees(node: ast.expr) -> bool:
    """``torch.cuda.empty_cache()``, ``gc.collect()``."""
    is_call = isinstance(node, ast.Call) and not (node.args or node.keywords)
    return is_call and last_name(of_kind(node, ast.Call).func) in {"empty_cache", "collect"}
