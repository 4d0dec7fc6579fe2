"""Parameters or gradients that are written to a file, or loaded, one by one, outside of any state.

``torch.save([p.grad for p in model.parameters()], path)`` wrote each rank's own flat pieces, as
plain tensors. A ``DTensor`` takes its mesh along, and is read back as one. No model that is not
sharded takes one: ``plain.load_state_dict(dict(model.named_parameters()), strict=False)`` passed
over FSDP1's names, and stops now.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

from fsdp_migrate.analysis.module import Module
from fsdp_migrate.analysis.values import Display, Value
from fsdp_migrate.families.checkpoints.copied_models import PICKLE, copying_calls
from fsdp_migrate.families.parameters import parameter_owners
from fsdp_migrate.families.parameters.elements import lists_of, variable_of
from fsdp_migrate.families.parameters.parameter_loops import METHODS
from fsdp_migrate.families.parameters.parameter_owners import models_of_list, models_of_states
from fsdp_migrate.families.parameters.state_tensors import held_in, tensors_of
from fsdp_migrate.families.training_loop.sharded_alike import ELEMENTWISE, ORDERS
from fsdp_migrate.families.wrapping.gathered import is_gathered
from fsdp_migrate.fsdp1.construct import Construct
from fsdp_migrate.fsdp1.site import Site
from fsdp_migrate.planning.context import Study
from fsdp_migrate.syntax.expressions import given_arguments, last_name
from fsdp_migrate.syntax.kinds import of_kind
from fsdp_migrate.syntax.scopes import Kind
from fsdp_migrate.syntax.trees import COMPREHENSIONS

SAVED = Construct.parse("saved parameters")
DTENSORS = (
    "FSDP1 wrote this rank's flat pieces, as plain tensors; DTensors are written now, with their "
    "mesh, and are read back as such, in a process group alone: save to_local() of each on every "
    "rank, or full_tensor(), for which all ranks must ask"
)
REFUSED = (
    "FSDP1 wrote this rank's flat pieces here; safetensors takes no DTensor, and stops: save "
    "to_local() of each on every rank, or full_tensor(), for which all ranks must ask"
)
MIXED = (
    "FSDP1 had plain tensors here, this rank's flat pieces; they are DTensors now, which a model "
    "that is not sharded does not take, and stops: load what get_model_state_dict gives with "
    "full_state_dict=True, for which all ranks must ask"
)
LOADING = "load_state_dict"
OTHERS = re.compile(r"(?:^|_)opt|optim|sched|scaler|loader|sampler", re.I)  # no models' names
SAFE = frozenset({"safetensors.torch.save", "safetensors.torch.save_file"})
DEEP = 10  # lists, names and calls that lead to one another


def find_saved_parameters(study: Study, module: Module) -> Iterator[Site]:
    """A site for every file, or other model, that single parameters or gradients of a sharded
    model are put in."""
    if not study.constructors:
        return
    for call in (*_saving_calls(study, module), *_loading_calls(study, module)):
        for written in given_arguments(call)[:1]:
            for tensor, where, is_given in _tensors(written, module, study, DEEP):
                found = _is_sharded(tensor, where, study, is_given=is_given)
                if found and not is_gathered(call, study, module):
                    # What is put together in another file is of no variable here.
                    receiver = tensor if where is module else written
                    yield Site(SAVED, module, call, call, receiver)
                    break


def _saving_calls(study: Study, module: Module) -> Iterator[ast.Call]:
    yield from (call for call, construct in copying_calls(study, module) if construct == PICKLE)
    if module.mentions("safetensors"):
        for call in module.table.calls_by_name.of({name.rpartition(".")[2] for name in SAFE}):
            if study.external(call.func, module) & SAFE:
                yield call


def _loading_calls(study: Study, module: Module) -> Iterator[ast.Call]:
    """The loads of what is not sharded: those of a sharded model are checkpoints."""
    for call in module.table.calls_by_name.of({LOADING}):
        match call.func:
            case ast.Attribute(value=receiver) if not OTHERS.search(last_name(receiver)):
                asked = _may_have_none(receiver, call, module)
                if not asked and not parameter_owners.sharded(receiver, module, study):
                    yield call


def _may_have_none(receiver: ast.expr, call: ast.Call, module: Module) -> bool:
    """Whether something is asked if it loads states at all, as no model is: ``hasattr(v,
    "load_state_dict")``."""
    for parent in module.table.ancestors(call):
        for node in ast.walk(parent.test) if isinstance(parent, ast.If) else ():
            match node:
                case ast.Call(func=ast.Name(id="hasattr"), args=[owner, ast.Constant(value=name)]):
                    if name == LOADING and ast.unparse(owner) == ast.unparse(receiver):
                        return True
    return False


def said_of(site: Site, study: Study) -> str:
    """What a reader of a file with single parameters has to know."""
    call = of_kind(site.node, ast.Call)
    if last_name(call.func) == LOADING:
        return MIXED
    return REFUSED if study.external(call.func, site.module) & SAFE else DTENSORS


def _is_sharded(tensor: ast.expr, module: Module, study: Study, *, is_given: bool = True) -> bool:
    """Whether a variable may be a parameter of a sharded model, or ``model.parameters()`` gives
    those of one.

    Args:
        is_given: whether the function around it may have got them from the call that counts.
    """
    if held_in(tensor, study, module) and models_of_states(tensor, study, module):
        return True
    lists = ((tensor, module),) if isinstance(tensor, ast.Call) else ()
    return any(
        (is_given or not _is_parameter(each, where, study)) and models_of_list(each, study, where)
        for each, where in lists or _lists(tensor, module, study, is_given=is_given)
    )


def _lists(
    tensor: ast.expr, module: Module, study: Study, *, is_given: bool
) -> tuple[tuple[ast.expr, Module], ...]:
    own = is_given or not _is_parameter(tensor, module, study)
    return lists_of(tensor, study, module) if own else ()


def _is_parameter(node: ast.expr, module: Module, study: Study) -> bool:
    """Whether an expression begins with what the function around it is given."""
    while isinstance(node, (ast.Attribute, ast.Call, ast.Subscript)):
        node = node.func if isinstance(node, ast.Call) else node.value
    is_self = isinstance(node, ast.Name) and node.id == "self"
    defined = () if is_self else study.defined_by(node, module)
    return any(d.kind is Kind.PARAMETER for d in defined)


def _is_given_sharded(given: ast.expr | None, module: Module, study: Study) -> bool:
    """Whether a function may have got sharded parameters from the call of it: what others give it
    is not in what it returns here."""
    arguments = given_arguments(given) if isinstance(given, ast.Call) else []
    return not arguments or any(
        parameter_owners.sharded(each, module, study)
        or models_of_list(each, study, module)
        or _is_sharded(each, module, study)
        for each in arguments
    )


def _is_list(value: Value) -> bool:
    return isinstance(value, Display) or isinstance(value.node, COMPREHENSIONS)


def _tensors(
    node: ast.expr, module: Module, study: Study, depth: int, *, is_given: bool = True
) -> Iterator[tuple[ast.expr, Module, bool]]:
    """The variables that a list or a dictionary is made of, ``p.grad`` of ``{n: p.grad.cpu() for
    n, p in ps}``, and whether their functions may have got them from the calls on the way."""
    inner: list[tuple[ast.expr, Module]] = []
    match node:
        case ast.List(elts=each) | ast.Tuple(elts=each) | ast.Dict(values=each):
            inner = [(one, module) for one in each]
        case ast.ListComp(elt=each) | ast.GeneratorExp(elt=each) | ast.DictComp(value=each):
            inner = [(each, module)]
        case ast.Call(func=ast.Name(id="list" | "tuple" | "dict"), args=[each]):
            inner = [(each, module)]
        case ast.Call(func=ast.Attribute(attr=name)) if name in METHODS:
            yield node, module, is_given
        case ast.Call(func=ast.Attribute(value=each, attr=name)) if name in ELEMENTWISE:
            inner = [(each, module)]
        case ast.Call() if variable_of(node) is not node:  # torch.zeros_like(p)
            inner = [(variable_of(node), module)]
        case ast.Call():  # of a function of the project that gives what it is given
            is_given = is_given and _is_given_sharded(node, module, study)
            made = [v for v in study.values(node, module) if v.node is not node]
            inner = [(v.node, v.module) for v in made if isinstance(v.node, ast.expr)]
            inner += [a for v in made if isinstance(v, Display) for a in study.tracer.additions(v)]
        case ast.BinOp(left=each, op=op, right=other) if not isinstance(op, ast.MatMult):
            inner = [(each, module), (other, module)]
        case ast.Compare(left=each, ops=[op], comparators=[other]) if isinstance(op, ORDERS):
            inner = [(each, module), (other, module)]
        case ast.IfExp(body=each, orelse=other):
            inner = [(each, module), (other, module)]
        case ast.Subscript() if tensors_of(node, study, module):
            yield node, module, is_given
        case ast.Name() | ast.Attribute():
            yield node, module, is_given
            calls = [d.value for d in study.defined_by(node, module)]
            is_given = is_given and all(_is_given_sharded(c, module, study) for c in calls)
            lists = [v for v in study.values(node, module) if _is_list(v)]
            inner = [(v.node, v.module) for v in lists if isinstance(v.node, ast.expr)]
            inner += [added for v in lists for added in study.tracer.additions(v)]
    for each, where in inner if depth else ():
        yield from _tensors(each, where, study, depth - 1, is_given=is_given)
