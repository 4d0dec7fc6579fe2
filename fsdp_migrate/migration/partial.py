"""Where a program can be stopped at a site that is left and would go quietly wrong.

A guard raises where the site would run, and nowhere else; nothing in the project catches what it
raises, or it leaves the process. Where that cannot be had, the site's model stays FSDP1.
"""

from __future__ import annotations

import ast
import textwrap
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import replace

from fsdp_migrate.families.wrapping import vocabulary, wrap_contexts
from fsdp_migrate.fsdp1.construct import Construct, ConstructKind
from fsdp_migrate.fsdp1.site import Site
from fsdp_migrate.migration import caught, guard_place, guard_tests, imported_guards
from fsdp_migrate.planning.context import Study
from fsdp_migrate.planning.edits import Code, Edit, Insert, Mark, code, join
from fsdp_migrate.planning.model import Decision, Guard
from fsdp_migrate.planning.outcome import Outcome
from fsdp_migrate.planning.prose import sentences
from fsdp_migrate.syntax import guards
from fsdp_migrate.syntax.trees import block_of

# What makes models: left, nothing of what is done to them may be migrated.
MAKERS = frozenset(
    {ConstructKind.PARTIAL, ConstructKind.CLASS, ConstructKind.VALUE, ConstructKind.IMPORT}
)
TEST = "test"  # the hole of a guard's condition


def guarded(decisions: Sequence[Decision], study: Study) -> list[Decision]:
    """``decisions``, those that hold migrations back with the guards that could stand there."""
    nodes: set[ast.AST] = {d.site.node for d in decisions} | {d.site.reference for d in decisions}
    if not any(map(holds, decisions)):
        return list(decisions)
    return [_guarded(d, nodes, study) if holds(d) else d for d in decisions]


def holds(decision: Decision) -> bool:
    """Whether a decision holds a migration back and could be let go."""
    return decision.outcome is Outcome.LEFT and decision.quiet and bool(decision.models)


def edits(decisions: Iterable[Decision]) -> Iterator[Edit]:
    """What puts the guards of ``decisions`` in their places: one a place, with all markers.

    None stands behind another that always stops: its marker alone does.
    """
    guards_here = [d.guard.edits for d in decisions if d.guard.stands]
    stopping = {
        edit.node
        for guard in guards_here
        for edit in guard
        if isinstance(edit, Insert) and TEST not in edit.codes[0].parts
    }
    placed: set[tuple[ast.stmt, str]] = set()
    for guard in guards_here:
        marks = [edit for edit in guard if isinstance(edit, Mark)]
        inserted = (edit for edit in guard if isinstance(edit, Insert))
        if marks and any(_is_behind(edit, stopping) for edit in inserted):
            yield from marks
            continue
        for edit in guard:
            if isinstance(edit, Insert):
                test = edit.codes[0].parts.get(TEST)
                place = (edit.node, test.preview() if isinstance(test, Code) else "")
                if place in placed:
                    continue
                placed.add(place)
            yield edit


def _is_behind(guard: Insert, stopping: Collection[ast.AST]) -> bool:
    """Whether a guard stands below another in its block, or in a block that stands there."""
    parents = guard.module.table.parents
    node: ast.AST = guard.node
    while not isinstance(node, (*guard_place.DEFINITIONS, ast.ClassDef, ast.Module)):
        if isinstance(node, ast.stmt):
            block = block_of(parents[node], node)
            if any(above in stopping for above in block[: block.index(node)]):
                return True
        node = parents[node]
    return False


def _guarded(decision: Decision, nodes: set[ast.AST], study: Study) -> Decision:
    site = decision.site
    try:
        setting = site.construct.owner in vocabulary.SETTINGS
        if setting or _makes_models(site, study):
            raise guard_place.Nowhere("it is what makes the model")
        if site.node in study.failures:
            raise guard_place.Nowhere("the rule failed")
        place = guard_place.find(site, nodes)
        imported_guards.check(decision, place.statement, study)
        error = caught.stopping_error(site.module, place.statement, study)
    except guard_place.Nowhere as why:
        return replace(decision, guard=Guard(problem=str(why)))
    return replace(decision, guard=Guard(_edits(decision, place, error, study)))


def _edits(
    decision: Decision, place: guard_place.Place, error: str, study: Study
) -> tuple[Edit, ...]:
    site, statement = decision.site, place.statement
    module = site.module
    sentence = next(
        (e.sentence for e in decision.edits if isinstance(e, Mark)),
        sentences(decision.message, decision.help),
    )
    mark = Mark(module, statement, decision.code, sentence)
    proposal = study.proposal()
    modules: dict[str, str] = {}
    if error == guards.EXIT:
        modules = {n: proposal.module_name(module, n, n, statement) for n in ("os", "sys")}
    text = guards.text(decision.code, decision.message, error, **modules)
    parent = module.table.parents[statement]
    on_one_line = isinstance(parent, ast.stmt) and parent.lineno == statement.lineno
    if on_one_line:  # the marker's place is in the block that the line becomes
        text = f"{mark.comment}\n{text}"
    raises = code("{r}", r=text)
    conditions = [*place.conditions]
    if (test := guard_tests.test_of(decision, statement, study, proposal)) is not None:
        conditions.append(test)
    if conditions:
        asked = join(" and ", conditions)
        raises = Code(f"if {{{TEST}}}:\n{{r}}", {"r": textwrap.indent(text, "    "), TEST: asked})
    inserted = Insert(module, statement, (raises,))
    marks = () if on_one_line else (mark,)
    return (*proposal.edits, inserted, *marks)


def behind_guards(decisions: Sequence[Decision], study: Study) -> list[Decision]:
    """``decisions`` with what an earlier run left: sites that a guard keeps from running
    stay as they are, and a guard with no site behind it is one itself."""
    result: list[Decision] = []
    claimed: set[ast.AST] = set()
    for decision in decisions:
        site = decision.site
        guard = guards.before(site.module.table, site.node)
        if guard is None or _makes_models(site, study):
            result.append(decision)
        else:
            claimed.add(guard.statement)
            result.append(_left_behind(site, guard))
    for module in study.project.modules:
        for guard in guards.of(module.table).values():
            if guard.statement not in claimed:
                site = Site(Construct.parse("guard"), module, guard.statement, guard.statement)
                result.append(_left_behind(site, guard))
    return result


def _makes_models(site: Site, study: Study) -> bool:
    """Whether a site is of what makes the models."""
    construct = site.construct
    of_class = construct.is_constructor or construct.kind in MAKERS
    return of_class or construct in wrap_contexts.CONSTRUCTS or site.node in study.constructors


def _left_behind(site: Site, guard: guards.Guard) -> Decision:
    """Left behind a guard, which says why."""
    help_ = "migrate what stands behind the guard, and remove it"
    return Decision(site, guard.code, Outcome.LEFT, guard.reason, help_, guard=Guard(stands=True))
