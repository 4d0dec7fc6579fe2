"""Loops over parameters, and what they do with their variables.

``for p in model.parameters(): if p.ndim == 1: ...`` reads a shape, ``p.data = ...`` assigns data.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator, Sequence
from typing import TypeGuard

from fsdp_migrate.analysis.module import Module
from fsdp_migrate.families.parameters import parameter_changes, parameter_names
from fsdp_migrate.families.parameters.parameter_changes import data_assignments, holder, variable
from fsdp_migrate.families.training_loop import applied_functions
from fsdp_migrate.families.training_loop.listed_parts import PARTS, listed
from fsdp_migrate.fsdp1.construct import Construct
from fsdp_migrate.planning.context import Study
from fsdp_migrate.syntax.expressions import last_name, names_in
from fsdp_migrate.syntax.kinds import of_kind
from fsdp_migrate.syntax.trees import FUNCTIONS, walk

SHAPE = Construct.parse("parameter shape")
COUNT = Construct.parse("parameter count")
STATISTIC = Construct.parse("parameter statistic")
MEMORY = Construct.parse("parameter memory")
ADDRESS = Construct.parse("parameter address")
NAME = Construct.parse("parameter name")
PLACE = Construct.parse("parameters by their places")
DATA = Construct.parse("parameter data")
KEPT = Construct.parse("parameter data that is kept")
REPLACED = Construct.parse("data of a whole parameter")
UPDATE = Construct.parse("parameter update")
DRAWN = Construct.parse("random numbers for a parameter")
BY_FLAT = frozenset({NAME, PLACE})  # which FSDP1 had only of flat parameters
# Of a parameter, whatever list it is in.
READ = frozenset({SHAPE, STATISTIC, MEMORY, ADDRESS, DRAWN})
METHODS = frozenset({"parameters", "named_parameters"})
SHAPES = frozenset({"ndim", "shape", "dim", "size"})
COUNTS = frozenset({"numel", "nelement"})
OWNERS = frozenset({"torch", "Tensor"})  # of functions that are methods of tensors too
SAME_NUMBER = frozenset({"size", "detach", "view", "reshape", "flatten", "ravel"})  # of elements
# What DTensor gives for the whole parameter, by communication; of other numbers, such as norm() and
# sum(), each rank has its own, as in FSDP1.
OF_WHOLE = frozenset({"std", "var", "median", "nanmedian", "quantile", "argmax", "argmin"})
STORAGES = frozenset({"nbytes", "storage", "untyped_storage"})
DRAWING = frozenset(
    {"randn_like", "rand_like", "randint_like", "bernoulli", "normal_", "uniform_", "bernoulli_"}
    | {"exponential_", "log_normal_", "cauchy_", "geometric_", "random_"}
)
ASKED = {
    **dict.fromkeys(COUNTS, COUNT),
    **dict.fromkeys(SHAPES, SHAPE),
    **dict.fromkeys(OF_WHOLE, STATISTIC),
    **dict.fromkeys(STORAGES, MEMORY),
    **dict.fromkeys(DRAWING, DRAWN),
    "data_ptr": ADDRESS,
}
# What a loop may put around ``model.parameters()``.
AROUND = frozenset({"zip", "enumerate", "list", "tuple", "sorted", "reversed", "filter", "chain"})
LOOPED = (ast.For, ast.AsyncFor, ast.comprehension, ast.Call)


def gives_on(call: ast.AST) -> TypeGuard[ast.Call]:
    """Whether a call gives the elements of its arguments: ``zip(a, b)``, ``itertools.chain(a)``."""
    match call:
        case ast.Call(func=ast.Name(id=name) | ast.Attribute(ast.Name("itertools"), name)):
            return name in AROUND
    return False


def loop_over(
    iterated: ast.expr, module: Module
) -> tuple[ast.expr, Sequence[ast.AST], ast.expr | ast.stmt] | None:
    """The variables of a loop, what runs in it, and the loop, for what it goes over."""
    child: ast.AST = iterated
    if not isinstance(module.table.parents.get(iterated), LOOPED):
        return None  # as nearly always
    for parent in module.table.ancestors(iterated):
        if isinstance(parent, (ast.For, ast.AsyncFor)):
            return (parent.target, parent.body, parent) if parent.iter is child else None
        if isinstance(parent, ast.comprehension):
            if parent.iter is not child:
                return None
            whole = of_kind(module.table.parents[parent], ast.expr)
            around = module.table.parents[whole]
            region = around if isinstance(around, ast.Call) else whole
            return parent.target, [region], whole
        if not gives_on(parent):
            return _applied(parent, child, module)
        child = parent
    return None


def _applied(
    call: ast.AST, iterated: ast.AST, module: Module
) -> tuple[ast.expr, Sequence[ast.AST], ast.expr] | None:
    """As :func:`loop_over`, of a function that is called for each: ``map(lambda p: p.norm(), ps)``,
    ``functools.reduce(lambda total, p: total + p.norm(), ps)``, ``starmap(lambda n, p: p, named)``.
    """
    match call:
        case ast.Call(func=ast.Name(id="map"), args=[function, *given]) if iterated in given:
            place = given.index(of_kind(iterated, ast.expr))
        case ast.Call(args=[function, given, *_]) if given is iterated:
            if last_name(call.func) not in {"reduce", "starmap"}:
                return None
            place = 1
        case _:
            return None
    bound = module.table.module.bindings.get(function.id, ()) if _is_name(function) else ()
    made = [function, *(binding.node for binding in bound)] if len(bound) <= 1 else []
    for each in made:
        if isinstance(each, FUNCTIONS) and len(each.args.args) > place:
            region = [each.body] if isinstance(each, ast.Lambda) else each.body
            names: list[ast.expr] = [ast.Name(a.arg, ast.Store()) for a in each.args.args]
            whole = of_kind(call, ast.Call)
            taken = ast.Tuple(names) if last_name(whole.func) == "starmap" else names[place]
            return taken, region, whole
    return None


def called_by_name(
    iterated: ast.expr, study: Study, module: Module
) -> tuple[ast.expr, Sequence[ast.AST], ast.expr] | None:
    """As :func:`loop_over`, of what ``map`` calls that has no body here: ``map(torch.numel, ps)``,
    ``map(methodcaller("numel"), ps)``. The body that it stands for is in no file."""
    child: ast.AST = iterated
    for parent in module.table.ancestors(iterated):
        match parent:
            case ast.Call(func=ast.Name(id=applied_functions.MAP), args=[function, *given]):
                body = applied_functions.named_body(function, study, module)
                if body is None or child not in given:
                    return None
                return ast.Name(applied_functions.ELEMENT, ast.Store()), [body], parent
        if not gives_on(parent):
            return None
        child = parent
    return None


def _is_name(node: ast.expr) -> TypeGuard[ast.Name]:
    return isinstance(node, ast.Name)


def uses_in_loop(
    call: ast.expr, study: Study, module: Module
) -> Iterator[tuple[ast.expr | ast.stmt, Construct]]:
    """What the loop over a call does with its variables."""
    child: ast.AST = call
    for parent in module.table.ancestors(call):
        if isinstance(parent, (ast.For, ast.AsyncFor)) and parent.iter is child:
            yield from uses_of_variables(parent, names_in(parent.target), parent.body)
            if parameter_changes.changes(names_in(parent.target), parent.body, study, module):
                yield parent.iter, UPDATE
            return
        if isinstance(parent, ast.comprehension) and parent.iter is child:
            whole = of_kind(module.table.parents[parent], ast.expr)
            yield from uses_of_variables(whole, names_in(parent.target), [whole])
            return
        if not gives_on(parent):
            applied = _applied(parent, child, module) or called_by_name(call, study, module)
            if applied is not None:
                variable, region, whole = applied
                yield from uses_of_variables(whole, names_in(variable), region)
            return
        child = parent


def uses_of_variables(
    loop: ast.expr | ast.stmt, names: set[str], region: Sequence[ast.AST]
) -> Iterator[tuple[ast.expr | ast.stmt, Construct]]:
    names = names | listed(names, region)
    looked = numbered = addressed = measured = stored = in_bytes = False
    sizes: set[ast.AST] = set()  # ``p.shape`` of ``p.shape.numel()``
    drawn: ast.expr | None = None
    for part in region:
        for node in walk(part):
            if is_counted(node, names):
                numbered = True
                sizes.update(walk(node))
            for owner, asked in _questions(node):
                sized = in_any_form(owner) if asked in SHAPES else owner
                looked |= asked in SHAPES and node not in sizes and _part_of(sized) in names
                in_bytes |= asked == "element_size" and _part_of(owner) in names
                addressed |= asked == "data_ptr" and variable(owner) in names
                measured |= asked in OF_WHOLE and _asked(owner) in names
                stored |= asked in STORAGES and _part_of(owner) in names
                if asked in DRAWING and _part_of(owner) in names and isinstance(node, ast.expr):
                    drawn = drawn or node
        for statement, owner in data_assignments(part):
            if holder(owner) in names:
                yield statement, DATA
    if drawn is not None:
        yield drawn, DRAWN
    if addressed:
        yield loop, ADDRESS
    elif measured:
        yield loop, STATISTIC
    elif stored or (numbered and in_bytes):
        yield loop, MEMORY
    elif looked:
        yield loop, SHAPE
    else:
        # Both are spoken of where FSDP1 had flat parameters alone.
        named = parameter_names.decides(parameter_names.names_given(loop), region)
        if named or parameter_names.is_filtered(loop):
            yield loop, NAME
        elif parameter_names.decides(parameter_names.places_given(loop), region):
            yield loop, PLACE
        if numbered:
            yield loop, COUNT


def _questions(node: ast.AST) -> Iterator[tuple[ast.expr, str]]:
    """What is asked, and of what: ``p.std()`` and ``torch.std(p)`` ask the same."""
    match node:
        case ast.Attribute(value=owner, attr=attr):
            yield owner, attr
        case ast.Call(func=ast.Attribute(value=module, attr=attr), args=[owner, *_]):
            if last_name(module) in OWNERS:
                yield owner, attr
        case ast.Call(func=ast.Name(id="len"), args=[ast.Call() as owner]):  # of p.view(-1)
            yield owner, "size"


def asked_at(attribute: ast.Attribute, module: Module) -> tuple[ast.expr, Construct] | None:
    """The tensor that an attribute or function asks something of, and what: ``p`` of ``p.numel()``,
    ``p.grad.detach().shape`` and ``torch.std(p)``."""
    parents = module.table.parents
    asked, around = ASKED.get(attribute.attr), parents[attribute]
    owner = attribute.value
    if last_name(owner) in OWNERS:
        if not isinstance(around, ast.Call) or around.func is not attribute or not around.args:
            return None
        owner = around.args[0]
    if asked == SHAPE:
        size = around if isinstance(around, ast.Call) and around.func is attribute else attribute
        if isinstance(parents[size], ast.Attribute):  # p.shape.numel()
            return None
    if asked in {SHAPE, COUNT}:
        owner = in_any_form(owner)
    return (owner, asked) if asked is not None and isinstance(attribute.ctx, ast.Load) else None


def is_counted(node: ast.AST, names: set[str]) -> bool:
    """Whether the elements of a variable are counted."""
    return counted(node, names) is not None


def counted(node: ast.AST, names: set[str]) -> ast.expr | None:
    """``p`` of ``p.numel()``, ``torch.numel(p)`` and ``p.detach().shape.numel()``, if that is a
    variable of these names, or a gradient of one."""
    match node:
        case ast.Call(func=ast.Attribute(value=owner, attr=attr)) if attr in COUNTS:
            sized = node.args[0] if node.args and last_name(owner) in OWNERS else owner
        case _:
            return None
    sized = in_any_form(sized)
    return sized if _part_of(sized) in names else None


def in_any_form(node: ast.expr) -> ast.expr:
    """``p`` of ``p.detach().view(-1)`` and ``p.shape``, which has as many elements."""
    while True:
        match node:
            case ast.Attribute(value=inner, attr="shape"):
                node = inner
            case ast.Call(func=ast.Attribute(value=inner, attr=attr)) if attr in SAME_NUMBER:
                node = inner
            case _:
                return node


def _part_of(node: ast.expr) -> str:
    """``p`` of ``p``, ``p.data`` and ``p.grad``."""
    while isinstance(node, ast.Attribute) and node.attr in PARTS:
        node = node.value
    return node.id if isinstance(node, ast.Name) else ""


def _asked(node: ast.expr) -> str:
    """``p`` of ``p``, ``p.grad``, and ``p.detach().float()``."""
    while not isinstance(node, ast.Name):
        inner = node.func if isinstance(node, ast.Call) else node
        if not isinstance(inner, ast.Attribute):
            return ""
        node = inner.value
    return node.id


def is_kept(read: ast.expr, module: Module) -> bool:
    """Whether ``p.data`` is kept as it is, and so is the parameter's own memory: in a variable, an
    attribute or a container."""
    parent = module.table.parents[read]
    match parent:
        case ast.Assign(value=value) | ast.AnnAssign(value=value) | ast.NamedExpr(value=value):
            return value is read
        case ast.Tuple() | ast.List() | ast.Dict() | ast.Return() | ast.Yield():
            return True
        case ast.ListComp(elt=elt) | ast.GeneratorExp(elt=elt) | ast.DictComp(value=elt):
            return elt is read
        case ast.Call(func=ast.Attribute(attr="append" | "add" | "setdefault")):
            return read in parent.args
    return False
