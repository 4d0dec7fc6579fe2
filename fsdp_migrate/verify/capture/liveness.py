"""Which variables of a running function it still reads: what nothing reads any more is no state."""

from __future__ import annotations

import dis
import inspect
from functools import cache
from types import CodeType, FrameType

_JUMPS = frozenset((*dis.hasjrel, *dis.hasjabs))


def is_read_later(frame: FrameType, name: str) -> bool:
    """Whether the function may read a variable from where it stands; others may read any global
    variable, and those that functions within it share."""
    code = frame.f_code
    if not code.co_flags & inspect.CO_OPTIMIZED or name in code.co_cellvars + code.co_freevars:
        return True
    return name in _read_from(code, frame.f_lasti)


@cache
def _read_from(code: CodeType, offset: int) -> frozenset[str]:
    """The variables that are read at an offset or behind it, loops around it included."""
    instructions = list(dis.get_instructions(code))
    jumps = [(i.offset, i.argval) for i in instructions if i.opcode in _JUMPS]
    start = offset
    while (back := min((to for at, to in jumps if at >= start), default=start)) < start:
        start = back
    read: set[str] = set()
    for each in instructions:
        if each.offset >= start and "LOAD" in each.opname:  # some load two variables
            names = each.argval if isinstance(each.argval, tuple) else (each.argval,)
            read.update(name for name in names if isinstance(name, str))
    return frozenset(read)
