"""One unified diff that ``git apply`` accepts."""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from pathlib import Path


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
    quoted = name.encode()
    if any(c < 0x20 or c in b'"\\' or c >= 0x7F for c in quoted):
        escaped = "".join(
            chr(c) if 0x20 <= c < 0x7F and c not in b'"\\' else f"\\{c:03o}" for c in quoted
        )
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


def hunks(old: bytes, new: bytes, context: int = 3) -> list[bytes]:
    """The ``@@`` parts of a diff between two contents."""
    before, after = old.split(b"\n"), new.split(b"\n")
    before, after = _lines(before), _lines(after)
    matcher = difflib.SequenceMatcher(None, before, after, autojunk=False)
    out: list[bytes] = []
    for group in matcher.get_grouped_opcodes(context):
        first, last = group[0], group[-1]
        out.append(b"@@ -%s +%s @@\n" % (_range(first[1], last[2]), _range(first[3], last[4])))
        for tag, i1, i2, j1, j2 in group:
            if tag == "equal":
                out += [_line(b" ", line) for line in before[i1:i2]]
                continue
            out += [_line(b"-", line) for line in before[i1:i2]]
            out += [_line(b"+", line) for line in after[j1:j2]]
    return out


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
