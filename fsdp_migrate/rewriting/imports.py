"""Imports: added where the file keeps them, dropped when an edit took away their last use."""

from __future__ import annotations

import ast
import re
import sys
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import TYPE_CHECKING, Protocol

import libcst as cst

from fsdp_migrate.analysis import reaching_bindings
from fsdp_migrate.analysis.load_order import ImportStatement
from fsdp_migrate.analysis.module import Module
from fsdp_migrate.fsdp1 import api as fsdp1
from fsdp_migrate.planning.edits import (
    AddKeyword,
    Code,
    DropBranch,
    DropElse,
    Edit,
    Import,
    Insert,
    RemoveArgument,
    RemoveImport,
    ReplaceExpression,
    ReplaceStatement,
    Unwrap,
)
from fsdp_migrate.rewriting import layout, sequence
from fsdp_migrate.syntax import string_annotations
from fsdp_migrate.syntax.scopes import Binding, Kind, Scope, differ
from fsdp_migrate.syntax.trees import children, last_part, walk

if TYPE_CHECKING:
    from fsdp_migrate.syntax.notebook_sources import Excerpt

PLAIN_STRING = re.compile(r'(?<!\w)"[^"\\\n]*"')  # as opposed to one with names in it


Line = cst.SimpleStatementLine | cst.BaseCompoundStatement


class Editor(Protocol):
    """The file that is being edited, as far as its imports need it."""

    module: Module
    tree: cst.Module
    line_length: int

    def edits(self, node: ast.AST | None) -> bool:
        """Whether a statement is edited otherwise."""

    def gone(
        self, leading: Sequence[cst.EmptyLine], *, about_it: bool = True
    ) -> cst.SimpleStatementLine | cst.RemovalSentinel:
        """What a removed statement leaves behind."""

    def statement(self, node: ast.AST, line: Line) -> list[Line]:
        """What stands in place of a statement."""

    def with_markers(
        self, nodes: Sequence[ast.AST | None], line: cst.SimpleStatementLine
    ) -> cst.SimpleStatementLine:
        """A line that stays, below the markers that are asked for its statements."""

    def splice(
        self, old: cst.SimpleStatementLine, lines: list[Line]
    ) -> cst.CSTNode | cst.FlattenSentinel[cst.CSTNode] | cst.RemovalSentinel:
        """The lines that replace an old one, with the comments around it."""


@dataclass
class _StatementPlan:
    dropped: set[ast.alias] = field(default_factory=set)
    added: list[Import] = field(default_factory=list)  # names joining a ``from`` import
    preceding: list[Import] = field(default_factory=list)  # new statements before this one
    following: list[Import] = field(default_factory=list)  # and after it


@dataclass
class ImportPlan:
    statements: dict[ast.AST, _StatementPlan] = field(
        default_factory=lambda: defaultdict(_StatementPlan)
    )
    first: list[Import] = field(default_factory=list)  # a module without any import
    above: dict[ast.stmt, list[Import]] = field(  # in front of what needs them
        default_factory=lambda: defaultdict(list)
    )
    local: frozenset[str] = frozenset()

    @staticmethod
    def add(listed: list[Import], need: Import) -> None:
        """Import a name once at one place, however many statements need it there."""
        written = {(n.source, n.name, n.asname) for n in listed}
        if (need.source, need.name, need.asname) not in written:
            listed.append(need)

    def new(self, need: Import) -> Iterator[tuple[ast.stmt, list[Import]]]:
        """The new statements that import from the same module, and what each stands beside."""
        for statement, plan in self.statements.items():
            for listed in (plan.preceding, plan.following):
                if need.name and any(n.name and n.source == need.source for n in listed):
                    assert isinstance(statement, ast.stmt)
                    yield statement, listed
        for statement, listed in self.above.items():
            if need.name and any(n.name and n.source == need.source for n in listed):
                yield statement, listed

    def code(self, statement: ast.stmt) -> list[Code]:
        """The imports in front of a statement that is none."""
        return [Code(_text(group), {}) for group in _grouped(self.above[statement])]

    def rewrite(
        self,
        nodes: Sequence[ast.AST | None],
        updated: cst.SimpleStatementLine,
        editor: Editor,
    ) -> cst.CSTNode | cst.FlattenSentinel[cst.CSTNode] | cst.RemovalSentinel:
        """The import lines that replace one line of imports."""
        if len(nodes) > 1 and self._comes_apart(nodes, editor):
            return editor.splice(updated, self._apart(nodes, updated, editor))
        smalls: list[cst.BaseSmallStatement] = []
        above: list[Import] = []
        below: list[Import] = []
        indent = ""
        section = 0
        for node, small in zip(nodes, updated.body, strict=True):
            change = self.statements.get(node) if node is not None else None
            if change is None or not isinstance(small, (cst.Import, cst.ImportFrom)):
                smalls.append(small)
                continue
            assert isinstance(node, (ast.Import, ast.ImportFrom))
            indent = " " * node.col_offset
            section = _section(_key(node), self.local)
            edited: cst.BaseSmallStatement | None = small
            if change.dropped or change.added:
                edited = _edit_names(node, small, change, editor, indent)
            if edited is not None:
                smalls.append(edited)
            above += change.preceding
            below += change.following
        placed = self._statements(above, editor, indent)
        if smalls:
            smalls[-1] = smalls[-1].with_changes(semicolon=cst.MaybeSentinel.DEFAULT)
            kept = updated.with_changes(body=smalls, leading_lines=())
            placed.append((editor.with_markers(nodes, kept), section))
        placed += self._statements(below, editor, indent)
        if not placed:
            return editor.gone(updated.leading_lines, about_it=False)
        leading = list(updated.leading_lines)
        starts_section = not smalls and not above and placed[0][1] > section
        starts_section = starts_section and not _opens_block(nodes[0], editor.module)
        if starts_section and not any(line.comment is None for line in leading):
            leading.insert(0, cst.EmptyLine(indent=False))
        first = placed[0][0]
        lines = [first.with_changes(leading_lines=[*leading, *first.leading_lines])]
        for (_, before), (line, after) in pairwise(placed):
            blank = [cst.EmptyLine(indent=False)] if before != after else []
            lines.append(line.with_changes(leading_lines=[*blank, *line.leading_lines]))
        return lines[0] if len(lines) == 1 else cst.FlattenSentinel(lines)

    def _comes_apart(self, nodes: Sequence[ast.AST | None], editor: Editor) -> bool:
        """Whether something new stands between statements of one line that are no imports."""
        if all(isinstance(node, ast.Import | ast.ImportFrom) for node in nodes):
            return False
        changes = [self.statements[node] for node in nodes if node in self.statements]
        new = any(change.preceding or change.following for change in changes)
        return new or any(map(editor.edits, nodes))

    def _apart(
        self, nodes: Sequence[ast.AST | None], updated: cst.SimpleStatementLine, editor: Editor
    ) -> list[Line]:
        """The statements of one line, each on its own."""
        lines: list[Line] = []
        for node, small in zip(nodes, updated.body, strict=True):
            line = cst.SimpleStatementLine(
                [small.with_changes(semicolon=cst.MaybeSentinel.DEFAULT)]
            )
            lines += [line] if node is None else self.alone(node, line, editor)
        return lines

    def alone(self, node: ast.AST, line: cst.SimpleStatementLine, editor: Editor) -> list[Line]:
        """What stands in place of a statement that shared its line with others."""
        if node not in self.statements:
            return editor.statement(node, line)
        made = self.rewrite([node], line, editor)
        if isinstance(made, cst.RemovalSentinel):
            return []
        return list(made) if isinstance(made, cst.FlattenSentinel) else [made]  # type: ignore[list-item,arg-type]  # of lines

    def _statements(
        self, needs: Sequence[Import], editor: Editor, indent: str
    ) -> list[tuple[cst.SimpleStatementLine, int]]:
        """New import lines with their sections, sections in order."""
        made = [
            (_statement(group, editor, indent), _section(group[0].source, self.local))
            for group in _grouped(needs)
        ]
        return sorted(made, key=lambda item: item[1])

    def at_top(self, tree: cst.Module, editor: Editor) -> cst.Module:
        """Imports for a module that has none: after its docstring and ``__future__`` lines."""
        if not self.first:
            return tree
        new = [_statement(group, editor, "") for group in _grouped(self.first)]
        body = list(tree.body)
        if editor.module.source.excerpt is not None:  # the first statement begins the first cell
            return tree.with_changes(body=[*body[:1], *new, *body[1:]])
        index = 1 if body and _is_docstring(body[0]) else 0
        if index == 0 and body:
            new[0] = new[0].with_changes(leading_lines=body[0].leading_lines)
            body[0] = body[0].with_changes(leading_lines=[cst.EmptyLine(indent=False)])
        elif index:
            new[0] = new[0].with_changes(leading_lines=[cst.EmptyLine(indent=False)])
        return tree.with_changes(body=[*body[:index], *new, *body[index:]])


def plan(
    module: Module,
    edits: Sequence[Edit],
    needed: Sequence[Import],
    local: frozenset[str] = frozenset(),
    asked_for: frozenset[str] = frozenset(),
) -> ImportPlan:
    """Decide where each needed name is imported and which imports have lost their last use.

    ``local`` are the top-level names of the project's own packages, which come last; ``asked_for``
    the names that other modules import from this one.
    """
    result = ImportPlan(local=local)
    for edit in edits:
        if isinstance(edit, RemoveImport):
            statement = module.table.parents[edit.alias]
            result.statements[statement].dropped.add(edit.alias)
    for binding in _unused_after(module, edits, asked_for):
        alias = binding.node
        assert isinstance(alias, ast.alias)
        statement = module.table.parents[alias]
        result.statements[statement].dropped.add(alias)
    going = _going(edits)
    open_ = {e.node for e in edits if isinstance(e, DropBranch | DropElse)}
    places = _Places(module, needed, going, open_, local)
    found = {need: places.of(need) for need in dict.fromkeys(needed)}
    for need in sorted(found, key=lambda need: len(found[need])):
        _place(module, need, found[need], result, places)
    return result


def _going(edits: Sequence[Edit]) -> set[ast.AST]:
    """Import statements in the parts of ``if`` chains that are removed."""
    parts = [e.node.body for e in edits if isinstance(e, DropBranch)]
    parts += [e.node.orelse for e in edits if isinstance(e, DropElse)]
    parts += [[e.node] for e in edits if isinstance(e, ReplaceStatement) and not e.codes]
    return {
        node
        for part in parts
        for statement in part
        for node in walk(statement)
        if isinstance(node, (ast.Import, ast.ImportFrom))
    }


# -- which imports are no longer used --------------------------------------------------------


def _unused_after(
    module: Module, edits: Sequence[Edit], asked_for: frozenset[str]
) -> list[Binding]:
    table = module.table
    gone, mentioned = _consumed(module, edits)
    if not gone:
        return []
    top = module.table.module
    # A name that is bound again later is not given as it was imported.
    given = {n for n in asked_for if all(b.kind is Kind.IMPORT for b in top.bindings.get(n, ()))}
    exported = _exported(module) | given | string_annotations.in_type_comments(module.source)
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
        if _may_be_another(binding) or reaching_bindings.is_attribute(binding, module):
            continue
        uses = [*reaching_bindings.uses(binding, module), *strings]
        lost = [n for n in uses if n in gone]
        if not lost or len(lost) < len(uses):
            continue
        if binding.name in mentioned or binding.name in exported:
            continue
        statement = table.parents[alias]
        assert isinstance(statement, (ast.Import, ast.ImportFrom))
        if "noqa" in module.source.lines[statement.lineno - 1]:
            continue
        result.append(binding)
    return result


def _may_be_another(binding: Binding) -> bool:
    """Whether an import gives its name something else than FSDP1's, and others of the name do not:
    it is not the tool's, whatever becomes of the name."""
    every = binding.scope.bindings[binding.name]
    torchs = fsdp1.canonical(binding.qualified) or fsdp1.is_module(binding.qualified)
    return not torchs and differ(every)


def _consumed(module: Module, edits: Sequence[Edit]) -> tuple[set[ast.AST], set[str]]:
    """Name nodes that edits remove, and identifiers that new code spells out itself."""
    removed: set[ast.AST] = set()
    kept: set[ast.AST] = set()
    mentioned: set[str] = set()
    strings = [each.string for each in string_annotations.in_annotations(module.table)]
    for edit in edits:
        codes: Sequence[Code] = ()
        match edit:
            case ReplaceExpression():
                removed.add(edit.node)
                codes = (edit.code,)
                if edit.node in strings:
                    mentioned.update(re.findall(r"\w+", edit.code.preview()))
            case ReplaceStatement():
                removed.add(edit.node)
                codes = edit.codes
            case Insert():
                codes = edit.codes
            case Unwrap():
                codes = edit.before
                removed.update(edit.node.items[index].context_expr for index in edit.items)
            case DropBranch():
                removed.update([edit.node.test, *edit.node.body])
            case DropElse():
                removed.update(edit.node.orelse)
            case RemoveArgument():
                removed.add(edit.argument)
            case AddKeyword():
                codes = (edit.code,)
        for each in codes:
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


def _exported(module: Module) -> set[str]:
    """Names a module promises to others: ``__all__``, and every import of a package's face."""
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


# -- where a new import goes --------------------------------------------------------


class _Places:
    """The import statements that are sure to have run wherever a new name is needed."""

    def __init__(
        self,
        module: Module,
        needed: Sequence[Import],
        going: set[ast.AST],
        open_: set[ast.If],
        local: frozenset[str],
    ) -> None:
        self.module = module
        self.going = going
        self.open = open_  # of which one part goes: the other is no condition any more
        self.local = local
        self.fsdp1s = [s for s in self._imports_of(module.table.module) if self._is_fsdp1s(s)]
        self.scopes = {need: self._scope(need) for need in needed}
        self.together: dict[tuple[Scope, str, str, str], list[Import]] = defaultdict(list)
        # A name that a function imports is its own everywhere in it.
        lost = {(n.local, self.scopes[n]) for n in needed if not self._inside(n)}
        self.lazy: dict[Scope, list[Import]] = defaultdict(list)
        for need in needed:
            if (need.local, self.scopes[need]) in lost:
                self.scopes[need] = self._lazy(need) or module.table.module
                if self.scopes[need] is not module.table.module:
                    self.lazy[self.scopes[need]].append(need)
            key = (self.scopes[need], need.source, need.name, need.asname)
            self.together[key].append(need)

    def of(self, need: Import) -> list[ImportStatement]:
        """In the order of the file; for all places that need the name, where there are such."""
        scope, table = self.scopes[need], self.module.table
        if scope is not table.module:
            return [] if need in self.lazy.get(scope, ()) else self._inside(need)
        every = self._imports_of(scope)
        if need.source.partition(".")[0] != "torch":
            every = [s for s in every if not self.module.loading.may_fail(s)]
        alike = self.together[scope, need.source, need.name, need.asname]
        if all(map(self._guarded, alike)):
            return self._guarded(need)
        loading = self.module.loading
        for group in (alike, [need]):
            sure = [s for s in every if all(loading.has_run(s, n.near) for n in group)]
            sure = [s for s in sure if _position(s) > self._path_set(need)] or (
                [] if self.in_front(need) else sure
            )
            excerpt = self.module.source.excerpt
            if excerpt is not None:
                sure = _in_cells(self.module, group[0], sure, excerpt)
            if sure:
                return sure
        # Beside the import of what it replaces, which is as sure.
        return [s for s in every if self._is_fsdp1s(s) and loading.is_used(s, need.near)]

    def in_front(self, need: Import) -> ast.stmt | None:
        """The statement that needs a name first, where no import is sure to have run before it."""
        scope = self.scopes[need]
        if scope is self.module.table.module:
            return self.module.loading.first(need.near)
        body = getattr(scope.node, "body", [])
        around = {a for n in self.lazy.get(scope, ()) for a in self.module.table.ancestors(n.near)}
        return next((statement for statement in body if statement in around), None)

    def _guarded(self, need: Import) -> list[ImportStatement]:
        """The imports of FSDP1 that a new name replaces, where a ``try``, an ``if`` or another
        block guards them all: the new name may be as unsure as they are, and no surer."""
        loading = self.module.loading
        if not self._needs_guard(need):
            return []
        types = self._is_type(need.near)
        running = [s for s in self.fsdp1s if not self._for_types(s)]
        guards = running or (self.fsdp1s if types else [])
        if not self._is_one_block(guards):
            return []
        every = self._imports_of(self.module.table.module)
        serving = [
            s
            for s in every
            if self.module.table.parents[s] is self.module.table.parents[guards[0]]
            and self._is_one_block([s, guards[0]])
            and (types or loading.serves(s, need.near))
            and _position(s) > self._path_set(need)
        ]
        return serving if any(s in guards for s in serving) else []

    def _needs_guard(self, need: Import) -> bool:
        """Whether an import fails without torch, or without what the file's own guards ask for."""
        top = need.source.partition(".")[0]
        if self.module.source.excerpt is not None or top in sys.stdlib_module_names:
            return False
        if top != "torch" or need.source.startswith("torch.distributed"):
            return True
        return not any(self._is_unguarded(s) for s in self._torchs())

    def _lazy(self, need: Import) -> Scope | None:
        """The function that imports a name for itself: one of a file that imports torch in
        functions only, or guards FSDP1's names and does not use them here."""
        if not self._needs_guard(need) or self._guarded(need):
            return None
        torchs = self._torchs()
        running = [s for s in torchs if self._at_loading(s)]
        guards = [s for s in self.fsdp1s if not self._for_types(s)]
        if not torchs or (running and not self._is_one_block(guards)):
            return None
        scope = self.module.table.scope_of(need.near).function()
        while scope is not None and isinstance(scope.node, ast.Lambda) and scope.parent is not None:
            scope = scope.parent.function()
        return scope

    def _torchs(self) -> list[ImportStatement]:
        """The imports of torch, wherever they stand."""
        table = self.module.table
        nodes = {b.node for b in table.imports if b.qualified.partition(".")[0] == "torch"}
        return [s for s in table.import_statements if not nodes.isdisjoint(s.names)]

    def _at_loading(self, statement: ImportStatement) -> bool:
        """Whether an import may run while the module is loaded."""
        function = self.module.table.scope_of(statement).function()
        return function is None and not self._for_types(statement)

    def _is_unguarded(self, statement: ImportStatement) -> bool:
        parent = self.module.table.parents[statement]
        return isinstance(parent, ast.Module) or parent in self.open

    def _is_one_block(self, guards: Sequence[ImportStatement]) -> bool:
        """Whether there are imports, and all stand in one block below the level of the module."""
        blocks = {
            (self.module.table.parents[s], name)
            for s in guards
            for name, block in ast.iter_fields(self.module.table.parents[s])
            if isinstance(block, list) and s in block
        }
        return len(blocks) == 1 and not self._is_unguarded(guards[0])

    def _for_types(self, statement: ImportStatement) -> bool:
        """Whether an import stands in an ``if TYPE_CHECKING`` block."""
        parent = self.module.table.parents[statement]
        if not isinstance(parent, ast.If) or statement not in parent.body:
            return False
        return last_part(parent.test) == "TYPE_CHECKING"

    def _is_type(self, near: ast.AST) -> bool:
        """Whether a name is needed in an annotation that is not evaluated."""
        table = self.module.table
        if any(near is quoted.string for quoted in string_annotations.in_annotations(table)):
            return True
        inner = near
        for outer in table.ancestors(near) if table.postpones_annotations else ():
            if inner in (getattr(outer, "annotation", None), getattr(outer, "returns", None)):
                return True
            inner = outer
        return False

    def _path_set(self, need: Import) -> tuple[int, int]:
        """Behind where the project's modules are found: where ``sys.path`` was set last by then."""
        if _section(need.source, self.local) != 3 or need.source.startswith("."):
            return _START
        first = self.module.loading.first(need.near)
        table = self.module.table
        found = [_START]
        for node in table.attributes_by_name.named("path"):
            own = isinstance(node.value, ast.Name) and node.value.id == "sys"
            if own and table.within[node].function() is None:
                found.append(_position(table.statement(node)))
        return max(p for p in found if first is None or p < _position(first))

    def _scope(self, need: Import) -> Scope:
        """Where the FSDP names used at ``need.near`` are imported: a function that imports lazily
        keeps doing so."""
        table = self.module.table
        first = scope = table.scope_of(need.near)
        while scope is not table.module and scope.parent is not None:
            imports = [b for bs in scope.bindings.values() for b in bs if b.kind is Kind.IMPORT]
            hidden = scope.is_class and scope is not first  # from the functions in it
            if not hidden and any(b.qualified.startswith("torch.distributed") for b in imports):
                return scope
            scope = scope.parent
        return self._lazy(need) or table.module

    def _inside(self, need: Import) -> list[ImportStatement]:
        found = self._imports_of(self.scopes[need])
        return [s for s in found if self.module.table.has_run(s, need.near)]

    def _imports_of(self, scope: Scope) -> list[ImportStatement]:
        table = self.module.table
        every = [s for s in table.import_statements if s not in self.going]
        return sorted((s for s in every if table.scope_of(s) is scope), key=_position)

    def _is_fsdp1s(self, statement: ImportStatement) -> bool:
        return any(
            fsdp1.PACKAGE in b.qualified
            for b in self.module.table.imports
            if b.node in statement.names
        )


_START = (0, 0)


def _position(statement: ast.stmt) -> tuple[int, int]:
    return statement.lineno, statement.col_offset


def _place(
    module: Module,
    need: Import,
    statements: list[ImportStatement],
    result: ImportPlan,
    places: _Places,
) -> None:
    """Import a name beside one of the statements that have run where it is needed."""
    same = [
        s
        for s in statements
        if need.name and isinstance(s, ast.ImportFrom) and _same_source(module, s, need)
    ]
    if same:
        result.add(result.statements[same[0]].added, need)
        return
    for beside, listed in result.new(need):
        if beside in statements or (
            beside in result.above and module.loading.has_run(beside, need.near, itself=True)
        ):
            result.add(listed, need)
            return
    anchor = _anchor(statements, need, places.local)
    in_front = places.in_front(need) if anchor is None else None
    if in_front is not None:
        result.add(result.above[in_front], need)
    elif anchor is None:
        result.add(result.first, need)
    else:
        plan = result.statements[anchor.statement]
        result.add(plan.preceding if anchor.before else plan.following, need)


def _in_cells(
    module: Module, need: Import, found: list[ImportStatement], excerpt: Excerpt
) -> list[ImportStatement]:
    """Those in the first cell, up to the one ``need`` is in, that imports FSDP, or anything."""
    last = excerpt.piece(getattr(need.near, "lineno", 1)).line
    before = [s for s in found if excerpt.piece(s.lineno).line <= last]
    chosen = [
        s
        for s in before
        if any(fsdp1.PACKAGE in b.qualified for b in module.table.imports if b.node in s.names)
    ]
    cells = [excerpt.piece(s.lineno) for s in chosen or before]
    return [s for s in before if excerpt.piece(s.lineno) is cells[0]]


def _same_source(module: Module, statement: ast.ImportFrom, need: Import) -> bool:
    written = "." * statement.level + (statement.module or "")
    star = any(alias.name == "*" for alias in statement.names)
    return written == need.source and not star


@dataclass(frozen=True)
class _Anchor:
    statement: ImportStatement
    before: bool = False  # the new import goes above it


def _anchor(
    statements: list[ImportStatement], need: Import, local: frozenset[str]
) -> _Anchor | None:
    """Next to which import a new one reads best: sections in isort's order, sorted within."""
    if not statements:
        return None
    plain = [s for s in statements if s.col_offset == statements[0].col_offset]
    section = _section(need.source, local)
    peers = [s for s in plain if _section(_key(s), local) == section]
    if peers:
        alike = [s for s in peers if isinstance(s, ast.ImportFrom) == bool(need.name)]
        family = need.source.split(".", maxsplit=1)[0]
        related = [s for s in alike if _key(s).split(".", maxsplit=1)[0] == family]
        pool = related or alike or peers
        smaller = [s for s in pool if _key(s) <= need.source]
        if smaller:
            return _Anchor(smaller[-1])
        if pool is peers or not need.name:
            return _Anchor(peers[-1] if need.name else pool[0], before=not need.name)
        return _Anchor(pool[0], before=True)
    later = [s for s in plain if _section(_key(s), local) > section]
    if later:
        return _Anchor(later[0], before=True)
    return _Anchor(plain[-1])


def _opens_block(node: ast.AST | None, module: Module) -> bool:
    parent = module.table.parents[node] if node is not None else None
    body = getattr(parent, "body", None)
    if not isinstance(body, list) or not body:
        return False
    documented = isinstance(body[0], ast.Expr) and isinstance(body[0].value, ast.Constant)
    first = 1 if documented and not isinstance(parent, ast.Module) else 0
    return body[first : first + 1] == [node]


def _section(source: str, local: frozenset[str]) -> int:
    """0 ``__future__``, 1 the standard library, 2 other packages, 3 the project itself."""
    top = source.split(".", maxsplit=1)[0]
    if top == "__future__":
        return 0
    if top in sys.stdlib_module_names:
        return 1
    if source.startswith((".", "fsdp2_support")) or top in local:
        return 3
    return 2


def _key(statement: ImportStatement) -> str:
    if isinstance(statement, ast.ImportFrom):
        return "." * statement.level + (statement.module or "")
    return statement.names[0].name


# -- writing them --------------------------------------------------------


def _grouped(needs: Sequence[Import]) -> list[list[Import]]:
    groups: dict[tuple[str, bool], list[Import]] = {}
    for need in sorted(needs, key=lambda n: (n.source, _by_type(n.name))):
        key = (
            (need.source, bool(need.name)) if need.name else (f"{need.source} {need.asname}", False)
        )
        groups.setdefault(key, []).append(need)
    return list(groups.values())


def _spelled(need: Import) -> str:
    return f"{need.name} as {need.asname}" if need.asname else need.name


def _text(group: Sequence[Import]) -> str:
    first = group[0]
    if not first.name:
        return f"import {first.source}" + (f" as {first.asname}" if first.asname else "")
    return f"from {first.source} import {', '.join(_spelled(n) for n in group)}"


def _statement(group: Sequence[Import], editor: Editor, indent: str) -> cst.SimpleStatementLine:
    line = cst.parse_statement(_text(group), config=editor.tree.config_for_parsing)
    assert isinstance(line, cst.SimpleStatementLine)
    small = line.body[0]
    if isinstance(small, cst.ImportFrom):
        line = line.with_changes(body=[_fit(small, editor, indent)])
    return line


def _edit_names(
    node: ImportStatement,
    small: cst.Import | cst.ImportFrom,
    change: _StatementPlan,
    editor: Editor,
    indent: str,
) -> cst.Import | cst.ImportFrom | None:
    """Drop and add names of one import statement; None when nothing is left."""
    if isinstance(small.names, cst.ImportStar):
        return small
    aliases = list(small.names)
    gone = {index for index, old in enumerate(node.names) if old in change.dropped}
    if len(gone) == len(aliases) and not change.added:
        return None
    opening: cst.BaseParenthesizableWhitespace = _SPACE
    if isinstance(small, cst.ImportFrom) and isinstance(small.lpar, cst.LeftParen):
        opening = small.lpar.whitespace_after
    names = [_plain_name(alias) for alias in aliases]
    separator = _separator(aliases, opening)
    kept, first = sequence.without(aliases, gone, opening)
    if isinstance(small, cst.Import):
        return small.with_changes(names=kept)
    closing = aliases[-1].comma
    for need in sorted(change.added, key=lambda n: _by_type(n.name)):
        kept = _inserted(kept, need, names, separator, closing)
    broken = isinstance(opening, cst.ParenthesizedWhitespace)
    commented = any(_has_comment(gap) for gap in (first, *_gaps(kept)))
    if broken and not commented:
        flat = _one_line(small, kept)
        text = editor.tree.code_for_node(flat)
        if len(indent) + len(text) <= editor.line_length:
            return flat
    if broken and isinstance(small.lpar, cst.LeftParen):
        start = first if isinstance(first, cst.ParenthesizedWhitespace) else opening
        return small.with_changes(names=kept, lpar=cst.LeftParen(start))
    return _fit(small.with_changes(names=kept), editor, indent)


def _gaps(
    aliases: Sequence[cst.ImportAlias],
) -> Iterator[cst.BaseParenthesizableWhitespace]:
    for alias in aliases:
        if isinstance(alias.comma, cst.Comma):
            yield alias.comma.whitespace_after


def _has_comment(gap: cst.BaseParenthesizableWhitespace) -> bool:
    return isinstance(gap, cst.ParenthesizedWhitespace) and (
        gap.first_line.comment is not None or any(e.comment is not None for e in gap.empty_lines)
    )


def _one_line(small: cst.ImportFrom, aliases: Sequence[cst.ImportAlias]) -> cst.ImportFrom:
    names = [a.with_changes(comma=cst.Comma(whitespace_after=_SPACE)) for a in aliases]
    names[-1] = names[-1].with_changes(comma=cst.MaybeSentinel.DEFAULT)
    return small.with_changes(names=names, lpar=None, rpar=None)


def _separator(
    aliases: Sequence[cst.ImportAlias], opening: cst.BaseParenthesizableWhitespace
) -> cst.BaseParenthesizableWhitespace:
    """The plain whitespace between two names of the list."""
    for alias in aliases[:-1]:
        if isinstance(alias.comma, cst.Comma):
            return sequence.plain(alias.comma.whitespace_after)
    return sequence.plain(opening)


def _inserted(
    aliases: list[cst.ImportAlias],
    need: Import,
    before: Sequence[str],
    separator: cst.BaseParenthesizableWhitespace,
    closing: cst.Comma | cst.MaybeSentinel,
) -> list[cst.ImportAlias]:
    """``aliases`` with one more name: in the list's order if it had one, else at its end.

    ``before`` are the names the statement had, ``closing`` what stood behind the last of them.
    """
    orders = [key for key in (_by_type, str.lower) if list(before) == sorted(before, key=key)]
    position = len(aliases)
    if orders:
        order = orders[0]
        position = next(
            (i for i, a in enumerate(aliases) if order(_plain_name(a)) > order(need.name)),
            len(aliases),
        )
    new = _alias(need)
    comma = cst.Comma(whitespace_after=separator)
    if position < len(aliases):
        return [*aliases[:position], new.with_changes(comma=comma), *aliases[position:]]
    if isinstance(closing, cst.Comma):
        closing = closing.with_changes(whitespace_after=sequence.plain(closing.whitespace_after))
    if not aliases:
        return [new.with_changes(comma=closing)]
    last = aliases[-1]
    if isinstance(last.comma, cst.Comma):
        tail = last.comma.whitespace_after
        if isinstance(tail, cst.ParenthesizedWhitespace):
            gap = separator
            if isinstance(separator, cst.ParenthesizedWhitespace):
                gap = separator.with_changes(first_line=tail.first_line)
            comma = cst.Comma(whitespace_after=gap)
    return [*aliases[:-1], last.with_changes(comma=comma), new.with_changes(comma=closing)]


def _by_type(name: str) -> str:
    """isort's order: CONSTANTS, then Classes, then functions, each without regard to case."""
    bare = name.lstrip("_")
    kind = "0" if bare.isupper() and len(bare) > 1 else "1" if bare[:1].isupper() else "2"
    return kind + name.lower()


def _alias(need: Import) -> cst.ImportAlias:
    asname = cst.AsName(name=cst.Name(need.asname)) if need.asname else None
    return cst.ImportAlias(name=cst.Name(need.name), asname=asname)


def _plain_name(alias: cst.ImportAlias) -> str:
    return alias.evaluated_name


_SPACE = cst.SimpleWhitespace(" ")


def _fit(small: cst.ImportFrom, editor: Editor, indent: str) -> cst.ImportFrom:
    """Break a ``from`` import over lines when it is too long."""
    text = editor.tree.code_for_node(small.with_changes(semicolon=cst.MaybeSentinel.DEFAULT))
    if len(indent) + len(text) <= editor.line_length or isinstance(small.names, cst.ImportStar):
        return small
    unit = editor.tree.default_indent
    inner, closing = layout.line_break(unit), layout.line_break("")
    names = [a.with_changes(comma=cst.Comma(cst.SimpleWhitespace(""), inner)) for a in small.names]
    names[-1] = names[-1].with_changes(comma=cst.Comma(cst.SimpleWhitespace(""), closing))
    return small.with_changes(names=names, lpar=cst.LeftParen(inner), rpar=cst.RightParen())


def _is_docstring(node: cst.CSTNode) -> bool:
    if not isinstance(node, cst.SimpleStatementLine) or not node.body:
        return False
    first = node.body[0]
    return isinstance(first, cst.Expr) and isinstance(
        first.value, (cst.SimpleString, cst.ConcatenatedString)
    )
