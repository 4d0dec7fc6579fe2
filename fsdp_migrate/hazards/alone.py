"""What all ranks have to do together, and one does alone: it waits for the others."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from typing import NamedTuple

from fsdp_migrate.analysis.flow import access_path
from fsdp_migrate.analysis.module import Module
from fsdp_migrate.families.checkpoints import ranks
from fsdp_migrate.families.wrapping import fully_sharded
from fsdp_migrate.fsdp1.references import enclosing_function
from fsdp_migrate.hazards.files import states
from fsdp_migrate.hazards.guards import is_of_one
from fsdp_migrate.hazards.order import always_runs, name_called
from fsdp_migrate.hazards.parameters import model_of
from fsdp_migrate.hazards.settings import is_sharded_if_at_all
from fsdp_migrate.planning.context import Study
from fsdp_migrate.syntax.expressions import first_argument, last_name
from fsdp_migrate.syntax.scopes import Kind
from fsdp_migrate.syntax.trees import FUNCTIONS, walk

CHECKPOINT = "torch.distributed.checkpoint."
STATE_DICT = f"{CHECKPOINT}state_dict."
GETTERS = frozenset({"get_model_state_dict", "get_optimizer_state_dict", "get_state_dict"})
WHOLE = "full_state_dict"
FULL = "full_tensor"
SAVING = frozenset({"save"})
ITEMS = frozenset({"items", "values"})
# Words of ranks of a group, which may be all of a mesh that shards, and of one process alone.
OF_GROUP = re.compile(r"replica|(^|\W|_)(dp|tp|pp|cp|sp|ep)_|mesh|coord|shard|world|node|stage")
GATHERED = "unshard"
RUN = "a forward"
DEEPEST = 3  # functions that lead to one another


class Alone(NamedTuple):
    """Something that waits for all ranks, and what keeps the others from it."""

    node: ast.Call  # where it is, or the call that leads there
    module: Module
    what: str
    guard: str


def find(study: Study) -> Iterator[Alone]:
    """What one rank does alone in a project."""
    seen: set[ast.Call] = set()
    for module in study.project.modules:
        for call, what, models in _collectives(module, study):
            # Forwards are many: who calls their functions would cost too much.
            depth = 0 if what == RUN else DEEPEST
            for found in _alone(call, module, what, study, depth):
                if found.node in seen:
                    continue
                if any(is_sharded_if_at_all(model, call, module, study) for model in models):
                    seen.add(found.node)
                    yield found


def _alone(call: ast.Call, module: Module, what: str, study: Study, depth: int) -> Iterator[Alone]:
    """The place where one rank is let alone to a call, in its function or in those that call it."""
    guards = list(ranks.guards(call, module))
    if guards:
        if all(_is_apart(guard, call, module) for guard in guards):
            yield Alone(call, module, what, guards[0].where)
        return
    function = enclosing_function(module, call)
    if not depth or not isinstance(function, FUNCTIONS) or not always_runs(call, function, module):
        return
    if ranks.decorator(function) is not None or not _may_be_guarded(function, module, study, set()):
        return
    for caller in study.tracer.callers(function, module):
        yield from _alone(caller.call, caller.module, what, study, depth - 1)


def _may_be_guarded(function: ast.AST, module: Module, study: Study, seen: set[str]) -> bool:
    """Whether a condition on ranks leads to a function, by the names of what is called: text costs
    less than values."""
    name = name_called(function, module)
    if name in seen or len(seen) > DEEPEST:
        return False
    seen.add(name)
    calls = [
        (call, other)
        for other in study.project.modules
        for call in other.table.calls_by_name.named(name)
    ]
    if any(True for call, other in calls for _ in ranks.guards(call, other)):
        return True
    around = {(enclosing_function(other, call), other) for call, other in calls}
    return any(
        isinstance(each, FUNCTIONS) and _may_be_guarded(each, other, study, seen)
        for each, other in around
    )


def _is_apart(guard: ranks.Guard, call: ast.Call, module: Module) -> bool:
    """Whether one of all ranks comes past a condition, and the others do not do the same."""
    own = module.table.calls_in(enclosing_function(module, call))
    gathered = any(last_name(each.func) == GATHERED for each in own)
    meant = OF_GROUP.search(ast.unparse(guard.test)) is not None
    return is_of_one(guard) and not (meant or gathered or _all_do(guard, call, module))


def _all_do(guard: ranks.Guard, call: ast.Call, module: Module) -> bool:
    """Whether the other ranks may call the same on their way."""
    statement = guard.statement
    around = [statement, *module.table.ancestors(call)]
    name = last_name(call.func)
    others = [c for c in walk(statement) if isinstance(c, ast.Call) and c is not call]
    if guard.exits:
        return any(last_name(c.func) == name for c in others)
    branches = [statement.orelse, statement.body] if isinstance(statement, ast.If) else []
    return any(
        last_name(c.func) == name
        for branch in branches
        if not any(each in around for each in branch)
        for each in branch
        for c in walk(each)
        if isinstance(c, ast.Call)
    )


def _collectives(module: Module, study: Study) -> Iterator[tuple[ast.Call, str, list[ast.expr]]]:
    """The calls of a file that wait for all ranks, what they are, and the models that it takes."""
    calls = module.table.calls_by_name
    for call in calls.of(GETTERS):
        model = first_argument(call, "model")
        names = study.external(call.func, module)
        ours = bool(names) and all(n.startswith(STATE_DICT) for n in names)
        if model is not None and ours and is_whole(call, module):
            yield call, f"{last_name(call.func)}() of a whole state", [model]
    for call in calls.of(SAVING):
        given = first_argument(call, "state_dict")
        if given is None or any(k.arg in {"no_dist", "process_group", None} for k in call.keywords):
            continue
        names = study.external(call.func, module)
        if names and all(n.startswith(CHECKPOINT) for n in names):
            models = [model for model, _ in states(given, call, module, study)]
            yield call, "torch.distributed.checkpoint.save()", models
    for call in calls.named(FULL):
        if isinstance(call.func, ast.Attribute):
            model = _owner(call.func.value, module)
            if model is not None:
                yield call, "full_tensor()", [model]
    paths = [access_path(sharding.subject) for sharding in fully_sharded.shardings(study)]
    for call in calls.of({path.rpartition(".")[2] for path in paths if path is not None}):
        if access_path(call.func) is not None and not study.external(call.func, module):
            yield call, RUN, [call.func]


def is_whole(call: ast.Call, module: Module) -> bool:
    """Whether a call's options say that each rank's part is gathered."""
    options = next((k.value for k in call.keywords if k.arg == "options"), None)
    if isinstance(options, ast.Name):
        scope = module.table.scope_of(options).lookup(options.id)
        bindings = scope.bindings[options.id] if scope is not None else []
        if len(bindings) != 1 or bindings[0].kind is not Kind.ASSIGN:
            return False
        options = bindings[0].value
    match options:
        case ast.Call(keywords=keywords):
            return any(
                k.arg == WHOLE and isinstance(k.value, ast.Constant) and k.value.value is True
                for k in keywords
            )
    return False


def _owner(tensor: ast.expr, module: Module) -> ast.expr | None:
    """The model of which a tensor is a parameter, its gradient, or in its state."""
    match tensor:
        case ast.Attribute(value=inner, attr="grad" | "data"):
            return _owner(inner, module)
        case ast.Name():
            return model_of(tensor, module) or _state_of(tensor, module)
    return None


def _state_of(tensor: ast.Name, module: Module) -> ast.expr | None:
    """``model`` of ``for name, tensor in model.state_dict().items()``."""
    scope = module.table.scope_of(tensor).lookup(tensor.id)
    bindings = scope.bindings[tensor.id] if scope is not None else []
    around = set(module.table.ancestors(tensor))
    loops = [b for b in bindings if b.node in around] or bindings
    match [b.value for b in loops]:
        case [ast.Call(func=ast.Attribute(value=state, attr=name))] if name in ITEMS:
            if isinstance(state, ast.Name):
                found = module.table.scope_of(state).lookup(state.id)
                bound = found.bindings[state.id] if found is not None else []
                if len(bound) != 1 or bound[0].kind is not Kind.ASSIGN or bound[0].unpack:
                    return None
                state = bound[0].value or state
            match state:
                case ast.Call(func=ast.Attribute(value=model, attr="state_dict"), args=[]):
                    return model
    return None
