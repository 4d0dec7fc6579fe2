"""FSDP1 sharding strategies and what they are in FSDP2 (a mesh and ``reshard_after_forward``).

Measured on torch 2.13: FULL_SHARD never reshards the root after forward, nor does ``fully_shard``
when the argument is left out; SHARD_GRAD_OP frees parameters after backward like
``reshard_after_forward=False``.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass, replace

from packaging.version import Version

from fsdp_migrate.analysis.module import Module
from fsdp_migrate.analysis.values import Constant, External, Value
from fsdp_migrate.families.wrapping import device_code, devices, vocabulary
from fsdp_migrate.fsdp1 import api as fsdp1
from fsdp_migrate.fsdp1.site import Site
from fsdp_migrate.planning.context import Study
from fsdp_migrate.planning.edits import Code, code, join
from fsdp_migrate.planning.model import Constructor, Decision
from fsdp_migrate.planning.shard_plan import ShardPlan

RESHARD_NEVER = frozenset({"SHARD_GRAD_OP", "_HYBRID_SHARD_ZERO2"})
HYBRID = frozenset({"HYBRID_SHARD", "_HYBRID_SHARD_ZERO2"})
ENUM = "ShardingStrategy"
# Earlier releases reduce-scatter over a group of one with AVG, which torch's comments distrust.
CLEAN_REPLICATION = Version("2.10")
OVER_ALL = frozenset({"FULL_SHARD", "SHARD_GRAD_OP"})  # of which every rank holds a part
MEMBERS = frozenset({*OVER_ALL, "NO_SHARD", *HYBRID})
# True makes the root reshard as well since then; None is the default.
NONE_IS_DEFAULT = Version("2.8")
OPPOSITES = {ast.Eq: "!=", ast.NotEq: "==", ast.In: "not in", ast.NotIn: "in"}


def member(value: Value) -> str | None:
    """The strategy's name, ``FULL_SHARD`` for None, or None when it is not one member."""
    if isinstance(value, Constant) and value.value is None:
        return "FULL_SHARD"
    if isinstance(value, External):
        name = fsdp1.canonical(value.name) or ""
        found = name.removeprefix("ShardingStrategy.")
        return found if found in MEMBERS else None
    return None


def strategy_of(constructor: Constructor, study: Study) -> str | None:
    """The strategy of a constructor when it is written at the call; None when it varies."""
    node = constructor.arguments.get("sharding_strategy")
    if node is None:
        return None if constructor.is_open else "FULL_SHARD"
    direct = isinstance(node, ast.Constant) or study.external(node, constructor.module)
    if not direct:
        return None
    found = {member(v) for v in study.values(node, constructor.module)}
    return found.pop() if len(found) == 1 else None


def strategies_of(constructor: Constructor, study: Study) -> frozenset[str]:
    """The strategies that a constructor chooses from, or none if they are not all in sight."""
    certain = strategy_of(constructor, study)
    if certain is not None:
        return frozenset({certain})
    choice = _choice(constructor, study)
    return frozenset() if choice is None else frozenset(choice.mentions.values())


def is_over_all(constructor: Constructor, study: Study) -> bool:
    """Whether the strategy certainly is one that shards over all ranks."""
    found = strategies_of(constructor, study)
    return bool(found) and found <= OVER_ALL


def is_replicated(models: frozenset[Constructor], study: Study) -> bool:
    """Whether every rank has all of the models, as far as their strategies are written."""
    return {strategy_of(model, study) for model in models} == {"NO_SHARD"}


# -- strategies to choose from ----------------------------------------------------------------


@dataclass(eq=False)
class Choice:
    """FULL_SHARD or SHARD_GRAD_OP, as an expression that can say ``reshard_after_forward``.

    ``mentions`` are the expressions that name a strategy. ``names`` are those of the variable that
    takes the choice to the constructor.
    """

    mentions: dict[ast.expr, str]
    names: list[ast.Name]


def _choice(constructor: Constructor, study: Study) -> Choice | None:
    """What a constructor chooses from: ``SHARD_GRAD_OP if args.zero2 else FULL_SHARD``."""
    node = constructor.arguments.get("sharding_strategy")
    if node is None:
        return None
    given, names = _assigned(node, constructor.module) or ([node], [])
    mentions = {}
    for expression in given:
        for leaf in _leaves(expression):
            direct = isinstance(leaf, ast.Constant) or study.external(leaf, constructor.module)
            found = {member(v) for v in study.values(leaf, constructor.module)} if direct else {""}
            if len(found) != 1 or not found <= OVER_ALL:
                return None
            mentions[leaf] = str(found.pop())
    return Choice(mentions, names)


def _leaves(node: ast.expr) -> Iterator[ast.expr]:
    """What an expression may be: both branches of a condition, the values of a table."""
    match node:
        case ast.IfExp(body=body, orelse=orelse):
            yield from _leaves(body)
            yield from _leaves(orelse)
        case ast.Subscript(value=ast.Dict(keys=keys, values=values)) if None not in keys:
            for value in values:
                yield from _leaves(value)
        case _:
            yield node


def _assigned(node: ast.expr, module: Module) -> tuple[list[ast.expr], list[ast.Name]] | None:
    """What a variable is assigned that only takes a value to ``node``, and all its names."""
    table = module.table
    scope = table.scope_of(node)
    if not isinstance(node, ast.Name) or not scope.is_function or node.id not in scope.bindings:
        return None
    given, names = [], [node]
    for binding in scope.bindings[node.id]:
        statement = binding.node
        if not isinstance(statement, ast.Assign) or not isinstance(binding.value, ast.expr):
            return None
        target = statement.targets[0]
        if len(statement.targets) > 1 or not isinstance(target, ast.Name):
            return None
        given.append(binding.value)
        names.append(target)
    used = [n for n in table.names_by_id.named(node.id) if table.within[n].lookup(n.id) is scope]
    return (given, names) if set(used) == set(names) else None


def _reshard(choice: Choice, plan: ShardPlan, value: ast.expr, study: Study) -> Code:
    """``reshard_after_forward`` for a choice: ``not args.zero2``."""
    short = _condition(value) if study.target < NONE_IS_DEFAULT and not choice.names else None
    if short is not None:
        return short
    full = "True" if study.target < NONE_IS_DEFAULT else "None"
    module = plan.constructor.module
    for leaf, name in choice.mentions.items():
        new = code(full if name == "FULL_SHARD" else "False")
        if choice.names:
            study.convert(leaf, new, "reshard_after_forward", plan.constructor)
        else:
            plan.proposal.replace(module, leaf, new)
    if not choice.names and not plan.constructor.has("auto_wrap_policy"):
        return code("{v}", v=value)
    name = plan.fresh("reshard_after_forward")
    if not choice.names:
        plan.setup.append(code("{n} = {v}", n=name, v=value))
    for each in choice.names[1:]:
        plan.proposal.replace(module, each, code(name))
    return code(name)


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
    name = strategy_of(plan.constructor, study)
    if name is None:
        choice = _choice(plan.constructor, study)
        if choice is None:
            return _at_run_time(site, plan, value, study, rule)
        plan.everywhere["reshard_after_forward"] = _reshard(choice, plan, value, study)
        return study.rewritten(site, rule, "the strategies -> reshard_after_forward")
    problem = apply_strategy(name, plan, study)
    if problem:
        help = "build a 2-D device mesh and pass it as device_mesh"
        return study.left(site, rule, problem, help, final=True)
    if name == "NO_SHARD":
        review = "NO_SHARD became a (world_size, 1) mesh; torch recommends DDP or replicate()"
        if study.target < CLEAN_REPLICATION:
            review += (
                f", and before {CLEAN_REPLICATION} NCCL may reduce wrongly over the one rank that "
                "shards"
            )
        return study.rewritten(site, rule, "NO_SHARD -> a mesh that only replicates", review=review)
    if name in RESHARD_NEVER:
        return study.rewritten(site, rule, f"{name} -> reshard_after_forward=False")
    return study.rewritten(site, rule, f"dropped, {name} is the default")


def apply_strategy(name: str, plan: ShardPlan, study: Study) -> str:
    """Put a strategy into a plan, or return why it cannot be."""
    has_mesh = plan.constructor.has("device_mesh")
    has_group = plan.constructor.has("process_group")
    if name in HYBRID and not has_mesh and not has_group:
        if not plan.constructor.has("auto_wrap_policy"):
            return f"{name} without a policy, group or mesh is an error in FSDP1"
        count = device_code.count_code(plan, study)
        _mesh(plan, study, code("({d}.get_world_size() // {c}, {c})", d=plan.dist(), c=count))
    if name == "NO_SHARD":
        if has_mesh or has_group:
            return "NO_SHARD over a given mesh or group has no plain FSDP2 form"
        _mesh(plan, study, code("({d}.get_world_size(), 1)", d=plan.dist()))
    if name in RESHARD_NEVER:
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
    if plan.constructor.has("process_group"):
        return study.left(
            site,
            rule,
            "the strategy is only known at run time and a process group is passed",
            "choose reshard_after_forward and the mesh by hand",
        )
    function = plan.support("sharding_kwargs")
    mesh = plan.constructor.arguments.get("device_mesh")
    arguments = [code("{v}", v=value)]
    if not devices.read(plan.constructor, study).is_accelerator:
        arguments.append(code("device_type={k}", k=device_code.type_code(plan, study)))
    if mesh is not None:
        arguments.append(code("mesh={m}", m=mesh))
    plan.everywhere["**"] = code("{f}({a})", f=function, a=join(", ", arguments))
    decision = study.rewritten(site, rule, "sharding_kwargs chooses at run time")
    names = vocabulary.mentions(value, ENUM, site, study)
    for name in names:
        vocabulary.take_over(name, ENUM, site, study, plan.proposal)
    # The enum's import goes: every model that is built with it goes along or none.
    return replace(decision, models=study.every_constructor) if names else decision


def decide_mention(site: Site, study: Study, rule: str) -> Decision:
    """Decide a mention of ``ShardingStrategy`` outside a constructor call.

    The enum is the project's vocabulary (configurations, comparisons, command lines): it is taken
    over, member by member, into the support module.
    """
    for node in (site.reference, site.node):
        if node in study.conversions:
            return study.converted(site, rule, study.conversions[node])
    return vocabulary.import_from_support(site, ENUM, study, rule)
