"""How a project's own formatters are set: the lengths of lines, the order of imports."""

from __future__ import annotations

import configparser
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fsdp_migrate import toml
from fsdp_migrate.discovery import project_paths

FORMATTERS_LINE = 88  # of black and ruff, where nothing is set
SHORTEST_LINE = 40
RUFF_FILES = (".ruff.toml", "ruff.toml")
LINE_KEYS = ("line-length", "line_length", "max-line-length", "max_line_length")


@dataclass(frozen=True)
class ImportStyle:
    """What new imports must fit that isort's defaults do not say."""

    single_line: bool = False  # each name in a statement of its own
    first_party: frozenset[str] = frozenset()  # packages that come last


def line_length(root: Path, data: Mapping[str, Any]) -> int | None:
    """How long lines may be: what ruff, black, isort, ``.editorconfig`` or flake8 is told, in this
    order; None where there is none of them. ``data`` is ``pyproject.toml``."""
    ruff = _ruff(root, data)
    black, isort = _table(data, "tool", "black"), _isort(root, data)
    tables = [each for each in (ruff, black, isort) if each is not None]
    for table in (*tables, _editorconfig(root), _flake8(root)):
        for key in LINE_KEYS:
            value = table.get(key)
            if isinstance(value, str) and value.isdecimal() and len(value) < 5:
                value = int(value)
            if type(value) is int and value >= SHORTEST_LINE:  # of the rest, they will say
                return value
    return FORMATTERS_LINE if ruff is not None or black is not None else None


def import_style(root: Path, data: Mapping[str, Any]) -> ImportStyle:
    ruff = _ruff(root, data) or {}
    tables = [_isort(root, data) or {}]
    tables += [_table(ruff, "lint", "isort") or {}, _table(ruff, "isort") or {}]
    single = any(
        _is_true(table.get("force_single_line", table.get("force-single-line")))
        or table.get("profile") == "google"
        for table in tables
    )
    first: set[str] = set()
    for table in tables:
        named = table.get("known_first_party", table.get("known-first-party", ()))
        names = re.split(r"[\s,]+", named) if isinstance(named, str) else named
        if isinstance(names, list):
            first |= {name for name in names if isinstance(name, str) and name.isidentifier()}
    return ImportStyle(single, frozenset(first))


def formatter(root: Path, data: Mapping[str, Any]) -> str:
    """``ruff`` or ``black``, whichever the project is set up for; an empty text for neither."""
    if _table(data, "tool", "ruff", "format") is not None:
        return "ruff"
    if _table(data, "tool", "black") is not None:
        return "black"
    hooks = _read(root / ".pre-commit-config.yaml")
    for name, hook in (("ruff", r"ruff-format"), ("black", r"black(?:-jupyter)?")):
        if re.search(rf"^\s*-?\s*id:\s*['\"]?{hook}['\"]?\s*(?:#.*)?$", hooks, re.MULTILINE):
            return name
    return "ruff" if _ruff(root, data) is not None else ""


def _ruff(root: Path, data: Mapping[str, Any]) -> Mapping[str, Any] | None:
    """ruff's settings: of its own file, which then counts alone, else those in pyproject.toml."""
    for name in RUFF_FILES:
        if (root / name).is_file():
            try:
                return toml.loads(_read(root / name).encode())
            except ValueError:
                return {}
    return _table(data, "tool", "ruff")


def _isort(root: Path, data: Mapping[str, Any]) -> Mapping[str, Any] | None:
    found = _section(root / ".isort.cfg", "settings") or _table(data, "tool", "isort")
    return found or _section(root / "setup.cfg", "isort")


def _flake8(root: Path) -> Mapping[str, Any]:
    for name in (".flake8", "setup.cfg", "tox.ini"):
        if found := _section(root / name, "flake8"):
            return found
    return {}


def _editorconfig(root: Path) -> Mapping[str, Any]:
    """What ``.editorconfig`` says of Python files."""
    found: dict[str, str] = {}
    applies = False
    for line in _read(root / ".editorconfig").splitlines():
        if head := re.fullmatch(r"\[(.+)\]", line.strip()):
            names = re.findall(r"\w+", head[1])
            applies = head[1] == "*" or ("py" in names and "*" in head[1] and "/" not in head[1])
        elif applies and (
            pair := re.fullmatch(r"([\w-]+)\s*[=:]\s*(\S+)(?:\s+[;#].*)?", line.strip())
        ):
            found[pair[1].lower()] = pair[2]
    return found


def _section(path: Path, name: str) -> Mapping[str, Any]:
    parser = configparser.RawConfigParser(strict=False)
    try:
        parser.read_string(_read(path))
        return dict(parser.items(name)) if parser.has_section(name) else {}
    except configparser.Error:
        return {}


def _table(data: object, *keys: str) -> Mapping[str, Any] | None:
    for key in keys:
        data = data.get(key) if isinstance(data, Mapping) else None
    return data if isinstance(data, Mapping) else None


def _read(path: Path) -> str:
    """The text of a settings file, empty where there is none that can be read."""
    if not path.is_file():
        return ""
    try:
        return project_paths.read_regular_file(path).decode("utf-8", errors="replace")
    except OSError:
        return ""


def _is_true(value: object) -> bool:
    return value is True or (isinstance(value, str) and value.lower() in {"true", "1", "yes", "on"})
