"""Arguments in a dictionary of the same file that has some of them in one case only.

``if args.units: params["auto_wrap_policy"] = ...``, and then ``FSDP(model, **params)``: the call
asks for ``params.get("auto_wrap_policy")``, which is None where the dictionary lacks it.
"""

from __future__ import annotations

import ast
from collections import defaultdict
from functools import partial

from fsdp_migrate.families.wrapping import keyword_dictionaries, written_dictionaries
from fsdp_migrate.families.wrapping.taken_contents import Contents, Found
from fsdp_migrate.families.wrapping.written_dictionaries import Unreadable
from fsdp_migrate.planning.context import Study
from fsdp_migrate.planning.model import Constructor
from fsdp_migrate.syntax.scopes import Scope


def of_variables(spread: dict[Constructor, ast.expr], study: Study) -> Found:
    """Constructors that are given what a name of their file has."""
    given: dict[tuple[Scope, str], list[Constructor]] = defaultdict(list)
    for constructor, dictionary in spread.items():
        if isinstance(dictionary, ast.Name):
            scope = constructor.module.table.within[dictionary].lookup(dictionary.id)
            if scope is not None and not scope.is_class:
                given[scope, dictionary.id].append(constructor)
    for (scope, name), constructors in given.items():
        yield constructors, partial(_of_variable, name, scope, constructors, study)


def _of_variable(
    name: str, scope: Scope, constructors: list[Constructor], study: Study
) -> Contents:
    """The dictionary that a name has in a scope, where nothing else reads it.

    Raises:
        Unreadable: it is made, changed or read in another way, or it may change later.
    """
    module = constructors[0].module
    if keyword_dictionaries.is_known_elsewhere(name, scope, module, study):
        raise Unreadable("another file may change it")
    calls = {constructor.call for constructor in constructors}
    readers = {keyword for call in calls for keyword in call.keywords}
    entries = tuple(written_dictionaries.entries_of(name, scope, readers, module))
    last = max((e.statement.end_lineno or e.statement.lineno for e in entries), default=0)
    if any(call.lineno <= last for call in calls):
        raise Unreadable("it changes after the call")
    [(_, made), *_] = written_dictionaries.made_by(name, scope)
    contents = Contents(module, entries, made=made)
    contents.members = contents.written_members(study)
    return contents
