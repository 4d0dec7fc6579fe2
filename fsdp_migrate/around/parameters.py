"""Code that handles the parameters of a sharded model one by one.

FSDP1 shows flat pieces of parameters (or one flat parameter a unit), FSDP2 ``DTensor`` parameters
of the whole shape. What reads shapes decides otherwise then, and assigning to ``.data`` of a
``DTensor`` does nothing, without an error. After an evaluation the root's parameters are plain
tensors: what is written to them is lost.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator, Sequence

from fsdp_migrate.around import ordering
from fsdp_migrate.construct.sharding import Constructor
from fsdp_migrate.sites import Site
from fsdp_migrate.study import Study
from fsdp_migrate.trace.flow import access_path
from fsdp_migrate.trace.project import Module

SHAPE = "parameter shape"
COUNT = "parameter count"
STATISTIC = "parameter statistic"
MEMORY = "parameter memory"
ADDRESS = "parameter address"
NAME = "parameter name"
DATA = "parameter data"
UPDATE = "parameter update"
CLIP_LIST = "torch.nn.utils.clip_grad_norm_(list)"
CLIP = "torch.nn.utils.clip_grad_norm_(parameters)"
METHODS = frozenset({"parameters", "named_parameters"})
SHAPES = frozenset({"ndim", "shape", "dim", "size"})
# What DTensor gives for the whole parameter, by communication; of other numbers, such as norm() and
# sum(), each rank has its own, as in FSDP1.
OF_WHOLE = frozenset({"std", "var", "median", "nanmedian", "quantile", "argmax", "argmin"})
STORAGES = frozenset({"untyped_storage", "storage"})
TORCH_CLIP = frozenset(
    {"torch.nn.utils.clip_grad_norm_", "torch.nn.utils.clip_grad.clip_grad_norm_"}
)
# What a loop may put around ``model.parameters()``.
AROUND = frozenset({"zip", "enumerate", "list", "tuple", "sorted", "reversed", "filter"})
# Methods that end like in-place operations, and write nothing.
NO_WRITES = frozenset({"requires_grad_", "retain_grad_", "share_memory_"})
STALE = (  # what to review of writing to a model that no backward goes through
    "after an evaluation of this model, FSDP1 lost what was written to its root's parameters, for "
    "no backward had freed them; now the next evaluation sees it"
)
WHOLE = frozenset({"summon_full_params", "full_params"})


def find(study: Study, module: Module) -> Iterator[Site]:
    """Sites for loops over parameters, assignments to ``.data``, and torch's own clipping."""
    found: set[ast.AST] = set()
    for call in module.table.calls:
        method = call.func
        if not isinstance(method, ast.Attribute) or method.attr not in METHODS:
            continue
        if not study.traced(method.value, module) or _is_gathered(call, module):
            continue
        outer = module.table.parents[call]
        if isinstance(outer, ast.Call) and outer.args[:1] == [call]:
            names = study.external(outer.func, module)
            if names & TORCH_CLIP:
                yield Site(CLIP, module, outer, outer, method.value)
        for clip in _listed_for_clipping(call, study, module):
            if clip not in found:
                found.add(clip)
                yield Site(CLIP_LIST, module, clip, clip, method.value)
        for node, construct in _in_loop(call, module):
            if construct == NAME and not _is_flat(method.value, module, study):
                continue
            if node not in found:
                found.add(node)
                yield Site(construct, module, node, node, method.value)
    stored = (a.attr for a in module.table.attributes if isinstance(a.ctx, ast.Store))
    assigned = _data_assignments(module.source.tree) if "data" in stored else ()
    for statement, target in assigned:
        owner = target.value
        while isinstance(owner, (ast.Attribute, ast.Subscript)) and statement not in found:
            owner = owner.value
            if study.traced(owner, module) and not _is_gathered(statement, module):
                found.add(statement)
                yield Site(DATA, module, statement, statement, owner)


def _is_flat(model: ast.expr, module: Module, study: Study) -> bool:
    """Whether FSDP1 may have shown one flat parameter a unit, without ``use_orig_params=True``."""
    for constructor in study.models(model, module).constructors:
        given = constructor.arguments.get("use_orig_params")
        if given is None and not constructor.is_open:
            return True
        if given is not None and not (isinstance(given, ast.Constant) and given.value is True):
            return True
    return False


def _listed_for_clipping(call: ast.Call, study: Study, module: Module) -> Iterator[ast.Call]:
    """torch's own clipping of a list made from ``model.parameters()``, in place or by name."""
    table = module.table
    child: ast.AST = call
    for parent in table.ancestors(call):
        if isinstance(parent, (ast.ListComp, ast.GeneratorExp, ast.comprehension)):
            child = parent
            continue
        if isinstance(parent, ast.Call) and getattr(parent.func, "id", "") in AROUND:
            child = parent
            continue
        if child is call:
            return  # the parameters themselves
        if isinstance(parent, ast.Call):
            yield from _clips(child, parent, study, module)
        elif isinstance(parent, ast.Assign) and parent.value is child:
            target = parent.targets[0]
            if not isinstance(target, ast.Name):
                return
            for name in table.names:
                user = table.parents[name]
                same = name.id == target.id and table.within[name] is table.within[target]
                if same and isinstance(user, ast.Call):
                    yield from _clips(name, user, study, module)
        return


def _clips(given: ast.AST, call: ast.Call, study: Study, module: Module) -> Iterator[ast.Call]:
    if call.args[:1] == [given] and study.external(call.func, module) & TORCH_CLIP:
        yield call


def _is_gathered(node: ast.AST, module: Module) -> bool:
    """Whether parameters are whole there in both versions."""
    for parent in module.table.ancestors(node):
        for item in parent.items if isinstance(parent, (ast.With, ast.AsyncWith)) else ():
            call = item.context_expr
            name = call.func if isinstance(call, ast.Call) else call
            last = name.attr if isinstance(name, ast.Attribute) else getattr(name, "id", "")
            if last in WHOLE:
                return True
    return False


def _in_loop(call: ast.Call, module: Module) -> Iterator[tuple[ast.expr | ast.stmt, str]]:
    """What the loop over a call does with its variables."""
    child: ast.AST = call
    for parent in module.table.ancestors(call):
        if isinstance(parent, (ast.For, ast.AsyncFor)) and parent.iter is child:
            yield from _uses(parent, _names(parent.target), parent.body)
            if _writes(_names(parent.target), parent.body):
                yield parent.iter, UPDATE
            return
        if isinstance(parent, ast.comprehension) and parent.iter is child:
            whole = module.table.parents[parent]
            assert isinstance(whole, (ast.ListComp, ast.SetComp, ast.GeneratorExp, ast.DictComp))
            yield from _uses(whole, _names(parent.target), [whole])
            return
        if not isinstance(parent, ast.Call) or getattr(parent.func, "id", "") not in AROUND:
            return
        child = parent


def _target(whole: ast.expr | ast.stmt) -> ast.expr | None:
    """The variables of a comprehension."""
    generators = getattr(whole, "generators", None)
    return generators[0].target if generators else None


def _names(target: ast.expr) -> set[str]:
    return {node.id for node in ast.walk(target) if isinstance(node, ast.Name)}


def _uses(
    loop: ast.expr | ast.stmt, names: set[str], region: Sequence[ast.AST]
) -> Iterator[tuple[ast.expr | ast.stmt, str]]:
    looked = counted = named = addressed = measured = stored = False
    target = loop.target if isinstance(loop, (ast.For, ast.AsyncFor)) else _target(loop)
    first = ""  # the name of ``for name, parameter in model.named_parameters()``
    if isinstance(target, ast.Tuple) and isinstance(target.elts[0], ast.Name):
        first = target.elts[0].id
    for part in region:
        for node in ast.walk(part):
            if isinstance(node, ast.Attribute) and node.attr in SHAPES:
                looked |= isinstance(node.value, ast.Name) and node.value.id in names
            if isinstance(node, ast.Attribute) and node.attr in {"numel", "nelement"}:
                counted |= isinstance(node.value, ast.Name) and node.value.id in names
            if isinstance(node, ast.Attribute) and node.attr == "data_ptr":
                addressed |= _variable(node.value) in names
            if isinstance(node, ast.Attribute) and node.attr in OF_WHOLE:
                measured |= _asked(node.value) in names
            if isinstance(node, ast.Attribute) and node.attr in STORAGES:
                stored |= _variable(node.value) in names
            for test in _tests(node):
                named |= any(isinstance(n, ast.Name) and n.id == first for n in ast.walk(test))
        for statement, target in _data_assignments(part):
            if isinstance(target.value, ast.Name) and target.value.id in names:
                yield statement, DATA
    if addressed:
        yield loop, ADDRESS
    elif measured:
        yield loop, STATISTIC
    elif stored:
        yield loop, MEMORY
    elif looked:
        yield loop, SHAPE
    elif named:
        yield loop, NAME
    elif counted:
        yield loop, COUNT


def _tests(node: ast.AST) -> list[ast.expr]:
    """The conditions of an ``if``, wherever it stands."""
    if isinstance(node, (ast.If, ast.IfExp)):
        return [node.test]
    return node.ifs if isinstance(node, ast.comprehension) else []


def _writes(names: set[str], region: Sequence[ast.AST]) -> bool:
    """Whether something changes the loop's parameters in place."""
    for part in region:
        for node in ast.walk(part):
            method = node.func if isinstance(node, ast.Call) else None
            if not isinstance(method, ast.Attribute) or method.attr in NO_WRITES:
                continue
            if method.attr.endswith("_") and _variable(method.value) in names:
                return True
        if any(_variable(target) in names for _, target in _data_assignments(part)):
            return True
    return False


def _variable(node: ast.expr) -> str:
    """``p`` of ``p``, ``p.data``, and ``p.mul_(2)``."""
    while not isinstance(node, ast.Name):
        method = node.func if isinstance(node, ast.Call) else None
        if isinstance(method, ast.Attribute) and method.attr.endswith("_"):
            node = method.value
        elif isinstance(node, ast.Attribute) and node.attr == "data":
            node = node.value
        else:
            return ""
    return node.id


def _asked(node: ast.expr) -> str:
    """``p`` of ``p``, ``p.grad``, and ``p.detach().float()``."""
    while not isinstance(node, ast.Name):
        inner = node.func if isinstance(node, ast.Call) else node
        if not isinstance(inner, ast.Attribute):
            return ""
        node = inner.value
    return node.id


def updated(iterated: ast.expr, study: Study, module: Module) -> dict[str, ast.expr]:
    """The models whose parameters a loop goes over, by how they are written there."""
    found: dict[str, ast.expr] = {}
    for node in ast.walk(iterated):
        method = node.func if isinstance(node, ast.Call) else None
        if isinstance(method, ast.Attribute) and method.attr in METHODS:
            path = access_path(method.value)
            if path is not None and study.traced(method.value, module):
                found.setdefault(path, method.value)
    return found


def written(iterated: ast.expr, module: Module) -> list[ast.expr]:
    """The models whose parameters a loop changes in place: ``e`` of ``for e, p in zip(...)``."""
    loop = module.table.parents[iterated]
    assert isinstance(loop, (ast.For, ast.AsyncFor))
    parts: list[tuple[ast.expr, ast.expr]] = [(loop.target, iterated)]
    match iterated, loop.target:
        case (
            ast.Call(func=ast.Name(id="zip"), args=given),
            ast.Tuple(elts=targets) | ast.List(elts=targets),
        ) if len(given) == len(targets):
            parts = list(zip(targets, given, strict=True))
    found = []
    for target, source in parts:
        if not _writes(_names(target), loop.body):
            continue
        for node in ast.walk(source):
            method = node.func if isinstance(node, ast.Call) else None
            if isinstance(method, ast.Attribute) and method.attr in METHODS:
                found.append(method.value)
    return found


def trained(study: Study) -> frozenset[Constructor]:
    """The models whose parameters an optimizer gets."""
    found: set[Constructor] = set()
    for module in study.project.modules:
        for call in ordering.given_parameters(module):
            if any(ordering.is_optimizer(v, study) for v in study.values(call.func, module)):
                for given in ordering.parameter_calls(call):
                    assert isinstance(given.func, ast.Attribute)
                    found |= study.models(given.func.value, module).constructors
    return frozenset(found)


def _data_assignments(tree: ast.AST) -> Iterator[tuple[ast.Assign, ast.Attribute]]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Assign) and len(node.targets) == 1:
            target = node.targets[0]
            if isinstance(target, ast.Attribute) and target.attr == "data":
                yield node, target
