"""The trees that ``verify`` compares: directories, revisions in git, rewritten scratch copies."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path

from fsdp_migrate import git
from fsdp_migrate.cli import config, console, session, trust
from fsdp_migrate.cli.exit_codes import GOOD
from fsdp_migrate.discovery import project_paths, walk
from fsdp_migrate.rewriting import write
from fsdp_migrate.shown import path as shown_path


class AlreadySaid(Exception):
    """The command cannot be carried out, and why was said."""


def scratch_directory(stack: ExitStack) -> Path:
    """A new directory that is gone when the command ends."""
    folder = Path(tempfile.mkdtemp(prefix="fsdp-migrate-"))
    stack.callback(shutil.rmtree, folder, ignore_errors=True)
    return folder


def locate_script(script: str, home: Path | None) -> tuple[Path, str, str]:
    """The tree of the program, the script in it, and the directory it is run from, relative to it.

    Raises:
        project_paths.PathProblem: there is no such script.
    """
    here = Path.cwd()
    if home is not None:
        return home.absolute(), script, "."
    if script.startswith("module:"):
        tree = config.project_root(here)
        place = here.joinpath(*script.removeprefix("module:").split("."))
        # As ``python -m`` does, which looks below the working directory first.
        found = place.with_suffix(".py").is_file() or (place / "__main__.py").is_file()
        return tree, script, (here if found else tree).relative_to(tree).as_posix()
    path = Path(script).absolute()
    if not path.is_file():
        raise project_paths.PathProblem(f"{script}: no such script")
    tree = config.project_root(path)
    workdir = here if here.is_relative_to(tree) else tree
    return tree, path.relative_to(tree).as_posix(), workdir.relative_to(tree).as_posix()


def check_out(revision: str, tree: Path, target: Path, side: str, share: Sequence[str]) -> Path:
    """The files that git has of ``tree`` at ``revision``, in ``target``.

    What is shared is data that git does not have: it comes from the working tree.
    """
    root = project_paths.git_root(tree)
    if root is None:
        raise project_paths.PathProblem(
            f"--{side} {revision}: is no directory, and {tree} is in no git repository"
        )
    inside = tree.relative_to(root).as_posix()
    try:
        entries = git.files(root, revision, inside)
    except git.GitError as error:
        raise project_paths.PathProblem(
            f"--{side} {revision}: is neither a directory nor a git revision with "
            f"{inside} in it ({error})"
        ) from None
    left_out = _put(entries, target)
    if left_out:
        console.note(
            f"note: links out of the tree at {revision} are left out: {', '.join(left_out)}"
        )
    for path in share:
        place = target / path
        if not place.exists() and (tree / path).exists():
            place.parent.mkdir(parents=True, exist_ok=True)
            place.symlink_to((tree / path).resolve())
    return target


def not_in_git(tree: Path, share: Sequence[str]) -> list[str]:
    """What git ignores in ``tree``, less what is ``share``d, hidden or a cache: a checkout of a
    revision is without it."""
    root = project_paths.git_root(tree)
    if root is None:
        return []
    asked = ("ls-files", "-z", "--others", "--ignored", "--exclude-standard", "--directory")
    try:
        said = git.ask(root, *asked, "--", tree.relative_to(root).as_posix())
    except git.GitError:
        return []
    names = [(root / os.fsdecode(name)).relative_to(tree) for name in said.split(b"\0") if name]
    return [
        name.as_posix()
        for name in sorted(names)
        if not any(part.startswith((".", "__pycache__")) for part in name.parts)
        and name.suffix != ".pyc"
        and not any(name.is_relative_to(shared) for shared in share)
    ]


def _put(entries: Sequence[git.Entry], target: Path) -> list[str]:
    """Write files of git into ``target``; the links that would lead out of it, which are not made.

    Raises:
        project_paths.PathProblem: a name leads out, as no name that git itself writes does.
    """
    target.mkdir(parents=True)
    links = [entry for entry in entries if entry.is_link]
    # Links come last, so that nothing is written through one.
    for entry in (*(entry for entry in entries if not entry.is_link), *links):
        place = target / entry.path
        if not {"", ".", "..", ".git"}.isdisjoint(entry.path.split("/")):
            raise project_paths.PathProblem(
                f"{shown_path(entry.path)}: is no name for a file in git"
            )
        try:
            place.parent.mkdir(parents=True, exist_ok=True)
            if entry.is_link:
                place.symlink_to(os.fsdecode(entry.contents))
            else:
                place.write_bytes(entry.contents)
                place.chmod(0o755 if entry.mode == "100755" else 0o644)
        except (OSError, ValueError) as error:
            raise project_paths.PathProblem(f"{shown_path(entry.path)}: {error}") from None
    real = os.path.realpath(target)
    leading_out = [
        link.path
        for link in links
        if not Path(os.path.realpath(target / link.path)).is_relative_to(real)
        or os.path.isabs(os.readlink(target / link.path))
    ]
    for path in leading_out:
        (target / path).unlink()
    return [shown_path(path) for path in leading_out]


def make_rewritten_copy(tree: Path, copy: Path, trust_rules: bool) -> str:
    """Make a copy of ``tree`` with its FSDP1 rewritten; what to tell if rules of its own were not
    loaded.

    Raises:
        InputError: there is nothing to rewrite, or the configuration is wrong.
        AlreadySaid: it could not be made, and the process that should have made it said why.
    """
    skipped = shutil.ignore_patterns(*walk.SKIPPED, "*.pyc")
    shutil.copytree(tree, copy, symlinks=True, ignore=skipped, ignore_dangling_symlinks=True)
    # Rules of the project's own run in a process apart, and have no part in the verdict.
    code = trust.run_command(tree, trust_rules, lambda: _rewrite_copy(tree, copy, trust_rules))
    if code:
        raise AlreadySaid
    word = trust.find_trust(tree, config.rule_paths(tree), asked=trust_rules)
    return word.note if word.missing else ""


def _rewrite_copy(tree: Path, copy: Path, trust_rules: bool) -> int:
    """Rewrite the FSDP1 in a copy of ``tree``.

    Raises:
        project_paths.PathProblem: there is nothing to rewrite.
    """
    run = session.run([copy], trust_rules=trust_rules, home=tree)
    for problem in run.result.problems:
        # Of the user's file, not of its copy. It need not be one that the program uses.
        place = f"{_original(problem.display, copy, tree)}:{problem.line or 1}"
        console.problem(f"{place}: {problem.message}")
    if not run.result.changes:
        raise project_paths.PathProblem(
            f"{shown_path(str(tree))}: nothing to rewrite, so there is nothing to compare; give "
            "--before HEAD where it was rewritten since the last commit, else --before or --after"
        )
    write.write(copy, run.result.changes, state=copy.with_name(f"{copy.name}.journal"))
    left = sum(d.outcome.value == "left" for d in run.result.decisions)
    review = sum(d.outcome.value == "review" for d in run.result.decisions)
    console.note(
        f"rewrote a scratch copy: {len(run.result.decisions)} sites, {review} for review, "
        f"{left} left" + (" (see fsdp-migrate check)" if left else "")
    )
    return GOOD


def _original(display: str, copy: Path, tree: Path) -> str:
    path = Path(display).absolute()
    return config.shown(tree / path.relative_to(copy) if path.is_relative_to(copy) else path)
