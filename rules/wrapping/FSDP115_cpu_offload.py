"""Offload with `CPUOffloadPolicy` instead of `CPUOffload`."""

import ast
from collections.abc import Callable
from functools import partial

from fsdp_migrate.analysis.flow import access_path
from fsdp_migrate.analysis.values import Constant, Made, Value
from fsdp_migrate.fsdp1 import api as fsdp1
from fsdp_migrate.fsdp1.construct import Construct, ConstructKind
from fsdp_migrate.fsdp1.site import Site
from fsdp_migrate.planning.context import Study
from fsdp_migrate.planning.edits import Code, code
from fsdp_migrate.planning.model import Decision
from fsdp_migrate.planning.proposal import Proposal
from fsdp_migrate.planning.rule import Rule
from fsdp_migrate.planning.shard_plan import ShardPlan
from fsdp_migrate.syntax.kinds import of_kind

RULE = Rule(
    code="FSDP115",
    name="cpu_offload",
    handles=("FullyShardedDataParallel(cpu_offload=)", "CPUOffload"),
)


REVIEW = (
    "parameters live on the CPU: clipping and checkpoints need a CPU backend, "
    'init_process_group("cpu:gloo,cuda:nccl")'
)


class Unreadable(Exception):
    pass


def decide(site: Site, study: Study) -> Decision:
    if site.construct == Construct(ConstructKind.NAME, "CPUOffload"):
        return _origin(site, study)
    plan, value, _ = study.argument(site)
    try:
        flags = [_flag(v, study) for v in study.values(value, site.module)]
    except Unreadable as problem:
        return study.left(
            site, RULE.code, str(problem), "pass offload_policy=CPUOffloadPolicy() by hand"
        )
    if all(flag is False for flag in flags):
        return study.dropped(site, RULE.code, "dropped, nothing was offloaded")
    plan.offloads = _condition(value, plan, study)
    plan.everywhere["offload_policy"] = _converted(value, plan, study)
    return study.rewritten(site, RULE.code, "offload_policy", review=REVIEW)


def _flag(value: Value, study: Study) -> bool | ast.expr:
    """Whether a value offloads: known, or the expression that says so at run time."""
    match value:
        case Constant(value=None):
            return False
        case Made(node=ast.Call() as call) if fsdp1.canonical(value.made_by) == "CPUOffload":
            node = call.args[0] if call.args else None
            for keyword in call.keywords:
                if keyword.arg != "offload_params":
                    raise Unreadable("the arguments of CPUOffload cannot be read")
                node = keyword.value
            if node is None:
                return False
            constant = study.literal(node, value.module)
            return bool(constant.value) if constant is not None else node
    raise Unreadable(study.unknown([value]) or "cpu_offload is not a CPUOffload value")


def _converted(node: ast.expr, plan: ShardPlan, study: Study) -> Code:
    """The offload policy for an argument, branch by branch."""
    module = plan.constructor.module
    if isinstance(node, ast.IfExp):
        return code(
            "{a} if {t} else {b}",
            a=_converted(node.body, plan, study),
            t=node.test,
            b=_converted(node.orelse, plan, study),
        )
    values = study.values(node, module)
    direct = len(values) == 1 and next(iter(values)).node is node
    if direct:
        return _policy(_flag(next(iter(values)), study), partial(plan.name, fsdp1.PACKAGE))
    nullable = any(isinstance(v, Constant) for v in values)
    for value in values:
        if isinstance(value, Made):
            proposal = study.proposal()
            new = _policy(_flag(value, study), partial(_name_at, value, proposal))
            study.convert(value.node, new, "offload policy", plan.constructor, proposal)
    if nullable:
        nothing = plan.name(fsdp1.PACKAGE, "OffloadPolicy")
        return code("{v} or {n}()", v=node, n=nothing)
    if access_path(node) is not None:
        return code("{v}", v=ast.unparse(node))
    name = plan.fresh("offload_policy")
    plan.setup.append(code("{n} = {v}", n=name, v=node))
    return code("{n}", n=name)


def _condition(node: ast.expr, plan: ShardPlan, study: Study) -> Code:
    """Whether the parameters are offloaded, as an expression."""
    if isinstance(node, ast.IfExp):
        branches = [study.values(b, plan.constructor.module) for b in (node.body, node.orelse)]
        flags = [{_flag(v, study) for v in values} for values in branches]
        if flags == [{True}, {False}]:
            return code("{t}", t=node.test)
        if flags == [{False}, {True}]:
            return code("not ({t})", t=node.test)
    values = study.values(node, plan.constructor.module)
    only = {_flag(v, study) for v in values}
    if only == {True}:
        return code("True")
    flag = next(iter(only))
    if len(only) == 1 and isinstance(flag, ast.expr) and next(iter(values)).node is node:
        return code("{f}", f=flag)
    policy = plan.name(fsdp1.PACKAGE, "CPUOffloadPolicy")
    return code("isinstance({v}, {p})", v=node, p=policy)


def _policy(flag: bool | ast.expr, name: Callable[[str], str]) -> Code:
    """The policy for a flag. ``name`` imports a class and gives its name."""
    if flag is False:
        return code("{n}()", n=name("OffloadPolicy"))
    offload = name("CPUOffloadPolicy")
    if flag is True:
        return code("{o}()", o=offload)
    flag = of_kind(flag, ast.expr)
    return code("{o}() if {f} else {n}()", o=offload, f=flag, n=name("OffloadPolicy"))


def _name_at(value: Made, proposal: Proposal, name: str) -> str:
    return proposal.name(value.module, fsdp1.PACKAGE, name, value.node)


def _origin(site: Site, study: Study) -> Decision:
    conversion = study.conversions.get(site.node)
    if conversion is None:
        return study.left(
            site,
            RULE.code,
            study.derived or "this CPUOffload reaches no FSDP constructor in the given paths",
            "delete it, or migrate the code that uses it together with it",
        )
    return study.converted(site, RULE.code, conversion)
