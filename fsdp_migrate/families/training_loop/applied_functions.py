"""Functions that something else calls for each element: ``map(norm, model.parameters())``."""

from __future__ import annotations

import ast
from collections import defaultdict
from collections.abc import Collection, Iterator

from fsdp_migrate.analysis.module import Module
from fsdp_migrate.analysis.values import Function, Made, Value
from fsdp_migrate.planning.context import Study
from fsdp_migrate.syntax.expressions import last_name

MAP, STARMAP, REDUCE = "map", "starmap", "reduce"
APPLYING = frozenset({MAP, STARMAP, REDUCE, "filter"})
# What makes functions of names: ``methodcaller("norm")``, ``attrgetter("grad")``.
METHOD, ATTRIBUTE = "operator.methodcaller", "operator.attrgetter"
PARTIAL = "functools.partial"
ELEMENT = "element"  # what stands for one where no program's variable does

Application = tuple[ast.Call, Module, int]
"""A call, where it stands, and how many arguments a partial gives before those of the call."""


def asked_of_each(node: ast.AST, methods: Collection[str]) -> tuple[ast.expr, str] | None:
    """``models``, and the method, of ``map(methodcaller("parameters"), models)``,
    ``map(nn.Module.parameters, models)`` and ``map(lambda m: m.parameters(), models)``."""
    match node:
        case ast.Call(func=ast.Name(id="map"), args=[function, models]):
            match function:
                case ast.Lambda(body=ast.Call(func=ast.Attribute(value=ast.Name(), attr=name))):
                    pass
                case ast.Call(func=maker, args=[ast.Constant(value=str(name))]):
                    name = name if last_name(maker) == "methodcaller" else ""
                case _:
                    name = function.attr if isinstance(function, ast.Attribute) else ""
            return (models, name) if name in methods else None
    return None


def applies(call: ast.Call) -> bool:
    """Whether a call calls a function for each element of what else it is given."""
    return last_name(call.func) in APPLYING


def applications(function: ast.AST, study: Study) -> list[Application]:
    """The calls that call a function of the project for each element of what they are given."""
    return study.cache(_by_function).get(function, [])


def _by_function(study: Study) -> dict[ast.AST, list[Application]]:
    found: dict[ast.AST, list[Application]] = defaultdict(list)
    for module in study.project.modules:
        for call in module.table.calls_by_name.of(APPLYING):
            for value in study.values(call.args[0], module) if len(call.args) > 1 else ():
                for function, given in _called(value, study):
                    found[function].append((call, module, given))
    return found


def _called(value: Value, study: Study) -> Iterator[tuple[ast.AST, int]]:
    """A function, or that of a partial, and how many arguments the partial gives it."""
    match value:
        case Function():
            yield value.node, 0
        case Made(made_by="functools.partial", node=ast.Call(args=[inner, *given])):
            for bound in study.values(inner, value.module):
                if isinstance(bound, Function):
                    yield bound.node, len(given)


def given_each(
    function: ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda, name: str, study: Study
) -> Iterator[tuple[ast.expr, Module]]:
    """What those calls go over whose elements a parameter gets."""
    names = [a.arg for a in (*function.args.posonlyargs, *function.args.args)]
    for call, module, given in applications(function, study):
        taken = names[1:] if names[:1] in (["self"], ["cls"]) else names
        place = taken.index(name) - given if name in taken else -1
        if last_name(call.func) != MAP:
            if place > 0 or last_name(call.func) != REDUCE:  # the first is what it has so far
                yield call.args[1], module
            continue
        if 0 <= place < len(call.args) - 1:
            yield call.args[1 + place], module


def named(function: ast.expr, study: Study, module: Module) -> tuple[str, bool]:
    """The name of what is called for each element, if it is torch's, or of the attribute that is
    taken, and whether it is one: ``norm`` of ``torch.norm``, ``torch.Tensor.norm``,
    ``partial(torch.norm, p=2)`` and ``methodcaller("norm")``, ``grad`` of ``attrgetter("grad")``.
    """
    match function:
        case ast.Call(func=maker, args=[ast.Constant(value=str(name)), *_]):
            made = study.external(maker, module)
            if METHOD in made:
                return name, False
            return (name, True) if ATTRIBUTE in made else ("", False)
        case ast.Call(func=maker, args=[inner, *_]) if PARTIAL in study.external(maker, module):
            return named(inner, study, module)
    names = {n.rpartition(".")[2] for n in study.external(function, module) if _is_torchs(n)}
    return (names.pop(), False) if len(names) == 1 else ("", False)


def _is_torchs(name: str) -> bool:
    return name.startswith("torch.")


def named_body(function: ast.expr, study: Study, module: Module) -> ast.expr | None:
    """What a function of such a name asks of each element, written out: ``element.numel()`` of
    ``torch.numel``, ``element.grad.shape`` of ``attrgetter("grad.shape")``."""
    name, is_attribute = named(function, study, module)
    asked: ast.expr = ast.Name(ELEMENT, ast.Load())
    for part in name.split("."):
        asked = ast.Attribute(asked, part, ast.Load())
    return (asked if is_attribute else ast.Call(asked, [], [])) if name else None


def renamed(study: Study, module: Module) -> dict[str, str]:
    """What a file calls functions of torch's: ``size`` of ``size = torch.linalg.vector_norm``."""
    known = study.cache(_renamed)
    if module not in known:
        known[module] = dict(_find_renamed(module))
    return known[module]


def _renamed(study: Study) -> dict[Module, dict[str, str]]:
    """The files of which that was asked."""
    return {}


def _find_renamed(module: Module) -> Iterator[tuple[str, str]]:
    for binding in module.table.imports:
        of = binding.qualified.rpartition(".")[2]
        if _is_torchs(binding.qualified) and of != binding.name:
            yield binding.name, of
    for name in module.table.names:
        match module.table.parents[name]:
            case ast.Assign(targets=[target], value=ast.Attribute(attr=of)) if target is name:
                yield name.id, of
