"""Which variables of a running function may still be read."""

from __future__ import annotations

import sys
from types import FrameType

from fsdp_migrate.verify.capture.liveness import is_read_later

NAMES = ("done", "later", "again", "given", "shared", "written")


def read(frame: FrameType) -> list[str]:
    return [name for name in NAMES if is_read_later(frame, name)]


def stands_here() -> list[str]:
    frame = sys._getframe(1)
    return read(frame)


def in_a_loop(given: int) -> list[list[str]]:
    done = later = again = given
    found = []
    print(done)
    for _ in range(2):
        found.append(stands_here())
        print(again)
        written = again
    found.append(stands_here())
    print(later)
    written = found
    del written
    return found


def with_a_function_inside() -> list[str]:
    shared = done = 1

    def inner() -> int:
        return shared

    print(inner(), done)
    return stands_here()


def test_what_stands_behind_or_in_a_loop_around_is_read() -> None:
    assert in_a_loop(1) == [["later", "again"], ["later", "again"], ["later"]]


def test_what_functions_share_may_always_be_read() -> None:
    assert with_a_function_inside() == ["shared"]


def test_global_variables_may_always_be_read() -> None:
    found: dict[str, object] = {"read": read, "sys": sys}
    exec("done = 1\nanswer = read(sys._getframe())", found)
    assert found["answer"] == list(NAMES)
