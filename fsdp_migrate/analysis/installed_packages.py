"""Which packages a project installs, and from which directory, as its metadata says."""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any


def installed_from(path: Path) -> Path | None:
    """The directory that names start from in the package of a file, once it is installed."""
    for directory in path.parents:
        if (directory / "pyproject.toml").is_file():
            for package in _packages(directory):
                if path.is_relative_to(package):
                    return package.parent
            return None
        if (directory / ".git").exists():
            return None
    return None


@cache
def _packages(directory: Path) -> list[Path]:
    """The packages that a project installs, as far as its ``pyproject.toml`` says it."""
    from fsdp_migrate import toml

    try:
        data = toml.loads((directory / "pyproject.toml").read_bytes())
    except (OSError, ValueError):
        return []
    match data:
        case {"tool": {"hatch": {"build": {"targets": {"wheel": {"packages": [*listed]}}}}}}:
            return [directory / each for each in listed if isinstance(each, str)]
        case {"tool": {"poetry": {"packages": [*listed]}}}:
            return [
                directory / str(each.get("from", "")) / str(each.get("include", "")).split("/")[0]
                for each in listed
                if isinstance(each, dict)
            ]
        case {"tool": {"setuptools": dict(table)}} if {"packages", "package-dir"} & table.keys():
            return _of_setuptools(directory, table)
        case {"project": {"name": str(name)} as table} | {
            "tool": {"poetry": {"name": str(name)} as table}
        }:
            started = [v for v in dict(table.get("scripts", {})).values() if isinstance(v, str)]
            tops = {name.replace("-", "_").replace(".", "_").lower()}
            tops |= {re.split("[.:]", entry.strip())[0] for entry in started}
            return _below(directory / "src") or [directory / top for top in sorted(tops)]
    return []


def _of_setuptools(directory: Path, table: Mapping[str, Any]) -> list[Path]:
    places = table.get("package-dir", {})
    places = places if isinstance(places, dict) else {}
    top = directory / str(places.get("", ""))
    match table.get("packages", {}):
        case {"find": {"where": [*where]}}:
            return [p for each in where if isinstance(each, str) for p in _below(directory / each)]
        case {"find": _}:
            return _below(top)
        case [*listed]:
            names = {str(each).split(".")[0] for each in listed}
            return [directory / places[n] if n in places else top / n for n in sorted(names)]
    return _below(top) if "" in places else []


def _below(directory: Path) -> list[Path]:
    """The packages in a directory."""
    found = directory.glob("*/__init__.py") if directory.is_dir() else []
    return sorted(path.parent for path in found)
