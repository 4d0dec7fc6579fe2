"""What a dictionary of arguments may have, read from all that is done with it."""

from __future__ import annotations

import ast
from collections import defaultdict
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

from fsdp_migrate.analysis.module import Module
from fsdp_migrate.families.wrapping import offloading
from fsdp_migrate.families.wrapping.run_time import OBSOLETE
from fsdp_migrate.families.wrapping.written_dictionaries import Unreadable
from fsdp_migrate.fsdp1 import api as fsdp1
from fsdp_migrate.planning.context import Study
from fsdp_migrate.planning.model import Constructor, Entry
from fsdp_migrate.syntax.kinds import of_kind

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
    # What callers put there before anything reads it, in the place of what was made.
    replaced: frozenset[str] = frozenset()
    added: list[tuple[Entry, Module]] = field(default_factory=list)  # by statements of callers
    is_asked_itself: bool = False  # whether it is empty
    idle: frozenset[str] = frozenset()  # arguments that say what saying nothing does

    def __post_init__(self) -> None:
        self.places = defaultdict(list)
        for entry in self.entries:
            if entry.name not in self.replaced:
                self.places[entry.name].append((entry.value, self.module))
        certain = {entry.name for entry in self.entries if not entry.is_conditional}
        self.lacking = self.places.keys() - certain
        displays = (entry.display for entry in self.entries if entry.display is not None)
        self.made = self.made or next(displays, None)

    @property
    def written(self) -> list[tuple[Entry, Module]]:
        """All that puts arguments there, each with its file."""
        return [*((entry, self.module) for entry in self.entries), *self.added]

    @property
    def going(self) -> list[tuple[Entry, Module]]:
        """The entries that FSDP2 has no use for in the dictionary, if something stays beside each,
        or what is first made may be empty; and those that are replaced before anything reads them.

        Raises:
            Unreadable: nothing would stay, and something asks whether there is anything.
        """
        needless = [(entry, module) for entry, module in self.written if self._is_needless(entry)]
        going = {entry for entry, _ in needless}
        staying = [entry for entry in self.entries if entry not in going]
        if self.is_asked_itself and all(entry.is_conditional for entry in staying):
            raise Unreadable("it would be empty, and something asks whether it is")
        beside = {self.made, None} | {entry.display for entry in staying}
        return [each for each in needless if each[0].display in beside]

    def _is_needless(self, entry: Entry) -> bool:
        name, values = entry.name, self.places[entry.name]
        if entry in (*self.members, *self.said) or self.is_replaced(entry) or name in self.idle:
            return True
        known = [e for e, _ in self.written if e.name == name and not self.is_replaced(e)]
        if name in NEEDLESS - self.asked and len(known) == len(values):
            nodes = (node for value, _ in values for node in ast.walk(value))
            return not any(isinstance(node, ast.Call) for node in nodes)
        is_here = entry.display is self.made or entry in (each for each, _ in self.added)
        return is_here and self.is_constant(name)

    def find_idle(self, study: Study) -> None:
        """Note a policy by which nothing is offloaded, where it is all that is ever there."""
        values = self.places.get("cpu_offload", [])
        for value, module in values[:1]:
            made = [*study.values(value, module)]
            is_here = len(values) == 1 and all(each.node is value for each in made)
            try:
                if is_here and not any(offloading.flag(each, study) for each in made):
                    self.idle = frozenset({"cpu_offload"}) - self.lacking - self.asked
            except offloading.Unreadable:
                continue

    def is_replaced(self, entry: Entry) -> bool:
        return entry.name in self.replaced and entry in self.entries

    def is_constant(self, name: str) -> bool:
        """Whether each constructor says the one constant that the dictionary has for an argument,
        so that it need not be there."""
        values = [value for value, _ in self.places[name]]
        constants = {repr(value.value) for value in values if isinstance(value, ast.Constant)}
        all_are = all(isinstance(value, ast.Constant) for value in values)
        return all_are and len(constants) == 1 and name not in self.lacking | self.asked

    def written_members(self, study: Study) -> list[Entry]:
        """The strategies that are written out in what is first made, or that replace one, and
        nowhere else: each constructor says what they mean. Hybrid sharding makes a mesh where none
        is given."""
        return [
            entry
            for entry, module in self.written
            if entry.name == "sharding_strategy"
            and (entry.display is self.made or entry not in self.entries)
            and not entry.is_conditional
            and not self.is_replaced(entry)
            and len(self.places[entry.name]) == 1
            and entry.name not in self.lacking | self.asked
            and self._is_member(entry, module, study)
        ]

    def _is_member(self, entry: Entry, module: Module, study: Study) -> bool:
        names = [*filter(None, map(fsdp1.canonical, study.external(entry.value, module)))]
        is_hybrid = any("HYBRID" in name for name in names)
        return bool(names) and not (is_hybrid and "device_mesh" in self.lacking)

    def view(self, constructor: Constructor) -> Contents:
        """What a constructor may be given."""
        return self

    def put(self, name: str, value: ast.expr, module: Module) -> None:
        """Something else is put there as well, at some time."""
        if name not in self.places and name not in self.replaced:
            self.lacking.add(name)
        self.places[name].append((value, module))


Found = Iterator[tuple[list[Constructor], Callable[[], Contents]]]


def read_use(
    use: ast.Name | ast.Attribute,
    module: Module,
    contents: Contents,
    readers: set[ast.expr],
    *,
    stays: bool = False,
) -> None:
    """Read what something does with a dictionary.

    Args:
        stays: a statement that puts something there may be for other dictionaries as well.

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
        case _ if _is_told(use, module):
            return  # a text for people
        case _:
            raise Unreadable("it is used in another way")
    match parents[parent]:
        case ast.Assign(targets=[target], value=value) as statement if target is parent:
            contents.put(name, value, module)
            place = of_kind(parent, ast.Subscript).slice
            entry = Entry(name, value, value, place, statement, is_conditional=False)
            if not stays:
                contents.added.append((entry, module))
        case _ if isinstance(ctx, ast.Load):
            contents.asked.add(name)
        case _:
            raise Unreadable("it is changed in another way")


def _is_told(use: ast.expr, module: Module) -> bool:
    """Whether a dictionary, or what is in it, is only told: ``print(settings.keys())``."""
    parents, told = module.table.parents, use
    match parents[use]:
        case ast.Attribute(attr="keys" | "values" | "items") as asked:
            call = parents[asked]
            told = call if isinstance(call, ast.Call) and not call.args else use
    match parents[told]:
        case ast.FormattedValue() | ast.Call(func=ast.Name(id="print")):
            return True
    return False
