"""Writing a run's files and putting them back: whole or not at all."""

from __future__ import annotations

import json
import os
import signal
import stat
import subprocess
import sys
from pathlib import Path

import pytest

from fsdp_migrate.rewriting import journal, write
from fsdp_migrate.rewriting.write import WriteError

OLD, NEW = b"old\r\n\xe9", b"new\n"


@pytest.fixture
def root(tmp_path: Path) -> Path:
    for name in ("a.py", "b.py", "pkg/c.py"):
        path = tmp_path / name
        path.parent.mkdir(exist_ok=True)
        path.write_bytes(OLD)
    return tmp_path


def tree(root: Path) -> dict[str, bytes]:
    """Everything below ``root``."""
    files = [p for p in root.rglob("*") if p.is_file()]
    return {p.relative_to(root).as_posix(): p.read_bytes() for p in files}


def mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


def test_files_are_written_and_put_back(root: Path) -> None:
    before = tree(root)
    changes = {root / "a.py": NEW, root / "pkg/c.py": b"", root / "pkg/new.py": NEW}
    write.write(root, changes)
    after = tree(root)
    assert after["a.py"] == NEW
    assert after["b.py"] == OLD
    assert after["pkg/c.py"] == b""
    assert after["pkg/new.py"] == NEW
    undone = write.undo(root)
    assert undone is not None
    assert set(undone.restored) == {"a.py", "pkg/c.py"}
    assert undone.removed == ("pkg/new.py",)
    assert tree(root) == before
    assert not journal.any_run(root, journal.state()), "nor is anything left in the journal"


def test_nothing_to_write_leaves_no_trace(root: Path) -> None:
    before = tree(root)
    assert write.write(root, {}) is None
    assert write.undo(root) is None
    assert tree(root) == before


def test_runs_are_undone_last_first(root: Path) -> None:
    contents = [b"1", b"2", b"3"]
    for content in contents:
        write.write(root, {root / "a.py": content})
    for content in [b"2", b"1", OLD]:
        assert write.undo(root)
        assert (root / "a.py").read_bytes() == content
    assert write.undo(root) is None


def test_old_runs_are_forgotten(root: Path) -> None:
    for number in range(journal.KEPT_RUNS + 3):
        write.write(root, {root / "a.py": str(number).encode()})
    undone = 0
    while write.undo(root):
        undone += 1
    assert undone == journal.KEPT_RUNS


def test_the_journal_is_kept_out_of_the_tree(root: Path) -> None:
    before = set(tree(root))
    run = write.write(root, {root / "a.py": NEW})
    assert run is not None
    assert run.is_relative_to(journal.state())
    assert set(tree(root)) == before


# -- what a file is besides its contents ----------------------------------------------------------


@pytest.mark.parametrize("bits", [0o755, 0o600, 0o4755, 0o664])
def test_mode_bits_survive_both_ways(root: Path, bits: int) -> None:
    path = root / "a.py"
    path.chmod(bits)
    write.write(root, {path: NEW})
    assert mode(path) == bits
    write.undo(root)
    assert mode(path) == bits


def test_a_new_file_gets_the_usual_mode(root: Path) -> None:
    (root / "usual.py").write_bytes(b"")
    write.write(root, {root / "new.py": NEW})
    assert mode(root / "new.py") == mode(root / "usual.py")


def test_a_link_stays_a_link(root: Path) -> None:
    link = root / "link.py"
    link.symlink_to("pkg/c.py")
    write.write(root, {link: NEW})
    assert link.is_symlink()
    assert (root / "pkg/c.py").read_bytes() == NEW
    write.undo(root)
    assert link.is_symlink()
    assert (root / "pkg/c.py").read_bytes() == OLD


def test_hard_links_stay_together(root: Path) -> None:
    os.link(root / "a.py", root / "other.py")
    write.write(root, {root / "a.py": NEW})
    assert (root / "other.py").read_bytes() == NEW
    write.undo(root)
    assert (root / "a.py").samefile(root / "other.py")
    assert (root / "other.py").read_bytes() == OLD


@pytest.mark.skipif(not hasattr(os, "setxattr"), reason="no extended attributes here")
def test_extended_attributes_survive(root: Path) -> None:
    path = root / "a.py"
    try:
        os.setxattr(path, "user.origin", b"here")
    except OSError:
        pytest.skip("this file system has no extended attributes")
    write.write(root, {path: NEW})
    assert os.getxattr(path, "user.origin") == b"here"


@pytest.mark.skipif(os.geteuid() != 0, reason="only root may give files away")
def test_the_owner_stays(root: Path) -> None:
    path = root / "a.py"
    os.chown(path, 1234, 4321)
    write.write(root, {path: NEW})
    assert (path.stat().st_uid, path.stat().st_gid) == (1234, 4321)
    write.undo(root)
    assert (path.stat().st_uid, path.stat().st_gid) == (1234, 4321)


def test_the_file_is_replaced_and_never_half_written(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with (root / "a.py").open("rb") as reader:
        write.write(root, {root / "a.py": NEW})
        assert reader.read() == OLD, "who had it open reads the old file to its end"


# -- refusals and failures ------------------------------------------------------------------------


def test_a_read_only_file_stops_the_whole_run(root: Path) -> None:
    (root / "b.py").chmod(0o444)
    before = tree(root)
    with pytest.raises(WriteError, match=r"b\.py: is read-only"):
        write.write(root, {root / "a.py": NEW, root / "b.py": NEW})
    assert tree(root) == before


def test_a_file_that_changed_meanwhile_is_not_overwritten(root: Path) -> None:
    read = {p: p.read_bytes() for p in (root / "a.py", root / "b.py")}
    (root / "b.py").write_bytes(b"edited")
    before = tree(root)
    with pytest.raises(WriteError, match=r"b\.py: was changed"):
        write.write(root, dict.fromkeys(read, NEW), read)
    assert tree(root) == before


def test_a_file_that_appeared_meanwhile_is_not_overwritten(root: Path) -> None:
    (root / "new.py").write_bytes(b"somebody's")
    before = tree(root)
    with pytest.raises(WriteError, match=r"new\.py: was changed"):
        write.write(root, {root / "a.py": NEW, root / "new.py": NEW}, {root / "a.py": OLD})
    assert tree(root) == before


def test_a_file_that_vanished_meanwhile_is_not_made_anew(root: Path) -> None:
    (root / "b.py").unlink()
    before = tree(root)
    with pytest.raises(WriteError):
        write.write(root, {root / "b.py": NEW}, {root / "b.py": OLD})
    assert tree(root) == before


@pytest.mark.parametrize("failure", [OSError(28, "No space left on device"), KeyboardInterrupt()])
def test_a_run_that_fails_in_the_middle_is_taken_back(
    root: Path, monkeypatch: pytest.MonkeyPatch, failure: BaseException
) -> None:
    before = tree(root)
    replace = os.replace

    def failing(source: Path, target: Path) -> None:
        if Path(target).name == "b.py":
            raise failure
        replace(source, target)

    monkeypatch.setattr(os, "replace", failing)
    with pytest.raises(WriteError if isinstance(failure, OSError) else KeyboardInterrupt) as raised:
        write.write(root, {root / n: NEW for n in ("a.py", "b.py", "pkg/c.py", "new.py")})
    assert tree(root) == before
    if isinstance(failure, OSError):
        assert "b.py: No space left on device" in str(raised.value)
        assert "nothing was written" in str(raised.value)


def test_ctrl_c_in_the_middle_takes_the_run_back(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = tree(root)
    replace = os.replace

    def interrupted(source: Path, target: Path) -> None:
        replace(source, target)
        if Path(target).name == "a.py":
            os.kill(os.getpid(), signal.SIGINT)

    monkeypatch.setattr(os, "replace", interrupted)
    with pytest.raises(KeyboardInterrupt):
        write.write(root, {root / n: NEW for n in ("a.py", "b.py")})
    assert tree(root) == before


def test_what_cannot_be_taken_back_is_kept_and_named(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    replace = os.replace

    def failing(source: Path, target: Path) -> None:
        put_back = Path(target).name == "a.py" and Path(target).read_bytes() == NEW
        if Path(target).name == "b.py" or put_back:
            raise OSError(5, "Input/output error")
        replace(source, target)

    monkeypatch.setattr(os, "replace", failing)
    with pytest.raises(WriteError, match=r"could not put back .*a\.py") as raised:
        write.write(root, {root / n: NEW for n in ("a.py", "b.py")})
    run = Path(str(raised.value).rpartition(" ")[2])
    copies = [p.read_bytes() for p in run.glob("*.bak")]
    assert OLD in copies


# -- undoing --------------------------------------------------------------------------------------


def test_an_edited_file_keeps_the_whole_run_from_being_undone(root: Path) -> None:
    write.write(root, {root / "a.py": NEW, root / "b.py": NEW})
    (root / "b.py").write_bytes(b"edited")
    undone = write.undo(root)
    assert undone == write.Undone(conflicts=("b.py",))
    assert (root / "a.py").read_bytes() == NEW
    (root / "b.py").write_bytes(NEW)
    assert write.undo(root) == write.Undone(restored=("a.py", "b.py"))


def test_a_file_put_back_by_hand_is_no_conflict(root: Path) -> None:
    write.write(root, {root / "a.py": NEW, root / "b.py": NEW})
    (root / "b.py").write_bytes(OLD)
    assert write.undo(root) == write.Undone(restored=("a.py",))


def test_a_deleted_file_is_a_conflict(root: Path) -> None:
    write.write(root, {root / "a.py": NEW})
    (root / "a.py").unlink()
    undone = write.undo(root)
    assert undone == write.Undone(conflicts=("a.py",))


def test_a_read_only_file_is_not_put_back(root: Path) -> None:
    write.write(root, {root / "a.py": NEW, root / "b.py": NEW})
    (root / "b.py").chmod(0o444)
    with pytest.raises(WriteError, match=r"b\.py: is read-only"):
        write.undo(root)
    assert (root / "a.py").read_bytes() == NEW


@pytest.mark.parametrize("text", ["", "{}", "[1]", '{"files": [{"path": "a.py"}]}', "\0"])
def test_a_broken_journal_is_said_to_be_one(root: Path, text: str) -> None:
    run = write.write(root, {root / "a.py": NEW})
    assert run is not None
    (run / journal.MANIFEST).write_text(text)
    with pytest.raises(WriteError, match="not a journal"):
        write.undo(root)


@pytest.mark.parametrize("damage", [b"other", None])
def test_a_damaged_copy_is_not_put_back(root: Path, damage: bytes | None) -> None:
    run = write.write(root, {root / "a.py": NEW, root / "b.py": NEW})
    assert run is not None
    copy = run / json.loads((run / journal.MANIFEST).read_bytes())["files"][1]["backup"]
    if damage is None:
        copy.unlink()
    else:
        copy.write_bytes(damage)
    with pytest.raises(WriteError, match=r"is not what b\.py was"):
        write.undo(root)
    assert (root / "a.py").read_bytes() == NEW


def test_a_kill_between_two_files_can_be_undone(root: Path) -> None:
    """SIGKILL cannot be caught: what it leaves behind is a journal that undo understands."""
    before = tree(root)
    program = f"""
import os, signal
from pathlib import Path
from fsdp_migrate.rewriting import write
replace = os.replace
def killed(source, target):
    replace(source, target)
    if Path(target).name == "a.py":
        os.kill(os.getpid(), signal.SIGKILL)
os.replace = killed
root = Path({str(root)!r})
write.write(root, {{root / "a.py": b"new", root / "b.py": b"new"}})
"""
    run = subprocess.run([sys.executable, "-c", program], check=False)
    assert run.returncode == -signal.SIGKILL
    assert (root / "a.py").read_bytes() == b"new"
    assert write.undo(root) == write.Undone(restored=("a.py",))
    assert tree(root) == before
