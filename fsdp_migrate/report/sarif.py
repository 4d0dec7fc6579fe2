"""SARIF 2.1.0, as code hosts take it: what is left becomes an alert, what ``rewrite`` does a note.

What is ignored is left out: GitHub shows suppressed results as open alerts.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections import Counter
from collections.abc import Iterable
from pathlib import Path
from typing import Any
from urllib.parse import quote

from fsdp_migrate import __version__
from fsdp_migrate.planning import pages
from fsdp_migrate.planning.outcome import Outcome
from fsdp_migrate.planning.result import Problem
from fsdp_migrate.report import edits
from fsdp_migrate.report.event import Event, Remark, Summary
from fsdp_migrate.report.text import headline, remark, remarks
from fsdp_migrate.shown import in_json

SCHEMA = (
    "https://docs.oasis-open.org/sarif/sarif/v2.1.0/errata01/os/schemas/sarif-schema-2.1.0.json"
)
ROOT = "%SRCROOT%"
LEVELS = {Outcome.REWRITTEN: "note", Outcome.REVIEW: "warning", Outcome.LEFT: "warning"}
FINGERPRINT = "fsdpMigrate/v1"


def render(found: list[Event], total: Summary) -> str:
    shown = [e for e in found if not e.ignored]
    told = remarks(total)
    codes = sorted({e.code for e in shown} | {r.code for r in told})
    index = {code: number for number, code in enumerate(codes)}
    seen: Counter[str] = Counter()
    results = [_site(e, index, total.root, seen) for e in shown]
    done = (n for n, e in enumerate(shown) if e.outcome is not Outcome.LEFT)
    first = next(done, None)
    if first is not None and total.contents:
        results[first]["fixes"] = [_fix(total)]
    results += [_remark(r, index, total.root, seen) for r in told]
    run = {
        "tool": {
            "driver": {
                "name": "fsdp-migrate",
                "version": __version__,
                "rules": _rules(codes, total.rule_paths),
            }
        },
        "invocations": [
            {
                "executionSuccessful": not total.problems,
                "toolExecutionNotifications": [_problem(p, total.root) for p in total.problems],
            }
        ],
        "originalUriBaseIds": {
            ROOT: {"description": {"text": "The top of the repository, else of the project."}}
        },
        "columnKind": "utf16CodeUnits",
        "results": results,
        "properties": {
            "sites": total.sites,
            "rewritten": total.rewritten,
            "review": total.review,
            "left": total.left,
            "ignored": total.ignored,
            "markers": len(total.markers),
            "hazards": len(total.hazards),
            "coverage": round(total.coverage, 4),
        },
    }
    document = {"$schema": SCHEMA, "version": "2.1.0", "runs": [run]}
    return in_json(json.dumps(document, indent=2, ensure_ascii=False)) + "\n"


def _rules(codes: Iterable[str], directories: Iterable[Path]) -> list[dict[str, Any]]:
    """The rules that have results, in the order their results count them."""
    known = {page.code: page for page in pages.pages(directories)}
    return [_rule(code, known.get(code)) for code in codes]


def _rule(code: str, page: pages.Page | None) -> dict[str, Any]:
    if page is None:
        return {"id": code}
    summary = f"{page.summary}."
    return {
        "id": code,
        "name": "".join(word.capitalize() for word in page.name.split("_")),
        "shortDescription": {"text": summary},
        "fullDescription": {"text": _plain(page.section("Why")) or summary},
        **({"helpUri": address} if (address := pages.url(code)) else {}),
        "help": {"text": page.body, "markdown": f"# {code}: {summary}\n\n{page.body}"},
        "properties": {"tags": ["fsdp", "pytorch"]},
    }


def _plain(markdown: str) -> str:
    """The first paragraph on one line."""
    return " ".join(markdown.partition("\n\n")[0].replace("`", "").split())


def _remark(of: Remark, index: dict[str, int], root: Path, seen: Counter[str]) -> dict[str, Any]:
    level = "warning" if of.is_hazard and not of.is_note else "note"
    what = "hazard" if of.is_hazard else "comment"
    result = _result(of, index, root, seen, level, remark(of), what)
    _reach_end(of, result)
    if of.edits:
        change = _change(of.path, of.edits, root)
        text = f"Mend it: {of.help}."
        result["fixes"] = [{"description": {"text": text}, "artifactChanges": [change]}]
    return result


def _site(event: Event, index: dict[str, int], root: Path, seen: Counter[str]) -> dict[str, Any]:
    # What is held back has its cause reported with a level of its own.
    level = "note" if event.held else LEVELS[event.outcome]
    result = _result(event, index, root, seen, level, headline(event), str(event.construct))
    result["properties"] = {"outcome": event.outcome.value, "held": event.held}
    _reach_end(event, result)
    return result


def _reach_end(of: Event | Remark, result: dict[str, Any]) -> None:
    """The region of what ends on a later line."""
    if of.end_line > of.line and of.end_column and not of.cell:
        region = result["locations"][0]["physicalLocation"]["region"]
        region |= {"endLine": of.end_line, "endColumn": of.end_column}


def _fix(total: Summary) -> dict[str, Any]:
    """All that ``rewrite`` would change: a migration is whole in all files, or it is none."""
    changes = [
        _change(path, edits.edits(before, after), total.root)
        for path, (before, after) in total.contents.items()
        if before != after
    ]
    return {"description": {"text": "Migrate all of it to FSDP2."}, "artifactChanges": changes}


def _change(path: str, made: Iterable[edits.Edit], root: Path) -> dict[str, Any]:
    """What edits do to one file."""
    replacements = [
        {
            "deletedRegion": {
                "startLine": edit.line,
                "startColumn": 1,
                "endLine": edit.end_line,
                "endColumn": 1,
            },
            "insertedContent": {"text": edit.text},
        }
        for edit in made
    ]
    return {"artifactLocation": _location(path, root), "replacements": replacements}


def _result(
    of: Event | Remark,
    index: dict[str, int],
    root: Path,
    seen: Counter[str],
    level: str,
    said: str,
    what: str,
) -> dict[str, Any]:
    sentences = [said, of.help[:1].upper() + of.help[1:]] if of.help else [said]
    location = _location(of.path, root)
    # Stable when lines move; equal places are told apart by their order.
    content = (location.get("uri", ""), of.code, what, " ".join(of.source.split()))
    digest = hashlib.sha256("\0".join(content).encode(errors="surrogatepass")).hexdigest()[:24]
    seen[digest] += 1
    return {
        "ruleId": of.code,
        "ruleIndex": index[of.code],
        "level": level,
        "message": {"text": _message(sentences)},
        "locations": [
            {
                "physicalLocation": {
                    "artifactLocation": location,
                    "region": _region(of),
                },
                **_logical(of),
            }
        ],
        "partialFingerprints": {FINGERPRINT: f"{digest}:{seen[digest]}"},
    }


def _region(of: Event | Remark) -> dict[str, int]:
    """The span of its first line; in a notebook the line of the file, whose columns are JSON's."""
    if of.cell:
        return {"startLine": of.in_file}
    first = _units(of.source[: of.column - 1])
    width = _units(of.source[of.column - 1 : of.column - 1 + of.width])
    return {
        "startLine": of.line,
        "startColumn": first + 1,
        "endLine": of.line,
        "endColumn": first + width + 1,
    }


def _logical(of: Event | Remark) -> dict[str, Any]:
    """Which line of which cell of a notebook it is."""
    if not of.cell:
        return {}
    name = f"cell {of.cell}, line {of.line}, column {of.column}"
    return {"logicalLocations": [{"fullyQualifiedName": name}]}


def _message(sentences: Iterable[str]) -> str:
    """Sentences as a message, in which braces would be placeholders."""
    text = " ".join(f"{sentence.rstrip('.')}." for sentence in sentences)
    return text.replace("{", "{{").replace("}", "}}")


def _problem(problem: Problem, root: Path) -> dict[str, Any]:
    place: dict[str, Any] = {"artifactLocation": _location(problem.display, root)}
    if problem.line:
        place["region"] = {"startLine": problem.in_file}
    return {
        "level": "error",
        "message": {"text": _message([problem.message])},
        "locations": [{"physicalLocation": place}],
    }


def _location(shown: str, root: Path) -> dict[str, str]:
    """A file as code hosts name it: relative to the root, where it lies there."""
    path = os.path.normpath(Path.cwd() / shown)
    relative = os.path.relpath(path, root)
    if relative.startswith(os.pardir):
        return {"uri": f"file://{quote(os.fsencode(path))}"}
    return {"uri": quote(os.fsencode(Path(relative).as_posix())), "uriBaseId": ROOT}


def _units(text: str) -> int:
    """The length of a text in UTF-16."""
    return len(text.encode("utf-16-le", "surrogatepass")) // 2
