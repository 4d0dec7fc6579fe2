"""Results as text and data: one module a format, each from events to a string."""

from importlib import import_module
from pathlib import Path

from fsdp_migrate.report.event import (
    Coverage,
    Event,
    Remark,
    Summary,
    by_file,
    events,
    printable,
    printable_summary,
    summary,
)

FORMATS = {
    "full": "text:full",
    "concise": "text:concise",
    "json": "json_:render",
    "github": "github:render",
    "sarif": "sarif:render",
    "markdown": "markdown:render",
    "html": "html:render",
}
SUFFIXES = {
    ".json": "json",
    ".sarif": "sarif",
    ".md": "markdown",
    ".htm": "html",
    ".html": "html",
}
PLAIN = frozenset({"full", "concise", "github"})  # text that a terminal or a log shows
WITH_CONTENTS = frozenset({"html", "json", "sarif"})  # that need the files before and after

__all__ = [
    "FORMATS",
    "Coverage",
    "Event",
    "Remark",
    "Summary",
    "by_file",
    "chosen",
    "events",
    "printable",
    "printable_summary",
    "render",
    "summary",
]


def chosen(name: str | None, output: Path | None) -> str:
    """The format to write: the one asked for, else what the file's suffix says, else the first."""
    if name is not None:
        return name
    return SUFFIXES.get(output.suffix.lower(), "full") if output is not None else "full"


def render(name: str, found: list[Event], total: Summary) -> str:
    """The report in one of ``FORMATS``; only its own module is loaded."""
    module, _, function = FORMATS[name].partition(":")
    if name in PLAIN:
        found, total = printable(found), printable_summary(total)
    rendered: str = getattr(import_module(f"{__name__}.{module}"), function)(found, total)
    return rendered
