"""What the HTML reports share: one page that loads nothing and runs nothing."""

from __future__ import annotations

import re
from html import escape

from fsdp_migrate import shown

STYLE = """
:root { color-scheme: light dark; --text: #1c2024; --dim: #60666d; --page: #fbfbfa; --card: #fff;
  --line: #e3e3e0; --good: #1a7f4b; --bad: #c42b2b; --open: #9a6700; }
@media (prefers-color-scheme: dark) { :root { --text: #e6e6e3; --dim: #9aa0a6; --page: #17191c;
  --card: #1f2226; --line: #34383d; --good: #4cc38a; --bad: #ff6b6b; --open: #e0b040; } }
* { box-sizing: border-box; }
body { margin: 0; background: var(--page); color: var(--text);
  font: 15px/1.5 system-ui, -apple-system, "Segoe UI", Roboto, sans-serif; }
main { max-width: 960px; margin: 0 auto; padding: 32px 20px 64px; }
h1 { font-size: 22px; margin: 0 0 4px; display: flex; gap: 12px; align-items: center;
  flex-wrap: wrap; }
h2 { font-size: 16px; margin: 32px 0 8px; }
.chip { font-size: 13px; font-weight: 700; letter-spacing: .04em; padding: 3px 10px;
  border-radius: 6px; color: var(--card); }
.good .chip { background: var(--good); } .bad .chip { background: var(--bad); }
.open .chip { background: var(--open); }
.lead { margin: 8px 0 0; } .hint { color: var(--dim); margin: 4px 0 0; }
.card { background: var(--card); border: 1px solid var(--line); border-radius: 8px;
  padding: 14px 16px; overflow-x: auto; }
table { border-collapse: collapse; width: 100%; font-size: 14px; }
th { text-align: left; color: var(--dim); font-weight: 600; white-space: nowrap; }
th, td { padding: 5px 10px 5px 0; border-bottom: 1px solid var(--line); vertical-align: top; }
tr:last-child td { border-bottom: 0; } td:first-child { white-space: nowrap; }
.n { text-align: right; font-variant-numeric: tabular-nums; white-space: nowrap; }
pre { font: 13px/1.45 ui-monospace, Consolas, monospace; margin: 8px 0 0; white-space: pre-wrap;
  overflow-wrap: anywhere; }
small { color: var(--dim); display: block; }
ul { margin: 4px 0 0; padding-left: 20px; } footer { color: var(--dim); margin-top: 32px;
  font-size: 13px; }
"""

# The page runs nothing and loads nothing, even if something in it should want to.
POLICY = "default-src 'none'; style-src 'unsafe-inline'; base-uri 'none'; form-action 'none'"

# What HTML forbids or a reader cannot see, and what turns the text around it about.
_UNSEEN = re.compile(
    r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200b-\u200f\u2028-\u202e\u2060-\u2069\ud800-\udfff"
    rf"{shown.INVISIBLE}]"
)


def page(title: str, style: str, body: str) -> str:
    """A page; ``title`` is text, ``style`` and ``body`` are CSS and HTML."""
    return (
        '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        f'<meta http-equiv="Content-Security-Policy" content="{POLICY}">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f"<title>{text(title)}</title>\n"
        f"<style>{STYLE}{style}</style>\n</head>\n<body>\n<main>\n{body}\n</main>\n</body>\n"
        "</html>\n"
    )


def text(value: str) -> str:
    """A text as HTML; characters that do not show by their number."""
    return escape(_UNSEEN.sub(lambda m: shown.number(m[0]), value))


def one_line(value: str) -> str:
    """A name or a sentence as HTML, on one line."""
    return text(shown.line(value))
