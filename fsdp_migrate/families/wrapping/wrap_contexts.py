"""``enable_wrap(wrapper_cls=FSDP, ...)`` and ``wrap(x)``: FSDP1's constructor in two parts.

The context holds the arguments, every ``wrap`` called while it is open is the constructor's call,
in whatever file. Both are plain torch and work with any function for ``wrapper_cls``; outside of
a context ``wrap`` hands back what it is given.
"""

from __future__ import annotations

import ast
from enum import Enum, auto
from typing import TYPE_CHECKING

from fsdp_migrate.analysis.values import Class, External, Function
from fsdp_migrate.families.wrapping import known_contexts
from fsdp_migrate.families.wrapping.known_contexts import CLASS, WRAP
from fsdp_migrate.fsdp1 import api as fsdp1
from fsdp_migrate.fsdp1.construct import Construct
from fsdp_migrate.planning import support_library
from fsdp_migrate.planning.model import Constructor, successor
from fsdp_migrate.syntax.kinds import present
from fsdp_migrate.syntax.trees import FUNCTIONS

if TYPE_CHECKING:
    from fsdp_migrate.fsdp1.site import Site
    from fsdp_migrate.planning.context import Study

CONTEXT = Construct.parse("enable_wrap")
CONSTRUCTS = frozenset({CONTEXT, WRAP})

TWICE = (
    "the module is wrapped already, and fully_shard takes a module only once",
    "keep one of the two calls",
)


def is_wrapped_before(wrap: Constructor, study: Study) -> bool:
    """``wrap(wrap(x))``, in which FSDP1's outer wrapper had no parameters of its own."""
    given = study.values(wrap.wrapped, wrap.module) if wrap.has_module else ()
    before = [v for v in given if v.node is not wrap.call]
    return bool(before) and all(v.node in study.tracer.wraps for v in before)


def is_outer_of_two(wrap: Constructor, study: Study) -> bool:
    """The outer call of ``wrap(wrap(x))``, which is to go: it wrapped no parameters of its own."""
    inner = wrap.call.args[0] if len(wrap.call.args) == 1 and not wrap.call.keywords else None
    made = study.constructors.get(inner) if inner is not None else None
    contexts = study.wrapping.contexts
    return made in contexts and wrap in contexts and contexts[made] == contexts[wrap]


class Kind(Enum):
    FSDP1 = auto()
    OTHER = auto()  # of no concern here, as after migration
    UNKNOWN = auto()


def register_contexts(found: list[Site], study: Study) -> list[Site]:
    """Register the project's contexts and wraps as constructors.

    Returns:
        ``found`` without sites that are not FSDP1's: contexts of other wrappers and what runs in
        them; and without the classes given to contexts, which belong to these. As it is where all
        contexts stand around what they are for (``known_contexts.py``).
    """
    contexts = [s for s in found if s.construct == CONTEXT]
    wraps = [s for s in found if s.construct == WRAP]
    if not contexts or known_contexts.register(contexts, wraps, study):
        return found
    has_fsdp1 = any(s.construct.name == fsdp1.FSDP and not s.construct.part for s in found)
    kinds = {site: _kind(site, study, has_fsdp1=has_fsdp1) for site in contexts}
    enabled = [s for s in contexts if kinds[s] is Kind.FSDP1]
    foreign = [s for s in contexts if kinds[s] is Kind.OTHER]
    found = _without_classes(found, enabled)
    by_node: dict[ast.AST, Site] = {site.node: site for site in contexts}
    around = {site: _around(site, by_node) for site in wraps}
    if any(_around(site, by_node) is not None for site in contexts):
        study.wrapping.problem = (
            "torch refuses one enable_wrap inside of another",
            "open one context only",
        )
        return found
    if Kind.UNKNOWN in kinds.values():
        study.wrapping.problem = (
            "what enable_wrap wraps with is not written at the call",
            "pass wrapper_cls=fully_shard and its arguments there",
        )
        return found
    if enabled and foreign and None in around.values():
        study.wrapping.problem = (
            "enable_wrap is used with FSDP and with something else, and both may reach a wrap",
            "call wrap in the with statement itself",
        )
        return found
    if enabled and not any(c is None or c in enabled for c in around.values()):
        study.wrapping.problem = (
            "no wrap in the given paths runs in it",
            "give the path that calls wrap as well",
        )
        return found
    gone = {*foreign, *(s for s, c in around.items() if c in foreign or not enabled)}
    _register(enabled, {s: c for s, c in around.items() if s not in gone}, study)
    return [s for s in found if s not in gone]


def _without_classes(found: list[Site], contexts: list[Site]) -> list[Site]:
    """The sites without the classes that contexts are given, which belong to these."""
    given = {_class_of(site) for site in contexts}
    return [s for s in found if s.reference not in given]


def _class_of(site: Site) -> ast.expr | None:
    return next((k.value for k in site.call.keywords if k.arg == CLASS), None)


def _kind(site: Site, study: Study, *, has_fsdp1: bool) -> Kind:
    """What a context wraps with.

    Functions and classes of a project with FSDP1 may wrap with it in turn.
    """
    if not _is_call(site):
        return Kind.UNKNOWN
    given = _class_of(site)
    if given is None:
        return Kind.UNKNOWN
    if any(fsdp1.canonical(n) == fsdp1.FSDP for n in study.external(given, site.module)):
        unsure = study.project.look_alikes(given, site.module)
        return Kind.UNKNOWN if unsure else Kind.FSDP1
    for value in study.values(given, site.module):
        match value:
            case External(name=name) if fsdp1.canonical(name) != fsdp1.FSDP:
                continue
            case Class() | Function():
                if support_library.is_ours(value.module) or not has_fsdp1:
                    continue
        return Kind.UNKNOWN
    return Kind.OTHER


def _is_call(site: Site) -> bool:
    return isinstance(site.node, ast.Call) and site.node.func is site.reference


def _around(site: Site, contexts: dict[ast.AST, Site]) -> Site | None:
    """The context whose ``with`` statement a ``wrap`` stands in, in the same function."""
    child: ast.AST = site.node
    for parent in site.module.table.ancestors(site.node):
        if isinstance(parent, FUNCTIONS):
            return None
        if isinstance(parent, (ast.With, ast.AsyncWith)) and child in parent.body:
            for item in parent.items:
                for node in ast.walk(item.context_expr):
                    if node in contexts:
                        return contexts[node]
        child = parent
    return None


def _register(contexts: list[Site], around: dict[Site, Site | None], study: Study) -> None:
    result = study.wrapping
    made = {site: _read_context(site) for site in contexts}
    result.enabled = list(made.values())
    for site, context in around.items():
        if not _is_call(site):
            continue  # handed on as a value: nobody knows what it makes
        wrap = Constructor.read(site.call, site.module, site.reference)
        if not wrap.is_wrong:
            wrap.problem, wrap.is_open = "enable_wrap has its arguments", True
        if context is not None:
            result.around[wrap] = made[context]
        own = len(site.call.args) + len(site.call.keywords) > 1
        result.contexts[wrap] = (wrap,) if own else tuple(result.may_be_in(wrap))
        study.constructors[site.call] = wrap
        study.tracer.wraps.add(site.call)
    for constructor in result.enabled:
        study.constructors[constructor.call] = constructor


def _read_context(site: Site) -> Constructor:
    """Bind the arguments of ``enable_wrap``, all of them keywords."""
    call = site.call
    given = present(_class_of(site))
    result = Constructor(call, site.module, given, is_context=True)
    for keyword in call.keywords:
        name = successor(keyword)
        if name is None:
            result.problem = f"its keyword arguments come from **{ast.unparse(keyword.value)}"
            result.is_open = True
        elif name in fsdp1.CONSTRUCTOR_ARGUMENTS[1:]:
            result.arguments[name] = keyword.value
        elif keyword.arg != CLASS:
            result.problem = f"{keyword.arg} is not an argument of FSDP1"
            result.is_wrong = True
            return result
    return result
