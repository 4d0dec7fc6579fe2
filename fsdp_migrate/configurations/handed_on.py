"""Settings of accelerate that a program hands on: to its own environment, or to what it starts.

``os.environ["FSDP_SHARDING_STRATEGY"] = "FULL_SHARD"``, a dictionary of such variables, the
words ``"accelerate", "launch", "--use_fsdp"`` in a list, or in one text, and what it writes as a
file of accelerate's.
"""

from __future__ import annotations

import ast
import re
import shlex
from collections.abc import Iterator
from typing import NamedTuple

from fsdp_migrate.analysis.module import Module
from fsdp_migrate.configurations import handed_mappings
from fsdp_migrate.configurations.settings import Setting
from fsdp_migrate.configurations.variables import OF_ACCELERATE, VARIABLES, setting_of
from fsdp_migrate.planning.context import Study
from fsdp_migrate.syntax.trees import walk

WORDS = ("FSDP_", "ACCELERATE_USE_FSDP", "use_fsdp", "--fsdp_", "fsdp_config")
ENVIRONMENT = frozenset({"os.environ"})
SETTERS = frozenset({"os.environ.setdefault", "os.putenv"})
OWN = "ACCELERATE_USE_FSDP"  # a name that nobody else gives a variable
READERS = frozenset({"accelerate", "transformers", "trl"})
FLAG = re.compile(r"--((?:use_fsdp|fsdp_\w+)|num_machines|num_processes|mixed_precision)(?:=(.*))?")
SETTING = (ast.Assign, ast.Call, ast.Dict)  # variables of an environment
SAYING = (ast.List, ast.Tuple, ast.Constant)  # the words of a command
MAPPINGS = (ast.Dict, ast.Call)
TEXTS = (ast.Constant, ast.JoinedStr)
STARTERS = frozenset({"launch", "accelerate.commands.launch"})
PARSER = "launch_command_parser"  # accelerate's own, for the words of a command
VARIABLE, FLAGS, KEY = "variable", "flag", "key"


class Found(NamedTuple):
    """Settings that stand together, and how they are spelled there."""

    node: ast.expr
    settings: dict[str, Setting]
    form: str


def settings(module: Module, study: Study) -> list[Found]:
    """Each command that a module starts, and all variables that it sets, which are one run's."""
    is_library = not READERS.isdisjoint(module.name.split(".")[:-1])
    if is_library or not module.mentions(*WORDS):
        return []
    found: list[Found] = []
    of_environment: dict[str, Setting] = {}
    first: ast.expr | None = None
    looked_at: set[ast.AST] = set()  # what is said of them, or is inside of what was read
    for node in walk(module.source.tree):
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant | ast.JoinedStr):
            looked_at.add(node.value)  # a text about it
        elif isinstance(node, ast.JoinedStr):
            looked_at.update(node.values)
        sets = type(node) in SETTING
        for at, name, value in _variables(node, module, study) if sets else ():
            of_environment[setting_of(name)] = _setting(setting_of(name), value, module, study)
            if first is None or at.lineno < first.lineno:
                first = at
        command = _words(node, module, study) if type(node) in SAYING else {}
        if command:
            assert isinstance(node, ast.expr)
            found.append(Found(node, command, FLAGS))
        written = _written(node, module, study) if node not in looked_at else {}
        if written:
            assert isinstance(node, ast.expr)
            found.append(Found(node, written, KEY))
    if first is not None and (module.mentions(OWN) or _has_accelerate(study)):
        found.append(Found(first, of_environment, VARIABLE))
    return found


def _written(node: ast.AST, module: Module, study: Study) -> dict[str, Setting]:
    """What is a file of accelerate's once somebody writes it."""
    if type(node) in MAPPINGS:
        return handed_mappings.of_accelerate(node, module, study)
    return handed_mappings.of_text(node) if type(node) in TEXTS else {}


def _has_accelerate(study: Study) -> bool:
    """Whether something in the project may read the variables; their names alone may be its own."""
    return any(module.mentions(*sorted(READERS)) for module in study.project.modules)


def _variables(
    node: ast.AST, module: Module, study: Study
) -> Iterator[tuple[ast.expr, str, ast.expr]]:
    """The variables that a node sets, where a program says that they are of an environment."""
    pairs: list[tuple[ast.expr, ast.expr, ast.expr]] = []
    if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Subscript):
        target = node.targets[0]
        if _is_variable(target.slice) and study.external(target.value, module) & ENVIRONMENT:
            pairs = [(target, target.slice, node.value)]
    elif isinstance(node, ast.Call) and len(node.args) == 2 and not node.keywords:
        if _is_variable(node.args[0]) and study.external(node.func, module) & SETTERS:
            pairs = [(node, node.args[0], node.args[1])]
    elif isinstance(node, ast.Call):  # of a mapping: update(), dict()
        pairs = [(node, ast.Constant(name), v) for name, v in handed_mappings.pairs(node).items()]
    elif isinstance(node, ast.Dict):
        pairs = [(k, k, v) for k, v in zip(node.keys, node.values, strict=True) if k is not None]
    for at, key, value in pairs:
        if _is_variable(key):
            assert isinstance(key, ast.Constant)
            yield at, str(key.value), value


def _is_variable(key: ast.expr) -> bool:
    text = key.value if isinstance(key, ast.Constant) else None
    return isinstance(text, str) and OF_ACCELERATE.fullmatch(text) is not None


def is_of_version_1(found: dict[str, Setting]) -> bool:
    """Whether there is one of those that accelerate alone reads."""
    return handed_mappings.KIND in found or any(
        VARIABLES.fullmatch(name.upper()) or name == "use_fsdp" for name in found
    )


def _words(node: ast.AST, module: Module, study: Study) -> dict[str, Setting]:
    """The flags of an ``accelerate launch`` that a list or a text has."""
    words: list[str | None] = []
    parsed = isinstance(node, ast.List) and module.mentions(PARSER)
    if isinstance(node, ast.List | ast.Tuple):
        written = {text for each in node.elts for text in _written_for(each, module)}
        if not _is_command(written, parsed):
            return {}
        words = [_text(each, module, study) for each in node.elts]
    elif isinstance(node, ast.Constant) and isinstance(node.value, str):
        if "fsdp" not in node.value or not re.search(r"\baccelerate\s+launch\b", node.value):
            return {}
        try:
            words = [*shlex.split(node.value.replace("\\\n", " "), comments=True)]
        except ValueError:
            return {}
    if not _is_command({word for word in words if word is not None}, parsed):
        return {}
    found: dict[str, Setting] = {}
    for word, following in zip(words, [*words[1:], None], strict=True):
        match = FLAG.fullmatch(word) if word is not None else None
        if match is None:
            continue
        name, value = match.groups()
        if value is None and name != "use_fsdp":
            known = following is not None and not following.startswith("--")
            found[name] = Setting(name, following, "" if known else "it is not written out")
        else:
            found[name] = Setting(name, value)
    return found if any("fsdp" in name for name in found) else {}


def _is_command(words: set[str], parsed: bool) -> bool:
    """Whether words start accelerate, or are for its parser, and one is a flag of FSDP."""
    return (parsed or not STARTERS.isdisjoint(words)) and any(
        "fsdp" in word and FLAG.fullmatch(word) is not None for word in words
    )


def _written_for(node: ast.expr, module: Module) -> list[str]:
    """The texts that ``_text`` may answer with, as far as they are written beside ``node``: a list
    that has no word of a command is passed over before anybody asks for values."""
    bound: list[ast.expr | None] = [node]
    if isinstance(node, ast.Name):
        scope = module.table.scope_of(node).lookup(node.id)
        bound = [b.value for b in scope.bindings[node.id]] if scope is not None else []
    return [str(each.value) for each in bound if isinstance(each, ast.Constant)]


def _text(node: ast.expr, module: Module, study: Study) -> str | None:
    known = study.literal(node, module)
    return str(known.value) if known is not None else None


def _setting(name: str, node: ast.expr, module: Module, study: Study) -> Setting:
    known = study.literal(node, module)
    value = known.value if known is not None else None
    if known is not None and (value is None or isinstance(value, str | bool | int | float)):
        return Setting(name, value)
    return Setting(name, None, f"it is {ast.unparse(node)}")
