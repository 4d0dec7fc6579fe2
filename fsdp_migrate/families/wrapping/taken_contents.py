"""What a dictionary of arguments may have, read from all that is done with it."""

from __future__ import annotations

import ast
from collections import defaultdict
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

from fsdp_migrate.analysis.module import Module
from fsdp_migrate.families.wrapping.run_time import OBSOLETE
from fsdp_migrate.families.wrapping.written_dictionaries import Unreadable
from fsdp_migrate.fsdp1 import api as fsdp1
from fsdp_migrate.planning.context import Study
from fsdp_migrate.planning.model import Constructor, Entry

NEEDLESS = OBSOLETE | {"use_orig_params"}  # in FSDP2, whatever they are


@dataclass(eq=False)
class Contents:
    """What a dictionary may have, by the argument: the expressions that are put there, each with
    its file; those that it may lack; those that something else asks it for."""

    module: Module
    entries: tuple[Entry, ...]
    places: dict[str, list[tuple[ast.expr, Module]]] = field(init=False)
    lacking: set[str] = field(init=False)
    asked: set[str] = field(default_factory=set)
    function: ast.FunctionDef | None = None  # that makes it
    calls: dict[Constructor, ast.Call] = field(default_factory=dict)  # of that
    made: ast.Call | ast.Dict | None = None  # what it is before anything is put into it
    members: list[Entry] = field(default_factory=list)  # strategies that each constructor says
    said: list[Entry] = field(default_factory=list)  # the same, of another file

    def __post_init__(self) -> None:
        self.places = defaultdict(list)
        for entry in self.entries:
            self.places[entry.name].append((entry.value, self.module))
        certain = {entry.name for entry in self.entries if not entry.is_conditional}
        self.lacking = self.places.keys() - certain
        displays = (entry.display for entry in self.entries if entry.display is not None)
        self.made = self.made or next(displays, None)

    @property
    def going(self) -> list[Entry]:
        """The entries that FSDP2 has no use for in the dictionary, if something stays beside each,
        or what is first made may be empty."""
        needless = [
            entry
            for entry in self.entries
            if entry in (*self.members, *self.said)
            or (
                entry.name in NEEDLESS - self.asked
                and len(self.places[entry.name]) == 1
                and not any(isinstance(node, ast.Call) for node in ast.walk(entry.value))
            )
            or (entry.display is self.made and self.is_constant(entry.name))
        ]
        beside = {entry.display for entry in self.entries if entry not in needless}
        beside = {*beside, self.made} - {None}
        return [entry for entry in needless if entry.display in beside or entry.is_statement]

    def is_constant(self, name: str) -> bool:
        """Whether each constructor says the one constant that the dictionary has for an argument,
        so that it need not be there."""
        constants = [v for v, _ in self.places[name] if isinstance(v, ast.Constant)]
        alone = len(constants) == len(self.places[name]) == 1
        return alone and name not in self.lacking | self.asked

    def written_members(self, study: Study) -> list[Entry]:
        """The strategies that are written out in what is first made, and nowhere else: each
        constructor says what they mean. Hybrid sharding makes a mesh where none is given."""
        return [
            entry
            for entry in self.entries
            if entry.name == "sharding_strategy"
            and entry.display is self.made
            and not entry.is_conditional
            and len(self.places[entry.name]) == 1
            and entry.name not in self.asked
            and self._is_member(entry, study)
        ]

    def _is_member(self, entry: Entry, study: Study) -> bool:
        names = [*filter(None, map(fsdp1.canonical, study.external(entry.value, self.module)))]
        is_hybrid = any("HYBRID" in name for name in names)
        return bool(names) and not (is_hybrid and "device_mesh" in self.lacking)

    def put(self, name: str, value: ast.expr, module: Module) -> None:
        """Something else is put there as well, at some time."""
        if name not in self.places:
            self.lacking.add(name)
        self.places[name].append((value, module))


Found = Iterator[tuple[list[Constructor], Callable[[], Contents]]]


def read_use(
    use: ast.Name | ast.Attribute, module: Module, contents: Contents, readers: set[ast.expr]
) -> None:
    """Read what something does with a dictionary.

    Raises:
        Unreadable: it may do anything.
    """
    parents = module.table.parents
    parent = parents[use]
    if use in readers and isinstance(parent, ast.keyword):
        return
    match parent:
        case ast.Subscript(value=value, slice=ast.Constant(value=str(key)), ctx=ctx) if (
            value is use
        ):
            name = fsdp1.EARLIER_NAMES.get(key, key)
        case ast.FormattedValue():
            return  # a text for people
        case ast.Call(func=ast.Name(id="print")):
            return
        case _:
            raise Unreadable("it is used in another way")
    match parents[parent]:
        case ast.Assign(targets=[target], value=value) if target is parent:
            contents.put(name, value, module)
        case _ if isinstance(ctx, ast.Load):
            contents.asked.add(name)
        case _:
            raise Unreadable("it is changed in another way")
