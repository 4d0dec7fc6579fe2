"""Where a policy is made, and how emitted code gets at it."""

from __future__ import annotations

import ast
from dataclasses import dataclass

from fsdp_migrate.analysis import name_uses
from fsdp_migrate.analysis.flow import access_path
from fsdp_migrate.analysis.module import Module
from fsdp_migrate.families.wrapping.policies import Kind, Policy, Unreadable
from fsdp_migrate.planning.context import Study
from fsdp_migrate.planning.edits import Code, code
from fsdp_migrate.planning.shard_plan import ShardPlan, Targets


@dataclass(frozen=True, eq=False)
class PolicyUse:
    """How a policy argument is used by the emitted code: one of ``targets`` and ``walk``."""

    message: str
    targets: Targets | None = None
    walk: Code | None = None
    may_be_none: bool = False  # the policy that is walked
    by_size: bool = False  # ``walk`` is how many parameters make a unit
    setup: tuple[Code, ...] = ()
    review: str = ""


def under_a_name(argument: ast.expr, plan: ShardPlan) -> tuple[Code, tuple[Code, ...]]:
    """How a policy is written in the emitted code, and the statement that gives it a name."""
    if access_path(argument) is not None:
        return code("{a}", a=argument), ()
    name = plan.fresh("wrap_policy")
    return code("{n}", n=name), (code("{n} = {a}", n=name, a=argument),)


def is_local(argument: ast.expr, policy: Policy, plan: ShardPlan, study: Study) -> bool:
    """The policy is made in the call, or by an assignment beside it that nothing else uses."""
    if policy.node is argument:
        return True
    module = plan.constructor.module
    made = sole_assignment(argument, policy.node, module, study)
    return policy.module is module and made is not None


def sole_assignment(
    use_: ast.expr, origin: ast.AST, module: Module, study: Study | None = None
) -> ast.Assign | None:
    """``name = origin`` when ``use_`` is the only use of ``name`` and no other value reaches it.

    A name of the file itself is one that no other file may use, for which a study is needed.
    """
    if not isinstance(use_, ast.Name):
        return None
    table = module.table
    statement = table.parents.get(origin)
    if not isinstance(statement, ast.Assign) or len(statement.targets) != 1:
        return None
    scope = table.scope_of(use_)
    owner = scope.lookup(use_.id)
    if owner is None or owner.function() is not scope.function() or owner.is_class:
        return None
    bindings = owner.bindings[use_.id]
    if len(bindings) != 1 or bindings[0].node is not statement:
        return None
    if owner.is_function:
        return statement if table.reads(use_.id, owner) == [use_] else None
    if study is None or module.source.excerpt is not None:  # a cell stays as it was divided
        return None
    uses = name_uses.uses_of(use_.id, owner, module, study.project)
    own = {use_, statement.targets[0]}
    return statement if uses is not None and {use for use, _ in uses} == own else None


def is_named_for_list(element: ast.expr, part: tuple[Policy, ...]) -> bool:
    """Whether a joined policy has a name in the list's function that nothing else reads, and is no
    more than a name: ``blocks = partial(lambda_auto_wrap_policy, lambda_fn=is_block)``."""
    if len(part) != 1 or sole_assignment(element, part[0].node, part[0].module) is None:
        return False
    named = part[0].argument
    classes = getattr(named, "elts", [named])
    return {
        Kind.PREDICATE: named is not None and access_path(named) is not None,
        Kind.CLASSES: all(each is not None and access_path(each) is not None for each in classes),
    }.get(part[0].kind, False)


def convert_origin(
    policy: Policy, new: Code | None, message: str, plan: ShardPlan, study: Study
) -> None:
    if not study.convert(policy.node, new, message, plan.constructor):
        raise Unreadable("another constructor uses the same policy differently")
