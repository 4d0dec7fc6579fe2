"""What becomes of a state that is loaded."""

from __future__ import annotations

import ast
import re

from fsdp_migrate.analysis.module import Module
from fsdp_migrate.families.wrapping import offloading
from fsdp_migrate.fsdp1.references import enclosing_function
from fsdp_migrate.planning.context import Study
from fsdp_migrate.planning.model import Constructor
from fsdp_migrate.syntax import conditions
from fsdp_migrate.syntax.trees import FUNCTIONS, LOOPS

GROUP = "init_process_group"
OTHER_TESTS = re.compile(r"is_initialized|is_available|__name__")  # which do not choose
CALLERS = 3  # how many callers up a condition is looked for


def is_read_again(state: ast.expr, load: ast.Call, module: Module) -> bool:
    """Whether the program may read a dictionary again which ``load`` fills with shards.

    ``saved["model"]`` is not read by what takes another constant key of ``saved``.
    """
    key: object = None
    match state:
        case ast.Call() | ast.Constant() | ast.Dict() | ast.DictComp():
            return False
        case ast.Subscript(value=of, slice=ast.Constant(value=key)):
            state = of
    if not isinstance(state, ast.Name):
        return True
    table = module.table
    scope = table.within[state].lookup(state.id)
    function = enclosing_function(module, load)
    if scope is None or scope is not table.scope_of(load):
        return True
    bindings = scope.bindings[state.id]
    if not all(isinstance(b.node, (ast.Assign, ast.AnnAssign)) for b in bindings):
        return True  # a caller's, or an import
    for loop in (n for n in table.ancestors(load) if isinstance(n, LOOPS)):
        if not any(loop in table.ancestors(b.node) for b in bindings):
            return True
    sources = [b.value for b in bindings if b.value is not None and not _is_part(b.value, state.id)]
    if any(is_read_again(each, load, module) for each in sources):
        return True
    return any(
        name.lineno > load.lineno and not _is_of_another_key(name, key, module)
        for name in table.names
        if name.id == state.id
        and isinstance(name.ctx, ast.Load)
        and enclosing_function(module, name) is function
        and not _is_in_another_branch(name, load, module)
    )


def _is_in_another_branch(node: ast.AST, than: ast.AST, module: Module) -> bool:
    """Whether one ``if`` has the two on its two sides."""
    function = enclosing_function(module, than)
    held = dict(conditions.around(than, module.table, function))
    others = conditions.around(node, module.table, function)
    return any(held.get(test, holds) is not holds for test, holds in others)


def _is_of_another_key(name: ast.Name, key: object, module: Module) -> bool:
    parent = module.table.parents[name]
    if key is None or not isinstance(parent, ast.Subscript):
        return False
    return isinstance(parent.slice, ast.Constant) and parent.slice.value != key


def _is_part(value: ast.expr, name: str) -> bool:
    """``saved = saved["model"]``."""
    return any(isinstance(node, ast.Name) and node.id == name for node in ast.walk(value))


def may_have_no_group(
    load: ast.Call, module: Module, models: frozenset[Constructor], study: Study
) -> bool:
    """Whether a program may load without a process group, into a model that is not wrapped then:
    ``if distributed: dist.init_process_group(...); model = FSDP(model)``."""
    started = study.cache(_groups)
    if not started or not all(_conditions(*each, study) for each in started):
        return False
    here = _conditions(load, module, study)
    wrapped = [_conditions(each.node, each.module, study) for each in models]
    return any(around and here.isdisjoint(around) for around in wrapped)


def _groups(study: Study) -> list[tuple[ast.AST, Module]]:
    """The calls that make the process group of all ranks."""
    return [
        (call, module)
        for module in study.project.modules
        for call in module.table.calls_by_name.of({GROUP})
    ]


def _conditions(
    node: ast.AST, module: Module, study: Study, depth: int = CALLERS
) -> frozenset[str]:
    """The conditions under which code runs, in its function and wherever that is called."""
    found: set[str] = set()
    child = node
    for parent in module.table.ancestors(node):
        if isinstance(parent, (ast.If, ast.IfExp)) and child is not parent.test:
            found.add(ast.unparse(parent.test))
        if isinstance(parent, FUNCTIONS):
            callers = study.tracer.callers(parent, module) if depth else []
            above = [_conditions(c.call, c.module, study, depth - 1) for c in callers]
            found |= frozenset.intersection(*above) if above else frozenset()
            break
        child = parent
    return frozenset(test for test in found if not OTHER_TESTS.search(test))


def needs_support(
    load: ast.AST, module: Module, models: frozenset[Constructor], study: Study
) -> bool:
    """Whether ``set_model_state_dict`` would not do: it wants all tensors on one device, and
    does not know names that ``torch.compile`` gave."""
    is_used = not isinstance(module.table.parents[load], ast.Expr)
    apart = any(offloading.may_offload(m, study) for m in models) or study.may_ignore(models)
    return is_used or apart or study.project.mentions("torch.compile")
