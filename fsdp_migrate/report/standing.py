"""The comments of ours that stand in code: markers, and ignore comments to no purpose."""

from __future__ import annotations

import tokenize
from collections import defaultdict
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from fsdp_migrate.planning.outcome import Outcome
from fsdp_migrate.planning.result import Result
from fsdp_migrate.report.edits import text
from fsdp_migrate.report.event import Remark
from fsdp_migrate.rewriting import cells
from fsdp_migrate.syntax import suppressions
from fsdp_migrate.syntax.notebook import SUFFIX as NOTEBOOK
from fsdp_migrate.syntax.notebook import NotebookError

if TYPE_CHECKING:
    from fsdp_migrate.syntax.notebook_sources import Excerpt
    from fsdp_migrate.syntax.suppressions import Ignore, Marker, Remarks


def standing(result: Result, files: Mapping[str, bytes]) -> tuple[list[Remark], list[Remark]]:
    """Markers, and ignore comments that ignore nothing, in ``files`` by the name they are shown by.

    What does not parse says nothing: reading it has told so.
    """
    used: dict[tuple[str, int, int], set[str]] = defaultdict(set)
    left: set[tuple[str, str, int]] = set()
    for decision in result.decisions:
        if decision.ignored is not None:
            by = decision.ignored
            used[by.path, by.ignore.line, by.ignore.column].add(by.code)
        elif decision.outcome is Outcome.LEFT:
            site = decision.site
            first, _ = suppressions.of(site.module.source).logical_line(site.position[0])
            for line in (first, site.statement.lineno):
                left.add((site.module.display, decision.code, line))
    for hazard in result.hazards:
        if hazard.ignored is not None:
            by = hazard.ignored
            used[by.path, by.ignore.line, by.ignore.column].add(by.code)
    for found in result.configured:
        if found.ignore is not None:
            used[found.display, found.ignore.line, found.ignore.column].add(found.ignoring)
        elif found.outcome is Outcome.LEFT:
            left.add((found.display, found.code, found.line))
    broken = {problem.display for problem in result.problems}
    markers: list[Remark] = []
    unused: list[Remark] = []
    for path, data in sorted(files.items()):
        if path in broken:
            continue
        for said, lines, excerpt in _said(path, data, result):
            for marker in said.markers:
                listed = (path, marker.code, marker.target) in left
                remark = _remark(path, marker, marker.code, marker.sentence, lines)
                end, target = marker.end_line, marker.target
                remark = replace(remark, listed=listed, end_line=end, target=target)
                markers.append(_placed(remark, excerpt))
            for ignore in said.ignores:
                for message in _unused(ignore, used[path, ignore.line, ignore.column]):
                    help_ = "remove it" if not ignore.flaw else "mend or remove it"
                    remark = _remark(path, ignore, suppressions.UNUSED, message, lines, help_)
                    unused.append(_placed(remark, excerpt))
    failed = any(problem.ours for problem in result.problems)
    return markers, [] if failed else unused


def _said(
    path: str, data: bytes, result: Result
) -> Iterator[tuple[Remarks, list[str], Excerpt | None]]:
    """What a file says to us, with its lines; a notebook what each of its sources does."""
    known = result.remarks.get(path)
    if path.endswith(NOTEBOOK) and known is None:
        with suppress(NotebookError):
            for source in cells.read(data, Path(path), path):
                yield suppressions.of(source), source.lines, source.excerpt
        return
    whole = text(data)
    if whole is not None:
        with suppress(tokenize.TokenError, SyntaxError):
            yield suppressions.read(whole) if known is None else known, whole.split("\n"), None


def _placed(remark: Remark, excerpt: Excerpt | None) -> Remark:
    """A remark with its place in the notebook, if its source was taken from one."""
    if excerpt is None:
        return remark
    cell, line, column = excerpt.place(remark.line, remark.column)
    where = excerpt.file_line(remark.line)

    def below(row: int) -> int:
        inside, found, _ = excerpt.place(row) if row else (0, 0, 0)
        return found if inside == cell else 0  # the next cell says nothing of this one

    end, target = below(remark.end_line), below(remark.target)
    placed = replace(remark, cell=cell, line=line, column=column, file_line=where)
    return replace(placed, end_line=end, target=target)


def _unused(ignore: Ignore, used: set[str]) -> Iterator[str]:
    """What of an ignore comment is to no purpose."""
    if ignore.flaw:
        yield f"this comment ignores nothing: {ignore.flaw}"
    elif not used:
        yield "this comment ignores nothing: there is nothing of the kind here"
    else:
        idle = [code for code in ignore.codes if code not in used]
        if idle:
            yield f"this comment ignores {', '.join(idle)}, of which nothing is here"


def _remark(
    path: str,
    comment: Ignore | Marker,
    code: str,
    message: str,
    lines: list[str],
    help_: str = "",
) -> Remark:
    source = lines[comment.line - 1]
    return Remark(
        path, comment.line, comment.column, code, message, help_, source, len(comment.text)
    )
