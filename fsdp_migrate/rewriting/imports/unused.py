"""The imports that have lost their last use through a file's edits."""

from __future__ import annotations

import ast
import re
from collections import defaultdict
from collections.abc import Mapping, Sequence

from fsdp_migrate.analysis import reaching_bindings
from fsdp_migrate.analysis.module import Module
from fsdp_migrate.analysis.project import Project
from fsdp_migrate.fsdp1 import api as fsdp1
from fsdp_migrate.planning.edits import (
    DropBranch,
    DropElse,
    Edit,
    RemoveArgument,
    RemoveImport,
    RemoveItem,
    ReplaceExpression,
    ReplaceStatement,
    Unwrap,
    new_code,
)
from fsdp_migrate.syntax import evaluated_text, string_annotations
from fsdp_migrate.syntax.scopes import Binding, Kind, differ
from fsdp_migrate.syntax.trees import children

PLAIN_STRING = re.compile(r'(?<!\w)"[^"\\\n]*"')  # no f-string: those have names in them


def still_asked_for(
    project: Project, edits: Mapping[Module, Sequence[Edit]]
) -> dict[Module, frozenset[str]]:
    """The names that other modules import from each edited one, and still do after the edits."""
    gone: set[ast.AST] = set()
    while True:
        asked = {module: project.asked_for(module, without=gone) for module in edits}
        if all(names.isdisjoint(project.lent) for names in asked.values()):
            return asked
        before = len(gone)
        for module, each in edits.items():
            gone |= _removed_and_mentioned(module, each)[0]
            gone.update(e.alias for e in each if isinstance(e, RemoveImport))
            gone.update(b.node for b in unused_after(module, each, asked[module]))
        if len(gone) == before:
            return asked


def unused_after(module: Module, edits: Sequence[Edit], asked_for: frozenset[str]) -> list[Binding]:
    table = module.table
    gone, mentioned = _removed_and_mentioned(module, edits)
    if not gone:
        return []
    top = module.table.module
    # A name that is bound again later is not what others import.
    kept = {n for n in asked_for if all(b.kind is Kind.IMPORT for b in top.bindings.get(n, ()))}
    exported = _exported(module) | kept | string_annotations.in_type_comments(module.source)
    annotations = list(string_annotations.in_annotations(table))
    loads: dict[str, list[ast.Name]] = defaultdict(list)
    for name in table.names:
        if isinstance(name.ctx, ast.Load):
            loads[name.id].append(name)
    result = []
    for binding in table.imports:
        alias = binding.node
        named = loads[binding.name]
        strings = [each.string for each in annotations if binding.name in each.names]
        if gone.isdisjoint(named) and gone.isdisjoint(strings):
            continue
        if _is_not_fsdp1s(binding) or reaching_bindings.is_attribute(binding, module):
            continue
        uses = [*reaching_bindings.uses(binding, module), *strings]
        lost = [n for n in uses if n in gone]
        if not lost or len(lost) < len(uses):
            continue
        if binding.name in mentioned:
            continue
        if binding.name in exported and binding.scope is top:
            continue
        if evaluated_text.names(binding.name, table):
            continue
        statement = table.parents[alias]
        assert isinstance(statement, (ast.Import, ast.ImportFrom))
        if "noqa" in module.source.lines[statement.lineno - 1]:
            continue
        result.append(binding)
    return result


def _is_not_fsdp1s(binding: Binding) -> bool:
    """Whether other statements bind the name of an import to something else, and the import itself
    is of nothing of FSDP1's: then it stays, whatever becomes of the name."""
    every = binding.scope.bindings[binding.name]
    torchs = fsdp1.canonical(binding.qualified) or fsdp1.is_module(binding.qualified)
    return not torchs and differ(every)


def _removed_and_mentioned(module: Module, edits: Sequence[Edit]) -> tuple[set[ast.AST], set[str]]:
    """The name nodes that edits remove, and the identifiers that new code spells out itself."""
    removed: set[ast.AST] = set()
    kept: set[ast.AST] = set()
    mentioned: set[str] = set()
    strings = [each.string for each in string_annotations.in_annotations(module.table)]
    for edit in edits:
        match edit:
            case ReplaceExpression():
                if not _writes_down_itself(edit):
                    removed.add(edit.node)
                if edit.node in strings:
                    mentioned.update(re.findall(r"\w+", edit.code.preview()))
            case ReplaceStatement():
                removed.add(edit.node)
            case Unwrap():
                removed.update(edit.node.items[index].context_expr for index in edit.items)
            case DropBranch():
                removed.update([edit.node.test, *edit.node.body])
            case DropElse():
                removed.update(edit.node.orelse)
            case RemoveArgument():
                removed.add(edit.argument)
            case RemoveItem():
                removed.add(edit.value)
        for each in new_code(edit):
            nodes: list[ast.expr] = []
            text = PLAIN_STRING.sub("", each.flatten(nodes))
            mentioned.update(re.findall(r"\b[A-Za-z_]\w*\b", text))
            kept.update(nodes)
    quoted_names = frozenset(strings)
    gone: set[ast.AST] = set()
    inside: list[ast.AST] = list(removed)
    while inside:
        node = inside.pop()
        if isinstance(node, ast.Name) or node in quoted_names:
            gone.add(node)
        inside += (n for n in children(node) if n not in kept and n not in removed)
    return gone, mentioned


def _writes_down_itself(edit: ReplaceExpression) -> bool:
    """Whether the old expression is a part of the new one: ``{k}.removeprefix("FSDP")``."""
    nodes: list[ast.expr] = []
    edit.code.flatten(nodes)
    return edit.node in nodes


def _exported(module: Module) -> set[str]:
    """Names that others may import: those in ``__all__``, and every import of an ``__init__``."""
    found: set[str] = set()
    for binding in module.table.module.bindings.get("__all__", []):
        if binding.value is not None:
            found |= {
                n.value
                for n in ast.walk(binding.value)
                if isinstance(n, ast.Constant) and isinstance(n.value, str)
            }
    if module.is_package:
        # FSDP1's names are there for the package's own use, unless somebody asks for them.
        found |= {
            b.name
            for b in module.table.imports
            if b.scope is module.table.module and not fsdp1.canonical(b.qualified)
        }
    return found
