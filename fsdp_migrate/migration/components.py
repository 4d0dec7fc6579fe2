"""The parts of a tree that have nothing to do with each other.

In a directory of several projects each is migrated for itself: a model that must stay FSDP1 in one
is no reason to hold another back, and an object that nothing is known about is no model of theirs.
"""

from __future__ import annotations

import os
from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Hashable, Iterator, Sequence
from functools import cache
from pathlib import Path
from typing import TypeVar

from fsdp_migrate.analysis import executed_files
from fsdp_migrate.analysis.flow import access_path
from fsdp_migrate.analysis.module import Module
from fsdp_migrate.analysis.project import Project
from fsdp_migrate.analysis.tracing import configured
from fsdp_migrate.fsdp1 import api as fsdp1
from fsdp_migrate.fsdp1 import references
from fsdp_migrate.fsdp1.construct import Construct, ConstructKind

Thing = TypeVar("Thing", bound=Hashable)
PACKAGING = ("pyproject.toml", "setup.py", "setup.cfg")
MARKERS = (*PACKAGING, ".git")
# By which a file may get at another that no import names.
LOADERS = (
    "importlib", "__import__", "import_module", "runpy", "execfile", "load_source", "entry_points",
    "pkgutil", "locate", "instantiate",
)  # fmt: skip
MAKERS = frozenset(
    {
        *map(Construct.parse, ("wrap", "auto_wrap", "enable_wrap")),
        Construct(ConstructKind.CONSTRUCTOR, fsdp1.FSDP),
        Construct(ConstructKind.PARTIAL, fsdp1.FSDP),
        Construct(ConstructKind.CLASS, fsdp1.FSDP),
    }
)


def split(project: Project) -> list[Project]:
    """The parts of ``project``, in the order of their first files.

    Files belong together when one imports the other, however indirectly, when they are imported
    from the same directory, or lie in one. Files that use FSDP1 where no part of them makes a model
    get models in some other way (a registry, ``importlib``): they stay with all that is in the same
    repository.
    """
    groups, modules = _Groups(), set(project.modules)
    names = {module.name.rpartition(".")[2] for module in modules}
    for module in project.modules:
        groups.join(module, ("root", module.root))
        groups.join(module, ("directory", module.path.parent))  # a notebook in a package, too
        qualified = {b.qualified for b in module.table.imports}
        qualified.update(star for _, star in module.table.stars)
        for name in qualified:
            found = project.resolve(name, module)
            if found is not None:
                groups.join(module, found[0])
        for read in _read_off_packages(module, names, project):
            groups.join(module, read)
        if module.mentions("exec") and any(executed_files.executes_files(module)):
            below = module.path.parent  # where the files are that it may be told to execute
            for other in project.modules:
                if other.path.is_relative_to(below):
                    groups.join(module, other)
        for call in module.table.calls_by_name.of(configured.NAMES):
            if not project.external(call.func, module) & configured.CALLING:
                continue
            for function in configured.called_by(call, module, project)[0]:
                if function.module in modules:
                    groups.join(module, function.module)
        for target in {m for step in project.roots.steps(module) for m in step.loads} & modules:
            groups.join(module, target)
    parts = groups.of(project.modules)
    if len(parts) > 1:
        _join_users(parts, groups, project)
        parts = groups.of(project.modules)
    if len(parts) == 1:
        return [project]
    return [Project([m.source for m in p], project.library, project.read) for p in parts]


def _read_off_packages(
    module: Module, names: Collection[str], project: Project
) -> Iterator[Module]:
    """The modules that a file reads as attributes of a package which is not looked at itself:
    ``package.utils.report`` of ``import package``."""
    bound = {
        b.name: b.qualified
        for b in module.table.imports
        if project.resolve(b.qualified, module) is None
    }
    for attribute in module.table.attributes if bound else ():
        if attribute.attr not in names:
            continue
        first, _, rest = (access_path(attribute) or "").partition(".")
        if first in bound and (found := project.find(f"{bound[first]}.{rest}", module)):
            yield found


def _join_users(parts: list[list[Module]], groups: _Groups, project: Project) -> None:
    """Join what uses models that it does not make with what may make them."""
    used = [[m for m in part if m.mentions(*fsdp1.WORDS)] for part in parts]
    without = [part for part, users in zip(parts, used, strict=True) if not _makes(users, project)]
    users = {module for part in used for module in part}
    for lacking in without:
        for module in lacking:
            if module in users:
                for other in users:
                    if home(other) == home(module):
                        groups.join(module, other)


def together(parts: Sequence[Project], troubled: Callable[[Module], bool]) -> list[list[Project]]:
    """The parts, those that use FSDP1 in one repository together where a module is ``troubled``.

    What stays FSDP1 there may be handed to another part by other means than imports, unless either
    is one of the programs of a collection, none of which loads a file by its name.
    """
    repositories = {home(m) for part in parts for m in part.modules if troubled(m)}
    users = {part: [m for m in part.modules if m.mentions(*fsdp1.WORDS)] for part in parts}
    tops = {part: _top(used) for part, used in users.items() if _constructs(used, part)}
    loads = any(m.mentions(*LOADERS) for part in tops for m in part.modules)
    apart = set() if loads else _beside_each_other(list(tops.values()))
    groups = _Groups()
    for part, used in users.items():
        if part in tops and tops[part] in apart and _is_program(part, used):
            continue
        for module in used:
            repository = home(module)
            if repository in repositories:
                groups.join(("repository", repository), part)
    return groups.of(parts)


def _top(modules: Sequence[Module]) -> Path:
    return Path(os.path.commonpath([module.path.parent for module in modules]))


def _beside_each_other(directories: Sequence[Path]) -> set[Path]:
    """Those of some directories that are in none of the others, and have none of them inside."""
    known = set(directories)
    around = Counter(above for each in directories for above in (each, *each.parents))
    return {each for each in known if around[each] == 1 and known.isdisjoint(each.parents)}


def _is_program(part: Project, users: list[Module]) -> bool:
    """Whether a part that lies beside all others is a program whose models stay within it: nobody
    installs the repository, and it makes its own models."""
    repository = home(users[0])
    if repository is None or any((repository / name).exists() for name in PACKAGING):
        return False
    return _makes(users, part)


def joined(parts: Sequence[Project]) -> Project:
    """One project of several parts, which knows between which of its files no import leads."""
    sources = [module.source for part in parts for module in part.modules]
    whole = Project(sources, parts[0].library, [m for part in parts for m in part.read])
    whole.islands = {m.path: n for n, part in enumerate(parts) for m in part.modules}
    return whole


def home(module: Module) -> Path | None:
    """The repository that a module is in; None for all that is in none."""
    return _repository(module.path.parent)


def _makes(modules: list[Module], project: Project) -> bool:
    """Whether FSDP1 models are made in some modules; True when they do not use FSDP1 at all."""
    found = _constructs(modules, project)
    return not found or not MAKERS.isdisjoint(found)


def _constructs(modules: list[Module], project: Project) -> set[Construct]:
    """What some modules have of FSDP1."""
    return {
        references.classify(module, node, canonical).construct
        for module in modules
        for node, canonical in references.references(project, module)
    }


@cache
def _repository(directory: Path) -> Path | None:
    """The nearest directory above that looks like the top of a project; None without any."""
    if any((directory / name).exists() for name in MARKERS):
        return directory
    return None if directory == directory.parent else _repository(directory.parent)


class _Groups:
    """Which things belong together (a disjoint-set forest)."""

    def __init__(self) -> None:
        self._above: dict[Hashable, Hashable] = {}

    def top(self, thing: Hashable) -> Hashable:
        above = self._above.setdefault(thing, thing)
        while above != thing:
            self._above[thing] = self._above[above]
            thing, above = above, self._above[above]
        return thing

    def join(self, first: Hashable, second: Hashable) -> None:
        self._above[self.top(second)] = self.top(first)

    def of(self, things: Sequence[Thing]) -> list[list[Thing]]:
        found: dict[Hashable, list[Thing]] = defaultdict(list)
        for thing in things:
            found[self.top(thing)].append(thing)
        return list(found.values())
