"""Optimizers of the project's own whose steps go by shapes, or by numbers of whole tensors.

FSDP1 gave an optimizer flat pieces, of one dimension each. ``if momentum.ndim == 2: ...`` was never
true of them, no matrix was made of them, and ``momentum.norm()`` was that of a piece. What a step
reads off the parameters that a loop goes over is found there; this is about what it keeps, hands to
a function, or names.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator

from fsdp_migrate.analysis.module import Module
from fsdp_migrate.analysis.values import Class, Function
from fsdp_migrate.families.parameters.elements import lists_of
from fsdp_migrate.families.parameters.optimized_models import asked_for, optimizers
from fsdp_migrate.families.parameters.parameter_loops import OF_WHOLE, SHAPES
from fsdp_migrate.families.parameters.parameter_owners import OF_SHARDED, models_of_list
from fsdp_migrate.families.parameters.parameter_uses import find_parameter_uses
from fsdp_migrate.families.training_loop import reductions
from fsdp_migrate.families.training_loop.early_optimizers import given_parameters
from fsdp_migrate.fsdp1.construct import Construct
from fsdp_migrate.fsdp1.site import Site
from fsdp_migrate.planning.context import Study
from fsdp_migrate.syntax.expressions import given_arguments, last_name
from fsdp_migrate.syntax.trees import FUNCTIONS, walk

SHAPED = Construct.parse("own optimizer that goes by shapes")
STEP = "step"
GRADIENT = "grad"
MATRICES = frozenset(
    {"matmul", "mm", "bmm", "addmm", "baddbmm", "mv", "multi_dot", "einsum", "outer", "svd", "qr"}
    | {"svd_lowrank", "eigh", "inv", "inverse", "pinv", "cholesky", "matrix_power", "matrix_norm"}
    | {"transpose", "t", "tril", "triu", "diag"}
)
TRANSPOSED = frozenset({"T", "mT"})
METHODS = MATRICES | reductions.REDUCING | OF_WHOLE
ASKED = METHODS | TRANSPOSED | SHAPES
TORCH = frozenset({"torch", "torch.linalg", "torch.nn.functional"})
# They make what plain tensors and DTensors are never put together with, or show something.
ELSEWHERE = frozenset({"empty", "full", "ones", "zeros", "print", "info", "debug", "warning"})
Place = tuple[ast.expr, Module]


def find_shaped_steps(study: Study, module: Module) -> Iterator[Site]:
    """Sites for optimizers of the project's own that get a sharded model's parameters."""
    chosen = _chosen(module, study)
    for call in dict.fromkeys([*optimizers(module, study), *given_parameters(module), *chosen]):
        if not any(places(cls, study) for cls in _classes(call, module, study)):
            continue
        asked = asked_for(call, module, study)
        if any(study.traced(held.value, where) for held, where in asked) or any(
            _is_parameter(node, module, study)
            for given in given_arguments(call)
            for node in walk(given)
            if isinstance(node, ast.Name)
        ):
            yield Site(SHAPED, module, call, call)


def _chosen(module: Module, study: Study) -> Iterator[ast.Call]:
    """Calls of one of several classes, which an optimizer of the project's may be among:
    ``(Muon if p.ndim > 1 else AdamW)([p])``, and of a name that is given such."""
    names = study.cache(_own_names)
    for call in module.table.calls if names and module.mentions(*names) else ():
        given = [d.value for d in study.defined_by(call.func, module)]
        if any(isinstance(each, ast.IfExp) for each in (call.func, *given)):
            yield call


def _own_names(study: Study) -> tuple[str, ...]:
    """The names of the project's classes that have a step."""
    return tuple(
        node.name
        for module in study.project.modules
        if module.mentions(STEP)
        for node in module.table.scopes
        if isinstance(node, ast.ClassDef)
        and any(isinstance(e, FUNCTIONS) and getattr(e, "name", "") == STEP for e in node.body)
    )


def _is_parameter(name: ast.Name, module: Module, study: Study) -> bool:
    """Whether a variable is a parameter of a sharded model, one that a loop goes over."""
    lists = lists_of(name, study, module)
    return any(models_of_list(each, study, where) for each, where in lists)


def _classes(call: ast.Call, module: Module, study: Study) -> Iterator[Class]:
    """The classes of the project that a call makes an optimizer of."""
    for value in study.values(call.func, module):
        if isinstance(value, Class) and any(
            isinstance(each, FUNCTIONS) and getattr(each, "name", "") == STEP
            for cls in study.tracer.lineage(value)
            for each in cls.node.body
        ):
            yield value


def shown(site: Site, study: Study) -> str:
    """The first place where the optimizer of a site goes by shapes, as it is written."""
    found = (p for cls in _classes(site.call, site.module, study) for p in places(cls, study))
    return ast.unparse(next(found)[0])


def places(cls: Class, study: Study) -> tuple[Place, ...]:
    """Where the methods of a class, and the functions that these call, go by the shape of something
    or by a number of all of its elements, but for what is found in loops over parameters."""
    known = study.cache(_known)
    if cls.node not in known:
        known[cls.node] = tuple(_places(cls, study))
    return known[cls.node]


def _known(study: Study) -> dict[ast.ClassDef, tuple[Place, ...]]:
    return {}


def _places(cls: Class, study: Study) -> Iterator[Place]:
    regions: list[tuple[ast.AST, Module]] = []
    for each in study.tracer.lineage(cls):
        methods = [n for n in each.node.body if isinstance(n, (ast.FunctionDef, ast.Lambda))]
        regions += [(method, each.module) for method in methods]
    regions += dict.fromkeys(_called(regions, study))
    names = (n for region, _ in regions for n in walk(region) if isinstance(n, ast.Attribute))
    words = {name.attr for name in names}
    if GRADIENT not in words or words & OF_SHARDED:
        return  # no optimizer, or one that is written for sharded parameters
    for region, module in regions:
        asked = [n for n in walk(region) if isinstance(n, ast.expr) and _goes_by_shape(n, module)]
        found = _found(module, study) if asked else frozenset()
        for node in asked:
            if found.isdisjoint((*walk(node), *module.table.ancestors(node))):
                yield node, module


def _found(module: Module, study: Study) -> frozenset[ast.AST]:
    """What is found of loops over parameters in a file."""
    known = study.cache(_found_in)
    if module not in known:
        uses = find_parameter_uses(study, module)
        known[module] = frozenset(site.node for site in uses)
    return known[module]


def _found_in(study: Study) -> dict[Module, frozenset[ast.AST]]:
    return {}


def _called(
    regions: list[tuple[ast.AST, Module]], study: Study
) -> Iterator[tuple[ast.AST, Module]]:
    """The functions of the project that some code calls by their names."""
    for region, module in regions:
        for node in walk(region):
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
                for value in study.values(node.func, module):
                    tops = value.module.source.tree.body if isinstance(value, Function) else ()
                    if value.node in tops:  # not a closure that a caller hands over
                        yield value.node, value.module


def _goes_by_shape(node: ast.expr, module: Module) -> bool:
    match node:
        case ast.BinOp(op=ast.MatMult()):
            return True
        case ast.Attribute(attr=attr, ctx=ast.Load()) if attr in ASKED:
            called = module.table.parents[node]
            if attr in METHODS and not (isinstance(called, ast.Call) and called.func is node):
                return False
            return not _is_of_another_library(node.value, module) and not _is_shown(node, module)
    return False


def _is_of_another_library(owner: ast.expr, module: Module) -> bool:
    """Whether a function is of a module that is not torch's: ``np.mean``, ``dist.scatter``."""
    if not isinstance(owner, ast.Name):
        return False
    imported = module.table.module.bindings.get(owner.id, ())
    names = {each.qualified for each in imported if each in module.table.imports}
    return bool(names) and names.isdisjoint(TORCH)


def _is_shown(node: ast.expr, module: Module) -> bool:
    """Whether something goes into a message, or a new tensor, which are looked at elsewhere."""
    for parent in module.table.ancestors(node):
        if isinstance(parent, (ast.JoinedStr, ast.Raise, ast.Assert)):
            return True
        if isinstance(parent, ast.Call) and last_name(parent.func) in ELSEWHERE:
            return True
        if isinstance(parent, ast.stmt):
            return False
    return False
