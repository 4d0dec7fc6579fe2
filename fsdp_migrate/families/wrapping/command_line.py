"""Which words are in sight: ``choices`` of ``argparse``, and what callers give a parameter."""

from __future__ import annotations

import ast

from fsdp_migrate.analysis.module import Module
from fsdp_migrate.planning.context import Study
from fsdp_migrate.syntax.expressions import last_name
from fsdp_migrate.syntax.kinds import of_kind

# Other ways by which arguments get values.
ELSEWHERE = ("set_defaults", "setattr", "Namespace", "__dict__")


def choices(node: ast.expr, module: Module, study: Study) -> tuple[str, ...]:
    """The words that ``args.name`` may be, or none if they are not all in sight."""
    if not isinstance(node, ast.Attribute) or study.project.mentions(*ELSEWHERE):
        return ()
    values = study.values(node.value, module)
    if not values or not all(_is_parsed(value.node) for value in values):
        return ()
    found: set[str] = set()
    for each in study.project.modules:
        if any(stored.attr == node.attr for stored in each.table.stored_attributes):
            return ()
        for call in each.table.calls_by_name.named("add_argument"):
            if _destination(call) != node.attr:
                continue
            words = _words(call)
            if not words:
                return ()
            found |= words
    return tuple(sorted(found))


def given(node: ast.expr, module: Module, study: Study) -> tuple[str, ...]:
    """The words that a function's parameter or variable may be, or none if they are not all in
    sight."""
    scope = module.table.within[node].lookup(node.id) if isinstance(node, ast.Name) else None
    if scope is None or not scope.is_function:
        return ()
    values = [getattr(value, "value", None) for value in study.values(node, module)]
    words = tuple(dict.fromkeys(value for value in values if isinstance(value, str)))
    return words if all(isinstance(value, str) for value in values) else ()


def _is_parsed(node: ast.AST) -> bool:
    is_call = isinstance(node, ast.Call) and last_name(node.func) == "parse_args"
    return is_call and not any(k.arg == "namespace" for k in of_kind(node, ast.Call).keywords)


def _destination(call: ast.Call) -> str:
    """The attribute that an argument is in."""
    for keyword in call.keywords:
        if keyword.arg == "dest":
            return str(getattr(keyword.value, "value", ""))
    flags = [str(a.value) for a in call.args if isinstance(a, ast.Constant)]
    long = [flag for flag in flags if flag.startswith("--")] or flags
    return long[0].lstrip("-").replace("-", "_") if long else ""


def _words(call: ast.Call) -> set[str]:
    """The choices of an argument, if its default is one of them; nothing if it may be another."""
    given = {keyword.arg: keyword.value for keyword in call.keywords}
    listed = given.get("choices")
    if not isinstance(listed, (ast.List, ast.Tuple, ast.Set)) or None in given:
        return set()
    words = {e.value for e in listed.elts if isinstance(e, ast.Constant)}
    default = given.get("default")
    is_known = default is None or (isinstance(default, ast.Constant) and default.value in words)
    if len(words) < len(listed.elts) or not is_known or {"type", "action", "nargs"} & given.keys():
        return set()
    return {word for word in words if isinstance(word, str)}
