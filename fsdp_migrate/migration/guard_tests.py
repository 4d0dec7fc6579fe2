"""What a guard asks first, so that it raises for FSDP's models and for no others.

A program that shards under a flag runs the same lines for DDP's model, or for a plain one. Behind
the sharding the model itself tells; in front of it the flag does.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator

from fsdp_migrate.analysis.module import Module
from fsdp_migrate.families.checkpoints import compiled_models, own_states
from fsdp_migrate.fsdp1.api import FLAT_FIELDS, PACKAGE
from fsdp_migrate.fsdp1.site import Site
from fsdp_migrate.migration import guard_place
from fsdp_migrate.planning.context import Study
from fsdp_migrate.planning.edits import Code, code
from fsdp_migrate.planning.model import Constructor, Decision
from fsdp_migrate.planning.proposal import Proposal
from fsdp_migrate.syntax.scopes import Kind, Scope

TENSOR = "torch.distributed.tensor"
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
    if told is not None:
        subject, source, name = told
        sharded = proposal.name(site.module, source, name, statement)
        return code(f"isinstance({{m}}, {sharded})", m=subject)
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


def _flag(decision: Decision, statement: ast.stmt, study: Study) -> Code | None:
    """Under which conditions the site's models are sharded further below, in the same function."""
    module = decision.site.module
    spelled: dict[str, None] = {}
    for constructor in sorted(decision.models, key=lambda c: c.place):
        tests = _tests(constructor, statement, module)
        if not tests or not all(_is_steady(t, statement, module) for t, _ in tests):
            return None
        if any(node in study.constructors for t, _ in tests for node in ast.walk(t)):
            return None
        spelled[" and ".join(_spelled(test, wanted) for test, wanted in tests)] = None
    if not spelled:
        return None
    text = next(iter(spelled)) if len(spelled) == 1 else f"({' or '.join(spelled)})"
    return code(text.replace("{", "{{").replace("}", "}}"))


def _spelled(test: ast.expr, wanted: bool) -> str:
    match test:
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


def _tests(constructor: Constructor, statement: ast.stmt, module: Module) -> list[Test]:
    """The conditions of a constructor below a statement that the statement does not have."""
    table = module.table
    if constructor.module is not module or constructor.statement.lineno <= statement.lineno:
        return []
    if table.scope_of(constructor.call).function() is not table.scope_of(statement).function():
        return []
    around = {statement, *table.ancestors(statement)}
    found: list[Test] = []
    child: ast.AST = constructor.call
    for parent in table.ancestors(constructor.call):
        if parent in around:
            break
        if isinstance(parent, ast.If) and child is not parent.test:
            found.insert(0, (parent.test, child in parent.body))
        elif isinstance(parent, ast.IfExp) and child is not parent.test:
            found.insert(0, (parent.test, child is parent.body))
        child = parent
    return found


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
