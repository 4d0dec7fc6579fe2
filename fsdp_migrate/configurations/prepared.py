"""Calls of accelerate's ``prepare`` that version 2 stops at: parts that belong together, apart."""

from __future__ import annotations

import ast
import re
from collections.abc import Callable, Iterable
from pathlib import Path

from fsdp_migrate.configurations.frameworks.accelerate import PREPARED
from fsdp_migrate.configurations.settings import Setting
from fsdp_migrate.syntax.expressions import last_name

NAMES = ("prepare", "prepare_model")
OPTIMIZER = re.compile(r"optim|(?:^|_)opt(?:$|_)")
BESIDE = re.compile("load|data|sched|tokenizer|scaler|iter")
ASIDE = frozenset({"accelerate", "transformers", "trl", "diffusers", "peft", "tests", "test"})
"""Directories of libraries, and of tests, which train nothing that settings are for."""


def is_part(call: ast.Call) -> bool:
    """Whether a call takes a model without its optimizer, the other way around, or two models, as
    far as names tell."""
    if last_name(call.func) == "prepare_model":
        return not any(k.arg == "evaluation_mode" for k in call.keywords)
    if any(isinstance(each, ast.Starred) for each in call.args):
        return False
    names = [last_name(each).lower() for each in call.args]
    optimizers = [name for name in names if OPTIMIZER.search(name)]
    models = [n for n in names if "model" in n and n not in optimizers and "conf" not in n]
    known = len(models) + len(optimizers) + sum(BESIDE.search(name) is not None for name in names)
    alone = bool(models) != bool(optimizers) and known >= len(names)
    return alone or (len(models) > 1 and bool(optimizers))


def apart(
    read: Callable[[], Iterable[tuple[Path, bytes]]], display: Callable[[Path], str]
) -> Setting | None:
    """The first such call of the programs beside some settings."""
    for path, data in read():
        shown = display(path)
        if b".prepare" not in data or b"ccelerator" not in data or ASIDE & {*Path(shown).parts}:
            continue
        try:
            tree = ast.parse(data)
        except (SyntaxError, ValueError, RecursionError):
            continue
        own = {"accelerator", *_accelerators(tree)}
        for node in ast.walk(tree):
            func = node.func if isinstance(node, ast.Call) else None
            if not isinstance(func, ast.Attribute) or func.attr not in NAMES:
                continue
            if last_name(func.value) in own and isinstance(node, ast.Call) and is_part(node):
                return Setting(PREPARED, f"{ast.unparse(func)}() at {shown}:{node.lineno}")
    return None


def _accelerators(tree: ast.Module) -> Iterable[str]:
    """What a program calls its ``Accelerator(...)``."""
    for node in ast.walk(tree):
        made = node.value if isinstance(node, ast.Assign) else None
        if isinstance(made, ast.Call) and last_name(made.func) == "Accelerator":
            yield from map(last_name, node.targets) if isinstance(node, ast.Assign) else ()
