"""Apply a module's edits in one pass over the parts of its LibCST tree that change."""

from __future__ import annotations

from collections.abc import Sequence

import libcst as cst

from fsdp_migrate.analysis.module import Module
from fsdp_migrate.planning.edits import Edit
from fsdp_migrate.rewriting.abridged import AbridgedText, abridge
from fsdp_migrate.rewriting.edit_plan import EditError, EditPlan, plan_edits
from fsdp_migrate.rewriting.imports.plan import ImportPlan, plan_imports
from fsdp_migrate.rewriting.locate import locate
from fsdp_migrate.rewriting.transformer import Editor


def apply_edits(
    module: Module,
    edits: Sequence[Edit],
    *,
    line_length: int = 100,
    local: frozenset[str] = frozenset(),
    single_line_imports: bool = False,
) -> bytes:
    """The new bytes of ``module``: layout, line endings, encoding and byte order mark kept.

    Raises:
        EditError: LibCST cannot parse or does not reproduce the file, two edits contradict each
            other, or the result cannot be written in the file's encoding.
    """
    source = module.source
    plan = plan_edits(module, edits)
    import_plan = plan_imports(module, edits, plan.imports, local, single_line=single_line_imports)
    for statement, needs in import_plan.above.items():
        plan.statements[statement].before[:0] = import_plan.new_code(needs)
    for statement, needs in import_plan.below.items():
        plan.statements[statement].after[:0] = import_plan.new_code(needs)
    wanted = {*plan.wanted(), *import_plan.statements}
    part = None if import_plan.first else abridge(module, wanted, edits)
    text = None
    if part is not None:
        edited = _edited(module, plan, import_plan, line_length, part)
        text = None if edited is None else part.whole(edited)
    if text is None:
        text = _edited(module, plan, import_plan, line_length, None)
    if text is None:
        raise EditError("LibCST does not reproduce the file byte for byte")
    bom = b"\xef\xbb\xbf" if source.data.startswith(b"\xef\xbb\xbf") else b""
    encoding = "utf-8" if bom else source.encoding
    try:
        return bom + text.removeprefix("\ufeff").encode(encoding)
    except UnicodeEncodeError as error:
        raise EditError(f"the result cannot be written as {encoding}") from error


def _edited(
    module: Module,
    plan: EditPlan,
    import_plan: ImportPlan,
    line_length: int,
    part: AbridgedText | None,
) -> str | None:
    """The new text of a module, or of a part of it in which all that is edited stands; None where
    LibCST does not reproduce the old one."""
    source = module.source
    text = source.text if part is None else part.text
    tail = _tail(text)
    try:
        encoded = source.data.removesuffix(tail.encode(source.encoding))
        tree = cst.parse_module(encoded if part is None else text.removesuffix(tail))
    except (cst.ParserSyntaxError, UnicodeDecodeError, RecursionError) as error:
        raise EditError(f"LibCST cannot parse it: {error}") from error
    located = locate(tree, source, {*plan.wanted(), *import_plan.statements}, part)
    if located.text != text.removesuffix(tail):
        return None
    missing = plan.wanted() - set(located.nodes.values())
    if missing:
        lines = sorted(getattr(node, "lineno", 0) for node in missing)
        raise EditError(f"no LibCST node for the code at line {lines[0]}")
    editor = Editor(module, tree, plan, located, import_plan, line_length)
    try:
        return tree.visit(editor).code + tail
    except (cst.ParserSyntaxError, cst.CSTValidationError) as error:
        raise EditError(f"the new code does not fit in: {error}") from error


def _tail(text: str) -> str:
    """Spaces or a comment on a last line without an end, of which LibCST loses the spaces."""
    tail = text[max(text.rfind("\n"), text.rfind("\r")) + 1 :]
    return tail if not tail.strip() or tail.lstrip().startswith("#") else ""
