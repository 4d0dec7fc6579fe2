"""States that stay what the modules themselves give, whatever is sharded in them.

A module that holds FSDP's parts may hold what others shard as well: tables whose entries are
``ShardedTensor``. A gathered state would make plain tensors of these, and no rank may have room
for one. And the class of such a module may give its state under names of its own, under which
torch's functions find no module.
"""

from __future__ import annotations

import ast

from fsdp_migrate.analysis.module import Module
from fsdp_migrate.analysis.tracing.functions import class_of_method
from fsdp_migrate.analysis.values import Class, Made
from fsdp_migrate.families.checkpoints import saved_states
from fsdp_migrate.families.checkpoints.state_owners import sharded_inside
from fsdp_migrate.fsdp1.references import enclosing_function
from fsdp_migrate.fsdp1.site import Site
from fsdp_migrate.planning.context import Study
from fsdp_migrate.planning.model import Constructor, Decision
from fsdp_migrate.syntax.expressions import given_arguments
from fsdp_migrate.syntax.trees import walk

STATES = frozenset({"state_dict", "load_state_dict"})
MAKING = ("_init_from_local_shards", "_init_from_local_shards_and_global_metadata")
LIBRARY = "torchrec.distributed."  # whose tables are such tensors
OF_NAMES = frozenset({"keys", "__contains__", "__len__"})
SHARDS = "the state may hold ShardedTensor, which torch's functions make plain tensors of"
OWN_NAMES = "the class of this module gives the state under names of its own"
LOST = "gathered, it would lose what others shard"
UNNAMED = "torch's functions would not find its names"
GATHER = "gather the DTensors alone where whole tensors are needed (`full_tensor()`), on all ranks"


def decide(site: Site, code: str, models: frozenset[Constructor], study: Study) -> Decision | None:
    """What a module that is not sharded itself is asked for, or given, if it stays as it is."""
    if not isinstance(site.node, ast.Call):
        return None
    is_state = site.construct.attribute == "state_dict"
    beside = may_hold_shards(site.module, study)
    if is_passed_on(site.node, site.module) and (is_state or beside):
        message = "kept: it hands on what the state around it is asked with"
        return study.kept_as_is(site, code, message, models=models)
    own = _own_method(site.subject, site.module, study) if site.subject is not None else None
    if own is not None and is_state and _asks_models(*own, study):
        message = "kept: its class asks the sharded model"
        return study.kept_as_is(site, code, message, models=models)
    reason = SHARDS if beside else OWN_NAMES if own is not None else ""
    if not reason:
        return None
    if not is_state:
        return _of_load(site, code, models, study)
    if _asks_for_names(site):
        return study.kept_as_is(site, code, "kept, for its names", models=models)
    review = f"{reason}, and FSDP2's parts give DTensor in it, where FSDP1's gave whole tensors"
    if not site.module.is_of_tests and saved_states.may_be_saved(site, study):
        problem = f"{review}: what is saved would be this rank's part of them"
        return study.left(site, code, problem, GATHER, models=models, quiet=True)
    return study.rewritten(
        site,
        code,
        f"kept: {LOST if beside else UNNAMED}",
        models=models,
        review=f"{review}: {GATHER}",
        once=site.module.is_of_tests,
    )


def _of_load(
    site: Site, code: str, models: frozenset[Constructor], study: Study
) -> Decision | None:
    """A load of what such a state gave stays, too."""
    given = next(iter(given_arguments(site.call)), None)
    if given is None or not _is_own_state(given, site.module, study):
        return None
    return study.kept_as_is(site, code, "kept, as the state is that it loads", models=models)


def _is_own_state(node: ast.expr, module: Module, study: Study) -> bool:
    """Whether a value is what ``state_dict()`` gave, here or by a name."""
    made = (
        [node] if isinstance(node, ast.Call) else [d.value for d in study.defined_by(node, module)]
    )
    return bool(made) and all(
        isinstance(each, ast.Call)
        and isinstance(each.func, ast.Attribute)
        and each.func.attr == "state_dict"
        and bool(sharded_inside(each.func.value, module, study))
        for each in made
    )


def _asks_for_names(site: Site) -> bool:
    """Whether only the names of a state are asked for: ``model.state_dict().keys()``."""
    above = site.module.table.parents[site.node]
    return isinstance(above, ast.Attribute) and above.attr in OF_NAMES


def may_hold_shards(module: Module, study: Study) -> bool:
    """Whether what a module of a file holds beside FSDP's parts may be sharded by others."""
    return _speaks_of_shards(module) or study.cache(_makes_shards)


def _own_method(
    node: ast.expr, module: Module, study: Study
) -> tuple[ast.FunctionDef, Module] | None:
    """The ``state_dict`` of the class of a module, where that asks something else than the class
    above, so that its names are not those of its modules."""
    for value in study.values(node, module):
        if not isinstance(value, Made) or not isinstance(value.callee, Class):
            continue
        for cls in study.tracer.lineage(value.callee):
            for method in cls.node.body:
                if isinstance(method, ast.FunctionDef) and method.name == "state_dict":
                    return None if _asks_above(method) else (method, cls.module)
    return None


def _asks_models(method: ast.FunctionDef, module: Module, study: Study) -> bool:
    """Whether a method asks sharded models for their states, and nothing else."""
    asked = [
        node.value
        for node in walk(method)
        if isinstance(node, ast.Attribute) and node.attr == "state_dict"
    ]
    return bool(asked) and all(study.traced(each, module) for each in asked)


def _asks_above(method: ast.FunctionDef) -> bool:
    """Whether a method calls that of the class above."""
    for node in walk(method):
        match node:
            case ast.Attribute(value=ast.Call(func=ast.Name(id="super")), attr="state_dict"):
                return True
    return False


def is_passed_on(call: ast.Call, module: Module) -> bool:
    """Whether a call stands in a method of a class for its own state, and is given what that is:
    ``inner.state_dict(destination=destination, prefix=prefix)``."""
    method = enclosing_function(module, call)
    given = given_arguments(call)
    if not given or not isinstance(method, (ast.FunctionDef, ast.AsyncFunctionDef)):
        return False
    if method.name.lstrip("_") not in STATES or class_of_method(method, module) is None:
        return False
    taken = method.args
    names = {each.arg for each in (*taken.posonlyargs, *taken.args, *taken.kwonlyargs)}
    names |= {each.arg for each in (taken.vararg, taken.kwarg) if each is not None}
    plain = (each.value if isinstance(each, ast.Starred) else each for each in given)
    return all(isinstance(each, ast.Name) and each.id in names for each in plain)


def _speaks_of_shards(module: Module) -> bool:
    """Whether a file asks for the shards of a tensor, or uses what has tables of such tensors."""
    if any(b.qualified.startswith(LIBRARY) for b in module.table.imports):
        return True
    return "local_shards" in module.table.attributes_by_name.names


def _makes_shards(study: Study) -> bool:
    """Whether the project makes such tensors itself, in what is no test."""
    return any(
        not module.is_of_tests and not module.table.methods.keys().isdisjoint(MAKING)
        for module in study.project.modules_mentioning(*MAKING)
    )
