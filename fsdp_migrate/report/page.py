"""What the HTML reports share: one page that loads nothing and runs nothing."""

from __future__ import annotations

import re
from html import escape
from importlib.resources import files
from string import Template

from fsdp_migrate import shown

# The page runs nothing and loads nothing, even if something in it should want to.
POLICY = "default-src 'none'; style-src 'unsafe-inline'; base-uri 'none'; form-action 'none'"

# What HTML forbids or a reader cannot see, and what turns the text around it about.
_UNSEEN = re.compile(
    r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200b-\u200f\u2028-\u202e\u2060-\u2069\ud800-\udfff"
    rf"{shown.INVISIBLE}]"
)


def page(title: str, package: str, body: str) -> str:
    """A page; ``title`` is text, ``body`` is HTML, and ``package`` holds ``report.css``."""
    return Template(read_text(__package__, "page.html")).substitute(
        policy=POLICY,
        title=text(title),
        style=read_text(__package__, "page.css"),
        own_style=read_text(package, "report.css"),
        body=body,
    )


def read_text(package: str, name: str) -> str:
    """A file that lies beside the modules of a package."""
    return files(package).joinpath(name).read_text(encoding="utf-8")


def text(value: str) -> str:
    """A text as HTML; characters that do not show by their number."""
    return escape(_UNSEEN.sub(lambda m: shown.number(m[0]), value))


def one_line(value: str) -> str:
    """A name or a sentence as HTML, on one line."""
    return text(shown.line(value))
