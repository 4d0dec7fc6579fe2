"""Break the first lines of compound statements that edits made too long."""

from __future__ import annotations

from collections.abc import Sequence

import libcst as cst

from fsdp_migrate.rewriting import breaking, layout

Headed = cst.If | cst.While | cst.For | cst.With | cst.FunctionDef
PARTS = {
    cst.If: ("test",),
    cst.While: ("test",),
    cst.For: ("target", "iter"),
    cst.With: ("items",),
    cst.FunctionDef: ("params", "whitespace_before_params", "returns"),
}


def fitted(
    original: Headed,
    updated: Headed,
    module: cst.Module,
    indent: str,
    limit: int,
    new: set[cst.CSTNode],
) -> Headed:
    """A compound statement whose first line is broken, if edits made that longer than ``limit``."""
    before = layout.widths_above(limit, bare(original), module, indent)
    header = bare(updated)
    after = layout.widths_above(limit, header, module, indent)
    if not after or after <= before or layout.is_careless(before, after, limit):
        return updated
    broken = _in_its_own_way(header, module.default_indent)
    if broken is None or layout.widths_above(limit, broken, module, indent):
        broken = layout.fit_line(header, module, indent, limit, new, before)
    parts = next(names for kind, names in PARTS.items() if isinstance(updated, kind))
    return updated.with_changes(**{name: getattr(broken, name) for name in parts})


def bare(node: Headed) -> Headed:
    """A compound statement without its body, and without what stands above and below it."""
    empty = cst.IndentedBlock([])
    if isinstance(node, cst.FunctionDef):
        return node.with_changes(leading_lines=(), decorators=(), body=empty)
    if isinstance(node, cst.With):
        return node.with_changes(leading_lines=(), body=empty)
    return node.with_changes(leading_lines=(), body=empty, orelse=None)


def _in_its_own_way(header: Headed, unit: str) -> Headed | None:
    """How formatters break parameters and long conditions; None for what is broken at brackets."""
    if isinstance(header, cst.FunctionDef):
        return _parameters_on_lines(header, unit)
    if isinstance(header, (cst.If, cst.While)):
        test = header.test
        if isinstance(test, cst.BooleanOperation) and not test.lpar and _operands(test) > 2:
            return header.with_changes(test=breaking.one_operand_per_line(test, unit))
        call = _last_call(test)
        return None if call is None else layout.inside_on_one_line(header, call, unit)
    return None


def _last_call(test: cst.BaseExpression) -> cst.Call | None:
    """The last call on the first line of a condition."""
    if isinstance(test, cst.Call):
        return test if test.args else None
    if isinstance(test, cst.UnaryOperation):
        return _last_call(test.expression)
    if not isinstance(test, cst.BooleanOperation):
        return None
    return _last_call(test.right) or _last_call(test.left)


def _operands(test: cst.BaseExpression) -> int:
    """How many operands a condition has, those in parentheses as one."""
    if not isinstance(test, cst.BooleanOperation) or test.lpar:
        return 1
    return _operands(test.left) + _operands(test.right)


def _parameters_on_lines(header: cst.FunctionDef, unit: str) -> cst.FunctionDef | None:
    """A function with one parameter a line, where they share one."""
    old = _parameters(header.params)
    spaces = [getattr(each, "comma", None) for each in old[:-1]]
    if not old or any(_breaks(getattr(comma, "whitespace_after", None)) for comma in spaces):
        return None
    inner, closing = breaking.line_break(unit), breaking.line_break("")
    new: dict[cst.CSTNode, cst.CSTNode] = {
        each: each.with_changes(comma=cst.Comma(whitespace_after=inner)) for each in old
    }
    new[old[-1]] = old[-1].with_changes(comma=cst.Comma(whitespace_after=closing))
    params = header.params
    changed = params.with_changes(
        posonly_params=[new[each] for each in params.posonly_params],
        posonly_ind=new.get(params.posonly_ind, params.posonly_ind),  # type: ignore[arg-type]
        params=[new[each] for each in params.params],
        star_arg=new.get(params.star_arg, params.star_arg),  # type: ignore[arg-type]
        kwonly_params=[new[each] for each in params.kwonly_params],
        star_kwarg=params.star_kwarg and new[params.star_kwarg],
    )
    return header.with_changes(params=changed, whitespace_before_params=inner)


def _parameters(params: cst.Parameters) -> list[cst.CSTNode]:
    """Parameters, and the marks between them, in their order."""
    found: Sequence[object] = (
        *params.posonly_params,
        params.posonly_ind,
        *params.params,
        params.star_arg,
        *params.kwonly_params,
        params.star_kwarg,
    )
    return [each for each in found if isinstance(each, cst.CSTNode)]


def _breaks(space: object) -> bool:
    return isinstance(space, cst.ParenthesizedWhitespace)
