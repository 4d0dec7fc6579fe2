"""Short support functions that one file alone needs are written into that file."""

from __future__ import annotations

import ast
from collections.abc import Collection, Mapping, Sequence

from fsdp_migrate.analysis.module import Module
from fsdp_migrate.analysis.project import Project
from fsdp_migrate.planning import support_library as library
from fsdp_migrate.planning.edits import (
    Code,
    Define,
    Edit,
    Import,
    Insert,
    ReplaceStatement,
    Support,
)
from fsdp_migrate.syntax.scopes import Binding

LONGEST = 20  # lines of code, docstrings aside, of all that a file defines itself
LONGEST_WITHOUT_PLACE = 60  # the same, where no one import of a support file works
LINE = 88  # of imports


def define(
    project: Project,
    needs: Mapping[Module, Sequence[Support]],
    edits: Mapping[Module, Sequence[Edit]],
) -> dict[Module, list[Edit]]:
    """For each file that is to define what it needs: the definitions, and the imports for them."""
    if any(library.is_ours(module) for module in project.modules):
        return {}
    wanted = {m: library.closure(n.function for n in listed) for m, listed in needs.items()}
    found = {}
    for module, names in wanted.items():
        others = [wanted[other] for other in wanted if other is not module]
        if names.isdisjoint(set().union(*others)) and _are_short(names):
            made = _definitions(module, names, needs[module], edits[module])
            if made:
                found[module] = made
    return found


def define_without_place(
    module: Module, needs: Sequence[Support], edits: Sequence[Edit]
) -> list[Edit]:
    """The definitions for a file that can import no support file by every name that it has.

    Others may have the same functions: no value of theirs is told apart, as classes would be.
    """
    names = library.closure(need.function for need in needs)
    if not _are_short(names, LONGEST_WITHOUT_PLACE):
        return []
    return _definitions(module, names, needs, edits)


def define_alone(
    project: Project,
    users: Sequence[Module],
    needs: Mapping[Module, Sequence[Support]],
    edits: Mapping[Module, Sequence[Edit]],
) -> list[Edit]:
    """The definitions for a file that would be the only one to import a support file: it may run
    where that is not, as a function does that is sent elsewhere with the file that it stands in."""
    if len(users) != 1 or any(library.is_ours(module) for module in project.modules):
        return []
    (module,) = users
    names = library.closure(need.function for need in needs[module])
    return _definitions(module, names, needs[module], edits[module]) if _are_short(names) else []


def _are_short(names: Collection[str], longest: int = LONGEST) -> bool:
    if any(library.is_class(name) or library.has_unions(name) for name in names):
        return False
    return sum(map(library.lines_of_code, names)) <= longest


def _definitions(
    module: Module, names: set[str], needs: Sequence[Support], edits: Sequence[Edit]
) -> list[Edit]:
    """The functions above the file's first definition that stays; nothing where that does not
    do."""
    if not any(b.qualified.partition(".")[0] == "torch" for b in _imported_at_top(module)):
        return _definitions_inside(module, names, needs, edits)
    first = first_definition(module, needs, edits)
    table = module.table
    renamed = any(need.local != need.function for need in needs)
    taken = {*table.module.bindings, *(e.local for e in edits if isinstance(e, Import))}
    if first is None or renamed or not names.isdisjoint(taken):
        return []
    result: list[Edit] = []
    for need in library.imports_of(module, names, first):
        present = table.module.bindings.get(need.local)
        path = f"{need.source}.{need.name}" if need.name else need.source
        if present is None:
            others = [e for e in edits if isinstance(e, Import) and e.local == need.local]
            if any((e.source, e.name) != (need.source, need.name) for e in others):
                return []
            result.append(need)
        elif (
            len(present) != 1
            or present[0].qualified != path
            or not _is_at_top(present[0].node, module)
        ):
            return []
    plain = [text.replace("{", "{{").replace("}", "}}") for text in library.texts(names)]
    return [*result, *(Define(module, first, Code(text, {})) for text in plain)]


def _imported_at_top(module: Module) -> list[Binding]:
    return [b for b in module.table.imports if _is_at_top(b.node, module)]


def _definitions_inside(
    module: Module, names: set[str], needs: Sequence[Support], edits: Sequence[Edit]
) -> list[Edit]:
    """The functions inside the one function that needs them, of a file that imports no torch: it
    may be loaded where there is none."""
    table = module.table
    around = {_outermost(need.near, module) for need in needs}
    function = around.pop()
    if around or not isinstance(function, ast.FunctionDef):
        return []
    heads = (ast.Import, ast.ImportFrom, ast.Global, ast.Nonlocal, ast.Expr)
    first = next((s for s in function.body if not isinstance(s, heads)), None)
    bindings = table.scopes[function].bindings
    taken = {*table.module.bindings, *bindings}
    renamed = any(need.local != need.function for need in needs)
    if first is None or renamed or not names.isdisjoint(taken):
        return []
    if any(module.position(table.statement(n.near)) < module.position(first) for n in needs):
        return []
    result: list[Edit] = []
    for need in library.imports_of(module, names, first):
        present = bindings.get(need.local, ())
        path = f"{need.source}.{need.name}" if need.name else need.source
        others = [e for e in edits if isinstance(e, Import) and e.local == need.local]
        if any((e.source, e.name) != (need.source, need.name) for e in others):
            return []
        if not present:
            result.append(need)
        elif any(
            b.qualified != path or module.position(b.node) > module.position(first) for b in present
        ):
            return []
    plain = [text.replace("{", "{{").replace("}", "}}") for text in library.texts(names)]
    return [*result, _inserted(module, function, first, tuple(Code(text, {}) for text in plain))]


def _inserted(
    module: Module, function: ast.FunctionDef, first: ast.stmt, codes: tuple[Code, ...]
) -> Insert:
    """Behind the import in front of a function's first statement, so that what is said above that
    stays there; not behind one of torch, which may go."""
    at = function.body.index(first)
    before = function.body[at - 1] if at else None
    names = [a.name for a in before.names] if isinstance(before, ast.Import) else []
    names += [before.module or "torch"] if isinstance(before, ast.ImportFrom) else []
    if before is not None and names and not any(n.startswith("torch") for n in names):
        return Insert(module, before, codes, after=True)
    return Insert(module, first, codes)


def _outermost(node: ast.AST, module: Module) -> ast.AST | None:
    """The function of the file itself that a node stands in."""
    around = [node, *module.table.ancestors(node)]
    return around[-2] if len(around) > 1 else None


def first_definition(
    module: Module, needs: Sequence[Support], edits: Sequence[Edit]
) -> ast.stmt | None:
    """The file's first definition that stays, unless something is needed above it; of a file
    without any, its first statement behind the imports."""
    if module.source.excerpt is not None:
        return None
    gone = {e.node for e in edits if isinstance(e, ReplaceStatement) and not e.codes}
    body = module.source.tree.body
    staying = [n for n in body if n not in gone]
    first: ast.stmt | None = next((n for n in staying if isinstance(n, Define.ABOVE)), None)
    if first is None:
        imports = [at for at, n in enumerate(body) if isinstance(n, (ast.Import, ast.ImportFrom))]
        behind = body[max(imports, default=-1) + 1 :]
        first = next((n for n in behind if n not in gone), None)
    places = [module.position(module.table.statement(need.near)) for need in needs]
    return None if first is None or min(places) < module.position(first) else first


def import_either_way(
    module: Module, needs: Sequence[Support], edits: Sequence[Edit], source: str
) -> list[Edit]:
    """The import of a support file beside a file that is loaded as a part of its package and by
    its bare name: where there is no package, a relative import raises ImportError."""
    first = first_definition(module, needs, edits)
    assert first is not None
    spelled = {
        need.local if need.local == need.function else f"{need.function} as {need.local}"
        for need in needs
    }
    lines = [
        "try:",
        *_import_lines(f".{source}", sorted(spelled)),
        "except ImportError:  # no part of a package",
        *_import_lines(source, sorted(spelled)),
    ]
    return [Define(module, first, Code("\n".join(lines), {}))]


def _import_lines(source: str, spelled: Sequence[str]) -> list[str]:
    line = f"    from {source} import {', '.join(spelled)}"
    if len(line) <= LINE:
        return [line]
    return [f"    from {source} import (", *(f"        {name}," for name in spelled), "    )"]


def _is_at_top(alias: ast.AST, module: Module) -> bool:
    """Whether an import stands at the top of the file, under no condition."""
    return module.table.statement(alias) in module.source.tree.body
