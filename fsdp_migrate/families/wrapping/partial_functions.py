"""``wrap = functools.partial(FSDP, ...)`` that is called several times, or returned: it becomes a
function of the same name, which shards the model that it is given.

What a partial has is evaluated once, where it is made, and what a function reads each time that it
is called; so its values are constants, names that are bound once, and what is made of these.
"""

from __future__ import annotations

import ast
import re

from fsdp_migrate.analysis.module import Module
from fsdp_migrate.analysis.values import Unknown
from fsdp_migrate.families.wrapping.refused_modules import CONTAINERS
from fsdp_migrate.fsdp1 import api as fsdp1
from fsdp_migrate.planning.context import Study
from fsdp_migrate.planning.edits import Code, code
from fsdp_migrate.planning.model import Constructor, successor
from fsdp_migrate.planning.rendering import nested, statements
from fsdp_migrate.planning.shard_plan import ShardPlan
from fsdp_migrate.syntax.kinds import of_kind, present

# Calls that may run again: they make a value of what they are given, or say what does not change.
REPEATABLE = frozenset(
    {"functools.partial", "set", "tuple", "torch.cuda.current_device", "torch.device"}
)
EMPTY = ("init_empty_weights", "deferred_init")
META = re.compile(r"""["']meta["']""")
GIVEN = "the model that a partial is given"


def register(constructor: Constructor, study: Study) -> None:
    """Let a partial be written as a function, if it can be."""
    partial, module = constructor.call, constructor.module
    statement = module.table.parents[partial]
    match statement, partial.args:
        case ast.Assign(targets=[ast.Name(id=name)]), [_]:
            pass
        case _:
            return
    names = [successor(keyword) for keyword in partial.keywords]
    if not set(names) <= set(fsdp1.CONSTRUCTOR_ARGUMENTS[1:]) or study.cache(_may_be_on_meta):
        return
    values = [keyword.value for keyword in partial.keywords]
    if not all(_stays(value, partial, module, study) for value in values):
        return
    if not _is_called_with_a_model(name, partial, module, study):
        return
    given = ast.copy_location(ast.Name(GIVEN, ast.Load()), partial)
    table = module.table
    table.within[given], table.parents[given] = table.within[partial.args[0]], partial
    unknown = Unknown(given, module, why=GIVEN)
    study.tracer.stands_for[given] = lambda: [unknown]
    constructor.arguments = {"module": given, **constructor.arguments}
    constructor.problem, constructor.is_open, constructor.is_function = "", False, True


def _may_be_on_meta(study: Study) -> bool:
    """Whether some model may have no memory yet, which FSDP1 gave it."""
    return any(
        module.mentions(*EMPTY) or (module.mentions("meta") and META.search(module.source.text))
        for module in study.project.modules
    )


def _stays(value: ast.expr, partial: ast.Call, module: Module, study: Study) -> bool:
    """Whether an expression says the same whenever the function is called."""
    table = module.table
    for node in ast.walk(value):
        if isinstance(node, ast.Call):
            called = study.external(node.func, module) or {getattr(node.func, "id", "")}
            if not all(fsdp1.canonical(n) or n in REPEATABLE for n in called):
                return False
        elif isinstance(node, ast.Attribute):
            if not study.external(node, module):
                return False
        elif isinstance(node, ast.Name):
            scope = table.within[node].lookup(node.id)
            bound = scope.bindings[node.id] if scope is not None else []
            later = any(getattr(b.node, "lineno", 0) > partial.lineno for b in bound)
            if later or (len(bound) > 1 and scope is table.module):
                return False
        elif isinstance(node, (ast.Lambda, ast.NamedExpr, ast.Await, ast.Yield, ast.Subscript)):
            return False
    return True


def _is_called_with_a_model(name: str, partial: ast.Call, module: Module, study: Study) -> bool:
    """Whether all that is done with the partial is to call it with one argument, here or where it
    is returned to."""
    table = module.table
    scope = present(table.scope_of(partial).lookup(name))
    if not scope.is_function or len(scope.bindings[name]) != 1:
        return False
    is_returned = False
    for use in table.reads(name, scope):
        match table.parents[use]:
            case ast.Call(func=func, args=[given], keywords=[]) if func is use:
                made = {getattr(v, "made_by", "") for v in study.values(given, module)}
                if isinstance(given, ast.Starred) or made & CONTAINERS:
                    return False
            case ast.Return():
                is_returned = True
            case _:
                return False
    if not is_returned:
        return True
    maker = getattr(scope.node, "name", "")
    return bool(maker) and not any(
        partial in {value.node for value in study.values(call.func, where)}
        for where in study.project.modules_mentioning(maker)
        for call in where.table.calls
        if call.keywords or len(call.args) != 1 or isinstance(call.args[0], ast.Starred)
    )


def write(plan: ShardPlan) -> str:
    """Write the function in the place of the statement that makes the partial, or say why not.

    What does not speak of the model stands in front of it, so that it runs once.
    """
    constructor = plan.constructor
    lines, call, after = statements(plan)
    model = plan.model.preview()
    once = 0
    while once < len(lines) and not _speaks_of(model, lines[once]):
        once += 1
    body = lines[once:]
    if after or plan.is_bare:
        body += [*([] if plan.is_bare else [call]), *after, code("return {m}", m=plan.model)]
    else:
        body.append(code("return {c}", c=call))
    module = constructor.module
    changed = next((n for b in body for n in b.old_nodes() if _may_change(n, constructor)), None)
    if changed is not None:
        return f"{ast.unparse(changed)} may be another where the partial is called"
    target = of_kind(constructor.statement, ast.Assign).targets[0]
    function = code(
        "def {n}({m}):\n    {b}", n=of_kind(target, ast.Name).id, m=plan.model, b=nested(body)
    )
    if once:
        once -= 1
        function = code("{l}\n\n{f}", l=lines[once], f=function)
    plan.proposal.replace_statement(module, constructor.statement, *lines[:once], function)
    return ""


def _may_change(value: ast.expr, constructor: Constructor) -> bool:
    """Whether an expression in the function may say something else later on."""
    table = constructor.module.table
    stored = {attribute.attr for attribute in table.stored_attributes}
    for node in ast.walk(value):
        if isinstance(node, ast.Attribute) and node.attr in stored:
            return True
        if isinstance(node, ast.Name) and node in table.within:
            scope = table.within[node].lookup(node.id)
            bound = scope.bindings[node.id] if scope is not None else []
            if any(getattr(b.node, "lineno", 0) > constructor.call.lineno for b in bound):
                return True
    return False


def _speaks_of(model: str, line: Code) -> bool:
    return re.search(rf"\b{re.escape(model)}\b", line.preview()) is not None
