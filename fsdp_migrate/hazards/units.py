"""Units of FSDP2 that are entered twice, or are one for a whole model."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from typing import NamedTuple

from fsdp_migrate.analysis.flow import access_path
from fsdp_migrate.analysis.module import Module
from fsdp_migrate.analysis.values import Class, Made
from fsdp_migrate.families.wrapping import fully_sharded
from fsdp_migrate.fsdp1.references import enclosing_function
from fsdp_migrate.planning.context import Study
from fsdp_migrate.syntax.expressions import bind_arguments
from fsdp_migrate.syntax.trees import FUNCTIONS, LOOPS, position, walk

REGISTER = "register_fsdp_forward_method"
FSDP = "torch.distributed."
FORWARD = "forward"
LOOPING = (*LOOPS, ast.ListComp, ast.SetComp, ast.GeneratorExp, ast.DictComp, ast.Lambda)
Functions = dict[str, ast.FunctionDef]


class Inner(NamedTuple):
    """A registered method that ``forward`` of its own class calls."""

    call: ast.Call
    method: str
    cls: str
    where: str  # file and line of the ``forward``
    is_sure: bool  # ``forward`` goes on with the unit's own parameters, and fails


def find_inner(study: Study, module: Module) -> Iterator[Inner]:
    """Calls of ``register_fsdp_forward_method`` with a method that the class's own ``forward``
    comes to: of what is known to be an instance, or of all classes that have such a method."""
    for call in module.table.calls_by_name.named(REGISTER):
        names = study.external(call.func, module)
        given = bind_arguments(call, ("module", "method_name"))
        if given is None or len(given) != 2 or not names:
            continue
        said = study.literal(given["method_name"], module)
        if said is None or not isinstance(said.value, str) or said.value == FORWARD:
            continue
        if not all(name.startswith(FSDP) for name in names):
            continue
        classes = _classes(given["module"], said.value, study, module)
        reached = [_reached(node, said.value) for node, _ in classes]
        if classes and all(reached):
            node, where = classes[0]
            functions = _functions(node)
            place = f"{where.display}:{where.position(functions[FORWARD])[0]}"
            sure = all(_goes_on(each, said.value) for each, _ in classes)
            yield Inner(call, said.value, node.name, place, sure)


def _classes(
    subject: ast.expr, method: str, study: Study, module: Module
) -> list[tuple[ast.ClassDef, Module]]:
    """The classes of which a module may be an instance, that define a method."""
    values = study.values(subject, module)
    known = [v.callee for v in values if isinstance(v, Made) and isinstance(v.callee, Class)]
    if known and len(known) == len(values):
        return [(c.node, c.module) for c in known if method in _functions(c.node)]
    return [
        (node, other)
        for other in study.project.modules
        for node in walk(other.source.tree)
        if isinstance(node, ast.ClassDef) and method in _functions(node)
    ]


def _functions(node: ast.ClassDef) -> Functions:
    return {f.name: f for f in node.body if isinstance(f, ast.FunctionDef)}


def _reached(node: ast.ClassDef, method: str) -> bool:
    """Whether ``forward`` calls a method of the same object, or others of it that do."""
    functions = _functions(node)
    waiting, seen = [FORWARD], set[str]()
    for name in waiting:
        if name == method:
            return True
        if name in functions and name not in seen:
            seen.add(name)
            waiting += _called(functions[name])
    return False


def _called(function: ast.FunctionDef) -> list[str]:
    paths = [access_path(n.func) for n in walk(function) if isinstance(n, ast.Call)]
    return [path[5:] for path in paths if path is not None and path.startswith("self.")]


def _goes_on(node: ast.ClassDef, method: str) -> bool:
    """Whether ``forward`` calls a method itself and goes on with a module of its own, around it or
    below."""
    functions = _functions(node)
    forward = functions[FORWARD]
    own = {name for name in _called(forward) if name not in functions}
    calls = [n for n in walk(forward) if isinstance(n, ast.Call)]
    inner = [c for c in calls if access_path(c.func) == f"self.{method}"]
    outer = [c for c in calls if (access_path(c.func) or "")[5:] in own]
    return any(
        any(i in walk(o) for i in inner) or all(position(o) > position(i) for i in inner)
        for o in outer
        if inner
    )


def find_alone(study: Study, module: Module) -> Iterator[ast.Call]:
    """The only call of ``fully_shard`` in a project, of a variable, where no loop leads to it."""
    calls = fully_sharded.shardings(study)
    if len(calls) != 1 or calls[0].module is not module:
        return
    call = calls[0].call
    if isinstance(calls[0].subject, ast.Name) and not _is_repeated(call, module, study):
        yield call


def _is_repeated(call: ast.Call, module: Module, study: Study) -> bool:
    """Whether a loop may lead to a call, in its function or in one that calls that."""
    around = list(module.table.ancestors(call))
    if any(isinstance(each, LOOPING) for each in around):
        return True
    function = enclosing_function(module, call)
    callers = study.tracer.callers(function, module) if isinstance(function, FUNCTIONS) else []
    return any(
        isinstance(each, LOOPING)
        for caller in callers
        for each in caller.module.table.ancestors(caller.call)
    )
