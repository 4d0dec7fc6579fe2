"""The bytes in which names are looked for: as Python reads them, not as a file spells them.

Python reads the compatibility characters of a name as plain ones, and a file in the encoding that
it declares; a notebook may spell any character as an escape.
"""

from __future__ import annotations

import re

_COOKIE = re.compile(rb"^[ \t\f]*#.*?coding[:=][ \t]*([-\w.]+)", re.MULTILINE)
_ESCAPE = re.compile(rb"\\u([0-9a-fA-F]{4})")


def names(data: bytes) -> bytes:
    """Python source with, where names in it may read otherwise, that as well, in UTF-8.

    Raises:
        ValueError: it declares an encoding that is not read.
    """
    encoding = _declared(data)
    if encoding is None and data.isascii():
        return data
    try:
        text = data.decode(encoding or "utf-8", "replace")
    except Exception:  # a codec may raise anything
        raise ValueError(f"its encoding {encoding} is not one that is read") from None
    read = names_of_text(text)
    return (
        data if encoding is None and read == text.encode(errors="replace") else data + b"\n" + read
    )


def names_of_text(text: str) -> bytes:
    """Python source that is decoded already, with names as Python reads them, in UTF-8."""
    import unicodedata

    return unicodedata.normalize("NFKC", text).encode(errors="replace")


def unescaped(notebook: bytes) -> bytes:
    """The text of a notebook with its ``\\uXXXX`` as characters."""
    return _ESCAPE.sub(lambda found: chr(int(found[1], 16)).encode(errors="replace"), notebook)


def _declared(data: bytes) -> str | None:
    """The encoding that the first two lines declare, when it is no usual one."""
    end = data.find(b"\n", data.find(b"\n") + 1)
    head = data if end < 0 else data[:end]
    if b"coding" not in head:
        return None
    found = _COOKIE.search(head.replace(b"\r", b"\n"))
    named = found[1].decode().lower().replace("_", "-") if found is not None else "utf-8"
    usual = named.startswith(("utf-8", "latin-1", "iso-8859", "iso8859")) or named in {
        "ascii",
        "utf8",
    }
    return None if usual else named
