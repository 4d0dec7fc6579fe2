"""Which files are looked at, and how closely.

Gates, each dearer than the one before: the walk (``.gitignore``, virtual environments, links), a
search of the bytes for FSDP's words, and, in a project that reaches FSDP1 at all, a search of the
other files for what code does to a model. Most files of most trees end at the second; only what is
left is ever parsed.
"""

from __future__ import annotations

import errno
import os
import re
import stat
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

from fsdp_migrate.errors import ConfigError, InputError
from fsdp_migrate.syntax import spelled

if TYPE_CHECKING:  # imported where there is something to ignore
    from pathspec import GitIgnoreSpec

NOTEBOOK = ".ipynb"
SUFFIXES = (".py", ".pyi", NOTEBOOK)
SKIPPED = frozenset(
    {
        ".bzr",
        ".direnv",
        ".eggs",
        ".fsdp-migrate",
        ".git",
        ".hg",
        ".ipynb_checkpoints",
        ".mypy_cache",
        ".nox",
        ".pytest_cache",
        ".pytype",
        ".ruff_cache",
        ".svn",
        ".tox",
        ".venv",
        "__pycache__",
        "__pypackages__",
        "node_modules",
        "site-packages",
        "venv",
    }
)
PROGRAMS = frozenset({"bin", "lib", "Lib", "Scripts"})  # what an environment has, one at least
# Every spelling by which FSDP1 is reached: the package, the class and its usual alias.
WORDS = (b"fsdp", b"FSDP", b"FullySharded")
COMMENT = b"fsdp-migrate"  # a comment of ours
MOST_STARS = 3  # in one part of a pattern: the time to match grows with their power
MANY = 5_000  # files that are worth several processes


class PathProblem(InputError):
    """A given path cannot be used. The message names it."""


@dataclass
class Found:
    """The files of a run: ``candidates`` mention FSDP, ``others`` may meet an FSDP model."""

    root: Path
    trees: tuple[Path, ...] = ()  # real directories: nothing outside of them is written
    candidates: dict[Path, bytes] = field(default_factory=dict)
    others: dict[Path, bytes] = field(default_factory=dict)
    library: list[str] = field(default_factory=list)  # paths of everything else, unparsed
    unread: list[tuple[Path, str]] = field(default_factory=list)
    commented: dict[Path, bytes] = field(default_factory=dict)  # with comments of ours, perhaps
    seen: int = 0

    @cached_property
    def _here(self) -> Path:
        return Path.cwd()

    def display(self, path: Path) -> str:
        """How messages name a file: relative to the working directory when it lies there."""
        try:
            return path.relative_to(self._here).as_posix()
        except ValueError:
            return path.as_posix()


def mentioning(
    paths: Sequence[Path], exclude: Sequence[str] = (), base: Path | None = None, *, jobs: int = 1
) -> tuple[Found, list[str]]:
    """Read every Python file under ``paths`` that mentions FSDP; the other files' paths.

    Files that are named themselves are always taken. In directories, what git ignores or
    ``exclude`` matches (patterns relative to ``base``) is left out; links to files in the same
    directory count as those files; links to directories are not followed. A path that a link leads
    out of its project is not read.

    Raises:
        PathProblem: a path does not exist, or nothing under the paths is Python.
    """
    absolute, refused = given(paths)
    parents = [p if p.is_dir() else p.parent for p in absolute]
    root = Path(os.path.commonpath(parents)) if parents else Path.cwd()
    found = Found(root, tuple(dict.fromkeys(map(tree, absolute))), unread=refused)
    walk = _Walk(_excluding(exclude), str(base or found.root), found)
    for path in absolute:
        walk.add(path)
    files = walk.files()
    found.seen = len(files)
    if absolute and not files and not found.unread:
        listed = ", ".join(str(path) for path in paths)
        raise PathProblem(f"{listed}: no Python files here that git does not ignore")
    rest = _read(files, found, jobs)
    return found, rest


def given(paths: Sequence[Path]) -> tuple[list[Path], list[tuple[Path, str]]]:
    """The paths made absolute, and apart from them those that a link leads out of their project,
    to where no other path is either.

    Raises:
        PathProblem: a path cannot be used.
    """
    ends = {path: leads_out(path) for path in map(checked, paths)}
    trees = [tree(path) for path, end in ends.items() if end is None and path.is_dir()]
    taken, refused = [], []
    for path, end in ends.items():
        if end is None or any(end.is_relative_to(top) for top in trees):
            taken.append(path)
        else:
            refused.append((path, f"a link leads out of its project, to {end}; name that instead"))
    return taken, refused


def checked(path: Path) -> Path:
    """The path made absolute; links keep their names, but for those that ``..`` steps out of.

    Raises:
        PathProblem: it cannot be used.
    """
    absolute = Path.cwd() / path
    if ".." in absolute.parts:
        absolute = Path(os.path.realpath(absolute.parent)) / absolute.name
        absolute = absolute.resolve() if absolute.name == ".." else absolute
    if not absolute.exists():
        reason = "is a link to nothing" if absolute.is_symlink() else "does not exist"
        raise PathProblem(f"{path}: {reason}")
    if not (absolute.is_file() or absolute.is_dir()):
        raise PathProblem(f"{path}: is neither a file nor a directory")
    return absolute


def leads_out(path: Path) -> Path | None:
    """Where an absolute path leads to, if a link on its way leaves the project that it lies in.

    Without a project it is a linked file's own directory that counts, and the working directory for
    what is in it. Links to directories elsewhere are the user's own.
    """
    here = Path.cwd()
    for link in (*reversed(path.parents), path):
        if not link.is_symlink():
            continue
        home = project(link.parent)
        if home is None and link.is_file():
            home = link.parent
        if home is None and link.is_relative_to(here):
            home = here
        if home is not None and not _real(link).is_relative_to(_real(home)):
            return _real(path)
    return None


def _real(path: Path) -> Path:
    return Path(os.path.realpath(path))  # Path.resolve() fails for a link to itself


def check_output(path: Path) -> None:
    """Refuse to write a report through a link that stands in a project and leads out of it, or
    into what is no file, but for the devices of the system.

    Raises:
        OSError: it does.
    """
    end = leads_out(path.absolute())
    if Path("/dev") in path.parents:
        return  # the user's own streams
    if end is not None:
        raise OSError(errno.ELOOP, f"a link leads out of its project, to {end}", str(path))
    if path.exists() and not path.is_file():  # a pipe would be waited for
        raise OSError(errno.EINVAL, "is there and is not a regular file", str(path))


def tree(path: Path) -> Path:
    """What may be written for a path: the directory; of a file its project, or, without one, the
    directory that its packages are in."""
    real = _real(path)
    if path.is_dir():
        return real
    home = project(path.parent)
    if home is None:
        outermost = packages(path.parent)
        home = path.parent if outermost is None else outermost.parent
    return _real(home) if real.is_relative_to(_real(home)) else real.parent


def packages(directory: Path) -> Path | None:
    """The outermost of the packages that a directory is in, itself included."""
    outermost = None
    while (directory / "__init__.py").is_file() and directory != directory.parent:
        outermost, directory = directory, directory.parent
    return outermost


def read(path: Path, within: Sequence[Path] = ()) -> bytes:
    """The contents of a regular file that really lies in one of the directories; without any, in
    the repository around it.

    Raises:
        OSError: it does not, or cannot be read.
    """
    real = _real(path)
    allowed = within or (git_root(path.parent) or path.parent,)
    if not any(real.is_relative_to(_real(directory)) for directory in allowed):
        raise OSError(errno.ELOOP, f"a link leads out of the project, to {real}", str(path))
    if not stat.S_ISREG(real.stat().st_mode):
        raise OSError(errno.EINVAL, "is not a regular file", str(path))
    return real.read_bytes()


# -- the bytes ------------------------------------------------------------------------------------


def _read(files: Sequence[str], found: Found, jobs: int) -> list[str]:
    """Fill ``found.candidates``; return the files that do not mention FSDP."""
    rest = []
    for file, answer in zip(files, _each(_look, files, jobs), strict=True):
        if answer is None:
            rest.append(file)
        elif isinstance(answer, bytes):
            found.candidates[Path(file)] = answer
            if COMMENT in answer:
                found.commented[Path(file)] = answer
        else:
            found.unread.append((Path(file), answer))
    return rest


def _look(file: str) -> bytes | str | None:
    """The contents of a file that mentions FSDP, None of another, or why it cannot be read."""
    one, two, three = WORDS
    try:
        with open(file, "rb", buffering=0) as stream:
            data = stream.read()
    except OSError as error:
        return error.strerror or str(error)
    if one in data or two in data or three in data:
        return data
    text = spelled.unescaped(data) if file.endswith(NOTEBOOK) and b"\\u" in data else data
    try:
        text = spelled.names(text)
    except ValueError as error:
        return str(error)
    return data if one in text or two in text or three in text else None


def _each(
    function: Callable[[str], bytes | str | None], files: Sequence[str], jobs: int
) -> Iterable[bytes | str | None]:
    if jobs < 2 or len(files) < MANY:
        return map(function, files)
    from fsdp_migrate import workers

    answers = workers.each(function, files, jobs=jobs, least=MANY)
    return ("a process ended" if isinstance(a, workers.Crash) else a for a in answers)


# -- the walk -------------------------------------------------------------------------------------


Specs = tuple[tuple[str, "GitIgnoreSpec"], ...]


class _Walk:
    """Python files of directories and of explicit paths, each once, in a fixed order."""

    def __init__(self, excluded: GitIgnoreSpec | None, base: str, found: Found) -> None:
        self._excluded = excluded
        self._base = base
        self._found = found
        self._files: dict[str, str] = {}  # real path -> the path it is shown by
        self._links: dict[str, str] = {}

    def add(self, path: Path) -> None:
        shown = str(path)
        real = os.path.realpath(shown)
        if path.is_dir():
            for file in self._python(shown, real):
                self._files.setdefault(real + file[len(shown) :], file)
        elif _is_python(path):
            self._files.setdefault(real, shown)
        else:
            self._found.unread.append((path, "is not a Python file"))

    def files(self) -> list[str]:
        for real, link in self._links.items():
            self._files.setdefault(real, link)
        return list(self._files.values())

    def _python(self, top: str, real_top: str) -> Iterator[str]:
        stack = [(top, _specs_above(Path(top)))]
        while stack:
            directory, specs = stack.pop()
            try:
                entries = sorted(os.scandir(directory), key=lambda e: e.name)
            except OSError as error:
                self._found.unread.append((Path(directory), error.strerror or str(error)))
                continue
            names = {entry.name for entry in entries}
            if directory != top and _is_environment(directory, names):
                continue
            if ".gitignore" in names:
                specs = _with(specs, directory, f"{directory}/.gitignore")
            below = []
            for entry in entries:
                if entry.is_dir(follow_symlinks=False):
                    if entry.name not in SKIPPED and not self._left_out(entry.path, specs, "/"):
                        below.append((entry.path, specs))
                elif not entry.name.endswith(SUFFIXES) or self._left_out(entry.path, specs):
                    continue
                elif entry.is_file(follow_symlinks=False):
                    yield entry.path
                elif entry.is_symlink():
                    self._link(entry.path, real_top)
            stack += reversed(below)

    def _link(self, path: str, real_top: str) -> None:
        """A link in a tree stands for a file in the same tree, or for nothing of ours."""
        try:
            real = os.path.realpath(path, strict=True)
        except OSError:  # it dangles, or leads to itself
            return
        if real.startswith(real_top.rstrip("/") + "/") and os.path.isfile(real):
            self._links.setdefault(real, path)

    def _left_out(self, path: str, specs: Specs, slash: str = "") -> bool:
        """Git's rule: the last pattern that says something decides, inner files after outer."""
        if self._excluded is not None:
            relative = os.path.relpath(path, self._base)
            if not relative.startswith("..") and self._excluded.match_file(relative + slash):
                return True
        verdict = False
        for directory, spec in specs:
            result = spec.check_file(path[len(directory) + 1 :] + slash).include
            if result is not None:
                verdict = result
        return verdict


def _is_environment(directory: str, names: set[str]) -> bool:
    """Whether a directory is a virtual environment, whatever its name."""
    if PROGRAMS.isdisjoint(names):
        return False
    try:
        if "conda-meta" in names and os.listdir(f"{directory}/conda-meta"):
            return True
        with open(f"{directory}/pyvenv.cfg", "rb") as file:
            return re.search(rb"(?m)^home[ \t]*=", file.read(10_000)) is not None
    except OSError:
        return False


def _is_python(path: Path) -> bool:
    """By its suffix, or, for scripts without one, by the interpreter they ask for."""
    if path.suffix:
        return path.suffix in SUFFIXES
    try:
        with path.open("rb") as file:
            first = file.readline(200)
    except OSError:
        return True  # reading it will say why it cannot be read
    return first.startswith(b"#!") and b"python" in first


def _with(specs: Specs, directory: str, file: str) -> Specs:
    """``specs`` and the patterns of an ignore file, which are relative to ``directory``.

    As for git, an ignore file is no link.
    """
    try:
        if not stat.S_ISREG(os.lstat(file).st_mode):
            return specs
        with open(file, encoding="utf-8", errors="replace") as stream:
            spec = _spec(filter(_is_pattern, stream.read().split("\n")))
    except OSError:
        return specs
    return specs if spec is None else (*specs, (directory, spec))


def _excluding(patterns: Sequence[str]) -> GitIgnoreSpec | None:
    """What the user leaves out.

    Raises:
        ConfigError: a pattern is none.
    """
    wrong = [str(n) for n, pattern in enumerate(patterns, 1) if not _is_pattern(pattern)]
    if wrong:  # they are not quoted: the file may be no configuration of the user's
        raise ConfigError(
            f"exclude: pattern {', '.join(wrong)} of the list cannot be read, or has more than "
            f"{MOST_STARS} '*' in one part of its path"
        )
    return _spec(patterns)


def _is_pattern(line: str) -> bool:
    """Whether a line of an ignore file can be matched, and in a time that does not explode."""
    from pathspec import GitIgnoreSpec

    parts = line.split("/")
    if max(parts.count("**"), *(part.count("*") for part in parts)) > MOST_STARS:
        return False
    try:
        GitIgnoreSpec.from_lines([line])
    except (ValueError, re.error, OverflowError, RecursionError):
        return False
    return True


def _spec(given: Iterable[str]) -> GitIgnoreSpec | None:
    """The patterns of an ignore file; None when there are none."""
    lines = list(given)
    if all(not line.strip() or line.startswith("#") for line in lines):
        return None
    from pathspec import GitIgnoreSpec

    return GitIgnoreSpec.from_lines(lines)


def _specs_above(top: Path) -> Specs:
    """What the repository around ``top`` ignores; nothing when it ignores ``top`` itself."""
    repository = git_root(top)
    if repository is None:
        return ()
    specs: Specs = ()
    # Git allows this one to be a link, and follows it anywhere.
    exclude = _real(repository / ".git" / "info" / "exclude")
    if exclude.is_relative_to(_real(repository)):
        specs = _with(specs, str(repository), str(exclude))
    for directory in reversed(top.parents):
        if directory.is_relative_to(repository):
            specs = _with(specs, str(directory), f"{directory}/.gitignore")
    walk = _Walk(None, "", Found(top))
    within = [p for p in (top, *top.parents) if p != repository and p.is_relative_to(repository)]
    ignored = any(walk._left_out(str(p), specs, "/") for p in within)
    return () if ignored else specs


def project(directory: Path) -> Path | None:
    """The nearest directory upwards with ``pyproject.toml``, else the top of the git work tree."""
    repository = git_root(directory)
    for candidate in (directory, *directory.parents):
        if (candidate / "pyproject.toml").is_file():
            return candidate
        if candidate == repository:
            break
    return repository


def git_root(path: Path) -> Path | None:
    """The top of the git work tree that ``path`` lies in."""
    for directory in (path, *path.parents):
        if (directory / ".git").exists():
            return directory
    return None
