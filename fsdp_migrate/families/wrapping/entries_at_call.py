"""Writes at the call what a function put into a dictionary and needs more than an entry of it."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterable, Sequence

from fsdp_migrate.families.wrapping import returned_dictionaries
from fsdp_migrate.planning.context import Study
from fsdp_migrate.planning.edits import Code, code
from fsdp_migrate.planning.model import Entry
from fsdp_migrate.planning.shard_plan import Precision, ShardPlan
from fsdp_migrate.syntax.kinds import present
from fsdp_migrate.syntax.trees import LOOPS


class PlanCode:
    """The code of a plan, in which some expressions are written in another way."""

    def __init__(self, plan: ShardPlan, replaced: Iterable[ast.AST]) -> None:
        self.plan = plan
        self.replaced = set(replaced)
        self.words: set[str] = set()  # that stand in the code

    def rewrite(self) -> None:
        """Rewrite all of the plan."""
        plan = self.plan
        for lines in (plan.setup, plan.before, plan.after, plan.finish):
            lines[:] = map(self._code, lines)
        plan.everywhere = {name: self._code(value) for name, value in plan.everywhere.items()}
        plan.walk = plan.walk and self._code(plan.walk)
        if plan.needs_ignored or plan.walk is not None:
            plan.ignored = plan.ignored and self._code(plan.ignored)
        plan.offloads = plan.offloads and self._code(plan.offloads)
        if plan.precision is not None:
            self._rewrite_precision(plan.precision)
        if plan.targets is not None:
            predicate = plan.targets.predicate
            self._code(predicate("module"))  # finds out what cannot be written
            plan.targets.predicate = lambda variable: self._code(predicate(variable))
            unless_none = plan.targets.unless_none
            plan.targets.unless_none = unless_none and self._code(unless_none)

    def _rewrite_precision(self, precision: Precision) -> None:
        precision.policy = self._code(precision.policy)
        root = precision.root_policy
        precision.root_policy = root and self._code(root)

    def _code(self, given: Code) -> Code:
        parts: dict[str, Code | ast.expr | str] = {}
        for name, part in given.parts.items():
            if part is self.plan.model:
                parts[name] = part
            elif isinstance(part, Code):
                parts[name] = self._code(part)
            elif isinstance(part, ast.expr) and part in self.replaced:
                parts[name] = self._node(part)
            else:
                parts[name] = part
        self.words.update(re.findall(r"\w+", Code(given.template, parts).flatten([])))
        return Code(given.template, parts)

    def _node(self, node: ast.expr) -> ast.expr | str:
        """How one of the expressions is written."""
        return ast.unparse(node).replace("'", '"')


class AtCall(PlanCode):
    """The code of a plan that reads entries of a dictionary, as the call can write it.

    ``taken`` are the entries that only the function can make: they stay in the dictionary, and the
    call takes them out of it. ``problem`` says why the plan cannot be written.
    """

    def __init__(self, plan: ShardPlan, entries: Sequence[Entry], study: Study) -> None:
        super().__init__(plan, ast.walk(present(present(plan.constructor.dictionary).function)))
        self.study = study
        self.entries = {entry.value: entry for entry in entries}
        self.taken: dict[Entry, str] = {}
        self.problem = ""

    def _rewrite_precision(self, precision: Precision) -> None:
        if any(entry.name == "mixed_precision" for entry in self.entries.values()):
            super()._rewrite_precision(precision)

    def _node(self, node: ast.expr) -> ast.expr | str:
        entry = self.entries.get(node)
        known = returned_dictionaries.at_call(node, self.plan.constructor, self.study)
        if entry in self.taken:
            return self.taken[entry]
        if known is not None:
            return known
        if (
            entry is None
            or returned_dictionaries.speaks_of_fsdp1(node, self.plan.constructor, self.study)
            or self._is_repeated()
        ):
            self.problem = f"{ast.unparse(node)} is known in another function alone"
            return node
        self.taken[entry] = self.plan.fresh(entry.name)
        return self.taken[entry]

    def _is_repeated(self) -> bool:
        """Whether a dictionary that is made once serves several calls, of which only the first
        could take something out of it."""
        constructor, table = self.plan.constructor, self.plan.constructor.module.table
        around = {*table.ancestors(constructor.call)} - {
            *table.ancestors(present(constructor.maker))
        }
        return any(isinstance(each, LOOPS) for each in around)

    def name_dictionary(self, *, is_read: bool) -> None:
        """Let the plan's calls have the dictionary, by a name where that is needed.

        Args:
            is_read: whether something else is asked of it.
        """
        plan = self.plan
        spread = present(plan.constructor.spread)
        parts = (plan.targets, plan.walk, plan.before, plan.after, plan.finish)
        several = any(parts) or plan.batch_norm
        first = int(plan.hoisted)
        plan.spread = code("{d}", d=spread)
        if isinstance(spread, ast.Call) and (several or is_read or self.taken):
            name = plan.proposal.fresh(plan.constructor.module, plan.constructor.call, "kwargs")
            plan.spread = code(name)
            plan.setup.insert(first, code("{n} = {c}", n=plan.spread, c=spread))
            first += 1
        for entry, name in self.taken.items():
            line = code('{n} = {d}.pop("{k}")', n=name, d=plan.spread, k=_spelled(entry))
            plan.setup.insert(first, line)


def _spelled(entry: Entry) -> str:
    """The key that an entry has in the dictionary."""
    if isinstance(entry.key, ast.keyword):
        return str(entry.key.arg)
    return str(getattr(entry.key, "value", entry.name))
