"""Numbers of parameters that a loss has in it: ``loss += 0.1 * (p**2).sum()``.

Behind a forward a sharded model's root has whole parameters, which are plain tensors, and its units
have ``DTensor``s: they are not added up, nor is a ``DTensor`` added in place to a plain number. Of
this rank's part everything is plain, and gradients are those that FSDP1 gave.
"""

from __future__ import annotations

import ast

from fsdp_migrate.analysis.module import Module
from fsdp_migrate.families.parameters import value_reads
from fsdp_migrate.families.training_loop import backwards, reductions
from fsdp_migrate.fsdp1.construct import Construct
from fsdp_migrate.planning.context import Study
from fsdp_migrate.planning.edits import code
from fsdp_migrate.planning.proposal import Proposal
from fsdp_migrate.syntax.trees import FUNCTIONS, walk

PENALTY = Construct.parse("penalty on a parameter")
SQUARES = frozenset({"pow", "square"})
COMPREHENSIONS = (ast.ListComp, ast.SetComp, ast.GeneratorExp)
# What a parameter is asked for that is no value of it.
TOLD = frozenset(
    {"shape", "ndim", "size", "numel", "dim", "dtype", "device", "grad", "requires_grad", "is_cuda"}
)

TOTAL = (
    "each rank's loss has this of its own part of the parameter, as with FSDP1: gradients are the "
    "same, and a loss that is shown has other elements in it"
)
ROOT = (
    "each rank's loss has this of its own part of the parameter, as with FSDP1, which parted it "
    "otherwise: gradients of a norm depend on that"
)
MEAN = (
    "each rank's loss has this of its own part of the parameter, as with FSDP1, which parted it "
    "otherwise: gradients of a mean depend on the size of the part"
)


def is_penalty(reduction: reductions.Reduction, study: Study, module: Module) -> bool:
    """Whether a backward surely goes through a number of parameters, and through nothing that
    parameters are combined with."""
    if any("grad" in ast.unparse(base) for base in reduction.bases) or reduction.is_extreme:
        return False
    term = term_of(reduction, module)
    reads = value_reads.find_reads(_names(reduction), [term], study, module)
    if any(each.is_mixed for each in reads):
        return False
    return backwards.backward_follows(reduction.node, module, study)


def term_of(reduction: reductions.Reduction, module: Module) -> ast.AST:
    """What is added up of each parameter: a statement of a loop, or the element of a
    comprehension. All that it has of the parameter is of the same part."""
    child: ast.AST = reduction.node
    for parent in module.table.ancestors(reduction.node):
        if isinstance(parent, (*COMPREHENSIONS, ast.stmt, *FUNCTIONS)):
            return child if isinstance(parent, (*COMPREHENSIONS, ast.Lambda)) else parent
        child = parent
    return child


def take_parts(reduction: reductions.Reduction, module: Module, proposal: Proposal) -> None:
    """Compute a term of this rank's part of the parameter, which has a name where it is read
    more than once."""
    values, term = _values_in(reduction, module), term_of(reduction, module)
    function = proposal.support(module, "own_part", reduction.node)
    if len(values) > 1 and len(_names(reduction)) == 1 and isinstance(term, ast.stmt):
        name = proposal.fresh(module, term, "part")
        own = code("{n} = {f}({p})", n=name, f=function, p=ast.unparse(values[0]))
        proposal.insert_before(module, term, own)
        for value in values:
            proposal.replace(module, value, code("{n}", n=name))
        return
    for value in values:
        proposal.replace(module, value, code("{f}({b})", f=function, b=value))


def _values_in(reduction: reductions.Reduction, module: Module) -> list[ast.expr]:
    """Where the term has the values of the parameter."""
    names, parents = _names(reduction), module.table.parents
    read = {
        node
        for node in walk(term_of(reduction, module))
        if isinstance(node, ast.Name) and node.id in names and isinstance(node.ctx, ast.Load)
    }
    if not read:
        return list(reduction.bases)
    return [n for n in read if getattr(parents[n], "attr", "") not in TOLD]


def _names(reduction: reductions.Reduction) -> set[str]:
    return {base.id for base in reduction.bases if isinstance(base, ast.Name)}


def said_of(reduction: reductions.Reduction, module: Module) -> str:
    """What may be another number than FSDP1's, though it is this rank's."""
    if reduction.is_mean:
        return MEAN
    return ROOT if reduction.is_root and not _is_squared(reduction.node, module) else TOTAL


def _is_squared(node: ast.expr, module: Module) -> bool:
    match module.table.parents[node]:
        case ast.BinOp(op=ast.Pow(), left=left):
            return left is node
        case ast.Attribute(attr=name):
            return name in SQUARES
    return False
