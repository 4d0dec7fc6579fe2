"""JSON: everything the other formats show, for programs. ``schema`` counts incompatible changes."""

from __future__ import annotations

import json

from fsdp_migrate.report.event import Event, Summary


def render(found: list[Event], total: Summary) -> str:
    document = {
        "schema": 1,
        "sites": [
            {
                "path": e.path,
                **({"cell": e.cell} if e.cell else {}),
                "line": e.line,
                "column": e.column,
                "code": e.code,
                "outcome": e.outcome.value,
                "construct": e.construct,
                "message": e.message,
                "help": e.help,
                "held": e.held,
            }
            for e in found
        ],
        "summary": {
            "sites": total.sites,
            "rewritten": total.rewritten,
            "review": total.review,
            "left": total.left,
            "coverage": round(total.coverage, 4),
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
    return json.dumps(document, indent=2, ensure_ascii=False) + "\n"
