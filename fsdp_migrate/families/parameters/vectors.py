"""Parameters and gradients of a sharded model that are put into one vector.

FSDP1's were flat pieces. A ``DTensor`` of the whole shape is gathered to be flattened, which fails
where its rows do not divide among the ranks; else the vector is that of the whole model, and
collectives do not take it. What is written back goes through ``.data``, and is not there.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator

from fsdp_migrate.analysis.module import Module
from fsdp_migrate.families.parameters.parameter_numbers import NUMBER, said_of_reduced
from fsdp_migrate.families.parameters.parameter_owners import (
    models_concerned,
    models_looped_over,
    models_of_list,
)
from fsdp_migrate.families.parameters.value_reads import OF_TWO
from fsdp_migrate.families.training_loop import applied_functions
from fsdp_migrate.families.training_loop.applied_functions import MAP, STARMAP
from fsdp_migrate.families.training_loop.gathered_roots import may_stay_gathered, reshard_line
from fsdp_migrate.families.training_loop.reductions import (
    MODULES,
    OF_LISTS,
    REDUCING,
    is_reduced,
    reduction_named,
)
from fsdp_migrate.families.training_loop.sharded_alike import ELEMENTWISE, reduced_parts
from fsdp_migrate.families.wrapping.gathered import is_gathered
from fsdp_migrate.fsdp1.construct import Construct
from fsdp_migrate.fsdp1.site import Site
from fsdp_migrate.planning.context import Study
from fsdp_migrate.planning.edits import code
from fsdp_migrate.planning.model import Decision
from fsdp_migrate.syntax.expressions import given_arguments, last_name, names_in
from fsdp_migrate.syntax.kinds import present

RULE = "FSDP408"

VECTOR = Construct.parse("parameters in a vector")
WRITTEN = Construct.parse("parameters from a vector")
PIECES = Construct.parse("parameters put together")
UTILS = ("torch.nn.utils.", "torch.nn.utils.convert_parameters.")
TO_VECTOR, FROM_VECTOR = "parameters_to_vector", "vector_to_parameters"
JOINING = frozenset({"cat", "concat", "concatenate", "hstack"})
CATS = frozenset(f"torch.{name}" for name in JOINING)
NORMS = Construct.parse("norm of a list over ranks")
FUNCTIONS = CATS | {f"{u}{name}" for u in UTILS for name in (TO_VECTOR, FROM_VECTOR)}
MAPPING = frozenset({MAP, STARMAP})
FLATTENING = frozenset({"flatten", "view", "reshape", "ravel"})


def find_flattened_parameters(study: Study, module: Module) -> Iterator[Site]:
    """A site for every vector that parameters of sharded models are put into, or come from."""
    for call in module.table.calls_by_name.of({TO_VECTOR, FROM_VECTOR, *JOINING}):
        name = last_name(call.func)
        if name == TO_VECTOR and call.args:
            construct, given = VECTOR, call.args[0]
        elif name == FROM_VECTOR and len(call.args) == 2:
            construct, given = WRITTEN, call.args[1]
        elif name in JOINING and call.args:
            construct, given = PIECES, _mapped(call.args[0], study, module)
            if given is call.args[0] and not flattened(given, study, module):
                continue
        else:
            continue
        names = study.external(call.func, module)
        wanted = CATS if construct == PIECES else {f"{u}{name}" for u in UTILS}
        if names.isdisjoint(wanted) or is_gathered(call, study, module):
            continue
        if models_of_list(given, study, module):
            yield Site(construct, module, call, call, given)


def _mapped(given: ast.expr, study: Study, module: Module) -> ast.expr:
    """``parameters`` of ``list(map(torch.flatten, parameters))``; else ``given``."""
    inner = given
    match given:
        case ast.Call(func=ast.Name(id="list" | "tuple"), args=[inner]):
            pass
    match inner:
        case ast.Call(func=ast.Name(id="map"), args=[function, mapped]):
            name, is_attribute = applied_functions.named(function, study, module)
            return mapped if name in FLATTENING and not is_attribute else given
    return given


def find_norms_of_lists(study: Study, module: Module) -> Iterator[Site]:
    """A site for every norm of a list of parameters or gradients that stands under a name, and for
    every number that ``map`` takes of each, or of pairs."""
    for call in module.table.calls_by_name.of({*OF_LISTS, *MAPPING}):
        lists = _reduced_lists(call, study, module)
        if not lists or is_gathered(call, study, module):
            continue
        held = [each for each in lists if models_of_list(each, study, module)]
        if held:
            reduced = len(lists) == 1 and is_reduced(call, study, module)
            yield Site(NORMS if reduced else NUMBER, module, call, call, held[0])


def _reduced_lists(call: ast.Call, study: Study, module: Module) -> list[ast.expr]:
    """The list that a norm is taken of, or that ``map`` takes one of each element of; two lists
    for ``map(torch.dot, grads, others)`` and ``starmap(torch.dot, zip(grads, others))``."""
    name, given = last_name(call.func), call.args
    if name in MAPPING:
        if not _reduction(given[0] if given else call, study, module):
            return []
        match given:
            case [_, ast.Call(func=ast.Name(id="zip"), args=pairs)] if name != MAP:
                return pairs
        return given[1:]
    known = {f"{m}{name}" for m in MODULES} & study.external(call.func, module)
    if not given or not known or isinstance(given[0], (ast.ListComp, ast.GeneratorExp)):
        return []  # what is written at the call is asked about with its loop
    return given[:1]


def _reduction(function: ast.expr, study: Study, module: Module) -> str:
    """The name of the number that a function gives of each element, if it is known to."""
    name, is_attribute = applied_functions.named(function, study, module)
    return name if not is_attribute and name in (REDUCING | OF_TWO) - OF_LISTS else ""


def decide_norms(site: Site, study: Study) -> Decision:
    """Give the program this rank's norms, because it adds those of all ranks up."""
    call, given, proposal = site.call, present(site.receiver), study.proposal()
    function = proposal.support(site.module, "own_part", given)
    mapped = last_name(call.func) == MAP
    each = "map({f}, {g})" if mapped else "list(map({f}, {g}))"
    proposal.replace(site.module, given, code(each, f=function, g=given))
    name = _reduction(call.args[0], study, site.module) if mapped else last_name(call.func)
    made = call.args[0] if mapped else call
    settings = given_arguments(made)[1:] if isinstance(made, ast.Call) else []
    found = reduction_named(name, call, (given,), settings)
    return study.rewritten(
        site,
        RULE,
        "of this rank's part, which the program adds up",
        proposal,
        models=models_concerned(site, study),
        review=said_of_reduced(found, study, site.module),
    )


def flattened(given: ast.expr, study: Study, module: Module) -> list[ast.expr]:
    """``p.grad`` of ``[p.grad.flatten() for p in model.parameters()]``, also under a name, and of
    ``flat.append(p.grad.flatten())``; what else a list has is not."""
    bases = (flat_base(*each) for each in listed(given, study, module))
    return [base for base in bases if base is not None]


def listed(given: ast.expr, study: Study, module: Module) -> Iterator[tuple[ast.expr, set[str]]]:
    """What a list has one of for each round, and the names in it that change with the round:
    ``p.grad`` of ``[p.grad for p in ps]``, also under a name, and of ``grads.append(p.grad)``."""
    made = [given]
    if not isinstance(given, (ast.ListComp, ast.GeneratorExp)):
        found = study.values(given, module)
        made = [v.node for v in found if v.module is module and isinstance(v.node, ast.expr)]
        for value in found:
            for element, _ in study.tracer.additions(value):
                yield element, names_in(element)
    for each in made:
        if isinstance(each, (ast.ListComp, ast.GeneratorExp)):
            yield each.elt, {n for g in each.generators for n in names_in(g.target)}


def joined_parts(call: ast.Call) -> list[ast.expr]:
    """The parts of ``torch.cat([...])`` that are written out."""
    match call.args:
        case [ast.List(elts=parts) | ast.Tuple(elts=parts), *_]:
            return parts
    return []


def flat_base(element: ast.expr, names: set[str]) -> ast.expr | None:
    """``p.grad`` of ``p.grad.detach().flatten()``."""
    tensor = flattened_tensor(element)
    found = reduced_parts(tensor, names) if tensor is not None else []
    return found[0] if len(found) == 1 else None


def flattened_tensor(element: ast.expr) -> ast.expr | None:
    """What is flattened: by a method, or a function of torch's; None of what is not."""
    node, flat = element, False
    while isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
        if node.func.attr not in ELEMENTWISE:
            break
        flat |= node.func.attr in FLATTENING
        is_function = getattr(node.func.value, "id", "") == "torch"
        node = node.args[0] if is_function and node.args else node.func.value
    return node if flat else None


def decide_vector(site: Site, study: Study) -> Decision:
    """Put this rank's parts of the DTensors into a vector, where FSDP1 had put its own pieces."""
    given = present(site.receiver)
    proposal = study.proposal()
    function = proposal.support(site.module, "own_part", given)
    bases = flattened(given, study, site.module) if site.construct == PIECES else []
    for base in bases:
        proposal.replace(site.module, base, code("{f}({b})", f=function, b=base))
    if not bases:
        proposal.replace(site.module, given, code("map({f}, {g})", f=function, g=given))
    if not all(
        "grad" in ast.unparse(base) for base in bases or [given]
    ):  # which are sharded after an evaluation too
        for model in models_looped_over(given, study, site.module).values():
            looped = study.models(model, site.module).constructors
            if may_stay_gathered(looped, study):
                line = reshard_line(model, site.module, site.node, study, proposal)
                proposal.insert_before(site.module, site.statement, line)
    return study.rewritten(
        site,
        RULE,
        "of this rank's part",
        proposal,
        models=models_concerned(site, study),
        review=PARTS,
    )


PARTS = (
    "this rank's part has other elements of the parameters than FSDP1's pieces had, and may have "
    "another number of them"
)
