"""Read a sharded optimizer state into the optimizer's own with DCP."""

import ast

from fsdp_migrate.analysis.flow import access_path
from fsdp_migrate.families.checkpoints import optimizer_states
from fsdp_migrate.fsdp1.construct import Construct
from fsdp_migrate.fsdp1.references import enclosing_function
from fsdp_migrate.fsdp1.site import Site
from fsdp_migrate.planning.context import Study
from fsdp_migrate.planning.edits import code
from fsdp_migrate.planning.model import Decision
from fsdp_migrate.planning.rule import Rule
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
    if problem or bound is None or load is None:
        return study.left(
            site,
            RULE.code,
            problem,
            "dcp.load into get_optimizer_state_dict(model, optimizer), then set it",
            models=study.every_constructor,
        )
    call = site.call
    proposal = study.proposal()
    name = proposal.support(site.module, "read_sharded_optimizer_state", call)
    new = code(
        "{f}({m}, {o}, {k}, {r})",
        f=name,
        m=ast.unparse(present(load.model)),
        o=ast.unparse(present(load.optimizer)),
        k=bound["optimizer_key"],
        r=bound["storage_reader"],
    )
    proposal.replace(site.module, call, new)
    models = study.models_of_static(present(load.model), site.module).constructors
    return study.rewritten(site, RULE.code, "read_sharded_optimizer_state", proposal, models=models)


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
