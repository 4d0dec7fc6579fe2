"""Parameters that are kept before another function wraps their model, and those of what may be it.

``self.kept = list(net.parameters())`` in ``__init__``, and ``self.net = FSDP(self.net)`` in another
method: with ``use_orig_params=True`` FSDP1 kept the parameters, and what was done to them later was
done to the model. It is done to nothing where ``fully_shard`` has made others, without an error.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator

from fsdp_migrate.analysis.module import Module
from fsdp_migrate.families.parameters import (
    distant_optimizers,
    early_parameters,
    handed_parameters,
)
from fsdp_migrate.families.training_loop.early_optimizers import (
    PARAMETER_METHODS,
    is_optimizer_name,
    named_like_an_optimizer,
)
from fsdp_migrate.families.wrapping import part_paths
from fsdp_migrate.families.wrapping.computing_methods import LEAVES
from fsdp_migrate.fsdp1 import unfollowed
from fsdp_migrate.fsdp1.construct import Construct
from fsdp_migrate.fsdp1.references import enclosing_function
from fsdp_migrate.fsdp1.site import Site
from fsdp_migrate.planning.context import Study
from fsdp_migrate.planning.model import Constructor
from fsdp_migrate.syntax.expressions import last_name

CONSTRUCT = Construct.parse("distant parameters")


def find_distant_parameters(study: Study, module: Module) -> Iterator[Site]:
    """Sites for parameters that an object keeps before another function wraps their model."""
    if not distant_optimizers.keeping(study):
        return
    for node, _ in _taken(module):
        if read_distant_parameters(node, module, study):
            yield Site(CONSTRUCT, module, node, node)


def _taken(module: Module) -> Iterator[tuple[ast.expr, ast.expr]]:
    """``net.parameters()`` and ``net.head.weight``, and what they are taken of."""
    for call in module.table.calls_by_name.of(PARAMETER_METHODS):
        if isinstance(call.func, ast.Attribute):
            yield call, call.func.value
    for leaf in module.table.attributes_by_name.of(LEAVES):
        if isinstance(leaf.ctx, ast.Load):
            yield leaf, leaf.value


def read_distant_parameters(node: ast.expr, module: Module, study: Study) -> frozenset[Constructor]:
    """The constructors that wrap the model later whose parameters an object keeps."""
    owner = _owner(node)
    if owner is None or _is_of_optimizer(node, module):
        return frozenset()
    names = early_parameters.keeps_in(module.table.statement(node), node, module, study)
    is_own = isinstance(owner, ast.Name) and owner.id == "self"  # what a model's own class keeps
    is_kept = not is_own and _is_kept(names, enclosing_function(module, node), module, study)
    if not is_kept and not handed_parameters.may_be_handed(node, names, module):
        return frozenset()
    if early_parameters.read_early_parameters(node, module, study) is not None:
        return frozenset()
    later = distant_optimizers.wrapped_later([(owner, module)], (node, module), study)
    if is_kept:
        return later
    return frozenset(
        c for c in later if handed_parameters.are_used_behind(c, node, names, module, study)
    )


def _is_kept(names: frozenset[str], here: ast.AST, module: Module, study: Study) -> bool:
    """Whether an object keeps what ``names`` are given, and another function reads it."""
    if not names:
        return False
    return any(
        path.startswith("self.")
        and handed_parameters.is_read_elsewhere(path.rpartition(".")[2], here, study)
        for path in early_parameters.given_on(names, here, module, study)
    )


def _owner(node: ast.expr) -> ast.expr | None:
    """``net`` of ``net.parameters()``, ``net.head`` of ``net.head.weight``."""
    taken = node.func if isinstance(node, ast.Call) else node
    return taken.value if isinstance(taken, ast.Attribute) else None


def _is_of_optimizer(node: ast.expr, module: Module) -> bool:
    calls = (each for each in module.table.ancestors(node) if isinstance(each, ast.Call))
    return any(map(named_like_an_optimizer, calls))


def find_hidden(study: Study, module: Module) -> Iterator[tuple[ast.expr, str]]:
    """What may be a model that is wrapped later, and gives an optimizer its parameters, or has them
    kept: how the model gets there is not followed."""
    keeping = distant_optimizers.keeping(study)
    if not keeping:
        return

    def is_wrapped(node: ast.expr, where: Module) -> bool:
        own = part_paths.places(node, where, study)
        wrapped = (part_paths.places(c.wrapped, c.module, study) for c in keeping)
        return not study.traced(node, where) and any(part_paths.shared(own, w) for w in wrapped)

    ways = unfollowed.Ways(is_wrapped, study.tracer, by_text=True)
    for node, owner in (*_taken(module), *_making_optimizers(study, module)):
        is_kept = early_parameters.keeps_in(module.table.statement(node), node, module, study)
        if not is_kept and not _is_of_optimizer(node, module):
            continue
        if any(distant_optimizers.runs_before(c, node, module) for c in keeping):
            continue
        why = ways.made_of(owner, module)
        if why and not study.traced(owner, module) and not is_wrapped(owner, module):
            yield owner, why


def _making_optimizers(study: Study, module: Module) -> Iterator[tuple[ast.expr, ast.expr]]:
    """Calls of the models' own methods that make optimizers."""
    for call in module.table.calls_by_name.of(study.cache(_makers)):
        if isinstance(call.func, ast.Attribute):
            yield call, call.func.value


def _makers(study: Study) -> frozenset[str]:
    """The names of the project's methods that make an optimizer themselves."""
    return frozenset(
        method.name
        for module in study.project.modules
        for call in module.table.calls
        if is_optimizer_name(last_name(call.func))
        and isinstance(method := enclosing_function(module, call), ast.FunctionDef)
        and isinstance(module.table.parents.get(method), ast.ClassDef)
        and not method.name.startswith("__")
    )
