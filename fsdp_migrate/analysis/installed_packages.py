"""Which packages a project installs, and from which directory, as its metadata says."""

from __future__ import annotations

import ast
import os
import re
from collections.abc import Iterator, Mapping, Sequence
from configparser import Error, RawConfigParser
from fnmatch import fnmatchcase
from functools import cache
from pathlib import Path
from typing import Any

from fsdp_migrate import toml
from fsdp_migrate.syntax.source import Source, SourceError
from fsdp_migrate.syntax.trees import last_part, walk

METADATA = ("pyproject.toml", "setup.cfg", "setup.py")
SETUPTOOLS = ("packages", "package-dir", "py-modules")
FINDERS = frozenset({"find_packages", "find_namespace_packages"})
Table = Mapping[str, Any]


def installed_from(path: Path) -> Path | None:
    """The directory that names start from in the package of a file, once it is installed."""
    for directory in path.parents:
        if any((directory / name).is_file() for name in METADATA):
            for package in _packages(directory):
                if path.is_relative_to(package):
                    return package.parent
            return None
        if (directory / ".git").exists():
            return None
    return None


@cache
def renamed(directory: Path) -> Mapping[tuple[str, ...], Path]:
    """By their dotted names: the packages that the project around a directory installs from
    directories of other names, ``package-dir = {"tool" = "."}``. A package lies in the directory
    of the nearest one above it that has one."""
    for place in (directory, *directory.parents):
        if any((place / name).is_file() for name in METADATA):
            return _renamed(place)
        if (place / ".git").exists():
            break
    return {}


def declared(directory: Path) -> frozenset[str]:
    """The first parts of the names that a project installs its packages by, as its metadata in a
    directory spells them out."""
    try:
        data = toml.loads((directory / "pyproject.toml").read_bytes())
    except (OSError, ValueError):
        data = {}
    tools = _table(data.get("tool"))
    tables = [_table(tools.get("setuptools")), _in_setup_cfg(directory), _in_setup_py(directory)]
    named = [_table(data.get("project")), _table(tools.get("poetry")), tables[2]]
    found = [name for table in named if table for name in _strings(table.get("name"))]
    for table in filter(None, tables):
        listed = table.get("packages")
        found += _strings(listed) if not isinstance(listed, dict) else []
        found += _named_places(table)
    tops = {re.sub("[-.]", "_", found[0]).lower()} if found else set()
    return frozenset(top for top in tops | {f.split(".")[0] for f in found} if top.isidentifier())


def lying(parts: Sequence[str], directory: Path) -> tuple[str, ...] | None:
    """The parts of the path that a dotted name leads to in a file of a directory, if a package
    that lies in a directory of another name is meant."""
    places = renamed(directory)
    for end in range(len(parts), 0, -1) if places else ():
        place = places.get(tuple(parts[:end]))
        if place is not None:
            return (*place.parts, *parts[end:])
    return None


@cache
def _renamed(directory: Path) -> Mapping[tuple[str, ...], Path]:
    found: dict[tuple[str, ...], Path] = {}
    for table in _places(directory):
        for dotted, place in table.items():
            name, lies = tuple(dotted.split(".")), Path(os.path.normpath(directory / place))
            if dotted and lies.parts[-len(name) :] != name and lies.is_relative_to(directory):
                found.setdefault(name, lies)
    return found


def _places(directory: Path) -> Iterator[Mapping[str, str]]:
    """What the metadata says of setuptools' directories, wherever it does."""
    texts = {name: _text(directory / name) for name in METADATA}
    if re.search("package[-_]dir", texts["pyproject.toml"]):
        try:
            tools = _table(toml.loads(texts["pyproject.toml"].encode()).get("tool"))
        except ValueError:
            tools = {}
        yield _named_places(_table(tools.get("setuptools")))
    if "package_dir" in texts["setup.cfg"] or "package-dir" in texts["setup.cfg"]:
        yield _named_places(_in_setup_cfg(directory) or {})
    if "package_dir" in texts["setup.py"]:
        yield _named_places(_in_setup_py(directory) or {})


def _text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""


def _named_places(table: Table) -> dict[str, str]:
    given = _table(table.get("package-dir"))
    return {str(name): place for name, place in given.items() if isinstance(place, str)}


@cache
def _packages(directory: Path) -> list[Path]:
    """The packages and modules that a project installs, as far as its metadata says it."""
    try:
        data = toml.loads((directory / "pyproject.toml").read_bytes())
    except (OSError, ValueError):
        data = {}
    said = _of_tools(directory, data.get("tool")), _of_setup_cfg(directory), _of_setup_py(directory)
    found = next((each for each in said if each is not None), None)
    if found is not None:
        return found
    match data:
        case {"project": {"name": str(name)} as table} | {
            "tool": {"poetry": {"name": str(name)} as table}
        }:
            started = [v for v in _table(table.get("scripts")).values() if isinstance(v, str)]
            tops = {name.replace("-", "_").replace(".", "_").lower()}
            tops |= {re.split("[.:]", entry.strip())[0] for entry in started}
            return _below(directory / "src") or [directory / top for top in sorted(tops)]
    return []


def _of_tools(directory: Path, tools: Any) -> list[Path] | None:
    """What the build backends' own tables say, if they say anything of packages."""
    match tools:
        case {"hatch": {"build": dict(build)}} if found := _of_hatch(directory, build):
            return found
        case {"poetry": {"packages": [*listed]}}:
            return [
                directory / str(each.get("from", "")) / str(each.get("include", "")).split("/")[0]
                for each in listed
                if isinstance(each, dict)
            ]
        case {"flit": {"module": {"name": str(name)}} | {"metadata": {"module": str(name)}}}:
            return [directory / place / name for place in ("src", "")]
        case {"pdm": {"build": {"package-dir": str(place)}}}:
            return _below(directory / place)
        case {"uv": {"build-backend": dict(table)}} if {
            "module-name",
            "module-root",
        } & table.keys():
            top = directory / str(table.get("module-root", "src"))
            names = _strings(table.get("module-name"))
            return [top / name.split(".")[0] for name in names] or _below(top)
        case {"setuptools": dict(table)}:
            return _of_setuptools(directory, table)
    return None


def _of_hatch(directory: Path, build: Table) -> list[Path]:
    """The packages that go into a wheel, by what the target or every target says."""
    wheel = {**build, **_table(_table(build.get("targets")).get("wheel"))}
    found = [directory / each for each in _strings(wheel.get("packages"))]
    only = [directory / each for each in _strings(wheel.get("only-include"))]
    sources = wheel.get("sources")
    new = sources if isinstance(sources, dict) else dict.fromkeys(_strings(sources), "")
    for old, name in new.items():
        place = directory / old
        if name == "":
            inside = [p for p in only if place in p.parents]
            found += inside or _below(place)
        elif place.name == name:
            found.append(place)
    return found


def _of_setup_cfg(directory: Path) -> list[Path] | None:
    table = _in_setup_cfg(directory)
    return None if table is None else _of_setuptools(directory, table)


def _in_setup_cfg(directory: Path) -> Table | None:
    parser = RawConfigParser()
    try:
        parser.read_string((directory / "setup.cfg").read_text(encoding="utf-8"))
    except (OSError, ValueError, Error):
        return None
    options = {k.replace("_", "-"): v for k, v in _section(parser, "options").items()}
    table: dict[str, Any] = {k: _lines(options[k]) for k in SETUPTOOLS if k in options}
    places = (line.partition("=") for line in table.get("package-dir", ()))
    table["package-dir"] = {k.strip(): v.strip() for k, _, v in places}
    if table.get("packages") in (["find:"], ["find_namespace:"]):
        find = _section(parser, "options.packages.find")
        table["packages"] = {"find": {key: _lines(value) for key, value in find.items()}}
    return table


def _section(parser: RawConfigParser, name: str) -> dict[str, str]:
    return dict(parser.items(name)) if parser.has_section(name) else {}


def _lines(text: str) -> list[str]:
    """A list as ``setup.cfg`` spells it: one a line, or with commas."""
    return [item.strip() for item in re.split(r"[,\n]", text) if item.strip()]


def _of_setup_py(directory: Path) -> list[Path] | None:
    table = _in_setup_py(directory)
    return None if table is None else _of_setuptools(directory, table)


def _in_setup_py(directory: Path) -> Table | None:
    try:
        tree = Source.parse((directory / "setup.py").read_bytes()).tree
    except (OSError, SourceError):
        return None
    for node in walk(tree):
        if isinstance(node, ast.Call) and last_part(node.func) == "setup":
            return {k.arg.replace("_", "-"): _read(k.value) for k in node.keywords if k.arg}
    return None


def _read(node: ast.expr) -> Any:
    """A literal, or what a call finds packages by; None of anything else."""
    try:
        if isinstance(node, ast.Call) and last_part(node.func) in FINDERS:
            named = {k.arg: ast.literal_eval(k.value) for k in node.keywords if k.arg}
            given = map(ast.literal_eval, node.args)
            return {"find": dict(zip(("where", "exclude", "include"), given, strict=False)) | named}
        return ast.literal_eval(node)
    except (ValueError, TypeError, SyntaxError, MemoryError, RecursionError):
        return None


def _of_setuptools(directory: Path, table: Table) -> list[Path] | None:
    if not any(table.get(key) for key in SETUPTOOLS):
        return None
    places = _named_places(table)
    top = directory / places.get("", "")
    found = [top / f"{name}.py" for name in _strings(table.get("py-modules"))]
    match table.get("packages"):
        case {"find": dict(find)}:
            where = [directory / each for each in _strings(find.get("where"))] or [top]
            kept, dropped = _strings(find.get("include")) or ["*"], _strings(find.get("exclude"))
            found += [
                package
                for package in (p for each in where for p in _below(each))
                if any(fnmatchcase(package.name, pattern.split(".")[0]) for pattern in kept)
                and not any(fnmatchcase(package.name, pattern) for pattern in dropped)
            ]
        case [*listed]:
            names = {str(each).split(".")[0] for each in listed}
            # A package may have another name than its directory: then no path tells its names.
            own = [directory / places[n] if n in places else top / n for n in sorted(names)]
            found += [
                place for place, name in zip(own, sorted(names), strict=True) if place.name == name
            ]
        case None if "" in places:
            found += _below(top)
    return found


def _table(value: Any) -> Table:
    return value if isinstance(value, dict) else {}


def _strings(value: Any) -> list[str]:
    listed = value if isinstance(value, (list, tuple)) else [value]
    return [each for each in listed if isinstance(each, str)]


def _below(directory: Path) -> list[Path]:
    """The packages in a directory."""
    found = directory.glob("*/__init__.py") if directory.is_dir() else []
    return sorted(path.parent for path in found)
