"""A function's parameter that takes a setting to constructors, and what its callers pass for it.

``def shard_model(model, sharding_strategy=ShardingStrategy.FULL_SHARD): return FSDP(model, ...)``:
where every call is in sight, the parameter can take to ``fully_shard`` what the setting means.
"""

from __future__ import annotations

import ast
from collections.abc import Sequence
from dataclasses import dataclass

from fsdp_migrate.analysis import name_uses
from fsdp_migrate.analysis.module import Module
from fsdp_migrate.analysis.tracing.call_graph import PARTIAL
from fsdp_migrate.analysis.tracing.functions import default_of, gives_unknown_arguments
from fsdp_migrate.families.wrapping import tables
from fsdp_migrate.planning.context import Study
from fsdp_migrate.planning.proposal import Proposal
from fsdp_migrate.syntax.kinds import present
from fsdp_migrate.syntax.scopes import Scope
from fsdp_migrate.syntax.trees import asks_for_main


@dataclass(frozen=True, eq=False)
class Parameter:
    """``given`` is all that it may be, each with its file: the default, and what calls pass."""

    arg: ast.arg
    module: Module
    given: tuple[tuple[ast.expr, Module], ...]
    calls: tuple[Binding, ...]

    def rename(self, name: str, proposal: Proposal) -> None:
        """Give it another name, in the calls too."""
        proposal.rename_parameter(self.module, self.arg, name)
        for each in self.calls:
            for keyword in each.call.keywords:
                if keyword.arg == self.arg.arg:
                    proposal.rename_keyword(each.module, each.call, keyword, name)


@dataclass(frozen=True, eq=False)
class Binding:
    """A call that binds arguments of a function: by running it, or by ``functools.partial``."""

    call: ast.Call
    module: Module
    placed: Sequence[ast.expr]  # its positional arguments for the function
    before: int = 0  # how many others come first, which a partial has bound

    def passed(self, name: str, function: ast.FunctionDef) -> list[ast.expr]:
        """What it gives a parameter, if anything."""
        names = [arg.arg for arg in (*function.args.posonlyargs, *function.args.args)]
        index = names.index(name) - self.before if name in names else -1
        placed = [self.placed[index]] if 0 <= index < len(self.placed) else []
        return [*placed, *(k.value for k in self.call.keywords if k.arg == name)]


def read(
    node: ast.expr, argument: str, name: str, module: Module, study: Study
) -> Parameter | None:
    """The parameter that an argument of constructors is, if it is read for nothing else, if all
    that it may be is in sight, and if it may be called ``name``."""
    scope = module.table.within[node].lookup(node.id) if isinstance(node, ast.Name) else None
    if not isinstance(node, ast.Name) or scope is None:
        return None
    function = _plain_function(scope, module)
    match scope.bindings[node.id]:
        case [only] if isinstance(only.node, ast.arg) and function is not None:
            arg = only.node
        case _:
            return None
    table = module.table
    reads = [n for n in table.names_by_id.named(arg.arg) if table.within[n].lookup(n.id) is scope]
    asked = {leaf for leaf, _ in tables.asked_for(argument, study)}
    if not asked.issuperset(reads) or scope.lookup(name) is not None:
        return None
    calls = _calls(function, module, study)
    if calls is None or _may_be_passed_unseen(arg.arg, calls, study):
        return None
    default = default_of(arg, function)
    given = [(default, module)] if default is not None else []
    given += [(v, each.module) for each in calls for v in each.passed(arg.arg, function)]
    return Parameter(arg, module, tuple(given), tuple(calls))


def may_be_called_elsewhere(function: ast.stmt, module: Module) -> bool:
    """Whether code outside the given paths may well call a function."""
    is_script = any(map(asks_for_main, module.source.tree.body))
    name = function.name if isinstance(function, ast.FunctionDef) else ""
    return not (is_script or name.startswith("_"))


def _plain_function(scope: Scope, module: Module) -> ast.FunctionDef | None:
    """The function of a scope, if it is one at the top of a file that is called as it stands."""
    function = scope.node
    top = module.table.module
    if not isinstance(function, ast.FunctionDef) or scope.parent is not top:
        return None
    is_plain = not function.decorator_list and function.args.kwarg is None
    return function if is_plain and len(top.bindings[function.name]) == 1 else None


def _calls(function: ast.FunctionDef, home: Module, study: Study) -> list[Binding] | None:
    """All that binds arguments of a function; None if something else is done with it."""
    scope = present(home.table.scopes[function].parent)
    uses = name_uses.uses_of(function.name, scope, home, study.project, handed_on=True)
    found: list[Binding] = []
    for use, module in uses or ():
        meant = study.values(use, module)
        if not study.unknown(meant) and all(value.node is not function for value in meant):
            continue  # something else of that name
        match module.table.parents[use]:
            case ast.Call(func=called) as call if called is use:
                found.append(Binding(call, module, call.args))
            case ast.Call(func=called, args=[first, *rest]) as call if (
                first is use and study.external(called, module) & PARTIAL
            ):
                found.append(Binding(call, module, rest))
            case _:
                return None
        if len(meant) != 1 or study.unknown(meant):
            return None
    for site in study.tracer.callers(function, home):
        if site.partial is not None:
            before = len(site.partial.placed)
            found.append(Binding(site.call, site.module, site.call.args, before))
    unread = uses is None or any(gives_unknown_arguments(each.call) for each in found)
    return None if unread else found


def _may_be_passed_unseen(name: str, calls: Sequence[Binding], study: Study) -> bool:
    """Whether a call of what nobody knows may be one of the function: it passes the parameter."""
    known = {each.call for each in calls}
    return any(
        keyword.arg == name and call not in known and study.unknown(study.values(call.func, module))
        for module in study.project.read
        if module.mentions(name)
        for call in module.table.calls
        for keyword in call.keywords
    )
