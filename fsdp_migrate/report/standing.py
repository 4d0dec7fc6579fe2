"""The comments of ours that stand in code: markers, and ignore comments to no purpose."""

from __future__ import annotations

import io
import tokenize
from collections import defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING

from fsdp_migrate.planning.outcome import Outcome
from fsdp_migrate.planning.result import Result
from fsdp_migrate.report.event import Remark
from fsdp_migrate.syntax import suppressions

if TYPE_CHECKING:
    from fsdp_migrate.syntax.suppressions import Ignore, Marker


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
    for found in result.configured:
        if found.ignore is not None:
            used[found.display, found.ignore.line, found.ignore.column].add(found.ignoring)
        elif found.outcome is Outcome.LEFT:
            left.add((found.display, found.code, found.line))
    broken = {problem.display for problem in result.problems}
    markers: list[Remark] = []
    unused: list[Remark] = []
    for path, data in sorted(files.items()):
        whole = text(data)
        if whole is None or path in broken:
            continue
        try:
            known = result.remarks.get(path)
            said = suppressions.read(whole) if known is None else known
        except (tokenize.TokenError, SyntaxError):
            continue
        lines = whole.split("\n")
        for marker in said.markers:
            listed = (path, marker.code, marker.target) in left
            remark = _remark(path, marker, marker.code, marker.sentence, lines)
            markers.append(replace(remark, listed=listed))
        for ignore in said.ignores:
            for message in _unused(ignore, used[path, ignore.line, ignore.column]):
                help_ = "remove it" if not ignore.flaw else "mend or remove it"
                unused.append(_remark(path, ignore, suppressions.UNUSED, message, lines, help_))
    failed = any(problem.ours for problem in result.problems)
    return markers, [] if failed else unused


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


def text(data: bytes) -> str | None:
    """A file's text with newlines as line ends."""
    try:
        encoding, _ = tokenize.detect_encoding(io.BytesIO(data).readline)
        found = data.decode(encoding)
    except (SyntaxError, UnicodeDecodeError):
        return None
    return found.replace("\r\n", "\n").replace("\r", "\n")
