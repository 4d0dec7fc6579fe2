"""What ``torch.distributed.checkpoint`` reads into a state, and nothing loads.

FSDP1's states were copies: nothing came of such a read. FSDP2's hold the parameters and the
optimizer's tensors themselves, so that these are loaded by it, and nothing else is.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator

from fsdp_migrate.analysis.module import Module
from fsdp_migrate.fsdp1.construct import Construct
from fsdp_migrate.fsdp1.references import enclosing_function
from fsdp_migrate.fsdp1.site import Site
from fsdp_migrate.planning.context import Study
from fsdp_migrate.planning.shard_plan import DCP
from fsdp_migrate.syntax.expressions import given_arguments
from fsdp_migrate.syntax.trees import walk

READ = Construct.parse("state that is read and not loaded")
LOADING = "torch.distributed.checkpoint"
READERS = frozenset(
    f"{LOADING}{part}.{name}"
    for part in ("", ".state_dict_loader")
    for name in ("load", "load_state_dict")
)
GETTERS = frozenset(
    f"{DCP}.{name}"
    for name in ("get_state_dict", "get_model_state_dict", "get_optimizer_state_dict")
)
STATICS = frozenset({"optim_state_dict", "sharded_optim_state_dict"})


def find_unloaded_reads(study: Study, module: Module) -> Iterator[Site]:
    """A site for every state of a sharded model that DCP reads and that nothing uses after that."""
    if not study.constructors or not module.mentions("checkpoint"):
        return
    for call in module.table.calls_by_name.of({"load", "load_state_dict"}):
        if not study.external(call.func, module) & READERS or not call.args:
            continue
        names, values = _held(call.args[0], call, module)
        models = [m for value in values for m in _models(value, module, study)]
        if models and not any(_is_used_after(name, call, module, study) for name in names):
            yield Site(READ, module, call, call, models[0])


def _held(state: ast.expr, call: ast.Call, module: Module) -> tuple[list[ast.Name], list[ast.expr]]:
    """The names in what is read into, and what they, and so on, were given above the call."""
    names: list[ast.Name] = []
    values = [state]
    for value in values:
        for node in _parts(value):
            if not isinstance(node, ast.Name) or any(node.id == each.id for each in names):
                continue
            scope = module.table.scope_of(node)
            if scope.lookup(node.id) is not scope:
                continue
            given = [
                b.node.value
                for b in scope.bindings.get(node.id, ())
                if isinstance(b.node, ast.Assign) and b.node.lineno < call.lineno
            ]
            if given:
                names.append(node)
                values += given
    return names, values


def _parts(value: ast.expr) -> Iterator[ast.expr]:
    """What a value is put together of; not what its calls are given."""
    yield value
    if not isinstance(value, ast.Call):
        for child in ast.iter_child_nodes(value):
            if isinstance(child, ast.expr):
                yield from _parts(child)


def _models(value: ast.expr, module: Module, study: Study) -> Iterator[ast.expr]:
    """The sharded models whose states a value holds, or their optimizers'."""
    for node in walk(value):
        if not isinstance(node, ast.Call):
            continue
        method = node.func
        named = method.attr if isinstance(method, ast.Attribute) else ""
        model: ast.expr | None = None
        if study.external(method, module) & GETTERS or named in STATICS:
            model = next(iter(given_arguments(node)), None)
        elif isinstance(method, ast.Attribute) and named == "state_dict":
            model = method.value
        if model is not None and study.traced(model, module):
            yield model


def _is_used_after(name: ast.Name, call: ast.Call, module: Module, study: Study) -> bool:
    """Whether what was read may be loaded: by any later use, or where it is handed on. A name that
    is given another value before is another thing."""
    function = enclosing_function(module, call)
    end = call.end_lineno or call.lineno
    given = {definition.node for definition in study.defined_by(name, module)}
    uses = module.table.reads(name.id, module.table.scope_of(name))
    for use in uses:
        if enclosing_function(module, use) is not function:
            return True
        later = use.lineno > end
        if later and not given.isdisjoint(d.node for d in study.defined_by(use, module)):
            return True
    return False
