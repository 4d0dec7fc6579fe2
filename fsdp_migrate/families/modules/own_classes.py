"""Where a program asks a sharded model for the class that it was made of.

FSDP1's wrapper was of none of the project's classes, and a module that ``fully_shard`` has sharded
is of the one it was made of (see ``fsdp1/class_questions.py``). ``not isinstance(m, FSDPModule)``
beside the question keeps its answer, whatever ``m`` is. What comes from ``modules()`` is none of
this: there FSDP1 had the module inside as well.
"""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator

from fsdp_migrate.analysis.flow import access_path
from fsdp_migrate.analysis.isinstance_tests import alternatives
from fsdp_migrate.analysis.module import Module
from fsdp_migrate.analysis.values import Class, Constant, External, Made, Value
from fsdp_migrate.families.modules import (
    among_others,
    own_classes_of_parts,
    visited_modules,
)
from fsdp_migrate.families.modules.dispatched import dispatched_calls
from fsdp_migrate.families.modules.inside_wrappers import wrapper_of
from fsdp_migrate.families.wrapping.wrapped_modules import wrapped_by
from fsdp_migrate.fsdp1 import api as fsdp1
from fsdp_migrate.fsdp1 import class_questions, model_values, possible_models, unwrapping
from fsdp_migrate.fsdp1.construct import Construct
from fsdp_migrate.fsdp1.model_values import definitions
from fsdp_migrate.fsdp1.site import Site
from fsdp_migrate.planning.context import Study
from fsdp_migrate.planning.model import Constructor
from fsdp_migrate.syntax.scopes import Kind
from fsdp_migrate.syntax.trees import FUNCTIONS

CONSTRUCT = Construct.parse("class of a model")
CASE = Construct.parse("case for the class of a model")
DISPATCH = Construct.parse("dispatch on the class of a model")
DEPTH = 4  # functions that hand their parameters on
UNKNOWN = "the class that is asked for is not known here"
INNER, OUTER = "inner", "outer"


def find_own_classes(study: Study, module: Module) -> Iterator[Site]:
    """Sites for questions whose answer is another one for what ``fully_shard`` gives."""
    for check in module.table.calls_by_name.of(("isinstance", "issubclass")):
        asked = class_questions.asked(check)
        if asked is not None and not class_questions.stops(check, module):
            doubt = concerns(*asked, study, module)
            if doubt is not None and not _is_excepted(check, asked[0], study, module):
                yield Site(CONSTRUCT, module, check, check, asked[0], doubt)
    for match in module.table.matches if study.constructors else ():
        for case in match.cases:
            for pattern in alternatives(case.pattern):
                if isinstance(pattern, ast.MatchClass):
                    doubt = concerns(match.subject, pattern.cls, study, module)
                    if doubt is not None:
                        yield Site(CASE, module, pattern.cls, pattern.cls, match.subject, doubt)
    for call, subject, registered in dispatched_calls(study, module) if study.constructors else ():
        found = (concerns(subject, c, study, module, where) for c, where in registered)
        doubts = [doubt for doubt in found if doubt is not None]
        if doubts:
            yield Site(DISPATCH, module, call, call, subject, min(doubts))


def concerns(
    subject: ast.expr, asked: ast.expr, study: Study, module: Module, named_in: Module | None = None
) -> str | None:
    """Why a question may be put to a sharded model of a class that is asked for: an empty text
    where it is one that the program makes, None where it is none."""
    classes = class_questions.classes(asked, named_in or module, study.tracer)
    is_open = classes is None and class_questions.is_open(asked, named_in or module, study.tracer)
    if not (classes or is_open) or visited_modules.is_visited(subject, study, module):
        return None
    if _is_inner(subject, module):
        return None  # of the module inside it was true, as it is of the unit itself
    if unwrapping.goes_inside(subject, module, study.tracer):
        return None  # likewise
    if visited_modules.goes_inside(subject, study, module):
        return None  # likewise
    values = study.values(subject, module)
    models = study.models(subject, module).constructors
    if models:
        unwrapped = class_questions.is_unwrapped(values)
        if unwrapped and _comes_as(subject, study, module, DEPTH) != {INNER, OUTER}:
            return None
        if classes is None:
            return UNKNOWN
        return "" if any(may_be_of(c, models, study) for c in classes) else None
    if classes is None:
        return None
    whole = own_classes_of_parts.whole_of(subject, study, module)
    if any(own_classes_of_parts.may_be_unit(c, whole, study) for c in classes):
        return ""
    parts = own_classes_of_parts.beside(subject, study, module)
    if any(may_be_of(cls, parts, study) for cls in classes):
        return ""
    among = among_others.models_among(subject, study, module)
    if any(may_be_of(cls, among, study, surely=True) for cls in classes):
        return ""
    if class_questions.is_unwrapped(values) or not _is_given(subject, module):
        return None
    near = study.reached_from(module)
    if not any(may_be_of(cls, near, study, surely=True) for cls in classes):
        return None
    return possible_models.may_be(subject, module, study.tracer) or None


def _is_inner(subject: ast.expr | None, module: Module) -> bool:
    """``model.module``, and a name that has been that since it was bound last."""
    if isinstance(subject, ast.Name):
        reaching = definitions(subject, module)
        plain = all(d.kind is Kind.ASSIGN and not d.unpack for d in reaching)
        values = [d.value for d in reaching if isinstance(d.value, ast.Attribute)]
        return (
            plain
            and bool(values)
            and len(values) == len(reaching)
            and all(value.attr in unwrapping.INNER for value in values)
        )
    return isinstance(subject, ast.Attribute) and subject.attr in unwrapping.INNER


def _is_given(subject: ast.expr, module: Module) -> bool:
    """Whether a name is a parameter, not of a module's method: these are given parts of it."""
    for definition in definitions(subject, module) if isinstance(subject, ast.Name) else ():
        function = module.table.parents.get(module.table.parents.get(definition.node, subject))
        within = module.table.parents.get(function) if function is not None else None
        if definition.kind is Kind.PARAMETER and not isinstance(within, ast.ClassDef):
            return True
    return False


def _is_excepted(check: ast.Call, subject: ast.expr, study: Study, module: Module) -> bool:
    """Whether sharded models are asked for beside it: ``isinstance(m, Net) and not isinstance(m,
    FSDP)``, ``isinstance(m, (FSDP, DDP)) or isinstance(m, Net)``."""
    path = access_path(subject)
    for parent in module.table.ancestors(check):
        if not isinstance(parent, (ast.BoolOp, ast.UnaryOp)):
            return False
        parts = parent.values if isinstance(parent, ast.BoolOp) else []
        if any(_asks_sharded(part, path, study, module) for part in parts):
            return True
    return False


def _asks_sharded(node: ast.expr, path: str | None, study: Study, module: Module) -> bool:
    """Whether a part of a condition tells sharded models from others, in the way that keeps the
    answer of the other part from mattering."""
    negated = isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.Not)
    inner = node.operand if isinstance(node, ast.UnaryOp) else node
    asked = class_questions.asked(inner) if isinstance(inner, ast.Call) else None
    if asked is None or access_path(asked[0]) != path:
        return False
    names = {n for e in ast.walk(asked[1]) for n in _names(e, study, module)}
    sharded = any(fsdp1.canonical(n) == fsdp1.FSDP or fsdp1.is_fsdp2_class(n) for n in names)
    parent = module.table.parents[node]
    return sharded and isinstance(parent, ast.BoolOp) and negated is isinstance(parent.op, ast.And)


def _names(node: ast.AST, study: Study, module: Module) -> Iterable[str]:
    return study.external(node, module) if isinstance(node, (ast.Name, ast.Attribute)) else ()


def _comes_as(subject: ast.expr, study: Study, module: Module, depth: int) -> set[str]:
    """Whether what an expression is may be a wrapper, the module inside of one, or both of it.

    A function may be given either: ``f(model)`` here and ``f(model.module)`` there.
    """
    values = study.values(subject, module)
    if class_questions.is_unwrapped(values):
        found = {INNER}
    elif wrapper_of(subject, study, module) is not None:
        return {INNER}
    else:
        found = {OUTER} if model_values.models(values, study.tracer) else set()
    reaching = definitions(subject, module) if isinstance(subject, ast.Name) else ()
    if not depth or not reaching or any(d.kind is not Kind.PARAMETER for d in reaching):
        return found
    result: set[str] = set()
    for definition in reaching:
        parameter = definition.node
        function = module.table.parents.get(module.table.parents.get(parameter, parameter))
        if not isinstance(function, FUNCTIONS) or not isinstance(parameter, ast.arg):
            return found
        for call in study.tracer.callers(function, module):
            given = call.argument(function, parameter.arg)
            if given is not None:
                result |= _comes_as(given, study, call.module, depth - 1)
    return result or found


def comes_unwrapped(site: Site, study: Study) -> bool:
    """Whether the question is put to the module inside of a wrapper as well."""
    return INNER in _comes_as(site.subject, study, site.module, DEPTH)


def may_be_of(
    cls: Value, models: Iterable[Constructor], study: Study, *, surely: bool = False
) -> bool:
    """Whether what some models are made of may be, or ``surely`` is, of a class."""
    if isinstance(cls, External) and not own_classes_of_parts.is_class_of_modules(cls.name):
        return False
    for constructor in models:
        wrapped = [v for w, m in wrapped_by(constructor, study) for v in study.values(w, m)]
        wrapped = [v for v in wrapped if not _is_nothing(v)]
        if not wrapped and not surely:
            return True
        if any(_may_be(value, cls, study, surely=surely) for value in wrapped):
            return True
    return False


def _is_nothing(value: Value) -> bool:
    return isinstance(value, Constant)


def _may_be(value: Value, cls: Value, study: Study, *, surely: bool) -> bool:
    """Whether an object is an instance of a class, as far as its own class is known."""
    match value, cls:
        case Made(callee=Class() as own), Class():
            lineage = study.tracer.lineage(own)
            return any(cls.node is each.node for each in lineage)
        case Made(callee=Class() as own), External(name=name):
            bases = study.tracer.external_bases(own)
            return name in bases or (not surely and _is_of_library(name, bases))
        case Made(), External(name=name) if value.made_by:
            return not surely and (
                name == value.made_by or _is_of_library(name, {value.made_by}) or _is_open(value)
            )
        case Made(), _ if value.made_by:
            return not surely and _is_open(value)
    return not surely and not isinstance(value, (Class, External))


def _is_of_library(name: str, others: Iterable[str]) -> bool:
    """Whether a library but torch, whose classes are not read, has a class and one of others."""
    root = name.partition(".")[0]
    return root != "torch" and any(other.partition(".")[0] == root for other in others)


def _is_open(value: Made) -> bool:
    """Whether a function from outside made something, which may be of any class: no class has, nor
    one of its class methods."""
    return not any(part[:1].isupper() for part in value.made_by.split("."))
