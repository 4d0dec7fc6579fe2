"""Numbers of elements that a program only shows, as those of its model or its parameters.

``print(f"{n / 1e6:.1f}M parameters")`` says what ``numel()`` gives now; FSDP1 gave this rank's part
of it. Where the text speaks of ranks or devices, somebody has to say which of the two is meant.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

from fsdp_migrate.analysis.module import Module
from fsdp_migrate.families.parameters.parameter_loops import COUNTS
from fsdp_migrate.fsdp1.site import Site
from fsdp_migrate.syntax.expressions import last_name
from fsdp_migrate.syntax.trees import walk

SHOWS = frozenset({"print", "debug", "info", "log", "warning"})
KEEPS = frozenset({"sum", "int", "float", "round", "str", "format"})  # what a number says
OF_MODEL = re.compile(r"param|model|weight", re.IGNORECASE)
OF_PART = re.compile(r"rank|local|shard|gpu|device|process|worker|each|memory|part", re.IGNORECASE)


def are_shown_as_the_models(site: Site) -> bool:
    """Whether all that is counted at a site goes into messages which say it of the model."""
    found = [
        node
        for node in walk(site.node)
        if isinstance(node, ast.Call) and last_name(node.func) in COUNTS
    ]
    return bool(found) and all(_is_shown(each, site.module, set()) for each in found)


def _is_shown(node: ast.expr, module: Module, seen: set[str]) -> bool:
    """Whether a number does nothing but go into such messages, under whatever names."""
    parents = module.table.parents
    child: ast.AST = node
    for parent in module.table.ancestors(node):
        match parent:
            case ast.Call(func=func) if child is not func and last_name(func) in SHOWS:
                return isinstance(parents[parent], ast.Expr) and _is_of_model(parent)
            case ast.Call(func=func) if child is func or last_name(func) in KEEPS:
                pass
            case ast.Attribute(attr="format") | ast.keyword() | ast.JoinedStr():
                pass
            case ast.BinOp() | ast.UnaryOp() | ast.FormattedValue() | ast.Tuple():
                pass
            case ast.GeneratorExp(elt=element) | ast.ListComp(elt=element) if child is element:
                pass
            case ast.Assign(targets=[ast.Name(id=name)]) | ast.AugAssign(target=ast.Name(id=name)):
                reads = _reads(name, parent, module)
                rest = () if name in seen else reads
                return bool(reads) and all(_is_shown(r, module, {*seen, name}) for r in rest)
            case _:
                return False
        child = parent
    return False


def _reads(name: str, statement: ast.stmt, module: Module) -> list[ast.Name]:
    """The reads of a name of a function's own; none where others may see it."""
    scope = module.table.scope_of(statement)
    if not scope.is_function or name not in scope.bindings:
        return []
    return list(module.table.reads(name, scope))


def _is_of_model(message: ast.Call) -> bool:
    """Whether a message speaks of the model, and of nothing that only a part of it is."""
    given = [*message.args, *(keyword.value for keyword in message.keywords)]
    words = " ".join(word for each in given for node in walk(each) for word in _words(node))
    texts = " ".join(
        str(node.value)
        for each in given
        for node in walk(each)
        if isinstance(node, ast.Constant) and isinstance(node.value, str)
    )
    return bool(OF_MODEL.search(texts)) and not OF_PART.search(words)


def _words(node: ast.AST) -> Iterator[str]:
    match node:
        case ast.Name(id=word) | ast.Attribute(attr=word) | ast.Constant(value=str(word)):
            yield word
