"""Where the support module goes, what it holds, and how it is imported there."""

from __future__ import annotations

import ast
import os
import re
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from itertools import combinations, product
from pathlib import Path

from fsdp_migrate.analysis.installed_packages import installed_from
from fsdp_migrate.analysis.module import Module
from fsdp_migrate.analysis.project import Project
from fsdp_migrate.planning import class_identity, support_calls, support_in_file
from fsdp_migrate.planning import support_library as library
from fsdp_migrate.planning.edits import (
    Edit,
    Import,
    Support,
)
from fsdp_migrate.syntax.source import Source

Unproved = Mapping[tuple[Path, str], tuple[str, str]]  # by file and function: why, what to do


@dataclass(frozen=True)
class Placed:
    """Edits with imports where support was needed, and what has no place."""

    edits: dict[Module, list[Edit]]
    files: dict[Path, list[Support]]  # support files, with what they must have
    unproved: Unproved  # what no import of a support file is known to bring


def place(project: Project, edits: Mapping[Module, list[Edit]]) -> Placed:
    """Turn support needs into imports."""
    needs: dict[Module, list[Support]] = {}
    for module, listed in edits.items():
        found = [e for e in listed if isinstance(e, Support)]
        if found:
            needs[module] = found
    result = {m: [e for e in listed if not isinstance(e, Support)] for m, listed in edits.items()}
    for module, defined in support_in_file.define(project, needs, edits).items():
        result[module] += defined
        del needs[module]
    if not needs:
        return Placed(result, {}, {})
    wanted = {m: {need.function for need in listed} for m, listed in needs.items()}
    all_edits = [edit for listed in edits.values() for edit in listed]
    told_apart = cache(lambda name: class_identity.is_told_apart(name, project, all_edits))
    homes, unproved = _homes(project, wanted, told_apart)
    without = wanted.keys() - {m for _, users in homes for m in users}
    for module in sorted(without, key=lambda m: m.display):
        made = support_in_file.define_without_place(module, needs[module], edits[module])
        if made:
            result[module] += made
        elif support_in_file.first_definition(
            module, needs[module], edits[module]
        ) and not _meets_itself(project, module, wanted, homes, told_apart):
            _add(module, homes)
        else:
            continue
        unproved = {key: why for key, why in unproved.items() if key[0] != module.path}
    if unproved:
        return Placed({}, {}, unproved)
    files: dict[Path, list[Support]] = {}
    placed: dict[Path, list[Module]] = {}
    for directory, users in homes:
        alone = support_in_file.define_alone(project, users, needs, edits)
        if alone and len(homes) > 1:
            result[users[0]] += alone
            continue
        functions = {function for module in users for function in wanted[module]}
        path = _file(project, directory, functions, _taken(project, directory, users, placed))
        placed[path] = users
        files[path] = [need for module in users for need in needs[module]]
        for module in users:
            source = project.roots.spelled(module, path)
            if not source:
                result[module] += support_in_file.import_either_way(
                    module, needs[module], edits[module], path.stem
                )
                continue
            for need in needs[module]:
                asname = need.local if need.local != need.function else ""
                result[module].append(Import(module, source, need.function, asname, need.near))
    return Placed(result, files, unproved)


def contents(
    project: Project, files: Mapping[Path, Sequence[Support]], renewed: Mapping[Path, Module]
) -> dict[Path, bytes]:
    """The new bytes of the support files that change, for the calls in the project's files.

    Args:
        files: what each must have.
        renewed: the files that were edited, as they are then.
    """
    modules = [renewed.get(m.path, m) for m in project.modules]
    found: dict[Path, bytes] = {}
    for path, needs in files.items():
        present = next((m for m in project.modules if m.path == path), None)
        entries = support_calls.entries(modules, {n.function for n in needs}, present)
        lacking = library.facts()
        for need in needs:
            if library.speaks_of_facts(need.function):
                lacking &= need.lacking
        if present is not None:
            before = _lacking(present)
            if before is None:
                continue
            if any(map(library.speaks_of_facts, support_calls.offered(present))):
                lacking &= before
        new = library.written(entries, lacking)
        if present is None or _substance(Source.parse(new)) != _substance(present.source):
            found[path] = new
    return found


# -- where --------------------------------------------------------------------------------------

Homes = list[tuple[Path, list[Module]]]


def _homes(
    project: Project, wanted: Mapping[Module, set[str]], told_apart: Callable[[str], bool]
) -> tuple[Homes, Unproved]:
    """The directories of support files, each with the modules that import the file; and what of
    the wanted has none.

    The members of an enum of one file are not those of another's: where values may meet, modules
    that need classes which are told apart share a file, in a directory above them all if there is
    no better one.
    """
    present = {m.path.parent for m in project.modules if library.is_ours(m)}
    directories = {m.path.parent for m in wanted} | present
    for module in wanted:
        roots = project.roots.of(module)
        directories |= {p for p in module.path.parents if any(r in p.parents for r in roots)}
    homes = _shared_out(project, wanted, directories, present)
    apart = _apart(project, homes, wanted, told_apart)
    if apart:
        above = Path(os.path.commonpath([m.path.parent for m in apart]))
        homes = _shared_out(project, wanted, directories | {above}, present, notebooks=True)
        apart = _apart(project, homes, wanted, told_apart)
    unproved: dict[tuple[Path, str], tuple[str, str]] = {}
    # A test is rather left than what it tests.
    tests = {m for m, (other, _) in apart.items() if m.is_of_tests and not other.is_of_tests}
    for module, (other, names) in apart.items():
        if tests and module not in tests:
            continue
        why = (
            f"{' and '.join(sorted(names))} must be the same here and in {other.display}, and no "
            f"file is imported by one name in both: {_ways(project, module, other)}"
        )
        needing = [f for f in wanted[module] if names & library.closure([f])]
        unproved |= dict.fromkeys(
            ((module.path, function) for function in needing), (why, _one_name(module, other))
        )
    for module in wanted.keys() - {m for _, users in homes for m in users}:
        why = f"no import of it works by every name of this file: {_ways(project, module)}"
        unproved |= dict.fromkeys(
            ((module.path, function) for function in wanted[module]), (why, _one_name(module))
        )
    return homes, unproved


def _one_name(*modules: Module) -> str:
    """What to do where a file is loaded by several names."""
    is_listed = any(installed_from(m.path) is not None for m in modules)
    other = "" if is_listed else ", or list the package in pyproject.toml"
    return (
        f"load each file by one name only, as a script or as part of its package{other}, and run "
        "again"
    )


def _ways(project: Project, *modules: Module) -> str:
    """How modules are loaded: those that are by several names, if there are any."""
    told = {m.display: project.roots.told(m) for m in sorted(modules, key=lambda m: m.display)}
    several = {name: ways for name, ways in told.items() if len(ways) > 1} or told
    return "; ".join(f"{name} is loaded {' and '.join(ways)}" for name, ways in several.items())


def _shared_out(
    project: Project,
    users: Iterable[Module],
    directories: Iterable[Path],
    present: Collection[Path],
    *,
    notebooks: bool = False,
) -> Homes:
    """Who imports a file of which directory: few files, each in the innermost package."""
    serves: dict[Path, set[Module]] = {}
    for directory in directories:
        path = directory / f"{library.NAME}.py"
        serves[directory] = {
            m
            for m in users
            # What a kernel can import for sure lies beside the notebook.
            if (notebooks or m.source.excerpt is None or m.path.parent == directory)
            and project.roots.spelled(m, path)
        }

    def rank(directory: Path) -> tuple[object, ...]:
        served = serves[directory]
        inside = [m for m in served if m.path.is_relative_to(directory)]
        package = any(r in directory.parents for m in inside for r in project.roots.of(m))
        has_one = directory in present
        return len(served), has_one, package, len(directory.parts), directory.as_posix()

    homes: Homes = []
    while best := max((d for d in serves if serves[d]), key=rank, default=None):
        served = serves.pop(best)
        homes.append((best, sorted(served, key=lambda m: m.display)))
        serves = {directory: rest - served for directory, rest in serves.items()}
    return homes


def _apart(
    project: Project,
    homes: Homes,
    wanted: Mapping[Module, set[str]],
    told_apart: Callable[[str], bool],
) -> dict[Module, tuple[Module, set[str]]]:
    """The modules of one program that would have classes of the same name from different files, or
    from one file that is imported by two names, which is loaded twice; each with another such
    module, and those classes."""
    found: dict[Module, tuple[Module, set[str]]] = {}
    classes = {
        m: {n for n in library.closure(names) if library.is_class(n)} for m, names in wanted.items()
    }
    roots = project.roots
    loaded = [
        (m, {(home, root) for root in roots.starts(m, home / f"{library.NAME}.py")})
        for home, users in homes
        for m in users
        if classes[m]
    ]
    for (first, ways), (second, others) in combinations(loaded, 2):
        shared = classes[first] & classes[second] if ways != others else set()
        if shared and roots.meet(first, second) and any(map(told_apart, shared)):
            for module, other in ((first, second), (second, first)):
                known, names = found.get(module, (other, set()))
                found[module] = known, names | set(filter(told_apart, shared))
    return found


def _add(module: Module, homes: Homes) -> None:
    """Make a module one of those that import a file which lies beside it."""
    beside = next((users for home, users in homes if home == module.path.parent), None)
    if beside is None:
        homes.append((module.path.parent, [module]))
    else:
        beside.append(module)


def _meets_itself(
    project: Project,
    module: Module,
    wanted: Mapping[Module, set[str]],
    homes: Homes,
    told_apart: Callable[[str], bool],
) -> bool:
    """Whether one program may have two of a class that it tells apart, if a module imports it
    from a file beside it: as a part of the package, and by its bare name."""
    roots, home = project.roots, module.path.parent
    shared = {n for n in library.closure(wanted[module]) if library.is_class(n) and told_apart(n)}
    if not shared:
        return False
    if roots.is_imported_bare(module) or roots.loads(module, module):
        return True
    packaged = roots.of(module) - {home}
    for directory, users in homes:
        for other in users:
            if shared.isdisjoint(library.closure(wanted[other])):
                continue
            path = directory / f"{library.NAME}.py"
            same = directory == home and roots.starts(other, path) == packaged
            if roots.loads(module, other) or (roots.meet(module, other) and not same):
                return True
    return False


def _taken(
    project: Project, directory: Path, users: list[Module], placed: Mapping[Path, list[Module]]
) -> set[str]:
    """The names of other files that a bare name might find in place of one in ``directory``."""
    if not _is_bare(project, directory, users):
        return set()
    found = {
        path.stem
        for path, others in placed.items()
        if _is_bare(project, path.parent, others)
        if any(_in_one_process(project, m, o) for m, o in product(users, others))
    }
    roots = {root for m in users for root in (*project.roots.of(m), *project.roots.needed(m))}
    for root in roots - {directory}:
        found |= {m.path.stem for m in project.modules if m.path.parent == root}
        found |= {path.stem for path in root.glob(f"{library.NAME}*")}
    for module in users:
        bare = {b.qualified.partition(".")[0] for b in module.table.imports}
        elsewhere = {n for n in bare if project.resolve(n, module) is None}
        found |= {name for name in elsewhere if name.startswith(library.NAME)}
    return found


def _is_bare(project: Project, directory: Path, users: Iterable[Module]) -> bool:
    return any(
        project.roots.spelled(m, directory / f"{library.NAME}.py") in ("", library.NAME)
        for m in users
    )


def _in_one_process(project: Project, first: Module, second: Module) -> bool:
    """Whether one process may load two modules, as pytest does with all that it collects."""
    return (first.is_test and second.is_test) or project.roots.meet(first, second)


def _file(project: Project, directory: Path, wanted: set[str], taken: Collection[str]) -> Path:
    """Our file in a directory, or the name for a new one that collides with nothing.

    A file that somebody changed serves with what it has; nothing is added to it.
    """
    number = 1
    while True:
        path = directory / (f"{library.NAME}.py" if number == 1 else f"{library.NAME}_{number}.py")
        present = next((m for m in project.modules if m.path == path), None)
        if path.stem in taken:
            pass
        elif present is not None and library.is_ours(present):
            if not _missing(present, wanted) or _lacking(present) is not None:
                return path
        elif present is None and not os.path.lexists(path):
            return path
        number += 1


def _missing(module: Module, wanted: Iterable[str]) -> set[str]:
    """The functions that a support file would need for the wanted ones, and has not."""
    return library.closure(wanted) - set(module.table.module.bindings)


def _lacking(module: Module) -> frozenset[str] | None:
    """What a support file was written for; None of one that is not as a run wrote it."""
    entries = support_calls.offered(module)
    if not entries.keys() <= library.definitions().keys():
        return None
    lines = set(module.source.text.split("\n"))
    whole = library.written(entries).decode().split("\n")
    found = set()
    for name in library.facts():
        without = library.written(entries, {name}).decode().split("\n")
        if not lines.intersection(set(whole) - set(without)):
            found.add(name)
    made = Source.parse(library.written(entries, found))
    return frozenset(found) if _substance(made) == _substance(module.source) else None


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


def is_from(qualified: str, function: str, importer: Module, project: Project) -> bool:
    """Whether a dotted name is that of a function in a support file, which may be out of sight."""
    source, _, name = qualified.rpartition(".")
    if name != function or not re.fullmatch(rf"{library.NAME}(_\d+)?", source.rpartition(".")[2]):
        return False
    resolved = project.resolve(qualified, importer)
    return resolved is None or library.is_ours(resolved[0])
