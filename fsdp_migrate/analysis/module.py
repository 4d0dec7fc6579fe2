"""One file under analysis, and the files of its project that are only looked up."""

from __future__ import annotations

import ast
import re
from collections.abc import Callable, Collection, Mapping
from copy import copy
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path, PurePosixPath
from zlib import crc32

from fsdp_migrate.analysis import reaching_definitions
from fsdp_migrate.analysis.flow import Definition, Flow, access_path
from fsdp_migrate.analysis.load_order import Loading
from fsdp_migrate.syntax import evaluated_text, name_table_builder, spelled
from fsdp_migrate.syntax.expressions import given_arguments
from fsdp_migrate.syntax.name_table import NameTable
from fsdp_migrate.syntax.scopes import Scope
from fsdp_migrate.syntax.source import Source, SourceError

SETTING = re.compile(rb"\.([A-Za-z_]\w*)\s*=(?!=)|setattr\([^,()]+,\s*[\"']([A-Za-z_]\w*)[\"']")
DEFINED = re.compile(rb"\n(?:async[ \t]+)?(?:def|class)[ \t]+([A-Za-z_]\w*)")
IMPORTING = re.compile(rb"\bimport\b[ \t]*(?:\([^)]*\)|(?:[^\n\\]|\\\r?\n)*)")
WORD = re.compile(rb"\w+")
REDIRECT = re.compile(rb"\b(?:global|nonlocal)\b")


@dataclass(eq=False)
class Module:
    """One source file with its name table; flows are computed when first asked for."""

    source: Source
    name: str  # dotted, from the outermost package it stands in
    root: PurePosixPath  # the directory that name starts from, which would be on ``sys.path``
    is_package: bool
    _flows: dict[Scope, Flow] = field(default_factory=dict, init=False)
    _mentioned: dict[tuple[str, ...], bool] = field(default_factory=dict, init=False)

    @property
    def path(self) -> Path:
        return self.source.path

    @property
    def display(self) -> str:
        return self.source.display

    @cached_property
    def number(self) -> int:
        """What tells it from others by its path, the same in every run."""
        return crc32(self.display.encode(errors="surrogatepass"))

    @cached_property
    def is_test(self) -> bool:
        """Whether it has the name of a file that pytest runs."""
        stem = self.path.stem
        return stem == "conftest" or stem.startswith("test_") or stem.endswith("_test")

    @cached_property
    def is_of_tests(self) -> bool:
        """Whether only tests run it, by its name or that of its folder."""
        folders = self.display.split("/")[:-1]
        return self.is_test or any(folder in ("test", "tests") for folder in folders)

    @cached_property
    def home(self) -> tuple[str, str]:
        """What absolute imports are looked up from, as text: hashing paths takes long."""
        return str(self.root), str(self.path.parent)

    @property
    def package(self) -> str:
        """What relative imports start from (PEP 328)."""
        return self.name if self.is_package else self.name.rpartition(".")[0]

    @cached_property
    def table(self) -> NameTable:
        redirects = REDIRECT.search(self.source.data) is not None
        try:
            tree = self.source.tree
        except SourceError:  # a file of the library: nothing is known of what it defines
            tree = ast.Module([], [])
        return name_table_builder.build(tree, self.package, redirects=redirects)

    @cached_property
    def given_paths(self) -> dict[ast.Call, frozenset[str | None]]:
        """The paths among the arguments of every call."""
        return {
            call: frozenset(map(access_path, given_arguments(call))) for call in self.table.calls
        }

    @cached_property
    def setting_names(self) -> tuple[ast.Call, ...]:
        """The calls that may give its names other values than it says."""
        asked = self.mentions("exec", "globals")
        return tuple(evaluated_text.setting_names(self.table)) if asked else ()

    @cached_property
    def loading(self) -> Loading:
        """In which order its statements run."""
        return Loading(self.table)

    def surely_defines(self, name: str) -> bool:
        """Whether the file itself gives a name its value, told by text where no tree was made yet.

        Most files of the library are only asked for what a name of theirs leads to.
        """
        if "table" in self.__dict__:
            return False  # which tells more
        return name in self._defined

    @cached_property
    def _defined(self) -> frozenset[str]:
        """The functions and classes of the file, but for names that it may import as well."""
        data = b"\n" + self.source.data
        found = {name.decode() for name in DEFINED.findall(data)}
        for statement in IMPORTING.findall(data):
            found.difference_update(word.decode() for word in WORD.findall(statement))
            if b"*" in statement:
                return frozenset()
        return frozenset(found)

    def mentions(self, *words: str) -> bool:
        """Whether any of ``words`` stands anywhere in the file; its tree is dearer to make."""
        known = self._mentioned.get(words)
        if known is None:
            known = any(word.encode() in self._names for word in words)
            self._mentioned[words] = known
        return known

    @cached_property
    def _names(self) -> bytes:
        if self.source.encoding in {"utf-8", "ascii", "iso-8859-1"}:
            return spelled.names(self.source.data)
        return spelled.names_of_text(self.source.text) + self.source.data

    @property
    def location(self) -> Path:
        """The file without its ending, or the directory of a package."""
        return self.path.parent if self.is_package else self.path.with_suffix("")

    def may_have(self, name: str) -> bool:
        """Whether its code gives it an attribute of that name, or may."""
        if self.surely_defines(name):
            return True
        bindings = self.table.module.bindings
        return name in bindings or "__getattr__" in bindings or bool(self.table.stars)

    def flow(self, scope: Scope) -> Flow:
        if scope not in self._flows:
            self._flows[scope] = reaching_definitions.analyse(scope, self.table)
        return self._flows[scope]

    def defined_in(self, scope: Scope, name: str) -> list[Definition]:
        """All that gives a name of a scope a value, whoever asks: the variable of a comprehension
        is given its values by that alone."""
        home = scope.home()
        found = [d for d in self.flow(home).definitions if d.path == name]
        own = {binding.node for binding in scope.bindings.get(name, ())}
        return [d for d in found if scope is home or d.node in own]

    def position(self, node: ast.AST) -> tuple[int, int]:
        """1-based line and 1-based character column."""
        line = getattr(node, "lineno", 1)
        offset = getattr(node, "col_offset", 0)
        return line, self.source.column(line, offset) + 1

    def __repr__(self) -> str:
        return f"<Module {self.name}>"


@dataclass(eq=False)
class Library:
    """Files of the project that do not mention FSDP: read only when a value leads into them."""

    paths: frozenset[Path] = frozenset()
    load: Callable[[Path], Source | None] = lambda path: None  # None: it cannot be read
    read: Callable[[Path], bytes] = lambda path: b""  # as far as that is cheaper
    top: Path | None = None  # the directory that holds all paths of the run
    named: dict[Path, bool] = field(default_factory=dict)  # of a run (``vendored.py``)
    unread: frozenset[str] = frozenset()  # files that may meet a model, and do not parse
    joined: frozenset[Path] = frozenset()  # what the modules under analysis import, further on too
    configurations: Callable[[], Mapping[str, tuple[str, ...]]] = dict  # asked once, if at all
    documents: Callable[[], bytes] = bytes  # asked once, if at all
    pinned: Callable[[str, Path], tuple[int, ...]] = lambda name, path: ()  # for a file
    accelerate: Mapping[str, Mapping[str, object]] = field(default_factory=dict)
    """What files and commands configure accelerate with, by their paths from the top."""
    accelerate_left: str = ""  # why all of that stays as it is
    with_files: frozenset[tuple[Path, int]] = frozenset()
    """Calls that are decided with the file of settings that they name, by file and line."""
    _anywhere: dict[tuple[str, ...], bool] = field(default_factory=dict)

    @cached_property
    def configured(self) -> Mapping[str, tuple[str, ...]]:
        """What configurations name for hydra to call, by the key that it stands below."""
        return self.configurations()

    @cached_property
    def documented(self) -> bytes:
        """What the project's documents say, all in one."""
        return self.documents()

    @cached_property
    def names(self) -> frozenset[str]:
        """The last parts of the dotted names these files are imported by."""
        return frozenset(p.parent.name if p.stem == "__init__" else p.stem for p in self.paths)

    @cached_property
    def packages(self) -> frozenset[Path]:
        """The directories that are packages."""
        return frozenset(p.parent for p in self.paths if p.name == "__init__.py")

    def without(self, paths: Collection[Path]) -> Library:
        """The library when some files are under analysis, with all that is known of it."""
        result = copy(self)
        result.joined = self.joined.difference(paths)
        result.__dict__.pop("joined_text", None)
        return result

    @cached_property
    def joined_text(self) -> bytes:
        """All that the programs consist of beside the modules under analysis: a model's classes
        need not speak of FSDP1."""
        return b"\n".join(map(self.read, sorted(self.joined)))

    def speaks_of(self, *words: str) -> bool:
        """Whether any of ``words`` stands in that text."""
        return any(word.encode() in self.joined_text for word in words)

    def anywhere(self, *words: str) -> bool:
        """Whether any of ``words`` stands in any Python file of those given."""
        known = self._anywhere.get(words)
        if known is None:
            sought = re.compile(b"|".join(re.escape(word.encode()) for word in words))
            texts = map(self.read, sorted(self.paths))
            known = self._anywhere[words] = any(sought.search(text) for text in texts)
        return known

    @cached_property
    def attributes_set(self) -> frozenset[str]:
        """The names of the attributes that something is assigned to, as far as text shows it."""
        found = (match for path in self.paths for match in SETTING.finditer(self.read(path)))
        return frozenset(match[match.lastindex or 0].decode() for match in found)

    @cached_property
    def by_text(self) -> dict[str, Path]:
        """Every file by its path as text: making paths takes longer than looking them up."""
        return {p.as_posix(): p for p in self.paths}
