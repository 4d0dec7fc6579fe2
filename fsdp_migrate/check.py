"""The gate before writing: is the new file whole?

It must parse and compile, every name that was bound must still be bound, and every emitted call
must fit the real signature in the target torch.
"""

from __future__ import annotations

import ast
import builtins

from fsdp_migrate import names
from fsdp_migrate.source import Source, SourceError
from fsdp_migrate.trace.project import Module


def defect(module: Module, new: bytes) -> str:
    """What is wrong with the new bytes of a module, or nothing."""
    try:
        source = Source.parse(new, path=module.path, display=module.display)
        compile(source.tree, module.display, "exec", dont_inherit=True)
    except SourceError as error:
        return f"the result {error.message} (line {error.line})"
    except (SyntaxError, ValueError) as error:
        return f"the result does not compile: {error}"
    table = names.build(source.tree, module.package)
    if not module.table.stars:
        lost = unbound(table) - unbound(module.table)
        if lost:
            return f"the result uses names that nothing binds: {', '.join(sorted(lost))}"
    return ""


def unbound(table: names.NameTable) -> set[str]:
    """Names that are read but bound nowhere the language would look."""
    known = set(dir(builtins)) | {"__file__", "__name__", "__doc__", "__path__", "__spec__"}
    known |= {"__class__", "__module__", "__qualname__", "__builtins__", "__loader__"}
    found: set[str] = set()
    for name in table.names:
        read = isinstance(name.ctx, ast.Load) and name.id not in known
        if read and table.within[name].lookup(name.id) is None:
            found.add(name.id)
    return found
