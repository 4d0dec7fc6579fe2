"""The sites of the original, as the static study knows them, beside what its run did."""

from __future__ import annotations

import ast
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeGuard

from fsdp_migrate.fsdp1.api import STATE_METHODS
from fsdp_migrate.verify.compare.coverage import listed
from fsdp_migrate.verify.compare.gate import plural
from fsdp_migrate.verify.compare.observed import Observed, Span, Use


@dataclass(frozen=True)
class KnownSite:
    """A site of ``check`` in the original."""

    file: str
    span: Span
    code: str
    construct: str
    name: str
    """What of FSDP1's it is about, in one word: the attribute, the argument, the class."""
    outcome: str
    rewriting: str = ""
    """What the rule says that it did, or why it did nothing."""
    constructors: tuple[str, ...] = ()
    """Places (file and line) of the constructors of the models that it belongs to."""
    hands_on: bool = False
    """Whether a class is named here and called elsewhere (``partial(FSDP)``, ``build(FSDP)``)."""
    edited: bool = False
    """Whether this is no site itself, but what else is changed with one."""

    @property
    def place(self) -> str:
        return f"{self.file}:{self.span.line}"

    def __str__(self) -> str:
        return f"{self.code} at {self.place}, {self.construct}"

    def to_dict(self) -> dict[str, Any]:
        """The site as JSON values."""
        return {
            "code": self.code,
            "file": self.file,
            "line": self.span.line,
            "construct": self.construct,
            "outcome": self.outcome,
        }


@dataclass(frozen=True)
class Study:
    """All sites of a tree."""

    tree: Path
    sites: tuple[KnownSite, ...]


@dataclass(frozen=True)
class Accounted:
    """The places that used FSDP1 in the run, and those among them that are no site."""

    uses: tuple[Use, ...]
    unseen: tuple[Use, ...]
    problems: tuple[str, ...] = ()

    @property
    def says(self) -> str:
        """The answer in one sentence."""
        places = plural(len(self.uses), "place")
        if not self.unseen:
            return f"the original used FSDP1 at {places}, each a site of the rewriter"
        named = listed([str(use) for use in self.unseen])
        count = len(self.unseen)
        return f"the original used FSDP1 at {places}, {count} not seen by the rewriter: {named}"

    @property
    def caveat(self) -> str:
        """The sentence where it takes something from a verdict, and nothing otherwise."""
        if self.problems:
            return f"not every place that uses FSDP1 could be noted: {self.problems[0]}"
        return self.says if self.unseen else ""

    def to_dict(self) -> dict[str, Any]:
        """The answer as JSON values."""
        return {
            "uses": len(self.uses),
            "unseen": [
                {"file": u.file, "line": u.span.line, "what": u.what, "through": u.through}
                for u in self.unseen
            ],
            "problems": list(self.problems),
        }


OF_FRAMEWORKS = {
    "accelerate": "FSDP511",
    "transformers": "FSDP521",
    "lightning": "FSDP530",
    "pytorch_lightning": "FSDP530",
    "lightning_fabric": "FSDP530",
    "composer": "FSDP561",
}
"""The rules of the settings by which a library wraps the models with FSDP1 somewhere else."""


def account(observed: Observed, study: Study) -> Accounted:
    """Hold what the run did against the sites."""
    known = matches(observed, study)
    unseen = tuple(use for use, sites in known.items() if not sites)
    return Accounted(tuple(known), unseen, observed.problems)


def matches(observed: Observed, study: Study) -> dict[Use, tuple[KnownSite, ...]]:
    """The sites that each use stands for.

    That is a site which it is within, or which is within it, in the same statement; or one in that
    statement about the same name (``m.module if hasattr(m, "module") else m``). A class that is
    called under another name stands for the sites that hand it on. What a framework does with
    FSDP1 stands for its settings (``trainer.fit()`` for ``FSDPStrategy()``). Uses in no file of the
    tree (a driver of ours, code made at run time) are left out: no rewriter sees those. So is the
    question whether something has a state, for every module has one.
    """
    by_file: dict[str, list[KnownSite]] = {}
    for site in study.sites:
        by_file.setdefault(site.file, []).append(site)
    found = {}
    for file, uses in _by_file(observed.uses).items():
        if not (study.tree / file).is_file():
            continue
        nodes = _nodes(study.tree / file)
        statements = [head(node) for node in nodes if isinstance(node, ast.stmt)]
        called = {span(node) for node in nodes if _calls_a_name(node)}
        asked = {span(node) for node in nodes if _asks_for_a_state(node)}
        sites = [(site, _around(site.span, statements)) for site in by_file.get(file, ())]
        for use in (each for each in uses if each.span not in asked):
            around = _around(use.span, statements)
            there = (site for site, statement in sites if statement == around)
            found[use] = tuple(site for site in there if _is_of(use, site))
            if not found[use] and use.through in OF_FRAMEWORKS:
                code = OF_FRAMEWORKS[use.through]
                found[use] = tuple(s for s in study.sites if s.code == code and not s.edited)
            if not found[use] and use.span in called:
                found[use] = tuple(s for s in study.sites if s.hands_on and s.name == use.what)
    return found


def _by_file(uses: Iterable[Use]) -> dict[str, list[Use]]:
    found: dict[str, list[Use]] = {}
    for use in uses:
        found.setdefault(use.file, []).append(use)
    return found


def _is_of(use: Use, site: KnownSite) -> bool:
    if not use.span.has_columns:
        return True
    within = site.span.contains(use.span) or use.span.contains(site.span)
    return within or site.name == use.what


def _nodes(file: Path) -> list[ast.AST]:
    try:
        return list(ast.walk(ast.parse(file.read_bytes())))
    except (SyntaxError, ValueError):  # the project's Python is another; no site is in there either
        return []


def _asks_for_a_state(node: ast.AST) -> TypeGuard[ast.Call]:
    """``hasattr(thing, "state_dict")``."""
    match node:
        case ast.Call(func=ast.Name(id="hasattr"), args=[_, ast.Constant(value=name)]):
            return name in STATE_METHODS
    return False


def _calls_a_name(node: ast.AST) -> TypeGuard[ast.Call]:
    return isinstance(node, ast.Call) and isinstance(node.func, ast.Name | ast.Attribute)


def span(node: ast.expr | ast.keyword | ast.alias | ast.arg) -> Span:
    """Where something that is no statement stands."""
    last = node.end_lineno or node.lineno
    return Span(node.lineno, node.col_offset, last, node.end_col_offset or 0)


def head(node: ast.stmt) -> Span:
    """A statement without the statements in it, but with its decorators."""
    inner = [
        child
        for _, value in ast.iter_fields(node)
        if isinstance(value, list)
        for child in value
        if isinstance(child, ast.stmt | ast.ExceptHandler | ast.match_case)
    ]
    decorators = getattr(node, "decorator_list", [])
    line, column = min([(node.lineno, node.col_offset), *((d.lineno, 0) for d in decorators)])
    last, last_column = node.end_lineno or line, node.end_col_offset or 0
    for child in inner[:1]:
        first = child.pattern if isinstance(child, ast.match_case) else child
        wrapped = getattr(child, "decorator_list", [])
        last = min([first.lineno, *(d.lineno for d in wrapped)])
        last_column = 0 if wrapped else first.col_offset
    return Span(line, column, last, last_column)


def _around(span: Span, statements: Sequence[Span]) -> Span | None:
    """The innermost statement around an expression."""
    around = [each for each in statements if each.contains(span)]
    return max(around, key=lambda each: (each.line, each.column), default=None)
