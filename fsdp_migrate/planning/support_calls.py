"""What a project's files call of a support file, and with which arguments."""

from __future__ import annotations

import ast
import re
from collections.abc import Collection, Iterable, Iterator

from fsdp_migrate.analysis.module import Module
from fsdp_migrate.planning import support_library as library
from fsdp_migrate.planning.library_source import passed
from fsdp_migrate.planning.partial_evaluation import Entries

SUGGESTED = re.compile(r"\b(\w+)=")  # what a comment, as ours do, tells the reader to pass

Offered = dict[str, frozenset[str] | None]


def entries(modules: Iterable[Module], wanted: Collection[str], present: Module | None) -> Entries:
    """The support functions that files call, each with the parameters that may be passed.

    Args:
        modules: the files as they will be.
        wanted: functions that the support file must have.
        present: the support file as it is; files out of sight may call what it has.
    """
    found: Offered = {} if present is None else offered(present)
    uses = list(_uses([m for m in modules if not library.is_ours(m)], {*wanted, *found}))
    seen = {name for name, _ in uses}
    found |= {name: frozenset() if name in seen else None for name in wanted - found.keys()}
    for name, parameters in uses:
        known = found[name]
        found[name] = None if known is None or parameters is None else known | parameters
    return found


def offered(module: Module) -> Offered:
    """The public functions and classes of a support file, each with the parameters it has."""
    found: Offered = {}
    for node in module.source.tree.body:
        if isinstance(node, ast.ClassDef):
            found[node.name] = None
        elif isinstance(node, ast.FunctionDef) and not node.name.startswith("_"):
            given = node.args
            listed = (*given.posonlyargs, *given.args, *given.kwonlyargs)
            found[node.name] = frozenset(p.arg for p in listed)
    return found


def _uses(
    modules: Iterable[Module], wanted: Collection[str]
) -> Iterator[tuple[str, frozenset[str] | None]]:
    """Each mention of a function, with the parameters that are passed there; None for any."""
    names = {name: name for name in wanted}
    users = []
    for module in modules:
        if module.mentions(*wanted):
            users.append(module)
            for binding in module.table.imports:
                if library.is_spelled(binding.qualified):
                    names[binding.name] = binding.qualified.rpartition(".")[2]
    for module in users:
        given = [
            (function, _passed(node, function, module))
            for node in (*module.table.names, *module.table.attributes)
            for qualified in module.table.qualify(node)
            if (function := names.get(qualified.rpartition(".")[2], "")) in wanted
            and "." in qualified
        ]
        if given:
            comments = module.source.comments(1, len(module.source.lines))
            suggested = SUGGESTED.findall("".join(text for _, _, text in comments))
            yield from ((f, None if p is None else p.union(suggested)) for f, p in given)


def _passed(node: ast.expr, function: str, module: Module) -> frozenset[str] | None:
    call = module.table.parents.get(node)
    definition = library.definitions().get(function)
    if not isinstance(definition, ast.FunctionDef):
        return None
    if not isinstance(call, ast.Call) or call.func is not node:
        return None
    given = passed(call, definition)
    return None if given is None else frozenset(given)
