"""What tells parameters by their class while a forward runs.

FSDP1's parameters were views then, plain tensors: ``self.blocks[:2]`` of an ``nn.ParameterList``,
like any list or dictionary of parameters that a forward makes, made parameters of their own of
them, which no gradient of came back, and ``isinstance(p, nn.Parameter)`` was false. With
``fully_shard`` they are parameters, and the same code trains them.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator

from fsdp_migrate.analysis.module import Module
from fsdp_migrate.analysis.values import Made
from fsdp_migrate.families.parameters.attributes import PARAMETER
from fsdp_migrate.families.wrapping import model_contents
from fsdp_migrate.families.wrapping.computing_methods import Methods
from fsdp_migrate.families.wrapping.module_values import Kind, ModuleValues
from fsdp_migrate.fsdp1.construct import Construct
from fsdp_migrate.fsdp1.model_values import definitions
from fsdp_migrate.fsdp1.references import enclosing_function
from fsdp_migrate.fsdp1.site import Site
from fsdp_migrate.planning.context import Study
from fsdp_migrate.planning.model import Constructor, Decision
from fsdp_migrate.syntax.expressions import given_arguments
from fsdp_migrate.syntax.scopes import Kind as BindingKind
from fsdp_migrate.syntax.trees import FUNCTIONS, walk

TOLD = Construct.parse("parameters told by their class in a forward")
LISTS = frozenset(
    f"torch.nn.{part}{name}"
    for part in ("", "modules.", "modules.container.")
    for name in ("ParameterList", "ParameterDict")
)
CALLS_DEEP = 3
LISTED = (
    "in a forward FSDP1's parameters were views, and a list of parameters that is made of them "
    "here, as by a slice, had parameters of its own, which got no gradients: they were not "
    "trained by what follows, and now they are. To keep that, detach() them here"
)
ASKED = (
    "in a forward FSDP1's parameters were views, and no nn.Parameter: this was False, and is True "
    "now"
)


def find_told_in_forwards(study: Study, module: Module) -> Iterator[Site]:
    """Sites for lists of parameters that a forward makes, and for questions for their class."""
    if not module.mentions("ParameterList", "ParameterDict", "Parameter"):
        return
    for node in _candidates(study, module):
        if models_running(node, study, module):
            yield Site(TOLD, module, node, node)


def _candidates(study: Study, module: Module) -> Iterator[ast.expr]:
    for entry in module.table.subscripts:
        taken = isinstance(entry.slice, ast.Slice) and isinstance(entry.ctx, ast.Load)
        if taken and _is_list(entry.value, study, module):
            yield entry
    for call in module.table.calls:
        match call:
            case ast.Call(func=ast.Attribute(value=owner, attr="copy"), args=[]):
                if _is_list(owner, study, module):
                    yield call
            case ast.Call(func=ast.Name(id="isinstance"), args=[asked, cls]):
                if _is_class(cls, study, module) and _has_parameters(asked, study, module):
                    yield call
            case ast.Call(func=func) if set(study.external(func, module)) & LISTS:
                given = [n for each in given_arguments(call) for n in walk(each)]
                expressions = (n for n in given if isinstance(n, (ast.Attribute, ast.Name)))
                if any(_has_parameters(n, study, module) for n in expressions):
                    yield call


def _is_list(node: ast.expr, study: Study, module: Module) -> bool:
    values = study.values(node, module)
    return any(isinstance(v, Made) and v.made_by in LISTS for v in values)


def _is_class(node: ast.expr, study: Study, module: Module) -> bool:
    """Whether a question is for ``nn.Parameter`` and for nothing that a view is as well."""
    classes = node.elts if isinstance(node, ast.Tuple) else [node]
    names = {name for each in classes for name in study.external(each, module)}
    return not names.isdisjoint(PARAMETER) and "torch.Tensor" not in names


def _has_parameters(node: ast.expr, study: Study, module: Module) -> bool:
    while isinstance(node, ast.Subscript):
        node = node.value
    over = (d.value for d in definitions(node, module) if d.kind is BindingKind.ELEMENT)
    held = (each for each in (node, *over) if each is not None)
    kinds = ModuleValues(study)
    return any(kinds.kind(study.values(each, module)) is Kind.PARAMETER for each in held)


def models_running(node: ast.AST, study: Study, module: Module) -> frozenset[Constructor]:
    """The models in whose forward an expression or a statement may run."""
    return frozenset(_running(enclosing_function(module, node), module, study, CALLS_DEEP))


def _running(function: ast.AST, module: Module, study: Study, depth: int) -> Iterator[Constructor]:
    known = study.cache(_run_in_forwards)
    if function in known:
        calls = known[function]
        yield from (c for c in study.constructors.values() if c.call in calls)
        return
    if not depth or not isinstance(function, FUNCTIONS):
        return
    for site in study.tracer.callers(function, module):
        above = enclosing_function(site.module, site.call)
        yield from _running(above, site.module, study, depth - 1)


def _run_in_forwards(study: Study) -> dict[ast.AST, set[ast.Call]]:
    """The methods that a model's forward runs, its parts' and those that they call, by the calls
    of the models' constructors."""
    methods = Methods(study)
    found: dict[ast.AST, set[ast.Call]] = {}
    for constructor in study.constructors.values():
        if constructor.is_context or not constructor.has_module:
            continue
        contents = model_contents.contents(constructor.wrapped, constructor.module, study)
        for cls in contents.classes:
            forward = methods.find(cls, "forward")
            if forward is None:
                continue
            run = {forward[1], *(f for _, f in methods.use(cls, *forward).further)}
            for function in run - {_init(cls.node)}:
                found.setdefault(function, set()).add(constructor.call)
    return found


def _init(cls: ast.ClassDef) -> ast.AST | None:
    return next((n for n in cls.body if getattr(n, "name", "") == "__init__"), None)


def decide_told(site: Site, study: Study, code: str) -> Decision:
    """They are parameters now, and train."""
    models = models_running(site.expression, study, site.module)
    asked = isinstance(site.node, ast.Call) and getattr(site.node.func, "id", "") == "isinstance"
    message = "kept, for what are parameters now"
    return study.rewritten(site, code, message, models=models, review=ASKED if asked else LISTED)
