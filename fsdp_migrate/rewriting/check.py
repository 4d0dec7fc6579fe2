"""The gate before writing: is the new file whole?

It must parse and compile, every name that was bound where it is read must still be bound there, and
every call of torch's must fit its signature in the target torch.
"""

from __future__ import annotations

import ast
from collections import Counter
from collections.abc import Collection, Iterator
from dataclasses import replace

from packaging.version import Version

from fsdp_migrate import signatures
from fsdp_migrate.analysis.module import Module
from fsdp_migrate.fsdp1 import api as fsdp1
from fsdp_migrate.planning import support_library
from fsdp_migrate.rewriting import cells
from fsdp_migrate.rewriting.bound_names.conditions import condition_text
from fsdp_migrate.rewriting.bound_names.reads import ALWAYS_BOUND, DIRECTLY, UnsureRead, place_of
from fsdp_migrate.rewriting.bound_names.walk import find_unsure_reads
from fsdp_migrate.syntax.magics import SplitError
from fsdp_migrate.syntax.name_table import NameTable
from fsdp_migrate.syntax.source import Source, SourceError
from fsdp_migrate.syntax.trees import last_part, walk

UNSURE = "the result may use a name before it is bound"  # which proves no mistake


def defect(module: Module, new: Module, target: Version) -> str:
    """What is wrong with the new version of a module, or nothing."""
    try:
        if new.source.excerpt is None:
            compile(new.source.tree, module.display, "exec", dont_inherit=True)
        else:
            for part in new.source.excerpt.compiled_parts(new.source.text):
                flags = ast.PyCF_ALLOW_TOP_LEVEL_AWAIT
                compile(part, module.display, "exec", flags, dont_inherit=True)
    except (SyntaxError, ValueError) as error:
        return f"the result does not compile: {error}"
    table = new.table
    if not module.table.stars:
        lost = unbound(table)
        lost = lost - unbound(module.table) if lost else lost
        if lost:
            return f"the result uses names that nothing binds: {', '.join(sorted(lost))}"
    early = too_early(module.table, table)
    if early:
        return f"{UNSURE}: {early.name} (line {early.line})"
    wrong = Counter(mismatches(table, target))
    if wrong:
        wrong -= Counter(mismatches(module.table, target, lent=table))
    return f"the result has a call that does not fit: {next(iter(wrong))}" if wrong else ""


def parse(module: Module, new: bytes) -> Module | str:
    """The module with new bytes, or what is wrong with them."""
    try:
        source = Source.parse(new, path=module.path, display=module.display)
        cells.take_over_cells(module, source)
    except SourceError as error:
        return f"the result {error.message} (line {error.line})"
    except SplitError as error:
        return str(error)
    return replace(module, source=source)


def unbound(table: NameTable) -> set[str]:
    """Names that are read but bound nowhere the language would look."""
    known = ALWAYS_BOUND | {"__class__", "__module__", "__qualname__", "__builtins__"}
    known |= table.module.bindings.keys()
    found: set[str] = set()
    for name in table.names:
        read = name.id not in known and isinstance(name.ctx, ast.Load)
        if read and table.within[name].lookup(name.id) is None:
            found.add(name.id)
    return found


def too_early(old: NameTable, new: NameTable) -> UnsureRead | None:
    """The first read that may find nothing bound, though the old file was sure of it.

    The old file was not sure if it had an unsure read of the same name at the same place, or of a
    name that was imported for that place and no longer is, or of one that another name stands for
    now wherever it was bound. Of several places that one event leads to, the first is named; behind
    a guard another one is, which the old file had as well.
    """
    found = find_unsure_reads(new)
    gone_with = _with_else(old) - _with_else(new) if found else None
    if gone_with:  # perhaps because of an ``else`` that only older releases ran, and which is gone
        found = find_unsure_reads(new, gone_with)
    if not found:
        return None
    known = find_unsure_reads(old)
    here = {(d.name, d.place, d.event) for d in known}
    found = {d for d in found if (d.name, d.place, d.event) not in here}
    found = {d for d in found if not _stood_there(d, known, old)} if found and known else found
    found = {d for d in found if not _is_renamed(d, known, old, new)} if found and known else found
    if not found:  # as nearly always
        return None
    # What is not imported may be in a function of our own by now, within the one that had it.
    outer = {(d.name, d.place.split(".")[0], d.event) for d in known if not d.imported}
    gone = {b.name for b in old.imports} - {b.name for b in new.imports}
    replaced = {(d.place, d.event) for d in known if d.imported and d.name in gone}
    # FSDP1's own names may be missing where their import is guarded; so may what replaces them.
    fsdp1s = {b.name for b in old.imports if fsdp1.is_in_package(b.qualified)}
    unsure = find_unsure_reads(old, maybe_none=fsdp1s)
    replaced |= {(d.place, d.event) for d in unsure if d.name in fsdp1s}
    fresh = {b.name for b in new.imports} - {b.name for b in old.imports}
    early = [
        d
        for d in found
        if (d.imported or (d.name, d.place.split(".")[0], d.event) not in outer)
        and not (d.name in fresh and (d.place, d.event) in replaced)
    ]
    return min(early, key=lambda d: d.line, default=None)


def _stood_there(read: UnsureRead, known: Collection[UnsureRead], old: NameTable) -> bool:
    """Whether the old file read a name of the module at a place, and what leads there found it
    unsure already."""
    led_there = any((d.name, d.event) == (read.name, read.event) for d in known)
    if read.event == DIRECTLY or not led_there:
        return False
    names = [n for n in old.names_by_id.named(read.name) if isinstance(n.ctx, ast.Load)]
    there = (n for n in names if old.within[n].lookup(n.id) is old.module)
    return any(place_of(n, old) == read.place for n in there)


def _is_renamed(
    read: UnsureRead, known: Collection[UnsureRead], old: NameTable, new: NameTable
) -> bool:
    """Whether a name is new and bound under the conditions under which another was that is gone,
    which was read there and was not sure either."""
    there = _conditions(read.name, read.place, new)
    if not there or _conditions(read.name, read.place, old):
        return False
    gone = {d.name for d in known if (d.place, d.event) == (read.place, read.event)}
    return any(
        _conditions(name, read.place, old) == there and not _conditions(name, read.place, new)
        for name in gone
    )


def _conditions(name: str, place: str, table: NameTable) -> list[list[tuple[str, ...]]]:
    """The blocks around each statement of a function that binds a name, in their order."""
    found = []
    for scope in table.scopes.values():
        body = getattr(scope.node, "body", None)
        if name not in scope.bindings or not isinstance(body, list):
            continue
        if place_of(body[0], table) == place:
            found += [_blocks_around(b.node, scope.node, table) for b in scope.bindings[name]]
    return found


def _blocks_around(node: ast.AST, top: ast.AST, table: NameTable) -> list[tuple[str, ...]]:
    """The statements around one below ``top``: their conditions, and which block it is in."""
    around = []
    for outer in table.ancestors(node):
        if outer is top:
            break
        lists = [(n, value) for n, value in ast.iter_fields(outer) if isinstance(value, list)]
        blocks = [n for n, value in lists if node in value]
        test = condition_text(outer.test) if isinstance(outer, ast.If) else type(outer).__name__
        around.append((test, *blocks))
        node = outer
    return around


def _with_else(table: NameTable) -> set[str]:
    """The conditions that have an ``else``."""
    chains = (node for node in walk(table.tree) if isinstance(node, ast.If))
    return {condition_text(node.test) for node in chains if node.orelse}


def mismatches(table: NameTable, target: Version, lent: NameTable | None = None) -> list[str]:
    """Calls of torch's functions, FSDP2's methods and our support functions that their signatures
    do not allow. A name that nothing binds here is what the imports of ``lent`` make of it."""
    offered = signatures.load()
    found: list[str] = []
    named = offered.last_names | offered.by_attribute.keys()
    named |= {binding.name for binding in table.imports if binding.qualified in offered.functions}
    for call in table.calls:
        if last_part(call.func) not in named:
            continue
        known = [n for n in table.qualify(call.func) if n in offered.functions]
        if lent is not None and isinstance(call.func, ast.Name) and not known:
            bound = table.within[call.func].lookup(call.func.id) is not None
            known = [] if bound else [b.qualified for b in lent.imports if b.name == call.func.id]
            known = [n for n in known if n in offered.functions]
        if not known and isinstance(call.func, ast.Attribute) and not table.qualify(call.func):
            method = offered.by_attribute.get(call.func.attr)
            known = [method] if method is not None else []
        problems = [offered.mismatch(name, call, target) for name in known]
        if problems and all(problems):
            found.append(problems[0])
    return [*found, *_misfits_of_support(table)]


def _misfits_of_support(table: NameTable) -> Iterator[str]:
    """Calls of functions of a support file that its signatures do not allow."""
    if not any(support_library.NAME in binding.qualified for binding in table.imports):
        return
    for call in table.calls:
        for name in table.qualify(call.func):
            function = name.rpartition(".")[2] if support_library.is_spelled(name) else ""
            parameters = support_library.parameters(function)
            problem = signatures.misfit(call, parameters) if parameters is not None else ""
            if problem:
                yield f"{function} of the support module: {problem}"
