"""What the project says about itself: ``[tool.fsdp-migrate]`` and its torch requirement."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from packaging.requirements import InvalidRequirement, Requirement
from packaging.version import InvalidVersion, Version

from fsdp_migrate import gate

DEFAULT_TARGET = Version("2.7")
OLDEST = Version("2.4")
CODE = re.compile(r"FSDP\d{0,3}")


class ConfigError(Exception):
    """The configuration is wrong. The message names the file and the key."""


@dataclass(frozen=True)
class Config:
    root: Path
    target: Version = DEFAULT_TARGET
    target_from: str = "the default"
    select: tuple[str, ...] = ()
    ignore: tuple[str, ...] = ()
    exclude: tuple[str, ...] = ()
    rule_paths: tuple[Path, ...] = ()
    line_length: int = 100
    notes: tuple[str, ...] = field(default=())


def load(start: Path, *, target: str | None = None) -> Config:
    """Read the configuration that applies to ``start``; ``target`` is the command line's word.

    Raises:
        ConfigError: a file that cannot be parsed, an unknown key, a value of the wrong kind.
    """
    root = project_root(start)
    pyproject = root / "pyproject.toml"
    data = _toml(pyproject)
    table = data.get("tool", {}).get("fsdp-migrate", {})
    known = {"target-torch", "select", "ignore", "exclude", "rule-paths", "line-length", "verify"}
    unknown = sorted(set(table) - known)
    if unknown:
        raise ConfigError(f"{pyproject}: [tool.fsdp-migrate] has no key {unknown[0]!r}")
    chosen, origin, notes = _target(root, data, table.get("target-torch"), target)
    return Config(
        root=root,
        target=chosen,
        target_from=origin,
        select=_codes(table, "select", pyproject),
        ignore=_codes(table, "ignore", pyproject),
        exclude=_strings(table, "exclude", pyproject),
        rule_paths=tuple(root / p for p in _strings(table, "rule-paths", pyproject)),
        line_length=_line_length(table, data, pyproject),
        notes=notes,
    )


def project_root(start: Path) -> Path:
    """The nearest directory upwards with a ``pyproject.toml``, else the git root, else ``start``."""
    directory = start if start.is_dir() else start.parent
    repository = gate.git_root(directory)
    for candidate in (directory, *directory.parents):
        if (candidate / "pyproject.toml").is_file():
            return candidate
        if candidate == repository:
            break
    return repository or directory


def _toml(path: Path) -> dict[str, Any]:
    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return {}
    except (tomllib.TOMLDecodeError, UnicodeDecodeError, OSError) as error:
        raise ConfigError(f"{path}: {error}") from None


def _strings(table: dict[str, Any], key: str, path: Path) -> tuple[str, ...]:
    value = table.get(key, [])
    if not isinstance(value, list) or not all(isinstance(v, str) for v in value):
        raise ConfigError(f"{path}: [tool.fsdp-migrate] {key} must be a list of strings")
    return tuple(value)


def _codes(table: dict[str, Any], key: str, path: Path) -> tuple[str, ...]:
    found = _strings(table, key, path)
    for code in found:
        if not CODE.fullmatch(code):
            raise ConfigError(f"{path}: [tool.fsdp-migrate] {key}: {code!r} is no rule code")
    return found


def _line_length(table: dict[str, Any], data: dict[str, Any], path: Path) -> int:
    """Ours, else the formatter's, else 100."""
    tools = data.get("tool", {})
    for source in (table, tools.get("ruff", {}), tools.get("black", {})):
        value = source.get("line-length")
        if value is None:
            continue
        if not isinstance(value, int) or value < 40:
            raise ConfigError(f"{path}: line-length must be a number of at least 40")
        return value
    return 100


# -- torch ----------------------------------------------------------------------------------------


def _target(
    root: Path, data: dict[str, Any], configured: object, commanded: str | None
) -> tuple[Version, str, tuple[str, ...]]:
    """The oldest torch the emitted code must run on, and who says so.

    A pin, or an upper bound below the default, is what the project runs on: it decides. A lower
    bound below the default only says what FSDP1 needed: FSDP2 needs more, so it is noted.
    """
    for value, origin in ((commanded, "--target-torch"), (configured, "[tool.fsdp-migrate]")):
        if value is not None:
            return parse_target(str(value), origin), origin, ()
    notes: list[str] = []
    for requirement, where in _torch_requirements(root, data):
        for clause in requirement.specifier:
            version = Version(clause.version.removesuffix(".*"))
            short = Version(f"{version.major}.{version.minor}")
            if clause.operator in {"==", "~=", "==="}:
                return short, where, ()
            if clause.operator in {"<", "<="} and short <= DEFAULT_TARGET:
                older = Version(f"{version.major}.{max(version.minor - 1, 0)}")
                return (older if clause.operator == "<" else short), where, ()
            if clause.operator in {">=", ">"} and short > DEFAULT_TARGET:
                return short, where, ()
            if clause.operator in {">=", ">"} and short < DEFAULT_TARGET:
                notes.append(
                    f"{where} allows torch {clause}: the migrated code needs >= {DEFAULT_TARGET}"
                )
    return DEFAULT_TARGET, "the default", tuple(dict.fromkeys(notes))


def parse_target(text: str, origin: str) -> Version:
    """Raises:
    ConfigError: not a torch release that FSDP2 exists in.
    """
    try:
        version = Version(text)
    except InvalidVersion:
        raise ConfigError(f"{origin}: {text!r} is not a torch version") from None
    if version < OLDEST:
        raise ConfigError(f"{origin}: fully_shard exists from torch {OLDEST} on, not in {text}")
    return Version(f"{version.major}.{version.minor}")


def _torch_requirements(root: Path, data: dict[str, Any]) -> Iterator[tuple[Requirement, str]]:
    listed = list(data.get("project", {}).get("dependencies", []))
    for extra in data.get("project", {}).get("optional-dependencies", {}).values():
        listed += extra if isinstance(extra, list) else []
    for text in listed:
        requirement = _parsed(str(text))
        if requirement is not None:
            yield requirement, "pyproject.toml"
    for path in sorted(root.glob("requirements*.txt")):
        for line in path.read_text(encoding="utf-8", errors="replace").splitlines():
            requirement = _parsed(line.partition("#")[0].strip())
            if requirement is not None:
                yield requirement, path.name


def _parsed(text: str) -> Requirement | None:
    if not text.startswith("torch"):
        return None
    try:
        requirement = Requirement(text)
    except InvalidRequirement:
        return None
    return requirement if requirement.name == "torch" else None
