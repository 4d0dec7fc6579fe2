"""Parameters that every rank trains by itself: ``fully_shard`` has not got them, and nothing else
reduces their gradients."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

from fsdp_migrate.analysis.flow import access_path
from fsdp_migrate.analysis.module import Module
from fsdp_migrate.analysis.values import Class, Made, Value
from fsdp_migrate.families.training_loop.early_optimizers import is_optimizer_name
from fsdp_migrate.families.wrapping import fully_sharded, part_paths
from fsdp_migrate.families.wrapping.fully_sharded import Sharding
from fsdp_migrate.hazards.order import function_scope, surely_precedes
from fsdp_migrate.hazards.parameters import IGNORED, LOOPS
from fsdp_migrate.planning.context import Study
from fsdp_migrate.planning.edits import Edit, Insert, code
from fsdp_migrate.syntax.scopes import Kind

# Modules of torch that have parameters of their own, whatever they are given.
TRAINED = re.compile(
    r"^torch\.nn\.(modules\.\w+\.)?(Linear|Bilinear|Embedding|EmbeddingBag|Conv[123]d"
    r"|ConvTranspose[123]d|LSTM|GRU|RNN|MultiheadAttention)$|^torch\.nn\.(parameter\.)?Parameter$"
)
FROZEN = frozenset({"requires_grad", "requires_grad_"})
# What may see to gradients in another way, or means that each rank has parameters of its own.
OTHERWISE = re.compile(
    r"replicate|[Dd]istributedDataParallel|^DDP$|FullyShardedDataParallel|^FSDP$|parallel|hook"
    r"|distribute_|[Ee]xpert|all_to_all|[Pp]ipeline|[Ss]tage|^prepare|broadcast|average"
)
AFTER = "reshard_after_forward"  # a root's own default is the right one
ALIKE = frozenset({"mesh", "mp_policy", "offload_policy"})  # what a model's units have in common
REDUCES = re.compile(r"reduce|gather|sync", re.IGNORECASE)


def find_rootless(study: Study, module: Module) -> Iterator[tuple[ast.Call, str, tuple[Edit, ...]]]:
    """Optimizers of whole models of which only parts are sharded, what is not, and the call that
    shards it, where one is surely right."""
    for optimizer, model in _optimizers(module, study):
        if _may_be_seen_to(study):
            return
        values = study.values(model, module)
        left = {name for value in values for name in _left_out(value, module, study)}
        if left and len(values) == 1:
            yield optimizer, ", ".join(sorted(left)), _root(optimizer, model, study, module)


def _root(optimizer: ast.Call, model: ast.expr, study: Study, module: Module) -> tuple[Edit, ...]:
    """``fully_shard(model, mesh=mesh)`` above an optimizer, where all parts are sharded before in
    the same function, alike and by nothing else than names."""
    calls = [sharding.call for sharding in fully_sharded.shardings(study)]
    own = module.table.own_calls.get(function_scope(optimizer, module), ())
    if not all(call in own and surely_precedes(call, optimizer, module) for call in calls):
        return ()
    ways = {
        (ast.unparse(call.func), *(ast.unparse(k) for k in call.keywords if k.arg != AFTER))
        for call in calls
    }
    given = [k for call in calls for k in call.keywords if k.arg != AFTER]
    if len(ways) != 1 or any(len(call.args) != 1 for call in calls):
        return ()
    if any(k.arg not in ALIKE or access_path(k.value) is None for k in given):
        return ()
    (function, *keywords), *_ = ways
    new = code("{text}", text=f"{function}({', '.join([ast.unparse(model), *keywords])})")
    return (Insert(module, module.table.statement(optimizer), (new,)),)


def _optimizers(module: Module, study: Study) -> Iterator[tuple[ast.Call, ast.expr]]:
    """The calls of torch's optimizers, and ``model`` of ``AdamW(model.parameters(), ...)``."""
    calls = module.table.calls_by_name
    for call in calls.of([name for name in calls.names if is_optimizer_name(name)]):
        match call.args:
            case [ast.Call(func=ast.Attribute(value=model, attr="parameters"), args=[]), *_]:
                names = study.external(call.func, module)  # values would cost more
                if names and all(name.startswith("torch.optim.") for name in names):
                    yield call, model


def _left_out(model: Value, module: Module, study: Study) -> set[str]:
    """The attributes of a model with parameters of their own that no ``fully_shard`` is given,
    where others of its parts are."""
    if not isinstance(model, Made) or not isinstance(model.callee, Class):
        return set()
    if model in fully_sharded.sharded(study):
        return set()
    steps: set[str] = set()
    for sharding in fully_sharded.shardings(study):
        ways = part_paths.places(sharding.subject, sharding.module, study).get(model, frozenset())
        if not ways:
            return set()  # who knows what that is
        steps |= {way[0] if way else part_paths.ANY for way in ways}
    if part_paths.ANY in steps:
        return set()
    return _trained(model.callee, study) - steps


def _trained(cls: Class, study: Study) -> set[str]:
    """The attributes that ``__init__`` of a class gives parameters, and that its ``forward``
    reads."""
    functions = {f.name: f for f in cls.node.body if isinstance(f, ast.FunctionDef)}
    made, forward = functions.get("__init__"), functions.get("forward")
    if made is None or forward is None:
        return set()
    read = {access_path(n) for n in ast.walk(forward) if isinstance(n, ast.Attribute)}
    found = set()
    for statement in made.body:
        match statement:
            case ast.Assign(
                targets=[ast.Attribute(value=ast.Name(id="self"), attr=name)],
                value=ast.Call(func=function),
            ):
                names = study.external(function, cls.module)
                if names and all(map(TRAINED.match, names)) and f"self.{name}" in read:
                    found.add(name)
    return found


def find_ignored(study: Study, module: Module) -> Iterator[ast.expr]:
    """``ignored_params`` that an optimizer of the same model trains."""
    for sharding in fully_sharded.shardings(study):
        if sharding.module is not module:
            continue
        for keyword in sharding.call.keywords:
            if keyword.arg != IGNORED or _may_be_seen_to(study):
                continue
            parts = list(_parts(keyword.value, module))
            if parts and all(_is_left(part, sharding, study) for part in parts):
                yield keyword.value


def _parts(ignored: ast.expr, module: Module) -> Iterator[ast.expr]:
    """``model.head`` of ``set(model.head.parameters())``; nothing where some are chosen."""
    match ignored:
        case ast.Call(func=ast.Name(id="set" | "list"), args=[inner], keywords=[]):
            yield from _parts(inner, module)
        case ast.Call(func=ast.Attribute(value=part, attr="parameters"), args=[], keywords=[]):
            yield part
        case ast.Set(elts=elements):
            for each in elements:
                if isinstance(each, ast.Starred):
                    yield from _parts(each.value, module)
                elif isinstance(each, ast.Attribute) and each.attr in {"weight", "bias"}:
                    yield each.value
        case ast.SetComp(elt=ast.Name(id=name), generators=[ast.comprehension() as loop]):
            if isinstance(loop.target, ast.Name) and loop.target.id == name and not loop.ifs:
                yield from _parts(loop.iter, module)
        case ast.Name(id=name):
            scope = module.table.scope_of(ignored)
            bindings = scope.bindings.get(name, [])
            if len(bindings) == 1 and len(module.table.reads(name, scope)) == 1:
                value = bindings[0].value
                if bindings[0].kind is Kind.ASSIGN and not bindings[0].unpack and value is not None:
                    yield from _parts(value, module)


def _is_left(part: ast.expr, sharding: Sharding, study: Study) -> bool:
    """Whether a part is no other unit's either, and an optimizer gets it."""
    module = sharding.module
    model = access_path(sharding.subject)
    path = access_path(part)
    if model is None or path is None or not path.startswith(f"{model}."):
        return False
    if any(isinstance(each, LOOPS) for each in module.table.ancestors(sharding.call)):
        return False
    ways = part_paths.places(part, module, study)
    for other in fully_sharded.shardings(study):
        subject = other.subject
        if other is sharding:
            continue
        others = part_paths.places(subject, other.module, study)
        if part_paths.shared(ways, others) or not part_paths.shared(
            part_paths.places(sharding.subject, module, study), others
        ):
            return False  # it may be that part
    return any(
        _gets(model, where, part, sharding, study)
        for where in study.project.modules
        for _, model in _optimizers(where, study)
    )


def _gets(model: ast.expr, where: Module, part: ast.expr, sharding: Sharding, study: Study) -> bool:
    """Whether all parameters of a model are those of what is sharded, or of a part of it."""
    known = fully_sharded.sharded(study)
    values = study.values(model, where)
    if values and all(sharding in known.get(value, ()) for value in values):
        return True
    return where is sharding.module and access_path(model) == access_path(part)


def _may_be_seen_to(study: Study) -> bool:
    """Whether the project may freeze parameters, or reduce gradients by itself."""
    return study.cache(_sees_to_it)


def _sees_to_it(study: Study) -> bool:
    tables = [module.table for module in study.project.modules]
    names = {name for table in tables for name in table.calls_by_name.names}
    attributes = {name for table in tables for name in table.attributes_by_name.names}
    keywords = {k.arg for table in tables for call in table.calls for k in call.keywords}
    if FROZEN & (names | attributes | keywords) or any(map(OTHERWISE.search, names)):
        return True
    reads_gradients = any(name.endswith("grad") for name in attributes - {"no_grad", "zero_grad"})
    return reads_gradients and any(map(REDUCES.search, names))
