"""The report as JSON."""

from __future__ import annotations

import json
import math
from typing import Any

from fsdp_migrate import shown
from fsdp_migrate.verify.report.model import Report


def render(report: Report) -> str:
    """One JSON object, as :func:`written` has it."""
    return written(report.to_dict())


def written(document: dict[str, Any]) -> str:
    """A document as text, indented, ending in a newline.

    Strict JSON: numbers that are not finite become the strings ``"nan"``, ``"inf"``, ``"-inf"``.
    """
    text = json.dumps(_strict(document), indent=2, ensure_ascii=False, allow_nan=False)
    return shown.in_json(text) + "\n"


def _strict(value: Any) -> Any:
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    if isinstance(value, dict):
        return {key: _strict(item) for key, item in value.items()}
    if isinstance(value, list):
        return [_strict(item) for item in value]
    return value
