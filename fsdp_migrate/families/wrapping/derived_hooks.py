"""What a class does when another is derived from it, as ``fully_shard`` does of a module's class.

``__init_subclass__`` runs once more then, with no arguments: it fails if it needs some, and may add
the new class to a registry. FSDP1's wrapper left the class alone.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator

from fsdp_migrate.analysis.module import Module
from fsdp_migrate.analysis.values import Class
from fsdp_migrate.families.wrapping.class_layouts import makers
from fsdp_migrate.fsdp1.construct import Construct
from fsdp_migrate.fsdp1.site import Site
from fsdp_migrate.planning.context import Study
from fsdp_migrate.planning.model import Decision
from fsdp_migrate.syntax.kinds import of_kind

CONSTRUCT = Construct.parse("hook of derived classes")
HOOK = "__init_subclass__"


def find_derived_hooks(study: Study, module: Module) -> Iterator[Site]:
    """A site for every ``__init_subclass__`` that the class of a sharded module runs."""
    if not study.constructors or not module.mentions(HOOK):
        return
    for node in module.table.scopes:
        cls = module.table.parents.get(node)
        if not isinstance(node, ast.FunctionDef) or not isinstance(cls, ast.ClassDef):
            continue
        hooks = node.name == HOOK and not _only_hands_on(node)
        if hooks and any(makers(Class(cls, module), study)):
            yield Site(CONSTRUCT, module, node, node)


def decide_hook(site: Site, study: Study, rule: str) -> Decision:
    """Left where the hook would raise, else kept and shown."""
    hook = of_kind(site.node, ast.FunctionDef)
    cls = of_kind(site.module.table.parents[hook], ast.ClassDef)
    models = frozenset(makers(Class(cls, site.module), study))
    needed = ", ".join(_needed(hook))
    if needed:
        return study.left(
            site,
            rule,
            f"fully_shard derives a class from {cls.name}, whose {HOOK} needs {needed} for that",
            "give its parameters defaults, with which it does nothing",
            models=models,
            final=True,
        )
    review = (
        f"fully_shard derives a class from {cls.name}, for which this runs as well: it must not "
        "take that for a class of yours"
    )
    return study.rewritten(site, rule, "kept", models=models, review=review)


def _needed(hook: ast.FunctionDef) -> Iterator[str]:
    """The parameters that a derivation without arguments leaves without a value."""
    arguments = hook.args
    positional = [*arguments.posonlyargs, *arguments.args]
    for each in positional[1 : len(positional) - len(arguments.defaults)]:
        yield each.arg
    for each, default in zip(arguments.kwonlyargs, arguments.kw_defaults, strict=True):
        if default is None:
            yield each.arg


def _only_hands_on(hook: ast.FunctionDef) -> bool:
    """Whether a hook needs nothing, and does nothing but to call that of its base."""
    return not any(_needed(hook)) and all(
        isinstance(statement, ast.Pass)
        or (isinstance(statement, ast.Expr) and _is_harmless(statement.value))
        for statement in hook.body
    )


def _is_harmless(value: ast.expr) -> bool:
    if isinstance(value, ast.Constant):
        return True
    function = value.func if isinstance(value, ast.Call) else None
    return isinstance(function, ast.Attribute) and function.attr == HOOK
