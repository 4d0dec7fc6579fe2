"""What rules say about themselves, read as text: nothing is run.

A rule's page is the Markdown file beside its module, ``FSDP401_clip_grad_norm.md``: a title, the
sections of ``HEADINGS``, then *Examples* and *Keeps*. A rule in one file has its page in its
docstring.
"""

from __future__ import annotations

import ast
import os
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache, cached_property
from pathlib import Path

from fsdp_migrate import HOME, __version__, shown
from fsdp_migrate.errors import ConfigError
from fsdp_migrate.fsdp1.construct import Construct

PATTERN = "FSDP[0-9][0-9][0-9]_*.py"
EXAMPLES, KEEPS = "Examples", "Keeps"
HEADINGS = ("What changes", "Why", "What stays for you", "Since torch", "References")
DIFFERENT = "What is different"  # in migrated programs; only some pages have it


@cache
def bundled() -> Path:
    """The directory of the rules that ship with the tool: installed, or in a checkout."""
    here = Path(__file__).resolve().parents[1]
    installed = here / "_rules"
    return installed if installed.is_dir() else here.parent / "rules"


@dataclass(frozen=True)
class Block:
    """One example of a page, or one source that a rule keeps.

    ``facts`` are what is said of it (``Outcome: review``). ``sources`` is its code by what stands
    above it: ``Before``, ``After``, ```models.py` before``, or nothing. ``languages`` are those of
    its code: ``python``, or ``yaml``, ``json`` and ``sh`` of configurations.
    """

    title: str
    facts: dict[str, str]
    sources: dict[str, str]
    languages: set[str]


@dataclass(frozen=True)
class Page:
    """A rule's documentation; ``path`` is the rule's module."""

    code: str
    name: str
    document: str
    path: Path

    @property
    def document_path(self) -> Path:
        """The file that it stands in."""
        written = self.path.with_suffix(".md")
        return written if written.is_file() else self.path

    @property
    def summary(self) -> str:
        """The first line, without its full stop."""
        return self.document.split("\n", 1)[0].rstrip(".")

    @property
    def body(self) -> str:
        return self.document.partition("\n")[2].strip()

    def section(self, heading: str) -> str:
        """The text under one of ``HEADINGS``, or under ``DIFFERENT``; empty if it is not there."""
        pattern = rf"^## {re.escape(heading)}\n(.*?)(?=^## |\Z)"
        found = re.search(pattern, self.document, re.MULTILINE | re.DOTALL)
        return found.group(1).strip() if found else ""

    @cached_property
    def _tree(self) -> ast.Module:
        try:
            return ast.parse(self.path.read_bytes())
        except (SyntaxError, ValueError, RecursionError, MemoryError):
            return ast.Module([], [])  # a file of a project's own, which need not be a rule

    def _assigned(self, name: str) -> ast.expr | None:
        for node in self._tree.body:
            targets = node.targets if isinstance(node, ast.Assign) else []
            if isinstance(node, ast.AnnAssign):
                targets = [node.target]
            for target in targets:
                if isinstance(target, ast.Name) and target.id == name:
                    assert isinstance(node, (ast.Assign, ast.AnnAssign))
                    return node.value
        return None

    @cached_property
    def topics(self) -> tuple[str, ...]:
        """The bare FSDP1 names the rule handles: ``device_id``, ``no_sync``, ``CPUOffload``."""
        rule = self._assigned("RULE")
        found: list[str] = []
        for keyword in rule.keywords if isinstance(rule, ast.Call) else []:
            if keyword.arg == "handles":
                handled = _literal(keyword.value)
                listed = handled if isinstance(handled, tuple | list) else ()
                for construct in filter(lambda each: isinstance(each, str), listed):
                    found.append(Construct.parse(construct).topic)
        return tuple(dict.fromkeys(f for f in found if f and f != "*"))

    @cached_property
    def blocks(self) -> Mapping[str, Sequence[Block]]:
        """The blocks under *Examples* and under *Keeps*, of a page that is a file."""
        return _blocks(_markdown(self.path))

    def example(self) -> tuple[str, str] | None:
        """Before and after of the first example."""
        if has_file(self.path):
            first_block = next(iter(self.blocks[EXAMPLES]), None)
            if first_block is None:
                return None
            return first_block.sources["Before"], first_block.sources["After"]
        listed = self._assigned("EXAMPLES")
        if not isinstance(listed, ast.List) or not listed.elts:
            return None
        first = listed.elts[0]
        keywords = first.keywords if isinstance(first, ast.Call) else []
        values = {k.arg: _literal(k.value) for k in keywords}
        before, after = values.get("before"), values.get("after")
        return (before, after) if isinstance(before, str) and isinstance(after, str) else None


def _literal(node: ast.expr) -> object:
    """The value that is written there; None where it would have to be computed."""
    try:
        value: object = ast.literal_eval(node)
    except (ValueError, TypeError, SyntaxError, RecursionError, MemoryError):
        return None
    return value


def pages(directories: Iterable[Path] = ()) -> list[Page]:
    """The pages of every rule in the bundled directory and in ``directories``, by code."""
    found: dict[str, Page] = {}
    for directory in (bundled(), *directories):
        for path in modules(directory):
            page = page_of(path)
            found.setdefault(page.code, page)  # ours are what they are, whatever a project has
    return sorted(found.values(), key=lambda p: p.code)


def url(code: str, directories: Iterable[Path] = ()) -> str:
    """Where the page of a rule can be read; empty for a rule of a project's own, for none, and
    before there is an address."""
    path = _documents(tuple(directories)).get(code)
    return f"{HOME}/blob/v{__version__}/rules/{path}" if HOME and path else ""


@cache
def _documents(directories: tuple[Path, ...]) -> dict[str, str]:
    """Where the pages of our rules stand below ``rules/``."""
    ours = bundled()
    return {
        page.code: document.relative_to(ours).as_posix()
        for page in pages(directories)
        if (document := page.document_path).is_relative_to(ours)
    }


def own_directories(root: Path, names: Sequence[str], origin: str) -> tuple[Path, ...]:
    """The directories that ``names`` mean, every file of a rule in them being the project's own.

    Raises:
        ConfigError: a directory, or a file of a rule in it, leads out of ``root``.
    """
    real = root.resolve()
    found: list[Path] = []
    for name in names:
        told = f"{origin} rule-paths: {shown.path(name)}"
        directory = root / name
        try:
            if not directory.resolve().is_relative_to(real):
                raise ConfigError(f"{told}: leads out of the project")
            for path in (f for m in modules(directory) for f in (m, m.with_suffix(".md"))):
                if path.suffix == ".md" and not os.path.lexists(path):
                    continue
                where = f"{told}: {shown.path(path.name)}"
                if not path.resolve().is_relative_to(real):
                    raise ConfigError(f"{where} leads out of the project")
                if not path.is_file():
                    raise ConfigError(f"{where} is not a file")
        except (OSError, ValueError, RuntimeError) as error:  # a link to itself, a NUL
            raise ConfigError(f"{told}: {error}") from None
        found.append(directory)
    return tuple(found)


def modules(directory: Path) -> list[Path]:
    """The modules of the rules in a directory, or in families below it, by code."""
    found = [*directory.glob(PATTERN), *directory.glob(f"*/{PATTERN}")]
    return sorted(found, key=lambda path: path.name)


def page_of(path: Path) -> Page:
    """The page of one rule's module."""
    code, _, name = path.stem.partition("_")
    return Page(code, name, _document(path), path)


def has_file(path: Path) -> bool:
    """Whether the page of a rule's module is a file beside it."""
    return path.with_suffix(".md").is_file()


FACT = re.compile(r"(\w+): (.*)")


def _blocks(text: str) -> dict[str, list[Block]]:
    from markdown_it import MarkdownIt  # rich's, and dear to load

    found: dict[str, list[Block]] = {EXAMPLES: [], KEEPS: []}
    section = label = heading = ""
    for token in MarkdownIt("commonmark").parse(text):
        if token.type == "heading_open":
            heading = token.tag
        elif token.type == "inline" and heading:
            section = token.content if heading == "h2" else section
            if heading == "h3" and section in found:
                found[section].append(Block(token.content, {}, {}, set()))
            heading = label = ""
        elif section not in found or not found[section]:
            continue
        elif token.type == "inline" and (fact := FACT.fullmatch(token.content)):
            found[section][-1].facts[fact[1]] = fact[2]
        elif token.type == "inline":
            label = token.content.removesuffix(":")
        elif token.type == "fence":
            found[section][-1].sources[label] = token.content
            found[section][-1].languages.add(token.info.strip())
    return found


def _markdown(path: Path) -> str:
    return path.with_suffix(".md").read_text(encoding="utf-8")


def _document(path: Path) -> str:
    """What a rule says of itself, without its examples and without parsing code."""
    if has_file(path):
        text = _markdown(path).removeprefix("# ")
        text = re.split(rf"(?m)^## (?:{EXAMPLES}|{KEEPS})$", text, maxsplit=1)[0]
        return text.strip()
    text = path.read_text(encoding="utf-8", errors="replace")
    found = re.match(r'\s*"""(.*?)"""', text, re.DOTALL)
    return found.group(1).strip() if found else ""
