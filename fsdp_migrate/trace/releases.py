"""Code that only releases of torch below the target run: what version gates keep from the others.

Migrated code needs a certain release of torch, so that what stands under
``if torch.__version__ < "2.0"`` no longer runs, nor what only such code uses.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterable, Iterator, Sequence

from packaging.version import Version

from fsdp_migrate import remarks
from fsdp_migrate.trace.project import Module, Outdated, Project
from fsdp_migrate.trace.versions import Answer, Reader

CODE = "FSDP423"
WORDS = ("version", "VERSION", "TORCH", "torch_", "Requirement")
MARK = "only code for torch {} uses {}"
KEEPING = frozenset(
    (
        *("torch.no_grad", "torch.inference_mode", "torch.enable_grad"),
        *("typing.no_type_check", "functools.wraps", "functools.cache", "functools.lru_cache"),
        *("contextlib.contextmanager", "dataclasses.dataclass", "typing.final"),
    )
)
_MARKED = re.compile(r"[Oo]nly code for torch (.+?) uses ")

Definition = ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef
DEFINITIONS = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)
TESTING = frozenset({ast.If, ast.IfExp, ast.BoolOp})
LEAVING = (ast.Return, ast.Raise, ast.Continue, ast.Break)


def settle(project: Project, target: Version) -> None:
    """Tell a project, once, what of it no torch from ``target`` on runs."""
    if project.target != target:
        project.target, project.outdated = target, find(project, target)
        if project.outdated:
            aliases = project.aliases.items()
            project.aliases = {b: name for b, name in aliases if b.node not in project.outdated}


def find(project: Project, target: Version) -> dict[ast.AST, Outdated]:
    """Every node of the project that no torch from ``target`` on runs, with the reason."""
    reader = Reader(project, target)
    found: dict[ast.AST, Outdated] = {}
    marked: list[tuple[Module, Definition, str]] = []
    for module in project.modules:
        if module.mentions(*WORDS):
            _Walk(module, reader, found).run()
        if module.mentions(CODE):
            marked += _marked(module)
    if found or marked:
        _Uses(project, found).spread(marked)
    return found


def _marked(module: Module) -> Iterator[tuple[Module, Definition, str]]:
    """Definitions above which an earlier run wrote that only older releases use them.

    Where it removed the code that did, nothing else tells.
    """
    said = {m.target: m.sentence for m in remarks.of(module.source).markers if m.code == CODE}
    for node in module.table.scopes:
        if not isinstance(node, DEFINITIONS):
            continue
        first = min([node.lineno, *(d.lineno for d in node.decorator_list)])
        if first in said:
            found = _MARKED.search(said[first])
            if found is not None:
                yield module, node, found[1]


# -- what tests keep from running --------------------------------------------------------


class _Walk:
    """Goes through a module and notes what its tests of torch's version keep from running."""

    def __init__(self, module: Module, reader: Reader, found: dict[ast.AST, Outdated]) -> None:
        self.module = module
        self.reader = reader
        self.found = found

    def run(self) -> None:
        """Look at every test first: few modules have any that counts."""
        tests = [n for n in self.module.table.parents if n.__class__ in TESTING]
        if any(self._counts(node) for node in tests):
            self.block(self.module.source.tree.body)

    def _counts(self, node: ast.AST) -> bool:
        tests = node.values if isinstance(node, ast.BoolOp) else [getattr(node, "test", None)]
        return any(t is not None and self.reader.answer(t, self.module) for t in tests)

    def block(self, body: Sequence[ast.stmt]) -> None:
        for index, statement in enumerate(body):
            self.visit(statement)
            rest = body[index + 1 :]
            answer = self.leaves(statement) if rest else None
            if answer is not None:
                self.note(statement, "rest", rest, answer)
                return

    def visit(self, node: ast.AST) -> None:
        match node:
            case ast.If():
                self.visit(node.test)
                answer = self.reader.answer(node.test, self.module)
                for part, body, runs in (
                    ("body", node.body, answer is None or answer.holds),
                    ("orelse", node.orelse, answer is None or not answer.holds),
                ):
                    if runs:
                        self.block(body)
                    elif answer is not None and body:
                        self.note(node, part, body, answer)
                if (
                    answer is not None
                    and not answer.holds
                    and self.reader.looks(node.test, self.module)
                ):
                    self.note(node, "test", [node.test], answer)
                return
            case ast.IfExp():
                answer = self.reader.answer(node.test, self.module)
                if answer is not None:
                    gone = node.orelse if answer.holds else node.body
                    self.note(node, "operand", [gone], answer)
            case ast.BoolOp():
                for index, value in enumerate(node.values[:-1]):
                    answer = self.reader.answer(value, self.module)
                    if answer is not None and answer.holds is isinstance(node.op, ast.Or):
                        self.note(node, "operand", node.values[index + 1 :], answer)
                        break
        for name, value in ast.iter_fields(node):
            if not isinstance(value, list):
                if isinstance(value, ast.AST) and value not in self.found:
                    self.visit(value)
            elif name in {"body", "orelse", "finalbody"}:
                self.block(value)
            else:
                for each in value:
                    if isinstance(each, ast.AST) and each not in self.found:
                        self.visit(each)

    def leaves(self, statement: ast.stmt) -> Answer | None:
        """The answer of a test because of which what follows it is not reached."""
        if not isinstance(statement, ast.If):
            return None
        answer = self.reader.answer(statement.test, self.module)
        if answer is None:
            return None
        taken = statement.body if answer.holds else statement.orelse
        if taken and isinstance(taken[-1], LEAVING):
            return answer
        return self.leaves(taken[-1]) if taken else None

    def note(self, node: ast.AST, part: str, body: Sequence[ast.AST], answer: Answer) -> None:
        outdated = Outdated(node, part, tuple(body), answer.text, answer.until)
        for each in body:
            for inner in ast.walk(each):
                known = self.found.get(inner)
                if known is None or (part == "test" and known.part == "operand"):
                    self.found[inner] = outdated


# -- what only such code uses --------------------------------------------------------


class _Uses:
    """Finds the definitions that nothing but outdated code mentions."""

    def __init__(self, project: Project, found: dict[ast.AST, Outdated]) -> None:
        self.project = project
        self.found = found
        self._reading = [*project.modules]
        self._library = list(project.library.paths)

    def spread(self, marked: Sequence[tuple[Module, Definition, str]]) -> None:
        """Add them to what is found, and what only they use, until there are no more."""
        said = {node: text for _, node, text in marked}
        candidates = [(module, node) for module, node, _ in marked]
        fresh = [node for node, outdated in self.found.items() if outdated.part != "test"]
        while fresh or candidates:
            words = set(_words(fresh))
            known = {node for _, node in candidates}
            for module in self.project.modules if words else ():
                if not module.mentions(*words):
                    continue
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
        if isinstance(module.table.parents[node], ast.ClassDef):
            return None  # other classes may have methods of its name
        inside = set(ast.walk(node))
        users: list[Outdated] = []
        for mention in self._mentions(node.name, marked=said is not None):
            if mention is None:
                return None
            if mention not in inside:
                user = self.found.get(mention)
                if user is None or user.part == "test":
                    return None
                users.append(user)
        if not users:
            if said is None:
                return None
            return Outdated(node, "definition", (node,), said, Version("0"))
        latest = max(users, key=lambda u: u.until)
        return Outdated(node, "definition", (node,), latest.text, latest.until)

    def _keeps(self, decorator: ast.expr, module: Module) -> bool:
        """Whether a decorator hands what it is put on to nobody else."""
        called = decorator.func if isinstance(decorator, ast.Call) else decorator
        names = self.project.imported(called, module)
        return bool(names) and names <= KEEPING

    def _mentions(self, name: str, *, marked: bool) -> Iterator[ast.AST | None]:
        """Every node that mentions a definition; None where it is handed on to who knows whom."""
        written = re.compile(rf"(?:[\w.]*[.:])?{re.escape(name)}")
        for module in self._mentioning(name):
            table = module.table
            names = [n for n in table.names if n.id == name]
            yield from names
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
        word = re.compile(rb"\b%s\b" % re.escape(name.encode()))
        for path in list(self._library):
            data = self.project.library.read(path)
            if data is not None and word.search(data):
                module = self.project.load(path)
                self._library.remove(path)
                if module is not None:
                    self._reading.append(module)
        for module in self._reading:
            if word.search(module.source.data):
                yield module


def _words(nodes: Iterable[ast.AST]) -> Iterator[str]:
    for node in nodes:
        match node:
            case ast.Name(id=name) | ast.Attribute(attr=name):
                yield name
            case ast.alias(name=name):
                yield name.rpartition(".")[2]
