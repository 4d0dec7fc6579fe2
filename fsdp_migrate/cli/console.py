"""The screen. The only module that uses rich.

Source text is never passed through markup, lines are never wrapped, and colour carries no
information of its own. What a terminal would obey is escaped once more, whatever it is part of.
Without a terminal, or with ``NO_COLOR``, plain text comes out.
"""

from __future__ import annotations

import os
import re
import shutil
import sys
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import TextIO

from fsdp_migrate import shown

STYLES = {"rewrote": "green", "review": "yellow", "left": "red"}


def coloured(stream: object = None) -> bool:
    """Whether colour may be written to a stream (standard output by default)."""
    target = stream or sys.stdout
    if os.environ.get("NO_COLOR"):
        return False
    if os.environ.get("FORCE_COLOR"):
        return True
    return bool(getattr(target, "isatty", lambda: False)()) and os.environ.get("TERM") != "dumb"


def columns(stream: TextIO) -> int:
    """How wide the terminal is that a stream leads to; 0 where it leads to none."""
    return shutil.get_terminal_size().columns if stream.isatty() else 0


def out(text: str, links: Mapping[str, str] | None = None) -> None:
    """Results, to standard output; words in ``links`` lead to their addresses, where the terminal
    has such links."""
    text = shown.text(text)
    if links and _has_links():
        known = {shown.text(word): address for word, address in links.items() if address}
        wanted = "|".join(map(re.escape, sorted(known, key=len, reverse=True)))
        text = re.sub(
            rf"(?m)^( *--> )?({wanted})(?=:|[ ]|$)",
            lambda m: f"{m[1] or ''}\x1b]8;;{known[m[2]]}\x1b\\{m[2]}\x1b]8;;\x1b\\",
            text,
        )
    sys.stdout.write(text if text.endswith("\n") or not text else f"{text}\n")


def _has_links() -> bool:
    """Whether standard output is a terminal that is known to have links. There is no way to ask."""
    if not (coloured() and sys.stdout.isatty()):
        return False
    has = os.environ.get
    programs = {"iTerm.app", "WezTerm", "vscode", "ghostty", "Hyper", "rio", "zed"}
    terminals = ("xterm-kitty", "foot", "alacritty", "wezterm", "xterm-ghostty")
    return bool(
        has("WT_SESSION")
        or has("KONSOLE_VERSION")
        or has("TERM_PROGRAM") in programs
        or has("TERM", "").startswith(terminals)
        or (has("VTE_VERSION", "").isdigit() and int(has("VTE_VERSION", "0")) >= 5000)
    )


def note(text: str) -> None:
    """Everything else, to standard error."""
    sys.stderr.write(f"{shown.text(text)}\n")


def problem(text: str) -> None:
    """An error message of one line, to standard error."""
    text = shown.line(text)
    if coloured(sys.stderr):
        _print([("error: ", "bold red"), (text, "")], error=True)
    else:
        note(f"error: {text}")


def sites(lines: Iterable[str]) -> None:
    """Lines of ``report.text.rewrite_lines``, the verb in colour."""
    if not coloured():
        for line in lines:
            out(line)
        return
    for line in lines:
        found = re.match(r"(FSDP\d{3})(  )(\S+)(.*)", line)
        if found is None:
            _print([(line, "dim" if line.startswith(" " * 10) else "")])
        else:
            code, gap, verb, rest = found.groups()
            _print([(code, "bold"), (gap, ""), (verb, STYLES.get(verb, "")), (rest, "")])


def words(text: str, styles: Mapping[str, str]) -> None:
    """Text to standard output, the words in ``styles`` in colour."""
    if not coloured():
        out(text)
        return
    wanted = re.compile(rf"\b({'|'.join(styles)})\b")
    for line in text.splitlines():
        parts = wanted.split(line)
        _print([(part, styles.get(part, "")) for part in parts])


def diff(patch: bytes) -> None:
    """A patch: its bytes as they are, or as text on a terminal.

    ``FORCE_COLOR`` does not count here: CI services set it, and nothing could apply the patch.
    """
    if not sys.stdout.isatty():
        sys.stdout.flush()
        sys.stdout.buffer.write(patch)
        sys.stdout.buffer.flush()
        return
    # A line of a patch ends where git ends it; what else ends lines is shown as what it is.
    for line in patch.decode("utf-8", "replace").removesuffix("\n").split("\n"):
        if not coloured():
            out(f"{line}\n")
            continue
        style = ""
        if line.startswith(("diff ", "--- ", "+++ ", "new file")):
            style = "bold"
        elif line.startswith("@@"):
            style = "cyan"
        elif line.startswith("+"):
            style = "green"
        elif line.startswith("-"):
            style = "red"
        _print([(line, style)])


def answers() -> bool:
    """Whether somebody can be asked."""
    return sys.stdin is not None and sys.stdin.isatty()


def ask(question: str) -> str:
    """What the user types after ``question``, on one line.

    Raises:
        EOFError: the input has ended.
    """
    if coloured():
        _print([(question, "bold blue")], end="")
    else:
        sys.stdout.write(question)
    sys.stdout.flush()
    # A Ctrl-C that comes just before a read begins is only answered when the read ends: so we wait
    # in short pieces, and read when there is a line.
    from select import select

    while not select([sys.stdin], [], [], 0.1)[0]:
        pass
    line = sys.stdin.readline()
    if not line:
        raise EOFError
    return line


def _print(parts: list[tuple[str, str]], *, error: bool = False, end: str = "\n") -> None:
    from rich.console import Console
    from rich.text import Text

    stream = sys.stderr if error else sys.stdout
    console = Console(file=stream, force_terminal=True, soft_wrap=True, highlight=False)
    safe = [(shown.text(text), style) for text, style in parts]
    console.print(Text.assemble(*safe), markup=False, emoji=False, end=end)


@contextmanager
def waiting(what: str) -> Iterator[None]:
    """On a terminal's standard error, after half a second: what is done, and how far it is."""
    if not (sys.stderr.isatty() and coloured(sys.stderr)):
        yield
        return
    from threading import Event, Thread

    done = Event()
    thread = Thread(target=_spin, args=(what, done), daemon=True)
    thread.start()
    try:
        yield
    finally:
        done.set()
        thread.join()


def _spin(what: str, done: object) -> None:
    from threading import Event

    assert isinstance(done, Event)
    if done.wait(0.5):
        return
    from rich.console import Console
    from rich.text import Text

    from fsdp_migrate.discovery import progress

    with Console(stderr=True).status(what) as status:
        while not done.wait(0.1):
            far = shown.line(str(progress.now))
            status.update(
                Text(f"{what}: {far}" if far else what, no_wrap=True, overflow="ellipsis")
            )
