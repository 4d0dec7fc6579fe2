"""An FSDP1 constructor call, and the ``fully_shard`` calls that build the same model.

The rules for the constructor's arguments each contribute to one :class:`ShardPlan`, which
``rendering.py`` writes down.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Callable, Collection
from dataclasses import dataclass, field

from fsdp_migrate.analysis.flow import access_path
from fsdp_migrate.analysis.module import Module
from fsdp_migrate.fsdp1.site import Site
from fsdp_migrate.planning.edits import Code, code
from fsdp_migrate.planning.model import Constructor, Wrapped, is_none
from fsdp_migrate.planning.proposal import Proposal
from fsdp_migrate.syntax.expressions import names_in
from fsdp_migrate.syntax.kinds import present
from fsdp_migrate.syntax.trees import COMPREHENSIONS

FULLY_SHARD = "torch.distributed.fsdp"
# Methods of nn.Module that change the module and return it.
IN_PLACE_METHODS = frozenset(
    {"to", "cuda", "cpu", "half", "bfloat16", "float", "double", "train", "eval", "requires_grad_"}
)
LOOP_VARIABLES = frozenset({"module", "buffer", "layer", "name", "parameter", "tensor"})
# Names that nothing reads once a model is sharded: the next model's code may bind them anew.
PASSING_NAMES = frozenset(
    {
        "attributes",
        "batch_norm_policy",
        "buffer_dtype",
        "fsdp_kwargs",
        "full_state",
        "mesh",
        "mp_policy",
        "offload_policy",
        "reshard_after_forward",
        "root_mp_policy",
        "units",
    }
)
DCP = "torch.distributed.checkpoint.state_dict"


Predicate = Callable[[str], Code]


@dataclass(eq=False)
class Targets:
    """Which submodules become units of their own.

    ``predicate`` gives the test for a loop variable; ``by_class`` says it only looks at the
    module's class, which sharding its children does not change; ``counts``, that it counts the
    parameters that these have left, so that it is asked while they are sharded.
    """

    predicate: Predicate
    by_class: bool = True
    counts: bool = False
    variable: str = ""  # the loop variable the predicate would like
    may_be_root: bool = True  # whether the predicate can hold for the root, which is sharded last
    asks_root: bool = False  # whether the predicate has to be asked for the root as well
    classes: ast.expr | None = None  # the classes it asks for, when they are written out here
    unless_none: Code | None = None  # the policy that may be none
    in_brackets: bool = False  # lists of modules may be among them, which older releases refuse


@dataclass(eq=False)
class Precision:
    """The MixedPrecisionPolicy of the units, and how the root's follows from it.

    FSDP1 casts only the root's inputs unless told otherwise, so the two differ in
    ``cast_forward_inputs``.
    """

    policy: Code
    root_policy: Code | None = None  # written out; otherwise derived from ``policy``
    inline: bool = False  # made at the call, as opposed to a value that already has a name
    same: bool = False  # the root's policy is the units'
    may_be_none: bool = False  # FSDP1 may have been given None, which is an empty policy now


@dataclass(eq=False)
class ShardPlan:
    constructor: Constructor
    proposal: Proposal
    everywhere: dict[str, Code] = field(default_factory=dict)  # arguments of every fully_shard
    spread: Code | None = None  # the dictionary that has further ones
    spread_precision: bool = False  # ``mp_policy`` is among those
    precision: Precision | None = None
    targets: Targets | None = None
    walk: Code | None = None  # a policy that must be walked FSDP1's way (support function)
    walk_may_be_none: bool = False
    by_size: bool = False  # ``walk`` is how many parameters make a unit, and no policy
    batch_norm: bool = False  # BatchNorm layers are units of their own in full precision
    setup: list[Code] = field(default_factory=list)  # before anything is sharded
    before: list[Code] = field(default_factory=list)  # just before the first fully_shard
    after: list[Code] = field(default_factory=list)  # after the root is sharded
    finish: list[Code] = field(default_factory=list)  # last of all
    casts_buffers: bool = False
    names: dict[str, str] = field(default_factory=dict)
    ignored: Code | None = None  # the modules that are left alone, as a set
    asks_ignored: bool = False  # some statement asks for them by name
    offloads: Code | None = None  # whether parameters stay on the CPU, as an expression
    from_rank0: bool = False  # only rank 0 has the weights
    is_bare: bool = False  # a container without a forward: its units are sharded, each a root
    unit_classes: Code | None = None  # how the classes of the units are written in the loop
    size_tests: dict[ast.AST, str] = field(default_factory=dict)  # functions, by their policies
    behind: ast.stmt | None = None  # the later statement behind which the model is sharded
    parts_elsewhere: bool = False  # other calls shard parts with the same arguments
    further: list[Site] = field(default_factory=list)  # sites that arguments brought up
    device: Code | None = None  # how its device is written, once something asked for it
    settled: int = 0  # how many statements of ``setup`` say which device

    def settle(self, statement: Code) -> None:
        """Say which device it is, before anything is made on it."""
        self.setup.insert(int(self.hoisted) + self.settled, statement)
        self.settled += 1

    def name(self, source: str, name: str) -> str:
        return self.proposal.name(self.constructor.module, source, name, self.constructor.reference)

    def support(self, function: str, lacking: frozenset[str] = frozenset()) -> str:
        module, near = self.constructor.module, self.constructor.reference
        return self.proposal.support(module, function, near, lacking)

    def is_first(self, argument: str) -> bool:
        """Whether no other constructor has written an argument's value, of what they share."""
        dictionary = self.constructor.dictionary
        if dictionary is None or dictionary.written is None:
            return True
        own = [entry for entry in self.constructor.entries if entry.name == argument]
        if dictionary.views:
            return all(entry.node not in dictionary.settled for entry in own)
        return not own

    def fresh(self, wanted: str) -> str:
        """A local name for ``wanted``, the same one each time it is asked for."""
        if wanted not in self.names and self.place is not None:
            self.names[wanted] = self._fresh_elsewhere(wanted, self.place[0])
        if wanted not in self.names:
            module, call = self.constructor.module, self.constructor.call
            dictionary = self.constructor.dictionary
            made = dictionary is not None and dictionary.function is not None
            also = present(dictionary).statement if made else None  # it may be bound there
            passing = wanted in PASSING_NAMES and not made and not self.constructor.is_function
            self.names[wanted] = self.proposal.fresh(
                module, call, wanted, loop=wanted in LOOP_VARIABLES, also=also, passing=passing
            )
        return self.names[wanted]

    def _fresh_elsewhere(self, wanted: str, module: Module) -> str:
        """A name that nothing has at the top of a file, nor in the function that is written
        there."""
        taken = {*self.names.values(), *(part.preview() for part in self.parameters)}
        name, number = wanted, 2
        while name in taken or module.table.module.lookup(name) is not None:
            name, number = f"{wanted}_{number}", number + 1
        return name

    @property
    def place(self) -> tuple[Module, ast.stmt] | None:
        """Where the function is written that shards the model, and others in the same way."""
        dictionary = self.constructor.dictionary
        return None if dictionary is None else dictionary.place

    @property
    def parameters(self) -> list[Code]:
        """Those of that function."""
        return [self.model, code(present(self.constructor.dictionary).name)]

    @property
    def alike_constructors(self) -> Collection[Constructor]:
        """Those whose models are sharded by the code of this plan."""
        constructor = self.constructor
        return constructor.sharers if self.place is not None else [constructor]

    @property
    def alike(self) -> list[Wrapped]:
        """What is sharded by the code of this plan."""
        return [Wrapped(each.wrapped, each.module) for each in self.alike_constructors]

    def sync_condition(self, value: ast.expr) -> Code:
        """The run-time value of ``sync_module_states``, under a name before sharding."""
        if isinstance(value, ast.Name):
            return code("{v}", v=value)
        first = "sync_module_states" not in self.names
        name = self.fresh("sync_module_states")
        if first:
            self.setup.append(code("{n} = {v}", n=name, v=value))
        return code("{n}", n=name)

    @property
    def needs_ignored(self) -> bool:
        """Whether the ignored modules must have a name: some loop would not pass over them."""
        loops = self.targets is not None or self.batch_norm or self.asks_ignored
        return self.ignored is not None and loops

    def dist(self) -> str:
        module, near = self.constructor.module, self.constructor.reference
        return self.proposal.module_name(module, "torch.distributed", "dist", near)

    @property
    def model(self) -> Code:
        """How the model is written in the emitted statements."""
        return self._model

    def __post_init__(self) -> None:
        wrapped = self.constructor.wrapped
        if self.place is not None:
            self._model, self.hoisted = code("model"), False
            self.proposal.elsewhere = (self.constructor.reference, *self.place)
            return
        if self.constructor.is_function:
            self._model, self.hoisted = code(self.fresh("model")), False
            return
        self._model = code("{m}", m=ast.unparse(wrapped))
        if access_path(wrapped) is None:
            name = self._hoisted_name(wrapped)
            self._model = code("{m}", m=name)
            self.setup.append(code("{name} = {value}", name=name, value=wrapped))
            self.hoisted = True
        else:
            self.hoisted = False

    def _hoisted_name(self, wrapped: ast.expr) -> str:
        """The name an expression is bound to before it is sharded.

        ``model.to(device)`` is ``model`` itself, changed in place.
        """
        method = wrapped.func if isinstance(wrapped, ast.Call) else None
        if isinstance(method, ast.Attribute) and method.attr in IN_PLACE_METHODS:
            inner = method.value
            if isinstance(inner, ast.Name):
                return inner.id
        target = single_target(self.constructor.statement, self.constructor.call)
        return target.id if isinstance(target, ast.Name) else self.fresh("model")

    @property
    def is_compact(self) -> bool:
        """Whether one ``fully_shard`` call in place of the constructor says it all."""
        return self._is_one_call and (not self.setup or self._only_hoist)

    @property
    def is_compact_after_setup(self) -> bool:
        """Whether one call says it after statements that make a mesh, and the like.

        The model that is made within the call needs no name then.
        """
        name = rf"\b{re.escape(self.model.preview())}\b"
        written = (*self.setup[1:], *self.everywhere.values())
        named = any(re.search(name, each.preview()) for each in written)
        return self.hoisted and self.behind is None and self._is_one_call and not named

    @property
    def once(self) -> list[Code] | None:
        """The statements in front of one call, which may run once for several of it; None where
        more is needed than that."""
        if self.is_compact_after_setup:
            return self.setup[1:]
        return self.setup if self._is_one_call and not self.hoisted else None

    @property
    def _is_one_call(self) -> bool:
        parts = (self.targets, self.walk, self.before, self.after, self.finish)
        return not (any(parts) or self.batch_norm or self.is_bare)

    def unless_batch_norm(self, layer: str) -> Code:
        """The test for a layer that is no BatchNorm with a unit of its own.

        Without a wrapping policy FSDP1 had one unit, and BatchNorm was as the rest of it.
        """
        norm = self.name("torch.nn.modules.batchnorm", "_BatchNorm")
        test = code("not isinstance({l}, {n})", l=layer, n=norm)
        policy = self.walk if self.walk_may_be_none else None
        if self.targets is not None:
            policy = self.targets.unless_none
        return test if policy is None else code("({p} is None or {t})", p=policy, t=test)

    @property
    def is_in_place(self) -> bool:
        """Whether the constructor's statement gives its result the name that is sharded."""
        target = single_target(self.constructor.statement, self.constructor.call)
        return target is not None and _is_model(target, self)

    @property
    def _only_hoist(self) -> bool:
        return self.hoisted and len(self.setup) == 1


def placement_problem(constructor: Constructor, once: list[Code] | None = None) -> str:
    """Why statements cannot be put before the call, or nothing when they can.

    Args:
        once: the statements, where they may run once for all calls of a comprehension.
    """
    table = constructor.module.table
    words = {word for line in once or () for word in re.findall(r"\w+", line.preview())}
    child: ast.AST = constructor.call
    for parent in table.ancestors(constructor.call):
        if isinstance(parent, COMPREHENSIONS):
            bound = {name for each in parent.generators for name in names_in(each.target)}
            if once is None or bound & words:
                return "it stands in a comprehension"
        if isinstance(parent, ast.Lambda):
            return "it stands in a lambda"
        if isinstance(parent, ast.arguments):
            return "it stands in a default argument"
        if isinstance(parent, ast.IfExp) and child is not parent.test:
            return "it stands in a conditional expression"
        if isinstance(parent, ast.BoolOp) and child is not parent.values[0]:
            return "it stands behind 'and' or 'or'"
        if isinstance(parent, ast.While) and child is parent.test:
            return "it stands in the condition of a loop"
        if isinstance(parent, ast.stmt):
            return "it stands in a class body" if _in_class_body(table.parents[parent]) else ""
        child = parent
    return ""


def _in_class_body(parent: ast.AST) -> bool:
    return isinstance(parent, ast.ClassDef)


def with_default(node: ast.expr, default: Code, nullable: Callable[[ast.expr], bool]) -> Code:
    """``node`` with ``default`` where it is None: in a branch that says so, else behind ``or``.

    Args:
        nullable: whether an expression may be None.
    """
    if isinstance(node, ast.IfExp):
        body, orelse = is_none(node.body), is_none(node.orelse)
        if body != orelse and not nullable(node.orelse if body else node.body):
            kept = code("{v}", v=node.orelse if body else node.body)
            first, second = (default, kept) if body else (kept, default)
            return code("{a} if {t} else {b}", a=first, t=node.test, b=second)
    return code("{v} or {d}", v=node, d=default) if nullable(node) else code("{v}", v=node)


def single_target(statement: ast.stmt, call: ast.Call) -> ast.expr | None:
    """The target when the statement is exactly ``target = call``."""
    if isinstance(statement, ast.Assign) and statement.value is call:
        return statement.targets[0] if len(statement.targets) == 1 else None
    if isinstance(statement, ast.AnnAssign) and statement.value is call:
        return statement.target
    return None


def _is_model(target: ast.expr, plan: ShardPlan) -> bool:
    """Whether a statement gives its target the object it already is."""
    path = access_path(target)
    if plan.hoisted:
        return path == plan.model.preview()
    return path is not None and path == access_path(plan.constructor.wrapped)
