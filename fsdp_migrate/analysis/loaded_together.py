"""Which files are loaded where a test is run.

An object is only met where the file that makes it is loaded. Whoever uses a library brings its
files together, and nobody sees that here; a test is run by itself, with what it imports.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable
from functools import cached_property

from fsdp_migrate.analysis.module import Module
from fsdp_migrate.analysis.project import Project

# By what a test loads files that no import statement of its own tells.
OTHER_WAYS = ("import_module", "__import__", "runpy", "exec(", "pytest_plugins", "instantiate(")


class LoadedTogether:
    """Answers for one project."""

    def __init__(self, project: Project) -> None:
        self.project = project
        self._imports: dict[Module, frozenset[Module]] = {}
        self._beside: dict[Module, frozenset[Module] | None] = {}

    def may_meet(self, made: Module, used: Module) -> bool:
        """Whether what is made in one file may be met in another: not where only tests load the
        first, and none of them loads the other."""
        if made is used or not made.is_of_tests:
            return True
        if made not in self._beside:
            self._beside[made] = self._find(made)
        beside = self._beside[made]
        return beside is None or used in beside

    def _find(self, made: Module) -> frozenset[Module] | None:
        """What is loaded with a file of tests; None where imports do not tell."""
        users = _reached([made], lambda module: self._importers[module])
        for user in users:  # pytest hands on what a conftest makes
            if not user.is_of_tests or user.path.stem == "conftest" or user.mentions(*OTHER_WAYS):
                return None
        return _reached(users, self._imported)

    def _imported(self, module: Module) -> frozenset[Module]:
        """The files that the imports of one load, the packages above them among them."""
        if module not in self._imports:
            found = {m for step in self.project.roots.steps(module) for m in step.loads}
            names = {binding.qualified for binding in module.table.imports}
            names.update(star for _, star in module.table.stars)
            resolved = (self.project.resolve(name, module) for name in names)
            found.update(each[0] for each in resolved if each is not None)
            self._imports[module] = frozenset(found)
        return self._imports[module]

    @cached_property
    def _importers(self) -> dict[Module, list[Module]]:
        found: dict[Module, list[Module]] = defaultdict(list)
        for module in self.project.modules:
            for loaded in self._imported(module):
                found[loaded].append(module)
        return found


def _reached(
    starts: Iterable[Module], steps: Callable[[Module], Iterable[Module]]
) -> frozenset[Module]:
    """All that steps lead to from some files, these among them."""
    waiting, found = [*starts], set(starts)
    for module in waiting:
        for each in steps(module):
            if each not in found:
                found.add(each)
                waiting.append(each)
    return frozenset(found)
