"""Where the support module goes, what it holds, and how it is imported there."""

from __future__ import annotations

import ast
import os
import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping
from functools import cache
from pathlib import Path

from fsdp_migrate.names import walk
from fsdp_migrate.proposal import Edit, Import, Support
from fsdp_migrate.source import Source
from fsdp_migrate.trace.project import Module, Project

LIBRARY = Path(__file__).with_name("fsdp2_support.py")
NAME = "fsdp2_support"
SIGN = "written by fsdp-migrate"


def place(
    project: Project, edits: Mapping[Module, list[Edit]]
) -> tuple[dict[Module, list[Edit]], dict[Path, bytes]]:
    """Turn support needs into imports; return the edits and the support files to write.

    One file serves the whole project: in the common package of the modules that need it, or beside
    the scripts. Scripts that cannot import that package get one beside them. The members of an enum
    of one file are not those of another's, so that packages which see each other share one.
    """
    needs: dict[Module, list[Support]] = {}
    for module, listed in edits.items():
        found = [e for e in listed if isinstance(e, Support)]
        if found:
            needs[module] = found
    result = {m: [e for e in listed if not isinstance(e, Support)] for m, listed in edits.items()}
    if not needs:
        return result, {}
    files: dict[Path, set[str]] = defaultdict(set)
    homes, scripts = _homes(project, needs)
    for directory, users in homes.items():
        wanted = {need.function for module in users for need in needs[module]}
        path = _file(project, directory, wanted)
        for module in users:
            source = path.stem if directory in scripts else _spoken(project, path, module)
            for need in needs[module]:
                files[path].add(need.function)
                asname = need.local if need.local != need.function else ""
                result[module].append(Import(module, source, need.function, asname, need.near))
    present = {m.path: m.source.data for m in project.modules if m.path in files}
    contents = {path: _contents(project, path, names) for path, names in files.items()}
    return result, {p: new for p, new in contents.items() if new != present.get(p)}


# -- where --------------------------------------------------------------------------------------


def _homes(project: Project, needs: Iterable[Module]) -> tuple[dict[Path, list[Module]], set[Path]]:
    """Directory of a support file -> the modules that import it; which of them are scripts'."""
    groups: dict[Path, list[Module]] = defaultdict(list)
    for module in needs:
        # What a kernel can import for sure lies beside the notebook.
        package = None if module.source.excerpt is not None else _package(project, module)
        groups[package or module.path.parent].append(module)
    scripts = _join(project, groups) if len(groups) > 1 else set()
    homes: dict[Path, list[Module]] = {}
    for package, users in groups.items():
        inside = [m.path.parent for m in users if m.path.is_relative_to(package)]
        near = inside and package not in scripts
        homes[Path(os.path.commonpath(inside)) if near else package] = users
    return homes, scripts


def _join(project: Project, groups: dict[Path, list[Module]]) -> set[Path]:
    """Put together the groups of packages that see each other; the directories of scripts.

    A package that imports another takes the other's file. Packages that one script imports from
    its own directory have theirs there.
    """
    seen: dict[Path, set[Path]] = {}
    for package in groups:
        inside = [m for m in project.modules if m.path.is_relative_to(package)]
        found = {_top(root, target.path) for root, target in _absolute_imports(project, inside)}
        seen[package] = found & set(groups) - {package}
    for package in list(groups):
        others = sorted(o for o in seen[package] if o in groups and package not in seen[o])
        if len(others) == 1:
            groups[others[0]] += groups.pop(package)
    together: dict[Path, set[Path]] = defaultdict(set)
    for module in project.modules:
        tops = {_top(r, t.path) for r, t in _absolute_imports(project, [module])}
        beside = {p for p in groups if p.parent == module.path.parent and p in tops}
        if len(beside) > 1:
            together[module.path.parent] |= beside
    for directory, packages in together.items():
        for package in packages & set(groups):
            groups[directory] += groups.pop(package)
    return set(together)


def _package(project: Project, module: Module) -> Path | None:
    """The top directory of the project package that ``module`` is in or imports from.

    Judged by imports, because directories of scripts may carry an ``__init__.py`` too: first by
    what the module itself imports, then by how others import it.
    """
    if _uses_relative_imports(module):
        return _top(Path(module.root), module.path)
    found: Counter[Path] = Counter()
    for root, target in _absolute_imports(project, [module]):
        if target.path.parent != root:
            found[_top(root, target.path)] += 1
    for directory, _ in sorted(found.items(), key=lambda i: (-i[1], i[0])):
        return directory
    for root, target in _absolute_imports(project, project.modules):
        if target is module and module.path.parent != root:
            return _top(root, module.path)
    return None


def _top(root: Path, path: Path) -> Path:
    relative = path.relative_to(root)
    return root / relative.parts[0] if len(relative.parts) > 1 else root


def _imported(module: Module) -> list[str]:
    return [b.qualified for b in module.table.imports] + [star for _, star in module.table.stars]


def _absolute_imports(
    project: Project, importers: Iterable[Module]
) -> Iterator[tuple[Path, Module]]:
    """Every import between the project's modules: the directory it starts from, and its target."""
    for importer in importers:
        for qualified in _imported(importer):
            resolved = project.resolve(qualified, importer)
            if resolved is None:
                continue
            target, rest = resolved
            dotted = qualified.removesuffix(f".{rest}") if rest else qualified
            steps = dotted.split(".")
            path = target.path.parent if target.is_package else target.path.with_suffix("")
            if path.parts[-len(steps) :] == tuple(steps):
                yield Path(*path.parts[: -len(steps)]), target


def _roots(project: Project, importers: Iterable[Module]) -> list[Path]:
    """The directories that absolute imports start from, most used first."""
    found = Counter(root for root, _ in _absolute_imports(project, importers))
    return [root for root, _ in sorted(found.items(), key=lambda i: (-i[1], i[0]))]


def _spoken(project: Project, path: Path, importer: Module) -> str:
    """What to write after ``from`` in ``importer`` to import the file at ``path``."""
    package = path.parent
    if importer.source.excerpt is not None and package == importer.path.parent:
        return path.stem
    if _uses_relative_imports(importer) and importer.path.is_relative_to(package):
        up = len(importer.path.parent.relative_to(package).parts)
        return "." * (up + 1) + path.stem
    for root in _possible_roots(project, importer):
        if path.is_relative_to(root):
            return ".".join(path.relative_to(root).with_suffix("").parts)
    return path.stem


def _possible_roots(project: Project, importer: Module) -> Iterator[Path]:
    """The directories that an import in a module may start from, the likeliest first."""
    yield from _roots(project, [importer])
    yield from _roots(project, project.modules)  # which are many: seldom asked for
    yield Path(importer.root)
    yield importer.path.parent


def _uses_relative_imports(module: Module) -> bool:
    statements = module.table.import_statements
    return any(isinstance(node, ast.ImportFrom) and node.level > 0 for node in statements)


def _file(project: Project, directory: Path, wanted: set[str]) -> Path:
    """Our file in a directory, or the name for a new one that collides with nothing.

    A file that somebody changed serves with what it has; nothing is added to it.
    """
    number = 1
    while True:
        path = directory / (f"{NAME}.py" if number == 1 else f"{NAME}_{number}.py")
        present = next((m for m in project.modules if m.path == path), None)
        if present is not None and is_ours(present):
            if not _missing(present, wanted) or _is_as_written(present):
                return path
        elif present is None and not os.path.lexists(path):
            return path
        number += 1


def _missing(module: Module, wanted: Iterable[str]) -> set[str]:
    """The functions that a support file would need for the wanted ones, and has not."""
    return _closure(wanted) - set(module.table.module.bindings)


def _is_as_written(module: Module) -> bool:
    """Whether a support file is what a run wrote, but for its format."""
    defined = [n for n in module.source.tree.body if isinstance(n, (ast.FunctionDef, ast.ClassDef))]
    if not {n.name for n in defined} <= set(_definitions()):
        return False
    made = Source.parse(_written({n.name for n in defined}))
    return _substance(made) == _substance(module.source)


def _substance(source: Source) -> tuple[list[str], list[str]]:
    """The statements and comments of a file, in an order that formatters do not change."""
    comments = [text for _, _, text in source.comments(1, len(source.lines))]
    names = [
        f"{getattr(n, 'module', '')}.{alias.name} {alias.asname}"
        for n in source.tree.body
        if isinstance(n, (ast.Import, ast.ImportFrom))
        for alias in n.names
    ]
    others = [n for n in source.tree.body if not isinstance(n, (ast.Import, ast.ImportFrom))]
    return [*sorted(names), *(ast.dump(n) for n in others)], comments


def is_ours(module: Module) -> bool:
    """Whether a module is a support file that an earlier run wrote."""
    first = ast.get_docstring(module.source.tree) or ""
    return module.path.stem.startswith(NAME) and SIGN in first.split("\n", 1)[0]


def is_from(qualified: str, function: str, importer: Module, project: Project) -> bool:
    """Whether a dotted name is that of a function in a support file, which may be out of sight."""
    source, _, name = qualified.rpartition(".")
    if name != function or not re.fullmatch(rf"{NAME}(_\d+)?", source.rpartition(".")[2]):
        return False
    resolved = project.resolve(qualified, importer)
    return resolved is None or is_ours(resolved[0])


# -- what ---------------------------------------------------------------------------------------


@cache
def _library() -> tuple[str, ast.Module]:
    text = LIBRARY.read_text(encoding="utf-8")
    return text, ast.parse(text)


def _contents(project: Project, path: Path, wanted: set[str]) -> bytes:
    """The file with the wanted functions, what they call, and their imports."""
    present = next((m for m in project.modules if m.path == path), None)
    if present is not None:
        if not _missing(present, wanted):
            return present.source.data
        wanted = wanted | (set(present.table.module.bindings) & set(_definitions()))
    return _written(_closure(wanted))


def _written(names: set[str]) -> bytes:
    """The file with these functions and no others."""
    text, tree = _library()
    used = {used for name in names for used in _names_in(name)}
    lines = text.split("\n")
    docstring = ast.get_docstring(tree, clean=False)
    blocks = [f'"""{docstring}"""\n']
    blocks.append(_imports(tree, used))
    for name, node in _definitions().items():
        if name in names:
            first = min([node.lineno, *(d.lineno for d in node.decorator_list)])
            blocks.append("\n\n" + "\n".join(lines[first - 1 : node.end_lineno]) + "\n")
    return "".join(blocks).encode()


Definition = ast.FunctionDef | ast.ClassDef


@cache
def _definitions() -> dict[str, Definition]:
    _, tree = _library()
    return {n.name: n for n in tree.body if isinstance(n, (ast.FunctionDef, ast.ClassDef))}


@cache
def _names_in(name: str) -> frozenset[str]:
    """The names in a function of the library."""
    return frozenset(n.id for n in walk(_definitions()[name]) if isinstance(n, ast.Name))


def _closure(wanted: Iterable[str]) -> set[str]:
    """The wanted functions and every function of the library they use."""
    found: set[str] = set()
    stack = list(wanted)
    while stack:
        name = stack.pop()
        if name in found:
            continue
        found.add(name)
        stack += _names_in(name) & _definitions().keys()
    return found


def _imports(tree: ast.Module, used: set[str]) -> str:
    """The library's import lines, cut down to the names in use, in the library's order."""
    lines: list[str] = []
    section = -1
    for node in tree.body:
        if not isinstance(node, (ast.Import, ast.ImportFrom)):
            continue
        names = [a for a in node.names if (a.asname or a.name.split(".")[0]) in used]
        if not names:
            continue
        top = names[0].name if isinstance(node, ast.Import) else node.module or ""
        current = int(top.startswith("torch"))
        if section != current:
            lines.append("")
            section = current
        lines.append(_import_line(node, names))
    return "\n".join(lines) + "\n"


def _import_line(node: ast.Import | ast.ImportFrom, names: list[ast.alias]) -> str:
    spelled = [f"{a.name} as {a.asname}" if a.asname else a.name for a in names]
    if isinstance(node, ast.Import):
        return f"import {', '.join(spelled)}"
    line = f"from {node.module} import {', '.join(spelled)}"
    if len(line) <= 88:
        return line
    return f"from {node.module} import (\n" + "".join(f"    {s},\n" for s in spelled) + ")"
