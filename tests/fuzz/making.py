"""Programs made from others by accidents."""

from __future__ import annotations

import ast
import io
import random
import tokenize
import warnings
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from tests.helpers.migrating import REGISTRY

FIXTURES = Path(__file__).parents[2] / "fixtures"
LAYOUT = frozenset({tokenize.NL, tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT})
MOST = 400  # lines of a program: longer ones take long


@dataclass(frozen=True)
class Accident:
    """A program, what it was made from, and how."""

    name: str
    way: str
    text: str


@cache
def bases() -> tuple[tuple[str, str], ...]:
    """Every fixture and example with its text."""
    found = {}
    for path in sorted(FIXTURES.rglob("*.py")):
        if "after" not in path.parts:
            found[path.relative_to(FIXTURES).as_posix()] = path.read_text(encoding="utf-8")
    for rule in REGISTRY.rules.values():
        for example in rule.examples:
            found[f"{rule.code} {example.title}"] = example.before
        for keep in rule.keep:
            found[f"{rule.code} keeps {keep.title}"] = keep.source
    return tuple((n, t) for n, t in found.items() if "\r" not in t and t.count("\n") <= MOST)


def accidents(seed: int) -> Iterator[Accident]:
    """Programs that parse, without end; a seed makes always the same."""
    drawn = random.Random(seed)
    every = bases()
    while True:
        name, text = drawn.choice(every)
        way = drawn.choice(("lost", "doubled", "swapped", "spliced"))
        try:
            made = _spliced(text, drawn, every) if way == "spliced" else _tokens(text, way, drawn)
        except (tokenize.TokenError, SyntaxError, IndexError):
            continue
        if made != text and _parses(made):
            yield Accident(name, way, made)


def _tokens(text: str, way: str, drawn: random.Random) -> str:
    """One to three tokens lost, doubled or swapped with another."""
    for _ in range(drawn.randint(1, 3)):
        tokens = [
            token
            for token in tokenize.generate_tokens(io.StringIO(text).readline)
            if token.type not in LAYOUT and token.string
        ]
        starts = [0]
        for line in text.splitlines(keepends=True):
            starts.append(starts[-1] + len(line))
        token, other = drawn.choice(tokens), drawn.choice(tokens)
        first, last = (starts[row - 1] + column for row, column in (token.start, token.end))
        new = {"lost": "", "doubled": f"{token.string} {token.string}", "swapped": other.string}
        text = text[:first] + new[way] + text[last:]
    return text


def _spliced(text: str, drawn: random.Random, every: tuple[tuple[str, str], ...]) -> str:
    """Statements of one program among those of another."""
    there = ast.parse(drawn.choice(every)[1])
    bodies = [
        node
        for node in ast.walk(there)
        if isinstance(node, ast.stmt) and not isinstance(node, ast.ImportFrom)
    ]
    taken = ast.unparse(drawn.choice(bodies)).split("\n")
    lines = text.split("\n")
    at = drawn.randrange(len(lines))
    indent = lines[at][: len(lines[at]) - len(lines[at].lstrip())]
    return "\n".join([*lines[:at], *(f"{indent}{line}" for line in taken), *lines[at:]])


def _parses(text: str) -> bool:
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            compile(text, "<made>", "exec", dont_inherit=True)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return False
    return True
