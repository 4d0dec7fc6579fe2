"""FSDP1's calls that turn a saved optimizer state into one ``optimizer.load_state_dict`` takes."""

from __future__ import annotations

import ast
from collections.abc import Iterable
from dataclasses import dataclass

from fsdp_migrate.analysis.flow import access_path
from fsdp_migrate.analysis.module import Module
from fsdp_migrate.analysis.values import Class, Made, Value, Values
from fsdp_migrate.families.checkpoints import state_dict_settings
from fsdp_migrate.families.parameters import attributes
from fsdp_migrate.fsdp1 import model_values
from fsdp_migrate.fsdp1.references import enclosing_function
from fsdp_migrate.fsdp1.site import Site
from fsdp_migrate.planning.context import Study
from fsdp_migrate.planning.model import Constructor
from fsdp_migrate.syntax.expressions import bind_arguments, given_arguments, last_name, names_in
from fsdp_migrate.syntax.kinds import method_of, present
from fsdp_migrate.syntax.trees import FUNCTIONS

NEW_ORDER = ("model", "optim", "optim_state_dict", "is_named_optimizer", "load_directly", "group")
OLD_ORDER = ("optim_state_dict", "model", "optim", "is_named_optimizer", "load_directly", "group")
OTHERS_TOO = "a state that was not converted may be loaded in its place"
TAKEN_BY_OTHERS = "something else than the optimizer loads it"
NOT_HANDED = "its result is not handed to load_state_dict"
NEVER_LOADED = "its result is never loaded"
NAMED = (
    "is_named_optimizer=True is for an optimizer whose own state goes by names, which none of "
    "torch's functions for FSDP2 takes"
)
CHANGED = "what it is made from is changed before it is loaded"
CHANGING = frozenset({"clear", "pop", "popitem", "update"})
ARGUMENTS = {
    "scatter_full_optim_state_dict": (
        "full_optim_state_dict",
        "model",
        "optim_input",
        "optim",
        "group",
    ),
    "shard_full_optim_state_dict": ("full_optim_state_dict", "model", "optim_input", "optim"),
    "flatten_sharded_optim_state_dict": ("sharded_optim_state_dict", "model", "optim"),
}


@dataclass(frozen=True, eq=False)
class Load:
    """One conversion together with the load of its result.

    ``target`` is the call to replace (the ``load_state_dict``, or the conversion itself when it
    loads directly); ``assignment`` the statement that only held the result. ``branch`` is the
    condition under which it runs, when the load behind it also takes a state that was not
    converted. ``problem`` says why the two could not be found; the conversion alone may still be
    complete.
    """

    model: ast.expr | None = None
    optimizer: ast.expr | None = None
    state: ast.expr | None = None
    target: ast.Call | None = None
    assignment: ast.stmt | None = None
    branch: ast.If | None = None
    problem: str = ""

    @property
    def parts(self) -> tuple[ast.expr, ast.expr, ast.expr]:
        """The model, the optimizer and the state, of a load that has them."""
        return present(self.model), present(self.optimizer), present(self.state)


CLOSURE = (
    "set_optimizer_state_dict calls step(closure=None) of an optimizer that has no state yet: give "
    "the step of {name} that parameter"
)


def without_closure(optimizer: ast.expr, site: Site, study: Study) -> str:
    """What to review of an optimizer of the project's whose ``step`` takes no closure.

    See ``_init_optim_state`` in torch/distributed/checkpoint/state_dict.py.
    """
    for value in study.values(optimizer, site.module):
        if not isinstance(value, Made) or not isinstance(value.callee, Class):
            continue
        steps = (
            (cls, node)
            for cls in study.tracer.lineage(value.callee)
            for node in cls.node.body
            if isinstance(node, ast.FunctionDef) and node.name == "step"
        )
        for cls, step in steps:
            named = {each.arg for each in (*step.args.args, *step.args.kwonlyargs)}
            if "closure" not in named and step.args.kwarg is None:
                return CLOSURE.format(name=cls.node.name)
            break  # it is the one that is called
    return ""


def read_load(site: Site, name: str, study: Study) -> Load:
    """Pair a conversion with the ``load_state_dict`` that takes its result."""
    call = site.node
    if not isinstance(call, ast.Call):
        return Load(problem="it is passed on as a value")
    names = ARGUMENTS.get(name) or _order(call, site, study)
    bound = bind_arguments(call, names) if names else None
    if bound is None:
        return Load(problem="its arguments cannot be read, or their order cannot be told")
    model = bound.get("model")
    state = next((bound[n] for n in bound if n.endswith("optim_state_dict")), None)
    if model is None or state is None:
        return Load(model=model, problem="the model or the state is not passed")
    if state_dict_settings.has_group(bound):
        return Load(model=model, problem="a process group of its own is passed")
    named = bound.get("is_named_optimizer")
    if named is not None and not _is_false(named, site, study):
        return Load(model=model, problem=NAMED)
    directly = bound.get("load_directly")
    if directly is not None:
        flag = study.literal(directly, site.module)
        if flag is None:
            return Load(model=model, problem="load_directly is only known at run time")
        if flag.value:
            return Load(model, bound.get("optim"), state, call)
    return _paired(call, model, bound.get("optim"), state, site)


def _is_false(node: ast.expr, site: Site, study: Study) -> bool:
    flag = study.literal(node, site.module)
    return flag is not None and flag.value is False


def _order(call: ast.Call, site: Site, study: Study) -> tuple[str, ...] | None:
    """Torch 2.0 took the state first. Keywords say; else the first argument's value does."""
    if not call.args:
        return NEW_ORDER
    if study.traced(call.args[0], site.module):
        return NEW_ORDER
    if len(call.args) > 1 and study.traced(call.args[1], site.module):
        return OLD_ORDER
    first, second, third = (
        (access_path(a) or "").lower() for a in (*call.args, *call.args * 2)[:3]
    )
    if _is_model(first) or ("optim" in second and "state" not in second):
        return NEW_ORDER
    if _is_model(second):
        return OLD_ORDER
    states = ["state" in each for each in (first, third)]  # ``(m, opt, opt_state)``
    if len(call.args) < 3 or all(states) or not any(states):
        return None
    return OLD_ORDER if states[0] else NEW_ORDER


def _is_model(path: str) -> bool:
    return "model" in path or "module" in path


def _paired(
    call: ast.Call, model: ast.expr, optimizer: ast.expr | None, state: ast.expr, site: Site
) -> Load:
    table = site.module.table
    parent = table.parents[call]
    if isinstance(parent, ast.Call) and _loads(parent) and call in parent.args:
        if optimizer is not None and access_path(_receiver(parent)) != access_path(optimizer):
            return Load(model, optimizer, state, problem=TAKEN_BY_OTHERS)
        return Load(model, optimizer or _receiver(parent), state, parent)
    if not isinstance(parent, ast.Assign) or len(parent.targets) != 1:
        return Load(model, optimizer, state, problem=NOT_HANDED)
    target = parent.targets[0]
    path = access_path(target)
    uses = _uses(parent, path, site) if path is not None else []
    if not uses:
        return Load(model, optimizer, state, problem=NEVER_LOADED)
    if len(uses) != 1:
        return Load(model, optimizer, state, problem="its result is used more than once")
    consumer = table.parents[uses[0]]
    if not isinstance(consumer, ast.Call) or not _loads(consumer):
        return Load(model, optimizer, state, problem=NOT_HANDED)
    branch = _only_for_some(parent, consumer, site)
    if branch is None and _takes_others(uses[0], parent, site):
        return Load(model, optimizer, state, problem=OTHERS_TOO)
    if optimizer is not None and access_path(_receiver(consumer)) != access_path(optimizer):
        return Load(model, optimizer, state, problem=TAKEN_BY_OTHERS)
    if _is_changed_between(state, parent, consumer, site):
        return Load(model, optimizer or _receiver(consumer), state, problem=CHANGED)
    return Load(model, optimizer or _receiver(consumer), state, consumer, parent, branch)


def unread_assignment(call: ast.Call, module: Module) -> ast.Assign | None:
    """The statement that gives the result of a conversion to a variable of its function which
    nothing reads, and does nothing else."""
    statement = module.table.parents[call]
    match statement:
        case ast.Assign(targets=[ast.Name(id=name)]):
            function = enclosing_function(module, call)
        case _:
            return None
    if not isinstance(function, FUNCTIONS):
        return None
    named = (n for n in ast.walk(function) if isinstance(n, ast.Name))
    read = any(n.id in (name, "locals") and isinstance(n.ctx, ast.Load) for n in named)
    read = read or any(isinstance(n, (ast.Global, ast.Nonlocal)) for n in ast.walk(function))
    plain = all(access_path(given) is not None for given in given_arguments(call))
    return statement if plain and not read else None


def _is_changed_between(
    state: ast.expr, assignment: ast.Assign, load: ast.Call, site: Site
) -> bool:
    """Whether what a state is read from is changed before its load, ``del saved["optimizer"]``."""
    names = names_in(state)
    for node in ast.walk(enclosing_function(site.module, load)):
        line = getattr(node, "lineno", 0)
        if not present(assignment.end_lineno) < line < load.lineno:
            continue
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
            owner: ast.AST = node.func.value if node.func.attr in CHANGING else node
        elif isinstance(getattr(node, "ctx", None), (ast.Store, ast.Del)):
            owner = node
        else:
            continue
        while isinstance(owner, (ast.Attribute, ast.Subscript)):
            owner = owner.value
        if isinstance(owner, ast.Name) and owner.id in names:
            return True
    return False


def _only_for_some(assignment: ast.Assign, load: ast.Call, site: Site) -> ast.If | None:
    """``if sharded: state = convert(state)`` before a load that stands beside it."""
    table = site.module.table
    branch, statement = table.parents[assignment], table.parents[load]
    if not isinstance(branch, ast.If) or not isinstance(statement, ast.Expr) or branch.orelse:
        return None
    is_last = branch.body[-1] is assignment
    beside = table.parents[branch] is table.parents[statement]
    is_elif = isinstance(table.parents[branch], ast.If) and not beside
    return branch if is_last and beside and not is_elif else None


def _takes_others(use: ast.expr, assignment: ast.Assign, site: Site) -> bool:
    """Whether what another assignment gives is loaded there as well."""
    reaching = model_values.definitions(use, site.module)
    return any(definition.node is not assignment for definition in reaching)


def _uses(assignment: ast.Assign, path: str, site: Site) -> list[ast.expr]:
    """The loads that this assignment reaches."""
    module = site.module
    reaching = module.flow(module.table.scope_of(assignment).home()).reaching
    return [
        node
        for node, definitions in reaching.items()
        if isinstance(node, ast.expr) and any(d.node is assignment for d in definitions)
    ]


def _loads(call: ast.Call) -> bool:
    return isinstance(call.func, ast.Attribute) and call.func.attr == "load_state_dict"


def _receiver(call: ast.Call) -> ast.expr:
    return method_of(call).value


@dataclass(frozen=True)
class Kinds:
    """What an optimizer may be: one with a ``step`` for each parameter, one without any state."""

    counts_steps: bool
    may_be_empty: bool
    depends: bool  # on a setting, whether it has a state
    is_empty: bool
    divides_by_zero: bool  # in a step without gradients, which makes its parameters NaN


def kinds(values: Values, study: Study) -> Kinds:
    """What an optimizer may be, as far as seen: one that counts steps where nothing is."""
    calls = [_sgd(value) for value in values] or [None]
    with_momentum = {_has_momentum(*found, study) for found in calls if found is not None}
    return Kinds(
        counts_steps=None in calls,
        may_be_empty=False in with_momentum,
        depends=None in with_momentum,
        is_empty=None not in calls and with_momentum == {False},
        divides_by_zero=any(_divides_by_zero(value, study) for value in values),
    )


def _divides_by_zero(value: Value, study: Study) -> bool:
    """Whether it divides by the root of its state alone: ``AdamW(parameters, eps=0)``.

    Torch takes a step with gradients of zero and a rate of zero where there is no state yet (see
    ``_init_optim_state`` in torch/distributed/checkpoint/state_dict.py), FSDP1 took none.
    """
    if not isinstance(value, Made) or not isinstance(value.node, ast.Call):
        return False
    given = next((k.value for k in value.node.keywords if k.arg == "eps"), None)
    number = study.literal(given, value.module) if given is not None else None
    return number is not None and number.value == 0


def _sgd(value: Value) -> tuple[ast.Call, Module] | None:
    if not isinstance(value, Made) or not isinstance(value.node, ast.Call):
        return None
    made = value.made_by in {"torch.optim.SGD", "torch.optim.sgd.SGD"}
    return (value.node, value.module) if made else None


def _has_momentum(call: ast.Call, module: Module, study: Study) -> bool | None:
    """Whether SGD has a momentum; None where a setting says so."""
    bound = bind_arguments(call, ("params", "lr", "momentum"))
    if bound is None:
        return None
    if "momentum" not in bound:
        return False
    flag = study.literal(bound["momentum"], module)
    return None if flag is None else bool(flag.value)


def sharded_reads(site: Site) -> list[ast.Call]:
    """The calls in the function that read a sharded state, which is converted under any setting."""
    function = enclosing_function(site.module, site.node)
    calls = [n for n in ast.walk(function) if isinstance(n, ast.Call)]
    return [c for c in calls if last_name(c.func) == "load_sharded_optimizer_state_dict"]


def may_share_steps(models: Iterable[Constructor], study: Study) -> bool:
    """Whether FSDP1 may have saved one ``step`` for all parameters of a unit."""
    return any(attributes.keeps_attributes(each, study) is not True for each in models)
