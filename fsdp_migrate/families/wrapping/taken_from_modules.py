"""Arguments in a dictionary at the top of another file: ``from settings import FSDP_ARGUMENTS``."""

from __future__ import annotations

import ast
from collections import defaultdict
from collections.abc import Collection
from functools import partial

from fsdp_migrate.analysis import name_uses
from fsdp_migrate.analysis.module import Module
from fsdp_migrate.families.wrapping import written_dictionaries
from fsdp_migrate.families.wrapping.taken_contents import Contents, Found, read_use
from fsdp_migrate.families.wrapping.written_dictionaries import Unreadable
from fsdp_migrate.planning.context import Study
from fsdp_migrate.planning.model import Constructor


def of_modules(spread: dict[Constructor, ast.expr], study: Study) -> Found:
    """Constructors that are given what the top of another file has under a name."""
    given: dict[tuple[Module, str], list[Constructor]] = defaultdict(list)
    for constructor, dictionary in spread.items():
        if isinstance(dictionary, ast.Name):
            home = _home(dictionary, constructor.module, study)
            if home is not None and home is not constructor.module:
                given[home, dictionary.id].append(constructor)
    for (home, name), constructors in given.items():
        yield constructors, partial(_of_module, name, home, spread.values(), study)


def _home(dictionary: ast.Name, module: Module, study: Study) -> Module | None:
    """The file at the top of which the only value of a name gets the same name."""
    match [*study.values(dictionary, module)]:
        case [made]:
            statement = made.module.table.parents.get(made.node)
        case _:
            return None
    match statement:
        case ast.Assign(targets=[ast.Name(id=name)]) | ast.AnnAssign(target=ast.Name(id=name)):
            is_top = statement in made.module.source.tree.body
            return made.module if is_top and name == dictionary.id else None
    return None


def _of_module(name: str, home: Module, readers: Collection[ast.expr], study: Study) -> Contents:
    """The dictionary that a file has at its top, and what is done with it anywhere.

    Raises:
        Unreadable: it cannot be read, or something else may get it.
    """
    [(statement, display), *others] = written_dictionaries.made_by(name, home.table.module)
    uses = name_uses.uses_of(name, home.table.module, home, study.project)
    if others or uses is None:
        raise Unreadable("it is not just made once")
    contents = Contents(home, tuple(written_dictionaries.items_of(display, statement)))
    for use, module in uses:
        if home.table.parents.get(use) is not statement:
            read_use(use, module, contents, set(readers), stays=True)
    return contents
