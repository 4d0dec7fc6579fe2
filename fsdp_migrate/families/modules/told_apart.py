"""What is asked of a model that another library's class, or the project's, may have made as well.

``FSDPModule`` tells which it is: the new code is for FSDP2's models, and any other is asked as it
was. What is right for either as it stands needs no test.
"""

from __future__ import annotations

import ast
from collections.abc import Sequence
from dataclasses import replace

from fsdp_migrate.analysis.flow import access_path
from fsdp_migrate.families.checkpoints import other_wrappers
from fsdp_migrate.families.checkpoints.compiled_models import may_be_compiled
from fsdp_migrate.fsdp1 import model_values
from fsdp_migrate.fsdp1.api import PACKAGE
from fsdp_migrate.fsdp1.construct import ConstructKind
from fsdp_migrate.fsdp1.site import Site
from fsdp_migrate.planning.context import Study
from fsdp_migrate.planning.edits import (
    AddKeyword,
    Code,
    Edit,
    Import,
    Mark,
    ReplaceExpression,
    ReplaceStatement,
    Support,
    code,
)
from fsdp_migrate.planning.model import Decision
from fsdp_migrate.planning.outcome import Outcome

BESIDE = (Import, Mark, Support)  # edits that change nothing of what the program does


def told_apart(decision: Decision, site: Site, study: Study) -> Decision | None:
    """The answer of a site's rule, for FSDP2's models alone; nothing where no test tells them."""
    if decision.outcome is Outcome.LEFT:
        return None
    changes = [e for e in decision.edits if not isinstance(e, BESIDE)]
    if not changes:
        return decision
    if len(changes) > 1 or decision.claims.gone or _is_given_more(site):
        return None
    made_by = study.models(site.subject, site.module).constructors
    if access_path(site.subject) is None or any(c.defined_by is not None for c in made_by):
        return None
    if not is_told_by_class(site, study):
        return None
    module = site.module
    proposal = study.proposal()
    test = code(
        "isinstance({m}, {n})",
        m=ast.unparse(site.subject),
        n=proposal.name(module, PACKAGE, "FSDPModule", site.node),
    )
    new: Edit | None
    if site.construct.kind is ConstructKind.HASATTR:  # the answer for FSDP2's models is the test
        form = (
            "{t} or {h}" if isinstance(module.table.parents[site.node], ast.If) else "({t} or {h})"
        )
        new = ReplaceExpression(module, site.call, code(form, t=test, h=site.call))
    else:
        new = _either(changes[0], test, site, study)
    if new is None:
        return None
    beside = [e for e in decision.edits if isinstance(e, BESIDE)]
    message = f"{decision.message}, where it is an FSDP2 model"
    return replace(decision, message=message, edits=(*beside, *proposal.edits, new))


def is_told_by_class(site: Site, study: Study) -> bool:
    """Whether ``FSDPModule`` tells the models at a site from what other classes made.

    Not what ``torch.compile`` may have wrapped, and the module inside, which is the model itself
    then.
    """
    found = study.models(site.subject, site.module)
    if not found.constructors or may_be_compiled(found.constructors, study):
        return False
    name = site.construct.attribute
    alike = (v for v in found.others if model_values.look_alike(v, name, study.tracer))
    return not any(other_wrappers.is_wrapped(value, found, study) for value in alike)


def _is_given_more(site: Site) -> bool:
    """Whether ``no_sync`` is given what FSDP1's does not take: another meaning of the name."""
    call = site.node
    given = isinstance(call, ast.Call) and bool(call.args or call.keywords)
    return given and site.construct.attribute == "no_sync"


def _either(edit: Edit, test: Code, site: Site, study: Study) -> Edit | None:
    """An edit that takes effect where a test is true."""
    module = site.module
    if edit.module is not module:
        return None
    match edit:
        case ReplaceExpression(node=node, code=new):
            changed: ast.expr | ast.stmt = node
        case AddKeyword(call=node, name=name, code=value) if node is site.node:
            changed, first = node, ", " if node.args or node.keywords else ""
            text = _as_it_is(node, module.source.lines)
            if text is None:
                return None
            new = code(f"{text[:-1]}{first}{name}={{v}})", v=value)
        case ReplaceStatement(node=ast.Expr() | ast.Assign() as changed, codes=[new]):
            pass
        case _:
            return None
    text = _as_it_is(changed, module.source.lines)
    if text is None or not _is_alone(changed, site, study):
        return None
    parts: dict[str, Code | ast.expr | str] = {"a": new, "t": test, "b": Code(text, {})}
    around = module.table.parents[changed]
    if isinstance(changed, ast.expr) and not isinstance(around, ast.Expr):
        return ReplaceExpression(module, changed, Code("({a} if {t} else {b})", parts))
    statement = changed if isinstance(changed, ast.stmt) else around
    assert isinstance(statement, ast.stmt)
    branches = Code("if {t}:\n    {a}\nelse:\n    {b}", parts)
    return ReplaceStatement(module, statement, (branches,))


def _as_it_is(node: ast.expr | ast.stmt, lines: Sequence[str]) -> str | None:
    """A node as a template of its own text; nothing where a comment would be lost."""
    if node.end_lineno != node.lineno and any(
        "#" in line for line in lines[node.lineno - 1 : node.end_lineno]
    ):
        return None
    return ast.unparse(node).replace("{", "{{").replace("}", "}}")


def _is_alone(node: ast.AST, site: Site, study: Study) -> bool:
    """Whether no other site stands in what is written a second time."""
    inside = set(ast.walk(node))
    found = study.found[0] if study.found else []
    return not any(s.node in inside and s.node is not site.node for s in found)
