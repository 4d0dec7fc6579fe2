"""FSDP501: what a migrated project requires of torch is raised to what the new code needs."""

from __future__ import annotations

import ast
import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from packaging.version import Version

from fsdp_migrate.discovery import project_paths, torch_installs, torch_requirements
from fsdp_migrate.discovery.torch_requirements import Stated
from fsdp_migrate.fsdp1.construct import Construct
from fsdp_migrate.planning.outcome import Outcome
from fsdp_migrate.planning.result import NotFollowed, Requirement, Result

CODE = "FSDP501"
WEIGHTS_ONLY = Version("2.6")  # torch.load reads nothing but weights since then, unless told to
LOADS = (
    "since torch 2.6 torch.load gives nothing but weights: pass weights_only=False where a file of "
    "your own holds more"
)
HAS_FSDP2 = Version("2.6")  # what the frameworks ask for where they are to use it
OLDER_TOO = frozenset({"FSDP100", "FSDP423"})  # rules whose results run on any torch


@dataclass
class Floors:
    """The requirements of a run's projects, and how they end."""

    given: Sequence[Path]  # nothing but these, and what is below them, is edited
    target: Version
    display: Callable[[Path], str]
    before: dict[Path, bytes] = field(default_factory=dict)  # the contents of what is changed
    passes_weights_only: bool = False  # the project ran on a torch before that

    @property
    def key(self) -> tuple[Path, tuple[int, int], Construct]:
        """What a review calls them, which takes them all or none."""
        return Path(), (0, 0), Construct.parse(CODE)

    def raise_in(self, result: Result) -> None:
        """Raise what is too low for the new code of ``result``, among its changes."""
        done = [d for d in result.decisions if d.outcome is not Outcome.LEFT]
        changed = {d.site.module.path for d in done if d.code not in OLDER_TOO}
        trees = [path for path in self.given if path.is_dir()]
        seen: set[Path] = set()
        for directory in _directories(changed):
            raised = False
            within = torch_requirements.reach(directory, trees)
            for path, data, stated in torch_requirements.read_all(directory, trees, seen):
                if isinstance(stated, OSError):
                    continue  # the configuration's notes say so
                now = result.changes.get(path, data)  # a setup.py may have had FSDP1 in it
                said = stated if now == data else torch_requirements.find(path, now)
                for each in said:
                    self._look_for_file(each, now, within, result.requirements)
                torch = [each for each in said if not each.file]
                new = self._raise(path, now, torch, result.requirements)
                if new != now:
                    raised = True
                    self.before[path] = data
                    result.changes[path] = new
            for lock in torch_requirements.locks(directory) if raised else ():
                reason = "is written by a tool, and not edited"
                help_ = f"lock again with torch>={self.target}"
                result.requirements.append(
                    Requirement(self.display(lock), 0, CODE, reason, help_, done=False)
                )
            self._name_installs(directory, result.requirements)

    def name_for_settings(self, result: Result) -> None:
        """Name what has a torch without FSDP2 beside settings that are version 2's now: nothing of
        it is edited, since which program they are for is not known."""
        changed = {c.path for c in result.configured if c.outcome is not Outcome.LEFT}
        least = replace(self, target=HAS_FSDP2)
        trees = [path for path in self.given if path.is_dir()]
        found: list[Requirement] = []
        for directory in _directories(changed):
            for path, data, stated in torch_requirements.read_all(directory, trees, set()):
                if not isinstance(stated, OSError):
                    least._name_pins(path, data, stated, found)
            least._name_installs(directory, found)
        known = {(each.display, each.line) for each in result.requirements}
        result.requirements += [e for e in found if (e.display, e.line) not in known]

    def _name_pins(
        self, path: Path, data: bytes, stated: Iterable[Stated], found: list[Requirement]
    ) -> None:
        from fsdp_migrate.rewriting.torch_floor import Refused, raised

        for each in stated:
            new = "" if each.file else raised(each.text, self.target, poetry=each.poetry)
            if isinstance(new, Refused):
                line, help_ = _line(data.decode("latin-1"), each), self._needed
                message = f"{each.text}: {new.reason}"
                display = self.display(path)
                found.append(Requirement(display, line, CODE, message, help_, done=False))

    @property
    def _needed(self) -> str:
        return f"the new code needs torch>={self.target}"

    def _name_installs(self, directory: Path, found: list[Requirement]) -> None:
        """Name the scripts, images and documents that install a torch without the new code's
        functions."""
        for each in torch_installs.find(directory):
            if each.is_before(self.target):
                self.passes_weights_only |= each.is_before(WEIGHTS_ONLY)
                message = f"{each.text}: it installs a torch that is too old"
                if each.is_companion:
                    message = f"{each.text}: it goes with torch {each.release} alone, too old a one"
                help_ = self._needed
                display = self.display(each.path)
                found.append(Requirement(display, each.line, CODE, message, help_, done=False))

    def name_loads(self, files: Iterable[Path], result: Result) -> None:
        """Name the calls of ``torch.load`` that read otherwise with the torch that is needed now:
        those first that may resume the training of a migrated model.

        See https://docs.pytorch.org/docs/stable/generated/torch.load.html.
        """
        if not self.passes_weights_only:
            return
        migrated = {d.site.module.path for d in result.decisions if d.outcome is not Outcome.LEFT}
        found: list[tuple[bool, bool, Path, int]] = []
        for path in files:
            data = result.changes.get(path) or _bytes(path)
            found += [(path not in migrated, b"optim" not in data, path, n) for n in _loads(data)]
        for _, _, path, line in sorted(found):
            result.not_followed.append(NotFollowed(self.display(path), line, LOADS))

    def _look_for_file(
        self, named: Stated, data: bytes, within: Sequence[Path], found: list[Requirement]
    ) -> None:
        """Say so where another file is named, and not read."""
        reason = torch_requirements.named_file(named, within) if named.file else ""
        if isinstance(reason, str) and reason:
            line = _line(data.decode("latin-1"), named)
            message = f"{named.file}: {reason}; what it says of torch is not known"
            help_ = self._needed
            display = self.display(named.path)
            found.append(Requirement(display, line, CODE, message, help_, done=False))

    def _raise(
        self, path: Path, data: bytes, stated: Iterable[Stated], found: list[Requirement]
    ) -> bytes:
        from fsdp_migrate.rewriting.torch_floor import Refused, raised

        source = data.decode("latin-1")
        edits: list[tuple[tuple[int, int], str]] = []
        for each in stated:
            new = raised(each.text, self.target, poetry=each.poetry)
            if new == each.text:
                continue
            least = raised(each.text, WEIGHTS_ONLY, poetry=each.poetry)
            self.passes_weights_only |= least != each.text
            span = each.locate(source)
            shown = f"torch {each.text}" if each.poetry else each.text
            line = _line(source, each)
            reason = self._reason(path, each, new, span)
            message = f"{shown}: {reason}" if reason else f"{shown} -> {new}"
            help_ = self._needed if reason else ""
            display = self.display(path)
            found.append(Requirement(display, line, CODE, message, help_, done=not reason))
            if not reason and span is not None and not isinstance(new, Refused):
                edits.append((span, new))
        for (start, end), new in sorted(edits, reverse=True):
            source = source[:start] + new + source[end:]
        return source.encode("latin-1")

    def _reason(self, path: Path, each: Stated, new: object, span: tuple[int, int] | None) -> str:
        """Why a requirement is left, or an empty text."""
        from fsdp_migrate.rewriting.torch_floor import Refused

        if each.kept:
            return each.kept
        if isinstance(new, Refused):
            return new.reason
        if span is None:
            return "it is spelled in a way that is not edited"
        real = project_paths.real_path(path)
        tops = map(project_paths.real_path, self.given)
        inside = any(real == top or (top.is_dir() and real.is_relative_to(top)) for top in tops)
        return "" if inside else "its file lies outside of the paths given"


def _bytes(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError:
        return b""


def _loads(data: bytes) -> Iterator[int]:
    """The lines of calls ``torch.load(...)`` that do not say ``weights_only``."""
    if b"torch.load(" not in data:
        return
    try:
        tree = ast.parse(data)
    except (SyntaxError, ValueError):
        return
    for node in ast.walk(tree):
        match node:
            case ast.Call(func=ast.Attribute(value=ast.Name(id="torch"), attr="load")):
                if all(k.arg not in {"weights_only", None} for k in node.keywords):
                    yield node.lineno


def _line(source: str, stated: Stated) -> int:
    """The line that it stands in; 0 where that is not found."""
    span = stated.locate(source)
    return source.count("\n", 0, span[0]) + 1 if span is not None else 0


def _directories(changed: Iterable[Path]) -> list[Path]:
    """Directories from those of the changed files up to the roots of their projects."""
    found: dict[Path, None] = {}
    for path in sorted(changed):
        root = project_paths.project_root(path.parent) or path.parent
        for directory in (path.parent, *path.parent.parents):
            found[directory] = None
            if directory == root:
                break
    return sorted(found, key=lambda each: (len(each.parts), os.fspath(each)))
