"""torch's own clipping, of parameters that are, or may be, those of a sharded model.

Of FSDP1's pieces it computed each rank's own norm, of ``DTensor`` gradients that of all ranks.
"""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator

from fsdp_migrate.analysis.flow import access_path
from fsdp_migrate.analysis.module import Module
from fsdp_migrate.families.parameters.listed_parameters import parameters_in
from fsdp_migrate.families.parameters.parameter_owners import met_at, models_of_list
from fsdp_migrate.families.precision import half_models
from fsdp_migrate.families.training_loop import reductions
from fsdp_migrate.families.wrapping import frozen_modules, tensor_parallel
from fsdp_migrate.families.wrapping.gathered import is_gathered
from fsdp_migrate.fsdp1 import possible_models
from fsdp_migrate.fsdp1.construct import Construct
from fsdp_migrate.fsdp1.references import enclosing_function
from fsdp_migrate.fsdp1.site import Site
from fsdp_migrate.planning.context import Study
from fsdp_migrate.planning.model import Constructor
from fsdp_migrate.syntax.expressions import last_name
from fsdp_migrate.syntax.trees import walk

CLIP_LIST = Construct.parse("torch.nn.utils.clip_grad_norm_(list)")
CLIP = Construct.parse("torch.nn.utils.clip_grad_norm_(parameters)")
TORCH_CLIP = frozenset(
    {"torch.nn.utils.clip_grad_norm_", "torch.nn.utils.clip_grad.clip_grad_norm_"}
)
MIXED = Construct.parse("torch function of sharded and plain parameters")
SINGLY = frozenset({"clip_grad_value_", "clip_grads_with_norm_"})  # with ``foreach=False``
UTILS = ("torch.nn.utils.", "torch.nn.utils.clip_grad.")


def find_mixed_lists(study: Study, module: Module) -> Iterator[Site]:
    """A site for every other call of torch's that takes a whole list at once, where the list may
    hold parameters of two kinds."""
    if not kinds(study.constructors.values(), study):
        return
    calls = module.table.calls_by_name
    foreach = {name for name in calls.names if name.startswith("_foreach_")}
    for call in calls.of({*SINGLY, *foreach, "get_total_norm"}):
        name, given = last_name(call.func), _given(call)
        wanted = {f"torch.{name}"} if name in foreach else {f"{u}{name}" for u in UTILS}
        if given is None or wanted.isdisjoint(study.external(call.func, module)):
            continue
        models = models_of_list(given, study, module)
        if not kinds(models, study):
            continue
        if not is_gathered(call, study, module) and not reductions.is_reduced(call, study, module):
            yield Site(MIXED, module, call, call, given)


def kinds(models: Iterable[Constructor], study: Study) -> str:
    """What a list of these models' parameters may hold that torch's functions refuse."""
    models = list(models)
    if frozen_modules.may_ignore_trained(models, study):
        return "parameters that the model ignores"
    if tensor_parallel.may_split(models, study):
        return "parameters that tensor parallelism has split, which are on another mesh"
    return ""


def find_clips(study: Study, module: Module) -> Iterator[Site]:
    """A site for every call of torch's function that clips, or may clip, a model's gradients."""
    if not study.constructors:
        return
    renamed = [b.name for b in module.table.imports if b.qualified in TORCH_CLIP]
    for call in module.table.calls_by_name.of({"clip_grad_norm_", *renamed}):
        given = _given(call)
        if given is None or study.external(call.func, module).isdisjoint(TORCH_CLIP):
            continue
        if is_gathered(call, study, module):
            continue
        owners = owners_of(given, study, module)
        models = models_of_list(given, study, module)
        if models:
            around = enclosing_function(module, call)
            here = [m for m, w in owners if w is module and enclosing_function(w, m) is around]
            whole = isinstance(given, ast.Call) and here == [getattr(given.func, "value", None)]
            receiver = here[0] if len(here) == len(owners) == 1 else given
            if not met_at(receiver, models, module, study):
                continue
            yield Site(CLIP if whole else CLIP_LIST, module, call, call, receiver)
        elif not _is_for_others(call, owners, module):
            for model, where in owners:
                doubt = possible_models.may_be(model, where, study.tracer)
                if doubt:
                    yield Site(CLIP_LIST, module, call, call, given, doubt)
                    break


def owners_of(given: ast.expr, study: Study, module: Module) -> list[tuple[ast.expr, Module]]:
    """The models whose parameters an argument holds."""
    found = parameters_in(given, study, module)
    return [(held.value, where) for held, where in found if isinstance(held, ast.Attribute)]


def _given(call: ast.Call) -> ast.expr | None:
    named = [k.value for k in call.keywords if k.arg == "parameters"]
    return next(iter([*call.args, *named]), None)


def _is_for_others(call: ast.Call, owners: list[tuple[ast.expr, Module]], module: Module) -> bool:
    """Whether the other branch clips the same models by FSDP's own method."""
    paths = {access_path(model) for model, where in owners if where is module}
    child: ast.AST = call
    for parent in module.table.ancestors(call):
        if isinstance(parent, ast.If):
            other = parent.body if child in parent.orelse else parent.orelse
            for node in (n for statement in other for n in walk(statement)):
                match node:
                    case ast.Call(func=ast.Attribute(value=model, attr="clip_grad_norm_")):
                        if access_path(model) in paths:
                            return True
        child = parent
    return False


def is_clipped_alike(
    check: ast.Call, models: Iterable[Constructor], study: Study, module: Module
) -> bool:
    """Whether a test only chooses between FSDP1's way to clip a model and torch's: ``if
    isinstance(model, FSDP): model.clip_grad_norm_(1.0)``, and in the ``else`` torch's function of
    its parameters, which is the way of FSDP2's models too."""
    models = list(models)
    match module.table.parents[check]:
        case ast.If(
            test=test,
            body=[ast.Expr(value=ast.Call(func=ast.Attribute(value=model), args=[norm]) as own)],
            orelse=[ast.Expr(value=ast.Call(args=[given, other]) as torchs)],
        ) if test is check and not own.keywords and not torchs.keywords:
            pass
        case _:
            return False
    path = access_path(model)
    return (
        path is not None
        and path == access_path(check.args[0])
        and last_name(own.func) == "clip_grad_norm_"
        and ast.unparse(norm) == ast.unparse(other)
        and ast.unparse(given) == f"{path}.parameters()"
        and not study.external(torchs.func, module).isdisjoint(TORCH_CLIP)
        and bool(models)
        and not needs_more(models, study)
    )


def needs_more(models: Iterable[Constructor], study: Study) -> bool:
    """Whether torch's function does not clip some models as FSDP1 did: parameters on two meshes,
    and in float16, where its squares overflow; FSDP1 added up in float32."""
    several = frozen_modules.may_ignore_trained(models, study)
    several = several or tensor_parallel.may_split(models, study)
    return several or half_models.may_be_half(models, study)
