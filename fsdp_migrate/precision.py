"""Read FSDP1 ``MixedPrecision`` values and say what they are in FSDP2.

Field by field, from ``torch/distributed/fsdp/api.py`` and ``_fully_shard/_fsdp_api.py``:
``param_dtype`` and ``reduce_dtype`` mean the same; ``cast_forward_inputs`` is a property of every
unit in FSDP2 (default True), while FSDP1 casts the root's inputs only; ``buffer_dtype`` has no
counterpart; ``keep_low_precision_grads`` cannot be had.
"""

from __future__ import annotations

import ast
from dataclasses import dataclass, field

from fsdp_migrate import fsdp1
from fsdp_migrate.proposal import Code, Proposal, code, join
from fsdp_migrate.sharding import Constructor
from fsdp_migrate.study import Study
from fsdp_migrate.trace.project import Module
from fsdp_migrate.trace.values import Constant, Made

FIELDS = (
    "param_dtype",
    "reduce_dtype",
    "buffer_dtype",
    "keep_low_precision_grads",
    "cast_forward_inputs",
    "cast_root_forward_inputs",
    "_module_classes_to_ignore",
)


class Unreadable(Exception):
    """The policy cannot be converted; the message says why, starting in lower case."""


@dataclass(eq=False)
class MixedPrecision:
    """One ``MixedPrecision(...)`` call."""

    call: ast.Call
    module: Module
    fields: dict[str, ast.expr] = field(default_factory=dict)

    @property
    def is_empty(self) -> bool:
        return not any(name in self.fields for name in FIELDS[:3])

    def flag(self, name: str, study: Study, *, default: bool) -> bool:
        """A boolean field that must be written out."""
        node = self.fields.get(name)
        if node is None:
            return default
        constant = study.literal(node, self.module)
        if constant is None or not isinstance(constant.value, bool):
            raise Unreadable(f"{name}={ast.unparse(node)} is only known at run time")
        return constant.value

    def spelled(self, name: str) -> str:
        """A field's source, normalised; empty when absent or None."""
        node = self.fields.get(name)
        if node is None or (isinstance(node, ast.Constant) and node.value is None):
            return ""
        return ast.unparse(node)

    def casts_units(self, study: Study) -> bool:
        return self.flag("cast_forward_inputs", study, default=False)

    def casts_root(self, study: Study) -> bool:
        """FSDP1's root casts when either flag says so."""
        root = self.flag("cast_root_forward_inputs", study, default=True)
        return root or self.casts_units(study)


def read_call(call: ast.Call, module: Module, study: Study) -> MixedPrecision:
    """Bind the fields of one call.

    Raises:
        Unreadable: unpacked arguments, ``keep_low_precision_grads``, or classes to ignore that
            differ from the default.
    """
    result = MixedPrecision(call, module)
    for name, value in zip(FIELDS, call.args, strict=False):
        if isinstance(value, ast.Starred):
            raise Unreadable("its arguments are passed as *args")
        result.fields[name] = value
    for keyword in call.keywords:
        if keyword.arg is None:
            raise Unreadable(f"its arguments come from **{ast.unparse(keyword.value)}")
        if keyword.arg not in FIELDS:
            raise Unreadable(f"{keyword.arg} is not a field of MixedPrecision")
        result.fields[keyword.arg] = keyword.value
    if result.flag("keep_low_precision_grads", study, default=False):
        raise Unreadable("keep_low_precision_grads=True has no counterpart in FSDP2")
    if "_module_classes_to_ignore" in result.fields:
        raise Unreadable("_module_classes_to_ignore has no counterpart in FSDP2")
    result.casts_units(study)
    result.casts_root(study)
    return result


def read(node: ast.expr, module: Module, study: Study) -> tuple[list[MixedPrecision], bool]:
    """Every ``MixedPrecision`` an expression may be, and whether it may be None.

    Raises:
        Unreadable: one of the values cannot be followed or converted.
    """
    found: list[MixedPrecision] = []
    nullable = False
    values = study.values(node, module)
    for value in sorted(values, key=lambda v: (v.module.display, *v.module.position(v.node))):
        match value:
            case Constant(value=None):
                nullable = True
            case Made(node=ast.Call() as call) if (
                fsdp1.canonical(value.made_by) == "MixedPrecision"
            ):
                found.append(read_call(call, value.module, study))
            case _:
                why = study.unknown([value])
                line = value.module.position(value.node)[0]
                where = f"{value.module.display}:{line}"
                raise Unreadable(why or f"the value made at {where} is not a MixedPrecision")
    return found, nullable


def policy(
    mixed: MixedPrecision, proposal: Proposal, study: Study, *, root: bool, near: ast.AST
) -> Code:
    """The ``MixedPrecisionPolicy(...)`` of the units, or of the root."""
    name = proposal.name(mixed.module, fsdp1.PACKAGE, "MixedPrecisionPolicy", near)
    items = [
        code("{n}={v}", n=each, v=mixed.fields[each]) for each in FIELDS[:2] if each in mixed.fields
    ]
    casts = mixed.casts_root(study) if root else mixed.casts_units(study)
    if not casts and not mixed.is_empty:
        items.append(code("cast_forward_inputs=False"))
    return code("{n}({items})", n=name, items=join(", ", items))


def agree(found: list[MixedPrecision], name: str) -> str:
    """The spelling of a field when all values agree on it.

    Raises:
        Unreadable: they do not.
    """
    spelled = {each.spelled(name) for each in found}
    if len(spelled) != 1:
        raise Unreadable(f"the policies that reach this call differ in {name}")
    return spelled.pop()


__all__ = [
    "FIELDS",
    "Constructor",
    "MixedPrecision",
    "Unreadable",
    "agree",
    "policy",
    "read",
    "read_call",
]
