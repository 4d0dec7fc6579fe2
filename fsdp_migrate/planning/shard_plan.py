"""An FSDP1 constructor call, and the ``fully_shard`` calls that build the same model.

The rules for the constructor's arguments each contribute to one :class:`ShardPlan`;
:func:`render` writes it down the way torchtitan does: policies first, blocks in one loop, the root
last, then what must happen after sharding.
"""

from __future__ import annotations

import ast
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from fsdp_migrate.analysis.flow import access_path
from fsdp_migrate.analysis.module import Module
from fsdp_migrate.fsdp1.site import Site
from fsdp_migrate.planning.edits import Code, Proposal, code, join
from fsdp_migrate.planning.model import Constructor, is_none
from fsdp_migrate.syntax.trees import COMPREHENSIONS

FULLY_SHARD = "torch.distributed.fsdp"
# Methods of nn.Module that change the module and return it.
IN_PLACE_METHODS = frozenset(
    {"to", "cuda", "cpu", "half", "bfloat16", "float", "double", "train", "eval", "requires_grad_"}
)
LOOP_VARIABLES = frozenset({"module", "buffer", "layer", "name", "parameter"})
DCP = "torch.distributed.checkpoint.state_dict"


Predicate = Callable[[str], Code]


@dataclass(eq=False)
class Targets:
    """Which submodules become units of their own.

    ``predicate`` gives the test for a loop variable; ``by_class`` says it only looks at the
    module's class, which sharding its children does not change.
    """

    predicate: Predicate
    by_class: bool = True
    variable: str = ""  # the loop variable the predicate would like
    may_be_root: bool = True  # whether the predicate can hold for the root, which is sharded last
    classes: ast.expr | None = None  # the classes it asks for, when they are written out here
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


@dataclass(eq=False)
class ShardPlan:
    constructor: Constructor
    proposal: Proposal
    everywhere: dict[str, Code] = field(default_factory=dict)  # arguments of every fully_shard
    precision: Precision | None = None
    targets: Targets | None = None
    walk: Code | None = None  # a policy that must be walked FSDP1's way (support function)
    batch_norm: bool = False  # BatchNorm layers are units of their own in full precision
    setup: list[Code] = field(default_factory=list)  # before anything is sharded
    before: list[Code] = field(default_factory=list)  # just before the first fully_shard
    after: list[Code] = field(default_factory=list)  # after the root is sharded
    finish: list[Code] = field(default_factory=list)  # last of all
    casts_buffers: bool = False
    names: dict[str, str] = field(default_factory=dict)
    ignored: Code | None = None  # the modules that must not become units, as a set
    offloads: Code | None = None  # whether parameters stay on the CPU, as an expression
    from_rank0: bool = False  # only rank 0 has the weights
    unit_classes: Code | None = None  # how the classes of the units are written in the loop
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

    def support(self, function: str) -> str:
        return self.proposal.support(self.constructor.module, function, self.constructor.reference)

    def fresh(self, wanted: str) -> str:
        """A local name for ``wanted``, the same one each time it is asked for."""
        if wanted not in self.names:
            module, call = self.constructor.module, self.constructor.call
            loop = wanted in LOOP_VARIABLES
            self.names[wanted] = self.proposal.fresh(module, call, wanted, loop=loop)
        return self.names[wanted]

    def sync_condition(self, value: ast.expr) -> Code:
        """The run-time value of ``sync_module_states`` under a name, defined before sharding."""
        first = "sync_module_states" not in self.names
        name = self.fresh("sync_module_states")
        if first:
            self.setup.append(code("{n} = {v}", n=name, v=value))
        return code("{n}", n=name)

    def dist(self) -> str:
        module, near = self.constructor.module, self.constructor.reference
        return self.proposal.module_name(module, "torch.distributed", "dist", near)

    @property
    def model(self) -> Code:
        """How the model is written in the emitted statements."""
        return self._model

    def __post_init__(self) -> None:
        wrapped = self.constructor.wrapped
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
        target = _single_target(self.constructor.statement, self.constructor.call)
        return target.id if isinstance(target, ast.Name) else self.fresh("model")

    @property
    def is_compact(self) -> bool:
        """Whether one ``fully_shard`` call in place of the constructor says it all."""
        parts = (self.targets, self.walk, self.before, self.after, self.finish)
        return not any(parts) and not self.batch_norm and (not self.setup or self._only_hoist)

    @property
    def is_in_place(self) -> bool:
        """Whether the constructor's statement gives its result the name that is sharded."""
        target = _single_target(self.constructor.statement, self.constructor.call)
        return target is not None and _is_model(target, self)

    @property
    def _only_hoist(self) -> bool:
        return self.hoisted and len(self.setup) == 1


def placement_problem(constructor: Constructor) -> str:
    """Why statements cannot be put before the call, or nothing when they can."""
    table = constructor.module.table
    child: ast.AST = constructor.call
    for parent in table.ancestors(constructor.call):
        if isinstance(parent, COMPREHENSIONS):
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


def render(plan: ShardPlan) -> None:
    """Write the plan's statements into its proposal."""
    constructor, proposal = plan.constructor, plan.proposal
    fully_shard = plan.name(FULLY_SHARD, "fully_shard")
    if plan.is_compact:
        _replace_in_place(plan, fully_shard)
        return
    lines = list(plan.setup)
    _ignored(plan, lines)
    units, root = _precision(plan, lines)
    shared = _shared_arguments(plan, lines)
    lines += plan.before
    lines += _loop(plan, fully_shard, [*units, *shared])
    call = code("{f}({args})", f=fully_shard, args=join(", ", [plan.model, *root, *shared]))
    after = [*plan.after, *plan.finish]
    statement = constructor.statement
    target = _single_target(statement, constructor.call)
    in_place = plan.is_in_place
    module = constructor.module
    if plan.behind is not None:
        first = 1 if plan.hoisted else 0  # the model itself is made where it was
        proposal.replace_statement(module, statement, *lines[:first])
        proposal.insert_after(module, plan.behind, *lines[first:], call, *after)
    elif in_place and isinstance(statement, ast.Assign):
        proposal.replace_statement(module, statement, *lines, call, *after)
    elif target is not None and isinstance(statement, (ast.Assign, ast.AnnAssign)):
        proposal.insert_before(module, statement, *lines)
        proposal.replace(module, constructor.call, call)
        proposal.insert_after(module, statement, *after)
    elif after:
        proposal.insert_before(module, statement, *lines, call, *after)
        proposal.replace(module, constructor.call, plan.model)
    else:
        proposal.insert_before(module, statement, *lines)
        proposal.replace(module, constructor.call, call)


def render_context(plan: ShardPlan, roots: Sequence[tuple[Module, ast.Call]]) -> None:
    """Write a plan without loops as ``enable_wrap(wrapper_cls=fully_shard, ...)``.

    Args:
        roots: the ``wrap`` calls that need the root's precision, when others make parts.
    """
    constructor, proposal = plan.constructor, plan.proposal
    module = constructor.module
    call = constructor.call
    proposal.replace(
        module, constructor.wrapped, code("{f}", f=plan.name(FULLY_SHARD, "fully_shard"))
    )
    for keyword in call.keywords:
        if keyword.value is not constructor.wrapped:
            proposal.remove_argument(module, call, keyword)
    lines = list(plan.setup)
    plan.parts_elsewhere = bool(roots)
    units, root = _precision(plan, lines)
    for argument in units or root:
        proposal.add_keyword(module, call, "mp_policy", code("{p}", p=argument.parts["p"]))
    for name, value in plan.everywhere.items():
        proposal.add_keyword(module, call, name, value)
    if lines:
        proposal.insert_before(module, constructor.statement, *lines)
    if units and root != units:
        for where, wrap in roots:
            proposal.add_keyword(where, wrap, "mp_policy", code("{p}", p=root[0].parts["p"]))


def _ignored(plan: ShardPlan, lines: list[Code]) -> None:
    """Keep the loop away from ignored modules; ask a walked policy to do the same."""
    if plan.ignored is None or not (plan.targets or plan.walk):
        return
    name = plan.fresh("ignored")
    lines.append(code("{n} = {v}", n=name, v=plan.ignored))
    plan.ignored = code("{n}", n=name)
    if plan.targets is not None:
        inner = plan.targets.predicate
        plan.targets.predicate = lambda variable: code(
            "{v} not in {n} and {t}", v=variable, n=name, t=inner(variable)
        )


def _replace_in_place(plan: ShardPlan, fully_shard: str) -> None:
    """One unit: the constructor's name is swapped and its arguments replaced where they stand."""
    constructor = plan.constructor
    arguments = [code("{m}", m=constructor.wrapped)]
    precision = plan.precision
    if precision is not None:
        arguments.append(code("mp_policy={p}", p=_root_policy(plan, precision)))
    arguments += _pairs(plan)
    call = code("{f}({args})", f=fully_shard, args=join(", ", arguments))
    plan.proposal.replace(constructor.module, constructor.call, call)


def _precision(plan: ShardPlan, lines: list[Code]) -> tuple[list[Code], list[Code]]:
    """The ``mp_policy`` arguments of the units and of the root."""
    precision = plan.precision
    if precision is None:
        return [], []
    policy = precision.policy
    has_units = bool(plan.targets or plan.walk or plan.batch_norm or plan.parts_elsewhere)
    if not has_units:
        return [], [code("mp_policy={p}", p=_root_policy(plan, precision))]
    if precision.inline:
        name = plan.fresh("mp_policy")
        lines.append(code("{n} = {p}", n=name, p=policy))
        policy = code("{n}", n=name)
        precision = Precision(policy, same=precision.same)
        plan.precision = precision
    units = [code("mp_policy={p}", p=policy)]
    if precision.same:
        return units, units
    root = plan.fresh("root_mp_policy")
    lines.append(
        code(
            "# Like FSDP1, only the root casts its inputs to param_dtype.\n{n} = {p}",
            n=root,
            p=_root_policy(plan, precision),
        )
    )
    return units, [code("mp_policy={p}", p=root)]


def _root_policy(plan: ShardPlan, precision: Precision) -> Code:
    if precision.root_policy is not None:
        return precision.root_policy
    if precision.same:
        return precision.policy
    replace = plan.name("dataclasses", "replace")
    return code("{r}({p}, cast_forward_inputs=True)", r=replace, p=precision.policy)


def _shared_arguments(plan: ShardPlan, lines: list[Code]) -> list[Code]:
    """The arguments every call gets: spelled out when short, else collected in a dict first."""
    if not plan.everywhere:
        return []
    pairs = _pairs(plan)
    repeated = plan.targets is not None or plan.walk is not None
    simple = len(pairs) == 1 and len(pairs[0].preview()) <= 40 and "**" not in plan.everywhere
    if not repeated or simple:
        return pairs
    name = plan.fresh("fsdp_kwargs")
    if set(plan.everywhere) == {"**"}:
        lines.append(code("{n} = {v}", n=name, v=plan.everywhere["**"]))
        return [code("**{n}", n=name)]
    items = [
        code("**{v}", v=value) if key == "**" else code('"{n}": {v}', n=key, v=value)
        for key, value in plan.everywhere.items()
    ]
    lines.append(code("{n} = {{{items}}}", n=name, items=join(", ", items)))
    return [code("**{n}", n=name)]


def _pairs(plan: ShardPlan) -> list[Code]:
    """The shared arguments as they stand in a call."""
    return [
        code("**{v}", v=value) if name == "**" else code("{n}={v}", n=name, v=value)
        for name, value in plan.everywhere.items()
    ]


def _loop(plan: ShardPlan, fully_shard: str, arguments: list[Code]) -> list[Code]:
    lines: list[Code] = []
    if plan.walk is not None:
        shard = plan.support("shard_by_policy")
        extra = [code("ignored_modules={i}", i=plan.ignored)] if plan.ignored is not None else []
        if plan.batch_norm:
            norm_policy, define = _batch_norm_policy(plan)
            lines.append(define)
            extra.append(code("batch_norm_policy={p}", p=norm_policy))
        args = join(", ", [plan.model, plan.walk, *extra, *arguments])
        return [*lines, code("{f}({args})", f=shard, args=args)]
    if plan.targets is None and not plan.batch_norm:
        return lines
    wanted = plan.targets.variable if plan.targets is not None else ""
    name = wanted or plan.fresh("module")
    bracketed = plan.targets is not None and plan.targets.in_brackets
    unit = code("[{m}]" if bracketed else "{m}", m=name)
    call = code("{f}({args})", f=fully_shard, args=join(", ", [unit, *arguments]))
    if plan.batch_norm:
        shared = [a for a in arguments if not a.preview().startswith("mp_policy=")]
        return [*lines, *_loop_with_batch_norm(plan, fully_shard, name, call, shared)]
    assert plan.targets is not None
    test = _below_root(plan.targets, name, plan)
    if plan.targets.by_class:
        template = "for {v} in reversed(list({m}.modules())):\n    if {test}:\n        {call}"
        return [*lines, code(template, v=name, m=plan.model, test=test, call=call)]
    units = plan.fresh("units")
    select = "{u} = [{v} for {v} in {m}.modules() if {test}]"
    lines.append(code(select, u=units, v=name, m=plan.model, test=test))
    shard = "for {v} in reversed({u}):\n    {call}"
    lines.append(code(shard, v=name, u=units, call=call))
    return lines


def _below_root(targets: Targets, variable: str, plan: ShardPlan) -> Code:
    """The test for a submodule that becomes a unit."""
    test = targets.predicate(variable)
    if not targets.may_be_root:
        return test
    return code("{v} is not {m} and {t}", v=variable, m=plan.model, t=test)


def _loop_with_batch_norm(
    plan: ShardPlan, fully_shard: str, name: str, call: Code, shared: list[Code]
) -> list[Code]:
    """FSDP1 keeps every BatchNorm as a unit of its own in full precision."""
    batch_norm = plan.name("torch.nn.modules.batchnorm", "_BatchNorm")
    norm_policy, define = _batch_norm_policy(plan)
    arguments = [code("{m}", m=name), code("mp_policy={p}", p=norm_policy), *shared]
    norm_call = code("{f}({args})", f=fully_shard, args=join(", ", arguments))
    template = (
        "for {v} in reversed(list({m}.modules())):\n"
        "    if isinstance({v}, {bn}):\n"
        "        {norm_call}"
    )
    parts: dict[str, Code | ast.expr | str] = {
        "v": name,
        "m": plan.model,
        "bn": batch_norm,
        "norm_call": norm_call,
    }
    if plan.targets is not None:
        template += "\n    elif {test}:\n        {call}"
        parts["test"] = _below_root(plan.targets, name, plan)
        parts["call"] = call
    return [define, Code(template, parts)]


def _batch_norm_policy(plan: ShardPlan) -> tuple[str, Code]:
    """The name of the units' policy for BatchNorm, and the statement that makes it."""
    assert plan.precision is not None
    policy_class = plan.name(FULLY_SHARD, "MixedPrecisionPolicy")
    torch = plan.proposal.module_name(
        plan.constructor.module, "torch", "torch", plan.constructor.reference
    )
    norm_policy = plan.fresh("batch_norm_policy")
    define = code(
        "# Like FSDP1, BatchNorm layers compute in fp32 and hand on the units' dtype.\n"
        "{n} = {c}(param_dtype={t}.float32, output_dtype={p}.param_dtype)",
        n=norm_policy,
        c=policy_class,
        t=torch,
        p=plan.precision.policy,
    )
    return norm_policy, define


def _single_target(statement: ast.stmt, call: ast.Call) -> ast.expr | None:
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
