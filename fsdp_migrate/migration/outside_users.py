"""Functions and classes of a package that nothing here uses: their models come from its users.

``adapter.state_dict()`` in a library asked FSDP1 for the state of whatever FSDP1 model it was
given. Migrated it asks in FSDP2's way, and says nothing when a user still hands it one of FSDP1's.
"""

from __future__ import annotations

import ast
import os
import re
from dataclasses import replace
from pathlib import Path

from fsdp_migrate.analysis.module import Module
from fsdp_migrate.analysis.tracing.functions import default_of
from fsdp_migrate.analysis.values import Constant, Made
from fsdp_migrate.fsdp1 import api as fsdp1
from fsdp_migrate.fsdp1.construct import Construct
from fsdp_migrate.fsdp1.references import enclosing_function
from fsdp_migrate.fsdp1.site import Site
from fsdp_migrate.planning.context import Study
from fsdp_migrate.planning.edits import Mark, new_code
from fsdp_migrate.planning.model import Constructor, Decision
from fsdp_migrate.planning.outcome import Outcome
from fsdp_migrate.planning.prose import sentences
from fsdp_migrate.syntax.trees import FUNCTIONS, Definition

TAKES_FSDP2 = (
    "users of this package hand their models to {name}: it takes FSDP2 models alone now, and does "
    "not say so of others"
)

UNREAD = (
    "users of this package may give {names} to {function}(), as nobody here does: what is written "
    "does nothing with it"
)

CONSTRUCTOR = Construct.parse(f"{fsdp1.FSDP}()")
# Arguments that FSDP2 needs none for.
INERT = frozenset({"limit_all_gathers", "use_orig_params", "backward_prefetch", "forward_prefetch"})
EXAMPLES = frozenset({"example", "examples"})  # directories that show users what they may write


def said(decision: Decision, study: Study) -> Decision:
    """A decision with the review of what users of the package must know, once in a definition."""
    site = decision.site
    if decision.outcome is not Outcome.REWRITTEN:
        return decision
    if site.construct == CONSTRUCTOR:
        unread = _unread(decision, study)
        return _reviewed(decision, unread) if unread else decision
    if site.construct.attribute not in fsdp1.STATICS:
        return decision
    around = [p for p in site.module.table.ancestors(site.node) if isinstance(p, Definition)]
    if site.doubt or not around or not _is_for_users(around[-1], site.module, study):
        return decision
    if _makes_its_own(around[-1], site, study):
        return decision
    if study.cache(_first).setdefault(around[-1], site.node) is not site.node:
        return decision
    return _reviewed(decision, TAKES_FSDP2.format(name=around[-1].name))


def _makes_its_own(definition: Definition, site: Site, study: Study) -> bool:
    """Whether all models that a site has are made by the definition around it, or by a function
    that it calls: users hand it none."""
    call = site.node if isinstance(site.node, ast.Call) else None
    model = site.receiver or (call.args[0] if call is not None and call.args else None)
    models = study.models(model, site.module) if model is not None else None
    return (
        models is not None
        and bool(models)
        and all(isinstance(v, (Made, Constant)) or v.module.is_test for v in models.others)
        and all(_leads_to(definition, made, study) for made in models.constructors)
    )


def _leads_to(definition: Definition, made: Constructor, study: Study) -> bool:
    """Whether a model is made inside a definition, or by a function that is called there."""
    around = enclosing_function(made.module, made.node)
    places = [(made.node, made.module)]
    if isinstance(around, FUNCTIONS):
        places += [(c.call, c.module) for c in study.tracer.callers(around, made.module)]
    return any(definition in where.table.ancestors(node) for node, where in places)


def _reviewed(decision: Decision, review: str) -> Decision:
    mark = Mark(decision.site.module, decision.site.node, decision.code, sentences(review))
    edits = (*decision.edits, mark)
    return replace(decision, outcome=Outcome.REVIEW, help=review, edits=edits)


def _unread(decision: Decision, study: Study) -> str:
    """What to say of parameters that FSDP1 was given, where all callers here leave them out: only
    their default was written, and others may call the function with more."""
    site, module = decision.site, decision.site.module
    function = enclosing_function(module, site.node)
    if not isinstance(function, ast.FunctionDef) or not _is_offered(function, module, study):
        return ""
    written = {
        word
        for edit in decision.edits
        for code in new_code(edit)
        for word in re.findall(r"\w+", code.preview())
    }
    callers = study.tracer.callers(function, module)
    unread = [
        arg.arg
        for arg in (*function.args.posonlyargs, *function.args.args, *function.args.kwonlyargs)
        if default_of(arg, function) is not None
        and arg.arg not in written
        and _is_read_there_alone(arg.arg, function, site)
        and not any(caller.argument(function, arg.arg) for caller in callers)
    ]
    if not unread or not callers:
        return ""
    return UNREAD.format(names=" and ".join(unread), function=function.name)


def _is_read_there_alone(name: str, function: ast.FunctionDef, site: Site) -> bool:
    """Whether a parameter is read for an argument of the site that means something to FSDP2, and
    nowhere else."""
    table = site.module.table
    reads = table.reads(name, table.scopes[function])
    inert = {keyword for keyword in site.call.keywords if keyword.arg in INERT}
    around = [set(table.ancestors(read)) for read in reads]
    return any(not each & inert for each in around) and all(site.call in each for each in around)


def _first(study: Study) -> dict[ast.AST, ast.AST]:
    return {}


def _is_for_users(definition: Definition, module: Module, study: Study) -> bool:
    """Whether it is offered, and no code here but tests and examples has it."""
    name = definition.name
    return _is_offered(definition, module, study) and not any(
        _mentions(name, other, definition)
        for other in study.project.modules
        if not other.is_test and not _is_example(other, study)
    )


def _is_offered(definition: Definition, module: Module, study: Study) -> bool:
    """Whether it is a package's that others may install, and public."""
    is_public = not definition.name.startswith("_") and not definition.decorator_list
    return is_public and bool(module.package) and study.published and not module.is_test


def _is_example(module: Module, study: Study) -> bool:
    """Whether a file stands in a directory of examples of what was given."""
    below = module.path.relative_to(study.cache(_common))
    return not EXAMPLES.isdisjoint(below.parts)


def _common(study: Study) -> Path:
    """The directory that all files are in."""
    return Path(os.path.commonpath([each.path.parent for each in study.project.modules]))


def _mentions(name: str, module: Module, definition: Definition) -> bool:
    """Whether a file uses a name: an import alone, for others, and ``__all__`` are no uses."""
    if not module.mentions(name):
        return False
    table = module.table
    uses: list[ast.expr] = [*table.names_by_id.named(name), *table.attributes_by_name.named(name)]
    uses += [text for text in table.strings if text.value == name]
    return any(
        definition not in (parents := list(table.ancestors(use))) and not _exports(parents)
        for use in uses
    )


def _exports(parents: list[ast.AST]) -> bool:
    """Whether something stands in what ``__all__`` is assigned."""
    statement = next((p for p in parents if isinstance(p, ast.stmt)), None)
    return isinstance(statement, (ast.Assign, ast.AugAssign, ast.AnnAssign)) and any(
        isinstance(node, ast.Name) and node.id == "__all__" for node in ast.walk(statement)
    )
