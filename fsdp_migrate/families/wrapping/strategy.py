"""FSDP1 sharding strategies and what they are in FSDP2 (a mesh and ``reshard_after_forward``).

Measured on torch 2.13: FULL_SHARD never reshards the root after forward, nor does ``fully_shard``
when the argument is left out; SHARD_GRAD_OP frees parameters after backward like
``reshard_after_forward=False``.
"""

from __future__ import annotations

import ast
import json
from collections.abc import Set
from dataclasses import replace

from fsdp_migrate.analysis.module import Module
from fsdp_migrate.families.wrapping import (
    assigned_strategies,
    device_code,
    devices,
    passed_arguments,
    strategies,
    strategies_spoken_of,
    tables,
    vocabulary,
)
from fsdp_migrate.families.wrapping.passed_arguments import Parameter
from fsdp_migrate.families.wrapping.strategies import Choice, Rows
from fsdp_migrate.fsdp1.construct import Construct
from fsdp_migrate.fsdp1.site import Site
from fsdp_migrate.planning.context import Study
from fsdp_migrate.planning.edits import Code, code, join
from fsdp_migrate.planning.model import Decision
from fsdp_migrate.planning.shard_plan import ShardPlan
from fsdp_migrate.syntax.kinds import of_kind

PARAMETER = Construct.parse("parameter for the strategy")
OPPOSITES = {ast.Eq: "!=", ast.NotEq: "==", ast.In: "not in", ast.NotIn: "in"}


def _reshard(choice: Choice, plan: ShardPlan, value: ast.expr, study: Study) -> Code:
    """``reshard_after_forward`` for a choice: ``not args.zero2``."""
    short = (
        _condition(value)
        if study.target < strategies.NONE_IS_DEFAULT and choice.given == [value]
        else None
    )
    if short is not None:
        return short
    constructor = plan.constructor
    inside = set(ast.walk(value)) - {*choice.names}
    for leaf, (name, where) in choice.mentions.items():
        _say(leaf, leaf, code(_spelled(name, study)), where, inside, plan, study)
    for leaf, rows in choice.by_name.items():
        items = [code(f'"{key}": {_spelled(name, study)}') for key, name in rows.strategies.items()]
        table = code("{{{i}}}[{k}]", i=join(", ", items), k=rows.key)
        enum = next(iter(ast.iter_child_nodes(leaf)))
        enum = leaf.args[0] if isinstance(leaf, ast.Call) else enum
        _say(leaf, enum, table, rows.module, inside, plan, study)
    for rows in choice.lookups.values():
        statement = rows.module.table.parents[rows.table] if rows.table is not None else None
        if isinstance(statement, ast.AnnAssign):
            _retype(statement.annotation, rows.module, plan, study)
    for function, module in choice.functions.items():
        _retype(function.returns, module, plan, study)
    for leaf, parameter in choice.parameters.items():
        _rename(parameter, plan, study)
        if leaf is value:
            return code(strategies.RESHARD)
        if plan.is_first("sharding_strategy"):
            plan.proposal.replace(constructor.module, leaf, code(strategies.RESHARD))
    in_dictionary = constructor.dictionary is not None and constructor.dictionary.is_spread
    if not choice.names and (in_dictionary or not constructor.has("auto_wrap_policy")):
        return code("{v}", v=value)
    name = plan.fresh("reshard_after_forward")
    if not choice.names:
        plan.setup.append(code("{n} = {v}", n=name, v=value))
    for each in choice.names[1:] if plan.is_first("sharding_strategy") else ():
        plan.proposal.replace(constructor.module, each, code(name))
        statement = constructor.module.table.parents[each]
        if isinstance(statement, ast.AnnAssign):
            _retype(statement.annotation, constructor.module, plan, study)
    return code(name)


def _where_assigned(choice: Choice, plan: ShardPlan, value: ast.expr, study: Study) -> Code:
    """Give a variable the arguments that each strategy means, with its mesh."""
    shapes = {"NO_SHARD": "whole", **dict.fromkeys(strategies.HYBRID, "hybrid")}
    named = sorted(choice.strategies)
    meaning = {n: (n in strategies.RESHARD_NEVER, shapes.get(n, "")) for n in named}
    written = assigned_strategies.write(choice.names, meaning, plan, study)
    module = plan.constructor.module
    for leaf, (strategy, where) in choice.mentions.items():
        _say(leaf, leaf, written[strategy], where, {*ast.walk(value)}, plan, study)
    name = plan.fresh(assigned_strategies.NAME)
    for each in choice.names[1:] if plan.is_first("sharding_strategy") else ():
        plan.proposal.replace(module, each, code(name))
    return code(name)


def _rename(parameter: Parameter, plan: ShardPlan, study: Study) -> None:
    """Let a parameter take ``reshard_after_forward`` to the constructors."""
    proposal = study.proposal()
    parameter.rename(strategies.RESHARD, proposal)
    study.convert(parameter.arg, None, "-> reshard_after_forward", plan.constructor, proposal)
    _retype(parameter.arg.annotation, parameter.module, plan, study)
    plan.further.append(Site(PARAMETER, parameter.module, parameter.arg, parameter.arg))


def decide_parameter(site: Site, study: Study, rule: str) -> Decision:
    """Decide a parameter that takes the strategy to constructors."""
    conversion = study.conversions[site.node]
    old, new = of_kind(site.node, ast.arg).arg, strategies.RESHARD
    full = "True" if study.target < strategies.NONE_IS_DEFAULT else "None"
    review = (
        f"callers outside the given paths that pass {old} have to pass {new} instead, "
        f"{full} for FULL_SHARD and False for SHARD_GRAD_OP"
    )
    is_seen = not passed_arguments.may_be_called_elsewhere(site.statement, site.module)
    return study.rewritten(
        site,
        rule,
        f"{old} -> {new}",
        conversion.proposal,
        models=conversion.constructors,
        review="" if is_seen else review,
    )


def _say(
    node: ast.expr,
    mention: ast.AST,
    new: Code,
    module: Module,
    inside: Set[ast.AST],
    plan: ShardPlan,
    study: Study,
) -> None:
    """Write what an expression means that names strategies, in the argument or elsewhere."""
    constructor = plan.constructor
    if node not in inside:
        proposal = study.proposal()
        proposal.replace(module, node, new)
        study.convert(mention, None, "reshard_after_forward", constructor, proposal)
    elif plan.is_first("sharding_strategy"):
        plan.proposal.replace(module, node, new)


def _retype(
    annotation: ast.expr | None,
    module: Module,
    plan: ShardPlan,
    study: Study,
    *,
    gone: bool = False,
) -> None:
    """Correct the type of a table or a function: ``dict[str, ShardingStrategy]``.

    Args:
        gone: the type is removed with what it is of.
    """
    for node in ast.walk(annotation) if annotation is not None else ():
        if isinstance(node, (ast.Name, ast.Attribute)) and strategies.is_enum(node, module, study):
            word = "bool" if study.target < strategies.NONE_IS_DEFAULT else "bool | None"
            new = None if gone else code(word)
            study.convert(node, new, "the type of reshard_after_forward", plan.constructor)


def _choose_mesh(rows: Rows, plan: ShardPlan, study: Study) -> None:
    """Make the mesh that some of the strategies need, if it is one of them."""
    init = plan.name("torch.distributed.device_mesh", "init_device_mesh")
    world = code("{d}.get_world_size()", d=plan.dist())
    shapes = {"NO_SHARD": code("({w}, 1)", w=world)}
    chosen = set(rows.strategies.values())
    if chosen & strategies.HYBRID:
        count = device_code.count_code(plan, study)
        shape = code("({w} // {c}, {c})", w=world, c=count)
        shapes |= dict.fromkeys(strategies.HYBRID, shape)
    kind = device_code.type_code(plan, study)
    name = plan.fresh("mesh")
    default = None
    if not devices.read(plan.constructor, study).is_accelerator:
        default = code("{i}({k}, ({w},))", i=init, k=kind, w=world)
    branches = []
    for shape in dict.fromkeys(shapes.values()):
        keys = [k for k, strategy in rows.strategies.items() if shapes.get(strategy) is shape]
        if keys:
            make = '{i}({k}, {s}, mesh_dim_names=("replicate", "shard"))'
            mesh = code(make, i=init, k=kind, s=shape)
            branches.append(
                code("if {t}:\n    {n} = {m}", t=_is_one(rows.key, keys), n=name, m=mesh)
            )
    template = "\nel".join(f"{{b{i}}}" for i in range(len(branches)))
    if default is None:
        template = "{n} = None\n" + template
    else:
        template += "\nelse:\n    {n} = {d}"
    parts = {f"b{i}": branch for i, branch in enumerate(branches)}
    plan.setup.append(Code(template, {"n": name, "d": default or "", **parts}))
    plan.everywhere["mesh"] = code(name)


def _is_one(key: ast.expr, words: list[object]) -> Code:
    """The test whether a key is one of some words."""
    spelled = [json.dumps(w) if isinstance(w, str) else repr(w) for w in words]
    if len(spelled) == 1:
        return code("{k} == {w}", k=key, w=spelled[0])
    return code("{k} in ({w})", k=key, w=", ".join(spelled))


def _spelled(name: str, study: Study) -> str:
    """What a strategy means for ``reshard_after_forward``."""
    full = "True" if study.target < strategies.NONE_IS_DEFAULT else "None"
    return "False" if name in strategies.RESHARD_NEVER else full


def _condition(value: ast.expr) -> Code | None:
    """``not args.zero2`` of ``SHARD_GRAD_OP if args.zero2 else FULL_SHARD``."""
    match value:
        case ast.IfExp(body=ast.Attribute(attr="FULL_SHARD"), orelse=ast.Attribute() as other):
            if other.attr != "SHARD_GRAD_OP":
                return None
            is_bool = isinstance(value.test, ast.Compare)
            return code("{t}" if is_bool else "bool({t})", t=value.test)
        case ast.IfExp(body=ast.Attribute(attr="SHARD_GRAD_OP"), orelse=ast.Attribute() as other):
            return _negated(value.test) if other.attr == "FULL_SHARD" else None
    return None


def _negated(test: ast.expr) -> Code:
    match test:
        case ast.UnaryOp(op=ast.Not(), operand=operand):
            return code("bool({o})", o=operand)
        case ast.Compare(left=left, ops=[op], comparators=[right]) if type(op) in OPPOSITES:
            return code(f"{{l}} {OPPOSITES[type(op)]} {{r}}", l=left, r=right)
        case ast.Name() | ast.Attribute() | ast.Call() | ast.Subscript():
            return code("not {t}", t=test)
    return code("not ({t})", t=test)


def decide_argument(site: Site, study: Study, rule: str) -> Decision:
    """Decide the constructor's ``sharding_strategy`` argument."""
    plan, value, _ = study.argument(site)
    name = strategies.strategy_of(plan.constructor, study)
    if name is None:
        choice = strategies.read_choice(plan.constructor, study)
        if choice is None:
            return _at_run_time(site, plan, value, study, rule)
        if choice.is_of_groups and choice.strategies.isdisjoint(strategies.RESHARD_NEVER):
            for mention in choice.mentions.keys() - {value}:
                study.convert(mention, None, "said by the mesh", plan.constructor)
            return study.rewritten(site, rule, "the strategies are said by the mesh")
        if choice.is_written_where_assigned:
            plan.everywhere["**"] = _where_assigned(choice, plan, value, study)
        elif not choice.is_full_by_name:
            plan.everywhere["reshard_after_forward"] = _reshard(choice, plan, value, study)
        if choice.rows is not None and not choice.strategies <= strategies.OVER_ALL:
            _choose_mesh(choice.rows, plan, study)
        review = strategies.doubt(choice.strategies, site.module, study)
        return study.rewritten(site, rule, "the strategies -> reshard_after_forward", review=review)
    problem = apply_strategy(name, plan, study)
    _remove_variable(plan, value, study)
    dictionary = plan.constructor.dictionary
    for entry, _ in dictionary.going if dictionary is not None else ():
        if entry.name == "sharding_strategy" and entry.value is not value:
            study.convert(entry.value, None, "said at the call", plan.constructor)
    if problem:
        help = "build a 2-D device mesh and pass it as device_mesh"
        return study.left(site, rule, problem, help, final=True)
    if name == "NO_SHARD":
        review = strategies.doubt({name}, site.module, study)
        return study.rewritten(site, rule, "NO_SHARD -> a mesh that only replicates", review=review)
    if name in strategies.RESHARD_NEVER:
        return study.rewritten(site, rule, f"{name} -> reshard_after_forward=False")
    return study.rewritten(site, rule, f"dropped, {name} is the default")


def _remove_variable(plan: ShardPlan, value: ast.expr, study: Study) -> None:
    """Remove the variable that takes the one strategy to the argument, and nowhere else."""
    module = plan.constructor.module
    given, names = tables.assigned(value, module, study) or ([], [])
    for strategy, name in zip(given, names[1:], strict=True):
        statement = module.table.parents[name]
        if plan.is_first("sharding_strategy"):
            plan.proposal.delete(module, of_kind(statement, ast.stmt))
        study.convert(strategy, None, "said by reshard_after_forward", plan.constructor)
        if isinstance(statement, ast.AnnAssign):
            _retype(statement.annotation, module, plan, study, gone=True)


def apply_strategy(name: str, plan: ShardPlan, study: Study) -> str:
    """Put a strategy into a plan, or return why it cannot be."""
    has_mesh = plan.constructor.has("device_mesh")
    has_group = plan.constructor.has("process_group")
    if name in strategies.HYBRID and not has_mesh and not has_group:
        if not plan.constructor.has("auto_wrap_policy"):
            return f"{name} without a policy, group or mesh is an error in FSDP1"
        count = device_code.count_code(plan, study)
        _mesh(plan, study, code("({d}.get_world_size() // {c}, {c})", d=plan.dist(), c=count))
    if name == "NO_SHARD":
        if has_mesh or has_group:
            return ""  # the mesh is made of it
        _mesh(plan, study, code("({d}.get_world_size(), 1)", d=plan.dist()))
    if name in strategies.RESHARD_NEVER:
        plan.everywhere["reshard_after_forward"] = code("False")
    return ""


def _mesh(plan: ShardPlan, study: Study, shape: Code) -> None:
    """A 2-D mesh, replicate first, made once before sharding."""
    init = plan.name("torch.distributed.device_mesh", "init_device_mesh")
    name = plan.fresh("mesh")
    kind = device_code.type_code(plan, study)
    plan.setup.append(
        code(
            '{n} = {init}({kind}, {shape}, mesh_dim_names=("replicate", "shard"))',
            n=name,
            init=init,
            kind=kind,
            shape=shape,
        )
    )
    plan.everywhere["mesh"] = code("{n}", n=name)


def _at_run_time(site: Site, plan: ShardPlan, value: ast.expr, study: Study, rule: str) -> Decision:
    """Let a support function choose; the project keeps its names for strategies."""
    default = devices.read(plan.constructor, study).is_accelerator
    mesh = plan.everywhere.get("mesh") or plan.constructor.arguments.get("device_mesh")
    spoken_of = strategies_spoken_of.strategies_of(value, site.module, study)
    if mesh is None and spoken_of <= strategies.OVER_ALL and _is_read(value):
        return _over_all(site, plan, value, study, rule)
    told = frozenset() if default else frozenset({"HAS_DEFAULT_DEVICES"})
    function = plan.support("sharding_kwargs", lacking=told)
    plan.everywhere.pop("mesh", None)
    arguments = [code("{v}", v=value)]
    if not default:
        arguments.append(code("device_type={k}", k=device_code.type_code(plan, study)))
    if mesh is not None:
        arguments.append(code("mesh={m}", m=mesh))
    plan.everywhere["**"] = code("{f}({a})", f=function, a=join(", ", arguments))
    possible = strategies.possible(plan.constructor, study)
    decision = study.rewritten(
        site,
        rule,
        "sharding_kwargs chooses at run time",
        review="" if mesh else strategies.doubt(possible, site.module, study),
    )
    names = vocabulary.mentions(value, strategies.ENUM, site, study)
    for name in names:
        vocabulary.take_over(name, strategies.ENUM, site, study, plan.proposal)
    # The enum's import goes: every model that is built with it goes along or none.
    return replace(decision, models=study.every_constructor) if names else decision


def _over_all(site: Site, plan: ShardPlan, value: ast.expr, study: Study, rule: str) -> Decision:
    """Ask the strategy, which shards over all ranks, whether parameters stay whole after the
    forward."""
    module = plan.constructor.module if plan.place is None else plan.place[0]
    enum = vocabulary.own_name(strategies.ENUM, module, plan.constructor.reference, plan, study)
    form = "{v} != {e}.SHARD_GRAD_OP"
    if study.target >= strategies.NONE_IS_DEFAULT:
        form = "False if {v} == {e}.SHARD_GRAD_OP else None"
    said = code(form, v=value, e=enum)
    if plan.constructor.has("auto_wrap_policy"):
        name = plan.fresh(strategies.RESHARD)
        plan.setup.append(code("{n} = {s}", n=name, s=said))
        said = code(name)
    plan.everywhere[strategies.RESHARD] = said
    models = study.every_constructor  # the enum's import goes
    return study.rewritten(site, rule, "the strategies -> reshard_after_forward", models=models)


def _is_read(value: ast.expr) -> bool:
    """Whether an expression only reads what something has: a field, an entry of a dictionary."""
    match value:
        case ast.Name():
            return True
        case ast.Attribute(value=of) | ast.Subscript(value=of, slice=ast.Constant()):
            return _is_read(of)
        case ast.Call(func=ast.Attribute(value=of, attr="get"), args=[ast.Constant()], keywords=[]):
            return _is_read(of)
    return False


def decide_mention(site: Site, study: Study, rule: str) -> Decision:
    """Decide a mention of ``ShardingStrategy`` outside a constructor call.

    The enum is the project's vocabulary (configurations, comparisons, command lines): it is taken
    over, member by member, into the support module.
    """
    for node in (site.reference, site.node):
        if node in study.conversions:
            return study.converted(site, rule, study.conversions[node])
    return vocabulary.import_from_support(site, strategies.ENUM, study, rule)
