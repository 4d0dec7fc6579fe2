"""The values that expressions may have. Each knows its *origin*: the expression that made it."""

from __future__ import annotations

import ast
from dataclasses import dataclass, field
from functools import cache
from zlib import crc32

from fsdp_migrate.analysis.module import Module

UNCALLED = ", which nothing here calls"
NOT_KNOWN = " is called on is not known"
NOWHERE = " is not defined in these paths"
TOO_LONG = "the data flow is too long to follow"
SHORT = 4  # parts of a dotted name
_HASH = "_hash"  # where a value keeps its own
FunctionNode = ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda


@cache
def _number(text: str) -> int:
    """What tells a text from others, the same in every run."""
    return crc32(text.encode(errors="surrogatepass"))


@dataclass(frozen=True, eq=False)
class Partial:
    """``functools.partial(function, a, b=c)``: calls of it give ``a`` and ``b=c`` as well."""

    call: ast.Call
    module: Module
    frame: Frame | None = None

    @property
    def placed(self) -> list[ast.expr]:
        """What it gives by position, before what its calls give."""
        return self.call.args[1:]


@dataclass(eq=False)
class Frame:
    """A call being looked through: parameters of ``function`` mean the arguments of ``call``.

    A tracer makes each once, since questions are told apart by theirs.
    """

    call: ast.Call
    module: Module  # where the call stands
    function: FunctionNode
    parent: Frame | None
    partial: Partial | None = None  # what is called, if not the function itself
    configured: bool = False  # called by hydra, which takes the first argument itself

    @property
    def depth(self) -> int:
        return 1 + (self.parent.depth if self.parent else 0)


@dataclass(frozen=True)
class Value:
    """Values are found in sets. By their places in the source, and by what is said of them there,
    sets of them have the same order in every run, whatever the addresses of nodes are and however
    Python hashes texts. One place may have hundreds, of which each is unknown for its own reason:
    with one hash for all, a set would compare each with every other."""

    node: ast.AST
    module: Module
    frame: Frame | None = field(default=None, compare=False)

    def __init_subclass__(cls) -> None:
        cls.__hash__ = Value.__hash__  # type: ignore[method-assign]

    def __hash__(self) -> int:
        kept: dict[str, int] = self.__dict__
        if _HASH not in kept:
            node, said = self.node, self.said
            line, column = getattr(node, "lineno", 0), getattr(node, "col_offset", 0)
            end = getattr(node, "end_col_offset", 0)
            number = _number(said) if said else 0
            kept[_HASH] = hash((self.module.number, line, column, end, number))
        return kept[_HASH]

    @property
    def said(self) -> str:
        """What tells it from others of the same place, as a text."""
        return ""


@dataclass(frozen=True)
class Unknown(Value):
    why: str = ""

    @property
    def is_never_given(self) -> bool:
        """Whether it is a parameter of a function that nothing in sight calls."""
        return self.why.endswith(UNCALLED)

    @property
    def is_nowhere(self) -> bool:
        """Whether it is a name of a file of the project that does not have it."""
        return self.why.endswith(NOWHERE)

    @property
    def is_cut(self) -> bool:
        """Whether the search for it was cut off: it may be anything."""
        return self.why == TOO_LONG

    @property
    def is_never_made(self) -> bool:
        """Whether it is a parameter of a constructor that nothing in sight calls."""
        return self.why.endswith(f" is a parameter of __init__{UNCALLED}")

    @property
    def said(self) -> str:
        return self.why


@dataclass(frozen=True)
class Constant(Value):
    """A literal; ``value`` is what Python evaluates it to."""

    value: object = None


@dataclass(frozen=True)
class External(Value):
    """Something the project imports from outside, by its dotted name."""

    name: str = ""

    @property
    def said(self) -> str:
        return self.name

    def below(self, part: str) -> str:
        """The name of something in it. A loop (``x = x.next``, ``path = path[:-1]`` in what calls
        itself) asks for ever deeper ones: a part that a name has already ends it there, but for
        one, as in ``checkpoint.checkpoint`` or ``tqdm.auto.tqdm``. So what a loop finds is finite.
        """
        parts = self.name.split(".")
        is_first = len(set(parts)) == len(parts) and (parts[-1] == part or len(parts) < SHORT)
        return self.name if part in parts and not is_first else f"{self.name}.{part}"


@dataclass(frozen=True)
class Function(Value):
    node: FunctionNode
    owner: ast.ClassDef | None = None  # the class, when reached through an instance


@dataclass(frozen=True)
class Class(Value):
    node: ast.ClassDef


@dataclass(frozen=True)
class ModuleValue(Value):
    target: Module | None = None


@dataclass(frozen=True)
class Made(Value):
    """The result of calling ``callee`` at ``node``: an instance if ``callee`` is a class.

    ``self`` inside a method is a ``Made`` whose ``node`` is the class.
    """

    callee: External | Class | None = None

    @property
    def made_by(self) -> str:
        """The external callable's dotted name, or empty for the project's own classes."""
        return self.callee.name if isinstance(self.callee, External) else ""


@dataclass(frozen=True)
class Display(Value):
    """A list, tuple, set or dict written out, or a comprehension."""


@dataclass(frozen=True)
class Computed(Value):
    """The result of an expression that is not looked into (arithmetic, a foreign method...)."""


@dataclass(frozen=True)
class Generated(Computed):
    """What a call of a generator function gives: iterating over it gives what that yields."""

    function: Function = field(kw_only=True)
    inside: Frame | None = field(default=None, compare=False, kw_only=True)

    @property
    def yields(self) -> list[ast.Yield | ast.YieldFrom]:
        return self.function.module.table.yields[self.function.node]


Values = frozenset[Value]


def cut_off(values: Values) -> list[Unknown]:
    """Where the search for some values was cut off: there may be others."""
    return [v for v in values if isinstance(v, Unknown) and v.is_cut]


def is_open(values: Values) -> bool:
    """Whether nothing is known of an object. It may be a constant instead, as in ``m or None``:
    that has no attributes that anybody asks for."""
    objects = [v for v in values if not isinstance(v, Constant)]
    return (bool(objects) or not values) and all(
        isinstance(v, (Computed, Unknown)) for v in objects
    )
