"""The functions that may be written into a project, and the text of those that are."""

from __future__ import annotations

import ast
import re
from collections.abc import Collection, Iterable, Iterator
from functools import cache
from pathlib import Path

from fsdp_migrate import runtime
from fsdp_migrate.analysis.module import Module
from fsdp_migrate.planning.edits import Import
from fsdp_migrate.planning.partial_evaluation import Entries
from fsdp_migrate.planning.specialization import facts_of, specialize
from fsdp_migrate.syntax.trees import walk

LIBRARY = Path(runtime.__file__).with_name("fsdp2_support.py")
NAME = "fsdp2_support"
SIGN = "written by fsdp-migrate"
# Functions that do no more than torch's where another function of the library is not there as well.
PLAIN = {"_sharded_state": ("_set_states", "get_model_state_dict")}


def is_ours(module: Module) -> bool:
    """Whether a module is a support file that an earlier run wrote."""
    first = ast.get_docstring(module.source.tree) or ""
    return module.path.stem.startswith(NAME) and SIGN in first.split("\n", 1)[0]


@cache
def _library() -> tuple[str, ast.Module]:
    text = LIBRARY.read_text(encoding="utf-8")
    return text, ast.parse(text)


def written(entries: Entries, lacking: Collection[str] = ()) -> bytes:
    """The file with what these calls need, and no more.

    Args:
        lacking: those of :func:`facts` that do not hold in the program.
    """
    _, tree = _library()
    texts = _specialized(entries, lacking)
    parsed = [ast.parse(text) for text in texts.values()]
    docstring = ast.get_docstring(tree, clean=False)
    blocks = [f'"""{docstring}"""\n']
    if any(map(_has_unions, parsed)):
        blocks.append("\nfrom __future__ import annotations\n")
    used = {n.id for part in parsed for n in walk(part) if isinstance(n, ast.Name)}
    blocks.append(_imports(tree, used))
    blocks += [f"\n\n{text}\n" for text in texts.values()]
    return "".join(blocks).encode()


@cache
def facts() -> frozenset[str]:
    """The library's names for what a program may have."""
    return facts_of(_library()[0])


def speaks_of_facts(name: str) -> bool:
    """Whether a function, or one that it calls, is written differently for some of the facts."""
    functions = (each for each in closure([name]) if not is_class(each))
    return any(not facts().isdisjoint(_names_in(each)) for each in functions)


def _specialized(entries: Entries, lacking: Collection[str]) -> dict[str, str]:
    found = specialize(_library()[0], entries, lacking)
    for name, plain in _plain(found).items():
        found.pop(name, None)
        found = {n: text.replace(f"{name}(", f"{plain}(") for n, text in found.items()}
    return found


def texts(names: set[str]) -> list[str]:
    """The source of each of some functions that stand together, in the library's order."""
    found = [text_of(name) for name in definitions() if name in names]
    for name, plain in _plain(names).items():
        found = [text.replace(f"{name}(", f"{plain}(") for text in found]
    return found


def _plain(names: Collection[str]) -> dict[str, str]:
    """The functions that are not needed where no others than these are, and what does."""
    return {name: plain for name, (other, plain) in PLAIN.items() if other not in names}


def _used(names: Collection[str]) -> set[str]:
    """The names that some functions use, as they are written."""
    plain = _plain(names)
    return {plain.get(used, used) for name in names for used in _names_in(name)}


Definition = ast.FunctionDef | ast.ClassDef


@cache
def definitions() -> dict[str, Definition]:
    _, tree = _library()
    return {n.name: n for n in tree.body if isinstance(n, (ast.FunctionDef, ast.ClassDef))}


def parameters(name: str) -> str | None:
    """The parameters of a support function, as they stand in its ``def``; None of what is none."""
    function = definitions().get(name)
    return ast.unparse(function.args) if isinstance(function, ast.FunctionDef) else None


def is_spelled(qualified: str) -> bool:
    """Whether a dotted name is one of a support file, by its spelling alone."""
    source, _, _ = qualified.rpartition(".")
    return re.fullmatch(rf"{NAME}(_\d+)?", source.rpartition(".")[2]) is not None


def is_class(name: str) -> bool:
    return isinstance(definitions()[name], ast.ClassDef)


@cache
def _names_in(name: str) -> frozenset[str]:
    """The names in a function of the library."""
    return frozenset(n.id for n in walk(definitions()[name]) if isinstance(n, ast.Name))


def closure(wanted: Iterable[str]) -> set[str]:
    """The wanted functions and every function of the library they use."""
    found: set[str] = set()
    stack = list(wanted)
    while stack:
        name = stack.pop()
        if name in found:
            continue
        found.add(name)
        stack += _names_in(name) & definitions().keys()
    return found - _plain(found).keys()


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


def has_unions(name: str) -> bool:
    """Whether an annotation in a function is ``A | B``, which Python 3.9 does not evaluate."""
    return _has_unions(definitions()[name])


def _has_unions(tree: ast.AST) -> bool:
    annotations = [
        getattr(node, field, None) for node in walk(tree) for field in ("annotation", "returns")
    ]
    parts = (part for each in annotations if each is not None for part in walk(each))
    return any(isinstance(part, ast.BinOp) for part in parts)


def text_of(name: str) -> str:
    """The source of a function."""
    text, _ = _library()
    node = definitions()[name]
    first = min([node.lineno, *(d.lineno for d in node.decorator_list)])
    return "\n".join(text.split("\n")[first - 1 : node.end_lineno])


def lines_of_code(name: str) -> int:
    """How long a function is, its docstring and empty lines aside."""
    node = definitions()[name]
    lines = [line for line in text_of(name).split("\n") if line.strip()]
    docstring = node.body[0] if ast.get_docstring(node) else None
    return len(lines) - (0 if docstring is None else _length(docstring))


def _length(node: ast.stmt) -> int:
    text, _ = _library()
    return sum(1 for line in text.split("\n")[node.lineno - 1 : node.end_lineno] if line.strip())


def imports_of(module: Module, names: Collection[str], near: ast.AST) -> Iterator[Import]:
    """What a file must import for functions that it defines."""
    used = _used(names)
    for node in _library()[1].body:
        if not isinstance(node, (ast.Import, ast.ImportFrom)):
            continue
        for alias in node.names:
            local = alias.asname or alias.name.partition(".")[0]
            if local in used:
                source, name = alias.name, ""
                if isinstance(node, ast.ImportFrom):
                    source, name = node.module or "", alias.name
                yield Import(module, source, name, alias.asname or "", near)
