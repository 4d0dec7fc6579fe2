"""What the attributes of a project's modules hold: parameters, modules with some, or neither."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from enum import IntEnum
from typing import TYPE_CHECKING

from fsdp_migrate.analysis.values import Class, Display, External, Made, Value, Values
from fsdp_migrate.fsdp1 import api as fsdp1

if TYPE_CHECKING:
    from fsdp_migrate.planning.context import Study
MODULE_BASES = ("torch.nn.Module", "torch.nn.modules.module.Module")
PARAMETER = re.compile(r"^torch\.nn\.(parameter\.)?(Parameter|ParameterList|ParameterDict)$")
# Layers of torch.nn that have parameters, and what holds layers.
LAYER = re.compile(
    r"^torch\.nn\.(modules\.\w+\.)?(Lazy)?(Linear|Bilinear|NonDynamicallyQuantizableLinear|Conv\w+"
    r"|Embedding\w*|\w*Norm\w*|MultiheadAttention|Transformer\w*|RNN\w*|LSTM\w*|GRU\w*|PReLU"
    r"|AdaptiveLogSoftmaxWithLoss|ModuleList|ModuleDict|Sequential)$|^torch\.nn\.utils\."
)
SEQUENTIAL = re.compile(r"^torch\.nn\.(modules\.container\.)?Sequential$")
# Libraries of models, and what in them is none.
LIBRARIES = frozenset(
    (
        *("transformers", "timm", "peft", "diffusers", "torchvision", "open_clip", "clip"),
        *("sentence_transformers", "xformers", "flash_attn", "apex", "torch_geometric", "monai"),
    )
)
NO_MODEL = re.compile(r"token|process|extract|schedul|transform[s.]|config|loss|metric", re.I)
CONTAINER = re.compile(r"^torch\.nn\.(modules\.container\.)?(Sequential|ModuleList|ModuleDict)$")


def is_librarys_module(name: str) -> bool:
    """Whether what a library's class or function of this name makes is a module with parameters."""
    library = name.split(".", maxsplit=1)[0] in LIBRARIES
    return bool(LAYER.match(name)) or (library and not NO_MODEL.search(name))


class Kind(IntEnum):
    NOTHING = 0
    MODULE = 1  # with parameters
    PARAMETER = 2


class ModuleValues:
    """What the attributes of a project's modules hold."""

    def __init__(self, study: Study) -> None:
        self.study = study
        self._parametric: dict[ast.ClassDef, bool] = {}

    def kind(self, values: Values, depth: int = 0) -> Kind:
        """The highest kind among an attribute's values: a parameter counts more than a module."""
        return max((self._kind(v, depth) for v in values), default=Kind.NOTHING)

    def _kind(self, value: object, depth: int) -> Kind:
        match value:
            case Made(callee=Class() as cls):
                return Kind.MODULE if self._has_parameters(cls, depth) else Kind.NOTHING
            case Made(callee=External(name=name)):
                return self._external(value, name, depth)
        return Kind.NOTHING

    def _external(self, value: Made, name: str, depth: int) -> Kind:
        if PARAMETER.match(name):
            return Kind.PARAMETER
        if fsdp1.canonical(name) == fsdp1.FSDP:
            return Kind.MODULE
        if SEQUENTIAL.match(name) and isinstance(value.node, ast.Call):
            listed = value.node.args
            if depth < 5 and listed and not any(isinstance(a, ast.Starred) for a in listed):
                evaluate = self.study.tracer.evaluate
                parts = [evaluate(a, value.module, value.frame) for a in listed]
                return max(self.kind(part, depth + 1) for part in parts)
        return Kind.MODULE if is_librarys_module(name) else Kind.NOTHING

    def _has_parameters(self, cls: Class, depth: int) -> bool:
        known = self._parametric.get(cls.node)
        if known is None and depth < 5:
            self._parametric[cls.node] = False
            known = self._parametric[cls.node] = self._find_parameters(cls, depth)
        return bool(known)

    def _find_parameters(self, cls: Class, depth: int) -> bool:
        bases = self.study.tracer.external_bases(cls)
        if not any(b.startswith("torch.nn.") or b.split(".")[0] in LIBRARIES for b in bases):
            return False
        if any(b not in MODULE_BASES for b in bases):
            return any(LAYER.match(b) or b.split(".")[0] in LIBRARIES for b in bases)
        for owner in self.study.tracer.lineage(cls):
            for node in ast.walk(owner.node):
                if not isinstance(node, ast.Assign) or not isinstance(node.value, ast.Call):
                    continue
                stored = any(isinstance(t, (ast.Attribute, ast.Subscript)) for t in node.targets)
                if stored and node.value in owner.module.table.parents:
                    values = self.study.values(node.value, owner.module)
                    if self.kind(values, depth + 1):
                        return True
        return False

    def elements(self, values: Values) -> Values:
        """The values with containers of modules replaced by what they hold, where that is known."""
        found: set[Value] = set()
        for value in values:
            inside = set(self._elements(value)) if isinstance(value, Made) else set()
            found |= inside or {value}
        return frozenset(found)

    def _elements(self, container: Made) -> Iterator[Value]:
        if not CONTAINER.match(container.made_by) or not isinstance(container.node, ast.Call):
            return
        for argument in container.node.args:
            node = argument.value if isinstance(argument, ast.Starred) else argument
            for value in self.study.tracer.evaluate(node, container.module, container.frame):
                yield from self._displayed(value)

    def listed(self, values: Values) -> Iterator[Value]:
        """The values, with what lists and dictionaries that are written out hold."""
        for value in values:
            yield from self._displayed(value)

    def _displayed(self, value: Value) -> Iterator[Value]:
        evaluate = self.study.tracer.evaluate
        match value:
            case Display(node=ast.List(elts=nodes) | ast.Tuple(elts=nodes)):
                pass
            case Display(node=ast.ListComp(elt=node) | ast.GeneratorExp(elt=node)):
                nodes = [node]
            case Display(node=ast.Dict(values=nodes)):
                pass
            case Display(node=ast.DictComp(value=node)):
                nodes = [node]
            case _:
                yield value
                return
        for node in nodes:
            yield from evaluate(node, value.module, value.frame)
