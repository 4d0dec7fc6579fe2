"""Numbers that a program computes from a sharded model's parameters or gradients one by one.

FSDP1 gave each rank the number of its own piece, and the program added them up over the ranks. Of
a ``DTensor`` a norm or sum is a ``DTensor`` again, that becomes the whole number with the next
operation: added up over the ranks it is too large, without an error. ``item()`` of it is this
rank's number in both.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass

from fsdp_migrate.analysis.flow import access_path
from fsdp_migrate.analysis.module import Module
from fsdp_migrate.analysis.values import External, Function
from fsdp_migrate.families.training_loop import applied_functions
from fsdp_migrate.families.training_loop.listed_parts import listed
from fsdp_migrate.families.training_loop.sharded_alike import reduced_parts
from fsdp_migrate.fsdp1 import references
from fsdp_migrate.planning.context import Study
from fsdp_migrate.syntax.expressions import given_arguments, last_name
from fsdp_migrate.syntax.trees import FUNCTIONS, position, walk

NORMS = frozenset({"norm", "vector_norm"})
EXTREMES = frozenset({"max", "min", "amax", "amin"})
TOTALS = frozenset({"sum", "mean", "any", "all", "count_nonzero"})
# Numbers of whole lists.
OF_LISTS = frozenset({"_foreach_norm", "get_total_norm"})
PRODUCTS = frozenset({"dot", "vdot", "tensordot"})  # totals of what two of one shape have in common
REDUCING = NORMS | EXTREMES | TOTALS | OF_LISTS | PRODUCTS
MODULES = ("torch.", "torch.linalg.", "torch.nn.utils.", "torch.nn.utils.clip_grad.")
NORM_ARGUMENTS = frozenset({"p", "ord", "dtype", "norm_type"})
NUMBERS = frozenset({"float", "int", "bool"})
# What may stand between a number and ``item()``.
BEFORE_ITEM = frozenset({"detach", "cpu", "float", "double", "to", "squeeze", "clone", "data"})
REDUCERS = frozenset(
    {"all_reduce", "reduce", "allreduce", "all_gather", "all_gather_object", "gather"}
    | {"all_gather_into_tensor", "all_reduce_coalesced", "reduce_scatter", "gather_object"}
)
NO_REDUCERS = frozenset({"functools.reduce"})
OF_ALL = re.compile(r"^len\(|\.ndim$|\.dim\(\)$")  # dimensions
DEEP = 3  # functions between a number and its reduction


@dataclass(frozen=True, eq=False)
class Reduction:
    """``p.grad.norm(2)``, and the ``p.grad`` in it."""

    node: ast.expr
    bases: tuple[ast.expr, ...]
    is_extreme: bool = False  # there is none of an empty piece
    is_mean: bool = False
    is_root: bool = False  # a norm of which powers have to be added up


def find_reductions(
    names: Collection[str], region: Sequence[ast.AST], study: Study, module: Module
) -> list[Reduction]:
    """The reductions in the body of a loop, of what its variables hold."""
    if not _reduces_anything(region, study, module):
        return []
    held = {*names, *listed(names, region)}
    aliases: list[tuple[str, ast.expr]] = []
    for part in region:
        for node in walk(part):
            if isinstance(node, ast.Assign) and len(node.targets) == 1:
                target = node.targets[0]
                if isinstance(target, ast.Name) and target.id not in held:
                    aliases.append((target.id, node.value))
    for name, _ in aliases:
        if all(reduced_parts(value, held) for other, value in aliases if other == name):
            held.add(name)
    found = []
    for part in region:
        for node in walk(part):
            if isinstance(node, ast.Call):
                reduction = _read(node, held, study, module)
                if reduction is not None:
                    found.append(reduction)
    return found


def _reduces_anything(region: Sequence[ast.AST], study: Study, module: Module) -> bool:
    """Whether some call in a region has the name of a reduction."""
    table = module.table
    calls = [*table.calls_by_name.of({*REDUCING, *_renamed(study, module)})]
    parts = set(region) if calls else set()
    return any(
        not parts.isdisjoint((call, *table.ancestors(call)))
        for call in calls
        if any(_is_on_lines(call, part) for part in parts)
    )


def _renamed(study: Study, module: Module) -> dict[str, str]:
    named = applied_functions.renamed(study, module)
    return {name: of for name, of in named.items() if of in REDUCING}


def _is_on_lines(call: ast.Call, part: ast.AST) -> bool:
    """Whether a call stands on a line of a part, which is quicker than to search its parents."""
    first = getattr(part, "lineno", 0)
    return first <= call.lineno <= (getattr(part, "end_lineno", None) or call.lineno)


def _read(call: ast.Call, names: Collection[str], study: Study, module: Module) -> Reduction | None:
    method = call.func
    if isinstance(method, ast.Name) and method.id in NORMS | OF_LISTS:
        name = method.id
    elif isinstance(method, ast.Name) and method.id in (others := _renamed(study, module)):
        name = others[method.id]
    elif isinstance(method, ast.Attribute):
        name = method.attr
    else:
        return None
    if name not in REDUCING:
        return None
    listed = _listed(call, names) if name in OF_LISTS else []
    of_method = reduced_parts(method.value, names) if isinstance(method, ast.Attribute) else []
    given = reduced_parts(call.args[0], names) if call.args and not of_method else []
    if (given or listed) and not _is_torchs(method, name, study, module):
        return None
    found = of_method or given or listed
    if not found:
        return None
    settings = call.args if of_method else call.args[1:]
    if name in PRODUCTS:
        return _product(call, settings, found, names)
    allowed = {"dtype"} if name in EXTREMES | TOTALS else NORM_ARGUMENTS
    if len(settings) > (0 if name in EXTREMES | TOTALS else 1):
        return None  # of rows or columns
    if not listed and any(k.arg not in allowed for k in call.keywords):
        return None
    order = [*settings, *(k.value for k in call.keywords if k.arg != "dtype")]
    return reduction_named(name, call, tuple(found), order)


def _product(
    call: ast.Call, others: Sequence[ast.expr], found: list[ast.expr], names: Collection[str]
) -> Reduction | None:
    """``torch.tensordot(update, sign, dims=update.dim())``: of all dimensions, by what is said."""
    other = reduced_parts(others[0], names) if len(others) == 1 else []
    dims = [ast.unparse(keyword.value) for keyword in call.keywords]
    if not other or not all(OF_ALL.search(each) for each in dims):
        return None
    return Reduction(call, (*found, *other))


def reduction_named(
    name: str, node: ast.expr, bases: tuple[ast.expr, ...], settings: Sequence[ast.expr]
) -> Reduction:
    """The reduction of a name, of which the settings say the order of a norm."""
    infinite = name in NORMS and any("inf" in ast.unparse(o).lower() for o in settings)
    root = name in NORMS | OF_LISTS and not infinite
    root = root and not any(isinstance(o, ast.Constant) and o.value == 1 for o in settings)
    return Reduction(node, bases, name in EXTREMES or infinite, name == "mean", root)


def _is_torchs(function: ast.expr, name: str, study: Study, module: Module) -> bool:
    names = set(study.external(function, module))
    if not names:  # of a name that is given the function
        names = {v.name for v in study.values(function, module) if isinstance(v, External)}
    return not names.isdisjoint({f"{owner}{name}" for owner in MODULES})


def _listed(call: ast.Call, names: Collection[str]) -> list[ast.expr]:
    """The element of a list that is made where it is given: ``f([p.grad for p in ...])``."""
    given = call.args[0] if call.args else None
    if not isinstance(given, (ast.ListComp, ast.GeneratorExp)):
        return []
    return reduced_parts(given.elt, names)


def is_number(node: ast.expr, module: Module) -> bool:
    """Whether only ``item()`` is asked of a result, which is this rank's number in FSDP2 too."""
    child: ast.AST = node
    parents = module.table.parents
    while True:
        parent = parents[child]
        if isinstance(parent, ast.Call) and parent.func is child:
            child = parent
        elif isinstance(parent, ast.Attribute) and parent.attr == "item":
            return True
        elif isinstance(parent, ast.Attribute) and parent.attr in BEFORE_ITEM:
            child = parent
        else:
            called = parent.func if isinstance(parent, ast.Call) else None
            return isinstance(called, ast.Name) and called.id in NUMBERS


def is_reduced(node: ast.AST, study: Study, module: Module) -> bool:
    """Whether the program is seen to add a number up over the ranks."""
    known = study.cache(_reduced)
    if node not in known:
        known[node] = _Following(study).reduces(node, frozenset(), module, node, DEEP)
    return known[node]


def _reduced(study: Study) -> dict[ast.AST, bool]:
    """The numbers of which that was asked: loops in loops ask it of the same ones."""
    return {}


def adds_up_roots(reduction: Reduction, study: Study, module: Module) -> bool:
    """Whether norms go to the other ranks as they are. Of the squares of parts the sum is that of
    the whole; the sum of their norms depends on how parameters are parted."""
    if not reduction.is_root:
        return False
    nodes = list(walk(references.enclosing_function(module, reduction.node)))
    held = _Following._spread(nodes, set(), reduction.node)
    norms = [
        node
        for node in nodes
        if isinstance(node, ast.Call)
        and last_name(node.func) in NORMS
        and any(_holds(given, held, reduction.node) for given in node.args)
    ]
    last = norms[0] if norms else reduction.node  # of norms of single gradients
    following = _Following(study)
    following.reduces(last, frozenset(), module, last, DEEP)
    return not following.raised


def _is_power(node: ast.AST, held: set[str], start: ast.AST | None) -> bool:
    """Whether something is squared, or raised to the norm's order, that is held."""
    match node:
        case ast.BinOp(left=base, op=ast.Pow()):
            return _holds(base, held, start)
        case ast.AugAssign(target=base, op=ast.Pow()):
            return _holds(base, held, start)
        case ast.BinOp(left=left, op=ast.Mult(), right=right):
            return _holds(left, held, start) and _holds(right, held, start)
        case ast.Call(func=ast.Attribute(value=base, attr="pow" | "square" | "pow_" | "square_")):
            return any(_holds(each, held, start) for each in (base, *node.args[:1]))
    return False


def _end(node: ast.AST) -> tuple[int, int]:
    return getattr(node, "end_lineno", 0), getattr(node, "end_col_offset", 0)


class _Following:
    """Follows a value through names, returns and calls, to a reduction over ranks."""

    def __init__(self, study: Study) -> None:
        self.study = study
        self.raised = False  # a power of it was taken on the way
        self.seen: set[tuple[ast.AST, ast.AST | None, frozenset[str]]] = set()

    def reduces(
        self,
        place: ast.AST,
        names: frozenset[str],
        module: Module,
        start: ast.AST | None,
        depth: int,
    ) -> bool:
        """Whether the function around ``place`` reduces ``start``, or what ``names`` hold."""
        around = (
            place if isinstance(place, FUNCTIONS) else references.enclosing_function(module, place)
        )
        while isinstance(around, ast.Lambda) and not names:  # ``sum(map(lambda p: p.norm(), ps))``
            around = references.enclosing_function(module, around)
        if depth < 0 or (around, start, names) in self.seen:
            return False
        self.seen.add((around, start, names))
        nodes = list(walk(around))
        held = self._spread(nodes, set(names), start)
        first = position(module.table.statement(start)) if start is not None else (0, 0)
        powers = [node for node in nodes if _is_power(node, held, start) and _end(node) >= first]
        here = [node for node in nodes if isinstance(node, ast.Call)]
        for call in sorted(here, key=lambda c: position(c) < first):  # those that follow come first
            if self._call(call, held, start, module, depth):
                self.raised |= any(position(power) <= _end(call) for power in powers)
                return True
        self.raised |= bool(powers)
        returned = any(
            isinstance(n, ast.Return) and n.value is not None and _holds(n.value, held, start)
            for n in nodes
        )
        if returned and isinstance(around, (ast.FunctionDef, ast.AsyncFunctionDef)):
            calls = [(c.call, c.module) for c in self.study.tracer.callers(around, module)]
            applied = applied_functions.applications(around, self.study)
            for call, where in [*calls, *((c, m) for c, m, _ in applied)]:
                if self.reduces(call, frozenset(), where, call, depth - 1):
                    return True
        own = frozenset(name for name in held if name.startswith("self."))
        owner = module.table.parents.get(around)
        if own and isinstance(owner, ast.ClassDef):
            methods = (m for m in owner.body if isinstance(m, FUNCTIONS) and m is not around)
            return any(self.reduces(m, own, module, None, depth - 1) for m in methods)
        return False

    @staticmethod
    def _spread(nodes: Sequence[ast.AST], held: set[str], start: ast.AST | None) -> set[str]:
        """The names that hold the value, or are computed from it."""
        before = -1
        while before < len(held):
            before = len(held)
            for node in nodes:
                match node:
                    case ast.Assign(targets=targets, value=value):
                        given = targets
                    case ast.AnnAssign(target=target, value=ast.expr() as value):
                        given = [target]
                    case ast.AugAssign(target=target, value=value):
                        given = [target]
                    case ast.NamedExpr(target=target, value=value):
                        given = [target]
                    case (
                        ast.For(target=target, iter=value)
                        | ast.comprehension(target=target, iter=value)
                    ):
                        given = [target]
                    case ast.Expr(value=ast.Call(func=ast.Attribute(value=owner)) as value):
                        given = [owner]
                        if not any(_holds(v, held, start) for v in given_arguments(value)):
                            continue
                    case _:
                        continue
                if _holds(value, held, start):
                    for each in given:
                        held.update(_stored(each))
        return held

    def _call(
        self, call: ast.Call, held: set[str], start: ast.AST | None, module: Module, depth: int
    ) -> bool:
        concerned = [g for g in given_arguments(call) if _holds(g, held, start)]
        if not concerned:
            return False
        name = last_name(call.func)
        if name in REDUCERS and not self.study.external(call.func, module) & NO_REDUCERS:
            return True
        for value in self.study.values(call.func, module) if depth else ():
            node = value.node
            if not isinstance(value, Function) or isinstance(node, ast.Lambda):
                continue
            assert isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef))
            bound = value.owner is not None
            taken = node.args
            names = [a.arg for a in (*taken.posonlyargs, *taken.args, *taken.kwonlyargs)]
            passed = frozenset(
                n
                for n in names
                if self.study.tracer.argument(call, node, n, bound=bound) in concerned
            )
            if passed and self.reduces(node, passed, value.module, None, depth - 1):
                return True
        return False


def _holds(node: ast.AST, held: set[str], start: ast.AST | None) -> bool:
    for part in walk(node):
        if part is start:
            return True
        if isinstance(part, (ast.Name, ast.Attribute)) and access_path(part) in held:
            return True
    return False


def _stored(target: ast.expr) -> Iterator[str]:
    """``total`` of ``total``, ``total[0]`` and ``(total, rest)``; ``self.total`` as it is."""
    if isinstance(target, (ast.Tuple, ast.List)):
        for element in target.elts:
            yield from _stored(element)
        return
    while isinstance(target, (ast.Subscript, ast.Starred)):
        target = target.value
    path = access_path(target)
    if path is not None and path != "self":
        yield path
