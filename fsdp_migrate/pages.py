"""What rule files say about themselves, read as text: nothing in them is run."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

PATTERN = "FSDP[0-9][0-9][0-9]_*.py"
HEADINGS = ("What changes", "Why", "What stays for you", "Since torch", "References")


def bundled() -> Path:
    """The directory of the rules that ship with the tool: installed, or in a checkout."""
    here = Path(__file__).resolve().parent
    installed = here / "_rules"
    return installed if installed.is_dir() else here.parent / "rules"


@dataclass(frozen=True)
class Page:
    """A rule file's documentation."""

    code: str
    name: str
    document: str
    path: Path

    @property
    def summary(self) -> str:
        """The first line, without its full stop."""
        return self.document.split("\n", 1)[0].rstrip(".")

    @property
    def body(self) -> str:
        return self.document.partition("\n")[2].strip()

    def section(self, heading: str) -> str:
        """The text under one of ``HEADINGS``."""
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
                    bare = re.sub(r"^\w+\((\w+)=?\)$", r"\1", construct)
                    found.append(bare.removeprefix("FullyShardedDataParallel.").rstrip("()"))
        return tuple(dict.fromkeys(f for f in found if f and f != "*"))

    def example(self) -> tuple[str, str] | None:
        """Before and after of the first example."""
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
        for path in sorted(directory.glob(PATTERN)):
            code, _, name = path.stem.partition("_")
            # Ours are what they are, whatever a project calls its own.
            found.setdefault(code, Page(code, name, _docstring(path), path))
    return sorted(found.values(), key=lambda p: p.code)


def _docstring(path: Path) -> str:
    """A file's docstring without parsing the rest of it."""
    text = path.read_text(encoding="utf-8", errors="replace")
    found = re.match(r'\s*"""(.*?)"""', text, re.DOTALL)
    return found.group(1).strip() if found else ""
