"""Constructors whose class is chosen before it is called: ``(FSDP if flag else DDP)(model)``.

Which class it is only the running program knows. ``shard`` of the support module takes the place of
FSDP1's class among the others, and the same arguments.
"""

from __future__ import annotations

import ast

from fsdp_migrate.analysis.values import External
from fsdp_migrate.fsdp1 import api as fsdp1
from fsdp_migrate.fsdp1.construct import Construct, ConstructKind
from fsdp_migrate.fsdp1.site import Site
from fsdp_migrate.planning.context import Study
from fsdp_migrate.planning.model import Constructor

VALUE = Construct(ConstructKind.VALUE, fsdp1.FSDP)
MAKES = Construct(ConstructKind.CONSTRUCTOR, fsdp1.FSDP)
PROBLEM = "which class is called is only known at run time"


def as_constructors(found: list[Site]) -> list[Site]:
    """``found``, with sites of the class as a value turned into sites of the call it is for."""
    taken = {site.node for site in found}
    result = []
    for site in found:
        call = call_of(site) if site.construct == VALUE else None
        if call is None or call in taken:
            result.append(site)
            continue
        taken.add(call)
        result.append(Site(MAKES, site.module, call, site.reference))
    return result


def mark_as_chosen(constructor: Constructor) -> None:
    """Note that a constructor cannot be written out, because its class is chosen first."""
    call, reference = constructor.call, constructor.reference
    if reference is not call.func and reference not in call.args:
        constructor.problem = constructor.problem or PROBLEM


def call_of(site: Site) -> ast.Call | None:
    """The one call that a reference to the class leads to, through a choice or a name."""
    table = site.module.table
    child: ast.AST = site.node
    for parent in table.ancestors(site.node):
        match parent:
            case ast.IfExp() if child is not parent.test:
                child = parent
            case ast.Call():
                return parent if parent.func is child and child is not site.node else None
            case ast.Assign(targets=[ast.Name() as name]):
                return _only_call(name, site)
            case _:
                return None
    return None


def _only_call(target: ast.Name, site: Site) -> ast.Call | None:
    table = site.module.table
    scope = table.within[target]
    if not isinstance(scope.node, (ast.FunctionDef, ast.AsyncFunctionDef)):
        return None  # other modules may have it too
    uses = table.reads(target.id, scope)
    call = table.parents[uses[0]] if len(uses) == 1 else None
    return call if isinstance(call, ast.Call) and call.func is uses[0] else None


def is_called(site: Site, study: Study) -> bool:
    """Whether the class as a value is seen to be called in the same file."""
    for call in site.module.table.calls:
        if call in study.constructors:
            continue
        for value in study.values(call.func, site.module):
            if isinstance(value, External) and fsdp1.canonical(value.name) == fsdp1.FSDP:
                return True
    return False
