"""Gather whole parameters with `full_params` instead of `summon_full_params`."""

import ast
from collections.abc import Iterable

from packaging.version import Version

from fsdp_migrate.analysis.flow import access_path
from fsdp_migrate.analysis.module import Module
from fsdp_migrate.families.parameters import unseen_gradients, whole_reads
from fsdp_migrate.families.parameters.elements import parameter_names
from fsdp_migrate.families.training_loop.gathered_roots import may_stay_gathered, reshard_line
from fsdp_migrate.families.training_loop.training_before import only_model_was_trained
from fsdp_migrate.families.wrapping import gathered
from fsdp_migrate.families.wrapping.computing_methods import Methods
from fsdp_migrate.families.wrapping.entry_methods import entries
from fsdp_migrate.fsdp1.references import enclosing_function
from fsdp_migrate.fsdp1.site import Site
from fsdp_migrate.fsdp1.unwrapping import INNER
from fsdp_migrate.planning.context import Study
from fsdp_migrate.planning.edits import code, join
from fsdp_migrate.planning.model import Constructor, Decision
from fsdp_migrate.planning.rule import Rule
from fsdp_migrate.syntax.expressions import bind_arguments, names_in
from fsdp_migrate.syntax.trees import walk

RULE = Rule(
    code="FSDP306",
    name="summon_full_params",
    handles=(
        "FullyShardedDataParallel.summon_full_params",
        "FullyShardedDataParallel.apply",
    ),
)


# From then on distribute_tensor lets each rank take its part of its own tensor.
DISTRIBUTES_OWN = Version("2.7")
ARGUMENTS = ("module", "recurse", "writeback", "rank0_only", "offload_to_cpu", "with_grads")
CALLS = frozenset({"generate", "forward", "__call__"})


def decide(site: Site, study: Study) -> Decision:
    if site.construct.last == "apply":
        return _apply(site, study)
    call = site.node
    bound = bind_arguments(call, ARGUMENTS) if isinstance(call, ast.Call) else None
    model = bound.get("module") if bound else None
    models = study.models_of_static(model, site.module).constructors
    if bound is None or model is None:
        return _left(site, "the arguments of summon_full_params cannot be read", models, study)
    call = site.call
    runs = _runs_model(site, study)
    if runs is None:
        return _left(site, "no with statement here enters the context", models, study)
    flags = {
        name: value
        for name, value in bound.items()
        if name != "module" and not (name == "recurse" and _is(True, value, site, study))
    }
    if _is_trained(site, study, runs=runs):
        return study.left(site, RULE.code, TRAINED, TRAIN_OUTSIDE, models=models, quiet=True)
    if runs and not flags.keys() <= {"recurse", "writeback"}:
        return _left(site, "the block runs the model, on parameters elsewhere", models, study)
    if runs:
        flags.pop("writeback", None)
    plain = _without_context(site, model, flags, study)
    if plain is not None:
        return plain
    proposal = study.proposal()
    function = "unsharded" if runs else "full_params"
    arguments = [code("{m}", m=model), *(code("{n}={v}", n=n, v=v) for n, v in flags.items())]
    name = proposal.support(site.module, function, call)
    proposal.replace(site.module, call, code("{f}({a})", f=name, a=join(", ", arguments)))
    lowers = runs and any(c.may_have("mixed_precision") for c in models)
    told = [LOWERED] if lowers else []
    if unseen_gradients.are_met(_entered(site, study), model, flags.get("with_grads"), site, study):
        told.append(unseen_gradients.TOLD)
    review = "; ".join(told)
    return study.rewritten(site, RULE.code, function, proposal, models=models, review=review)


def _without_context(
    site: Site, model: ast.expr, flags: dict[str, ast.expr], study: Study
) -> Decision | None:
    """Gather what a loop reads where it reads it, and change shards in place, if that is all."""
    item = site.module.table.parents[site.node]
    block = site.module.table.parents.get(item)
    found = study.models(model, site.module)
    models = found.constructors
    if not isinstance(item, ast.withitem) or not isinstance(block, ast.With) or item.optional_vars:
        return None
    if access_path(model) is None or not study.traced(model, site.module) or not found.certain:
        return None
    if study.may_ignore(models) or any(c.may_have("cpu_offload") for c in models):
        return None
    kept = {n: v for n, v in flags.items() if n != "with_grads"}
    if gathered.only_loads(block, model) and all(
        n == "writeback" and _is(True, v, site, study) for n, v in kept.items()
    ):
        proposal = study.proposal()
        proposal.unwrap(site.module, block, block.items.index(item))
        message = "context removed: the load is of sharded parameters"
        return study.rewritten(site, RULE.code, message, proposal, models=models)
    if "recurse" in flags or _is_read_elsewhere(block, model, site, study):
        return None  # parameters of other units stay this rank's part
    written = flags.get("writeback")
    gradients = "with_grads" in flags and _is(True, flags["with_grads"], site, study)
    read = {"writeback", "with_grads"} if gradients else {"writeback"}
    if not all(_is(False, v, site, study) for n, v in flags.items() if n not in read):
        return None
    proposal = study.proposal()
    if written is not None and _is(False, written, site, study):
        loop = whole_reads.read_block(block.body, model, site.module, gradients=gradients)
        if loop is None:
            return None
        for use in loop.uses:
            proposal.replace(site.module, use, code("{p}.full_tensor()", p=use))
        if loop.above is not None:
            line = code("{p} = {p}.full_tensor()", p=loop.variable)
            proposal.insert_before(site.module, loop.above, line)
        message = "full_tensor() in the loop"
    elif not gradients and (written is None or _is(True, written, site, study)):
        changes = whole_reads.read_changes(block.body, model, site.module)
        if changes is None or (changes.copies and study.target < DISTRIBUTES_OWN):
            return None
        for use in changes.uses:
            proposal.replace(site.module, use, code("{p}.full_tensor()", p=use))
        for parameter, copy in changes.copies:
            distribute = proposal.name(
                site.module, "torch.distributed.tensor", "distribute_tensor", site.node
            )
            part = code(
                "{d}({x}, {p}.device_mesh, {p}.placements, src_data_rank=None)",
                d=distribute,
                x=copy.args[0],
                p=ast.unparse(parameter),
            )
            proposal.replace(site.module, copy.args[0], part)
        message = "each rank changes its own part"
    else:
        return None
    sharded = only_model_was_trained(block, model, study, site.module)
    if not sharded and may_stay_gathered(models, study):
        line = reshard_line(model, site.module, site.node, study, proposal)
        proposal.insert_before(site.module, block, line)
    proposal.unwrap(site.module, block, block.items.index(item))
    return study.rewritten(site, RULE.code, message, proposal, models=models)


def _is_read_elsewhere(block: ast.With, model: ast.expr, site: Site, study: Study) -> bool:
    """Whether a block has parameters by more than what its one loop goes over: what it reads of
    ``model.head.weight`` is whole there, and this rank's part without the context."""
    found: set[ast.AST] = set()
    spelled, constructors = ast.unparse(model), study.models(model, site.module).constructors
    for node in (n for part in block.body for n in ast.walk(part)):
        if not isinstance(node, (ast.Name, ast.Attribute)) or not isinstance(node.ctx, ast.Load):
            continue
        if isinstance(node, ast.Attribute) and node.attr in study.cache(parameter_names):
            return True
        same = ast.unparse(node) == spelled
        if same or study.models(node, site.module).constructors & constructors:
            found.add(node)
    return sum(site.module.table.parents[node] not in found for node in found) > 1


TRAINED = (
    "the model is trained on whole parameters here, whose gradients FSDP1 took out of the block by "
    "itself, or lost; FSDP2 knows gradients of its own parameters alone"
)
TRAIN_OUTSIDE = "call the model outside of the block where it is trained"
LOWERED = "under mixed precision the model runs on parameters in param_dtype here, FSDP1 had fp32"


def _left(site: Site, problem: str, models: Iterable[Constructor], study: Study) -> Decision:
    help = "unshard() and reshard() the FSDP modules around it, or gather what it reads"
    return study.left(site, RULE.code, problem, help, models=models, quiet=True)


def _is(value: bool, node: ast.expr, site: Site, study: Study) -> bool:
    flag = study.literal(node, site.module)
    return flag is not None and flag.value is value


def _runs_model(site: Site, study: Study) -> bool | None:
    """Whether the block calls the model; None when there is no block to be seen."""
    statements = _entered(site, study)
    if not statements:
        return None
    for statement in statements:
        for body in statement.body:
            for node in ast.walk(body):
                if not isinstance(node, ast.Call):
                    continue
                called = node.func
                if isinstance(called, ast.Attribute) and _method_runs(called, site, study):
                    return True
                if study.models(called, site.module):
                    return True
    return False


def _is_trained(site: Site, study: Study, *, runs: bool) -> bool:
    """Whether a backward goes through a forward of the block: in there, or behind it."""
    for statement in _entered(site, study):
        module = site.module if statement in site.module.table.parents else None
        if module is None:
            continue  # of another file, which makes the context here
        calls = [n for s in statement.body for n in walk(s) if isinstance(n, ast.Call)]
        if not runs and not any(_calls_inner(call, study, module) for call in calls):
            continue
        stored = {n for s in statement.body for n in _stored(s)}
        function = enclosing_function(module, statement)
        for call in (n for n in walk(function) if isinstance(n, ast.Call)):
            match call.func:
                case ast.Attribute(value=loss, attr="backward"):
                    if call in calls or stored & names_in(loss):
                        return True
    return False


def _calls_inner(call: ast.Call, study: Study, module: Module) -> bool:
    """``model.module(x)``"""
    inner = call.func
    return (
        isinstance(inner, ast.Attribute)
        and inner.attr in INNER
        and study.traced(inner.value, module)
    )


def _stored(statement: ast.stmt) -> set[str]:
    return {
        node.id
        for node in walk(statement)
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store)
    }


def _method_runs(called: ast.Attribute, site: Site, study: Study) -> bool:
    """Whether a method calls the model, its parts, or gathers parameters elsewhere."""
    if called.attr in CALLS:
        return True
    registered = {entry.function for entry in entries(study)}
    return any(
        use.runs or use.calls_self or use.function in registered
        for use in Methods(study).uses(called.value, called.attr, site.module)
    )


def _entered(site: Site, study: Study) -> list[ast.With | ast.AsyncWith]:
    """The ``with`` statements that enter the context: directly, under a name or a condition, or
    through a function that makes it."""
    table = site.module.table
    child: ast.AST = site.node
    made = False  # by a lambda, which the statement calls
    for parent in table.ancestors(child):
        if isinstance(parent, ast.withitem):
            return _statement(parent, site.module)
        if isinstance(parent, ast.Lambda) and not made:
            made = True
        elif isinstance(parent, ast.Assign) and isinstance(parent.targets[0], ast.Name):
            return _under_name(parent.targets[0], site.module, made=made)
        elif isinstance(parent, ast.Return) and not made:
            return _through_function(parent, site.module, study)
        elif not isinstance(parent, ast.IfExp):
            return []
    return []


def _statement(item: ast.AST, module: Module) -> list[ast.With | ast.AsyncWith]:
    statement = module.table.parents[item]
    return [statement] if isinstance(statement, (ast.With, ast.AsyncWith)) else []


def _under_name(name: ast.Name, module: Module, *, made: bool) -> list[ast.With | ast.AsyncWith]:
    """Where ``with name:`` stands, or ``with name():`` when what has the name makes the context."""
    table = module.table
    found = []
    for node in table.names:
        if node.id != name.id or table.within[node] is not table.within[name] or node is name:
            continue
        used: ast.AST = node
        if made and isinstance(table.parents[node], ast.Call):
            used = table.parents[node]
        item = table.parents[used]
        if isinstance(item, ast.withitem) and item.context_expr is used:
            found += _statement(item, module)
    return found


def _through_function(
    statement: ast.Return, module: Module, study: Study
) -> list[ast.With | ast.AsyncWith]:
    """Where the calls of the function are entered; nothing when one of them is not."""
    scope = module.table.scope_of(statement).function()
    if scope is None or not isinstance(scope.node, (ast.FunctionDef, ast.AsyncFunctionDef)):
        return []
    found = []
    for caller in study.tracer.callers(scope.node, module):
        item = caller.module.table.parents[caller.call]
        if not isinstance(item, ast.withitem):
            return []
        found += _statement(item, caller.module)
    return found


def _apply(site: Site, study: Study) -> Decision:
    models = study.models(site.subject, site.module).constructors
    statement = site.statement
    alone = isinstance(statement, ast.Expr) and statement.value is site.node
    if not alone or not isinstance(site.node, ast.Call):
        return study.left(
            site,
            RULE.code,
            "apply() ran on whole parameters in FSDP1 and runs on shards in FSDP2",
            "initialise before sharding, or gather the parameters around it",
            models=models,
            quiet=True,
        )
    proposal = study.proposal()
    name = proposal.support(site.module, "full_params", site.node)
    new = code("with {f}({m}):\n    {c}", f=name, m=ast.unparse(site.subject), c=site.node)
    proposal.replace_statement(site.module, statement, new)
    return study.rewritten(site, RULE.code, "apply under full_params", proposal, models=models)
