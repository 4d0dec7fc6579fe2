"""Free gathered parameters with `reshard()`."""

import ast
from typing import NamedTuple

from fsdp_migrate.analysis.flow import access_path
from fsdp_migrate.analysis.module import Module
from fsdp_migrate.analysis.values import Function
from fsdp_migrate.fsdp1.site import Site
from fsdp_migrate.planning.context import Study
from fsdp_migrate.planning.edits import code
from fsdp_migrate.planning.model import Decision
from fsdp_migrate.planning.prose import sentences
from fsdp_migrate.planning.rule import Rule
from fsdp_migrate.syntax.expressions import names_in
from fsdp_migrate.syntax.kinds import of_kind
from fsdp_migrate.syntax.trees import block_of

RULE = Rule(code="FSDP407", name="reshard", handles=("private:_runtime_utils._reshard",))


STATE = frozenset({"_has_params", "sharding_strategy", "_handle", "_handles", "_is_root"})


def decide(site: Site, study: Study) -> Decision:
    call = site.node
    models = study.every_constructor
    module = call.args[0] if isinstance(call, ast.Call) and call.args else None
    path = access_path(module) if module is not None else None
    alone = isinstance(site.statement, ast.Expr) and site.statement.value is call
    if path is None or not alone or not models:
        return study.left(
            site,
            RULE.code,
            study.no_models or "_reshard is private to FSDP1",
            "call reshard() on the module",
            models=models,
        )
    call = site.call
    proposal = study.proposal()
    handed = _handed(call, site, path)
    for statement in handed:
        proposal.claims.gone.add(statement)
        proposal.delete(site.module, statement)
    around = _condition(site, path)
    proposal.claims.gone.add(around.test if around is not None else call)
    proposal.claims.gone.add(call)
    asked = _asked(site, path, handed, study)
    if around is not None:
        proposal.replace_statement(site.module, around, code("{m}.reshard()", m=path))
    else:
        proposal.replace(site.module, call, code("{m}.reshard()", m=path))
    if asked is None:
        return study.rewritten(site, RULE.code, "reshard()", proposal, models=models)
    function, kept, strategy = asked
    proposal.claims.gone.add(strategy)
    proposal.replace(function.module, function.node, code("{k}", k=kept))
    proposal.mark(function.module, function.node, RULE.code, sentences(REPLICATED))
    return study.rewritten(
        site, RULE.code, "reshard()", proposal, models=models, review=REPLICATED, marked=True
    )


def _handed(call: ast.Call, site: Site, path: str) -> list[ast.stmt]:
    """The statements before the call that only make its other arguments."""
    table = site.module.table
    block = block_of(table.parents[site.statement], site.statement)
    given = {n.id for a in call.args[1:] for n in ast.walk(a) if isinstance(n, ast.Name)}
    scope = table.scope_of(call).function()
    found: list[ast.stmt] = []
    inside: set[ast.AST] = set(ast.walk(call))
    for statement in reversed(block[: block.index(site.statement)]):
        match statement:
            case ast.Assign(targets=[ast.Name(id=name)], value=value) if name in given:
                pass
            case _:
                break
        uses = [n for n in table.names if n.id == name and table.scope_of(n).function() is scope]
        inside |= set(ast.walk(statement))
        if not all(use in inside for use in uses) or not _is_private(value, path):
            break
        found.append(statement)
        given |= names_in(value)
    return found


def _is_private(value: ast.expr, path: str) -> bool:
    """A module's handles, or a list of flags as long as a list of them."""
    match value:
        case ast.Attribute(attr="_handle" | "_handles"):
            return access_path(value.value) == path
        case ast.ListComp(elt=ast.Constant()) | ast.List(elts=[ast.Constant(), *_]):
            return not any(isinstance(n, ast.Call) for n in ast.walk(value))
    return False


class Answer(NamedTuple):
    """The answer of a function of the project that asks whether a model is sharded."""

    module: Module
    node: ast.expr


def _asked(
    site: Site, path: str, handed: list[ast.stmt], study: Study
) -> tuple[Answer, ast.expr, ast.Compare] | None:
    """The function of the project that says whether a model is sharded, for this call alone.

    Its answer, what of it is left without FSDP1's strategy, and the comparison that goes.
    """
    around = site.module.table.parents[site.statement]
    if not isinstance(around, ast.If) or around.orelse:
        return None
    if [s for s in around.body if s not in handed] != [site.statement]:
        return None
    match around.test:
        case ast.Call(args=[argument], keywords=[]) if access_path(argument) == path:
            callees = study.values(around.test.func, site.module)
        case _:
            return None
    callee = next(iter(callees), None)
    if len(callees) != 1 or not isinstance(callee, Function):
        return None
    match callee.node:
        case ast.FunctionDef(
            name=name,
            args=ast.arguments(args=[ast.arg(arg=given)]),
            body=[ast.Return(value=ast.BoolOp(op=ast.And(), values=[kept, compared]) as answer)],
        ) if _is_strategy(compared, given):
            compared = of_kind(compared, ast.Compare)
        case _:
            return None
    for module in study.project.modules:
        table = module.table
        called = [n for n in table.names if n.id == name and n is not around.test.func]
        taken = [n for n in table.attributes if n.attr == name]
        if called or taken or any(b.qualified.endswith(f".{name}") for b in table.imports):
            return None
    return Answer(callee.module, answer), kept, compared


def _is_strategy(compared: ast.expr, given: str) -> bool:
    match compared:
        case ast.Compare(
            left=ast.Attribute(value=ast.Name(id=name), attr="sharding_strategy"),
            ops=[ast.IsNot() | ast.NotEq()],
            comparators=[ast.Attribute(attr="NO_SHARD")],
        ):
            return name == given
    return False


REPLICATED = (
    "this is true of a model that is only replicated as well, which freeing its parameters does "
    "no harm"
)


def _condition(site: Site, path: str) -> ast.If | None:
    """The ``if`` around the call that only asks for FSDP1's state of the same module."""
    around = site.module.table.parents[site.statement]
    if not isinstance(around, ast.If) or around.orelse or around.body != [site.statement]:
        return None
    asked = [
        node
        for node in ast.walk(around.test)
        if isinstance(node, ast.Attribute) and access_path(node.value) == path
    ]
    names = names_in(around.test)
    private = bool(asked) and all(node.attr in STATE for node in asked)
    return around if private and names <= {path, "ShardingStrategy", "torch"} else None
