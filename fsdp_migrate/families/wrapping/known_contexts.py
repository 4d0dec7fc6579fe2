"""``with enable_wrap(wrapper_cls=FSDP, ...)`` that stands around the ``wrap`` calls it is for.

``wrap(x, ...)`` is the constructor then, whose arguments come from two places: its own, and those
of the context that it does not give itself. The ``with`` goes once they are written out. Where any
``wrap`` of the project runs in a context that is open elsewhere, all of them stay
(``wrap_contexts.py``).
"""

from __future__ import annotations

import ast
import sys
from collections import defaultdict
from collections.abc import Collection
from dataclasses import dataclass, replace

from fsdp_migrate.families.wrapping import keyword_dictionaries, written_dictionaries
from fsdp_migrate.families.wrapping.written_dictionaries import Unreadable
from fsdp_migrate.fsdp1 import api as fsdp1
from fsdp_migrate.fsdp1.construct import Construct, ConstructKind
from fsdp_migrate.fsdp1.site import Site
from fsdp_migrate.planning.context import Study
from fsdp_migrate.planning.model import (
    Constructor,
    Entry,
    KeywordDictionary,
    successor,
)
from fsdp_migrate.planning.wrap_contexts import KnownContext
from fsdp_migrate.syntax.expressions import last_name
from fsdp_migrate.syntax.kinds import present
from fsdp_migrate.syntax.scopes import Scope
from fsdp_migrate.syntax.trees import COMPREHENSIONS, FUNCTIONS, LOOPS

WRAP = Construct.parse("wrap")
CONTEXT = Construct.parse("enable_wrap")
CLASS = "wrapper_cls"
MAKES = Construct(ConstructKind.CONSTRUCTOR, fsdp1.FSDP)
# Libraries of models and tools, none of which calls torch's ``wrap``.
FOREIGN = frozenset(
    (
        *("accelerate", "apex", "bitsandbytes", "deepspeed", "diffusers", "einops", "flash_attn"),
        *("numpy", "open_clip", "peft", "timm", "torch", "torchvision", "transformers", "xformers"),
        *sys.stdlib_module_names,
    )
)
HARMLESS = frozenset({"bool", "dict", "float", "frozenset", "getattr", "int", "list", "set", "str"})


def register(contexts: list[Site], wraps: list[Site], study: Study) -> bool:
    """Register each ``wrap`` as a constructor, if all that they are given can be read."""
    try:
        known, shared = _read(contexts, wraps, study)
    except Unreadable:
        return False
    study.wrapping.known = known
    for each in shared:
        keyword_dictionaries.give(each.dictionary, each.constructors, study)
    for context in known.values():
        for wrap in context.wraps:
            study.tracer.wraps.add(wrap.call)
            study.constructors[wrap.call] = wrap
            if wrap.call not in study.run_time:  # else they are handed on as they are
                study.entries |= {e.node: wrap for e in context.entries}
                study.entries |= {e.value: wrap for e in context.entries}
    return True


def as_constructors(found: list[Site], study: Study) -> list[Site]:
    """``found`` with each ``wrap`` that is one as a constructor of FSDP1.

    The classes that known contexts are given go with these: a part of the call is no site, one in
    a dictionary is a site of theirs.
    """
    known = study.wrapping.known.values()
    wraps = {wrap.call for context in known for wrap in context.wraps}
    classes: dict[ast.AST, KnownContext] = {context.made_of: context for context in known}
    result = []
    for site in found:
        context = classes.get(site.reference)
        if site.node in wraps:
            result.append(Site(MAKES, site.module, site.node, site.reference))
        elif context is None:
            result.append(site)
        elif context.dictionary:
            result.append(Site(CONTEXT, site.module, site.node, site.reference))
    return result


@dataclass(frozen=True, eq=False)
class Shared:
    """A dictionary that contexts and constructors are given: each ``wrap`` is one more of these."""

    dictionary: KeywordDictionary
    constructors: list[Constructor]


def _read(
    contexts: list[Site], wraps: list[Site], study: Study
) -> tuple[dict[ast.AST, KnownContext], list[Shared]]:
    """The contexts, by their calls, and the dictionaries that constructors read as well.

    Raises:
        Unreadable: not all of them can be known.
    """
    readers = {
        k for site in contexts if isinstance(site.node, ast.Call) for k in site.call.keywords
    }
    known: dict[ast.AST, KnownContext] = {
        site.node: _context(site, readers, study) for site in contexts
    }
    inside: dict[ast.AST, set[Constructor]] = {call: set() for call in known}
    nodes = {site.node for site in wraps}
    for site in wraps:
        inside[_around(site, known)].add(_constructor(site, nodes))
    shared: dict[frozenset[ast.stmt], set[Constructor]] = defaultdict(set)
    for site in contexts:
        context = known[site.node]
        if not inside[site.node]:
            raise Unreadable("no wrap in the given paths runs in it")
        _check_calls(context, site, study)
        taking = {wrap: context.given(wrap).entries for wrap in inside[site.node]}
        for entry in context.entries:
            takers = [wrap for wrap, entries in taking.items() if entry in entries]
            _check(entry, context, takers, site, study)
        shared[context.dictionary] |= inside[site.node]
    for call, context in known.items():
        together = shared[context.dictionary] if context.dictionary else inside[call]
        known[call] = replace(context, wraps=frozenset(together))
        for wrap in inside[call] if context.spread is None else ():
            wrap.dictionary = known[call].given(wrap)
            wrap.arguments |= {e.name: e.value for e in wrap.dictionary.entries}
    return known, _shared(contexts, known, study)


def _shared(contexts: list[Site], known: dict[ast.AST, KnownContext], study: Study) -> list[Shared]:
    """The dictionaries that contexts and constructors are given.

    Raises:
        Unreadable: one is made, changed or read in another way, or a ``wrap`` has more than it.
    """
    given: dict[tuple[Scope, str], list[Site]] = defaultdict(list)
    for site in contexts:
        name = known[site.node].spread
        if name is not None:
            given[present(site.module.table.scope_of(name).lookup(name.id)), name.id].append(site)
    result = []
    for (scope, spelled), sites in given.items():
        inside = {wrap for site in sites for wrap in known[site.node].wraps}
        if any(wrap.call in study.run_time or len(wrap.arguments) > 1 for wrap in inside):
            raise Unreadable("they are handed on as they are, or a wrap has arguments of its own")
        beside = _with_same(scope, spelled, study)
        together = sorted({*beside, *inside}, key=lambda each: each.call.lineno)
        others = {keyword for site in sites for keyword in site.call.keywords}
        dictionary = keyword_dictionaries.read(spelled, scope, together, study, others)
        result.append(Shared(dictionary, together))
    return result


def _is_shared(name: ast.Name, site: Site, study: Study) -> bool:
    """Whether constructors are given the dictionary that a context has."""
    scope = site.module.table.scope_of(name).lookup(name.id)
    return scope is not None and not scope.is_class and bool(_with_same(scope, name.id, study))


def _with_same(scope: Scope, name: str, study: Study) -> list[Constructor]:
    """The constructors whose arguments are in the dictionary that has a name in a scope."""
    found = []
    for constructor in study.constructors.values():
        given = keyword_dictionaries.spread_of(constructor, study)
        if isinstance(given, ast.Name) and constructor.call not in study.kept_dictionaries:
            table = constructor.module.table
            if given.id == name and table.scope_of(given).lookup(name) is scope:
                found.append(constructor)
    return found


def _context(site: Site, readers: Collection[ast.AST], study: Study) -> KnownContext:
    """What one context is given, ``readers`` being the arguments of all of them."""
    table = site.module.table
    item = table.parents[site.node]
    statement = table.parents.get(item)
    if not isinstance(item, ast.withitem) or not isinstance(statement, ast.With):
        raise Unreadable("it is entered in another way")
    is_called = isinstance(site.node, ast.Call) and site.call.func is site.reference
    if not is_called or site.call.args or item.optional_vars is not None:
        raise Unreadable("it is called in another way")
    entries: list[Entry] = []
    made: set[ast.stmt] = set()
    spread: ast.Name | None = None
    for keyword in site.call.keywords:
        name = successor(keyword)
        if name is not None:
            entries.append(
                Entry(name, keyword, keyword.value, keyword, statement, False, site.call)
            )
            continue
        if isinstance(keyword.value, ast.Name) and _is_shared(keyword.value, site, study):
            spread = keyword.value
            continue
        if isinstance(keyword.value, ast.Dict):
            entries += written_dictionaries.items_of(keyword.value, statement)
            continue
        start, added = _of_dictionary(keyword.value, readers, site, study)
        made |= {start, *(each.statement for each in added)}
        entries += added
    classes = [entry.value for entry in entries if entry.name == CLASS]
    arguments = tuple(entry for entry in entries if entry.name != CLASS)
    names = {entry.name for entry in arguments}
    if len(classes) != 1 or not _is_fsdp1(classes[0], site, study):
        raise Unreadable("its class is not known")
    if spread is not None and arguments:
        raise Unreadable("it has more than the dictionary")
    if len(names) < len(arguments) or not names <= set(fsdp1.CONSTRUCTOR_ARGUMENTS[1:]):
        raise Unreadable("it does not have each argument once")
    index = statement.items.index(item)
    return KnownContext(
        statement, index, arguments, classes[0], frozenset(made), frozenset(), spread
    )


def _is_fsdp1(given: ast.expr, site: Site, study: Study) -> bool:
    names = study.external(given, site.module)
    unsure = study.project.look_alikes(given, site.module)
    return bool(names) and all(fsdp1.canonical(n) == fsdp1.FSDP for n in names) and not unsure


def _of_dictionary(
    given: ast.expr, readers: Collection[ast.AST], site: Site, study: Study
) -> tuple[ast.stmt, list[Entry]]:
    """``params`` of ``enable_wrap(**params)``, which only contexts read: where it is made, and
    what it has."""
    module = site.module
    scope = module.table.scope_of(site.node)
    home = scope.lookup(given.id) if isinstance(given, ast.Name) else None
    if not isinstance(given, ast.Name) or home is None or home.is_class:
        raise Unreadable("it is made in another way")
    if keyword_dictionaries.is_known_elsewhere(given.id, home, module, study):
        raise Unreadable("another file may change it")
    entries = list(written_dictionaries.entries_of(given.id, home, readers, module))
    if any(e.is_conditional or e.statement.lineno >= site.call.lineno for e in entries):
        raise Unreadable("what it has depends on when it is asked")
    match written_dictionaries.made_by(given.id, home):
        case [(statement, _)]:
            return statement, entries
    raise Unreadable("it is made in several places")


def _constructor(site: Site, nodes: Collection[ast.AST]) -> Constructor:
    if not isinstance(site.node, ast.Call) or site.node.func is not site.reference:
        raise Unreadable("it is handed on as a value")
    wrap = Constructor.read(site.call, site.module, site.reference)
    if wrap.problem or len(site.call.args) > 1 or wrap.wrapped in nodes:
        raise Unreadable("its arguments cannot be read, or it wraps twice")
    return wrap


def _around(site: Site, known: Collection[ast.AST]) -> ast.AST:
    """The only context around a ``wrap`` in its function, open for certain when it is called."""
    found: list[ast.AST] = []
    in_function = True
    child: ast.AST = site.node
    for parent in site.module.table.ancestors(site.node):
        if isinstance(parent, FUNCTIONS):
            in_function = False
        elif isinstance(parent, ast.GeneratorExp) and not isinstance(
            site.module.table.parents[parent], (ast.Call, ast.Starred)
        ):
            raise Unreadable("it may be asked for later")
        elif isinstance(parent, ast.With):
            calls = [item.context_expr for item in parent.items if item.context_expr in known]
            if calls and not (in_function and child in parent.body):
                raise Unreadable("it runs when a function is called")
            found += calls
        child = parent
    if len(found) != 1:
        raise Unreadable("it runs in a context that is open elsewhere, or in two")
    return found[0]


def _check_calls(context: KnownContext, site: Site, study: Study) -> None:
    """Refuse a context in which code outside the given paths is called, which may call ``wrap``."""
    for call in (n for statement in context.statement.body for n in ast.walk(statement)):
        if not isinstance(call, ast.Call):
            continue
        for name in study.external(call.func, site.module):
            if name.split(".", 1)[0] not in FOREIGN:
                raise Unreadable(f"{name} is outside the given paths")


def _check(
    entry: Entry, context: KnownContext, wraps: list[Constructor], site: Site, study: Study
) -> None:
    """Refuse an argument that may be another where it is written out, or is to be made once."""
    table = site.module.table
    if not wraps:
        return
    last = max(wrap.statement.lineno for wrap in wraps)
    body = [node for statement in context.statement.body for node in ast.walk(statement)]
    at_context = table.scope_of(context.statement)
    read = {last_name(node) for node in ast.walk(entry.value)} - {""}
    for node in ast.walk(entry.value):
        meant = table.within[node].lookup(node.id) if isinstance(node, ast.Name) else None
        if not isinstance(node, ast.Name) or meant is not at_context.lookup(node.id):
            continue  # a variable of the value's own
        if any(table.scope_of(wrap.call).lookup(node.id) is not meant for wrap in wraps):
            raise Unreadable(f"{node.id} is another at the call")
        if entry.statement is not context.statement:
            for wrap in wraps:
                keyword_dictionaries.check_names(entry, at_context, wrap)
    for node in body:
        target = node.value if isinstance(node, ast.Subscript) else node
        is_set = not isinstance(getattr(node, "ctx", ast.Load()), ast.Load)
        if is_set and last_name(target) in read:
            statement = table.statement(node)
            if statement.lineno < last or _is_repeated(node, context, site):
                raise Unreadable(f"{last_name(target)} is another at the call")
    once = len(wraps) == 1 and not _is_repeated(wraps[0].call, context, site)
    if not once and entry.name != "device_id":
        for node in ast.walk(entry.value):
            if isinstance(node, ast.Call) and not _is_harmless(node, site, study):
                raise Unreadable(f"{entry.name} is made once")


def _is_repeated(node: ast.AST, context: KnownContext, site: Site) -> bool:
    for parent in site.module.table.ancestors(node):
        if parent is context.statement:
            return False
        if isinstance(parent, (*LOOPS, *COMPREHENSIONS)):
            return True
    return False


def _is_harmless(call: ast.Call, site: Site, study: Study) -> bool:
    """Whether something may be called several times instead of once: it makes a mere value."""
    if isinstance(call.func, ast.Name) and call.func.id in HARMLESS:
        return site.module.table.scope_of(call).lookup(call.func.id) is None
    names = study.external(call.func, site.module)
    return bool(names) and all(
        name == "functools.partial"
        or name.startswith("torch.distributed.fsdp.")
        or (name.startswith("torch.") and not name.startswith("torch.distributed."))
        for name in names
    )
