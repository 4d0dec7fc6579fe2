"""Asking git runs nothing that the repository configures, and asks about this repository."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path

import pytest

from fsdp_migrate import git
from fsdp_migrate.cli import trees
from fsdp_migrate.errors import InputError
from tests.helpers.commandline import Command

WRAPS = "from torch.distributed.fsdp import FullyShardedDataParallel as FSDP\n\nm = FSDP(net)\n"


def ask(root: Path, *arguments: str, given: bytes | None = None) -> bytes:
    """git as a user runs it."""
    settings = ["-c", "user.name=x", "-c", "user.email=x@localhost"]
    command = ["git", "-C", str(root), *settings, *arguments]
    return subprocess.run(command, check=True, capture_output=True, input=given).stdout


@pytest.fixture
def repository(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A repository with one file, changed since its only commit."""
    for name in list(os.environ):
        if name.startswith("GIT_"):
            monkeypatch.delenv(name)
    monkeypatch.setenv("HOME", str(tmp_path))
    root = tmp_path / "repository"
    root.mkdir()
    monkeypatch.chdir(root)
    ask(root, "init", "-q")
    (root / "a.py").write_text(WRAPS)
    ask(root, "add", "-A")
    ask(root, "commit", "-q", "-m", "one")
    return root


def change(repository: Path) -> None:
    """Of the same size, so that git has to read the file to know."""
    (repository / "a.py").write_text(WRAPS.replace("net", "ten"))
    os.utime(repository / "a.py", (1, 1))


Plant = Callable[[Path, str], None]


def setting(name: str, value: str = "{}") -> Plant:
    return lambda root, command: void(ask(root, "config", name, value.format(command)))


def hook(name: str) -> Plant:
    def plant(root: Path, command: str) -> None:
        path = root / ".git" / "hooks" / name
        path.parent.mkdir(exist_ok=True)
        path.write_text(f"#!/bin/sh\n{command}\n")
        path.chmod(0o755)

    return plant


def hooks_path(root: Path, command: str) -> None:
    hook("post-index-change")(root, command)
    (root / ".git" / "hooks").rename(root / "own")
    ask(root, "config", "core.hooksPath", "own")


def filtering(key: str, driver: str = "evil") -> Plant:
    def plant(root: Path, command: str) -> None:
        with (root / ".git" / "config").open("a") as file:
            file.write(f'[filter "{driver}"]\n\t{key} = "{command}; cat"\n')
            file.write("\trequired = true\n" if key == "clean" else "")
        (root / ".gitattributes").write_text(f"*.py filter={driver}\n")

    return plant


def included(root: Path, command: str) -> None:
    filtering("clean")(root, command)
    config = root / ".git" / "config"
    config.rename(root / "more")
    config.write_text(f"[include]\n\tpath = {root}/more\n")


def worktree_config(root: Path, command: str) -> None:
    ask(root, "config", "extensions.worktreeConfig", "true")
    ask(root, "config", "--worktree", "filter.evil.clean", f"{command}; cat")
    (root / ".gitattributes").write_text("*.py filter=evil\n")


def void(_: object) -> None:
    pass


# What a repository plants, and a git command of a user's that runs it.
PLANTED: dict[str, tuple[Plant, tuple[str, ...]]] = {
    "fsmonitor": (setting("core.fsmonitor"), ("status",)),
    "hook": (hook("post-index-change"), ("status",)),
    "hooks path": (hooks_path, ("status",)),
    "clean": (filtering("clean"), ("status",)),
    "smudge": (filtering("smudge"), ("archive", "HEAD")),
    "process": (filtering("process"), ("diff",)),
    "name with =": (filtering("clean", "a=b"), ("status",)),
    "name with dots": (filtering("clean", "a.b.clean"), ("status",)),
    "upper case": (filtering("CLEAN", "EVIL"), ("status",)),
    "included": (included, ("status",)),
    "worktree": (worktree_config, ("status",)),
    "external diff": (setting("diff.external"), ("diff",)),
    "pager": (setting("core.pager"), ("-p", "status")),
}


@pytest.mark.parametrize("name", PLANTED)
def test_nothing_that_a_repository_plants_is_run(repository: Path, run: Command, name: str) -> None:
    plant, usual = PLANTED[name]
    mark = repository.parent / "ran"
    plant(repository, f"touch {mark}")
    if name == "smudge":
        ask(repository, "add", ".gitattributes")
        ask(repository, "commit", "-q", "-m", "two")
    change(repository)
    answer = run("rewrite", ".")
    assert answer.code == 2
    assert "uncommitted changes in a.py" in answer.err
    assert git.files(repository, "HEAD", ".")[-1].contents == WRAPS.encode()
    assert not mark.exists()
    if name == "pager":
        return  # it needs a terminal
    (repository / "a.py").touch()
    subprocess.run(["git", *usual], cwd=repository, capture_output=True, check=False)
    assert mark.exists(), "the attack itself does not work"


@pytest.mark.parametrize("protocol", ["upload pack", "ext", "helper"])
def test_what_a_partial_clone_lacks_is_not_fetched(repository: Path, protocol: str) -> None:
    mark = repository.parent / "ran"
    ask(repository, "config", "core.repositoryFormatVersion", "1")
    ask(repository, "config", "extensions.partialClone", "origin")
    ask(repository, "config", "remote.origin.promisor", "true")
    ask(repository, "config", "protocol.allow", "always")
    url = {"upload pack": str(repository), "ext": f"ext::touch {mark}", "helper": "x://y"}
    ask(repository, "config", "remote.origin.url", url[protocol])
    ask(repository, "config", "remote.origin.uploadpack", f"touch {mark}; git-upload-pack")
    blob = os.fsdecode(ask(repository, "rev-parse", "HEAD:a.py")).strip()
    (repository / ".git" / "objects" / blob[:2] / blob[2:]).unlink()
    with pytest.raises(git.GitError):
        git.files(repository, "HEAD", ".")
    assert not mark.exists()
    if protocol != "helper":
        subprocess.run(["git", "show", "HEAD:a.py"], capture_output=True, check=False)
        assert mark.exists(), "the attack itself does not work"


def test_submodules_are_not_asked(repository: Path, run: Command) -> None:
    mark = repository.parent / "ran"
    inner = repository / "inner"
    inner.mkdir()
    ask(inner, "init", "-q")
    (inner / "b.txt").write_text("x")
    ask(inner, "add", "-A")
    ask(inner, "commit", "-q", "-m", "x")
    ask(repository, "add", "inner")
    ask(repository, "commit", "-q", "-m", "two")
    ask(inner, "config", "core.fsmonitor", f"touch {mark}")
    (inner / "b.txt").write_text("y")
    change(repository)
    assert run("rewrite", "a.py").code == 2
    assert not mark.exists()
    assert [entry.path for entry in git.files(repository, "HEAD", ".")] == ["a.py"]


def test_the_users_own_filters_count(repository: Path, run: Command) -> None:
    """As where git lfs is installed: its settings are the user's, and the repository names them."""
    mark = repository.parent / "ran"
    config = repository.parent / ".gitconfig"
    config.write_text(f'[filter "mine"]\n\tclean = "touch {mark}; sed s/theirs/mine/"\n')
    (repository / ".gitattributes").write_text("*.py filter=mine\n")
    for local in ("", "false"):
        if local:
            ask(repository, "config", "filter.mine.clean", local)
        change(repository)
        assert run("rewrite", ".").code == 2
        assert mark.exists()
        mark.unlink()


def test_a_program_of_the_repository_is_not_git(
    repository: Path, run: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    mark = repository.parent / "ran"
    for place in (repository / "git", repository / "bin" / "git"):
        place.parent.mkdir(exist_ok=True)
        place.write_text(f"#!/bin/sh\ntouch {mark}\n")
        place.chmod(0o755)
    monkeypatch.setenv("PATH", f":bin:.:{os.environ['PATH']}:")
    change(repository)
    assert run("rewrite", "a.py").code == 2
    assert not mark.exists()


@pytest.mark.parametrize("way", ["directory", "link to it", "link to the program"])
def test_a_program_in_the_repository_is_not_git(
    repository: Path, run: Command, monkeypatch: pytest.MonkeyPatch, way: str
) -> None:
    """An absolute entry that a tool for environments has put first."""
    mark = repository.parent / "ran"
    program = repository / "tools" / "bin" / "git"
    program.parent.mkdir(parents=True)
    program.write_text(f"#!/bin/sh\ntouch {mark}\n")
    program.chmod(0o755)
    entry = program.parent if way == "directory" else repository.parent / "bin"
    if way == "link to it":
        entry.symlink_to(program.parent)
    elif way == "link to the program":
        entry.mkdir()
        (entry / "git").symlink_to(program)
    monkeypatch.setenv("PATH", f"{entry}:{os.environ['PATH']}")
    change(repository)
    assert run("rewrite", "a.py").code == 2
    assert git.files(repository, "HEAD", ".")
    assert not mark.exists()


# -- where git cannot answer ----------------------------------------------------------------------


def pipe(name: str) -> Callable[[Path], None]:
    def plant(root: Path) -> None:
        (root / ".git" / name).unlink()
        os.mkfifo(root / ".git" / name)

    return plant


def configured(text: str) -> Callable[[Path], None]:
    return lambda root: (root / ".git" / "config").write_text(text) and None


UNANSWERED: dict[str, Callable[[Path], None]] = {
    "config is a pipe": pipe("config"),
    "index is a pipe": pipe("index"),
    "an endless file": configured("[include]\n\tpath = /dev/zero\n"),
    "an extension": configured(
        "[core]\n\trepositoryformatversion = 1\n[extensions]\n\tfoo = true\n"
    ),
    "no configuration": configured("[\x1b[2J\n"),
    "a spoilt index": lambda root: (root / ".git" / "index").write_bytes(b"x" * 64) and None,
}


@pytest.mark.parametrize("name", UNANSWERED)
def test_changes_are_not_overwritten_where_git_cannot_answer(
    repository: Path, run: Command, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    monkeypatch.setattr(git, "_SECONDS", 2)
    change(repository)
    before = (repository / "a.py").read_bytes()
    UNANSWERED[name](repository)
    answer = run("rewrite", ".")
    assert answer.code == 2
    assert "git cannot say whether the files have uncommitted changes: " in answer.err
    assert "--allow-dirty" in answer.err
    assert len(answer.err.splitlines()) == 1
    assert "\x1b" not in answer.err
    assert (repository / "a.py").read_bytes() == before
    assert run("rewrite", "--allow-dirty", ".").code == 0
    assert run("rewrite", ".").code == 0, "nothing is written, and nobody has to be asked"


def test_a_repository_of_somebody_else_is_not_overwritten(repository: Path, run: Command) -> None:
    if os.geteuid() != 0:
        pytest.skip("only root may give files away")
    change(repository)
    for path in (repository, repository / ".git"):
        os.chown(path, 1234, 1234)
    answer = run("rewrite", ".")
    assert answer.code == 2
    assert "git cannot say" in answer.err


def test_without_git_the_rewrite_goes_on_and_says_so(
    repository: Path, run: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(repository.parent))
    answer = run("rewrite", ".")
    assert answer.code == 0
    assert "there is no git, so nobody looked for uncommitted changes" in answer.err


@pytest.mark.parametrize("flag", ["--assume-unchanged", "--skip-worktree"])
def test_changes_that_git_was_told_to_overlook_count(
    repository: Path, run: Command, flag: str
) -> None:
    (repository / "b.py").write_text(WRAPS)
    ask(repository, "add", "-A")
    ask(repository, "commit", "-q", "-m", "two")
    ask(repository, "update-index", flag, "a.py", "b.py")
    change(repository)
    answer = run("rewrite", ".")
    assert answer.code == 2
    assert "uncommitted changes in a.py: " in answer.err
    (repository / "a.py").write_text(WRAPS)
    assert run("rewrite", ".").code == 0


def test_a_folder_called_like_a_repository_hides_no_changes(repository: Path, run: Command) -> None:
    (repository / "sub").mkdir()
    (repository / "sub" / "c.py").write_text(WRAPS)
    ask(repository, "add", "-A")
    ask(repository, "commit", "-q", "-m", "two")
    (repository / "sub" / ".git").mkdir()
    (repository / "sub" / "c.py").write_text(WRAPS.replace("net", "ten"))
    answer = run("rewrite", "sub")
    assert answer.code == 2
    assert "uncommitted changes in sub/c.py" in answer.err


@pytest.mark.parametrize(
    "name", ["GIT_DIR", "GIT_INDEX_FILE", "GIT_WORK_TREE", "GIT_OBJECT_DIRECTORY", "core.worktree"]
)
def test_a_hooks_environment_does_not_mislead(
    repository: Path, run: Command, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    """In a hook, git says which repository the hook is of: that need not be the one we are in."""
    other = repository.parent / "other"
    other.mkdir()
    ask(other, "init", "-q")
    place = other / {"GIT_DIR": ".git", "GIT_INDEX_FILE": ".git/index"}.get(name, ".")
    if name == "core.worktree":
        ask(repository, "config", name, str(place))
    else:
        monkeypatch.setenv(name, str(place))
    change(repository)
    answer = run("rewrite", ".")
    assert answer.code == 2
    assert "uncommitted changes in a.py" in answer.err


@pytest.mark.parametrize("name", ["GIT_EXTERNAL_DIFF", "GIT_PAGER", "GIT_SSH_COMMAND", "GIT_TRACE"])
def test_commands_in_the_environment_are_not_run(
    repository: Path, run: Command, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    mark = repository.parent / "ran"
    monkeypatch.setenv(name, str(mark) if name == "GIT_TRACE" else f"touch {mark}")
    change(repository)
    assert run("rewrite", ".").code == 2
    assert not mark.exists()


def test_what_the_user_configures_in_the_environment_counts(
    repository: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GIT_CONFIG_COUNT", "1")
    monkeypatch.setenv("GIT_CONFIG_KEY_0", "status.short")
    monkeypatch.setenv("GIT_CONFIG_VALUE_0", "true")
    assert git.ask(repository, "config", "status.short") == b"true\n"


def test_the_index_is_not_written(repository: Path, run: Command) -> None:
    change(repository)
    before = (repository / ".git" / "index").read_bytes()
    (repository / ".git" / "index").chmod(0o644)
    os.utime(repository / "a.py", (1, 1))
    assert run("rewrite", ".").code == 2
    assert (repository / ".git" / "index").read_bytes() == before


# -- the trees that verify compares ---------------------------------------------------------------


def checked_out(repository: Path, revision: str = "HEAD") -> dict[str, bytes]:
    with ExitStack() as stack:
        target = trees.scratch_directory(stack) / "tree"
        trees.check_out(revision, repository, target, "before", ())
        return {
            path.relative_to(target).as_posix(): path.read_bytes()
            for path in sorted(target.rglob("*"))
            if path.is_file()
        }


def test_attributes_do_not_change_what_verify_gets(repository: Path) -> None:
    (repository / ".gitattributes").write_text(
        "a.py export-ignore\nb.py export-subst\nc.py ident text eol=crlf\n"
    )
    (repository / "b.py").write_text("# $Format:%H$\n")
    (repository / "c.py").write_text("# $Id$\n")
    ask(repository, "add", "-A")
    ask(repository, "commit", "-q", "-m", "two")
    found = checked_out(repository)
    assert found["a.py"] == WRAPS.encode()
    assert found["b.py"] == b"# $Format:%H$\n"
    assert found["c.py"] == b"# $Id$\n"


def test_modes_and_links_come_along(repository: Path) -> None:
    (repository / "run.sh").write_text("x")
    (repository / "run.sh").chmod(0o755)
    (repository / "sub").mkdir()
    (repository / "sub" / "link.py").symlink_to("../a.py")
    ask(repository, "add", "-A")
    ask(repository, "commit", "-q", "-m", "two")
    with ExitStack() as stack:
        target = trees.scratch_directory(stack) / "tree"
        trees.check_out("HEAD", repository, target, "before", ())
        assert (target / "sub" / "link.py").read_text() == WRAPS
        assert (target / "sub" / "link.py").is_symlink()
        assert os.access(target / "run.sh", os.X_OK)
        assert not os.access(target / "a.py", os.X_OK)


def test_links_out_of_the_tree_are_left_out(
    repository: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (repository / "d" / "e").mkdir(parents=True)
    (repository / "d" / "x").symlink_to("..")  # stays in, and
    (repository / "y").symlink_to("d/x/../secret")  # leads out only because of it
    (repository / "z").symlink_to("/etc/passwd")
    (repository / "loop").symlink_to("loop")
    ask(repository, "add", "-A")
    ask(repository, "commit", "-q", "-m", "two")
    (repository.parent / "secret").write_text("secret")
    found = checked_out(repository)
    assert not {"y", "z"} & set(found)
    assert "left out: y, z" in capsys.readouterr().err


def tree(repository: Path, *entries: tuple[str, str, bytes]) -> str:
    """A tree as no git makes it."""
    lines = b""
    for mode, name, contents in entries:
        kind = ["-w", "--stdin"]
        blob = ask(repository, "hash-object", *kind, given=contents).strip()
        lines += f"{mode} {name}\0".encode() + bytes.fromhex(blob.decode())
    options = ("hash-object", "-t", "tree", "-w", "--literally", "--stdin")
    return os.fsdecode(ask(repository, *options, given=lines)).strip()


@pytest.mark.parametrize("name", ["..", ".", ".git", "../out.py", "/tmp/out.py"])
def test_names_that_lead_out_are_refused(repository: Path, name: str) -> None:
    with pytest.raises(InputError):
        checked_out(repository, tree(repository, ("100644", name, b"x")))
    assert not (repository.parent / "out.py").exists()


def test_nothing_is_written_through_a_link(repository: Path) -> None:
    """A link, and a file below it: git itself cannot have both."""
    inner = tree(repository, ("100644", "out.py", b"x"))
    link = ask(repository, "hash-object", "-w", "--stdin", given=str(repository.parent).encode())
    lines = b"120000 a\0" + bytes.fromhex(link.strip().decode())
    lines += b"40000 a\0" + bytes.fromhex(inner)
    options = ("hash-object", "-t", "tree", "-w", "--literally", "--stdin")
    both = os.fsdecode(ask(repository, *options, given=lines)).strip()
    with pytest.raises(InputError):
        checked_out(repository, both)
    assert not (repository.parent / "out.py").exists()


@pytest.mark.parametrize("revision", ["--output=x", "-x", "nothing", "HEAD~9"])
def test_what_is_no_revision_is_said(repository: Path, revision: str) -> None:
    with pytest.raises(InputError, match="neither a directory nor a git revision"):
        checked_out(repository, revision)
