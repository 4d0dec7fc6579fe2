"""Arguments in a dictionary that a function makes: ``FSDP(model, **build_kwargs(config))``.

They are read where the function writes them, if all of its calls are for constructors, and written
there. What needs more than an entry goes to the call: what it reads is written as the call knows
it, else it stays in the dictionary and is taken out of it (``at_call``).
"""

from __future__ import annotations

import ast
from collections import defaultdict
from collections.abc import Mapping

from fsdp_migrate.analysis import name_uses
from fsdp_migrate.analysis.flow import access_path
from fsdp_migrate.analysis.module import Module
from fsdp_migrate.analysis.tracing.functions import (
    argument_of,
    class_of_method,
    default_of,
    exits,
    gives_unknown_arguments,
    is_static,
)
from fsdp_migrate.analysis.values import Function
from fsdp_migrate.families.wrapping import (
    keyword_dictionaries,
    strategies,
    written_dictionaries,
)
from fsdp_migrate.families.wrapping.written_dictionaries import Unreadable
from fsdp_migrate.fsdp1 import api as fsdp1
from fsdp_migrate.planning.context import Study
from fsdp_migrate.planning.model import Constructor, KeywordDictionary
from fsdp_migrate.planning.shard_plan import ShardPlan
from fsdp_migrate.syntax.kinds import present
from fsdp_migrate.syntax.scopes import Kind


def register(study: Study) -> None:
    """Give constructors the arguments that functions put together."""
    given: dict[ast.FunctionDef, list[Constructor]] = defaultdict(list)
    for constructor in study.constructors.values():
        if constructor.call in study.kept_dictionaries:
            continue
        spread = keyword_dictionaries.spread_of(constructor, study)
        call = _maker(spread, constructor) if spread is not None else None
        function = _function_of(call, constructor.module, study) if call is not None else None
        if function is not None:
            constructor.spread, constructor.maker = spread, call
            given[function].append(constructor)
    for function, constructors in given.items():
        try:
            dictionary = _read(function, constructors, study)
        except Unreadable:
            continue
        keyword_dictionaries.give(dictionary, constructors, study)


def _maker(spread: ast.expr, constructor: Constructor) -> ast.Call | None:
    """The call that gives a constructor its dictionary: at the constructor, or under a name that
    only it reads."""
    if isinstance(spread, ast.Call):
        return spread
    if not isinstance(spread, ast.Name):
        return None
    table = constructor.module.table
    scope = table.within[spread].lookup(spread.id)
    if scope is None or not scope.is_function or scope is not table.scope_of(spread).home():
        return None
    match scope.bindings[spread.id]:
        case [binding] if binding.kind is Kind.ASSIGN and not binding.unpack:
            statement = binding.node
        case _:
            return None
    uses = [n for n in table.names_by_id.named(spread.id) if table.within[n].lookup(n.id) is scope]
    match statement, binding.value:
        case ((ast.Assign(targets=[_]) | ast.AnnAssign()), ast.Call() as call) if len(uses) == 2:
            return call if statement.lineno < constructor.call.lineno else None
    return None


def _function_of(call: ast.Call, module: Module, study: Study) -> ast.FunctionDef | None:
    """The function of the same file that a call runs, whichever object it is asked of."""
    match list(study.values(call.func, module)):
        case [Function(node=ast.FunctionDef() as function, module=home)] if home is module:
            pass
        case _:
            return None
    returns, yields = exits(function, module)
    plain = not function.decorator_list or (
        is_static(function) and len(function.decorator_list) == 1
    )
    is_last = function.body[-1] in returns
    return function if plain and is_last and not yields else None


def _read(
    function: ast.FunctionDef, constructors: list[Constructor], study: Study
) -> KeywordDictionary:
    """The dictionary that a function makes, returns, and has no other use for.

    Raises:
        Unreadable: it is made, changed or read in another way, or somebody else calls the function.
    """
    module = constructors[0].module
    if any(constructor.module is not module for constructor in constructors):
        raise Unreadable("it is made in another file")
    calls = {present(constructor.maker).func for constructor in constructors}
    _check_callers(function, calls, module, study)
    returns, _ = exits(function, module)
    scope = module.table.scopes[function]
    match returns:
        case [ast.Return(value=ast.Name(id=name))] if name in scope.bindings:
            made = written_dictionaries.made_by(name, scope)
            entries = tuple(written_dictionaries.entries_of(name, scope, {*returns}, module))
        case _:
            name = ""
            made = [(each, written_dictionaries.display(each.value, scope)) for each in returns]
            given = [[*written_dictionaries.items_of(written, each)] for each, written in made]
            entries = tuple(written_dictionaries.either(given))
    keyword_dictionaries.check(entries, constructors)
    shared = frozenset(constructors)
    statements = tuple(statement for statement, _ in made)
    return KeywordDictionary(name, statements, made[0][1], entries, shared, function=function)


def _check_callers(
    function: ast.FunctionDef, calls: set[ast.expr], module: Module, study: Study
) -> None:
    """Refuse a function that is called, or handed on, for something else.

    Raises:
        Unreadable: it is.
    """
    cls = class_of_method(function, module)
    home = module.table.scopes[cls] if cls else present(module.table.scopes[function].parent)
    same = [n for m in study.project.read for n in m.table.scopes if _name(n) == function.name]
    if len(same) > 1 and cls is not None:
        raise Unreadable("another class may have another such method")
    if len(home.bindings.get(function.name, ())) != 1:
        raise Unreadable("its name has several values")
    uses = name_uses.uses_of(function.name, home, module, study.project)
    if uses is None or any(use not in calls for use, _ in uses):
        raise Unreadable("something else may call the function")


def _name(node: ast.AST) -> str:
    return node.name if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)) else ""


def is_only_for(dictionary: KeywordDictionary) -> bool:
    """Whether a function, and its calls, do nothing but to make the dictionary."""
    function = present(dictionary.function)
    own = {*dictionary.statements, function.body[-1], *(e.statement for e in dictionary.entries)}
    rest = [s for s in function.body if s not in own]
    is_said = all(isinstance(s, ast.Expr) and isinstance(s.value, ast.Constant) for s in rest)
    calls = (present(constructor.maker) for constructor in dictionary.constructors)
    given = [a for call in calls for a in (*call.args, *(k.value for k in call.keywords))]
    plain = all(isinstance(a, ast.Constant) or access_path(a) is not None for a in given)
    return is_said and plain


def remove(plan: ShardPlan, *, first: bool) -> None:
    """Remove the call of a function whose dictionary would be empty, and the function with it.

    Args:
        first: whether it still stands, for no other constructor had it.
    """
    constructor, module = plan.constructor, plan.constructor.module
    if constructor.spread is not constructor.maker:
        plan.proposal.delete(module, module.table.statement(present(constructor.maker)))
    if first:
        function = present(present(constructor.dictionary).function)
        plan.proposal.delete(module, function)
        plan.proposal.claims.gone.add(function)


# -- what the call knows ----------------------------------------------------------------------


def at_call(node: ast.expr, constructor: Constructor, study: Study) -> ast.expr | str | None:
    """An expression of the function as it is written at the constructor; None if that has not what
    it reads.

    It is the expression itself where it reads nothing of the function's own. Parameters are
    replaced by what the call gives for them, if that is a path or a constant.
    """
    dictionary, table = present(constructor.dictionary), constructor.module.table
    function = present(dictionary.function)
    scope, place = table.scopes[function], table.scope_of(constructor.call)
    known: dict[str, ast.expr] = {}
    for name in (n for n in ast.walk(node) if isinstance(n, ast.Name)):
        owner = table.within[name].lookup(name.id)
        if owner is scope:
            known[name.id] = _given(name.id, constructor, study) or name
            if known[name.id] is name:
                return None
        elif owner is None or not owner.is_function:
            if owner is not table.within[name] and place.lookup(name.id) is not owner:
                return None
        elif owner is not table.within[name]:
            return None  # of a function around it
    if not known:
        return node
    asked = {n.attr for n in ast.walk(node) if isinstance(n, ast.Attribute)}
    stored = (a for a in ast.walk(function) if isinstance(a, ast.Attribute))
    is_set = any(isinstance(a.ctx, ast.Store) and a.attr in asked for a in stored)
    if is_set or _calls(node) or speaks_of_fsdp1(node, constructor, study):
        return None
    converted = any(n in study.conversions for n in ast.walk(node))
    return None if converted else _replaced(node, known)


def speaks_of_fsdp1(node: ast.expr, constructor: Constructor, study: Study) -> bool:
    """Whether something of FSDP1 is written in an expression."""
    module = constructor.module
    named = (n for n in ast.walk(node) if isinstance(n, (ast.Name, ast.Attribute)))
    return any(fsdp1.canonical(name) for n in named for name in study.external(n, module))


def _calls(node: ast.expr) -> bool:
    return any(isinstance(n, (ast.Call, ast.NamedExpr, ast.Lambda)) for n in ast.walk(node))


def _given(name: str, constructor: Constructor, study: Study) -> ast.expr | None:
    """What the call gives for a parameter that the function leaves as it is."""
    module, function = constructor.module, present(present(constructor.dictionary).function)
    call = present(constructor.maker)
    match module.table.scopes[function].bindings[name]:
        case [binding] if binding.kind is Kind.PARAMETER and isinstance(binding.node, ast.arg):
            parameter = binding.node
        case _:
            return None
    if gives_unknown_arguments(call) or parameter in (function.args.vararg, function.args.kwarg):
        return None
    is_method = class_of_method(function, module) is not None and not is_static(function)
    if is_method and parameter is [*function.args.posonlyargs, *function.args.args][0]:
        given = call.func.value if isinstance(call.func, ast.Attribute) else None
    else:
        given = argument_of(call, function, name, bound=is_method) or default_of(
            parameter, function
        )
    if isinstance(given, ast.Constant):
        return given
    if given is None or access_path(given) is None or study.external(given, module):
        return None
    is_same = constructor.spread is call or strategies.says_the_same(given, constructor)
    return given if is_same else None


def _replaced(node: ast.expr, known: Mapping[str, ast.expr]) -> str:
    class Replace(ast.NodeTransformer):
        def visit_Name(self, name: ast.Name) -> ast.expr:
            return known.get(name.id, name)

    copied = ast.parse(ast.unparse(node), mode="eval").body
    return ast.unparse(Replace().visit(copied))
