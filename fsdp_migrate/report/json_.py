"""JSON: everything the other formats show, for programs. ``schema`` counts incompatible changes.

``left`` includes what is ``ignored``, which ``coverage`` does not count. ``docs/schemas`` has the
form; ``tests/documents/test_agents.py`` holds reports to it.
"""

from __future__ import annotations

import json

from fsdp_migrate import shown
from fsdp_migrate.planning import pages
from fsdp_migrate.planning.outcome import Outcome
from fsdp_migrate.report import edits, mend
from fsdp_migrate.report.event import Coverage, Event, Remark, Summary, by_file


def render(found: list[Event], total: Summary) -> str:
    document = {
        "schema": 1,
        "sites": [
            {
                "path": e.path,
                **({"cell": e.cell} if e.cell else {}),
                "line": e.line,
                "column": e.column,
                "end_line": e.end_line or e.line,
                **({"end_column": e.end_column} if e.end_column else {}),
                **({"file_line": e.file_line} if e.file_line else {}),
                "code": e.code,
                "url": pages.url(e.code, total.rule_paths),
                "outcome": e.outcome.value,
                "construct": str(e.construct),
                "message": e.message,
                "help": e.help,
                "held": e.held,
                "ignored": e.ignored,
                "guarded": e.guarded,
                **({"mend": mend.of(e, total)} if mend.is_for_you(e) else {}),
            }
            for e in found
        ],
        "files": [{"path": path, **_coverage(own)} for path, own in by_file(found).items()],
        "changes": edits.listed(total.contents),
        "markers": [_marker(m, total) for m in total.markers],
        "unused_ignores": [_remark(u) for u in total.unused],
        "hazards": [
            {
                **_remark(h),
                "end_line": h.end_line,
                "end_column": h.end_column,
                **({"file_line": h.file_line} if h.file_line else {}),
                "url": pages.url(h.code, total.rule_paths),
                "help": h.help,
                "level": "note" if h.is_note else "warning",
                **({"edits": edits.as_json(h.edits)} if h.edits else {}),
            }
            for h in (*total.hazards, *total.possible)
        ],
        "not_followed": [
            {
                "path": n.display,
                **({"cell": n.cell} if n.cell else {}),
                "line": n.line,
                "message": n.why,
            }
            for n in total.not_followed
        ],
        "requirements": [
            {
                "path": r.display,
                **({"line": r.line} if r.line else {}),
                "code": r.code,
                "url": pages.url(r.code, total.rule_paths),
                "outcome": (Outcome.REWRITTEN if r.done else Outcome.LEFT).value,
                "message": r.message,
                "help": r.help,
            }
            for r in total.requirements
        ],
        "held_back": [
            {
                "sites": h.sites,
                "by": list(h.places),
                "partial": h.is_stoppable,
                "linked": list(h.links),
            }
            for h in total.held_back
        ],
        "summary": {
            **_coverage(total),
            "markers": len(total.markers),
            "unused_ignores": len(total.unused),
            "hazards": len(total.hazards),
            "possible_hazards": total.untold or len(total.possible),
            "changed": list(total.changed),
            "created": list(total.created),
            "files": total.files,
        },
        "problems": [
            {
                "path": p.display,
                **({"cell": p.cell} if p.cell else {}),
                "line": p.line,
                "message": p.message,
                "ours": p.ours,
            }
            for p in total.problems
        ],
        "notes": list(total.notes),
    }
    return shown.in_json(json.dumps(document, indent=2, ensure_ascii=False)) + "\n"


def _coverage(of: Coverage) -> dict[str, object]:
    return {
        "sites": of.sites,
        "rewritten": of.rewritten,
        "review": of.review,
        "left": of.left,
        "ignored": of.ignored,
        "coverage": round(of.coverage, 4),
    }


def _marker(found: Remark, total: Summary) -> dict[str, object]:
    """A marker with what its site had: after a rewrite it is all that tells of it."""
    return {
        **_remark(found),
        "end_line": found.end_line or found.line,
        **({"target": found.target} if found.target else {}),
        "url": pages.url(found.code, total.rule_paths),
        "listed": found.listed,
        "mend": mend.of(found, total),
    }


def _remark(found: Remark) -> dict[str, object]:
    return {
        "path": found.path,
        **({"cell": found.cell} if found.cell else {}),
        "line": found.line,
        "column": found.column,
        "code": found.code,
        "message": found.message,
    }
