"""What the project says about itself: ``[tool.fsdp-migrate]`` and its torch requirement."""

from __future__ import annotations

import os
import re
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from packaging.version import Version

from fsdp_migrate.cli import packaging, style
from fsdp_migrate.cli.style import SHORTEST_LINE, ImportStyle
from fsdp_migrate.discovery import project_paths, torch_requirements
from fsdp_migrate.errors import ConfigError
from fsdp_migrate.planning import pages
from fsdp_migrate.planning.target import DEFAULT_TARGET, FIRST, OLDEST
from fsdp_migrate.shown import path as shown_path

if TYPE_CHECKING:  # imported where torch is required: it takes longer to load than all the rest
    from packaging.requirements import Requirement
    from packaging.specifiers import Specifier

DEFAULT_LINE = 100
LONGEST_SHOWN = 80  # characters of a value that a message repeats
TABLE = "[tool.fsdp-migrate]"
KEYS = frozenset(
    {
        "target-torch",
        "select",
        "ignore",
        "leave",
        "exclude",
        "rule-paths",
        "line-length",
        "partial",
        "configs",
        "verify",
    }
)


@dataclass(frozen=True)
class Config:
    root: Path
    target: Version = DEFAULT_TARGET
    target_from: str = "the default"
    select: tuple[str, ...] = ()
    ignore: tuple[str, ...] = ()
    leave: tuple[str, ...] = ()
    exclude: tuple[str, ...] = ()
    rule_paths: tuple[Path, ...] = ()
    line_length: int = DEFAULT_LINE
    imports: ImportStyle = field(default=ImportStyle())
    formatter: str = ""  # ruff or black, if the project is set up for one
    partial: bool = True  # guards where left sites would hold a model back
    configs: bool = True  # settings of frameworks count too
    notes: tuple[str, ...] = field(default=())
    low_bounds: tuple[str, ...] = field(default=())  # likewise, of requirements of torch

    def is_published(self) -> bool:
        """Whether others may install the project, and use its functions."""
        return packaging.is_published(self.root, _toml(self.root / "pyproject.toml"))


def load(start: Path, *, target: str | None = None) -> Config:
    """Read the configuration that applies to ``start``; ``target`` is the command line's word.

    Raises:
        ConfigError: a file that cannot be parsed, an unknown key, a value of the wrong kind.
    """
    root = project_root(start)
    pyproject = root / "pyproject.toml"
    data = _toml(pyproject)
    table = _table(data, pyproject)
    unknown = sorted(set(table) - KEYS)
    if unknown:
        import difflib

        near = difflib.get_close_matches(unknown[0], KEYS, n=1)
        hint = f"did you mean {near[0]!r}?" if near else f"it has {', '.join(sorted(KEYS))}"
        raise ConfigError(f"{shown(pyproject)}: {TABLE} has no key {unknown[0]!r}; {hint}")
    chosen, origin, notes, low = _target(root, table.get("target-torch"), target)
    return Config(
        root=root,
        target=chosen,
        target_from=origin,
        select=_codes(table, "select", pyproject),
        ignore=_codes(table, "ignore", pyproject),
        leave=_codes(table, "leave", pyproject),
        exclude=_strings(table, "exclude", pyproject),
        rule_paths=rule_paths(root),
        line_length=_line_length(table, data, pyproject),
        imports=style.import_style(root, data),
        formatter=style.formatter(root, data),
        partial=_switch(table, "partial", pyproject, default=True),
        configs=_switch(table, "configs", pyproject, default=True),
        notes=notes,
        low_bounds=low,
    )


def rule_paths(root: Path) -> tuple[Path, ...]:
    """The directories of rules that the project at ``root`` names; whether they run is another
    question (``trust.py``).

    Raises:
        ConfigError: the file cannot be parsed, or a rule is not inside the project.
    """
    path = root / "pyproject.toml"
    names = _strings(_table(_toml(path), path), "rule-paths", path)
    return pages.own_directories(root, names, f"{shown(path)}: {TABLE}") if names else ()


def verify_table(root: Path) -> dict[str, Any]:
    """What the project says about its verification; empty when it says nothing.

    Raises:
        ConfigError: the file cannot be parsed, or it is no table.
    """
    path = root / "pyproject.toml"
    table = _table(_toml(path), path).get("verify", {})
    if not isinstance(table, dict):
        raise ConfigError(f"{shown(path)}: {TABLE} verify must be a table")
    return table


def project_root(start: Path) -> Path:
    """The nearest directory upwards with ``pyproject.toml``, else the git root, else ``start``."""
    directory = start if start.is_dir() else start.parent
    return project_paths.project_root(directory) or directory


def _toml(path: Path) -> dict[str, Any]:
    if not path.is_file():
        return {}
    import tomllib

    from fsdp_migrate import toml

    try:
        return toml.loads(project_paths.read_regular_file(path))
    except tomllib.TOMLDecodeError as error:
        message, line = str(error), ""
        found = re.fullmatch(r"(.*) \(at line (\d+), column \d+\)", message, re.DOTALL)
        if found is not None:
            message, line = found.group(1), f":{found.group(2)}"
        raise ConfigError(f"{shown(path)}{line}: is not TOML: {message}") from None
    except UnicodeDecodeError as error:
        raise ConfigError(f"{shown(path)}: is not TOML: it must be in UTF-8 ({error})") from None
    except ValueError as error:
        raise ConfigError(f"{shown(path)}: is no TOML that is read: {error}") from None
    except OSError as error:
        raise ConfigError(f"{shown(path)}: cannot be read: {error.strerror or error}") from None


def _table(data: dict[str, Any], path: Path) -> dict[str, Any]:
    tools = data.get("tool", {})
    table = tools.get("fsdp-migrate", {}) if isinstance(tools, dict) else {}
    if not isinstance(table, dict):
        raise ConfigError(f"{shown(path)}: {TABLE} must be a table")
    return table


def shown(path: Path) -> str:
    """How messages name a file: relative to the working directory when it lies there."""
    try:
        return shown_path(path.relative_to(Path.cwd()).as_posix())
    except ValueError:
        return shown_path(path.as_posix())


def _strings(table: dict[str, Any], key: str, path: Path) -> tuple[str, ...]:
    value = table.get(key, [])
    if not isinstance(value, list) or not all(isinstance(v, str) for v in value):
        raise ConfigError(f"{shown(path)}: {TABLE} {key} must be a list of strings")
    return tuple(value)


def _codes(table: dict[str, Any], key: str, path: Path) -> tuple[str, ...]:
    return tuple(code.strip().upper() for code in _strings(table, key, path))


def _switch(table: dict[str, Any], key: str, path: Path, *, default: bool) -> bool:
    value = table.get(key, default)
    if not isinstance(value, bool):
        raise ConfigError(f"{shown(path)}: {TABLE} {key} must be true or false")
    return value


def _line_length(table: dict[str, Any], data: dict[str, Any], path: Path) -> int:
    """Ours, else that of the project's formatters, else 100."""
    value = table.get("line-length")
    if value is not None:
        if type(value) is not int or value < SHORTEST_LINE:
            raise ConfigError(
                f"{shown(path)}: {TABLE} line-length must be a number of at least {SHORTEST_LINE}"
            )
        return value
    return style.line_length(path.parent, data) or DEFAULT_LINE


# -- torch ----------------------------------------------------------------------------------------


def _target(
    root: Path, configured: object, commanded: str | None
) -> tuple[Version, str, tuple[str, ...], tuple[str, ...]]:
    """The oldest torch the emitted code must run on, who says so, and what to tell about it; last
    what to tell of lower bounds.

    A pin, or an upper bound below the default, is what the project runs on: it decides. A lower
    bound below the default only says what FSDP1 needed: FSDP2 needs more, so it is noted.
    """
    for value, origin in ((commanded, "--target-torch"), (configured, f"{TABLE} target-torch")):
        if value is not None:
            return parse_target(str(value), origin), origin, (), ()
    requirements, unread = _torch_requirements(root)
    low: list[str] = []
    for requirement, where in requirements:
        for clause in requirement.specifier:
            chosen = _bound(clause)
            if chosen is not None:
                told = f"{where} asks for torch{clause}: the new code is made for torch {chosen}"
                if chosen < OLDEST:
                    told = (
                        f"{where} asks for torch{clause} and fully_shard needs {OLDEST}: nothing "
                        "is rewritten. Raise it, or look at the migration with --target-torch "
                        f"{DEFAULT_TARGET}"
                    )
                return chosen, where, (told, *unread), ()
            if clause.operator in {">=", ">", "~="} and _release(clause) < DEFAULT_TARGET:
                low.append(
                    f"{where} allows torch{clause}: the migrated code needs >={DEFAULT_TARGET}"
                )
    return DEFAULT_TARGET, "the default", tuple(dict.fromkeys(unread)), tuple(dict.fromkeys(low))


def _bound(clause: Specifier) -> Version | None:
    """The torch release that one clause of a requirement decides on."""
    release = _release(clause)
    if clause.operator == "==" or (clause.operator == "~=" and clause.version.count(".") > 1):
        return release
    if clause.operator in {">=", ">", "~="} and release > DEFAULT_TARGET:
        return release
    if clause.operator == "<=" and release <= DEFAULT_TARGET:
        return release
    if clause.operator == "<" and release <= DEFAULT_TARGET:
        return Version(f"{release.major}.{max(release.minor - 1, 0)}")
    return None


def _release(clause: Specifier) -> Version:
    """``2.6`` of ``==2.6.*`` and of ``>=2.6.1``; what is no version is as old as can be."""
    try:
        version = Version(clause.version.removesuffix(".*"))
    except ValueError:  # "===" compares strings, and no number may have thousands of digits
        return Version("0")
    return Version(f"{version.major}.{version.minor}")


def parse_target(text: str, origin: str) -> Version:
    """A release to make code for; before 2.6 there is none to make, and every site says so.

    Raises:
        ConfigError: not a torch release that FSDP2 exists in.
    """
    try:
        version = Version(text)
    except ValueError:
        raise ConfigError(f"{origin}: {text[:LONGEST_SHOWN]!r} is not a torch version") from None
    if version < FIRST:
        raise ConfigError(f"{origin}: torch {text} has no FSDP2; the new code needs {OLDEST}")
    return Version(f"{version.major}.{version.minor}")


def _torch_requirements(root: Path) -> tuple[list[tuple[Requirement, str]], list[str]]:
    """What the project requires of torch, each with its file; what could not be read, as notes."""
    found: list[tuple[Requirement, str]] = []
    notes = []
    for path, _, stated in torch_requirements.read_all(root, (), set()):
        name = Path(os.path.relpath(path, root)).as_posix()
        if isinstance(stated, OSError):
            notes.append(f"{name} is not read: {stated.strerror or stated}")
            continue
        decisive = [each.requirement() for each in stated if not each.for_tests]
        found += [(requirement, name) for requirement in decisive if requirement is not None]
    return found, notes
