"""Rule pages and the table of rules, without importing torch, LibCST or any rule."""

from __future__ import annotations

import difflib
import re
from collections.abc import Sequence
from pathlib import Path

from fsdp_migrate.planning.pages import Page, pages

PLACE = re.compile(r"(.+?\.(?:pyi?|ipynb))(?::cell (\d+))?:(\d+)(?::\d+)?")


class UnknownTopic(Exception):
    """Nothing is known by that name; the message gives the nearest ones."""


def table(directories: Sequence[Path] = ()) -> str:
    """Code, name and summary of every rule."""
    found = pages(directories)
    width = max(len(p.name) for p in found)
    return "".join(f"{p.code}  {p.name:<{width}}  {p.summary}\n" for p in found)


def page(topic: str, directories: Sequence[Path] = ()) -> str:
    """The page of a rule, by code, by name, or by an FSDP1 name it handles.

    Raises:
        UnknownTopic: no rule by that name.
    """
    found = pages(directories)
    wanted = topic.strip().strip("=").removeprefix("FSDP.").lower()
    for each in found:
        if wanted in {each.code.lower(), each.name.lower()}:
            return render(each)
    for each in found:
        if wanted in {name.lower() for name in each.topics}:
            return render(each)
    known = {name for p in found for name in (p.code, p.name, *p.topics)}
    near = difflib.get_close_matches(topic, sorted(known), n=3, cutoff=0.4)
    hint = f"; did you mean {', '.join(near)}?" if near else "; 'explain' alone lists the rules"
    raise UnknownTopic(f"no rule is called {topic!r}{hint}")


def render(page_: Page) -> str:
    """A page as plain text: title, sections, the first example."""
    title = f"{page_.code} {page_.name}"
    parts = [f"{title}\n{'=' * len(title)}\n{page_.summary}.\n", page_.body]
    example = page_.example()
    if example is not None:
        before, after = (_indented(text) for text in example)
        parts.append(f"## Example\nBefore:\n\n{before}\n\nAfter:\n\n{after}")
    return "\n\n".join(part.strip() for part in parts) + "\n"


def _indented(text: str) -> str:
    return "\n".join(f"    {line}" if line else "" for line in text.strip("\n").split("\n"))


def place(topic: str) -> tuple[Path, int, int] | None:
    """``train.py:41`` -> path, 0 and line, ``train.ipynb:cell 3:1`` -> path, cell and line; None if
    the topic is no place."""
    found = PLACE.fullmatch(topic)
    if found is None:
        return None
    return Path(found.group(1)), int(found.group(2) or 0), int(found.group(3))
