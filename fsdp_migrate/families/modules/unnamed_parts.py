"""Parts that a model makes and no code in sight ever names again.

FSDP1 had their parameters in the flat tensor of a unit, and gave them gradients of zero: an
optimizer's weight decay moved them, and its state had them. FSDP2 gives them none. Where no
optimizer in sight moves anything by a gradient of zero, nor has its state saved, nothing differs.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from dataclasses import dataclass, field

from fsdp_migrate.analysis.module import Module
from fsdp_migrate.analysis.values import Class
from fsdp_migrate.families.modules.conditional_parts import ConditionalParts
from fsdp_migrate.planning.context import Study
from fsdp_migrate.syntax.expressions import last_name
from fsdp_migrate.syntax.trees import walk

# What asks a module for all of its parts, whatever their names are.
ALL = ("children", "named_children", "modules", "named_modules", "_modules", "__dict__")
BY_NAME = ("getattr", "vars", "__getattr__", "get_submodule", "get_parameter", "attrgetter")
# Optimizers that leave a parameter with a gradient of zero where it is, without weight decay.
STILL = frozenset({"Adam", "Adamax", "Adagrad", "Adadelta", "RMSprop", "Rprop", "SGD", "NAdam"})
CLASS = re.compile("Adam|SGD|RMSprop|Rprop|Adagrad|Lion|Lamb|LAMB|Muon|Shampoo|Adafactor")
MAKER = re.compile("[Oo]ptimizers?$")
STATES = ("optim_state_dict", "optimizer_state_dict", "full_optim_state_dict")


def unnamed(cls: Class, reader: ConditionalParts, study: Study) -> list[str]:
    """The parts of a class that its ``__init__`` makes, in the order of their names."""
    made = {
        target.attr: node.value
        for method in cls.node.body
        if isinstance(method, ast.FunctionDef) and method.name == "__init__"
        for node in walk(method)
        if isinstance(node, (ast.Assign, ast.AnnAssign)) and isinstance(node.value, ast.Call)
        for target in (node.targets if isinstance(node, ast.Assign) else [node.target])
        if isinstance(target, ast.Attribute) and getattr(target.value, "id", "") == "self"
    }
    named = study.cache(_Named.of)
    found = sorted(name for name, call in made.items() if name not in named and _trains(call))
    if not found or not _is_read(cls, reader, study) or not study.cache(_moves):
        return []
    return [name for name in found if reader.part(study.values(made[name], cls.module))]


def _trains(call: ast.Call) -> bool:
    """Whether what a call makes is not frozen by an argument of its own."""
    given = {keyword.arg: keyword.value for keyword in call.keywords}
    frozen = given.get("requires_grad")
    return not (isinstance(frozen, ast.Constant) and frozen.value is False)


def _is_read(cls: Class, reader: ConditionalParts, study: Study) -> bool:
    """Whether the class's code tells all that its forward runs."""
    bases = study.tracer.external_bases(cls)
    if any(b.startswith("torch.nn.") and not b.endswith(".Module") for b in bases):
        return False  # nn.Sequential runs what it has
    if not all(b.split(".")[0] in {"torch", "abc", "typing", "builtins"} for b in bases):
        return False
    found = reader.methods.find(cls, "forward")
    if found is None:
        return False
    return not any(
        _asks_for_all(node) for related in study.tracer.lineage(cls) for node in walk(related.node)
    )


def _asks_for_all(node: ast.AST) -> bool:
    match node:
        case ast.Attribute(attr=attr):
            return attr in ALL or attr in BY_NAME
        case ast.Name(id=name):
            return name in BY_NAME
    return False


@dataclass
class _Named:
    """The names by which code asks for attributes, strings among them."""

    names: set[str] = field(default_factory=set)
    text: str = ""

    @staticmethod
    def of(study: Study) -> _Named:
        found = _Named()
        for module in study.project.modules:
            found.names.update(_asked(module))
        found.text = study.project.library.joined_text.decode(errors="replace")
        return found

    def __contains__(self, name: str) -> bool:
        return name in self.names or f".{name}" in self.text


def _asked(module: Module) -> Iterator[str]:
    table = module.table
    for attribute in table.attributes:
        if isinstance(attribute.ctx, ast.Load) and not _initialises(attribute, module):
            yield attribute.attr
    for constant in table.strings:
        yield str(constant.value)


def _initialises(attribute: ast.Attribute, module: Module) -> bool:
    """Whether an attribute is read for its first values alone: ``nn.init.zeros_(self.a.bias)``."""
    if getattr(attribute.value, "id", "") != "self":
        return False
    node: ast.AST = attribute
    parents = module.table.parents
    while isinstance(parents.get(node), ast.Attribute):
        node = parents[node]
    call = parents.get(node)
    if not isinstance(call, ast.Call) or not isinstance(parents.get(call), ast.Expr):
        return False
    if call.func is node:
        return last_name(node).endswith("_") and last_name(node) != "requires_grad_"
    return ".init." in f".{ast.unparse(call.func)}" and node in call.args


def _moves(study: Study) -> bool:
    """Whether some optimizer in sight may move what has gradients of zero, or is asked for its
    state by names; also where no optimizer is in sight."""
    if study.project.mentions(*STATES):
        return True
    return any(
        _decays(call)
        for module in study.project.modules
        for call in module.table.calls
        if CLASS.search(last_name(call.func))
        or (MAKER.search(last_name(call.func)) and study.external(call.func, module))
    )


def _decays(call: ast.Call) -> bool:
    name = last_name(call.func)
    given = [k for k in call.keywords if k.arg in {"weight_decay", None}]
    given_none = all(isinstance(k.value, ast.Constant) and k.value.value == 0 for k in given)
    if given and given[0].arg and given_none:
        return name not in STILL | {"AdamW"}
    in_groups = any("weight_decay" in ast.unparse(a) for a in call.args)
    return bool(given) or in_groups or name not in STILL or len(call.args) > 3
