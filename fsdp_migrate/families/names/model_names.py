"""Whether a string is a name that a module or parameter of a model has in the running program.

``for name, _ in model.named_parameters(): name.replace(...)`` has such names; the keys of a file
that ``torch.load`` reads are not.
"""

from __future__ import annotations

import ast
from typing import TYPE_CHECKING

from fsdp_migrate.analysis.flow import ELSEWHERE, Definition
from fsdp_migrate.analysis.module import Module
from fsdp_migrate.families.names.key_prefixes import PART
from fsdp_migrate.syntax.scopes import Kind

if TYPE_CHECKING:
    from fsdp_migrate.planning.context import Study
# Methods of strings that give back the string, or a part of it.
_PARTS = frozenset(
    {"lower", "lstrip", "removeprefix", "removesuffix", "replace", "rstrip", "strip"}
)
_NAMED = frozenset({"named_buffers", "named_children", "named_modules", "named_parameters"})
_COPIES = frozenset({"dict", "frozenset", "iter", "list", "reversed", "set", "sorted", "tuple"})

NAMES = "names"  # what goes over names
PAIRS = "pairs"  # over pairs that begin with a name
MAPPING = "mapping"  # a dict by name


def is_models(node: ast.expr, module: Module, study: Study) -> bool:
    """Whether a string is surely made of names that models have in the running program."""
    return ModelNames(study).is_name(node, module)


def meets_models(node: ast.expr, module: Module, study: Study) -> bool:
    """Whether a string is compared with names that models have."""
    parent = module.table.parents[node]
    if not isinstance(parent, ast.Compare):
        return False
    sides = [side for side in (parent.left, *parent.comparators) if side is not node]
    return all(ModelNames(study).is_name(side, module) for side in sides)


class ModelNames:
    """Follows names of models through the project.

    A value that depends on itself, as in a loop, counts as a name: its other values decide.
    """

    def __init__(self, study: Study) -> None:
        self.study = study
        self.passed: set[tuple[str, ast.AST]] = set()

    def is_name(self, node: ast.expr, module: Module) -> bool:
        match node:
            case ast.Constant(value=str(text)):
                return PART not in text
            case ast.Call(func=ast.Attribute(value=value, attr=attr)) if attr in _PARTS:
                return self.is_name(value, module)
            case ast.Name():
                definitions = self.study.defined_by(node, module)
                return bool(definitions) and all(self._is_named(d, module) for d in definitions)
        return False

    def _is_named(self, definition: Definition, module: Module) -> bool:
        if definition is ELSEWHERE:
            return False
        key = ("named", definition.node)
        if definition.kind is Kind.ASSIGN and definition.value is not None:
            if key in self.passed:
                return True
            self.passed.add(key)
            return not definition.unpack and self.is_name(definition.value, module)
        if definition.kind is Kind.ELEMENT and definition.value is not None:
            kind, place = self.goes_over(definition.value, module), definition.unpack
            match definition.value:
                case ast.Call(func=ast.Name(id="enumerate"), args=[inner]) if place[:1] == (1,):
                    kind, place = self.goes_over(inner, module), place[1:]
            return (kind in {NAMES, MAPPING} and not place) or (kind == PAIRS and place == (0,))
        if definition.kind is Kind.PARAMETER and isinstance(definition.node, ast.arg):
            if key in self.passed:
                return True
            self.passed.add(key)
            return self._is_given(definition.node, definition.value, module)
        return False

    def _is_given(self, arg: ast.arg, default: ast.expr | None, module: Module) -> bool:
        """Whether every call of a function gives it a model's name for one parameter."""
        function = module.table.parents[module.table.parents[arg]]
        if not isinstance(function, ast.FunctionDef) or arg.arg in {
            extra.arg for extra in (function.args.vararg, function.args.kwarg) if extra
        }:
            return False
        callers = self.study.tracer.callers(function, module)
        called = {id(site.call.func) for site in callers}
        for other in self.study.project.modules:
            mentions: list[ast.expr] = [n for n in other.table.names if n.id == function.name]
            mentions += [a for a in other.table.attributes if a.attr == function.name]
            if any(id(mention) not in called for mention in mentions):
                return False
        for site in callers:
            given = site.argument(function, arg.arg)
            where = site.module if given is not None else module
            given = given if given is not None else default
            spread = any(isinstance(a, ast.Starred) for a in site.call.args)
            spread = spread or any(k.arg is None for k in site.call.keywords)
            if given is None or spread or not self.is_name(given, where):
                return False
        return bool(callers)

    def goes_over(self, node: ast.expr, module: Module) -> str:
        """Whether an iterable gives models' names, or pairs with them, or is a dict by name."""
        match node:
            case ast.Call(func=ast.Attribute(attr=attr), args=[], keywords=[]) if attr in _NAMED:
                return PAIRS
            case ast.Call(func=ast.Attribute(value=model, attr="state_dict"), args=[], keywords=[]):
                return MAPPING if self.study.models(model, module) else ""
            case ast.Call(func=ast.Attribute(value=inner, attr="items" | "keys" as attr), args=[]):
                known = self.goes_over(inner, module) == MAPPING
                return (PAIRS if attr == "items" else NAMES) if known else ""
            case ast.Call(func=ast.Name(id=function), args=[inner, *_]) if function in _COPIES:
                kind = self.goes_over(inner, module)
                if function == "dict":
                    return MAPPING if kind in {PAIRS, MAPPING} and len(node.args) == 1 else ""
                return NAMES if kind == MAPPING else kind
        return ""
