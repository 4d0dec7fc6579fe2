"""What comes with a repository is not believed, and nothing outside of it is written or deleted."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from fsdp_migrate.rewriting import journal, write
from fsdp_migrate.rewriting.journal import WriteError
from tests.security.hostile import SECRET, SHARDS, WRAPS, World, snapshot

SUPPORTED = (
    "from torch.distributed.fsdp import FullyShardedDataParallel as FSDP\n\n\n"
    "def f(net):\n    model = FSDP(net)\n    with FSDP.summon_full_params(model):\n"
    "        return net.weight\n"
)
HUGE = "9" * 200


def digest(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def journals(world: World) -> list[Path]:
    return sorted((world.state / "runs").glob(f"*/*/{journal.MANIFEST}"))


def process(world: World, *arguments: str, **options: Any) -> subprocess.CompletedProcess[str]:
    """A command that is killed when it waits for ever."""
    command = [sys.executable, "-m", "fsdp_migrate", *arguments]
    return subprocess.run(
        command,
        cwd=world.repo,
        capture_output=True,
        check=False,
        text=True,
        timeout=120,
        stdin=subprocess.DEVNULL,
        **options,
    )


def test_what_is_done_outside_is_seen(world: World) -> None:
    """The other tests could not fail without it."""
    with pytest.raises(AssertionError), world.untouched():
        (world.outside / "secret.py").read_bytes()
    with pytest.raises(AssertionError), world.untouched():
        (world.outside / "secret.py").unlink()


# -- a journal that came with the repository ------------------------------------------------------


def plant(world: World, number: str, path: str, *, delete: bool = False) -> None:
    """A journal as earlier versions kept it, which has ``undo`` write over or delete a file."""
    run = world.repo / ".fsdp-migrate" / "runs" / number
    run.mkdir(parents=True)
    target = world.repo / path
    held = target.read_bytes() if target.is_file() else None
    (run / "0.bak").write_bytes(b"theirs")
    entry = {
        "path": path,
        "after": digest(held if held is not None else b"theirs"),
        "before": None if delete else digest(b"theirs"),
        "backup": "0.bak",
    }
    (run / "run.json").write_text(json.dumps({"version": 1, "time": 0, "files": [entry]}))


PLACES = {
    "parent": lambda world: "../outside/secret.py",
    "long way": lambda world: "a/../../outside/secret.py",
    "absolute": lambda world: str(world.outside / "secret.py"),
    "link to a directory": lambda world: "linked/secret.py",
    "link to a file": lambda world: "linked.py",
    "in the tree": lambda world: "train.py",
}


@pytest.fixture(params=PLACES)
def place(request: pytest.FixtureRequest, world: World) -> str:
    (world.repo / "linked").symlink_to(world.outside)
    (world.repo / "linked.py").symlink_to(world.outside / "secret.py")
    path: str = PLACES[request.param](world)
    return path


@pytest.mark.parametrize("delete", [False, True], ids=["overwrite", "delete"])
@pytest.mark.parametrize("number", ["000001", "999999", HUGE], ids=["first", "last", "huge"])
def test_a_journal_in_the_tree_is_not_used(
    world: World, place: str, number: str, delete: bool
) -> None:
    plant(world, number, place, delete=delete)
    with world.untouched(world.repo):
        answer = world.run("undo")
    assert answer.code == 2
    assert ".fsdp-migrate: a journal inside the tree is not trusted and was not used" in answer.err
    assert not answer.out
    assert not world.state.exists()


def test_the_right_journal_is_used_whatever_the_tree_holds(world: World, place: str) -> None:
    world.run("rewrite", "train.py")
    plant(world, "999999", place)
    with world.untouched(world.repo / ".fsdp-migrate"):
        answer = world.run("undo")
    assert (answer.code, answer.out) == (0, "restored train.py\n")
    assert (world.repo / "train.py").read_text() == WRAPS


@pytest.mark.parametrize("kind", ["link", "dangling link", "file", "pipe"])
def test_nothing_is_written_where_journals_used_to_lie(world: World, kind: str) -> None:
    old = world.repo / ".fsdp-migrate"
    if kind == "link":
        old.symlink_to(world.outside)
    elif kind == "dangling link":
        old.symlink_to(world.outside / "new")
    elif kind == "file":
        old.write_bytes(SECRET)
    else:
        os.mkfifo(old)
    before = snapshot(old)
    with world.untouched():
        assert world.run("rewrite", ".").code == 0
        assert world.run("undo").code == 0
        assert world.run("undo").code == 2
    assert snapshot(old) == before


def test_its_ignore_file_is_not_written_through(world: World) -> None:
    (world.repo / ".fsdp-migrate").mkdir()
    (world.repo / ".fsdp-migrate" / ".gitignore").symlink_to(world.outside / "new")
    with world.untouched():
        assert world.run("rewrite", ".").code == 0


# -- a journal of ours that was tampered with -----------------------------------------------------


def edit(world: World, change: Callable[[dict[str, Any]], None]) -> None:
    (manifest,) = journals(world)
    data = json.loads(manifest.read_bytes())
    change(data)
    manifest.write_text(json.dumps(data))


@pytest.mark.parametrize(
    "place",
    [
        lambda world: f"{world.repo}/../outside/secret.py",
        lambda world: str(world.outside / "secret.py"),
        lambda world: f"{world.repo}x/secret.py",
        lambda world: str(world.repo),
        lambda world: "/",
        lambda world: "../outside/secret.py",
        lambda world: "secret.py",
        lambda world: f"{world.repo}//train.py",
        lambda world: f"{world.repo}/./train.py",
        lambda world: f"{world.repo}/linked/secret.py",
        lambda world: f"{world.repo}/linked.py",
        lambda world: "",
        lambda world: "\0",
        lambda world: None,
        lambda world: 3,
    ],
)
def test_an_entry_that_leads_elsewhere_refuses_the_whole_run(
    world: World, place: Callable[[World], object]
) -> None:
    world.run("rewrite", ".")
    (world.repo / "linked").symlink_to(world.outside)
    (world.repo / "linked.py").symlink_to(world.outside / "secret.py")
    path = place(world)

    def change(data: dict[str, Any]) -> None:
        entry = data["files"][0]
        data["files"].append({**entry, "path": path, "after": digest(SECRET)})

    edit(world, change)
    with world.untouched(world.repo):
        answer = world.run("undo")
    assert answer.code == 2
    assert not answer.out
    shown = str(path) if isinstance(path, str) and path.startswith("/") else repr(path)
    assert shown in answer.err


@pytest.mark.parametrize(
    "name", ["../0.bak", "/etc/passwd", "a/0.bak", ".", "..", "0.bak/", "run.json", "", None]
)
def test_a_copy_is_a_plain_name_in_the_journal(world: World, name: str | None) -> None:
    world.run("rewrite", ".")
    edit(world, lambda data: data["files"][0].update(backup=name))
    with world.untouched(world.repo):
        answer = world.run("undo")
    assert answer.code == 2
    assert "is not a journal of this version" in answer.err


def test_a_copy_is_no_link(world: World) -> None:
    (world.outside / "copy").write_text(WRAPS)
    world.run("rewrite", ".")
    copy = journals(world)[0].parent / "0.bak"
    copy.unlink()
    copy.symlink_to(world.outside / "copy")
    with world.untouched(world.repo):
        answer = world.run("undo")
    assert answer.code == 2
    assert "0.bak: is a link" in answer.err


def test_a_journal_of_another_tree_is_refused(world: World) -> None:
    world.run("rewrite", ".")
    shutil.copytree(world.repo, world.top / "other")
    (run,) = (world.state / "runs").iterdir()
    theirs = journal._home(world.top / "other", world.state)
    run.rename(theirs)
    with world.untouched(world.repo, world.top / "other"):
        answer = world.run("undo", "../other")
    assert answer.code == 2
    assert f"is a journal of {world.repo}" in answer.err


def test_runs_go_by_their_number_and_not_by_their_text(world: World) -> None:
    train = world.repo / "train.py"
    write.write(world.repo, {train: b"first"})
    (manifest,) = journals(world)
    manifest.parent.rename(manifest.parent.with_name("999999"))
    write.write(world.repo, {train: b"second"})
    assert {m.parent.name for m in journals(world)} == {"999999", "1000000"}
    (manifest.parents[1] / HUGE).mkdir()
    (manifest.parents[1] / "²").mkdir()
    assert write.undo(world.repo)
    assert train.read_bytes() == b"first"
    assert write.undo(world.repo)
    assert train.read_text() == WRAPS


# -- the state directory --------------------------------------------------------------------------


def _open_to_others(path: Path, bits: int) -> None:
    path.chmod(path.stat().st_mode | bits)


SPOILT: dict[str, tuple[Callable[[Path], None], str]] = {
    "writable by all": (lambda path: _open_to_others(path, 0o002), "is open to other users"),
    "writable by a group": (lambda path: _open_to_others(path, 0o020), "is open to other users"),
    "somebody's": (lambda path: os.chown(path, 1234, 1234), "belongs to another user"),
    "a link": (
        lambda path: (path.rename(f"{path}.real"), path.symlink_to(f"{path}.real"))[0] and None,
        "is a link",
    ),
}


@pytest.mark.parametrize("spoilt", SPOILT)
@pytest.mark.parametrize("part", ["state", "runs", "tree", "run", "manifest", "copy"])
def test_a_journal_that_others_may_have_made_is_refused(
    world: World, spoilt: str, part: str
) -> None:
    if spoilt == "somebody's" and os.geteuid() != 0:
        pytest.skip("only root may give files away")
    world.run("rewrite", ".")
    (manifest,) = journals(world)
    run = manifest.parent
    parts = {"state": world.state, "runs": run.parents[1], "tree": run.parent, "run": run}
    parts |= {"manifest": manifest, "copy": run / "0.bak"}
    spoil, reason = SPOILT[spoilt]
    spoil(parts[part])
    with world.untouched(world.repo):
        answer = world.run("undo")
    assert answer.code == 2
    assert f"{parts[part]}: {reason}" in answer.err
    assert journal.VARIABLE in answer.err


@pytest.mark.parametrize("spoilt", SPOILT)
@pytest.mark.parametrize("part", ["state", "runs"])
def test_no_journal_is_kept_where_others_may_change_it(
    world: World, spoilt: str, part: str
) -> None:
    if spoilt == "somebody's" and os.geteuid() != 0:
        pytest.skip("only root may give files away")
    world.run("rewrite", ".")
    world.run("undo")
    path = world.state if part == "state" else world.state / "runs"
    spoil, reason = SPOILT[spoilt]
    spoil(path)
    with world.untouched(world.repo):
        answer = world.run("rewrite", ".")
    assert answer.code == 2
    assert f"{path}: {reason}" in answer.err
    assert not journals(world)


def test_what_is_made_is_for_the_user_alone(world: World) -> None:
    before = os.umask(0)
    try:
        world.run("rewrite", ".")
    finally:
        os.umask(before)
    found = [world.state, *world.state.rglob("*")]
    assert len(found) == 7
    for path in found:
        assert path.lstat().st_mode & 0o077 == 0


def test_a_state_directory_in_the_project_is_refused(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A repository could have brought it along."""
    for place in (world.repo / "state", world.repo / "a" / "b", world.repo):
        monkeypatch.setenv(journal.VARIABLE, str(place))
        answer = world.run("rewrite", ".")
        assert answer.code == 2
        assert f"lies in the project {world.repo}" in answer.err
        assert (world.repo / "train.py").read_text() == WRAPS


def test_a_checkout_of_a_journal_is_refused(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """The state directory lies in the repository, beside the project: others made what is there."""
    project = world.repo / "project"
    project.mkdir()
    (project / "pyproject.toml").write_text("")
    (project / "train.py").write_text(WRAPS)
    monkeypatch.setenv(journal.VARIABLE, str(world.repo / "kept"))
    home = journal._home(project, world.repo / "kept")
    run = home / "000001"
    run.mkdir(parents=True)
    (run / "0.bak").write_bytes(b"theirs")
    entry = {"path": str(world.outside / "secret.py"), "backup": "0.bak"}
    entry |= {"after": digest(SECRET), "before": digest(b"theirs")}
    manifest = {"version": journal.VERSION, "root": str(project), "files": [entry]}
    (run / journal.MANIFEST).write_text(json.dumps(manifest | {"trees": [str(world.outside)]}))
    with world.untouched(project):
        answer = world.run("undo", "project")
    assert answer.code == 2
    assert f"kept: lies in the project {world.repo}" in answer.err


AROUND: dict[str, Callable[[World], Path]] = {
    "a repository around the project": lambda world: world.repo / "project",
    "no project": lambda world: world.top / "plain",
    "no project, below": lambda world: world.top / "plain" / "project",
    "packages": lambda world: world.top / "packages" / "project",
}


@pytest.mark.parametrize("around", AROUND)
@pytest.mark.parametrize("where", ["beside", "in", "through a link"])
def test_a_planted_journal_writes_nothing_outside(
    world: World, monkeypatch: pytest.MonkeyPatch, around: str, where: str
) -> None:
    """Permissions are as they should be: a checkout with a umask of 077, an archive."""
    project = AROUND[around](world)
    project.mkdir(parents=True)
    if around == "a repository around the project":
        (project / "pyproject.toml").write_text("")
    if around == "packages":
        (project / "__init__.py").write_text("")
        (project.parent / "__init__.py").write_text("")
    base = (project if where == "in" else project.parent) / "st"
    run = journal._home(project, base) / "000001"
    run.mkdir(parents=True)
    (run / "0.bak").write_bytes(b"theirs")
    entry = {"path": str(world.outside / "secret.py"), "backup": "0.bak"}
    entry |= {"after": digest(SECRET), "before": digest(b"theirs")}
    manifest = {"version": journal.VERSION, "root": str(project), "files": [entry]}
    (run / journal.MANIFEST).write_text(json.dumps(manifest | {"trees": [str(world.outside)]}))
    for path in (base, *base.rglob("*")):
        path.chmod(0o700 if path.is_dir() else 0o600)
    if where == "through a link":
        (world.top / "via").symlink_to(base.parent)
        base = world.top / "via" / "st"
    monkeypatch.setenv(journal.VARIABLE, str(base))
    with world.untouched(project):
        answer = world.run("undo", project)
    assert answer.code == 2
    assert not answer.out
    assert "lies in the project" in answer.err or "nothing was put back" in answer.err


def test_a_project_named_through_a_planted_link_is_not_undone(world: World) -> None:
    world.run("rewrite", world.outside)
    (world.repo / "linked").symlink_to(world.outside)
    with world.untouched(world.repo):
        answer = world.run("undo", "linked")
    assert answer.code == 2
    assert "a link leads out of its project" in answer.err


@pytest.mark.parametrize("place", ["below a file", "a file", "relative", "not to be made"])
def test_without_a_state_directory_nothing_is_written(
    world: World, monkeypatch: pytest.MonkeyPatch, place: str
) -> None:
    file = world.top / "file"
    file.write_text("")
    path = {
        "below a file": file / "state",
        "a file": file,
        "relative": Path("state"),
        "not to be made": Path("/proc/fsdp-migrate/state"),
    }[place]
    monkeypatch.setenv(journal.VARIABLE, str(path))
    with world.untouched(world.repo):
        answer = world.run("rewrite", ".")
    assert answer.code == 2
    assert journal.VARIABLE in answer.err
    assert str(path) in answer.err
    assert "Traceback" not in answer.err


def test_a_read_only_home_is_told_of(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    home = world.top / "home"
    home.mkdir()
    monkeypatch.delenv(journal.VARIABLE)
    monkeypatch.delenv("XDG_STATE_HOME", raising=False)
    monkeypatch.setenv("HOME", str(home))
    root = os.geteuid() == 0
    for path in (world.top, world.repo, world.repo / "train.py"):
        if root:
            os.chown(path, 1234, 1234)
    home.chmod(0o555)
    with world.untouched(world.repo):
        if root:  # who may write everywhere
            for path in world.top.parents:
                path.chmod(path.stat().st_mode | 0o011)
            os.seteuid(1234)
        try:
            answer = world.run("rewrite", ".")
        finally:
            if root:
                os.seteuid(0)
    assert answer.code == 2
    assert f"{home}/.local/state/fsdp-migrate: Permission denied" in answer.err
    assert "nothing was written. Set FSDP_MIGRATE_STATE" in answer.err


def test_the_users_state_directory_is_the_default(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv(journal.VARIABLE)
    monkeypatch.setenv("XDG_STATE_HOME", str(world.top / "xdg"))
    assert world.run("rewrite", ".").code == 0
    assert len(list((world.top / "xdg" / "fsdp-migrate" / "runs").glob("repo-*/000001"))) == 1
    assert world.run("undo").code == 0


def test_files_in_the_home_directory_can_be_rewritten(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No repository brought the journal along where there is none."""
    home = world.top / "home"
    home.mkdir()
    (home / "train.py").write_text(WRAPS)
    monkeypatch.chdir(home)
    monkeypatch.setenv("HOME", str(home))
    monkeypatch.delenv("XDG_STATE_HOME", raising=False)
    monkeypatch.delenv(journal.VARIABLE)
    assert world.run("rewrite", ".").code == 0
    assert world.run("undo").code == 0
    assert (home / "train.py").read_text() == WRAPS
    for name, place in ((journal.VARIABLE, "kept"), ("XDG_STATE_HOME", "xdg")):
        monkeypatch.setenv(name, str(home / place))
        answer = world.run("rewrite", ".")
        monkeypatch.delenv(name)
        assert answer.code == 2
        assert f"lies in the project {home}" in answer.err


# -- links between a rewrite and its undo ---------------------------------------------------------


def test_a_root_that_became_a_link_is_another_tree(world: World) -> None:
    world.run("rewrite", ".")
    theirs = world.outside / "repo"
    shutil.copytree(world.repo, theirs)
    world.repo.rename(world.top / "moved")
    world.repo.symlink_to(theirs)
    with world.untouched(world.top / "moved"):
        answer = process(world, "undo")
    assert answer.returncode == 2
    assert "no rewrite to undo" in answer.stderr


@pytest.mark.parametrize("what", ["directory", "file", "pipe", "folder"])
def test_a_file_that_became_something_else_stops_the_undo(world: World, what: str) -> None:
    for name in ("a.py", "pkg/b.py"):
        (world.repo / name).parent.mkdir(exist_ok=True)
        (world.repo / name).write_text(WRAPS)
    world.run("rewrite", ".")
    shutil.copytree(world.repo / "pkg", world.outside / "pkg")
    place = world.repo / "pkg/b.py"
    if what == "directory":
        shutil.rmtree(place.parent)
        place.parent.symlink_to(world.outside / "pkg")
    else:
        place.unlink()
        if what == "file":
            place.symlink_to(world.outside / "pkg" / "b.py")
        elif what == "pipe":
            os.mkfifo(place)
        else:
            place.mkdir()
    with world.untouched(world.repo):
        answer = world.run("undo")
    assert answer.code == 2
    assert f"{place}: is " in answer.err
    assert (world.repo / "a.py").read_text() == SHARDS


def test_a_created_file_is_not_deleted_through_a_link(world: World) -> None:
    (world.repo / "pkg").mkdir()
    (world.repo / "pkg" / "f.py").write_text(SUPPORTED)
    world.run("rewrite", ".")
    shutil.copytree(world.repo / "pkg", world.outside / "pkg")
    assert (world.outside / "pkg" / "fsdp2_support.py").exists()
    shutil.rmtree(world.repo / "pkg")
    (world.repo / "pkg").symlink_to(world.outside / "pkg")
    with world.untouched(world.repo):
        assert world.run("undo").code == 2


# -- what is written ------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["dangling", "outside", "ours outside", "pipe", "folder"])
def test_the_support_module_is_never_written_where_something_is(world: World, kind: str) -> None:
    (world.repo / "train.py").write_text(SUPPORTED)
    planted = world.repo / "fsdp2_support.py"
    if kind == "pipe":
        os.mkfifo(planted)
    elif kind == "folder":
        planted.mkdir()
    else:
        name = {"dangling": "new.py", "outside": "secret.py", "ours outside": "ours.py"}[kind]
        (world.outside / "ours.py").write_text('"""Written by fsdp-migrate."""\n')
        planted.symlink_to(world.outside / name)
    before = snapshot(planted)
    for target in (".", "train.py"):
        with world.untouched():
            answer = world.run("rewrite", target)
        is_told = kind == "pipe" and target == "."  # it cannot be read
        assert answer.code == (2 if is_told else 0), answer.err
        assert snapshot(planted) == before
        assert "from fsdp2_support_2 import" in (world.repo / "train.py").read_text()
        assert not (world.repo / "fsdp2_support_3.py").exists()
        with world.untouched():
            assert world.run("undo").code == 0
        assert (world.repo / "train.py").read_text() == SUPPORTED
        assert not (world.repo / "fsdp2_support_2.py").exists()


def test_the_support_module_beside_a_planted_one_is_used_again(world: World) -> None:
    (world.repo / "fsdp2_support.py").symlink_to(world.outside / "new.py")
    for name in ("a.py", "b.py"):
        (world.repo / name).write_text(SUPPORTED)
        with world.untouched():
            assert world.run("rewrite", name).code == 0
        assert "from fsdp2_support_2 import" in (world.repo / name).read_text()


@pytest.mark.parametrize("target", ["outside", "inside", "nothing"])
def test_a_new_file_is_not_written_through_a_link(world: World, target: str) -> None:
    link = world.repo / "new.py"
    link.symlink_to({"outside": "../outside/new.py", "inside": "train.py"}.get(target, "no.py"))
    with world.untouched(world.repo), pytest.raises(WriteError, match=r"new\.py: is a link"):
        write.write(world.repo, {link: b"x", world.repo / "train.py": b"x"}, {})
    assert not world.state.exists()


def test_a_new_file_is_not_written_in_a_linked_directory(world: World) -> None:
    (world.repo / "linked").symlink_to(world.outside)
    for path in ("linked/new.py", "../outside/new.py", "linked/secret.py"):
        with (
            world.untouched(world.repo),
            pytest.raises(WriteError, match="lies outside of the paths given"),
        ):
            write.write(world.repo, {world.repo / path: b"x"})


def test_a_file_is_not_replaced_outside_of_the_trees(world: World) -> None:
    (world.repo / "linked.py").symlink_to("../outside/secret.py")
    for path in (world.repo / "linked.py", world.outside / "secret.py"):
        with (
            world.untouched(world.repo),
            pytest.raises(WriteError, match="lies outside of the paths given"),
        ):
            write.write(world.repo, {path: b"x"}, {path: SECRET})


@pytest.mark.parametrize("named", ["directory", "file"])
def test_other_trees_that_were_given_are_written_and_put_back(world: World, named: str) -> None:
    """Only where they are given again: a journal alone does not lead out of the repository."""
    other = world.outside if named == "directory" else world.outside / "train.py"
    answer = world.run("rewrite", ".", other)
    assert answer.code == 0
    assert (world.outside / "train.py").read_text() == SHARDS
    assert f"Undo: fsdp-migrate undo . {world.outside}" in " ".join(answer.out.split())
    with world.untouched(world.repo):
        alone = world.run("undo")
        others = world.run("undo", world.outside)
    assert alone.code == others.code == 2
    assert not alone.out + others.out
    assert f"to put back all of it: fsdp-migrate undo {world.repo} {world.outside}" in alone.err
    assert "one of several projects is kept with the first" in others.err
    assert world.run("undo", ".", world.outside).code == 0
    assert (world.outside / "train.py").read_text() == WRAPS
    assert (world.repo / "train.py").read_text() == WRAPS


def test_projects_of_one_repository_are_put_back_together(world: World) -> None:
    for name in ("a", "b"):
        (world.repo / name).mkdir()
        (world.repo / name / "pyproject.toml").write_text("")
        (world.repo / name / "train.py").write_text(WRAPS)
    assert world.run("rewrite", "a", "b").code == 0
    assert world.run("undo", "b").code == 2
    assert (world.repo / "b" / "train.py").read_text() == SHARDS
    assert world.run("undo", "a").code == 0
    assert (world.repo / "a" / "train.py").read_text() == WRAPS
    assert (world.repo / "b" / "train.py").read_text() == WRAPS


def test_files_of_one_package_share_a_support_module_without_a_project(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    plain = world.top / "plain"
    for name in ("pkg/__init__.py", "pkg/a/__init__.py", "pkg/b/__init__.py"):
        (plain / name).parent.mkdir(parents=True, exist_ok=True)
        (plain / name).write_text("")
    (plain / "pkg/a/f.py").write_text(SUPPORTED)
    (plain / "pkg/b/f.py").write_text(f"from pkg.a import f\n{SUPPORTED}")
    monkeypatch.chdir(plain)
    with world.untouched():
        assert world.run("rewrite", "pkg/a/f.py", "pkg/b/f.py").code == 0
        assert (plain / "pkg/fsdp2_support.py").exists()
        assert world.run("undo", "pkg/a").code == 0
    assert not (plain / "pkg/fsdp2_support.py").exists()


def test_a_link_that_appears_during_a_run_is_not_followed(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    (world.repo / "pkg").mkdir()
    (world.repo / "pkg" / "train.py").write_text(WRAPS)
    real = write._record

    def swapping(*arguments: Any) -> Any:
        entries = real(*arguments)
        (world.repo / "pkg").rename(world.repo / "old")
        (world.repo / "pkg").symlink_to(world.outside)
        return entries

    monkeypatch.setattr(write, "_record", swapping)
    with world.untouched():
        answer = world.run("rewrite", ".")
    assert answer.code == 2
    assert "pkg/train.py: was changed" in answer.err


@pytest.mark.parametrize("way", ["relative", "absolute", "twice", "directory", "nested project"])
def test_a_named_link_out_of_the_project_is_refused_and_the_rest_done(
    world: World, way: str
) -> None:
    (world.repo / "good.py").write_text(WRAPS)
    link = world.repo / "link.py"
    named = "link.py"
    if way == "relative":
        link.symlink_to("../outside/train.py")
    elif way == "absolute":
        link.symlink_to(world.outside / "train.py")
    elif way == "twice":
        link.symlink_to("second.py")
        (world.repo / "second.py").symlink_to("../outside/train.py")
    else:
        (world.repo / "linked").symlink_to("../outside")
        named = "linked" if way == "directory" else "linked/train.py"
        if way == "nested project":
            (world.outside / "pyproject.toml").write_text("not toml")
            (world.outside / ".git").mkdir()
    for command in (["check"], ["rewrite", "--dry-run"], ["rewrite"]):
        with world.untouched():
            answer = world.run(*command, named, "good.py")
        assert answer.code == 2
        assert f"{named}: " in answer.err
        assert f"a link leads out of its project, to {world.outside}" in answer.err
    assert (world.repo / "good.py").read_text() == SHARDS


def test_only_a_link_out_of_the_project(world: World) -> None:
    (world.repo / "link.py").symlink_to("../outside/train.py")
    with world.untouched(world.repo):
        answer = world.run("rewrite", "link.py")
    assert answer.code == 2
    assert "a link leads out of its project" in answer.err


def test_without_a_project_a_link_stays_in_its_directory(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    plain = world.top / "plain"
    plain.mkdir()
    (plain / "link.py").symlink_to("../outside/train.py")
    (plain / "linked").symlink_to("../outside")
    monkeypatch.chdir(plain)
    for path in ("link.py", plain / "link.py", "linked", "linked/train.py"):
        with world.untouched():
            assert world.run("rewrite", path).code == 2
    monkeypatch.chdir(world.top)
    with world.untouched():
        assert world.run("rewrite", plain / "link.py").code == 2


def test_links_that_stay_within_what_is_given_are_followed(world: World) -> None:
    (world.repo / "pkg").mkdir()
    (world.repo / "pkg" / "inside.py").symlink_to("../train.py")
    assert world.run("rewrite", "pkg/inside.py").code == 0
    assert (world.repo / "train.py").read_text() == SHARDS
    assert (world.repo / "pkg" / "inside.py").is_symlink()
    (world.repo / "away.py").symlink_to("../outside/train.py")
    assert world.run("rewrite", "away.py", world.outside).code == 0
    assert (world.outside / "train.py").read_text() == SHARDS
    assert world.run("undo", ".", world.outside).code == 0
    assert (world.outside / "train.py").read_text() == WRAPS
    assert world.run("undo").code == 0
    assert (world.repo / "train.py").read_text() == WRAPS


def test_links_in_a_tree_lead_to_nothing_outside(world: World) -> None:
    (world.repo / "link.py").symlink_to("../outside/train.py")
    (world.repo / "linked").symlink_to("../outside")
    (world.repo / "nothing.py").symlink_to("../outside/new.py")
    with world.untouched():
        assert world.run("rewrite", ".").code == 0
    assert (world.repo / "train.py").read_text() == SHARDS


@pytest.mark.parametrize("kind", ["pipe", "link to a pipe", "link to a device", "folder"])
def test_a_report_is_written_into_files_only(world: World, kind: str) -> None:
    planted = world.repo / "r.json"
    if kind == "pipe":
        os.mkfifo(planted)
    elif kind == "folder":
        planted.mkdir()
    elif kind == "link to a device":
        planted.symlink_to("/dev/zero")
    else:
        os.mkfifo(world.repo / "pipe")
        planted.symlink_to("pipe")
    answer = process(world, "check", "train.py", "-o", "r.json")
    assert answer.returncode == 2
    assert "error: r.json: " in answer.stderr
    assert process(world, "check", "--exit-zero", "train.py", "-o", "/dev/stdout").returncode == 0


@pytest.mark.parametrize("linked", ["secret.py", "new.txt"])
def test_a_report_is_not_written_through_a_link(world: World, linked: str) -> None:
    (world.repo / "report.txt").symlink_to(world.outside / linked)
    with world.untouched():
        answer = world.run("check", ".", "-o", "report.txt")
    assert answer.code == 2
    assert "report.txt: a link leads out of its project" in answer.err


# -- hard links -----------------------------------------------------------------------------------


def test_a_hard_link_to_a_file_outside_is_cut(world: World) -> None:
    """The file outside was not given: it keeps what it holds, both ways."""
    for name in ("train.py", "other.py"):
        (world.repo / name).unlink(missing_ok=True)
        os.link(world.outside / "train.py", world.repo / name)
    with world.untouched():
        assert world.run("rewrite", "train.py").code == 0
        assert (world.repo / "train.py").read_text() == SHARDS
        assert world.run("undo").code == 0
    assert (world.repo / "train.py").read_text() == WRAPS
    assert (world.repo / "other.py").samefile(world.outside / "train.py")


def test_a_hard_link_that_is_made_later_is_cut_by_undo(world: World) -> None:
    world.run("rewrite", ".")
    os.link(world.repo / "train.py", world.outside / "later.py")
    with world.untouched():
        assert world.run("undo").code == 0
    assert (world.repo / "train.py").read_text() == WRAPS
    assert (world.outside / "later.py").read_text() == SHARDS


def test_hard_links_in_the_tree_stay_together(world: World) -> None:
    os.link(world.repo / "train.py", world.repo / "again.py")
    assert world.run("rewrite", ".").code == 0
    assert (world.repo / "again.py").read_text() == SHARDS
    assert (world.repo / "again.py").samefile(world.repo / "train.py")
    assert world.run("undo").code == 0
    assert (world.repo / "again.py").read_text() == WRAPS
    assert (world.repo / "again.py").samefile(world.repo / "train.py")


def test_hard_links_that_are_to_differ_part(world: World) -> None:
    again = world.repo / "again.py"
    os.link(world.repo / "train.py", again)
    write.write(world.repo, {world.repo / "train.py": b"one", again: b"two"})
    assert (world.repo / "train.py").read_bytes() == b"one"
    assert again.read_bytes() == b"two"
    write.undo(world.repo)
    assert (world.repo / "train.py").read_text() == again.read_text() == WRAPS


# -- what is read ---------------------------------------------------------------------------------

READ = ["pyproject.toml", "requirements.txt", ".gitignore", ".git/info/exclude"]


@pytest.mark.parametrize("kind", ["pipe", "device", "folder", "link to itself", "link to nothing"])
@pytest.mark.parametrize("name", READ)
def test_settings_that_are_no_files_do_no_harm(world: World, name: str, kind: str) -> None:
    path = world.repo / name
    if kind == "pipe":
        os.mkfifo(path)
    elif kind == "device":
        path.symlink_to("/dev/zero")
    elif kind == "folder":
        path.mkdir()
    else:
        path.symlink_to(path.name if kind == "link to itself" else "nothing")
    for command in ("check", "rewrite", "undo"):
        arguments = [command, "."] if command != "undo" else [command]
        answer = world.run(*arguments)  # one that waits for ever runs into the tests' time limit
        assert answer.code == (1 if command == "check" else 0), answer.err
    assert (world.repo / "train.py").read_text() == WRAPS


def test_requirements_are_not_read_through_a_link(world: World) -> None:
    (world.outside / "pins.txt").write_text("torch==2.1.0\n")
    (world.repo / "requirements.txt").symlink_to("../outside/pins.txt")
    with world.untouched():
        answer = world.run("rewrite", ".")
    assert answer.code == 0
    assert "note: requirements.txt is not read: a link leads out of the project" in answer.err
    assert (world.repo / "train.py").read_text() == SHARDS


@pytest.mark.parametrize("name", ["../outside/pins.txt", "link.txt", "folder/pins.txt", "pipe"])
def test_files_that_requirements_name_stay_in_the_project(world: World, name: str) -> None:
    (world.outside / "pins.txt").write_text("torch==2.1.0\ntorch>=2.0\n")
    (world.repo / "link.txt").symlink_to("../outside/pins.txt")
    (world.repo / "folder").symlink_to("../outside")
    os.mkfifo(world.repo / "pipe")
    (world.repo / "requirements.txt").write_text(f"-r {name}\n")
    with world.untouched():
        answer = world.run("rewrite", ".")
    assert f"FSDP501  left     requirements.txt:1  {name}: it " in answer.out
    assert (world.repo / "train.py").read_text() == SHARDS


def test_requirements_are_read_through_a_link_inside(world: World) -> None:
    (world.repo / "pins").mkdir()
    (world.repo / "pins" / "all.txt").write_text("torch==2.1.0\n")
    (world.repo / "requirements.txt").symlink_to("pins/all.txt")
    assert "requirements.txt asks for torch==2.1.0" in world.run("rewrite", ".").err


@pytest.mark.parametrize("command", ["check", "rewrite", "explain"])
def test_the_configuration_is_not_read_through_a_link(world: World, command: str) -> None:
    """Who goes on without it would change what it excludes."""
    (world.outside / "settings.toml").write_text("[tool.fsdp-migrate]\nexclude = ['train.py']\n")
    (world.repo / "pyproject.toml").symlink_to("../outside/settings.toml")
    with world.untouched(world.repo):
        answer = world.run(command, *(["."] if command != "explain" else []))
    if command != "explain":
        assert answer.code == 2
        assert "pyproject.toml: cannot be read: a link leads out of the project" in answer.err


def test_the_configuration_of_a_repository_may_be_shared(world: World) -> None:
    package = world.repo / "package"
    package.mkdir()
    (world.repo / "shared.toml").write_text("[tool.fsdp-migrate]\nexclude = ['old.py']\n")
    (package / "pyproject.toml").symlink_to("../shared.toml")
    for name in ("old.py", "new.py"):
        (package / name).write_text(WRAPS)
    assert world.run("rewrite", "package").code == 0
    assert (package / "old.py").read_text() == WRAPS
    assert (package / "new.py").read_text() == SHARDS


def test_ignore_files_are_not_read_through_links(world: World) -> None:
    (world.outside / "patterns").write_text("train.py\n")
    (world.repo / ".gitignore").symlink_to("../outside/patterns")
    with world.untouched():
        assert world.run("rewrite", ".").code == 0
    assert (world.repo / "train.py").read_text() == SHARDS


@pytest.mark.parametrize("way", ["file", "folder", "whole"])
def test_gits_own_ignore_file_stays_in_the_repository(world: World, way: str) -> None:
    """git follows a link there; what it leads to is not the repository's to read out."""
    (world.outside / "info").mkdir()
    (world.outside / "info" / "exclude").write_text("train.py\n!\n")
    git = world.repo / ".git"
    if way == "file":
        (git / "info" / "exclude").symlink_to(world.outside / "info" / "exclude")
    else:
        shutil.rmtree(git / "info" if way == "folder" else git)
        target = world.outside / "info" if way == "folder" else world.outside
        (git / "info" if way == "folder" else git).symlink_to(target)
    with world.untouched():
        assert world.run("rewrite", ".").code == 0
    assert (world.repo / "train.py").read_text() == SHARDS


@pytest.mark.parametrize("name", [".gitignore", ".git/info/exclude", "kept"])
@pytest.mark.parametrize("line", ["!", "secret\\", "secret[z-a]"])
def test_a_pattern_that_is_none_is_neither_obeyed_nor_quoted(
    world: World, name: str, line: str
) -> None:
    (world.repo / name).write_text(f"{line}\nother.py\n")
    (world.repo / "other.py").write_text(WRAPS)
    if name == "kept":
        (world.repo / ".git" / "info" / "exclude").symlink_to("../../kept")
    answer = world.run("rewrite", ".")
    assert answer.code == 0, answer.err
    assert "secret" not in answer.err
    assert (world.repo / "train.py").read_text() == SHARDS
    assert (world.repo / "other.py").read_text() == WRAPS


@pytest.mark.parametrize("pattern", ["!", "secret\\", "secret[z-a]"])
def test_a_configured_pattern_that_is_none_is_refused(world: World, pattern: str) -> None:
    listed = json.dumps(["old", pattern])
    (world.repo / "pyproject.toml").write_text(f"[tool.fsdp-migrate]\nexclude = {listed}\n")
    answer = world.run("rewrite", ".")
    assert answer.code == 2
    assert "exclude: pattern 2 of the list" in answer.err
    assert "secret" not in answer.err


# -- several at once ------------------------------------------------------------------------------


def test_runs_at_the_same_time_leave_one_journal_each(world: World) -> None:
    program = (
        "import sys\nfrom pathlib import Path\nfrom fsdp_migrate.rewriting import write\n"
        "for i in range(4):\n"
        "    path = Path(sys.argv[1])\n"
        "    write.write(path.parent, {path: f'{path.name} {i}'.encode()})\n"
    )
    names = ["a.py", "b.py"]
    command = [sys.executable, "-c", program]
    running = [subprocess.Popen([*command, str(world.repo / name)]) for name in names]
    assert [process.wait(120) for process in running] == [0, 0]
    assert [m.parent.name for m in journals(world)] == [f"{n:06d}" for n in range(1, 9)]
    undone = 0
    while write.undo(world.repo):
        undone += 1
    assert undone == 8
    assert not any((world.repo / name).exists() for name in names)


def test_of_two_rewrites_at_the_same_time_one_does_it(world: World) -> None:
    for number in range(20):
        (world.repo / f"m{number}.py").write_text(WRAPS)
    before = {p.name: p.read_bytes() for p in world.repo.glob("*.py")}
    command = [sys.executable, "-m", "fsdp_migrate", "rewrite", "."]
    running = [
        subprocess.Popen(command, cwd=world.repo, stderr=subprocess.PIPE, stdout=subprocess.PIPE)
        for _ in range(3)
    ]
    said = [process.communicate(timeout=300)[1].decode() for process in running]
    codes = [process.returncode for process in running]
    assert 0 in codes
    assert all(code == 0 or "was changed" in text for code, text in zip(codes, said, strict=True))
    assert {p.read_text() for p in world.repo.glob("*.py")} == {SHARDS}
    assert len(journals(world)) == 1
    assert world.run("undo").code == 0
    assert {p.name: p.read_bytes() for p in world.repo.glob("*.py")} == before


def test_what_a_killed_run_left_half_recorded_is_removed(world: World) -> None:
    write.write(world.repo, {world.repo / "train.py": b"first"})
    (manifest,) = journals(world)
    half = manifest.parents[1] / "000002"
    half.mkdir(mode=0o700)
    (half / "0.bak").write_bytes(b"")
    write.write(world.repo, {world.repo / "train.py": b"second"})
    assert not half.exists()
    assert [m.parent.name for m in journals(world)] == ["000001", "000003"]
    assert write.undo(world.repo)
    assert (world.repo / "train.py").read_bytes() == b"first"
