"""Renderings of a report."""

from __future__ import annotations

from collections.abc import Callable

from fsdp_migrate.verify.report import json, text
from fsdp_migrate.verify.report.model import Report

RENDERERS: dict[str, Callable[[Report], str]] = {
    "text": text.render,
    "json": json.render,
}
"""By the name of the format."""

SUFFIXES = {".txt": "text", ".json": "json"}
"""Which format a file gets by its name."""
