"""The text of import statements: new ones, and old ones with other names in them."""

from __future__ import annotations

import ast
from collections.abc import Collection, Sequence

import libcst as cst

from fsdp_migrate.analysis.load_order import ImportStatement
from fsdp_migrate.planning.edits import Import
from fsdp_migrate.rewriting import breaking, sequence
from fsdp_migrate.rewriting.imports.isort_order import name_order
from fsdp_migrate.syntax.kinds import of_kind


def import_text(group: Sequence[Import]) -> str:
    """One statement for names of the same module, or for a module."""
    source = group[0].source
    names = [(n.name or source) + (f" as {n.asname}" if n.asname else "") for n in group]
    return f"from {source} import {', '.join(names)}" if group[0].name else f"import {names[0]}"


def new_statement(group: Sequence[Import], tree: cst.Module, width: int) -> cst.SimpleStatementLine:
    line = of_kind(
        cst.parse_statement(import_text(group), config=tree.config_for_parsing),
        cst.SimpleStatementLine,
    )
    small = line.body[0]
    if isinstance(small, cst.ImportFrom):
        line = line.with_changes(body=[_fit(small, tree, width)])
    return line


def edit_names(
    node: ImportStatement,
    small: cst.Import | cst.ImportFrom,
    dropped: Collection[ast.alias],
    added: Sequence[Import],
    tree: cst.Module,
    width: int,
) -> cst.Import | cst.ImportFrom | None:
    """Drop and add names of one import statement; None when nothing is left."""
    if isinstance(small.names, cst.ImportStar):
        return small
    aliases = list(small.names)
    gone = {index for index, old in enumerate(node.names) if old in dropped}
    if len(gone) == len(aliases) and not added:
        return None
    opening: cst.BaseParenthesizableWhitespace = _SPACE
    if isinstance(small, cst.ImportFrom) and isinstance(small.lpar, cst.LeftParen):
        opening = small.lpar.whitespace_after
    names = [alias.evaluated_name for alias in aliases]
    separator = _separator(aliases, opening)
    kept, first = sequence.without(aliases, gone, opening)
    if isinstance(small, cst.Import):
        return small.with_changes(names=kept)
    closing = aliases[-1].comma
    for need in sorted(added, key=lambda n: name_order(n.name)):
        kept = _inserted(kept, need, names, separator, closing)
    broken = isinstance(opening, cst.ParenthesizedWhitespace)
    gaps = [name.comma.whitespace_after for name in kept if isinstance(name.comma, cst.Comma)]
    if isinstance(small.rpar, cst.RightParen):
        gaps.append(small.rpar.whitespace_before)
    shorter = bool(gone) and (len(kept) == 1 or _is_spread(aliases))
    if (broken or shorter) and not any(map(_has_comment, (first, *gaps))):
        flat = _one_line(small, kept)
        if len(tree.code_for_node(flat)) <= width:
            return flat
    if broken and isinstance(small.lpar, cst.LeftParen):
        start = first if isinstance(first, cst.ParenthesizedWhitespace) else opening
        return small.with_changes(names=kept, lpar=cst.LeftParen(start))
    return _fit(small.with_changes(names=kept), tree, width)


def _is_spread(aliases: Sequence[cst.ImportAlias]) -> bool:
    """Whether names stand on several lines."""
    commas = [a.comma for a in aliases if isinstance(a.comma, cst.Comma)]
    return any(isinstance(c.whitespace_after, cst.ParenthesizedWhitespace) for c in commas)


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
    """``aliases`` with one more name: where the list's order puts it, or at the end.

    ``before`` are the names that the statement had; ``closing`` is what stood behind the last.
    """
    orders = [key for key in (name_order, str.lower) if list(before) == sorted(before, key=key)]
    position = len(aliases)
    if orders:
        order = orders[0]
        position = next(
            (i for i, a in enumerate(aliases) if order(a.evaluated_name) > order(need.name)),
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


def _alias(need: Import) -> cst.ImportAlias:
    asname = cst.AsName(name=cst.Name(need.asname)) if need.asname else None
    return cst.ImportAlias(name=cst.Name(need.name), asname=asname)


_SPACE = cst.SimpleWhitespace(" ")


def _fit(small: cst.ImportFrom, tree: cst.Module, width: int) -> cst.ImportFrom:
    """Break a ``from`` import over lines when it is too long."""
    text = tree.code_for_node(small.with_changes(semicolon=cst.MaybeSentinel.DEFAULT))
    if len(text) <= width or isinstance(small.names, cst.ImportStar):
        return small
    unit = tree.default_indent
    inner, closing = breaking.line_break(unit), breaking.line_break("")
    names = [a.with_changes(comma=cst.Comma(cst.SimpleWhitespace(""), inner)) for a in small.names]
    names[-1] = names[-1].with_changes(comma=cst.Comma(cst.SimpleWhitespace(""), closing))
    return small.with_changes(names=names, lpar=cst.LeftParen(inner), rpar=cst.RightParen())
