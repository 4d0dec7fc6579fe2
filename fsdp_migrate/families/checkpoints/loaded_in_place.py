"""States that ``torch.distributed.checkpoint`` loads into, and that nothing gives back.

The tensors in a state of an FSDP1 model were copies: ``dcp.load(state)`` without a
``set_model_state_dict(model, state)`` after it changed nothing. Those in a sharded state of an
FSDP2 model are its parameters, which are loaded then.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator

from fsdp_migrate.analysis.module import Module
from fsdp_migrate.analysis.values import Constant, Made
from fsdp_migrate.families.checkpoints.sharded_files import DCP, NO_FILES
from fsdp_migrate.fsdp1 import api as fsdp1
from fsdp_migrate.fsdp1.construct import Construct
from fsdp_migrate.fsdp1.model_values import definitions
from fsdp_migrate.fsdp1.references import enclosing_function
from fsdp_migrate.fsdp1.site import Site
from fsdp_migrate.planning.context import Study
from fsdp_migrate.syntax.expressions import first_argument
from fsdp_migrate.syntax.kinds import of_kind

CONSTRUCT = Construct.parse("state that is loaded and not given back")
LOADS = frozenset({"load", "load_state_dict"})
GIVES = frozenset({"get_state_dict", "get_model_state_dict", "get_optimizer_state_dict"})
STATICS = frozenset({"optim_state_dict", "sharded_optim_state_dict"})


def find_states_loaded(study: Study, module: Module) -> Iterator[Site]:
    """Sites for states of sharded models that are loaded, and asked for nothing else."""
    for call in module.table.calls_by_name.of(LOADS if study.constructors else ()):
        state = first_argument(call, "state_dict")
        if state is None or not is_load(call, study, module):
            continue
        for each in _parts(state):
            for asking, model in _askings(each, call, study, module):
                yield Site(CONSTRUCT, module, call, asking, model)


def is_load(call: ast.Call, study: Study, module: Module) -> bool:
    """Whether a call reads a checkpoint into a state."""
    names = study.external(call.func, module)
    return any(
        name.startswith(DCP) and not name.startswith(NO_FILES) and name.rpartition(".")[2] in LOADS
        for name in names
    )


def goes_by_setting(site: Site) -> bool:
    """Whether the setting that the model is in says what kind of state is asked for, and no options
    of the call."""
    asking = of_kind(site.reference, ast.Call)
    return isinstance(asking.func, ast.Attribute) and asking.func.attr in {"state_dict", *STATICS}


def _is_dcps(function: ast.expr, study: Study, module: Module) -> bool:
    names = study.external(function, module)
    return any(name.startswith(DCP) and not name.startswith(NO_FILES) for name in names)


def _parts(state: ast.expr) -> list[ast.expr]:
    """The states in a dictionary that is written out, or the one that is no dictionary of some."""
    return state.values if isinstance(state, ast.Dict) else [state]


def _askings(
    state: ast.expr, load: ast.Call, study: Study, module: Module
) -> Iterator[tuple[ast.Call, ast.expr]]:
    """The calls that ask sharded models for a state, with the models, where it is loaded and
    nothing else becomes of it."""
    made: ast.expr | None = state
    if isinstance(state, ast.Name):
        reaching = definitions(state, module)
        if len(reaching) != 1 or _is_used(state, load, study, module):
            return
        made = next(iter(reaching)).value
    for call in _parts(made) if made is not None else ():
        model = _asked_of(call, study, module) if isinstance(call, ast.Call) else None
        if isinstance(call, ast.Call) and model is not None:
            yield call, model


def _is_used(state: ast.Name, load: ast.Call, study: Study, module: Module) -> bool:
    """Whether the state that is loaded by a name is read anywhere else but by such functions. A
    name that was given another value by then is another state."""
    function = enclosing_function(module, load)
    scope = module.table.scope_of(state).lookup(state.id)
    if scope is None or not scope.is_function:
        return True  # a global, or a class's
    made = {definition.node for definition in definitions(state, module)}
    for name in module.table.reads(state.id, scope):
        around = [node for node in module.table.ancestors(name) if isinstance(node, ast.Call)]
        if enclosing_function(module, name) is not function:
            return True
        is_another = made.isdisjoint(d.node for d in definitions(name, module))
        if not is_another and not any(_is_dcps(call.func, study, module) for call in around):
            return True
    return False


def _asked_of(call: ast.Call, study: Study, module: Module) -> ast.expr | None:
    """The sharded model that a call asks for a state of, unless it is surely a whole one."""
    model: ast.expr | None = None
    names = study.external(call.func, module)
    if any(name.startswith(NO_FILES) and name.rpartition(".")[2] in GIVES for name in names):
        options = next((k.value for k in call.keywords if k.arg == "options"), None)
        if options is None or not _is_whole(options, study, module):
            model = first_argument(call, "model")
    elif any(fsdp1.canonical(n) in {f"{fsdp1.FSDP}.{s}" for s in STATICS} for n in names):
        model = first_argument(call, "model")
    elif isinstance(call.func, ast.Attribute) and call.func.attr == "state_dict":
        model = call.func.value
    return model if model is not None and study.traced(model, module) else None


def _is_whole(options: ast.expr, study: Study, module: Module) -> bool:
    """Whether options say, all of them, that a state is whole."""
    values = study.values(options, module)
    for value in values:
        call = value.node if isinstance(value, Made) else None
        asked = [k for k in getattr(call, "keywords", ()) if k.arg == "full_state_dict"]
        told = [v for k in asked for v in study.values(k.value, value.module)]
        if not told or any(not isinstance(v, Constant) or v.value is not True for v in told):
            return False
    return bool(values)
