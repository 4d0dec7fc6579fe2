"""Write down what the engine now emits: ``python -m tests.accept [CODE ...]``.

Renews the rules' EXAMPLES and, without CODE, the fixtures' ``after``. For whoever changes emission:
run it, then read the diff as a reviewer. A new example
needs a title and ``before``; leave ``after`` empty.
"""

from __future__ import annotations

import ast
import sys
from collections.abc import Sequence
from pathlib import Path

from fsdp_migrate.planning.outcome import Outcome
from tests.migrating import (
    REGISTRY,
    files,
    migrate,
    migrated,
    support_functions,
    without_support,
    worst,
)

PROJECTS = (Path(__file__).parents[1] / "fixtures" / "demo",)


def literal(text: str) -> str:
    """``text`` as the triple-quoted string that rule files use."""
    return '"""\\\n' + text.replace("\\", "\\\\").replace('"""', '\\"\\"\\"') + '"""'


def rendered(call: ast.Call) -> str:
    """One ``Example(...)`` with what its sources become."""
    given = {k.arg: k.value for k in call.keywords}
    title, before = ast.literal_eval(given["title"]), ast.literal_eval(given["before"])
    files = ast.literal_eval(given["files"]) if "files" in given else {}
    sources = {"example.py": before, **{p: pair[0] for p, pair in files.items()}}
    result, after = migrate(sources)
    functions = support_functions(after)
    kept = without_support(after)
    lines = [
        "    Example(",
        f"        title={quoted(title)},",
        f"        before={literal(before)},",
        f"        after={literal(kept['example.py'])},",
    ]
    outcome = worst(result)
    if outcome is None:
        raise SystemExit(f"{title}: has no site")
    if outcome is not Outcome.REWRITTEN:
        lines.append(f"        outcome=Outcome.{outcome.name},")
    if files:
        lines.append("        files={")
        for path, (old, _) in files.items():
            lines += [f'            "{path}": (', f"{' ' * 16}{literal(old)},"]
            lines += [f"{' ' * 16}{literal(kept[path])},", "            ),"]
        lines.append("        },")
    if functions:
        inner = [f"            {quoted(f)}," for f in sorted(functions)]
        one = len(inner) == 1
        lines += (
            [f"        support=({inner[0].strip()}),"]
            if one
            else ["        support=(", *inner, "        ),"]
        )
    return "\n".join([*lines, "    )"])


def quoted(text: str) -> str:
    return repr(text) if '"' in text else f'"{text}"'


def accept(path: Path) -> bool:
    """Renew one rule file; whether it changed."""
    text = path.read_text(encoding="utf-8")
    lines = text.splitlines(keepends=True)
    starts = [0]
    for line in lines:
        starts.append(starts[-1] + len(line))
    new = text
    for node in reversed(list(ast.walk(ast.parse(text)))):
        if isinstance(node, ast.Call) and getattr(node.func, "id", "") == "Example":
            assert node.end_lineno is not None
            first, last = starts[node.lineno - 1], starts[node.end_lineno]
            tail = new[last:]
            new = new[:first] + rendered(node) + ",\n" + tail
    if new != text:
        path.write_text(new, encoding="utf-8")
    return new != text


def accept_project(project: Path) -> bool:
    """Renew ``after`` of a fixture made by the tool; whether it changed."""
    new = migrated(project / "before")
    old = files(project / "after")
    for name, text in new.items():
        path = project / "after" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
    for name in set(old) - set(new):
        (project / "after" / name).unlink()
    return old != new


def main(codes: Sequence[str]) -> None:
    for rule in REGISTRY.rules.values():
        if (not codes or rule.code in codes) and accept(rule.path):
            print(f"{rule.path.name} changed")
    for project in () if codes else PROJECTS:
        if accept_project(project):
            print(f"{project.name} changed")


if __name__ == "__main__":
    main(sys.argv[1:])
