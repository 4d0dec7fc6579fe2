"""What a guard asks first, so that it raises for FSDP's models and for no others.

A program that shards under a flag runs the same lines for DDP's model, or for a plain one. Behind
the sharding the model itself tells; in front of it the flag does.
"""

from __future__ import annotations

import ast
from collections.abc import Collection, Iterator, Sequence

from fsdp_migrate.analysis.module import Module
from fsdp_migrate.analysis.tracing.functions import class_of_method, is_static
from fsdp_migrate.families.checkpoints import compiled_models, own_states
from fsdp_migrate.fsdp1.api import FLAT_FIELDS, PACKAGE
from fsdp_migrate.fsdp1.site import Site
from fsdp_migrate.migration import guard_place
from fsdp_migrate.planning.context import Study
from fsdp_migrate.planning.edits import Code, code
from fsdp_migrate.planning.model import Constructor, Decision
from fsdp_migrate.planning.proposal import Proposal
from fsdp_migrate.syntax.expressions import bind_arguments
from fsdp_migrate.syntax.kinds import of_kind
from fsdp_migrate.syntax.scopes import Kind, Scope
from fsdp_migrate.syntax.trees import block_of

TENSOR = "torch.distributed.tensor"
# What modules have, and neither tensors nor optimizers.
OF_MODULES = frozenset(
    {
        "children",
        "clip_grad_norm_",
        "generate",
        "modules",
        "named_children",
        "named_modules",
        "named_parameters",
        "no_sync",
        "parameters",
        "save_pretrained",
    }
)
OF_OPTIMIZERS = frozenset({own_states.SAVE, own_states.LOAD})
OPPOSITES: dict[type[ast.cmpop], type[ast.cmpop]] = {
    ast.Eq: ast.NotEq,
    ast.NotEq: ast.Eq,
    ast.Is: ast.IsNot,
    ast.IsNot: ast.Is,
    ast.In: ast.NotIn,
    ast.NotIn: ast.In,
}
Test = tuple[ast.expr, bool]  # and whether it holds


def test_of(
    decision: Decision, statement: ast.stmt, study: Study, proposal: Proposal
) -> Code | None:
    """What tells, in front of ``statement``, that a site is of a sharded model."""
    site = decision.site
    told = _told_by(site, study)
    if told is not None and _is_there(told[0], statement, site.module):
        subject, source, name = told
        sharded = proposal.name(site.module, source, name, statement)
        return code(f"isinstance({{m}}, {sharded})", m=subject)
    model = _asked_of_modules(site, study)
    if model is not None and _is_there(model, statement, site.module):
        sharded = proposal.name(site.module, PACKAGE, "FSDPModule", statement)
        inside = 'getattr({m}, "modules", list)()'
        return code(f"any(isinstance(m, {sharded}) for m in {inside})", m=model)
    return _flag(decision, statement, study)


def _told_by(site: Site, study: Study) -> tuple[ast.expr, str, str] | None:
    """What ``isinstance`` tells apart what a site is of from other objects by, where it may be of
    those: parameters are tensors, a compiled model hides the sharded one, and what is sharded
    later, or holds a model's parameters, is none itself."""
    subject = site.receiver
    if site.construct in OF_OPTIMIZERS:
        subject = own_states.read(site, study).model
    if subject is None or not guard_place.is_plain(subject):
        return None
    if site.construct.last in FLAT_FIELDS:
        return (subject, TENSOR, "DTensor") if isinstance(subject, ast.Name) else None
    found = study.models(subject, site.module)
    if not found.constructors or not found.others or study.unknown(found.others):
        return None
    if compiled_models.may_be_compiled(found.constructors, study):
        return None
    return subject, PACKAGE, "FSDPModule"


def _is_there(subject: ast.expr, statement: ast.stmt, module: Module) -> bool:
    """Whether what a site is of is called so in front of a statement already: not in another
    function, and not where the statement itself binds it on the way."""
    table = module.table
    is_within = statement in table.ancestors(subject)
    bound = {name for node in ast.walk(statement) for name in _bound_on_the_way(node)}
    for name in (n for n in ast.walk(subject) if isinstance(n, ast.Name)):
        own = table.scope_of(statement).home()
        if table.within[name].lookup(name.id) is not own.lookup(name.id) or name.id in bound:
            return False
        if not is_within and not _is_settled(name.id, own, statement):
            return False
    return True


def _bound_on_the_way(node: ast.AST) -> Iterator[str]:
    match node:
        case ast.NamedExpr(target=ast.Name(id=name)):
            yield name
        case ast.withitem(optional_vars=ast.expr() as bound):
            yield from _names(bound)


def _asked_of_modules(site: Site, study: Study) -> ast.expr | None:
    """What a site is of, where that is a module, or an object in its place that has the same
    method, and may be another one than the sharded models: what is inside of it tells, also where
    that is compiled, or sharded in parts alone."""
    subject, asked = site.receiver, site.construct.attribute
    if subject is None or asked not in OF_MODULES or not guard_place.is_plain(subject):
        return None
    found = study.models(subject, site.module)
    return subject if found.constructors and found.others else None


def _flag(decision: Decision, statement: ast.stmt, study: Study) -> Code | None:
    """Under which conditions the site's models are sharded further below, in the same function or
    in one that is called there. What cannot be asked here is left out."""
    module = decision.site.module
    spelled: dict[str, None] = {}
    for constructor in sorted(decision.models, key=lambda c: c.place):
        found = _tests(constructor, statement, module, study)
        tests = [each for each in found if _is_steady(each[0], statement, module)]
        if not tests:
            return None
        spelled[" and ".join(_spelled(test, wanted) for test, wanted in tests)] = None
    if not spelled:
        return None
    text = next(iter(spelled)) if len(spelled) == 1 else f"({' or '.join(spelled)})"
    return code(text.replace("{", "{{").replace("}", "}}"))


def _spelled(test: ast.expr, wanted: bool) -> str:
    match test:
        case ast.UnaryOp(op=ast.Not(), operand=inner):
            return _spelled(inner, not wanted)
        case ast.Compare(ops=[op]) if not wanted and type(op) in OPPOSITES:
            opposite = OPPOSITES[type(op)]()
            return ast.unparse(ast.Compare(test.left, [opposite], test.comparators))
        case ast.BoolOp() | ast.IfExp():
            text = f"({ast.unparse(test)})"
        case ast.Compare() if not wanted:
            text = f"({ast.unparse(test)})"
        case _:
            text = ast.unparse(test)
    return text if wanted else f"not {text}"


def _tests(
    constructor: Constructor, statement: ast.stmt, module: Module, study: Study
) -> list[Test]:
    """The conditions of a constructor below a statement that the statement does not have."""
    own = module.table.scope_of(statement).function()
    around = {statement, *module.table.ancestors(statement)}
    scope = constructor.module.table.scope_of(constructor.call).function()
    if constructor.module is module and scope is own:
        below = constructor.statement.lineno > statement.lineno
        return _conditions(constructor.call, module, around, study) if below else []
    function = scope.node if scope is not None else None
    if not isinstance(function, ast.FunctionDef):
        return []
    calls = [
        site.call
        for site in study.tracer.callers(function, constructor.module)
        if site.module is module and module.table.scope_of(site.call).function() is own
    ]
    if len(calls) != 1 or calls[0].lineno <= statement.lineno:
        return []
    inside = _conditions(constructor.call, constructor.module, {function}, study)
    given = _given(calls[0], function, constructor.module)
    asked = ((_said_by_caller(t, function, constructor.module, given), w) for t, w in inside)
    return [
        *_conditions(calls[0], module, around, study),
        *((test, wanted) for test, wanted in asked if test is not None),
    ]


def _conditions(
    node: ast.AST, module: Module, around: Collection[ast.AST], study: Study
) -> list[Test]:
    """What decides whether ``node`` runs, inside of ``around``: the branches that it stands in, and
    those above it that leave."""
    found: list[Test] = []
    child = node
    for parent in module.table.ancestors(node):
        if isinstance(child, ast.stmt):
            block = block_of(parent, child)
            for earlier in reversed(block[: block.index(child)]):
                if earlier in around:
                    break
                if isinstance(earlier, ast.If) and not earlier.orelse and _leaves(earlier.body):
                    found.insert(0, (earlier.test, False))
        if parent in around:
            break
        if isinstance(parent, ast.If) and child is not parent.test:
            found.insert(0, (parent.test, child in parent.body))
        elif isinstance(parent, ast.IfExp) and child is not parent.test:
            found.insert(0, (parent.test, child is parent.body))
        child = parent
    return [each for each in found if study.constructors.keys().isdisjoint(ast.walk(each[0]))]


def _leaves(body: Sequence[ast.stmt]) -> bool:
    return isinstance(body[-1], (ast.Return, ast.Raise, ast.Continue, ast.Break))


def _given(call: ast.Call, function: ast.FunctionDef, module: Module) -> dict[str, ast.expr]:
    """What a call gives the parameters of a function, its ``self`` among them."""
    names = tuple(a.arg for a in (*function.args.posonlyargs, *function.args.args))
    first: dict[str, ast.expr] = {}
    if class_of_method(function, module) is not None and not is_static(function):
        if isinstance(call.func, ast.Attribute):
            first = {names[0]: call.func.value} if names else {}
        names = names[1:]
    keywords = tuple(a.arg for a in function.args.kwonlyargs)
    return {**first, **(bind_arguments(call, (*names, *keywords)) or {})}


def _said_by_caller(
    test: ast.expr, function: ast.FunctionDef, module: Module, given: dict[str, ast.expr]
) -> ast.expr | None:
    """A condition of a function in the words of its caller, if it asks for parameters alone."""
    scope = module.table.scopes[function]
    for name in _names(test):
        bound = scope.bindings.get(name, ())
        if name not in given or len(bound) != 1:
            return None
    return of_kind(_replaced(test, given), ast.expr)


def _replaced(node: ast.AST, given: dict[str, ast.expr]) -> ast.AST:
    """A condition with expressions in the place of its names; the tree that it stands in stays."""
    if isinstance(node, ast.Name):
        return given[node.id]

    def part(value: object) -> object:
        if isinstance(value, list):
            return [part(each) for each in value]
        return _replaced(value, given) if isinstance(value, ast.AST) else value

    made = type(node)(**{name: part(value) for name, value in ast.iter_fields(node)})
    return ast.copy_location(made, node)


def _is_steady(test: ast.expr, statement: ast.stmt, module: Module) -> bool:
    """Whether a condition says at ``statement`` what it says further below."""
    if not guard_place.is_plain(test):
        return False
    own = module.table.scope_of(statement).home()
    return all(_is_settled(name, own, statement) for name in _names(test)) and all(
        stored.lineno < statement.lineno
        for asked in ast.walk(test)
        if isinstance(asked, ast.Attribute)
        for stored in module.table.attributes_by_name.named(asked.attr)
        if isinstance(stored.ctx, ast.Store)
    )


def _names(test: ast.expr) -> Iterator[str]:
    return (node.id for node in ast.walk(test) if isinstance(node, ast.Name))


def _is_settled(name: str, own: Scope, statement: ast.stmt) -> bool:
    """Whether a name is bound in front of ``statement`` alone, as far as its own scope tells."""
    scope = own.lookup(name)
    if scope is None or scope is not own:
        return True
    return all(
        binding.kind is Kind.PARAMETER
        or getattr(binding.node, "lineno", statement.lineno) < statement.lineno
        for binding in own.bindings[name]
    )
