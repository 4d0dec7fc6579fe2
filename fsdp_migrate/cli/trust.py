"""Whether the rules that a project names may run: they are code, and run only by the user's word.

The word is ``--trust-rules`` on the command line, or the project's root among ``trust-rules`` in
the user's own configuration, which no repository can be. What leads out of the project is refused
whoever says so.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from fsdp_migrate import shown
from fsdp_migrate.errors import ConfigError, InputError

OPTION = "--trust-rules"
KEY = "trust-rules"
FILE = "FSDP_MIGRATE_CONFIG"


@dataclass(frozen=True)
class Trust:
    """What is said about the rules of one project. ``by`` says who trusts them, if anybody does."""

    root: Path
    directories: tuple[Path, ...] = ()
    by: str = ""

    @property
    def loaded(self) -> tuple[Path, ...]:
        """The directories whose rules run."""
        return self.directories if self.by else ()

    @property
    def missing(self) -> bool:
        """Whether rules are left out that the project wants."""
        return bool(self.directories) and not self.by

    @property
    def note(self) -> str:
        """What to tell; an empty text where there are no such rules."""
        if not self.directories:
            return ""
        names = ", ".join(shown.path(os.path.relpath(d, self.root)) for d in self.directories)
        if self.by:
            return f"the project's own rules in {names} are loaded and run: {self.by}"
        return (
            f"the project's own rules in {names} were NOT loaded, for they are code that would "
            f"run; if you trust them, give {OPTION}, or write "
            f'{KEY} = ["{shown.path(str(self.root))}"] into {shown.path(str(users_file()))}'
        )


def find_trust(root: Path, directories: Sequence[Path], *, asked: bool) -> Trust:
    """What the user says about the rules in ``directories`` of the project at ``root``.

    Raises:
        ConfigError: the user's configuration is wrong, or a directory is not there.
    """
    real = root.resolve()
    for directory in directories:
        if not directory.is_dir():
            raise ConfigError(f"{shown.path(str(directory))}: no such directory of rules")
    if not directories:
        return Trust(real)
    by = f"{OPTION} was given" if asked else _of_user(real)
    return Trust(real, tuple(directories), by)


def run_command(start: Path, asked: bool, work: Callable[[], int]) -> int:
    """The exit code of ``work``, a command on the project around ``start``.

    Where it runs rules of the project's own, it does so in a process that they cannot end without
    being noticed.
    """
    from fsdp_migrate.cli import config, process

    try:
        root = config.project_root(start)
        trusted = find_trust(root, config.rule_paths(root), asked=asked).loaded
    except InputError:
        return work()  # says what is wrong
    return process.run_in_child(work) if trusted else work()


def users_file() -> Path:
    """The user's own configuration."""
    named = os.environ.get(FILE)
    if named:
        return Path(named)
    # Loaded here: few projects have rules of their own.
    from platformdirs import user_config_path

    return user_config_path("fsdp-migrate") / "config.toml"


def _of_user(root: Path) -> str:
    """Who trusts the rules of the project at ``root``, by the user's configuration."""
    from fsdp_migrate import toml

    path = users_file()
    told = shown.path(str(path))
    if not path.is_file():
        return ""
    if any(p.is_relative_to(root) for p in (path.absolute(), path.resolve())):
        raise ConfigError(f"{told}: lies in the project, which cannot trust itself")
    try:
        data = toml.loads(path.read_bytes())
    except (OSError, ValueError) as error:
        raise ConfigError(f"{told}: {error}") from None
    unknown = sorted(set(data) - {KEY})
    if unknown:
        raise ConfigError(f"{told}: has no key {unknown[0]!r}; it has {KEY}")
    listed = data.get(KEY, [])
    if not isinstance(listed, list) or not all(isinstance(each, str) for each in listed):
        raise ConfigError(f"{told}: {KEY} must be a list of strings")
    for each in listed:
        if not os.path.isabs(each):
            raise ConfigError(f"{told}: {KEY}: {each!r} is not an absolute path")
        if os.path.realpath(each) == str(root):
            return f"{KEY} in {told} names this project"
    return ""
