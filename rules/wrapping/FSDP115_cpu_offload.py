"""Offload with `CPUOffloadPolicy` instead of `CPUOffload`."""

import ast
from collections.abc import Callable
from functools import partial

from fsdp_migrate.analysis.dataclass_fields import is_written_in_sight
from fsdp_migrate.analysis.flow import access_path
from fsdp_migrate.analysis.module import Module
from fsdp_migrate.analysis.values import Constant, Made
from fsdp_migrate.families.wrapping import offloading, tables, vocabulary
from fsdp_migrate.families.wrapping.assigned_nones import assigned_nones, replace_nones
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


HELP = "pass offload_policy=CPUOffloadPolicy() by hand"


def decide(site: Site, study: Study) -> Decision:
    if site.construct == Construct(ConstructKind.NAME, "CPUOffload"):
        return _origin(site, study)
    plan, value, _ = study.argument(site)
    try:
        flags = [offloading.flag(v, study) for v in study.values(value, site.module)]
    except offloading.Unreadable as problem:
        return study.left(site, RULE.code, str(problem), HELP)
    inside = {*ast.walk(value)}
    written = [v for v in study.values(value, site.module) if isinstance(v, Made)]
    if all(flag is False for flag in flags) and all(v.node in inside for v in written):
        return study.dropped(site, RULE.code, "dropped, nothing was offloaded")
    if not any(flags) and _removes_variable(value, plan, study):
        return study.dropped(site, RULE.code, "dropped, nothing was offloaded")
    if not any(flags) and not is_written_in_sight(value, site.module, study.tracer):
        return study.left(site, RULE.code, f"{ast.unparse(value)} may be set by setattr", HELP)
    if any(flags):
        plan.offloads = _condition(value, plan, study)
    plan.everywhere["offload_policy"] = _converted(value, plan, study)
    if not any(flags):
        return study.rewritten(site, RULE.code, "offload_policy, by which nothing is offloaded")
    review = offloading.doubt(plan.constructor, study)
    return study.rewritten(site, RULE.code, "offload_policy", review=review)


def _removes_variable(node: ast.expr, plan: ShardPlan, study: Study) -> bool:
    """Remove the variable that takes a setting to the argument, and nowhere else."""
    module = plan.constructor.module
    match tables.assigned(node, module, study):
        case ([ast.Call() as made], [_, name]) if plan.is_first("cpu_offload"):
            if made in {v.node for v in study.values(node, module)}:
                plan.proposal.delete(module, module.table.statement(name))
                message = "nothing was offloaded"
                study.convert(made, None, message, plan.constructor)
                return True
    return False


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
        return _policy(
            offloading.flag(next(iter(values)), study), partial(plan.name, fsdp1.PACKAGE)
        )
    nullable = any(isinstance(v, Constant) for v in values)
    for value in values:
        if isinstance(value, Made):
            proposal = study.proposal()
            name_of = partial(_name_at, value, proposal)
            new = _policy(offloading.flag(value, study), name_of)
            if not isinstance(value.node, ast.Call):  # what a field calls to make its default
                new = code(name_of("OffloadPolicy"))
            study.convert(value.node, new, "offload policy", plan.constructor, proposal)
    if nullable:
        nothing = code("{n}()", n=plan.name(fsdp1.PACKAGE, "OffloadPolicy"))
        nones = assigned_nones(node, module, partial(_may_be_none, module=module, study=study))
        if not nones:
            return code("{v} or {n}", v=node, n=nothing)
        if plan.is_first("cpu_offload"):
            replace_nones(nones, node, nothing, module, plan.proposal)
    if access_path(node) is not None:
        return code("{v}", v=ast.unparse(node).replace("'", '"'))
    name = plan.fresh("offload_policy")
    plan.setup.append(code("{n} = {v}", n=name, v=node))
    return code("{n}", n=name)


def _may_be_none(node: ast.expr, module: Module, study: Study) -> bool:
    return any(isinstance(v, Constant) for v in study.values(node, module))


def _condition(node: ast.expr, plan: ShardPlan, study: Study) -> Code:
    """Whether the parameters are offloaded, as an expression."""
    if isinstance(node, ast.IfExp):
        branches = [study.values(b, plan.constructor.module) for b in (node.body, node.orelse)]
        flags = [{offloading.flag(v, study) for v in values} for values in branches]
        if flags == [{True}, {False}]:
            return code("{t}", t=node.test)
        if flags == [{False}, {True}]:
            return code("not ({t})", t=node.test)
    values = study.values(node, plan.constructor.module)
    only = {offloading.flag(v, study) for v in values}
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
        outside = vocabulary.given_to_stranger(site, study)
        if outside:
            return study.left(site, RULE.code, outside, "migrate it together with what takes it")
        return study.left(
            site,
            RULE.code,
            study.derived or "this CPUOffload reaches no FSDP constructor in the given paths",
            "delete it, or migrate the code that uses it together with it",
        )
    return study.converted(site, RULE.code, conversion)
