"""TOML of others: read when it is of a size and shape that people write, and refused otherwise.

The parser's time grows with the square of the number of parts in a key.
"""

from __future__ import annotations

import re
import tomllib
from typing import Any

LARGEST, LONGEST_LINE, MOST_PARTS = 1_000_000, 10_000, 100
_LONG_KEY = re.compile(
    rb"(?<![\"'\w-])(?:[\"'\w-]+[ \t]*\.[ \t]*){%d}" % MOST_PARTS  # or what looks like one
)


def loads(data: bytes) -> dict[str, Any]:
    """What a TOML file says.

    Raises:
        ValueError: it is not TOML (``tomllib.TOMLDecodeError``, ``UnicodeDecodeError``), or none
            that is read.
    """
    if len(data) > LARGEST:
        raise ValueError(f"it has more than {LARGEST:,} bytes")
    if max(map(len, data.splitlines()), default=0) > LONGEST_LINE:
        raise ValueError(f"it has a line of more than {LONGEST_LINE:,} bytes")
    if _LONG_KEY.search(data) is not None:
        raise ValueError(f"it has a key of more than {MOST_PARTS} parts")
    try:
        return tomllib.loads(data.decode("utf-8"))
    except RecursionError:
        raise ValueError("it is nested too deeply") from None
