"""What everybody speaks of: a reference to FSDP1, a constructor, a model, a decision.

Nothing here decides anything. Rules, finders and reports pass these around.
"""

from __future__ import annotations

import ast
from collections.abc import Collection
from dataclasses import dataclass, field, replace
from enum import Enum
from pathlib import Path as FilePath

from fsdp_migrate.analysis.module import Module
from fsdp_migrate.analysis.values import Value
from fsdp_migrate.fsdp1 import api as fsdp1
from fsdp_migrate.fsdp1.site import Site
from fsdp_migrate.planning.edits import Code, Edit, Mark
from fsdp_migrate.planning.forms import Place, Taken
from fsdp_migrate.planning.outcome import Outcome
from fsdp_migrate.planning.proposal import Claims, Proposal
from fsdp_migrate.syntax.expressions import first_argument
from fsdp_migrate.syntax.kinds import of_kind
from fsdp_migrate.syntax.suppressions import Ignored


@dataclass(frozen=True, eq=False)
class Entry:
    """An argument of a constructor that stands in a dictionary."""

    name: str
    node: ast.keyword | ast.expr  # the keyword of ``dict(name=value)``, else the value
    value: ast.expr
    key: ast.keyword | ast.expr  # where the name is written
    statement: ast.stmt
    is_conditional: bool  # the dictionary may lack it
    display: ast.Call | ast.Dict | None = None  # ``dict(...)`` or ``{...}`` that it stands in

    @property
    def is_statement(self) -> bool:
        """Whether a statement of every run puts it there: ``params["name"] = value``."""
        return self.display is None and not self.is_conditional


@dataclass(eq=False)
class KeywordDictionary:
    """``params = dict(...)``, which constructors are given as ``**params`` and nobody else reads,
    made in one place or in each branch of a condition;
    or ``wrap = functools.partial(FSDP, ...)``, which is called once. Or what a ``function`` makes
    and returns, of which constructors are given ``**function(...)`` and which nobody else calls.

    ``written`` is what becomes of the entries, once a constructor said so: the others have to say
    the same, as ``settled`` has it. Where a branch adds an entry, ``views`` are what each is given.
    ``names`` are those that statements in front of entries bind, by what they were meant to be.

    Of ``wrap`` in ``with enable_wrap(...)`` it has what the context is given and ``wrap`` does not
    give itself: its ``constructors`` are all that the context is for.

    One that ``is_told`` stands in lines of a log as well, and stays for these.

    One that ``stays`` has no entries here: each constructor takes its arguments out of it, by
    expressions that are written nowhere yet (``taken_entries.py``). Where several do, one function
    shards the models of all, which is written at a ``place``, and ``imported`` behind statements of
    functions. Those of its entries are ``going`` that nobody asks for any more.
    """

    name: str
    statements: tuple[ast.stmt, ...]  # that make it
    made: ast.Call | ast.Dict
    entries: tuple[Entry, ...]
    constructors: frozenset[Constructor]
    is_partial: bool = False
    is_context: bool = False
    is_told: bool = False
    stays: bool = False
    place: tuple[Module, ast.stmt] | None = None
    going: tuple[tuple[Entry, Module], ...] = ()
    imported: set[ast.stmt] = field(default_factory=set)
    function: ast.FunctionDef | None = None
    written: dict[str, str] | None = None
    views: dict[Constructor, tuple[Entry, ...]] = field(default_factory=dict)
    settled: dict[ast.AST, str] = field(default_factory=dict)
    names: dict[str, str] = field(default_factory=dict)

    @property
    def statement(self) -> ast.stmt:
        """The first statement that makes it."""
        return self.statements[0]

    @property
    def is_spread(self) -> bool:
        """Whether calls of ``fully_shard`` may be given it, as ``**params``."""
        return not (self.is_partial or self.is_context or self.stays)


@dataclass(eq=False)
class Constructor:
    """A call of ``FullyShardedDataParallel``."""

    call: ast.Call
    module: Module
    reference: ast.AST
    arguments: dict[str, ast.expr] = field(default_factory=dict)
    problem: str = ""  # why it cannot be written out as fully_shard
    is_open: bool = False  # it has more arguments than are written at the call
    defined_by: ast.ClassDef | None = None  # a subclass of FSDP1, whose constructor this is
    made_at: tuple[tuple[ast.Call, Module], ...] = ()  # the calls of that subclass
    keeps_class: bool = False  # that subclass stays one, around the model
    own_states: frozenset[str] = frozenset()  # state_dict, load_state_dict: that it has itself
    is_wrong: bool = False  # FSDP1 itself refuses it, or FSDP2 has nothing like it
    is_context: bool = False  # enable_wrap(wrapper_cls=FSDP, ...), the arguments of wrap()
    choice: ast.IfExp | None = None  # ``(FSDP if flag else DDP)(model)``: which class it is
    is_function: bool = False  # a partial that becomes a function of the model
    wholes: frozenset[Constructor] = frozenset()  # of models that its own may be a part of
    dictionary: KeywordDictionary | None = None  # that has some of its arguments
    spread: ast.expr | None = None  # of ``**spread``, if a function makes that dictionary
    maker: ast.Call | None = None  # the call of that function
    assumed: str = ""  # what it is taken to be given, where nothing in sight says so

    @classmethod
    def read(cls, call: ast.Call, module: Module, reference: ast.AST) -> Constructor:
        """Bind the arguments by FSDP1's signature; of a ``functools.partial`` those it has."""
        result = cls(call, module, reference)
        bound = reference in call.args
        for index, value in enumerate(call.args[1:] if bound else call.args):
            if isinstance(value, ast.Starred):
                result.problem, result.is_open = "its arguments are passed as *args", True
                break
            if index >= len(fsdp1.CONSTRUCTOR_ARGUMENTS):
                result.problem = "it has more positional arguments than FSDP1 takes"
                result.is_wrong = True
                return result
            result.arguments[fsdp1.CONSTRUCTOR_ARGUMENTS[index]] = value
        for keyword in call.keywords:
            name = successor(keyword)
            if name is None:
                spelled = ast.unparse(keyword.value)
                result.problem = f"its keyword arguments come from **{spelled}"
                result.is_open = True
            elif name == keyword.arg and name in result.arguments:
                result.problem, result.is_wrong = f"{name} is given twice", True
                return result
            elif name not in fsdp1.CONSTRUCTOR_ARGUMENTS or (
                name != keyword.arg and name in result.arguments
            ):
                result.problem = f"{keyword.arg} is not an argument of FSDP1"
                result.is_wrong = True
                return result
            else:
                result.arguments[name] = keyword.value
        if bound:
            result.problem, result.is_open = "they are bound by functools.partial", True
        elif "module" not in result.arguments and not result.is_open:
            result.problem, result.is_wrong = "it is called without a module", True
        return result

    @property
    def wrapped(self) -> ast.expr:
        """The expression that is wrapped; of ``enable_wrap`` the class, which stands for them."""
        if self.is_context:
            return of_kind(self.reference, ast.expr)
        return self.arguments["module"]

    @property
    def wraps(self) -> list[Wrapped]:
        """What is wrapped, as far as it is written out, and in which file."""
        if self.made_at and not self.keeps_class:
            given = ((first_argument(call), module) for call, module in self.made_at)
            return [Wrapped(model, module) for model, module in given if model is not None]
        is_given = self.has_module or self.is_function
        return [Wrapped(self.wrapped, self.module)] if is_given else []

    @property
    def entries(self) -> tuple[Entry, ...]:
        """What it is given by the dictionary that has some of its arguments."""
        found = self.dictionary
        return found.views.get(self, found.entries) if found else ()

    def may_lack(self, argument: str) -> bool:
        """Whether a condition decides whether it has an argument."""
        own = [entry for entry in self.entries if entry.name == argument]
        return bool(own) and all(entry.is_conditional for entry in own)

    def values(self, argument: str) -> list[ast.expr]:
        """All that an argument may be: a dictionary may have it in several places."""
        own = [entry.value for entry in self.entries if entry.name == argument]
        return own or [self.arguments[argument]]

    @property
    def statement(self) -> ast.stmt:
        return self.module.table.statement(self.call)

    def nodes(self) -> dict[str, ast.expr | ast.keyword]:
        """Argument name -> what stands in the call: the keyword node, or the positional value."""
        found: dict[str, ast.expr | ast.keyword] = {
            name: k for k in self.call.keywords if (name := successor(k)) is not None
        }
        found |= {entry.name: entry.node for entry in self.entries}
        for name, value in self.arguments.items():
            found.setdefault(name, value)
        return found

    @property
    def node(self) -> ast.AST:
        """What stands for it among the sites."""
        if self.dictionary is not None and self.dictionary.is_partial:
            return self.dictionary.made
        return self.defined_by or self.call

    @property
    def place(self) -> Place:
        """What tells it from the others of a run."""
        return self.module.path, self.module.position(self.node)

    def is_made_at(self, places: Collection[tuple[FilePath, int]]) -> bool:
        """Whether a model of it is made at one of some files and lines."""
        calls = [(self.call, self.module), *self.made_at]
        return any((m.path, m.position(call)[0]) in places for call, m in calls)

    @property
    def sharers(self) -> frozenset[Constructor]:
        """The constructors that have arguments from the same dictionary, itself among them."""
        return self.dictionary.constructors if self.dictionary else frozenset({self})

    @property
    def from_context(self) -> tuple[Entry, ...]:
        """The arguments of a ``wrap`` that the context around it has."""
        return self.entries if self.dictionary and self.dictionary.is_context else ()

    def has(self, name: str) -> bool:
        """Whether an argument is given, and as something else than a plain None."""
        return name in self.arguments and not is_none(self.arguments[name])

    def may_have(self, name: str) -> bool:
        """Whether an argument is given, or may be among those that are not written at the call."""
        return self.is_open or self.has(name)

    @property
    def has_module(self) -> bool:
        """Whether the module that it wraps is written at the call, as of a partial it is not."""
        return "module" in self.arguments and not self.is_function


def is_none(node: ast.AST) -> bool:
    """Whether None is written there."""
    return isinstance(node, ast.Constant) and node.value is None


def successor(keyword: ast.keyword) -> str | None:
    """The name that an argument has today; None of ``**kwargs``."""
    return fsdp1.EARLIER_NAMES.get(keyword.arg or "", keyword.arg)


@dataclass(frozen=True, eq=False)
class Wrapped:
    """An expression that is wrapped."""

    wrapped: ast.expr
    module: Module


class Cause(Enum):
    """Why a decision is what it is, where the run must know; its message says it to the user."""

    OWN = "the site's own"
    FINAL = "the site's own, and no other form of the constructor would do either"
    UNKNOWN_STATE = "it is not known which kind of state dict it is"
    HELD = "left only because its migration is held back"
    KEPT = "nothing is written: as it is, it suits FSDP1 and FSDP2"
    OUTDATED = "no torch that migrated code runs on gets there"


@dataclass(frozen=True)
class Guard:
    """What stops the program at a left site that would go quietly wrong."""

    edits: tuple[Edit, ...] = ()  # which put it there, unless it stands already
    problem: str = ""  # why none can stand there
    stands: bool = False  # it is there when the run ends, so that nothing is held back


@dataclass(frozen=True, eq=False)
class Decision:
    """What a rule answers for one site.

    ``message`` says what was done, or why nothing was; ``help`` the next step of a left site or
    the possible difference of a reviewed one. ``models`` are the constructors whose migration the
    site belongs to. ``quiet``: left as it is, the site would run on a migrated model and train or
    save wrongly without an error.
    """

    site: Site
    code: str
    outcome: Outcome
    message: str
    help: str = ""
    edits: tuple[Edit, ...] = ()
    models: frozenset[Constructor] = frozenset()
    quiet: bool = False
    cause: Cause = Cause.OWN
    ignored: Ignored | None = None  # the comment by which it stays, or is not reported
    unreported: bool = False  # whatever becomes of it
    guard: Guard = Guard()
    rule: str = ""  # the site's own, where ``code`` is that of another
    held_by: tuple[Decision, ...] = ()  # all that must be settled before it is migrated
    claims: Claims = field(default_factory=Claims)
    form: Taken | None = None  # where the site may be written in several

    def with_others(self, name: str, together: str) -> Decision:
        """Left, with a marker that may be that of other names as well: ``together`` says it of
        ``{names}``."""
        edits = (
            replace(e, name=name, together=together) if isinstance(e, Mark) else e
            for e in self.edits
        )
        return replace(self, edits=tuple(edits))

    @property
    def is_ignored(self) -> bool:
        """Whether it is no failure, and only counted."""
        return self.unreported or self.ignored is not None

    @property
    def held(self) -> bool:
        return self.cause is Cause.HELD

    @property
    def guarded(self) -> bool:
        return self.guard.stands

    @property
    def kept(self) -> bool:
        return self.cause is Cause.KEPT


@dataclass(eq=False)
class Models:
    """The FSDP1 models an expression may be."""

    constructors: frozenset[Constructor]
    others: tuple[Value, ...] = ()  # what else it may be

    def __bool__(self) -> bool:
        return bool(self.constructors)

    @property
    def certain(self) -> bool:
        """Always an FSDP1 model, as far as the given paths tell."""
        return bool(self.constructors) and not self.others


@dataclass(eq=False)
class Conversion:
    """What becomes of a value at its origin, asked for by the constructors it reaches.

    ``new`` is None when the constructor takes the value over and nothing stays behind.
    """

    new: Code | None
    message: str
    constructors: set[Constructor] = field(default_factory=set)
    proposal: Proposal | None = None  # what else ``new`` needs, or edits in its place

    @property
    def edits_origin(self) -> bool:
        """Whether something is written where the value was made."""
        return self.new is not None or bool(self.proposal is not None and self.proposal.edits)
