"""Branches that tell FSDP1 models from FSDP2 models, in projects that have both.

``if isinstance(model, FSDP): ... elif isinstance(model, FSDPModule): ...`` already says what is to
be done with a migrated model. The branch for FSDP1 goes, the one for FSDP2 stays as it is. So it is
where each has an ``if`` of its own that returns.

Where that chain is a function which answers with numbers (``fsdp_version(model)``), no migrated
model has FSDP1's any more: what is done under ``fsdp_version(model) == 1`` goes as well, and what
follows ``if fsdp_version(model) == 2: ...; return`` once FSDP1's class is asserted.
"""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from fsdp_migrate.analysis.flow import access_path
from fsdp_migrate.analysis.module import Module
from fsdp_migrate.analysis.project import Project
from fsdp_migrate.analysis.tracing.tracer import Tracer
from fsdp_migrate.analysis.values import Function
from fsdp_migrate.fsdp1.api import FSDP, canonical, is_fsdp2_class
from fsdp_migrate.fsdp1.construct import Construct, ConstructKind
from fsdp_migrate.fsdp1.site import Site
from fsdp_migrate.syntax import type_expressions
from fsdp_migrate.syntax.trees import block_of

FSDP1_ONLY = Construct(ConstructKind.VERSION, "FSDP1")
OTHERS = Construct(ConstructKind.VERSION, "others")
LEAVING = (ast.Return, ast.Raise, ast.Continue, ast.Break)


@dataclass(frozen=True, eq=False)
class Branch:
    """``head`` begins the chain, ``node`` is the part of it that is for FSDP1.

    ``rest``: it is not the part but the statements that follow it, which FSDP2 models never reach.
    ``taken``: FSDP2 models have an ``if`` of their own beside the chain.
    """

    head: ast.If
    node: ast.If
    asks: ast.expr  # the test, or what in it tells FSDP1 models
    rest: tuple[ast.stmt, ...] = ()
    taken: ast.If | None = None


def of(site: Site, project: Project) -> Branch | None:
    """The branch whose test is an ``isinstance`` site, when another one is for FSDP2."""
    table = site.module.table
    node = table.parents.get(site.node)
    if not isinstance(node, ast.If) or node.test is not site.node:
        return None
    if isinstance(site.call.args[1], (ast.Tuple, ast.BinOp)):
        return None
    head = _head(node, site.module)
    tested = access_path(site.call.args[0])
    others = [each for each in _chain(head) if each is not node]
    if tested is None:
        return None
    if any(_is_fsdp2(o.test, tested, site.module, project) for o in others):
        return Branch(head, node, node.test)
    taken = _beside(head, node, tested, site.module, project)
    return Branch(head, node, node.test, taken=taken) if taken is not None else None


def _beside(
    head: ast.If, node: ast.If, tested: str, module: Module, project: Project
) -> ast.If | None:
    """The ``if`` for FSDP2 models that stands beside a chain, which migrated models take alone.

    It may stand anywhere behind a branch that does not come back, and next to one that does.
    """
    if list(_chain(head))[-1].orelse:
        return None  # which migrated models would take as well
    block = block_of(module.table.parents[head], head)
    index = block.index(head)
    leaves = isinstance(node.body[-1], LEAVING)
    for each in block[index + 1 :] if leaves else block[index + 1 : index + 2]:
        if isinstance(each, ast.If) and _is_fsdp2(each.test, tested, module, project):
            return each
        if any(_is_set(n, tested) for n in ast.walk(each)):
            return None
    earlier = block[index - 1] if index else None
    if isinstance(earlier, ast.If) and _is_fsdp2(earlier.test, tested, module, project):
        changed = any(_is_set(n, tested) for n in ast.walk(earlier))
        return None if changed else earlier
    return None


def _is_set(node: ast.AST, path: str) -> bool:
    """Whether a node gives ``path``, or what it goes through, another value."""
    if not isinstance(node, (ast.Name, ast.Attribute, ast.Subscript)):
        return False
    if not isinstance(node.ctx, (ast.Store, ast.Del)):
        return False
    own = access_path(node)
    return own is not None and (path == own or path.startswith((f"{own}.", f"{own}[")))


def _head(node: ast.If, module: Module) -> ast.If:
    """The first ``if`` of the chain that one is in."""
    while isinstance(above := module.table.parents[node], ast.If) and above.orelse == [node]:
        node = above
    return node


def _chain(head: ast.If) -> Iterator[ast.If]:
    yield head
    while len(head.orelse) == 1 and isinstance(head.orelse[0], ast.If):
        head = head.orelse[0]
        yield head


def versions(branch: Branch, module: Module, tracer: Tracer) -> Iterator[Site]:
    """What is asked of the function whose answer for FSDP1 models is this branch of it."""
    function = module.table.parents[branch.head]
    own = _answer(branch.node.body[0]) if len(branch.node.body) == 1 else None
    if not isinstance(function, ast.FunctionDef) or own is None:
        return
    returns = [n for n in ast.walk(function) if isinstance(n, ast.Return)]
    answers = [_answer(n) for n in returns]
    if None in answers or answers.count(own) != 1 or len(answers) < 2:
        return
    for asking in tracer.project.modules:
        for call in asking.table.calls:
            compared = asking.table.parents[call]
            match compared:
                case ast.Compare(
                    left=left, ops=[ast.Eq()], comparators=[ast.Constant(value=int(value))]
                ) if left is call and len(call.args) == 1 and not call.keywords:
                    named = getattr(call.func, "id", getattr(call.func, "attr", ""))
                    if named != function.name or value not in answers:
                        continue
                    callees = tracer.evaluate(call.func, asking)
                    if all(isinstance(c, Function) and c.node is function for c in callees):
                        construct = FSDP1_ONLY if value == own else OTHERS
                        site = Site(construct, asking, compared, call, call.args[0])
                        if asked(site, tracer.project) is not None:
                            yield site


def _answer(node: ast.stmt) -> int | None:
    match node:
        case ast.Return(value=ast.Constant(value=int(value))):
            return value
    return None


def asked(site: Site, project: Project) -> Branch | None:
    """The code that a comparison of versions keeps for FSDP1 models alone."""
    table = site.module.table
    test = site.expression
    while isinstance(parent := table.parents[test], ast.BoolOp) and isinstance(parent.op, ast.And):
        test = parent
    if not isinstance(parent, ast.If) or parent.test is not test:
        return None
    if site.construct == FSDP1_ONLY:
        return Branch(_head(parent, site.module), parent, site.expression)
    rest = _after(parent, site, project) if test is site.expression else ()
    return Branch(parent, parent, site.expression, rest) if rest else None


def _after(returning: ast.If, site: Site, project: Project) -> tuple[ast.stmt, ...]:
    """What follows ``assert isinstance(model, FSDP)`` where other models have returned before."""
    function = site.module.table.parents[returning]
    returns = isinstance(returning.body[-1], (ast.Return, ast.Raise)) and not returning.orelse
    tested = access_path(site.receiver) if site.receiver is not None else None
    if not isinstance(function, ast.FunctionDef) or not returns or tested is None:
        return ()
    following = function.body[function.body.index(returning) + 1 :]
    for index, statement in enumerate(following):
        match statement:
            case ast.Assert(test=ast.Call(func=ast.Name(id="isinstance"), args=[model, cls])) if (
                access_path(model) == tested
            ):
                names = {canonical(name) for name in project.external(cls, site.module)}
                return tuple(following[index + 1 :]) if FSDP in names else ()
    return ()


def _is_fsdp2(test: ast.expr, tested: str, module: Module, project: Project) -> bool:
    if isinstance(test, ast.BoolOp):  # with "or", other models take that branch as well
        return any(_is_fsdp2(each, tested, module, project) for each in test.values)
    if not isinstance(test, ast.Call) or len(test.args) != 2 or test.keywords:
        return False
    name = test.func.id if isinstance(test.func, ast.Name) else ""
    same = name == "isinstance" and access_path(test.args[0]) == tested
    return same and any(
        _is_class(cls, module, project) for cls in type_expressions.classes(test.args[1])
    )


def _is_class(node: ast.expr, module: Module, project: Project) -> bool:
    """Whether an expression is the class of FSDP2's models."""
    return any(map(is_fsdp2_class, project.external(node, module)))


def comes_first(site: Site, project: Project) -> bool:
    """Whether FSDP2 models get past an ``isinstance`` site, to code that is there for them.

    That code would be theirs no more if the site asked for their class.
    """
    table = site.module.table
    tested = access_path(site.call.args[0])
    if tested is None or any(
        _is_class(cls, site.module, project) for cls in type_expressions.classes(site.call.args[1])
    ):
        return False
    child: ast.AST = site.call
    for parent in table.ancestors(site.call):
        if isinstance(parent, (ast.If, ast.IfExp)):
            if parent.test is not child or _asks_fsdp2([parent.test], tested, site.module, project):
                return False
            return _asks_fsdp2(_past(parent, site.module), tested, site.module, project)
        if isinstance(parent, ast.stmt):
            return False
        child = parent
    return False


def _past(node: ast.If | ast.IfExp, module: Module) -> Iterator[ast.AST]:
    """What runs after a condition that does not hold, where it would not if it did."""
    if isinstance(node, ast.IfExp):
        yield node.orelse
        return
    yield from node.orelse
    if isinstance(node.body[-1], LEAVING):
        block = block_of(module.table.parents[node], node)
        yield from block[block.index(node) + 1 :]


def _asks_fsdp2(nodes: Iterable[ast.AST], tested: str, module: Module, project: Project) -> bool:
    return any(
        _is_fsdp2(call, tested, module, project)
        for node in nodes
        for call in ast.walk(node)
        if isinstance(call, ast.Call)
    )


def stands_in(site: Site, branch: Branch) -> bool:
    """Whether a site is in the code that goes, and not what tells FSDP1 models there."""
    if site.node is branch.asks:
        return False
    if branch.head not in site.module.table.parents:
        return False  # of another module
    body: tuple[ast.AST, ...] = branch.rest or (*branch.node.body, branch.node.test)
    return any(node in body for node in (site.node, *site.module.table.ancestors(site.node)))


def builds(branch: Branch) -> set[ast.AST]:
    """Every node of the code that goes."""
    return {node for each in branch.rest or branch.node.body for node in ast.walk(each)}
