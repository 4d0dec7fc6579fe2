"""Parameters or gradients that are written to a file one by one, outside of any state.

``torch.save([p.grad for p in model.parameters()], path)`` wrote each rank's own flat pieces, as
plain tensors. A ``DTensor`` takes its mesh along, and is read back as one.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator

from fsdp_migrate.analysis.module import Module
from fsdp_migrate.analysis.values import Display
from fsdp_migrate.families.checkpoints.copied_models import PICKLE, copying_calls
from fsdp_migrate.families.parameters.elements import lists_of
from fsdp_migrate.families.parameters.parameter_loops import METHODS
from fsdp_migrate.families.parameters.parameter_owners import models_of_list, models_of_states
from fsdp_migrate.families.parameters.state_tensors import held_in, tensors_of
from fsdp_migrate.families.training_loop.reductions import ELEMENTWISE
from fsdp_migrate.families.wrapping.gathered import is_gathered
from fsdp_migrate.fsdp1.construct import Construct
from fsdp_migrate.fsdp1.site import Site
from fsdp_migrate.planning.context import Study
from fsdp_migrate.syntax.expressions import given_arguments

SAVED = Construct.parse("saved parameters")
DTENSORS = (
    "FSDP1 wrote this rank's flat pieces, as plain tensors; DTensors are written now, with their "
    "mesh, and are read back as such, in a process group alone: save to_local() of each on every "
    "rank, or full_tensor(), for which all ranks must ask"
)
DEEP = 8  # lists, names and functions that lead to one another


def find_saved_parameters(study: Study, module: Module) -> Iterator[Site]:
    """A site for every file that single parameters or gradients of a sharded model are put in."""
    for call, construct in copying_calls(study, module) if study.constructors else ():
        given = given_arguments(call)[:1] if construct == PICKLE else []
        for written in given:
            for tensor, where in _tensors(written, module, study, DEEP):
                if _is_sharded(tensor, where, study) and not is_gathered(call, study, module):
                    # What is put together in another file is of no variable here.
                    receiver = tensor if where is module else written
                    yield Site(SAVED, module, call, call, receiver)
                    break


def _is_sharded(tensor: ast.expr, module: Module, study: Study) -> bool:
    if held_in(tensor, study, module) and models_of_states(tensor, study, module):
        return True
    if isinstance(tensor, ast.Call):  # model.parameters()
        return bool(models_of_list(tensor, study, module))
    lists = lists_of(tensor, study, module)
    return any(models_of_list(each, study, where) for each, where in lists)


def _tensors(
    node: ast.expr, module: Module, study: Study, depth: int
) -> Iterator[tuple[ast.expr, Module]]:
    """The variables that a list or a dictionary is made of: ``p.grad`` of ``{n: p.grad.cpu() for
    n, p in ps}``."""
    inner: list[tuple[ast.expr, Module]] = []
    match node:
        case ast.List(elts=each) | ast.Tuple(elts=each) | ast.Dict(values=each):
            inner = [(one, module) for one in each]
        case ast.ListComp(elt=each) | ast.GeneratorExp(elt=each) | ast.DictComp(value=each):
            inner = [(each, module)]
        case ast.Call(func=ast.Name(id="list" | "tuple" | "dict"), args=[each]):
            inner = [(each, module)]
        case ast.Call(func=ast.Attribute(attr=name)) if name in METHODS:
            yield node, module
        case ast.Call(func=ast.Attribute(value=each, attr=name)) if name in ELEMENTWISE:
            inner = [(each, module)]
        case ast.IfExp(body=each, orelse=other):
            inner = [(each, module), (other, module)]
        case ast.Subscript() if tensors_of(node, study, module):
            yield node, module
        case ast.Name() | ast.Attribute() | ast.Call():  # also ema.state_dict()
            if not isinstance(node, ast.Call):
                yield node, module
            displays = [v for v in study.values(node, module) if isinstance(v, Display)]
            inner = [(v.node, v.module) for v in displays if isinstance(v.node, ast.expr)]
            inner += [added for v in displays for added in study.tracer.additions(v)]
    for each, where in inner if depth else ():
        yield from _tensors(each, where, study, depth - 1)
