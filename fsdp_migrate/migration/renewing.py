"""The new bytes of edited modules, and what is wrong with them; what edits leave unused goes."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence

from fsdp_migrate.analysis.module import Module
from fsdp_migrate.analysis.project import Project
from fsdp_migrate.migration.selection import Options
from fsdp_migrate.planning.edits import Edit
from fsdp_migrate.rewriting import check


def renewer(
    project: Project, edits: Mapping[Module, Sequence[Edit]], options: Options
) -> Callable[[Module], tuple[bytes, str, Module | None]]:
    """Makes a module's new bytes; what is wrong with them; the new module where it is made in this
    process, for between processes only bytes travel: trees are dearer to send than to make."""
    from fsdp_migrate.rewriting import unused_names
    from fsdp_migrate.rewriting.apply import apply_edits
    from fsdp_migrate.rewriting.edit_plan import EditError

    process = os.getpid()
    local = project.packages | options.first_party if edits else frozenset()
    asked_for = unused_names.still_asked_for(project, edits)

    def edited(module: Module, unused: unused_names.Unused) -> tuple[bytes, Module | str]:
        try:
            new = apply_edits(
                module,
                unused.applied(module, edits[module]),
                line_length=options.line_length,
                local=local,
                single_line_imports=options.single_line_imports,
            )
        except EditError as error:
            return b"", str(error)
        return new, module if new == module.source.data else check.parse(module, new)

    def renew(module: Module) -> tuple[bytes, str, Module | None]:
        unused = unused_names.find(module, edits[module], asked_for[module])
        new, after = edited(module, unused)
        if isinstance(after, Module) and after is not module:
            known = unused_names.find(module, edits[module], asked_for[module], after)
            if known != unused:
                new, after = edited(module, known)
        if isinstance(after, str):
            return new, after, None
        if after is module:
            return new, "", None
        here = after if os.getpid() == process else None
        return new, check.defect(module, after, options.target), here

    return renew
