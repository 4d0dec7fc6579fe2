"""Write a plan down: the ``fully_shard`` calls, and what stands around them.

It is done as torchtitan does it: policies first, blocks in one loop, the root last, then what must
happen after sharding.
"""

from __future__ import annotations

import ast
from collections.abc import Sequence

from fsdp_migrate.analysis.module import Module
from fsdp_migrate.planning.edits import Code, code, join
from fsdp_migrate.planning.shard_plan import (
    FULLY_SHARD,
    Precision,
    ShardPlan,
    Targets,
    single_target,
)
from fsdp_migrate.syntax.kinds import present

BATCH_NORM = "torch.nn.modules.batchnorm"


def render(plan: ShardPlan) -> None:
    """Write the plan's statements into its proposal."""
    constructor, proposal = plan.constructor, plan.proposal
    fully_shard = plan.name(FULLY_SHARD, "fully_shard")
    if plan.is_compact:
        _replace_in_place(plan, fully_shard)
        return
    if plan.is_compact_after_setup:
        proposal.insert_before(constructor.module, constructor.statement, *plan.setup[1:])
        _replace_in_place(plan, fully_shard)
        return
    lines, call, after = statements(plan)
    statement = constructor.statement
    target = single_target(statement, constructor.call)
    in_place = plan.is_in_place
    module = constructor.module
    root = [] if plan.is_bare else [call]
    if plan.behind is not None:
        first = 1 if plan.hoisted else 0  # the model itself is made where it was
        proposal.replace_statement(module, statement, *lines[:first])
        proposal.insert_after(module, plan.behind, *lines[first:], *root, *after)
    elif in_place and isinstance(statement, ast.Assign):
        proposal.replace_statement(module, statement, *lines, *root, *after)
    elif target is not None and isinstance(statement, (ast.Assign, ast.AnnAssign)):
        proposal.insert_before(module, statement, *lines)
        proposal.replace(module, constructor.call, call)
        proposal.insert_after(module, statement, *after)
    elif after:
        proposal.insert_before(module, statement, *lines, *root, *after)
        proposal.replace(module, constructor.call, plan.model)
    else:
        proposal.insert_before(module, statement, *lines)
        proposal.replace(module, constructor.call, call)


def statements(plan: ShardPlan) -> tuple[list[Code], Code, list[Code]]:
    """What stands in front of the call that shards the root, this call, and what follows it."""
    fully_shard = plan.name(FULLY_SHARD, "fully_shard")
    lines = list(plan.setup)
    _ignored(plan, lines)
    units, root = _with_dictionary(plan, *_precision(plan, lines))
    shared = _shared_arguments(plan, lines)
    lines += plan.before
    lines += _loop(plan, fully_shard, _unpacked_last([*units, *shared]))
    arguments = [plan.model, *_unpacked_last([*root, *shared])]
    call = code("{f}({args})", f=fully_shard, args=join(", ", arguments))
    call = plan.model if plan.is_bare else call
    return lines, call, [*plan.after, *plan.finish]


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
    """Keep the loops away from ignored modules; a walk passes over them by itself."""
    if not plan.needs_ignored:
        return
    name = plan.fresh("ignored")
    lines.append(code("{n} = {v}", n=name, v=present(plan.ignored)))
    plan.ignored = code("{n}", n=name)
    if plan.targets is not None:
        inner = plan.targets.predicate
        plan.targets.predicate = lambda variable: code(
            "{v} not in {n} and {t}", v=variable, n=name, t=inner(variable)
        )


def _replace_in_place(plan: ShardPlan, fully_shard: str) -> None:
    """One unit: the constructor's name is swapped and its arguments replaced where they stand."""
    constructor = plan.constructor
    precision = plan.precision
    own = [] if precision is None else [code("mp_policy={p}", p=root_policy(plan, precision))]
    _, own = _with_dictionary(plan, own, own)
    arguments = [code("{m}", m=constructor.wrapped), *_unpacked_last([*own, *_pairs(plan)])]
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
        return [], [code("mp_policy={p}", p=root_policy(plan, precision))]
    if precision.inline or (plan.is_bare and not precision.same and not plan.spread_precision):
        given = root_policy(plan, precision) if plan.is_bare else policy
        policy = code("{n}", n=plan.fresh("mp_policy" if precision.inline else "root_mp_policy"))
        lines.append(code("{n} = {p}", n=policy, p=given))
        precision = Precision(
            policy, same=precision.same or plan.is_bare, may_be_none=precision.may_be_none
        )
        plan.precision = precision
    units = [code("mp_policy={p}", p=policy)]
    if precision.same:
        return units, units
    root = plan.fresh("root_mp_policy")
    lines.append(
        code(
            "# Like FSDP1, only the root casts its inputs to param_dtype.\n{n} = {p}",
            n=root,
            p=root_policy(plan, precision),
        )
    )
    return units, [code("mp_policy={p}", p=root)]


def _with_dictionary(
    plan: ShardPlan, units: list[Code], root: list[Code]
) -> tuple[list[Code], list[Code]]:
    """The arguments of the units and of the root, with those from the program's dictionary."""
    if not plan.spread:
        return units, root
    spread = code("**{d}", d=plan.spread)
    if not plan.spread_precision:
        return [*units, spread], [*root, spread]
    if present(plan.precision).same:
        return [spread], [spread]
    other = code('**{{**{d}, "mp_policy": {p}}}', d=plan.spread, p=root[0].parts["p"])
    return [other if plan.is_bare else spread], [other]


def _unpacked_last(arguments: list[Code]) -> list[Code]:
    return sorted(arguments, key=lambda argument: argument.template.startswith("**"))


def root_policy(plan: ShardPlan, precision: Precision) -> Code:
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
    simple = len(pairs) == 1 and len(pairs[0].preview()) <= 45 and "**" not in plan.everywhere
    if not repeated or simple:
        return pairs
    if set(plan.everywhere) == {"**"} and plan.everywhere["**"].preview().isidentifier():
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
    if plan.walk is not None:
        return _walk(plan, fully_shard, arguments)
    if plan.targets is None and not plan.batch_norm:
        return []
    policy = plan.targets.unless_none if plan.targets is not None else None
    wanted = plan.targets.variable if plan.targets is not None else ""
    name = wanted or plan.fresh("module")
    bracketed = plan.targets is not None and plan.targets.in_brackets
    unit = code("[{m}]" if bracketed else "{m}", m=name)
    call = code("{f}({args})", f=fully_shard, args=join(", ", [unit, *arguments]))
    if plan.batch_norm:
        shared = [a for a in arguments if not a.preview().startswith("mp_policy=")]
        return _unless_none(policy, _loop_with_batch_norm(plan, fully_shard, name, call, shared))
    targets = present(plan.targets)
    test = _below_root(targets, name, plan)
    if targets.by_class or targets.counts:
        template = "for {v} in reversed(list({m}.modules())):\n    if {test}:\n        {call}"
        loop = code(template, v=name, m=plan.model, test=test, call=call)
        return [loop] if targets.by_class else _unless_none(policy, [loop])
    units = plan.fresh("units")
    select = "{u} = [{v} for {v} in {m}.modules() if {test}]"
    selected = code(select, u=units, v=name, m=plan.model, test=test)
    shard = "for {v} in reversed({u}):\n    {call}"
    return _unless_none(policy, [selected, code(shard, v=name, u=units, call=call)])


def _walk(plan: ShardPlan, fully_shard: str, arguments: list[Code]) -> list[Code]:
    """Let the support function ask the policy, which is one of torch's or of the project's."""
    policy = present(plan.walk)
    lines: list[Code] = []
    if plan.by_size:
        name = plan.fresh("module")
        parts: dict[str, Code | ast.expr | str] = {
            "v": name,
            "u": plan.support("units_by_size"),
            "m": plan.model,
            "n": policy,
            "c": code("{f}({a})", f=fully_shard, a=join(", ", [code(name), *arguments])),
        }
        lines.append(Code("for {v} in {u}({m}, {n}):\n    {c}", parts))
        return _unless_none(_walked_or_none(plan), lines)
    if plan.batch_norm:
        shared = [a for a in arguments if not a.preview().startswith("mp_policy=")]
        norm_policy, define = _batch_norm_policy(plan)
        name = plan.fresh("module")
        norms, chosen = _norms(plan)
        test = code("isinstance({v}, {n})", v=name, n=norms)
        if plan.ignored is not None:
            test = code("{v} not in {i} and {t}", v=name, i=plan.ignored, t=test)
        given = join(", ", [code("{v}", v=name), code("mp_policy={p}", p=norm_policy), *shared])
        call = code("{f}({a})", f=fully_shard, a=given)
        loop = "for {v} in {m}.modules():\n    if {t}:\n        {c}"
        lines = [define, *chosen, code(loop, v=name, m=plan.model, t=test, c=call)]
        either = plan.fresh("wrap_policy")
        looks, below = code("recurse"), code("False")
        if present(plan.precision).may_be_none:  # then FSDP1 asked the policy alone
            empty = code("{c}()", c=plan.name(FULLY_SHARD, "MixedPrecisionPolicy"))
            given = present(plan.precision).policy
            looks, below = code("(recurse and {m} != {e})", m=given, e=empty), code("recurse")
        lines.append(
            code(
                "def {e}(module, recurse, nonwrapped_numel):\n"
                "    return (\n"
                "        {l}\n"
                "        or isinstance(module, {n})\n"
                "        or {p}(module=module, recurse={b}, nonwrapped_numel=nonwrapped_numel)\n"
                "    )",
                e=either,
                l=looks,
                b=below,
                n=norms,
                p=policy,
            )
        )
        policy = code(either)
    shard = plan.support("shard_by_policy")
    lines.append(code("{f}({a})", f=shard, a=join(", ", [plan.model, policy, *arguments])))
    return _unless_none(_walked_or_none(plan), lines)


def _walked_or_none(plan: ShardPlan) -> Code | None:
    return plan.walk if plan.walk_may_be_none else None


def _unless_none(policy: Code | None, lines: list[Code]) -> list[Code]:
    """Statements that use a policy, if it is one that may be none."""
    if policy is None:
        return lines
    return [code("if {p} is not None:\n    {l}", p=policy, l=nested(lines))]


def nested(lines: list[Code]) -> Code:
    """Statements as they stand in a block."""
    return join("\n    ", [_indented(line) for line in set_apart(lines)])


def set_apart(lines: Sequence[Code]) -> list[Code]:
    """Statements of a block with an empty line around each function among them."""
    defines = [line.template.startswith("def ") for line in lines]
    after = [False, *defines[:-1]]
    return [
        Code(f"\n{line.template}", line.parts) if place and (here or before) else line
        for place, (line, here, before) in enumerate(zip(lines, defines, after, strict=True))
    ]


def _indented(given: Code) -> Code:
    parts = {n: _indented(p) if isinstance(p, Code) else p for n, p in given.parts.items()}
    return Code(given.template.replace("\n", "\n    "), parts)


def _below_root(targets: Targets, variable: str, plan: ShardPlan) -> Code:
    """The test for a submodule that becomes a unit."""
    test = targets.predicate(variable)
    if not targets.may_be_root:
        return test
    form = "{t} and {v} is not {m}" if targets.asks_root else "{v} is not {m} and {t}"
    return code(form, v=variable, m=plan.model, t=test)


def _loop_with_batch_norm(
    plan: ShardPlan, fully_shard: str, name: str, call: Code, shared: list[Code]
) -> list[Code]:
    """FSDP1 keeps every BatchNorm as a unit of its own in full precision."""
    batch_norm, chosen = _norms(plan)
    norm_policy, define = _batch_norm_policy(plan)
    arguments = [code("{m}", m=name), code("mp_policy={p}", p=norm_policy), *shared]
    norm_call = code("{f}({args})", f=fully_shard, args=join(", ", arguments))
    template = "for {v} in reversed(list({m}.modules())):\n    if {is_norm}:\n        {norm_call}"
    is_norm = code("isinstance({v}, {bn})", v=name, bn=batch_norm)
    if plan.ignored is not None:
        is_norm = code("{v} not in {i} and {t}", v=name, i=plan.ignored, t=is_norm)
    parts: dict[str, Code | ast.expr | str] = {
        "v": name,
        "m": plan.model,
        "is_norm": is_norm,
        "norm_call": norm_call,
    }
    if plan.targets is not None:
        template += "\n    elif {test}:\n        {call}"
        parts["test"] = _below_root(plan.targets, name, plan)
        parts["call"] = call
    return [define, *chosen, Code(template, parts)]


def _norms(plan: ShardPlan) -> tuple[str, list[Code]]:
    """The classes that are units of their own, and the statement that names them.

    FSDP1 had such units where it was given mixed precision alone.
    """
    batch_norm = plan.name(BATCH_NORM, "_BatchNorm")
    precision = present(plan.precision)
    if not precision.may_be_none:
        return batch_norm, []
    norms = plan.fresh("norms")
    empty = code("{c}()", c=plan.name(FULLY_SHARD, "MixedPrecisionPolicy"))
    statement = "{n} = {bn} if {p} != {e} else ()"
    return norms, [code(statement, n=norms, bn=batch_norm, p=precision.policy, e=empty)]


def _batch_norm_policy(plan: ShardPlan) -> tuple[str, Code]:
    """The name of the units' policy for BatchNorm, and the statement that makes it."""
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
        p=present(plan.precision).policy,
    )
    return norm_policy, define
