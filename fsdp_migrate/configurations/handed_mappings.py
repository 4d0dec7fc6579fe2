"""Settings that a program has in a mapping, a text or an attribute, for somebody else to read.

``{"distributed_type": "FSDP", "fsdp_config": {...}}`` becomes a file of accelerate's, and so does
a text that is one; ``{"fsdp": "full_shard auto_wrap"}`` becomes arguments of transformers.
"""

from __future__ import annotations

import ast
import re
from itertools import pairwise
from pathlib import Path

from fsdp_migrate.analysis.module import Module
from fsdp_migrate.configurations import recognise
from fsdp_migrate.configurations.block import File
from fsdp_migrate.configurations.formats import yaml
from fsdp_migrate.configurations.formats.text import Text
from fsdp_migrate.configurations.known_keys import BESIDE_AXOLOTL, OPTIONS
from fsdp_migrate.configurations.settings import Setting
from fsdp_migrate.planning.context import Study

KIND, SECTION = "distributed_type", "fsdp_config"
PRECISIONS = ("bf16", "fp16")
BESIDE = ("num_machines", "num_processes", "mixed_precision")
OF_COMMAND = re.compile(
    r"--fsdp[ =]+[\"']?((?:full_shard|shard_grad_op|no_shard|hybrid_shard)[\w ]*)"
)
OF_TEXT = re.compile(r"(?m)^[ \t]*distributed_type:[ \t]*[\"']?FSDP\b")


def setting(name: str, node: ast.expr, module: Module, study: Study) -> Setting:
    """What an expression sets, where that is plain: a constant, or a list of them."""
    known = study.literal(node, module)
    value: object = known.value if known is not None else ...
    if isinstance(node, ast.List | ast.Tuple):
        elements = [e.value for e in node.elts if isinstance(e, ast.Constant)]
        value = tuple(elements) if len(elements) == len(node.elts) else ...
    if value is None or isinstance(value, str | bool | int | float | tuple):
        return Setting(name, value)
    return Setting(name, None, f"it is {ast.unparse(node)}")


def pairs(node: ast.AST) -> dict[str, ast.expr]:
    """What a mapping has by name: a dictionary, or the keywords of a call."""
    if isinstance(node, ast.Call):
        return {k.arg: k.value for k in node.keywords if k.arg is not None}
    if not isinstance(node, ast.Dict):
        return {}
    return {
        key.value: value
        for key, value in zip(node.keys, node.values, strict=True)
        if isinstance(key, ast.Constant) and isinstance(key.value, str)
    }


def of_accelerate(node: ast.AST, module: Module, study: Study) -> dict[str, Setting]:
    """The settings of a mapping that is one of accelerate's files."""
    given = pairs(node)
    kind, section = given.get(KIND), given.get(SECTION)
    if kind is None or section is None or not _is_fsdp(kind, module, study):
        return {}
    found = {KIND: Setting(KIND, "FSDP")}
    for name in BESIDE:
        if name in given:
            found[name] = setting(name, given[name], module, study)
    for key, value in pairs(section).items():
        name = key if "fsdp" in key else f"fsdp_{key}"
        found[name] = setting(name, value, module, study)
    return found


def _is_fsdp(kind: ast.expr, module: Module, study: Study) -> bool:
    known = study.literal(kind, module)
    named = kind.attr if isinstance(kind, ast.Attribute) else known.value if known else ""
    return str(named).upper() == "FSDP"


def of_text(node: ast.AST) -> dict[str, Setting]:
    """The settings of a text that is one of accelerate's files."""
    text = _text(node)
    if OF_TEXT.search(text) is None or SECTION not in text:
        return {}
    file = File(Path("text.yaml"), "", Text(text))
    try:
        blocks = recognise.blocks_of_yaml(file, yaml.read(text))
    except yaml.NotYaml:
        return {}
    return next((b.settings for b in blocks if b.code == recognise.ACCELERATE), {})


def _text(node: ast.AST) -> str:
    """A text, with ``${_}`` for what is filled in."""
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
        return node.value
    parts = node.values if isinstance(node, ast.JoinedStr) else []
    return "".join(str(p.value) if isinstance(p, ast.Constant) else "${_}" for p in parts)


def of_transformers(node: ast.AST, module: Module, study: Study) -> dict[str, Setting]:
    """The settings of a mapping, of an assignment to ``x.fsdp`` or ``x["fsdp"]``, or of words for
    a command line."""
    given = pairs(node)
    if isinstance(node, ast.Assign) and _name(node.targets[0]) == "fsdp":
        given = {"fsdp": node.value}
    fsdp = given.get("fsdp") or _named(node)
    if fsdp is None or len(BESIDE_AXOLOTL & {*given}) > 1:  # axolotl's, which has other keys
        return {}
    found = setting("fsdp", fsdp, module, study)
    listed = found.value if isinstance(found.value, tuple) else str(found.value or "").split()
    if not listed or not {str(word) for word in listed} <= OPTIONS:
        return {}
    inner = pairs(given[SECTION]) if SECTION in given else {}
    beside = {name: given[name] for name in PRECISIONS if name in given}
    values = (beside | inner).items()
    return {"fsdp": found, **{name: setting(name, v, module, study) for name, v in values}}


def _named(node: ast.AST) -> ast.expr | None:
    """What follows the word for it: in ``setattr(x, "fsdp", v)``, or among words of a command."""
    words = node.args if isinstance(node, ast.Call) else []
    words = node.elts if isinstance(node, ast.List | ast.Tuple) else words
    for word, following in pairwise(words):
        if isinstance(word, ast.Constant) and word.value in {"fsdp", "--fsdp"}:
            return following
    text = OF_COMMAND.search(_text(node))
    return ast.Constant(text[1]) if text is not None else None


def _name(target: ast.expr) -> str:
    """What an attribute or a key is called."""
    if isinstance(target, ast.Attribute):
        return target.attr
    key = target.slice if isinstance(target, ast.Subscript) else None
    return str(key.value) if isinstance(key, ast.Constant) else ""
