"""Modules whose parameters are frozen for good, so that no optimizer ever steps them."""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator

from fsdp_migrate.analysis.module import Module
from fsdp_migrate.analysis.values import Constant, Display
from fsdp_migrate.planning.context import Study
from fsdp_migrate.planning.model import Constructor
from fsdp_migrate.syntax.trees import FUNCTIONS, walk

FLAG, METHOD = "requires_grad", "requires_grad_"


def are_frozen(listed: ast.expr, module: Module, study: Study) -> bool:
    """Whether all modules of a list are attributes that the project freezes; False when unsure.

    They are ``model.tower`` in the list, and elsewhere ``x.tower.requires_grad_(False)`` or the
    loop over ``x.tower.parameters()`` that says so, which no condition stands before. Nothing of
    the project may thaw any parameter.
    """
    names = _attributes(listed, module, study)
    return bool(names) and names <= study.cache(_frozen)


def may_ignore_trained(models: Iterable[Constructor], study: Study) -> bool:
    """Whether some models may leave parameters unsharded that have gradients."""
    return any(
        study.may_ignore([model]) and not _ignores_frozen_alone(model, study) for model in models
    )


def _ignores_frozen_alone(model: Constructor, study: Study) -> bool:
    listed = model.arguments.get("ignored_modules")
    if listed is None or model.is_open or model.has("ignored_states"):
        return False
    return are_frozen(listed, model.module, study)


def _attributes(listed: ast.expr, module: Module, study: Study) -> frozenset[str]:
    """The last names of ``[model.tower, model.head]``; none where something else is listed."""
    nodes: list[ast.AST] = []
    for value in study.values(listed, module):
        if isinstance(value, Display):
            nodes.append(value.node)
        elif not (isinstance(value, Constant) and value.value is None):
            return frozenset()
    elements = [e for n in nodes for e in (n.elts if isinstance(n, (ast.List, ast.Tuple)) else [n])]
    names = [e.attr for e in elements if isinstance(e, ast.Attribute)]
    return frozenset(names) if len(names) == len(elements) else frozenset()


def _frozen(study: Study) -> frozenset[str]:
    """The attributes that are frozen without a condition; none where anything is thawed."""
    found: set[str] = set()
    for module in study.project.modules_mentioning(FLAG, METHOD):
        for name, node in _changes(module):
            if name is None:
                return frozenset()
            if name and _is_unconditional(node, module):
                found.add(name)
    return frozenset(found)


def _changes(module: Module) -> Iterator[tuple[str | None, ast.AST]]:
    """Attributes whose parameters are frozen, an empty name for others; None for a thaw."""
    for node in walk(module.source.tree):
        match node:
            case ast.Call(func=ast.Attribute(value=subject, attr="requires_grad_")):
                given = [*node.args, *(k.value for k in node.keywords)]
                frozen = len(given) == 1 and _is_false(given[0])
            case ast.Assign(targets=[ast.Attribute(value=subject, attr="requires_grad")]):
                frozen = _is_false(node.value)
            case ast.Call(
                func=ast.Name(id="setattr"), args=[subject, ast.Constant(value="requires_grad"), _]
            ):
                frozen = False
            case _:
                continue
        yield (_owner(subject, node, module) if frozen else None), node


def _is_false(node: ast.expr) -> bool:
    return isinstance(node, ast.Constant) and node.value is False


def _owner(subject: ast.expr, node: ast.AST, module: Module) -> str:
    """``tower`` of ``x.tower``, or of ``p`` in ``for p in x.tower.parameters()``."""
    if isinstance(subject, ast.Attribute):
        return subject.attr
    loop = module.table.parents[module.table.statement(node)]
    match loop:
        case ast.For(
            target=ast.Name(id=looped),
            iter=ast.Call(func=ast.Attribute(value=ast.Attribute(attr=owner), attr="parameters")),
        ) if isinstance(subject, ast.Name) and subject.id == looped:
            return owner
    return ""


def _is_unconditional(node: ast.AST, module: Module) -> bool:
    for parent in module.table.ancestors(node):
        if isinstance(parent, FUNCTIONS):
            return True
        if isinstance(parent, (ast.If, ast.IfExp, ast.While, ast.Try, ast.BoolOp, ast.Match)):
            return False
    return True
