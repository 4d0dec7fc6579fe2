"""States that ``torch.distributed.checkpoint`` loads into, and that nothing gives back.

The tensors in a state of an FSDP1 model were copies: ``dcp.load(state)`` without a
``set_model_state_dict(model, state)`` after it changed nothing. Those in a sharded state of an
FSDP2 model are its parameters, which are loaded then.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass, field

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
Entries = list[tuple[object, ast.expr]]  # with the keys that are written out, or None
GIVES = frozenset({"get_state_dict", "get_model_state_dict", "get_optimizer_state_dict"})
STATICS = frozenset({"optim_state_dict", "sharded_optim_state_dict"})


def find_states_loaded(study: Study, module: Module) -> Iterator[Site]:
    """Sites for states of sharded models that are loaded, and asked for nothing else."""
    for call in module.table.calls_by_name.of(LOADS if study.constructors else ()):
        state = first_argument(call, "state_dict")
        if state is None or not is_load(call, study, module):
            continue
        for _, each in _parts(state):
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


def _parts(state: ast.expr) -> Entries:
    """The states in a dictionary that is written out, by their keys, or the one that is no
    dictionary of some."""
    match state:
        case ast.Dict():
            return [(_key(k), v) for k, v in zip(state.keys, state.values, strict=True)]
        case ast.Call(func=ast.Name(id="dict"), args=[]):
            return [(k.arg, k.value) for k in state.keywords]
    return [(None, state)]


def _key(key: ast.expr | None) -> object:
    return key.value if isinstance(key, ast.Constant) else None


def _askings(
    state: ast.expr, load: ast.Call, study: Study, module: Module
) -> Iterator[tuple[ast.Call, ast.expr]]:
    """The calls that ask sharded models for a state, with the models, where it is loaded and
    nothing else becomes of it."""
    parts = _parts(state)
    if isinstance(state, ast.Name):
        made = _made_of(state, module, state.id)
        uses = _uses(state, load, study, module)
        if made is None or uses is None:
            return
        parts = made
        if uses.read and len(made) == 1 and made[0][0] is None:
            return
        for name in uses.stored:
            _store(name, parts, load, module)
        parts = [(key, value) for key, value in parts if key is None or key not in uses.read]
    for _, call in parts:
        model = _asked_of(call, study, module) if isinstance(call, ast.Call) else None
        if isinstance(call, ast.Call) and model is not None:
            yield call, model


def _made_of(node: ast.expr, module: Module, name: str) -> Entries | None:
    """The states in what an expression makes, where that is a dictionary that others of the same
    ``name`` are joined to: ``state |= more``, ``state = {**state, "epoch": 0}``; None of what is
    not known."""
    match node:
        case ast.Name():
            reaching = definitions(node, module)
            only = next(iter(reaching)) if len(reaching) == 1 and node.id == name else None
            match only.node if only is not None else None:
                case ast.AugAssign(target=ast.Name() as target, op=ast.BitOr(), value=value):
                    before = _made_of(target, module, name)
                    return None if before is None else [*before, *_parts(value)]
            given = only.value if only is not None else None
            return None if given is None else _made_of(given, module, name)
        case ast.BinOp(left=left, op=ast.BitOr(), right=right):
            sides = [_joined(side, module, name) for side in (left, right)]
            return [entry for side in sides for entry in side]
        case ast.Dict():
            result: Entries = []
            for key, value in zip(node.keys, node.values, strict=True):
                result += _joined(value, module, name) if key is None else [(_key(key), value)]
            return result
    return _parts(node)


def _joined(node: ast.expr, module: Module, name: str) -> Entries:
    """What one dictionary brings to another."""
    if isinstance(node, ast.Name) and node.id != name:
        return [(None, node)]
    return _made_of(node, module, name) or [(None, node)]


@dataclass
class _Uses:
    """What becomes of a state besides its being loaded."""

    stored: list[ast.Name] = field(default_factory=list)  # where entries are put into it
    read: set[object] = field(default_factory=set)  # the keys of those that are read


def _uses(state: ast.Name, load: ast.Call, study: Study, module: Module) -> _Uses | None:
    """The uses of the state that is loaded by a name; None where it is read as a whole anywhere
    else but by such functions. A name that was given another value by then is another state."""
    function = enclosing_function(module, load)
    scope = module.table.scope_of(state).lookup(state.id)
    if scope is None or not scope.is_function:
        return None  # a global, or a class's
    made = {definition.node for definition in definitions(state, module)}
    for node in (node for node in [*made] if isinstance(node, ast.AugAssign)):
        made |= {definition.node for definition in definitions(node.target, module)}
    uses = _Uses()
    for name in module.table.reads(state.id, scope):
        if enclosing_function(module, name) is not function:
            return None
        known = {definition.node for definition in definitions(name, module)}
        if known and made.isdisjoint(known):
            continue
        around = [node for node in module.table.ancestors(name) if isinstance(node, ast.Call)]
        outer = module.table.parents[around[0]] if around else None
        match module.table.parents[name]:
            case ast.Subscript(ctx=ast.Store() | ast.Del(), value=value) if value is name:
                uses.stored.append(name)
            case ast.Attribute(attr="update") if isinstance(outer, ast.Expr):
                uses.stored.append(name)
            case ast.Attribute(attr="get" | "pop" | "setdefault") if key := _asked_key(around):
                uses.read.add(key.value)
            case ast.Compare(ops=[ast.In() | ast.NotIn()], left=left) if left is not name:
                pass
            case ast.BinOp(op=ast.BitOr()) | ast.Dict() if _is_joined(name, module):
                pass
            case ast.Subscript(value=value, slice=ast.Constant(value=key)) if value is name:
                uses.read.add(key)
            case _ if not any(_is_dcps(call.func, study, module) for call in around):
                return None
    return uses


def _asked_key(around: list[ast.Call]) -> ast.Constant | None:
    """``"epoch"`` of ``state.get("epoch")``, if it is written out."""
    match around:
        case [ast.Call(args=[ast.Constant() as key, *_]), *_]:
            return key
    return None


def _is_joined(name: ast.Name, module: Module) -> bool:
    """Whether a dictionary goes into the next one of its name: ``state = state | more``."""
    match module.table.statement(name):
        case ast.Assign(targets=[ast.Name(id=target)], value=value):
            return target == name.id and module.table.parents[name] is value
    return False


def _store(name: ast.Name, parts: Entries, load: ast.Call, module: Module) -> None:
    """Change the entries of a state as a statement does that stands in front of the load."""
    if (name.lineno, name.col_offset) > (load.lineno, load.col_offset):
        return
    statement = module.table.statement(name)
    match statement:
        case ast.Assign(value=value, targets=[ast.Subscript(slice=key)]):
            stored: Entries = [(_key(key), value)]
        case ast.Expr(value=ast.Call(args=given, keywords=keywords)):
            stored = [entry for each in given for entry in _parts(each)]
            stored += [(k.arg, k.value) for k in keywords]
        case ast.Delete(targets=[ast.Subscript(slice=key)]):
            stored = [(_key(key), key)]
        case _:
            return
    keys = {key for key, _ in stored} - {None}
    if module.table.parents[statement] in module.table.ancestors(load):
        parts[:] = [(key, value) for key, value in parts if key not in keys]
    parts += stored


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
