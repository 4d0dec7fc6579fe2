"""Models that ``torch.compile`` may have wrapped: what it gives is no ``FSDPModule``.

A compiled function, and a word in a comment, compile no model. ``model.compile()`` leaves the model
of its class.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Collection, Iterator

from fsdp_migrate.analysis.flow import access_path
from fsdp_migrate.analysis.module import Module
from fsdp_migrate.analysis.values import Computed, Unknown
from fsdp_migrate.families.wrapping import part_paths
from fsdp_migrate.families.wrapping.one_program import can_meet
from fsdp_migrate.fsdp1.references import enclosing_function
from fsdp_migrate.planning.context import Study
from fsdp_migrate.planning.model import Constructor
from fsdp_migrate.syntax.expressions import last_name
from fsdp_migrate.syntax.trees import FUNCTIONS

COMPILERS = frozenset({"torch.compile", "torch._dynamo.optimize"})
NAMES = frozenset({"compile", "optimize"})
MENTIONED = re.compile(
    rb"\btorch\.compile\b|\bfrom torch import .*\bcompile\b|\bdynamo\.optimize\b"
)


def may_be_compiled(models: Collection[Constructor], study: Study) -> bool:
    """Whether one of some models may be given to ``torch.compile`` once it is sharded."""
    for given, module in study.cache(_compiled):
        if given is None:
            return True
        found = study.models(given, module)
        if not found.constructors.isdisjoint(models):
            return True
        if any(isinstance(value, (Computed, Unknown)) for value in found.others):
            return True
    return MENTIONED.search(study.project.library.joined_text) is not None  # imported, not read


def _compiled(study: Study) -> list[tuple[ast.expr | None, Module]]:
    """What the project gives to ``torch.compile``; None where that is not in sight."""
    found: list[tuple[ast.expr | None, Module]] = []
    for module in study.project.modules:
        if module.mentions(*NAMES):
            for reference in _references(module, study):
                if not _is_of_function(reference, module):
                    found.append((_given(reference, module), module))
    return found


def _references(module: Module, study: Study) -> Iterator[ast.expr]:
    """Every mention of the compiler, called or not."""
    table = module.table
    imported = {b.name for b in table.imports if b.qualified in COMPILERS}
    named = [*table.attributes_by_name.of(NAMES), *table.names_by_id.of(imported)]
    for node in named:
        if study.external(node, module) & COMPILERS:
            yield node
    for call in table.calls_by_name.named("getattr"):
        match call.args:
            case [ast.expr() as owner, ast.Constant(value="compile"), *_]:
                if "torch" in study.external(owner, module):
                    yield call


def _is_of_function(reference: ast.expr, module: Module) -> bool:
    """Whether the compiler decorates a function: ``@torch.compile``, ``@torch.compile(...)``."""
    decorated: ast.AST = reference
    for parent in module.table.ancestors(reference):
        if isinstance(parent, FUNCTIONS) and not isinstance(parent, ast.Lambda):
            return decorated in parent.decorator_list
        if isinstance(parent, ast.stmt):
            return False
        decorated = parent
    return False


def _given(reference: ast.expr, module: Module) -> ast.expr | None:
    """What is compiled by a mention of the compiler, if it is a call that says so."""
    call = module.table.parents[reference]
    if not isinstance(call, ast.Call) or call.func is not reference:
        return None
    if last_name(reference) != "compile":
        return None  # the older function is given a backend, and its result the model
    named = [k.value for k in call.keywords if k.arg == "model"]
    return next(iter([*call.args[:1], *named]), None)


def said_of_names(model: ast.expr | None, module: Module, study: Study) -> str:
    """That a state of FSDP1's had other names, if its model or a part of it is compiled."""
    if model is None:
        return ""
    models = study.models(model, module).constructors
    return NAMES_DIFFER if _has_compiled_names(model, module, models, study) else ""


NAMES_DIFFER = (
    "FSDP1 gave this state the names that torch.compile makes, with '_orig_mod.' in them, which "
    "torch's function leaves out: files that FSDP1 wrote have them, and what reads new ones may "
    "expect them"
)


def _has_compiled_names(
    model: ast.expr, module: Module, models: Collection[Constructor], study: Study
) -> bool:
    for given, where in study.cache(_compiled):
        if given is None or not can_meet(where, module, study):
            continue
        if not study.models(given, where).constructors.isdisjoint(models):
            if not _is_beside(given, where, model, module):
                return True
            continue
        here, inside = enclosing_function(where, given), part_paths.places(given, where, study)
        for each in (each for each in models if each.has_module):
            wrapped = part_paths.places(each.wrapped, each.module, study)
            if any(
                part_paths.is_one_object(value, here, where, study)
                for value in part_paths.shared(inside, wrapped)
            ):
                return True
    return False


def _is_beside(given: ast.expr, where: Module, model: ast.expr, module: Module) -> bool:
    """Whether a state is asked of the model that was compiled, not of what came of it:
    ``compiled = torch.compile(model)``, and then ``model.state_dict()``."""
    asked = access_path(model) or ""
    if asked.endswith((".module", "._orig_mod")):
        return True
    call = where.table.parents[given]
    made = where.table.parents[call]
    named = [path for t in getattr(made, "targets", []) if (path := access_path(t)) is not None]
    here = enclosing_function(where, given) is enclosing_function(module, model)
    return here and asked == access_path(given) and bool(named) and asked not in named
