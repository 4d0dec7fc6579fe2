"""Read a sharded optimizer state into the optimizer's own with DCP."""

import ast

from fsdp_migrate.analysis.flow import access_path
from fsdp_migrate.families.checkpoints import held_optimizers, optimizer_states, training_order
from fsdp_migrate.fsdp1.construct import Construct
from fsdp_migrate.fsdp1.references import enclosing_function
from fsdp_migrate.fsdp1.site import Site
from fsdp_migrate.planning.context import Study
from fsdp_migrate.planning.edits import code
from fsdp_migrate.planning.model import Decision
from fsdp_migrate.planning.rule import Rule
from fsdp_migrate.planning.shard_plan import DCP
from fsdp_migrate.syntax.expressions import bind_arguments
from fsdp_migrate.syntax.kinds import present

RULE = Rule(
    code="FSDP310",
    name="sharded_optimizer_state",
    handles=("load_sharded_optimizer_state_dict",),
    since="2.7",
)


ARGUMENTS = ("model_state_dict", "optimizer_key", "storage_reader", "planner")


def decide(site: Site, study: Study) -> Decision:
    call = site.node
    bound = bind_arguments(call, ARGUMENTS) if isinstance(call, ast.Call) else None
    load = _following(site, study)
    problem = ""
    if bound is None or bound.keys() != set(ARGUMENTS[:3]):
        problem = "the arguments of load_sharded_optimizer_state_dict cannot be read"
    elif load is None:
        problem = "no optim_state_dict_to_load here says for which model and optimizer this is"
    held = held_optimizers.Held("", frozenset())
    if load is not None and not problem:
        held = held_optimizers.held_optimizer(present(load.optimizer), site.module, study)
        problem = held.problem
    if problem or bound is None or load is None:
        return study.left(
            site,
            RULE.code,
            problem,
            "dcp.load into get_optimizer_state_dict(model, optimizer), then set it",
            models=study.every_constructor,
        )
    call, model, optimizer = site.call, present(load.model), present(load.optimizer)
    proposal = study.proposal()
    module = site.module
    if training_order.may_follow_evaluation(call, module, study):
        training_order.reshard_before(site.statement, model, site, study, proposal)
    get = proposal.name(module, DCP, "get_optimizer_state_dict", call)
    new = code(
        "{{{k}: {g}({m}, {o})}}",
        k=bound["optimizer_key"],
        g=get,
        m=ast.unparse(model),
        o=held.of(ast.unparse(optimizer)),
    )
    reader = proposal.member(module, "torch.distributed.checkpoint", "dcp", "load", call)
    target = _target(site)
    name = "" if target is not None else proposal.fresh(module, call, "optimizer_state")
    read = code(
        "{f}({t}, storage_reader={r})", f=reader, t=target or name, r=bound["storage_reader"]
    )
    proposal.replace(module, call, new if target is not None else code(name))
    if target is not None:
        proposal.insert_after(module, site.statement, read)
    else:
        first = code("{t} = {n}", t=name, n=new)
        proposal.insert_before(module, site.statement, first, read)
    models = study.models_of_static(model, module).constructors
    message = "get_optimizer_state_dict, dcp.load"
    return study.rewritten(site, RULE.code, message, proposal, models=models)


def _target(site: Site) -> ast.expr | None:
    """The name that the call's result is given, and nothing else."""
    statement = site.statement
    if not isinstance(statement, ast.Assign) or statement.value is not site.node:
        return None
    target = statement.targets[0]
    return target if len(statement.targets) == 1 and access_path(target) else None


def _following(site: Site, study: Study) -> optimizer_states.Load | None:
    """The only conversion in the same function, when it names its model and optimizer."""
    function = enclosing_function(site.module, site.node)
    name = "optim_state_dict_to_load"
    loads = [
        optimizer_states.read_load(
            Site(Construct.of_model(name), site.module, call, call.func), name, study
        )
        for call in site.module.table.calls
        if isinstance(call.func, ast.Attribute)
        and call.func.attr == name
        and enclosing_function(site.module, call) is function
    ]
    if len(loads) != 1 or loads[0].model is None or loads[0].optimizer is None:
        return None
    named = access_path(loads[0].model) and access_path(loads[0].optimizer)
    return loads[0] if named else None
