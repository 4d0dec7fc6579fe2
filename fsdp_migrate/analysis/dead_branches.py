"""Code that only releases of torch below the target run: what version gates keep from the others.

Migrated code needs a certain release of torch, so that what stands under
``if torch.__version__ < "2.0"`` no longer runs, nor what only such code uses.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterable, Iterator, Sequence

from packaging.version import Version

from fsdp_migrate.analysis.module import Module
from fsdp_migrate.analysis.project import Outdated, Project
from fsdp_migrate.analysis.torch_versions import Answer
from fsdp_migrate.analysis.version_tests import Reader
from fsdp_migrate.fsdp1 import api as fsdp1
from fsdp_migrate.syntax import suppressions
from fsdp_migrate.syntax.scopes import Binding, Kind
from fsdp_migrate.syntax.trees import DEFINITIONS, Definition, block_of

CODE = "FSDP423"
WORDS = ("version", "VERSION", "TORCH", "torch_", "Requirement")
MARK = "only code for torch {} uses {}"
# Decorators that keep the function for themselves, or give it back.
KEEPING = frozenset(
    (
        *("torch.no_grad", "torch.inference_mode", "torch.enable_grad"),
        *("typing.no_type_check", "functools.wraps", "functools.cache", "functools.lru_cache"),
        *("contextlib.contextmanager", "dataclasses.dataclass", "typing.final"),
    )
)
_MARKED = re.compile(r"[Oo]nly code for torch (.+?) uses ")

TESTING = frozenset({ast.If, ast.IfExp, ast.BoolOp})
LEAVING = (ast.Return, ast.Raise, ast.Continue, ast.Break)


def settle(project: Project, target: Version) -> None:
    """Tell a project, once, what of it no torch from ``target`` on runs."""
    if project.target != target:
        if project.target is not None:
            project.version_tests = {}
        # Tests in other modules could only show that more code is dead; without them it is live.
        modules = [module for module in project.modules if module.mentions(*fsdp1.WORDS)]
        project.settle(target, find_dead_code(project, target, modules))


def find_dead_code(
    project: Project, target: Version, among: Sequence[Module] | None = None
) -> dict[ast.AST, Outdated]:
    """Every node of the project that no torch from ``target`` on runs, with the reason.

    Args:
        among: the modules whose tests are read; all of them by default.
    """
    reader = Reader(project, target)
    found: dict[ast.AST, Outdated] = {}
    marked: list[tuple[Module, Definition, str]] = []
    for module in project.modules if among is None else among:
        if module.mentions(*WORDS):
            _Gates(module, reader, found).run()
        if module.mentions(CODE):
            marked += _marked(module)
    if found or marked:
        _Uses(project, found).spread(marked)
    return found


def _marked(module: Module) -> Iterator[tuple[Module, Definition, str]]:
    """Definitions above which an earlier run wrote that only older releases use them.

    That run may have removed the code that did; then the marker is all that tells.
    """
    said = {m.target: m.sentence for m in suppressions.of(module.source).markers if m.code == CODE}
    for node in module.table.scopes:
        if not isinstance(node, DEFINITIONS):
            continue
        first = min([node.lineno, *(d.lineno for d in node.decorator_list)])
        if first in said:
            found = _MARKED.search(said[first])
            if found is not None:
                yield module, node, found[1]


# -- what tests keep from running --------------------------------------------------------


class _Gates:
    """Notes what the tests of one module keep from running."""

    def __init__(self, module: Module, reader: Reader, found: dict[ast.AST, Outdated]) -> None:
        self.module = module
        self.reader = reader
        self.found = found

    def run(self) -> None:
        # Outer nodes come before inner ones, so that code is noted with its outermost test.
        for node in [n for n in self.module.table.parents if n.__class__ in TESTING]:
            if node not in self.found:
                self.look(node)

    def look(self, node: ast.AST) -> None:
        match node:
            case ast.If(test=test):
                answer = self.reader.answer(test, self.module)
                if answer is None:
                    return
                if answer.holds:
                    self.note(node, "orelse", node.orelse, answer)
                else:
                    self.note(node, "body", node.body, answer)
                    if self.reader.has_no_effect(test, self.module):
                        self.note(node, "test", [test], answer)
                if self.leaves(node):
                    block = block_of(self.module.table.parents[node], node)
                    self.note(node, "rest", block[block.index(node) + 1 :], answer)
            case ast.IfExp(test=test):
                answer = self.reader.answer(test, self.module)
                if answer is not None:
                    self.note(node, "operand", [node.orelse if answer.holds else node.body], answer)
            case ast.BoolOp(op=op, values=values):
                for index, value in enumerate(values[:-1]):
                    answer = self.reader.answer(value, self.module)
                    if answer is not None and answer.holds is isinstance(op, ast.Or):
                        self.note(node, "operand", values[index + 1 :], answer)
                        break

    def leaves(self, statement: ast.stmt) -> bool:
        """Whether what follows an ``if`` is not reached because of what it tests."""
        if not isinstance(statement, ast.If):
            return isinstance(statement, LEAVING)
        answer = self.reader.answer(statement.test, self.module)
        taken = statement.body if answer is None or answer.holds else statement.orelse
        return answer is not None and bool(taken) and self.leaves(taken[-1])

    def note(self, node: ast.AST, part: str, body: Sequence[ast.AST], answer: Answer) -> None:
        outdated = Outdated(node, part, tuple(body), answer.text, answer.until)
        for each in body:
            for inner in ast.walk(each):
                self.found.setdefault(inner, outdated)


# -- what only such code uses --------------------------------------------------------


class _Uses:
    """Finds the definitions that nothing but outdated code mentions."""

    def __init__(self, project: Project, found: dict[ast.AST, Outdated]) -> None:
        self.project = project
        self.found = found
        self._reading = [*project.modules]
        self._library = list(project.library.paths)

    def spread(self, marked: Sequence[tuple[Module, Definition, str]]) -> None:
        """Add the definitions that only outdated code uses, and what only these use, and so on."""
        said = {node: text for _, node, text in marked}
        candidates = [(module, node) for module, node, _ in marked]
        fresh = [node for node, outdated in self.found.items() if outdated.part != "test"]
        while fresh or candidates:
            words = set(_words(fresh))
            known = {node for _, node in candidates}
            for module in self.project.modules if words else ():
                candidates += [
                    (module, node)
                    for node in module.table.scopes
                    if isinstance(node, DEFINITIONS) and node.name in words and node not in known
                ]
            fresh = []
            for module, node in dict.fromkeys(candidates):
                outdated = None if node in self.found else self._of(module, node, said.get(node))
                if outdated is not None:
                    new = [n for n in ast.walk(node) if n not in self.found]
                    self.found.update(dict.fromkeys(new, outdated))
                    fresh += new
            candidates = [(m, n) for m, n, _ in marked if n not in self.found] if fresh else []

    def _of(self, module: Module, node: Definition, said: str | None) -> Outdated | None:
        keywords = node.keywords if isinstance(node, ast.ClassDef) else []
        if keywords or not all(self._keeps(d, module) for d in node.decorator_list):
            return None
        if isinstance(module.table.parents[node], ast.ClassDef) or not node.name.isascii():
            return None  # other classes may have methods of its name
        inside = set(ast.walk(node))
        users: list[Outdated] = []
        for where, mention in self._mentions(node.name, marked=said is not None):
            if mention is None:
                return None
            if mention not in inside:
                user = self.found.get(mention)
                if user is None or user.part == "test":
                    return None
                if self._leads(mention, where, node):
                    users.append(user)
        if not users:
            if said is None:
                return None
            return Outdated(node, "definition", (node,), said, Version("0"))
        latest = max(users, key=lambda u: u.until)
        return Outdated(node, "definition", (node,), latest.text, latest.until)

    def _keeps(self, decorator: ast.expr, module: Module) -> bool:
        """Whether a decorator keeps the function for itself.

        ``@lru_cache`` does; ``@app.route`` hands it to a registry."""
        called = decorator.func if isinstance(decorator, ast.Call) else decorator
        names = self.project.imported(called, module)
        return bool(names) and names <= KEEPING

    def _leads(self, mention: ast.AST, where: Module, node: Definition) -> bool:
        """Whether a mention means this definition, and not another one of the same name."""
        table = where.table
        bound: list[Binding] = []
        names: frozenset[str] = frozenset()
        if isinstance(mention, ast.Name):
            scope = table.within[mention].lookup(mention.id)
            if scope is None:
                return bool(table.stars)
            bound = scope.bindings[mention.id]
            names = frozenset(b.qualified for b in bound if b.kind is Kind.IMPORT)
        elif isinstance(mention, ast.Attribute):
            names = table.qualify(mention)
        elif isinstance(mention, ast.alias):
            names = frozenset(b.qualified for b in table.imports if b.node is mention)
        return any(b.node is node for b in bound) or any(
            self._reaches(name, where, node, frozenset()) for name in names
        )

    def _reaches(
        self, qualified: str, where: Module, node: Definition, passed: frozenset[str]
    ) -> bool:
        """Whether an import leads to a definition, if need be through other modules."""
        resolved = self.project.resolve(qualified, where)
        if resolved is None or not resolved[1] or qualified in passed:
            return False
        return any(
            binding.node is node
            or (
                binding.kind is Kind.IMPORT
                and self._reaches(binding.qualified, owner, node, passed | {qualified})
            )
            for owner, binding in self.project.exports(*resolved)
        )

    def _mentions(self, name: str, *, marked: bool) -> Iterator[tuple[Module, ast.AST | None]]:
        """Every node that mentions a definition; None where others may import it from here."""
        for module in self._mentioning(name):
            for node in self._mentions_in(module, name, marked=marked):
                yield module, node

    def _mentions_in(self, module: Module, name: str, *, marked: bool) -> Iterator[ast.AST | None]:
        table = module.table
        # ``"name"``, ``"module.name"``, ``"command = module:name"``
        written = re.compile(rf"(?:.*[\s.:=/'\"])?{re.escape(name)}", re.DOTALL)
        yield from (n for n in table.names if n.id == name)
        yield from (a for a in table.attributes if a.attr == name)
        yield from (s for s in table.strings if written.fullmatch(str(s.value)))
        for binding in table.imports:
            alias = binding.node
            if not isinstance(alias, ast.alias) or alias.name.rpartition(".")[2] != name:
                continue
            if alias in self.found:
                yield alias
            elif module.is_package:
                yield None
            else:
                uses = [n for n in table.names if n.id == binding.name]
                if not uses and not marked:
                    yield None
                yield from uses

    def _mentioning(self, name: str) -> Iterator[Module]:
        plain = name.encode()
        word = re.compile(rb"\b%s\b" % plain)
        for path in list(self._library):
            data = self.project.library.read(path)
            if plain in data and word.search(data):
                module = self.project.load(path)
                self._library.remove(path)
                if module is not None:
                    self._reading.append(module)
        for module in self._reading:
            if plain in module.source.data and word.search(module.source.data):
                yield module


def _words(nodes: Iterable[ast.AST]) -> Iterator[str]:
    for node in nodes:
        match node:
            case ast.Name(id=name) | ast.Attribute(attr=name):
                yield name
            case ast.alias(name=name):
                yield name.rpartition(".")[2]
