"""Constructors whose class is chosen before it is called: ``(FSDP if flag else DDP)(model)``.

The condition then decides which of two statements runs: ``fully_shard`` for one class, the call of
the other one with what is its own. Arguments that the same condition chooses, ``device_id=x if flag
else None`` or ``**({...} if flag else {...})``, are each class's own. Where that cannot be written,
``shard`` of the support module takes the place of FSDP1's class among the others, and the same
arguments.
"""

from __future__ import annotations

import ast

from fsdp_migrate.analysis.module import Module
from fsdp_migrate.analysis.values import Class, External, Function, FunctionNode, Value
from fsdp_migrate.families.wrapping.run_time import CONVERTED
from fsdp_migrate.fsdp1 import api as fsdp1
from fsdp_migrate.fsdp1.construct import Construct, ConstructKind
from fsdp_migrate.fsdp1.site import Site
from fsdp_migrate.planning.context import Study
from fsdp_migrate.planning.edits import Code, code, join
from fsdp_migrate.planning.model import Constructor
from fsdp_migrate.planning.rendering import nested, statements
from fsdp_migrate.planning.shard_plan import ShardPlan, single_target
from fsdp_migrate.syntax.expressions import names_in
from fsdp_migrate.syntax.kinds import present
from fsdp_migrate.syntax.scopes import Scope
from fsdp_migrate.syntax.trees import block_of

VALUE = Construct(ConstructKind.VALUE, fsdp1.FSDP)
MAKES = Construct(ConstructKind.CONSTRUCTOR, fsdp1.FSDP)
PROBLEM = "which class is called is only known at run time"
EITHER = "FSDP1's class is chosen either way"


def as_constructors(found: list[Site]) -> list[Site]:
    """``found``, with sites of the class as a value turned into sites of the call it is for."""
    taken = {site.node for site in found}
    result = []
    for site in found:
        call = call_of(site) if site.construct == VALUE else None
        if call is None or call in taken:
            result.append(site)
            continue
        taken.add(call)
        result.append(Site(MAKES, site.module, call, site.reference))
    return result


def mark_as_chosen(constructor: Constructor) -> None:
    """Note that a constructor cannot be written out, because its class is chosen first."""
    call, reference = constructor.call, constructor.reference
    if reference is call.func or reference in call.args:
        return
    parent = constructor.module.table.parents[reference]
    if isinstance(parent, ast.IfExp) and ast.dump(parent.body) == ast.dump(parent.orelse):
        constructor.problem, constructor.is_wrong = EITHER, True
    elif isinstance(parent, ast.IfExp) and (
        parent is call.func or _says_the_same(parent, constructor)
    ):
        constructor.choice = parent
        is_first = reference is parent.body
        _take_spread(constructor, parent.test, is_first=is_first)
        for name, value in constructor.arguments.items():
            if name != "module":
                constructor.arguments[name] = _in_arm(value, parent.test, is_first=is_first)
    else:
        constructor.problem = constructor.problem or PROBLEM


def _says_the_same(choice: ast.IfExp, constructor: Constructor) -> bool:
    """Whether a choice that has a name, ``cls = FSDP if flag else DDP``, may as well be made where
    that is called: a straight way leads there, and on it nothing of the condition changes."""
    table, call = constructor.module.table, constructor.call
    made, then = table.parents[choice], constructor.statement
    if not isinstance(call.func, ast.Name) or not isinstance(made, ast.Assign):
        return False  # one of several choices
    block = block_of(table.parents[then], then)
    if made not in block or len(table.within[call.func].bindings.get(call.func.id, ())) != 1:
        return False
    between = block[block.index(made) + 1 : block.index(then)]
    names, parts = names_in(choice.test), {getattr(n, "attr", "") for n in ast.walk(choice.test)}
    may_be_set = bool(parts & {attribute.attr for attribute in table.stored_attributes})
    for each in (node for statement in between for node in ast.walk(statement)):
        if isinstance(each, ast.Call) and (may_be_set or _has_call(choice.test)):
            return False
        if isinstance(getattr(each, "ctx", None), (ast.Store, ast.Del)) and names & names_in(each):
            return False
    return True


def _take_spread(constructor: Constructor, test: ast.expr, *, is_first: bool) -> None:
    """Give a constructor what it has of ``**({...} if test else {...})``."""
    opened = [keyword for keyword in constructor.call.keywords if keyword.arg is None]
    if len(opened) != 1 or not constructor.problem.startswith("its keyword arguments come from"):
        return
    value = _in_arm(opened[0].value, test, is_first=is_first)
    entries = _entries(value, constructor.module.table.scope_of(constructor.call))
    given = dict(entries or ())
    if (
        entries is not None
        and len(given) == len(entries)
        and given.keys() <= set(fsdp1.CONSTRUCTOR_ARGUMENTS[1:]) - constructor.arguments.keys()
    ):
        constructor.arguments |= given
        constructor.problem, constructor.is_open = "", False


def _entries(made: ast.expr, scope: Scope) -> list[tuple[str, ast.expr]] | None:
    """What stands in ``{"name": value}`` or ``dict(name=value)``; None where not all are names."""
    match made:
        case ast.Dict(keys=keys, values=values):
            names = [k.value if isinstance(k, ast.Constant) else None for k in keys]
            found: list[tuple[object, ast.expr]] = list(zip(names, values, strict=True))
        case ast.Call(func=ast.Name(id="dict"), args=[], keywords=keywords) if (
            scope.lookup("dict") is None
        ):
            found = [(k.arg, k.value) for k in keywords]
        case _:
            return None
    named = [(name, value) for name, value in found if isinstance(name, str)]
    return named if len(named) == len(found) else None


def _in_arm(value: ast.expr, test: ast.expr, *, is_first: bool) -> ast.expr:
    """What ``value`` is where ``test`` holds, or where it does not: ``x`` of ``x if test else y``.

    A test with a call in it may answer otherwise when it is asked again.
    """
    while isinstance(value, ast.IfExp) and not _has_call(test):
        asked, turned = _without_not(value.test)
        meant, also_turned = _without_not(test)
        if ast.dump(asked) != ast.dump(meant):
            break
        value = value.body if is_first == (turned == also_turned) else value.orelse
    return value


def _without_not(test: ast.expr) -> tuple[ast.expr, bool]:
    """A condition without the ``not`` in front of it, and whether there was one."""
    if isinstance(test, ast.UnaryOp) and isinstance(test.op, ast.Not):
        return test.operand, True
    return test, False


def call_of(site: Site) -> ast.Call | None:
    """The one call that a reference to the class leads to, through a choice or a name."""
    table = site.module.table
    child: ast.AST = site.node
    for parent in table.ancestors(site.node):
        match parent:
            case ast.IfExp() if child is not parent.test:
                child = parent
            case ast.Call():
                return parent if parent.func is child and child is not site.node else None
            case ast.Assign(targets=[ast.Name() as name]):
                return _only_call(name, site)
            case _:
                return None
    return None


def _only_call(target: ast.Name, site: Site) -> ast.Call | None:
    table = site.module.table
    scope = table.within[target]
    if not isinstance(scope.node, (ast.FunctionDef, ast.AsyncFunctionDef)):
        return None  # other modules may have it too
    uses = table.reads(target.id, scope)
    call = table.parents[uses[0]] if len(uses) == 1 else None
    return call if isinstance(call, ast.Call) and call.func is uses[0] else None


def write(plan: ShardPlan, study: Study) -> str:
    """Write both ways of a choice; the problem, if there is one."""
    constructor = plan.constructor
    choice, module = present(constructor.choice), constructor.module
    is_first = constructor.reference is choice.body
    given = _given_to_other(choice.orelse if is_first else choice.body, plan, study)
    if given is None or plan.is_bare or plan.behind is not None:
        return PROBLEM
    statement, call = constructor.statement, constructor.call
    compact = plan.is_compact and not plan.hoisted
    lines, sharded, after = statements(plan)
    first = 1 if plan.hoisted else 0  # the model is made before it is asked which way it goes
    if first and _has_call(choice.test):
        return PROBLEM
    ways: tuple[list[Code], list[Code]]
    if call.func is not choice:
        plan.proposal.delete(module, module.table.statement(choice))
    match statement:
        case ast.Return(value=value) if value is call:
            made = [sharded, *after, code("return {m}", m=plan.model)]
            ways = made if after else [code("return {s}", s=sharded)], [code("return {o}", o=given)]
        case ast.Assign() | ast.AnnAssign() if target := single_target(statement, call):
            ways = _assigned(statement, target, plan, sharded, given)
            ways[0].extend(after)
        case _ if compact:
            both = (sharded, given) if is_first else (given, sharded)
            new = code("{a} if {t} else {b}", a=both[0], t=choice.test, b=both[1])
            plan.proposal.replace(module, call, new)
            return ""
        case _:
            return PROBLEM
    ways[0][:0] = lines[first:]
    then, other = ways if is_first else ways[::-1]
    branch = code("if {t}:\n    {b}", t=choice.test, b=nested(then))
    if isinstance(statement, ast.Return):
        new_statements = [branch, *other]
    else:
        both_ways = code("{i}\nelse:\n    {b}", i=branch, b=nested(other))
        new_statements = [both_ways]
    plan.proposal.replace_statement(module, statement, *lines[:first], *new_statements)
    return ""


def _assigned(
    statement: ast.stmt, target: ast.expr, plan: ShardPlan, sharded: Code, given: Code
) -> tuple[list[Code], list[Code]]:
    """The statements that give both results the name that the one had."""
    name = ast.unparse(target)
    own = code("{n} = {s}", n=name, s=sharded)
    if isinstance(statement, ast.AnnAssign):
        own = code("{n}: {a} = {s}", n=name, a=statement.annotation, s=sharded)
    elif plan.is_in_place:
        own = sharded
    return [own], [code("{n} = {o}", n=name, o=given)]


def _given_to_other(other: ast.expr, plan: ShardPlan, study: Study) -> Code | None:
    """The call of the other class, with the arguments that may mean something to it.

    It was called with FSDP1's, some of which the same condition may choose. None where one of them
    becomes something else, or is no expression that may be written twice.
    """
    constructor = plan.constructor
    call, module, choice = constructor.call, constructor.module, present(constructor.choice)
    is_first = constructor.reference is choice.body
    if len(call.args) > 1 or any(isinstance(arg, ast.Starred) for arg in call.args):
        return None
    arguments = [code("{m}", m=plan.model)] if call.args else []
    for keyword in call.keywords:
        if keyword.arg is None:
            value = _in_arm(keyword.value, choice.test, is_first=not is_first)
            entries = _entries(value, module.table.scope_of(call))
            if entries is None or any(
                not k.isidentifier() or _is_changed(k, v) for k, v in entries
            ):
                return None
            arguments += [code("{k}={v}", k=k, v=ast.unparse(v)) for k, v in entries]
            continue
        value = _in_arm(keyword.value, choice.test, is_first=not is_first)
        if keyword.value is constructor.wrapped:
            arguments.append(code("{k}={m}", k=keyword.arg, m=plan.model))
        elif not _is_ignored_by(other, keyword.arg, module, study):
            if _is_changed(keyword.arg, value) or not _may_stand_twice(value, module, study):
                return None
            arguments.append(code("{k}={v}", k=keyword.arg, v=ast.unparse(value)))
    return code("{o}({a})", o=other, a=join(", ", arguments))


def _is_changed(argument: str, value: ast.expr) -> bool:
    """Whether what an argument is given becomes something else where it is made."""
    return argument in CONVERTED and not isinstance(value, ast.Constant)


def _is_ignored_by(other: ast.expr, argument: str, module: Module, study: Study) -> bool:
    """Whether all that a name may call takes an argument by ``**kwargs``, and never reads these."""
    called = study.tracer.evaluate(other, module)
    return bool(called) and all(
        (function := _called(value)) is not None
        and function.args.kwarg is not None
        and argument not in {arg.arg for arg in (*function.args.args, *function.args.kwonlyargs)}
        and not any(
            isinstance(node, ast.Name) and node.id in {function.args.kwarg.arg, "locals"}
            for node in ast.walk(function)
        )
        for value in called
    )


def _called(value: Value) -> FunctionNode | None:
    """The function that runs first when a value is called."""
    match value:
        case Class(node=node):
            named = (each for each in node.body if isinstance(each, ast.FunctionDef))
            return next((each for each in named if each.name == "__init__"), None)
        case Function(node=node):
            return node
    return None


def _has_call(node: ast.expr) -> bool:
    return any(isinstance(each, ast.Call) for each in ast.walk(node))


def _may_stand_twice(value: ast.expr, module: Module, study: Study) -> bool:
    """Whether an expression can be asked on each of two ways: a path, a constant, or a call of
    these, without a name of FSDP1's, which has one place to be answered for."""
    kinds = (ast.Name, ast.Attribute, ast.Constant, ast.Call, ast.keyword, ast.expr_context)
    nodes = [*ast.walk(value)]
    return all(isinstance(node, kinds) for node in nodes) and not any(
        fsdp1.canonical(name)
        for node in nodes
        if isinstance(node, ast.Name | ast.Attribute)
        for name in study.external(node, module)
    )


def is_called(site: Site, study: Study) -> bool:
    """Whether the class as a value is seen to be called in the same file."""
    for call in site.module.table.calls:
        if call in study.constructors:
            continue
        for value in study.values(call.func, site.module):
            if isinstance(value, External) and fsdp1.canonical(value.name) == fsdp1.FSDP:
                return True
    return False


def is_asked_for_statics(study: Study) -> bool:
    """Whether the class is asked for its statics by a name of its own: ``self.api.state_dict_type``
    of ``self.api = FSDP``. They pass over an FSDP2 model without an error."""
    return study.cache(_asked_for_statics)


def _asked_for_statics(study: Study) -> bool:
    for module in study.project.modules:
        for node in module.table.attributes_by_name.of(fsdp1.STATICS):
            if study.external(node.value, module):
                continue  # as it is: a reference of its own
            for value in study.values(node.value, module):
                if isinstance(value, External) and fsdp1.canonical(value.name) == fsdp1.FSDP:
                    return True
    return False
