"""Which device an FSDP1 constructor put its model on, as far as the code says.

FSDP1 took ``device_id``: a ``torch.device`` as it is, an index as one of the machine's accelerator,
and for nothing at all the current accelerator. ``fully_shard`` takes the device from the mesh: by
default the current accelerator's type, even under gloo.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Collection
from dataclasses import dataclass

from fsdp_migrate.analysis.module import Module
from fsdp_migrate.analysis.values import Computed, Constant, Function, Made, Unknown, Value
from fsdp_migrate.planning.context import Study
from fsdp_migrate.planning.model import Constructor
from fsdp_migrate.syntax.kinds import of_kind
from fsdp_migrate.syntax.trees import last_part

ACCELERATOR = "the accelerator"  # whichever the machine has
UNKNOWN = "?"
CURRENT_DEVICE = re.compile(r"torch\.(\w+)\.current_(device|device_index|device_idx|accelerator)")
# What makes a device the current one: of torch.cuda, or of whatever module stands for a device.
SETTERS = frozenset({"set_device", "set_device_index", "set_device_idx"})
SET_DEVICE = frozenset({"torch.cuda.device", *(f"torch.cuda.{name}" for name in SETTERS)})
# What gives an index, and what an index is called.
INDEX = re.compile(r"builtins\.(int|len)|torch\.distributed\.(\w+\.)*get_\w*rank")
INDEX_NAME = re.compile(r"rank|gpu|index|idx|ordinal", re.IGNORECASE)


@dataclass(frozen=True)
class Device:
    """What a value says of a device.

    ``kinds`` are the types of device that it may be, ``is_object`` says that it is a
    ``torch.device``, ``is_optional`` that it may be None. ``chooses``: it may have an index that
    the current device has not. ``is_bare``: it may be an accelerator without an index.
    """

    kinds: frozenset[str]
    is_object: bool = False
    is_optional: bool = False
    chooses: bool = False
    is_bare: bool = False

    @property
    def certain(self) -> str:
        """The only possible type, or nothing."""
        known = self.kinds - {ACCELERATOR, UNKNOWN}
        return next(iter(known)) if known == self.kinds and len(known) == 1 else ""

    @property
    def is_accelerator(self) -> bool:
        """Whether it is the machine's accelerator in any case, whose mesh is the default."""
        return not self.kinds & {UNKNOWN, "cpu", "meta"}


NOTHING = Device(frozenset({ACCELERATOR}), is_optional=True)
INDEX_GIVEN = Device(frozenset({ACCELERATOR}), chooses=True)
ANYTHING = Device(frozenset({UNKNOWN}), chooses=True, is_bare=True)


def read(constructor: Constructor, study: Study) -> Device:
    """What the constructor's ``device_id`` says of the device."""
    node = constructor.arguments.get("device_id")
    return NOTHING if node is None else read_value(node, constructor.module, study)


def are_on_cpu(models: Collection[Constructor], study: Study) -> bool:
    """Whether all that models have is on the CPU, by what their ``device_id`` says."""
    return not study.may_ignore(models) and {read(c, study).certain for c in models} == {"cpu"}


def read_value(node: ast.expr, module: Module, study: Study) -> Device:
    """What an expression for a device says of it: ``torch.device("cuda", 0)``."""
    values = study.values(node, module)
    found = [_of_value(v, node, study) for v in values] or [ANYTHING]
    return Device(
        frozenset().union(*(d.kinds for d in found)),
        is_object=all(d.is_object for d in found),
        is_optional=any(d.is_optional for d in found),
        chooses=any(d.chooses for d in found),
        is_bare=any(d.is_bare for d in found),
    )


def _of_value(value: Value, node: ast.expr, study: Study) -> Device:
    if isinstance(value, Constant) and value.value is None:
        return NOTHING
    if isinstance(value, Constant) and isinstance(value.value, int):
        return INDEX_GIVEN
    made = value.made_by if isinstance(value, Made) else ""
    current = CURRENT_DEVICE.fullmatch(made)
    if current is not None:
        kind = ACCELERATOR if current[1] == "accelerator" else current[1]
        return Device(frozenset({kind}), is_object=current[2] == "accelerator")
    if made == "torch.device":
        return _constructed(value, study)
    if INDEX.fullmatch(made):
        return INDEX_GIVEN
    text = _beginning(value.node)
    if text is not None:
        return _spelled(text, value)
    if isinstance(value, Computed) and isinstance(value.node, ast.BinOp):
        return INDEX_GIVEN  # rank % count
    said = _annotated(value, study)
    if said is not None:
        return said
    if INDEX_NAME.search(_name(node)) or INDEX_NAME.search(_name(value.node)):
        return INDEX_GIVEN
    return ANYTHING


def _constructed(value: Value, study: Study) -> Device:
    """What ``torch.device("cuda", 0)``, ``torch.device(f"cuda:{rank}")`` and so on are."""
    call = of_kind(value.node, ast.Call)
    given = {k.arg: k.value for k in call.keywords}
    first = given.get("type", given.get("device", call.args[0] if call.args else None))
    index = given.get("index", call.args[1] if len(call.args) > 1 else None)
    if first is None:
        return Device(frozenset({UNKNOWN}), is_object=True, chooses=True, is_bare=True)
    kinds: set[str] = set()
    chooses = is_bare = False
    for each in study.tracer.evaluate(first, value.module, value.frame) or [value]:
        said = ANYTHING if each is value else _of_value(each, first, study)
        kinds |= said.kinds
        # What a configuration says is the same on every rank.
        same = said is ANYTHING and isinstance(each, (Unknown, Constant))
        chooses = chooses or (said.chooses and not (same and _is_configured(each.node)))
        is_bare = is_bare or said.is_bare
    if index is not None:
        is_bare = False
        is_first = isinstance(index, ast.Constant) and index.value == 0
        indices = study.tracer.evaluate(index, value.module, value.frame) or [value]
        chooses = not is_first and any(_of_value(v, index, study).chooses for v in indices)
    return Device(frozenset(kinds), is_object=True, chooses=chooses, is_bare=is_bare)


def _spelled(text: str, value: Value) -> Device:
    """What a string says of the device, or the beginning of one: ``"cuda:"`` of ``"cuda:0"``."""
    kind, colon, index = text.partition(":")
    is_whole = isinstance(value.node, ast.Constant)
    if (not colon and not is_whole) or (is_whole and not is_fixed(value)):
        return ANYTHING
    bare = not colon and kind != "cpu"
    # The first device is current as long as nothing makes another one so.
    chooses = bool(colon) and index != "0" and kind != "cpu"
    return Device(frozenset({kind}), chooses=chooses, is_bare=bare)


def _beginning(node: ast.AST) -> str | None:
    """The beginning of the string that an expression makes; None if it makes none."""
    match node:
        case ast.Constant(value=str(text)):
            return text
        case ast.JoinedStr(values=[first, *_]):
            return _beginning(first) or ""
        case ast.JoinedStr() | ast.FormattedValue():
            return ""
        case ast.BinOp(left=left, op=ast.Add() | ast.Mod()):
            return _beginning(left)
        case ast.Call(func=ast.Attribute(value=template, attr="format")):
            return _beginning(template)
    return None


def is_fixed(value: Value) -> bool:
    """Whether a constant is final: no default that a command line or a file may change."""
    table = value.module.table
    if table.names_by_id.named("exec"):
        return False
    child: ast.AST = value.node
    for parent in table.ancestors(child):
        if isinstance(parent, (ast.ClassDef, ast.Dict)):
            return False
        if isinstance(parent, ast.arguments):
            function = table.parents[parent]
            return not getattr(function, "decorator_list", [])
        if isinstance(parent, ast.Call) and child not in parent.args:
            return last_part(parent.func) != "dict"
        if isinstance(parent, ast.stmt):
            return not isinstance(table.parents[parent], ast.ClassDef)
        child = parent
    return True


def _annotated(value: Value, study: Study) -> Device | None:
    """What the annotation of a parameter says of the device, where no caller is known."""
    annotation = value.node.annotation if isinstance(value.node, ast.arg) else None
    if annotation is None:
        return None
    names = study.external(annotation, value.module)
    if "torch.device" in names:
        return Device(frozenset({UNKNOWN}), is_object=True, chooses=True, is_bare=True)
    if isinstance(annotation, ast.Name) and annotation.id == "int":
        return INDEX_GIVEN
    return None


def _is_configured(node: ast.AST) -> bool:
    """Whether a value is read off an object of settings: ``args.device``, ``config["device"]``."""
    if isinstance(node, (ast.Attribute, ast.Subscript)):
        return not (isinstance(node.value, ast.Name) and node.value.id == "self")
    return isinstance(node, ast.Constant)


def _name(node: ast.AST) -> str:
    """The last part of a value's name: ``device`` of ``args.device`` and ``config["device"]``."""
    if isinstance(node, ast.arg):
        return node.arg
    if isinstance(node, ast.Subscript) and isinstance(node.slice, ast.Constant):
        return str(node.slice.value)
    return last_part(node) if isinstance(node, (ast.Attribute, ast.Name)) else ""


def sets_device(constructor: Constructor, study: Study) -> bool:
    """Whether the project chooses the current device anywhere (``torch.cuda.set_device``).

    Files that know nothing of FSDP are not searched, but for those that the device comes from.
    """
    node = constructor.arguments["device_id"]
    origins = {value.module: None for value in study.values(node, constructor.module)}
    calls = list(study.tracer.calls_named("device", *SETTERS))
    calls += [(call, module) for module in origins for call in module.table.calls]
    return any(is_setter(call, module, study) for call, module in calls)


def is_setter(call: ast.Call, module: Module, study: Study) -> bool:
    """Whether a call makes a device the current one: ``device_module.set_device(rank)``."""
    names = study.external(call.func, module)
    if names or last_part(call.func) not in SETTERS:
        return any(n in SET_DEVICE or n.rpartition(".")[2] in SETTERS for n in names)
    # A function of the project's own makes none current unless it calls one of these itself.
    return not any(isinstance(v, Function) for v in study.values(call.func, module))
