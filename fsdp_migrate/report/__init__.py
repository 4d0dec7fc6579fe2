"""Results as text and data: one module a format, each from events to a string."""

from fsdp_migrate.report.event import Event, Summary, events, summary

FORMATS = ("full", "concise", "json", "github")

__all__ = ["FORMATS", "Event", "Summary", "events", "render", "summary"]


def render(name: str, found: list[Event], total: Summary) -> str:
    """The report in one of ``FORMATS``."""
    from fsdp_migrate.report import github, json_, text

    renderers = {
        "full": text.full,
        "concise": text.concise,
        "json": json_.render,
        "github": github.render,
    }
    return renderers[name](found, total)
