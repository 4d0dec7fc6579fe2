"""Branches that tell FSDP1 models from FSDP2 models, in projects that have both.

``if isinstance(model, FSDP): ... elif isinstance(model, FSDPModule): ...`` already says what is to
be done with a migrated model. The branch for FSDP1 goes, the one for FSDP2 stays as it is.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass

from fsdp_migrate.fsdp1 import PACKAGE
from fsdp_migrate.sites import Site
from fsdp_migrate.trace.flow import access_path
from fsdp_migrate.trace.project import Module, Project

FSDP2 = frozenset(
    {f"{PACKAGE}.FSDPModule", "torch.distributed._composable.fsdp.FSDPModule"}
    | {f"{PACKAGE}._fully_shard.FSDPModule", f"{PACKAGE}._fully_shard._fully_shard.FSDPModule"}
)


@dataclass(frozen=True, eq=False)
class Branch:
    """``head`` begins the chain, ``node`` is the part of it that is for FSDP1."""

    head: ast.If
    node: ast.If


def of(site: Site, project: Project) -> Branch | None:
    """The branch whose test is an ``isinstance`` site, when another one is for FSDP2."""
    table = site.module.table
    node = table.parents.get(site.node)
    if not isinstance(node, ast.If) or node.test is not site.node:
        return None
    assert isinstance(site.node, ast.Call)
    if isinstance(site.node.args[1], (ast.Tuple, ast.BinOp)):
        return None
    head = node
    while isinstance(parent := table.parents[head], ast.If) and parent.orelse == [head]:
        head = parent
    tested = access_path(site.node.args[0])
    others = [each for each in _chain(head) if each is not node]
    if tested is None or not any(_is_fsdp2(o.test, tested, site.module, project) for o in others):
        return None
    return Branch(head, node)


def _chain(head: ast.If) -> Iterator[ast.If]:
    yield head
    while len(head.orelse) == 1 and isinstance(head.orelse[0], ast.If):
        head = head.orelse[0]
        yield head


def _is_fsdp2(test: ast.expr, tested: str, module: Module, project: Project) -> bool:
    if not isinstance(test, ast.Call) or len(test.args) != 2 or test.keywords:
        return False
    name = test.func.id if isinstance(test.func, ast.Name) else ""
    same = name == "isinstance" and access_path(test.args[0]) == tested
    return same and bool(project.external(test.args[1], module) & FSDP2)


def stands_in(site: Site, branch: Branch) -> bool:
    """Whether a site is in the body that goes."""
    child: ast.AST = site.node
    for parent in site.module.table.ancestors(child):
        if parent is branch.node:
            return child in branch.node.body
        child = parent
    return False
