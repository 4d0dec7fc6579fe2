"""One unified diff that ``git apply`` accepts."""

from __future__ import annotations

import difflib
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

_ESCAPES = dict(zip(b'\a\b\t\n\v\f\r"\\', 'abtnvfr"\\', strict=True))


def patch(root: Path, before: Mapping[Path, bytes], after: Mapping[Path, bytes]) -> bytes:
    """The changes from ``before`` to ``after`` relative to ``root``, sorted by path.

    Lines are bytes as in the files: line endings and encodings survive. A missing newline at the
    end of a file is said in git's words.
    """
    pieces: list[bytes] = []
    for path in sorted(after):
        name = path.relative_to(root).as_posix()
        pieces += _file(name, before.get(path), after[path])
    return b"".join(pieces)


def _file(name: str, old: bytes | None, new: bytes) -> list[bytes]:
    quoted = os.fsencode(name)
    if any(c < 0x20 or c in b'"\\' or c >= 0x7F for c in quoted):
        escaped = "".join(map(_quoted, quoted))
        a, b = f'"a/{escaped}"'.encode(), f'"b/{escaped}"'.encode()
    else:
        a, b = b"a/" + quoted, b"b/" + quoted
    if old == new:
        return []
    header = [b"diff --git " + a + b" " + b + b"\n"]
    if old is None:
        header += [b"new file mode 100644\n"]
    if not old and not new:
        return [*header, b"index 0000000..e69de29\n"]
    tag = b"\t" if b" " in quoted else b""
    header += [b"--- " + (b"/dev/null" if old is None else a + tag) + b"\n"]
    header += [b"+++ " + b + tag + b"\n"]
    return header + hunks(old or b"", new)


def _quoted(byte: int) -> str:
    """A byte of a name, as git writes it between quotes."""
    if byte in _ESCAPES:
        return f"\\{_ESCAPES[byte]}"
    return chr(byte) if 0x20 <= byte < 0x7F else f"\\{byte:03o}"


def hunks(old: bytes, new: bytes, context: int = 3) -> list[bytes]:
    """The ``@@`` parts of a diff between two contents; none between equal ones."""
    if old == new:
        return []
    before, after = _lines(old.split(b"\n")), _lines(new.split(b"\n"))
    out: list[bytes] = []
    for group in _Matcher(before, after).get_grouped_opcodes(context):
        first, last = group[0], group[-1]
        out.append(b"@@ -%s +%s @@\n" % (_range(first[1], last[2]), _range(first[3], last[4])))
        for tag, i1, i2, j1, j2 in group:
            if tag == "equal":
                out += [_line(b" ", line) for line in before[i1:i2]]
                continue
            out += [_line(b"-", line) for line in before[i1:i2]]
            out += [_line(b"+", line) for line in after[j1:j2]]
    return out


class _Matcher(difflib.SequenceMatcher[bytes]):
    """How one list of lines becomes the other; what both begin and end with is not compared.

    That is most of a notebook, whose lines repeat so often that comparing them takes long.
    """

    def __init__(self, before: list[bytes], after: list[bytes]) -> None:
        shorter = min(len(before), len(after))
        head = next((i for i in range(shorter) if before[i] != after[i]), shorter)
        rest = range(shorter - head)
        tail = next((i for i in rest if before[-1 - i] != after[-1 - i]), shorter - head)
        old, new = len(before) - tail, len(after) - tail
        self._head = ("equal", 0, head, 0, head)
        self._tail = ("equal", old, len(before), new, len(after))
        super().__init__(None, before[head:old], after[head:new], autojunk=False)

    def get_opcodes(self) -> Any:
        head = self._head[2]
        inner = [(tag, *(n + head for n in place)) for tag, *place in super().get_opcodes()]
        return [self._head, *inner, self._tail]


def _lines(parts: list[bytes]) -> list[bytes]:
    """Lines with their ``\\n``; the last one has none when the file does not end with it."""
    lines = [part + b"\n" for part in parts[:-1]]
    return [*lines, parts[-1]] if parts[-1] else lines


def _line(sign: bytes, line: bytes) -> bytes:
    if line.endswith(b"\n"):
        return sign + line
    return sign + line + b"\n\\ No newline at end of file\n"


def _range(start: int, stop: int) -> bytes:
    length = stop - start
    begin = start + 1 if length else start
    return str(begin).encode() if length == 1 else f"{begin},{length}".encode()
