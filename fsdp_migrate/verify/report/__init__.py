"""Renderings of a report."""

from __future__ import annotations

from collections.abc import Callable

from fsdp_migrate.verify.report import html, json, junit, markdown, text
from fsdp_migrate.verify.report.model import Report

RENDERERS: dict[str, Callable[[Report], str]] = {
    "text": text.render,
    "json": json.render,
    "junit": junit.render,
    "markdown": markdown.render,
    "html": html.render,
}
"""By the name of the format."""

SUFFIXES = {
    ".txt": "text",
    ".json": "json",
    ".xml": "junit",
    ".md": "markdown",
    ".html": "html",
}
"""Which format a file gets by its name."""
