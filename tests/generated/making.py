"""Take a program, hide one of its models somewhere, migrate both, and look for what is not said."""

from __future__ import annotations

import ast
import random
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from itertools import islice
from pathlib import Path

from fsdp_migrate.fsdp1 import api as fsdp1
from fsdp_migrate.fsdp1.construct import ConstructKind
from fsdp_migrate.migration.engine import Result
from fsdp_migrate.planning.model import Decision
from fsdp_migrate.planning.outcome import Outcome
from fsdp_migrate.syntax.expressions import names_in
from tests.generated import hiding
from tests.helpers.migrating import REGISTRY, ROOT, files, migrate, support_functions

FIXTURES = Path(__file__).parents[2] / "fixtures"
TRIES = 20  # until something can be hidden in a program the way that is chosen
NAMED = re.compile(r"what (\w+)\(\) does")
TAKEN = re.compile(r"\.(?:get|pop)\(\"(\w+)\"")  # a key of FSDP1's that new code reads
GATHERING = frozenset({"FullyShardedDataParallel.summon_full_params"})
MAKING = (ConstructKind.CONSTRUCTOR, ConstructKind.PARTIAL)


@dataclass(frozen=True)
class Base:
    """A program that is migrated whole, and where something can be hidden in it."""

    name: str
    files: Mapping[str, str]
    changed: Mapping[str, Counter[str]]  # by file, the statements that the migration takes away
    after: Mapping[str, Counter[str]]  # the statements that there are then
    places: tuple[tuple[str, ast.expr | None, ast.stmt, bool], ...]


@dataclass(frozen=True)
class Case:
    """One program, and what is hidden in it how."""

    base: Base
    path: str
    way: str
    line: int
    files: Mapping[str, str]
    hidden: hiding.Hidden
    makes: bool  # what is hidden is the call that makes the model

    def __str__(self) -> str:
        return f"{self.base.name}, {self.path}:{self.line}, hidden in {self.way}"

    def is_hidden_by(self, why: str) -> bool:
        """Whether a reason names a function that something is hidden by here."""
        named = NAMED.match(why)
        form = hiding.EXPRESSIONS.get(self.way, "")
        return named is not None and f"{named[1]}(" in form


def bases() -> Iterator[Base]:
    """Fixtures and examples that are migrated whole."""
    for folder in sorted(FIXTURES.glob("rewriting/*")):
        yield from _base(f"fixtures/{folder.name}", files(folder))
    for rule in REGISTRY.rules.values():
        for example in rule.examples:
            given = {"example.py": example.before}
            given |= {path: before for path, (before, _) in example.files.items()}
            yield from _base(f"{rule.code} {example.title}", given)


def _base(name: str, given: Mapping[str, str]) -> Iterator[Base]:
    given = {path: text for path, text in given.items() if path.endswith(".py")}
    result, after = migrate(given)
    if not _is_migrated(result):
        return
    kept = {path: _statements(after[path]) for path in given}
    changed = {path: _statements(text) - kept[path] for path, text in given.items()}
    places = tuple(
        place
        for decision in result.decisions
        if decision.outcome is not Outcome.LEFT
        for place in _places(decision, changed)
    )
    if places:
        yield Base(name, given, changed, kept, places)


def _statements(text: str) -> Counter[str]:
    return Counter(head for _, head in hiding.heads(ast.parse(text)))


def _places(
    decision: Decision, changed: Mapping[str, Counter[str]]
) -> Iterator[tuple[str, ast.expr | None, ast.stmt, bool]]:
    """What can be hidden of a site: its model, or the whole statement."""
    site = decision.site
    path = site.module.source.path.relative_to(ROOT).as_posix()
    statement = site.statement
    heads = dict(hiding.heads(site.module.table.tree))
    if path not in changed or not changed[path][heads.get(statement, "")]:
        return
    makes = site.construct.kind in MAKING
    models = [site.receiver]
    if makes:
        models = [site.call]
    elif isinstance(site.node, ast.Call) and site.receiver is None:
        models = [a for a in site.node.args[:1] if isinstance(a, (ast.Name, ast.Attribute))]
    for model in models:
        if model is not None:
            yield path, model, statement, makes
    yield path, None, statement, makes


def _is_migrated(result: Result) -> bool:
    """Whether models are made, and none of them as before."""
    makers = [d for d in result.decisions if d.site.construct.kind in MAKING]
    return bool(makers) and all(d.outcome is not Outcome.LEFT for d in makers)


def cases(every: Iterable[Base], seed: int) -> Iterator[Case]:
    """One program made from each of the others, and one more of each with every further ``seed``.

    What is made from one program does not change with the others that there are.
    """
    for base in every:
        chosen = random.Random(f"{seed} {base.name}")
        tried = (case(base, chosen) for _ in range(TRIES))
        yield from islice(filter(None, tried), 1)


def case(base: Base, chosen: random.Random) -> Case | None:
    """One program made from another; None where what was chosen does not go."""
    path, model, statement, makes = chosen.choice(base.places)
    source = base.files[path]
    if model is not None:
        way = chosen.choice(sorted(hiding.EXPRESSIONS))
        hidden = hiding.hide_expression(source, model, statement, way)
    else:
        way = chosen.choice(sorted(hiding.STATEMENTS))
        hidden = hiding.hide_statement(source, statement, way)
    if hidden is None:
        return None
    try:
        compile(hidden.text, path, "exec")
    except SyntaxError:
        return None
    given = {**base.files, path: hidden.text}
    return Case(base, path, way, statement.lineno, given, hidden, makes)


def unsaid(made: Case) -> list[str]:
    """The statements that are as they were in a migrated program, and about which nothing is said.

    The original's migration changes them. Edits take most of a run's time, and are made only where
    decisions alone do not tell.
    """
    return _unsaid(made, *migrate(made.files, edit=False)) and _unsaid(made, *migrate(made.files))


def _unsaid(made: Case, result: Result, after: Mapping[str, str]) -> list[str]:
    if result.problems or not _is_migrated(result):
        return []
    takes_settings = "shard" in support_functions(after)  # in FSDP1's words, as the program runs
    taken = {key for text in after.values() for key in TAKEN.findall(text)}
    found: list[str] = []
    for path, text in made.files.items():
        told = [each for each in result.not_followed if each.display == path]
        if any(made.is_hidden_by(each.why) for each in told):
            continue  # what is not followed is said once in a file
        if any(d.site.doubt for d in result.decisions if d.site.module.display == path):
            continue  # what is not followed is said once in a file
        decided = {
            line
            for d in result.decisions
            if d.site.module.source.path == ROOT / path
            for line in _answered(d)
        }
        left = {
            name
            for d in result.decisions
            if d.outcome is Outcome.LEFT and d.site.module.display == path
            for name in _bound(d.site.statement)
        }
        kept = _statements(after[path])
        tree = ast.parse(text)
        around = {n: s for s in ast.walk(tree) for n in ast.iter_child_nodes(s)}
        for statement, head in hiding.heads(tree):
            here = (path, statement.lineno, statement.col_offset)
            is_hidden = here == (made.path, made.hidden.line, made.hidden.column)
            if not is_hidden and not made.makes:
                continue  # what is hidden in one place concerns that place
            may_stay = 0 if is_hidden else made.base.after[path][head]
            if not is_hidden and not made.base.changed[path][head]:
                continue
            inside = range(statement.lineno, (statement.end_lineno or statement.lineno) + 1)
            if not left.isdisjoint(names_in(statement)):
                continue  # it goes on with what is left
            is_said = not decided.isdisjoint(inside)
            lines = {
                *inside,
                getattr(around[statement], "lineno", 0),
            }  # what its head says is around
            is_said = is_said or any(each.line in lines for each in told)
            is_said = is_said or (takes_settings and _is_setting(head))
            is_said = is_said or _sets_taken(statement, taken)
            if kept[head] > may_stay and not is_said:
                found.append(f"{path}:{statement.lineno}: {head}")
    return found


def _answered(decision: Decision) -> range:
    """The lines that a decision is about: what gathers whole parameters does so for its block."""
    first = decision.site.statement
    last = first.end_lineno if str(decision.site.construct) in GATHERING else None
    return range(first.lineno, (last or first.lineno) + 1)


def _bound(statement: ast.stmt) -> set[str]:
    return {
        node.id
        for node in ast.walk(statement)
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store)
    }


def _is_setting(head: str) -> bool:
    """Whether a statement puts arguments together, and asks no model for anything."""
    return not any(f".{name}" in head for name in fsdp1.OF_MODELS)


def _sets_taken(statement: ast.stmt, taken: set[str]) -> bool:
    """Whether a statement sets what the new code takes out of a dictionary by the same key."""
    match statement:
        case ast.Assign(targets=[ast.Subscript(slice=ast.Constant(value=str(key)))]):
            return key in taken
    return False
