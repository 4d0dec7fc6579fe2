"""Strings, and commands of notebooks, that spell names of FSDP1's."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

from fsdp_migrate.analysis.module import Module
from fsdp_migrate.analysis.project import Project
from fsdp_migrate.fsdp1 import api as fsdp1
from fsdp_migrate.fsdp1.construct import Construct, ConstructKind
from fsdp_migrate.fsdp1.site import Site

WRAPPER_NAMES = ("_fsdp_wrapped_module", "_flat_param", "_fpw_module")
FULL_PRECISION_EVAL = "FSDP_USE_FULL_PREC_IN_EVAL"  # an environment variable


def strings(module: Module) -> Iterator[Site]:
    """String literals that spell FSDP1's module or parameter names (key surgery)."""
    table = module.table
    for constant in table.strings:
        text = str(constant.value)
        if "_f" not in text:  # as all of them have, and hardly anything else
            continue
        found = next((name for name in WRAPPER_NAMES if name in text), None)
        around = table.parents[constant]
        is_prose = _is_message(around) if isinstance(around, ast.JoinedStr) else _is_prose(text)
        if found is None or is_docstring(module, constant) or is_prose:
            continue
        yield Site(Construct(ConstructKind.STRING, found), module, constant, constant)


def _is_message(text: ast.JoinedStr) -> bool:
    """Whether an f-string is for people, ``f"model._flat_param on {device}: {size}"``: a name that
    is put together has no spaces in it."""
    parts = [n.value if isinstance(n, ast.Constant) else "x" for n in text.values]
    return _is_prose("".join(map(str, parts)), words=2)


def _is_prose(text: str, words: int = 4) -> bool:
    """Whether a text is a sentence, such as a message or the help of an option: no name, no
    pattern of names, and no code."""
    if len(text.split()) < words or "\\" in text:
        return False
    try:
        body = ast.parse(text.strip()).body
    except (SyntaxError, ValueError):
        return True
    return all(isinstance(s, ast.AnnAssign) and s.value is None for s in body)  # "name: value"


COMMAND = Construct.parse("notebook command")


def commands(project: Project, module: Module, *, has_models: bool) -> Iterator[Site]:
    """What is no Python in a notebook, and speaks of FSDP1 or of what its models have."""
    excerpt = module.source.excerpt
    if excerpt is None or not excerpt.masks:
        return
    known = {
        binding.name
        for binding in module.table.imports
        if any(map(fsdp1.canonical, project.canonical(binding.qualified, module)))
    }
    for name in module.table.names:
        mask = excerpt.masks.get(name.id)
        if mask is None or mask.code:
            continue
        mentioned = mask.shares_names and not known.isdisjoint(re.findall(r"\w+", mask.text))
        used = has_models and mask.shares_names and OF_MODELS_TEXT.search(mask.text) is not None
        if mentioned or used or speaks_of_fsdp1(mask.text):
            yield Site(COMMAND, module, name, name)


OF_MODELS_TEXT = re.compile(r"\.(?:state_dict|load_state_dict|clip_grad_norm_|no_sync)\b")
FROM_TORCH = re.compile(r"\bfrom\s+torch\.distributed\s+import\b[^\n]*\bfsdp\b")


def speaks_of_fsdp1(text: str) -> bool:
    """Whether text that is not read as code has FSDP1's package or names in it."""
    known = any(word in text for word in (fsdp1.PACKAGE, *WRAPPER_NAMES))
    return known or FROM_TORCH.search(text) is not None


def evaluations(module: Module) -> Iterator[Site]:
    """The variable that makes FSDP1 evaluate in full precision."""
    for constant in module.table.strings:
        if constant.value == FULL_PRECISION_EVAL:
            yield Site(
                Construct(ConstructKind.STRING, FULL_PRECISION_EVAL), module, constant, constant
            )


def is_docstring(module: Module, node: ast.Constant) -> bool:
    """Whether a string is a statement by itself."""
    return isinstance(module.table.parents[node], ast.Expr)
