"""From which place in the project's own code a function of FSDP1's is called."""

from __future__ import annotations

import contextlib
import functools
import itertools
import os
import sys
from dataclasses import dataclass
from enum import Enum
from types import CodeType, FrameType
from typing import Any

import torch
from torch.utils import _contextlib

from fsdp_migrate.verify.inject.config import PACKAGE_ROOT

Span = tuple[int, int | None, int | None, int | None]
"""Line, column, last line and last column as ``ast`` counts them. Before Python 3.11 only lines are
known."""


class _Code(Enum):
    """Whose a file of code is."""

    PROJECT = "project"
    FSDP1 = "FSDP1"
    TORCH = "torch"
    """Or the recorder's own, which looks into models as well."""
    BETWEEN = "between"
    """Decorators, which stand between a call and what is called."""
    LIBRARY = "library"


@dataclass(frozen=True)
class Place:
    """An expression of the project. ``through`` is the library that it calls and that in turn calls
    FSDP1; nothing where the project calls FSDP1 itself."""

    file: str
    span: Span
    through: str = ""


class Places:
    """Looks at the frames that lead to a call. Only frames are looked at: nothing is traced."""

    def __init__(self, tree: str) -> None:
        self._roots = tuple({os.path.join(each, "") for each in (tree, os.path.realpath(tree))})
        self._torch = os.path.join(os.path.dirname(torch.__file__), "")
        self._fsdp = os.path.join(self._torch, "distributed", "fsdp", "")
        self._between = (
            os.path.join(self._torch, "_dynamo", ""),
            *(str(module.__file__) for module in (contextlib, functools, _contextlib)),
        )
        self._ours = os.path.join(PACKAGE_ROOT, "fsdp_migrate", "")
        self._known: dict[str, _Code] = {}
        self._of_torch: dict[str, bool] = {}

    def is_torch(self, code: CodeType) -> bool:
        """Whether it is code of torch, or of the recorder: asked thousands of times a step."""
        file = code.co_filename
        found = self._of_torch.get(file)
        if found is None:
            found = self._whose(file) in {_Code.FSDP1, _Code.TORCH}
            self._of_torch[file] = found
        return found

    def calling(self, frame: FrameType | None, *, within: bool = False) -> FrameType | None:
        """The frame of the project that calls, from ``frame`` outwards; None where torch calls.

        A call that FSDP1 makes of itself counts only ``within`` what the project called: a unit
        that a policy picks is made at the call of the outermost constructor.
        """
        passed = {_Code.BETWEEN, *([_Code.FSDP1] if within else [])}
        while frame is not None and self._whose(frame.f_code.co_filename) in passed:
            frame = frame.f_back
        if frame is None or self._whose(frame.f_code.co_filename) in {_Code.TORCH, _Code.FSDP1}:
            return None
        while frame is not None and self._whose(frame.f_code.co_filename) is not _Code.PROJECT:
            frame = frame.f_back
        return frame

    def place(self, frame: FrameType, called_from: FrameType | None) -> Place:
        """The expression that ``frame`` is at; ``called_from`` is where :meth:`calling` began."""
        file = os.path.abspath(frame.f_code.co_filename)
        root = next(root for root in self._roots if file.startswith(root))
        return Place(file.removeprefix(root), _span(frame), self._library(called_from))

    def _library(self, frame: FrameType | None) -> str:
        """The first package on the way outwards that is neither torch nor the project."""
        while frame is not None:
            whose = self._whose(frame.f_code.co_filename)
            if whose is _Code.PROJECT:
                return ""
            if whose is _Code.LIBRARY:
                name: Any = frame.f_globals.get("__name__")
                return str(name or frame.f_code.co_filename).partition(".")[0]
            frame = frame.f_back
        return ""

    def _whose(self, file: str) -> _Code:
        found = self._known.get(file)
        if found is None:
            found = self._known[file] = self._look(os.path.abspath(file))
        return found

    def _look(self, file: str) -> _Code:
        if file.startswith(self._between):
            return _Code.BETWEEN
        if file.startswith(self._roots):
            return _Code.PROJECT
        if file.startswith(self._fsdp) and "_fully_shard" not in file:
            return _Code.FSDP1
        return _Code.TORCH if file.startswith((self._torch, self._ours)) else _Code.LIBRARY


def _span(frame: FrameType) -> Span:
    positions = getattr(frame.f_code, "co_positions", None)
    if positions is not None:
        # Two bytes an instruction.
        at = next(itertools.islice(positions(), frame.f_lasti // 2, None), None)
        if at is not None and None not in at:
            line, last, column, last_column = at
            return line, column, last, last_column
    return frame.f_lineno or 1, None, None, None


def outer(depth: int) -> FrameType:
    """The frame that called, ``depth`` frames out of the caller's."""
    return sys._getframe(depth + 1)
