"""What is known of settings: which values each has, or has not."""

from __future__ import annotations

import ast
import itertools
import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass

from fsdp_migrate.analysis.flow import access_path


@dataclass(frozen=True)
class Member:
    """A value that is spelled ``Mode.FSDP``; members of one class differ when their names do."""

    owner: str
    name: str


class Absence:
    """The value of a setting that is not there."""


ABSENT = frozenset({Absence()})


@dataclass(frozen=True)
class Fact:
    """A setting has one of some values, or none of them. Whether absence is among them counts only
    beside what is known to be absent: other reads are taken to have one default."""

    setting: str
    values: frozenset[object]
    holds: bool

    def contradicts(self, other: Fact) -> bool:
        """Whether both cannot be true in one run."""
        if self.setting != other.setting or not (self.holds or other.holds):
            return False
        is_absent = ABSENT in {self.values, other.values}
        here, there = (f.values if is_absent else f.values - ABSENT for f in (self, other))
        if self.holds and other.holds:
            return (is_absent or _comparable(here | there)) and not here & there
        return here <= there if self.holds else there <= here


Facts = frozenset[frozenset[Fact]]  # all hold: of each set, one fact at least
NOTHING: Facts = frozenset()
PARTS = 8  # combinations of facts that are looked at


def sure(fact: Fact) -> Facts:
    return frozenset({frozenset({fact})})


def _comparable(values: Iterable[object]) -> bool:
    """Whether values are literals, or members of one class."""
    return len({v.owner if isinstance(v, Member) else "" for v in values}) == 1


def either(parts: list[Facts]) -> Facts:
    """What is known where one of several conditions holds."""
    if not all(parts) or math.prod(map(len, parts)) > PARTS:
        return NOTHING
    return frozenset(frozenset().union(*each) for each in itertools.product(*parts))


def contradict(one: Facts, other: Facts, settled: Callable[[str], bool]) -> bool:
    """Whether not all of two sets of facts can hold, going by settings that do not change."""
    for sure, asked in ((one, other), (other, one)):
        known = [fact for each in sure if len(each) == 1 for fact in each]
        for each in asked:
            if all(any(k.contradicts(f) and settled(k.setting) for k in known) for f in each):
                return True
    return False


def compared_value(node: ast.expr) -> tuple[object] | None:
    """A literal or a member of a class, which a setting is compared with."""
    match node:
        case ast.Constant(value=str() | int() | float() | None as value):
            return (value,)
        case ast.UnaryOp(op=ast.USub(), operand=ast.Constant(value=int() | float() as value)):
            return (-value,)
        case ast.Attribute(attr=name) if (owner := access_path(node.value)) is not None:
            return (Member(owner, name),) if name[:1].isupper() else None
    return None


def matched_values(pattern: ast.pattern) -> frozenset[object] | None:
    """The values that a pattern matches; None where that cannot be said."""
    match pattern:
        case ast.MatchValue(value=node) if (value := compared_value(node)) is not None:
            return frozenset(value)
        case ast.MatchSingleton(value=constant):
            return frozenset({constant})
        case ast.MatchOr(patterns=patterns):
            each = [matched_values(p) for p in patterns]
            known = [values for values in each if values is not None]
            return frozenset().union(*known) if len(known) == len(each) else None
    return None
