"""Code that handles the parameters of a sharded model one by one.

FSDP1 shows flat pieces of parameters (or one flat parameter a unit), FSDP2 ``DTensor`` parameters
of the whole shape. What reads shapes decides otherwise then, and assigning to ``.data`` of a
``DTensor`` does nothing, without an error. After an evaluation the root's parameters are plain
tensors: what is written to them is lost.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator, Sequence

from fsdp_migrate.analysis.flow import access_path
from fsdp_migrate.analysis.module import Module
from fsdp_migrate.analysis.values import Class, Made
from fsdp_migrate.families.training_loop import ordering, reductions
from fsdp_migrate.families.wrapping import roles, strategy
from fsdp_migrate.fsdp1.references import enclosing_function
from fsdp_migrate.fsdp1.site import Site
from fsdp_migrate.planning.context import Study
from fsdp_migrate.planning.model import Constructor
from fsdp_migrate.syntax.trees import FUNCTIONS, walk

SHAPE = "parameter shape"
COUNT = "parameter count"
STATISTIC = "parameter statistic"
MEMORY = "parameter memory"
ADDRESS = "parameter address"
NAME = "parameter name"
DATA = "parameter data"
UPDATE = "parameter update"
REDUCED = "parameter norm over ranks"
NUMBER = "parameter norm"
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


GROUPS = "param_groups"
MEMBERS = "params"
LOOPED = (ast.For, ast.AsyncFor, ast.comprehension, ast.Call)
NESTED = 4  # lists in lists of parameters


def find_parameter_uses(study: Study, module: Module) -> Iterator[Site]:
    """Sites for loops over parameters, assignments to ``.data``, and torch's own clipping."""
    found: set[ast.AST] = set()
    for site in _find(study, module):
        if site.node not in found:
            found.add(site.node)
            yield site


def _find(study: Study, module: Module) -> Iterator[Site]:
    yield from _of_models(study, module)
    yield from _of_optimizers(study, module)
    yield from _of_lists(study, module)


def _of_models(study: Study, module: Module) -> Iterator[Site]:
    found: set[ast.AST] = set()
    for call in module.table.calls_by_name.of(METHODS):
        method = call.func
        if not isinstance(method, ast.Attribute):
            continue
        if not study.traced(method.value, module) or is_gathered(call, study, module):
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
            if construct == NAME and not is_flat(method.value, module, study):
                continue
            if node not in found:
                found.add(node)
                yield Site(construct, module, node, node, method.value)
        yield from _numbers(call, method.value, study, module)
    assigned = _data_assignments(module.source.tree) if _assigns_data(module) else ()
    for statement, target in assigned:
        owner = target.value
        while isinstance(owner, (ast.Attribute, ast.Subscript)) and statement not in found:
            owner = owner.value
            if study.traced(owner, module) and not is_gathered(statement, study, module):
                found.add(statement)
                yield Site(DATA, module, statement, statement, owner)


def _of_optimizers(study: Study, module: Module) -> Iterator[Site]:
    """``for group in optimizer.param_groups: for p in group["params"]: ...``"""
    if not module.mentions(GROUPS):
        return
    table = module.table
    known: dict[str, bool] = {}
    for text in table.strings:
        group = table.parents[text]
        if text.value != MEMBERS or not isinstance(group, ast.Subscript) or group.slice is not text:
            continue
        optimizer = _optimizer(group, module)
        if optimizer is None or is_gathered(group, study, module):
            continue
        path = f"{id(enclosing_function(module, group))} {ast.unparse(optimizer)}"
        if path not in known:
            known[path] = bool(optimized(optimizer, study, module))
        if not known[path]:
            continue
        for iterated in (group, *_named(group, module)):
            for node, construct in _in_loop(iterated, module):
                if construct == UPDATE and not _may_be_replicated(optimizer, study, module):
                    # FSDP1's forward did not see before a backward what was written to the
                    # sharded parameters after an evaluation, as FSDP2's does not.
                    continue
                if construct != NAME:
                    yield Site(construct, module, node, node, optimizer)
            yield from _numbers(iterated, optimizer, study, module)


def _may_be_replicated(optimizer: ast.expr, study: Study, module: Module) -> bool:
    """Whether an optimizer's model may be; not asked in its own steps, which follow a backward."""
    if isinstance(optimizer, ast.Name) and optimizer.id == "self":
        return False
    chosen = {strategy.of(c, study) for c in optimized(optimizer, study, module)}
    return not chosen.isdisjoint({None, "NO_SHARD"})


def model_of(optimizer: ast.expr, study: Study, module: Module) -> ast.expr | None:
    """The model whose parameters an optimizer is given, where it has the same name here."""
    found: dict[str, ast.expr] = {}
    here = enclosing_function(module, optimizer)
    for value in study.values(optimizer, module):
        call = value.node
        early = (
            ordering.early_optimizer(call, module, study) if isinstance(call, ast.Call) else None
        )
        if not isinstance(call, ast.Call) or value.module is not module or early is not None:
            return None
        own = enclosing_function(module, call) is here
        for argument in ordering.arguments(call):
            for held, where in _held(argument, study, module):
                model = held.func.value if isinstance(held, ast.Call) else None  # type: ignore[attr-defined]
                path = access_path(model) if model is not None else None
                if model is None or path is None or not study.traced(model, where):
                    return None
                same = roles.class_of(model, module) == roles.class_of(optimizer, module)
                if not own and not (path.startswith("self.") and same):
                    return None
                found.setdefault(path, model)
    return next(iter(found.values())) if len(found) == 1 else None


def groups_loop(site: Site) -> ast.stmt:
    """The loop over an optimizer's groups that a site stands in, or its statement."""
    for parent in site.module.table.ancestors(site.node):
        if isinstance(parent, (ast.For, ast.AsyncFor)) and _owner(parent.iter) is site.receiver:
            return parent
    return site.statement


def _optimizer(group: ast.Subscript, module: Module) -> ast.expr | None:
    """``optimizer`` of the ``group["params"]`` of one of its groups."""
    owner = group.value
    if isinstance(owner, ast.Subscript):  # optimizer.param_groups[0]["params"]
        listed = owner.value
        return _owner(listed)
    if not isinstance(owner, ast.Name):
        return None
    for parent in module.table.ancestors(group):
        generators: list[ast.For | ast.AsyncFor | ast.comprehension] = []
        if isinstance(parent, (ast.For, ast.AsyncFor)):
            generators = [parent]
        elif isinstance(parent, (ast.ListComp, ast.SetComp, ast.GeneratorExp, ast.DictComp)):
            generators = list(parent.generators)
        for each in generators:
            if owner.id in _names(each.target):
                return next(filter(None, map(_owner, walk(each.iter))), None)
    return None


def _owner(node: ast.AST) -> ast.expr | None:
    return node.value if isinstance(node, ast.Attribute) and node.attr == GROUPS else None


def _named(iterated: ast.expr, module: Module) -> Iterator[ast.Name]:
    """Where a list that got a name is gone over: ``params = group["params"]``."""
    table = module.table
    given = table.parents[iterated]
    if not isinstance(given, ast.Assign) or given.value is not iterated:
        return
    target = given.targets[0]
    if isinstance(target, ast.Name):
        for name in table.names:
            same = name.id == target.id and table.within[name] is table.within[target]
            if same and isinstance(name.ctx, ast.Load):
                yield name


def _of_lists(study: Study, module: Module) -> Iterator[Site]:
    """Loops over lists and arguments that hold parameters of sharded models, or gradients."""
    parents, assigns_data = module.table.parents, _assigns_data(module)
    for name in module.table.names:
        around = parents[name]
        if isinstance(around, ast.Call) and getattr(around.func, "id", "") not in AROUND:
            continue  # as nearly always
        if not isinstance(around, LOOPED) or not isinstance(name.ctx, ast.Load):
            continue
        loop = loop_over(name, module)
        if loop is None:
            continue
        target, region, _ = loop
        names = _names(target)
        assigned = [
            statement
            for part in (region if assigns_data else ())
            for statement, each in _data_assignments(part)
            if isinstance(each.value, ast.Name) and each.value.id in names
        ]
        if not assigned and not reductions.find_reductions(names, region, study, module):
            continue
        if is_gathered(name, study, module) or not listed(name, study, module):
            continue
        for statement in assigned:
            yield Site(DATA, module, statement, statement, name)
        yield from _numbers(name, name, study, module)


def loop_over(
    iterated: ast.expr, module: Module
) -> tuple[ast.expr, Sequence[ast.AST], ast.expr | ast.stmt] | None:
    """The variables of the loop over something, what runs in it, and all of it."""
    child: ast.AST = iterated
    if not isinstance(module.table.parents.get(iterated), LOOPED):
        return None  # as nearly always
    for parent in module.table.ancestors(iterated):
        if isinstance(parent, (ast.For, ast.AsyncFor)):
            return (parent.target, parent.body, parent) if parent.iter is child else None
        if isinstance(parent, ast.comprehension):
            if parent.iter is not child:
                return None
            whole = module.table.parents[parent]
            assert isinstance(whole, (ast.ListComp, ast.SetComp, ast.GeneratorExp, ast.DictComp))
            around = module.table.parents[whole]
            region = around if isinstance(around, ast.Call) else whole
            return parent.target, [region], whole
        if not isinstance(parent, ast.Call) or getattr(parent.func, "id", "") not in AROUND:
            return None
        child = parent
    return None


def _numbers(
    iterated: ast.expr, receiver: ast.expr, study: Study, module: Module
) -> Iterator[Site]:
    """What a loop computes of every parameter or gradient, unless it is this rank's number."""
    loop = loop_over(iterated, module)
    if loop is None:
        return
    target, region, whole = loop
    single = False
    for reduction in reductions.find_reductions(_names(target), region, study, module):
        if reductions.is_number(reduction, module):
            continue
        if reductions.is_reduced(reduction.node, study, module):
            yield Site(REDUCED, module, reduction.node, reduction.node, receiver)
        else:
            single = True
    if single:
        yield Site(NUMBER, module, whole, whole, receiver)


def reduction(site: Site, study: Study) -> reductions.Reduction:
    """What a site reduces."""
    module = site.module
    for parent in module.table.ancestors(site.node):
        parts: list[tuple[ast.expr, Sequence[ast.AST]]] = []
        if isinstance(parent, (ast.For, ast.AsyncFor)):
            parts = [(parent.target, parent.body)]
        elif isinstance(parent, (ast.ListComp, ast.SetComp, ast.GeneratorExp, ast.DictComp)):
            parts = [(g.target, [parent]) for g in parent.generators]
        for target, region in parts:
            for found in reductions.find_reductions(_names(target), region, study, module):
                if found.node is site.node:
                    return found
    for inner in walk(site.node):  # f([p.grad for p in ...])
        if isinstance(inner, ast.comprehension):
            for found in reductions.find_reductions(
                _names(inner.target), [site.node], study, module
            ):
                if found.node is site.node:
                    return found
    raise AssertionError("the reduction of a site is where it was found")


def concerned(site: Site, study: Study) -> frozenset[Constructor]:
    """The models whose parameters a site handles, directly, by an optimizer or in a list."""
    assert site.receiver is not None
    if study.traced(site.receiver, site.module):
        return study.models(site.receiver, site.module).constructors
    found = optimized(site.receiver, study, site.module)
    return found or listed(site.receiver, study, site.module)


def optimized(optimizer: ast.expr, study: Study, module: Module) -> frozenset[Constructor]:
    """The models whose parameters an optimizer holds; any, where that cannot be followed."""
    found: set[Constructor] = set()
    for value in study.values(optimizer, module):
        if not isinstance(value, Made) or value.callee is None:
            continue
        if not ordering.is_optimizer(value.callee, study):
            continue
        made = [(value.node, value.module)]
        if isinstance(value.callee, Class) and not isinstance(value.node, ast.Call):
            made = list(_constructions(value.callee, study))
        for call, where in made:
            if isinstance(call, ast.Call):
                found |= _given_to(call, study, where)
    return frozenset(found)


def _constructions(cls: Class, study: Study) -> Iterator[tuple[ast.AST, Module]]:
    """The calls that make objects of a class, or of one derived from it."""
    classes = [cls, *study.tracer.subclasses(cls)]
    nodes = {c.node for c in classes}
    names = {c.node.name for c in classes}
    for module in study.project.modules:
        calls = module.table.calls_by_name
        named = [n for n in calls.names if n in names or ordering.is_an_optimizers(n)]
        for call in calls.of(named):
            for callee in study.values(call.func, module):
                if isinstance(callee, Class) and callee.node in nodes:
                    yield call, module


def _given_to(call: ast.Call, study: Study, module: Module) -> frozenset[Constructor]:
    """The models whose parameters the call of an optimizer is given."""
    early = ordering.early_optimizer(call, module, study)
    if early is not None:
        return study.models(early.wrap, module).constructors
    given = ordering.arguments(call)
    found: set[Constructor] = set()
    plain = False
    for argument in given:
        for held, where in _held(argument, study, module):
            if isinstance(held, ast.Subscript):
                continue  # the groups of another optimizer
            assert isinstance(held.func, ast.Attribute)
            if study.traced(held.func.value, where):
                found |= study.models(held.func.value, where).constructors
            plain = True
    if plain or not given:
        return frozenset(found)
    return frozenset(study.constructors.values())


def listed(node: ast.expr, study: Study, module: Module) -> frozenset[Constructor]:
    """The models whose parameters or gradients a list holds, made in whatever function."""
    found: set[Constructor] = set()
    for held, where in _held(node, study, module):
        if isinstance(held, ast.Subscript):
            optimizer = _optimizer(held, where)
            found |= optimized(optimizer, study, where) if optimizer is not None else set()
            continue
        assert isinstance(held.func, ast.Attribute)
        if study.traced(held.func.value, where) and not is_gathered(held, study, where):
            found |= study.models(held.func.value, where).constructors
    return frozenset(found)


def _held(
    node: ast.expr, study: Study, module: Module, depth: int = NESTED
) -> Iterator[tuple[ast.Call | ast.Subscript, Module]]:
    """Every ``model.parameters()`` or ``group["params"]`` whose elements are in a list."""
    if isinstance(node, ast.Call):
        if isinstance(node.func, ast.Attribute) and node.func.attr in METHODS:
            yield node, module
            return
        if getattr(node.func, "id", "") in AROUND:
            for argument in node.args:
                yield from _held(argument, study, module, depth)
            return
    inner: list[ast.expr] = []
    match node:
        case ast.ListComp() | ast.GeneratorExp() | ast.SetComp():
            names = {n for g in node.generators for n in _names(g.target)}
            if reductions.bases(node.elt, names) or isinstance(node.elt, ast.Dict):
                inner = [g.iter for g in node.generators]
        case ast.List() | ast.Tuple() | ast.Set():
            inner = [e.value if isinstance(e, ast.Starred) else e for e in node.elts]
        case ast.Dict():
            inner = list(node.values)
        case ast.BinOp(left=left, op=ast.Add(), right=right):
            inner = [left, right]
        case ast.Subscript(slice=ast.Constant(value="params")):
            yield node, module
        case ast.Name() | ast.Attribute() | ast.Call() if depth:
            for value in study.values(node, module):
                if value.node is not node and isinstance(value.node, ast.expr):
                    yield from _held(value.node, study, value.module, depth - 1)
    for each in inner:
        yield from _held(each, study, module, depth)


def is_flat(model: ast.expr, module: Module, study: Study) -> bool:
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


def is_gathered(node: ast.AST, study: Study, module: Module, depth: int = 2) -> bool:
    """Whether parameters are whole there in both versions, in every call of a function too."""
    for parent in module.table.ancestors(node):
        for item in parent.items if isinstance(parent, (ast.With, ast.AsyncWith)) else ():
            call = item.context_expr
            name = call.func if isinstance(call, ast.Call) else call
            last = name.attr if isinstance(name, ast.Attribute) else getattr(name, "id", "")
            if last in WHOLE:
                return True
            for value in study.values(call, module):
                if isinstance(value, Made) and value.made_by.rpartition(".")[2] in WHOLE:
                    return True
        if isinstance(parent, FUNCTIONS) and depth:
            callers = study.tracer.callers(parent, module)
            return bool(callers) and all(
                is_gathered(c.call, study, c.module, depth - 1) for c in callers
            )
    return False


def _in_loop(call: ast.expr, module: Module) -> Iterator[tuple[ast.expr | ast.stmt, str]]:
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
    return {node.id for node in walk(target) if isinstance(node, ast.Name)}


def _uses(
    loop: ast.expr | ast.stmt, names: set[str], region: Sequence[ast.AST]
) -> Iterator[tuple[ast.expr | ast.stmt, str]]:
    looked = counted = named = addressed = measured = stored = False
    target = loop.target if isinstance(loop, (ast.For, ast.AsyncFor)) else _target(loop)
    first = ""  # the name of ``for name, parameter in model.named_parameters()``
    if isinstance(target, ast.Tuple) and isinstance(target.elts[0], ast.Name):
        first = target.elts[0].id
    for part in region:
        for node in walk(part):
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
                named |= any(isinstance(n, ast.Name) and n.id == first for n in walk(test))
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
        for node in walk(part):
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
    for node in walk(iterated):
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
        for node in walk(source):
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


def _assigns_data(module: Module) -> bool:
    data = module.table.attributes_by_name.named("data")
    return any(isinstance(attribute.ctx, ast.Store) for attribute in data)


def _data_assignments(tree: ast.AST) -> Iterator[tuple[ast.Assign, ast.Attribute]]:
    for node in walk(tree):
        if isinstance(node, ast.Assign) and len(node.targets) == 1:
            target = node.targets[0]
            if isinstance(target, ast.Attribute) and target.attr == "data":
                yield node, target
