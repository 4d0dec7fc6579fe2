"""What an edited file has no use for any more: imports, new ones too, and local variables.

Asked twice. The edits tell what they take away. Then the file that came out tells which of the
names in their code it reads, for what one edit writes may go with what another takes away.
"""

from __future__ import annotations

import ast
import re
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from fsdp_migrate.analysis import reaching_bindings
from fsdp_migrate.analysis.module import Module
from fsdp_migrate.analysis.project import Project
from fsdp_migrate.fsdp1 import api as fsdp1
from fsdp_migrate.fsdp1.references import enclosing_function
from fsdp_migrate.planning.edits import (
    DropBranch,
    DropElse,
    Edit,
    Import,
    Mark,
    RemoveArgument,
    RemoveImport,
    RemoveItem,
    ReplaceExpression,
    ReplaceStatement,
    Unwrap,
    new_code,
)
from fsdp_migrate.rewriting import unused_variables
from fsdp_migrate.syntax import evaluated_text, string_annotations
from fsdp_migrate.syntax.kinds import of_kind
from fsdp_migrate.syntax.scopes import Binding, Kind, differ
from fsdp_migrate.syntax.trees import children

WORD = re.compile(r"\b[A-Za-z_]\w*\b")
NAME = re.compile(r"(?<![\w.])[A-Za-z_]\w*\b")  # `x.device` has no name `device`
COMMENT = re.compile(r"(?m)^\s*#.*$")
PLAIN_STRING = re.compile(r'(?<!\w)"[^"\\\n]*"')  # no f-string: those have names in them


@dataclass(frozen=True)
class Unused:
    """What goes: imports of the file, its local variables, and names that edits would import."""

    imports: frozenset[ast.alias]
    variables: frozenset[ast.stmt]
    needs: frozenset[str]

    def applied(self, module: Module, edits: Sequence[Edit]) -> list[Edit]:
        """``edits`` with those that take it out, and without the imports that nothing needs."""
        kept = [e for e in edits if not (isinstance(e, Import) and _bound(e) in self.needs)]
        removed = unused_variables.removals(self.variables, module)
        return [*kept, *removed, *(RemoveImport(module, alias) for alias in self.imports)]


def find(
    module: Module,
    edits: Sequence[Edit],
    asked_for: frozenset[str],
    after: Module | None = None,
) -> Unused:
    """What loses its last use by ``edits``; ``after`` is the file that came out of them.

    ``asked_for`` are the names that other modules import from this one.
    """
    read = None if after is None else _read(after)
    spelled = _changes(module, edits).mentioned
    said = {word for e in edits if isinstance(e, Mark) for word in WORD.findall(e.sentence)}
    variables: set[ast.stmt] = set()
    while True:
        changes = _changes(module, [*edits, *unused_variables.removals(variables, module)])
        if read is not None:
            changes.mentioned &= read
        found = unused_variables.find(module, changes.removed, changes.gone)
        more = {
            statement
            for statement, name in found
            if name not in said and not changes.is_mentioned(name, statement, module)
        }
        if not more:
            break
        variables |= more
    needs: set[str] = set()
    if after is not None and read is not None:
        spelled |= {node.id for node in changes.gone if isinstance(node, ast.Name)}
        needs = (spelled - read) & {_bound(e) for e in edits if isinstance(e, Import)}
        needs = {name for name in needs if not evaluated_text.names(name, after.table)}
    imports = {of_kind(b.node, ast.alias) for b in _imports(module, changes, asked_for)}
    return Unused(frozenset(imports), frozenset(variables), frozenset(needs))


def _bound(need: Import) -> str:
    """The name that an import binds."""
    return need.local.partition(".")[0]


def _read(module: Module) -> set[str]:
    """The names that a file reads or deletes, in quoted types too."""
    table = module.table
    read = {name.id for name in table.names if not isinstance(name.ctx, ast.Store)}
    quoted = {name for each in string_annotations.in_annotations(table) for name in each.names}
    return read | quoted | string_annotations.in_type_comments(module.source)


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
            gone |= _changes(module, each).gone
            gone.update(e.alias for e in each if isinstance(e, RemoveImport))
            gone |= find(module, each, asked[module]).imports
        if len(gone) == before:
            return asked


@dataclass
class _Changes:
    removed: set[ast.AST]  # the nodes that edits take out
    gone: set[ast.AST]  # the names in them
    mentioned: set[str]  # the identifiers that new code spells out itself
    spelled: list[tuple[ast.AST | None, set[str]]]  # those of each piece, and where it goes

    def is_mentioned(self, name: str, statement: ast.stmt, module: Module) -> bool:
        """Whether new code in the function around a statement spells out a name of it."""
        function = enclosing_function(module, statement)
        return name in self.mentioned and any(
            name in names
            and (place is None or place is function or function in module.table.ancestors(place))
            for place, names in self.spelled
        )


def _changes(module: Module, edits: Sequence[Edit]) -> _Changes:
    removed: set[ast.AST] = set()
    arguments: set[ast.AST] = set()
    kept: set[ast.AST] = set()
    mentioned: set[str] = set()
    spelled: list[tuple[ast.AST | None, set[str]]] = []
    strings = [each.string for each in string_annotations.in_annotations(module.table)]
    for edit in edits:
        match edit:
            case ReplaceExpression():
                if not _writes_down_itself(edit):
                    removed.add(edit.node)
                if edit.node in strings:
                    names = set(re.findall(r"\w+", edit.code.preview()))
                    mentioned |= names
                    spelled.append((edit.node, names))
            case ReplaceStatement():
                removed.add(edit.node)
            case Unwrap():
                removed.update(edit.node.items[index].context_expr for index in edit.items)
            case DropBranch():
                removed.update([edit.node.test, *edit.node.body])
            case DropElse():
                removed.update(edit.node.orelse)
            case RemoveArgument():
                arguments.add(edit.argument)
            case RemoveItem():
                removed.add(edit.value)
        for each in new_code(edit):
            nodes: list[ast.expr] = []
            text = COMMENT.sub("", PLAIN_STRING.sub("", each.flatten(nodes)))
            names = set(NAME.findall(text))
            mentioned |= names
            spelled.append((getattr(edit, "node", None), names))
            kept.update(nodes)
    removed |= arguments - kept  # one may only get a name
    quoted_names = frozenset(strings)
    gone: set[ast.AST] = set()
    inside: list[ast.AST] = list(removed)
    while inside:
        node = inside.pop()
        if isinstance(node, ast.Name) or node in quoted_names:
            gone.add(node)
        inside += (n for n in children(node) if n not in kept and n not in removed)
    return _Changes(removed, gone, mentioned, spelled)


def _imports(module: Module, changes: _Changes, asked_for: frozenset[str]) -> Iterator[Binding]:
    table = module.table
    gone, mentioned = changes.gone, changes.mentioned
    if not gone:
        return
    top = module.table.module
    # A name that is bound again later is not what others import.
    kept = {n for n in asked_for if all(b.kind is Kind.IMPORT for b in top.bindings.get(n, ()))}
    exported = _exported(module) | kept | string_annotations.in_type_comments(module.source)
    annotations = list(string_annotations.in_annotations(table))
    loads: dict[str, list[ast.Name]] = defaultdict(list)
    for name in table.names:
        if isinstance(name.ctx, ast.Load):
            loads[name.id].append(name)
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
        yield binding


def _is_not_fsdp1s(binding: Binding) -> bool:
    """Whether other statements bind the name of an import to something else, and the import itself
    is of nothing of FSDP1's: then it stays, whatever becomes of the name."""
    every = binding.scope.bindings[binding.name]
    torchs = fsdp1.canonical(binding.qualified) or fsdp1.is_module(binding.qualified)
    return not torchs and differ(every)


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
