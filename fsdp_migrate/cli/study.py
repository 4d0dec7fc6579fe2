"""The sites of a tree, for those who hold them against what a run did."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import TypeGuard

from fsdp_migrate.cli import session
from fsdp_migrate.fsdp1.construct import ConstructKind
from fsdp_migrate.planning.edits import (
    AddKeyword,
    Edit,
    RemoveArgument,
    ReplaceExpression,
    ReplaceStatement,
    Unwrap,
)
from fsdp_migrate.planning.model import Decision
from fsdp_migrate.verify.compare.observed import Span
from fsdp_migrate.verify.compare.sites import KnownSite, Study, head, span


def study(tree: Path) -> Study:
    """What ``check`` finds in ``tree``. Rules of the project's own are not asked.

    Raises:
        InputError: the configuration is wrong.
    """
    tree = tree.absolute()
    run = session.run([tree], edit=False, quiet=True)
    sites = [known for decision in run.result.decisions for known in known_sites(decision, tree)]
    return Study(tree, tuple(sites))


def known_sites(decision: Decision, tree: Path) -> Iterator[KnownSite]:
    """The site of a decision, then what else it changes: the calls of a wrapping function, say."""
    site = decision.site
    constructors = {
        f"{_relative(c.module.path, tree)}:{c.module.position(c.call)[0]}" for c in decision.models
    }
    known = KnownSite(
        _relative(site.module.path, tree),
        _span(site.node),
        decision.rule or decision.code,
        site.construct.shown,
        site.construct.last,
        decision.outcome.value,
        decision.message,
        tuple(sorted(constructors)),
        site.construct.kind in (ConstructKind.PARTIAL, ConstructKind.VALUE),
    )
    yield known
    for edit in decision.edits:
        node = _changed(edit)
        if node is not None:
            file = _relative(edit.module.path, tree)
            yield replace(known, file=file, span=_span(node), edited=True)
    if isinstance(site.node, ast.ClassDef):
        for node in filter(_is_of_base, ast.walk(site.node)):
            yield replace(known, span=_span(node), edited=True)
    for constructor in decision.models:
        for call, module in constructor.made_at:  # of a class that is derived from FSDP1's
            yield replace(known, file=_relative(module.path, tree), span=_span(call), edited=True)


def _is_of_base(node: ast.AST) -> TypeGuard[ast.expr]:
    """Whether a class gets something of its base's: ``super().state_dict``."""
    if not isinstance(node, ast.Attribute) or not isinstance(node.value, ast.Call):
        return False
    called = node.value.func
    return isinstance(called, ast.Name) and called.id == "super"


def _changed(edit: Edit) -> ast.expr | ast.stmt | None:
    """The old code in the place of which an edit puts something else."""
    if isinstance(edit, ReplaceExpression | ReplaceStatement | Unwrap):
        return edit.node
    if isinstance(edit, AddKeyword | RemoveArgument):
        return edit.call
    return None


def _relative(path: Path, tree: Path) -> str:
    path = path.absolute()
    return path.relative_to(tree).as_posix() if path.is_relative_to(tree) else path.as_posix()


def _span(node: ast.expr | ast.stmt | ast.keyword | ast.alias | ast.arg) -> Span:
    return head(node) if isinstance(node, ast.stmt) else span(node)
