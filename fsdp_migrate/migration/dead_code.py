"""What becomes of sites that no torch runs which migrated code runs on: FSDP423.

Where such code is a part of an ``if`` statement, that part goes, as tools that raise a project's
Python do it. All sites in it go or none, so that each answers with the edit. What else only older
releases run is left; it holds nothing back, because nothing gets there.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import replace

from fsdp_migrate.analysis import dead_branches
from fsdp_migrate.analysis.module import Module
from fsdp_migrate.analysis.project import Outdated
from fsdp_migrate.fsdp1.construct import Construct
from fsdp_migrate.fsdp1.references import promised
from fsdp_migrate.fsdp1.site import Site
from fsdp_migrate.planning.context import Study
from fsdp_migrate.planning.model import Cause, Decision
from fsdp_migrate.planning.proposal import Proposal
from fsdp_migrate.syntax import suppressions
from fsdp_migrate.syntax.expressions import last_name
from fsdp_migrate.syntax.kinds import of_kind
from fsdp_migrate.syntax.trees import DEFINITIONS, FUNCTIONS, walk

CONSTRUCT = Construct.parse("code for older torch")
YIELDING = (ast.Yield, ast.YieldFrom)


def decide(site: Site, study: Study, code: str, *, stays: bool = False) -> Decision:
    """Gone with the branch it stands in, or left; ``stays`` when nothing is migrated."""
    found = part_of(site, study)
    if found.part == "definition":
        assert isinstance(found.node, DEFINITIONS)
        if not stays and _goes_along(found, site.module, study):
            proposal = study.proposal()
            proposal.delete(site.module, found.node)
            message = f"goes with code for torch {found.text}"
            return study.rewritten(site, code, message, proposal)
        why = dead_branches.MARK.format(found.text, found.node.name)
        return study.left(site, code, why, "delete it with what uses it", at=found.node)
    if stays or not _goes(found, site.module, study):
        why = f"only torch {found.text} runs this"
        first = _in_elif(found.body[0], site.module) if found.part == "orelse" else found.body[0]
        shares = found.part in {"body", "orelse"} and _shares_line(first, site.module)
        at = found.node if shares else first
        return study.left(site, code, why, "delete it, once no older torch is meant", at=at)
    proposal = study.proposal()
    _remove(of_kind(found.node, ast.If), found.part, site.module, proposal)
    return study.rewritten(site, code, f"goes with code for torch {found.text}", proposal)


def part_of(site: Site, study: Study) -> Outdated:
    """The code that a site goes with: for one in a test, what the test keeps from running."""
    outdated = study.project.outdated
    found = outdated[site.reference]
    if found.part == "test":
        return outdated[of_kind(found.node, ast.If).body[0]]
    return found


def of(site: Site, study: Study, *, stays: bool = False) -> Decision:
    """The decision for a site of outdated code."""
    rule, own = study.registry.rule_for(CONSTRUCT), study.registry.rule_for(site.construct)
    decision = decide(site, study, rule.code, stays=True) if stays else rule.decide(site, study)
    return replace(decision, cause=Cause.OUTDATED, rule=own.code)


def _remove(node: ast.If, part: str, module: Module, proposal: Proposal) -> None:
    table = module.table
    above = table.parents[node]
    if part == "orelse":
        proposal.drop_else(module, node)
    elif node.orelse or (isinstance(above, ast.If) and above.orelse == [node]):
        proposal.drop_branch(module, node)
    else:
        proposal.delete(module, node)


# -- whether it can be removed --------------------------------------------------------


def _goes(found: Outdated, module: Module, study: Study) -> bool:
    known = study.going.get(found)
    if known is None:
        known = study.going[found] = _can_go(found, module, study)
    return known


def _can_go(found: Outdated, module: Module, study: Study) -> bool:
    node = found.node
    if not isinstance(node, ast.If) or found.part not in {"body", "orelse"}:
        return False
    if _shares_line(found.body[0], module):
        return False
    if found.part == "body":
        test = study.project.outdated.get(node.test)
        if test is None or test.node is not node:
            return False  # asking does something
    inside = {n for each in found.body for n in walk(each)}
    if any(isinstance(n, (ast.Global, ast.Nonlocal)) for n in inside):
        return False  # other code is read by it
    if _makes_generator(node, inside, module):
        return False
    if any(_is_ignored(site, study) for site in study.outdated if part_of(site, study) is found):
        return False
    if _uses_ignored(inside, study):
        return False
    if found.part == "body":
        inside.update(walk(node.test))
    return not any(_is_used(name, inside, module, study) for name in _bound(inside, module))


def _goes_along(found: Outdated, module: Module, study: Study) -> bool:
    """Whether a function goes with the code that goes: one of the file's own, by its name, that
    nothing else mentions."""
    known = study.going.get(found)
    if known is None:
        study.going[found] = False  # where two mention each other only
        known = study.going[found] = _is_left_alone(found, module, study)
    return known


def _is_left_alone(found: Outdated, module: Module, study: Study) -> bool:
    node, table = found.node, module.table
    if not isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
        return False
    if table.scope_of(node) is not table.module:
        return False
    name = node.name
    if not name.startswith("_") or name.startswith("__") or name in promised(module):
        return False
    if _shares_line(node, module):
        return False
    inside = set(walk(node))
    if any(_is_ignored(site, study) for site in study.outdated if site.reference in inside):
        return False
    if _uses_ignored(inside, study):
        return False
    others = [m.source.data for m in study.project.modules if m is not module]
    library = study.project.library
    others += [library.read(path) for path in library.paths]
    if any(name.encode() in data for data in others):
        return False
    mentions: list[ast.AST] = [n for n in table.names if n.id == name]
    mentions += [a for a in table.attributes if a.attr == name]
    mentions += [s for s in table.strings if name in str(s.value)]
    outside = [mention for mention in mentions if mention not in inside]
    return bool(outside) and all(_is_in_what_goes(m, module, study) for m in outside)


def _is_in_what_goes(mention: ast.AST, module: Module, study: Study) -> bool:
    around = study.project.outdated.get(mention)
    if around is None:
        return False
    if all(part_of(site, study) is not around for site in study.outdated):
        return False  # nothing of FSDP1's in it, so that it stays
    if around.part == "definition":
        return _goes_along(around, module, study)
    return _goes(around, module, study)


def _makes_generator(node: ast.If, inside: set[ast.AST], module: Module) -> bool:
    """Whether a function yields nowhere but in what would go."""

    def function(each: ast.AST) -> ast.AST | None:
        return next((p for p in module.table.ancestors(each) if isinstance(p, FUNCTIONS)), None)

    own = function(node)
    if own is None:
        return False
    yields = [n for n in walk(own) if isinstance(n, YIELDING) and function(n) is own]
    return bool(yields) and inside.issuperset(yields)


def _in_elif(first: ast.AST, module: Module) -> ast.AST:
    """The first statement under an ``elif``: a marker above the chain would be on all of it."""
    while isinstance(first, ast.If) and module.source.lines[first.lineno - 1].lstrip().startswith(
        "elif"
    ):
        first = first.body[0]
    return first


def _shares_line(first: ast.AST, module: Module) -> bool:
    """Whether a statement stands behind something else, such as a colon."""
    first = of_kind(first, ast.stmt)
    line = module.source.lines[first.lineno - 1]
    before = line[: module.source.column(first.lineno, first.col_offset)].strip()
    return bool(before) and not line.strip().startswith(("elif", "@"))


def _uses_ignored(inside: set[ast.AST], study: Study) -> bool:
    """Whether code mentions a function that stays because of a comment in it: without that
    mention, nothing would say that only older releases run it."""
    kept = {
        owner.name
        for site in study.outdated
        if isinstance(owner := part_of(site, study).node, DEFINITIONS)
        and owner not in inside
        and _is_ignored(site, study)
    }
    return bool(kept) and any(last_name(node) in kept for node in inside)


def _is_ignored(site: Site, study: Study) -> bool:
    own = study.registry.rule_for(site.construct)
    return (
        suppressions.find(
            site.node, site.module.source, site.module.table, dead_branches.CODE, own.code
        )
        is not None
    )


def _bound(inside: set[ast.AST], module: Module) -> Iterator[tuple[str, ast.AST]]:
    """Names that code binds and nothing else does, with the node of the scope they are bound in."""
    for node, scope in module.table.scopes.items():
        if node in inside:
            continue
        for name, bindings in scope.bindings.items():
            if bindings and all(b.node in inside for b in bindings):
                yield name, node


def _is_used(
    bound: tuple[str, ast.AST], inside: set[ast.AST], module: Module, study: Study
) -> bool:
    """Whether a name is used elsewhere, even if no torch from the target on gets there."""
    name, owner = bound
    table = module.table
    scope = table.scopes[owner]
    for use in table.names:
        if use.id == name and use not in inside and table.within[use].lookup(name) is scope:
            return True
    if scope is not table.module:
        return False
    return name in promised(module) or _is_imported(name, module, study)


def _is_imported(name: str, module: Module, study: Study) -> bool:
    """Whether another module takes a name from a module where torch from the target on runs it."""
    project = study.project
    for other in project.modules:
        if other is module:
            continue
        if any(
            project.resolve(binding.qualified, other) == (module, name)
            for binding in other.table.imports
            if binding.node not in project.outdated
        ):
            return True
        if any(project.resolve(star, other) == (module, "") for _, star in other.table.stars):
            return True
        if other.mentions(name):
            for attribute in other.table.attributes:
                if attribute.attr == name and attribute not in project.outdated:
                    for qualified in other.table.qualify(attribute):
                        if project.resolve(qualified, other) == (module, name):
                            return True
    return False
