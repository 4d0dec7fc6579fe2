"""The gate before writing: is the new file whole?

It must parse and compile, every name that was bound must still be bound, and every call of torch's
must fit its signature in the target torch.
"""

from __future__ import annotations

import ast
import builtins
from collections import Counter
from dataclasses import replace

from packaging.version import Version

from fsdp_migrate import cells, names, signatures
from fsdp_migrate.notebook import SplitError
from fsdp_migrate.source import Source, SourceError
from fsdp_migrate.trace.project import Module


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
    wrong = Counter(mismatches(table, target))
    if wrong:
        wrong -= Counter(mismatches(module.table, target))
    return f"the result has a call that does not fit: {next(iter(wrong))}" if wrong else ""


def parse(module: Module, new: bytes) -> Module | str:
    """The module with new bytes, or what is wrong with them."""
    try:
        source = Source.parse(new, path=module.path, display=module.display)
        cells.renewed(module, source)
    except SourceError as error:
        return f"the result {error.message} (line {error.line})"
    except SplitError as error:
        return str(error)
    return replace(module, source=source)


def unbound(table: names.NameTable) -> set[str]:
    """Names that are read but bound nowhere the language would look."""
    known = set(dir(builtins)) | {"__file__", "__name__", "__doc__", "__path__", "__spec__"}
    known |= {"__class__", "__module__", "__qualname__", "__builtins__", "__loader__"}
    known |= table.module.bindings.keys()
    found: set[str] = set()
    for name in table.names:
        read = name.id not in known and isinstance(name.ctx, ast.Load)
        if read and table.within[name].lookup(name.id) is None:
            found.add(name.id)
    return found


def mismatches(table: names.NameTable, target: Version) -> list[str]:
    """Calls of torch's functions, and of FSDP2's methods, that their signatures do not allow."""
    offered = signatures.load()
    found: list[str] = []
    named = offered.last_names | offered.by_attribute.keys()
    named |= {binding.name for binding in table.imports if binding.qualified in offered.functions}
    for call in table.calls:
        if names.last_part(call.func) not in named:
            continue
        known = [n for n in table.qualify(call.func) if n in offered.functions]
        if not known and isinstance(call.func, ast.Attribute) and not table.qualify(call.func):
            method = offered.by_attribute.get(call.func.attr)
            known = [method] if method is not None else []
        problems = [offered.mismatch(name, call, target) for name in known]
        if problems and all(problems):
            found.append(problems[0])
    return found
