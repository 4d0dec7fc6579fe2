"""A repository that somebody else made, and the files around it that it must not reach."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from tests.helpers.commandline import Answer

WRAPS = "from torch.distributed.fsdp import FullyShardedDataParallel as FSDP\n\nmodel = FSDP(net)\n"
SHARDS = "from torch.distributed.fsdp import fully_shard\n\nmodel = fully_shard(net)\n"
SECRET = b"the user's own\n"

_watchers: list[Callable[[str], None]] = []


def _opened(event: str, arguments: tuple[object, ...]) -> None:
    if event == "open" and _watchers and isinstance(arguments[0], str | bytes | os.PathLike):
        path = os.path.realpath(os.fsdecode(arguments[0]))
        for watcher in _watchers:
            watcher(path)


sys.addaudithook(_opened)  # there is no way to take one away


@dataclass
class World:
    """``repo`` is the repository; ``outside`` must stay as it is, and unread."""

    top: Path
    run: Callable[..., Answer]
    opened: list[str] = field(default_factory=list)

    @property
    def repo(self) -> Path:
        return self.top / "repo"

    @property
    def outside(self) -> Path:
        return self.top / "outside"

    @property
    def state(self) -> Path:
        return self.top / "state"

    @contextmanager
    def untouched(self, *others: Path) -> Iterator[None]:
        """Nothing outside is read, written, made or deleted; nothing in ``others`` is changed."""
        roots = (self.outside, *others)
        before = [snapshot(root) for root in roots]
        self.opened.clear()

        def note(path: str) -> None:
            if Path(path).is_relative_to(self.outside):
                self.opened.append(path)

        _watchers.append(note)
        try:
            yield
        finally:
            _watchers.remove(note)
        assert self.opened == []
        assert [snapshot(root) for root in roots] == before


def snapshot(root: Path) -> dict[str, tuple[object, ...]]:
    """Everything below a directory, itself included: what it is, and what it holds."""
    found: dict[str, tuple[object, ...]] = {}
    below = [] if root.is_symlink() else sorted(root.rglob("*"))
    for path in (root, *below):
        status = path.lstat()
        held: object = None
        if path.is_symlink():
            held = os.readlink(path)
        elif path.is_file():
            held = path.read_bytes()
        name = path.relative_to(root).as_posix()
        found[name] = (status.st_mode, status.st_uid, status.st_ino, status.st_mtime_ns, held)
    return found
