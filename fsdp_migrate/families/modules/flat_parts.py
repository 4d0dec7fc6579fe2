"""Parameters that are asked of a part of a sharded model: ``AdamW(model.head.parameters())``.

Without ``use_orig_params=True`` FSDP1 takes every parameter of a unit out of its module and puts
them into one that is flat, which the unit alone has. A part gives those of the units in it, none
where it has none: what an optimizer got of it was never trained, and freezing it did nothing.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator

from fsdp_migrate.analysis.module import Module
from fsdp_migrate.analysis.tracing.functions import is_self
from fsdp_migrate.analysis.values import Class, Made, Value
from fsdp_migrate.families.modules.freezing import SETTERS, is_set
from fsdp_migrate.families.parameters import optimized_models
from fsdp_migrate.families.parameters.parameter_loops import METHODS, loop_over
from fsdp_migrate.families.parameters.parameter_owners import is_flat, may_be_flat
from fsdp_migrate.families.training_loop.part_forwards import owners
from fsdp_migrate.families.wrapping.gathered import is_gathered
from fsdp_migrate.families.wrapping.module_values import ModuleValues
from fsdp_migrate.families.wrapping.named_units import named_units
from fsdp_migrate.families.wrapping.wrapped_modules import unwrapped
from fsdp_migrate.fsdp1.construct import Construct
from fsdp_migrate.fsdp1.references import enclosing_function
from fsdp_migrate.fsdp1.site import Site
from fsdp_migrate.planning.context import Study
from fsdp_migrate.syntax.expressions import last_name
from fsdp_migrate.syntax.scopes import Kind
from fsdp_migrate.syntax.trees import walk

PART = Construct.parse("parameters of a part")
BUILDING = frozenset({"__init__", "train", "eval"})
IGNORING = frozenset({"ignored_modules", "ignored_states", "ignored_parameters"})
DEEP = 3  # names between a part and the model


def find_flat_parts(study: Study, module: Module) -> Iterator[Site]:
    """A site for every part of a model with flat parameters that is trained, or frozen, alone."""
    if not may_be_flat(study.every_constructor):
        return
    trained, freezing = study.cache(_trained), study.cache(_freezing)
    for call in module.table.calls_by_name.of({*METHODS, "requires_grad_", *freezing}):
        if not isinstance(call.func, ast.Attribute):
            continue
        owner, name = unwrapped(call.func.value), call.func.attr
        if name in METHODS and call.func not in trained and not _freezes(call, module):
            continue
        model = owner if name in freezing else _whole(owner, module, study)
        if model is None or not study.traced(model, module) or is_gathered(call, study, module):
            continue
        ignored = _ignored(model, module, study)
        if is_flat(model, module, study) and last_name(owner) not in ignored:
            yield Site(PART, module, call, call, model)


def _ignored(model: ast.expr, module: Module, study: Study) -> set[str]:
    """The names of parts that FSDP1 was told to ignore: they keep their parameters."""
    return {
        node.attr
        for constructor in study.models(model, module).constructors
        for name in IGNORING & constructor.arguments.keys()
        for given in constructor.values(name)
        for node in ast.walk(given)
        if isinstance(node, ast.Attribute)
    }


def _trained(study: Study) -> set[ast.AST]:
    """Every ``part.parameters`` of which an optimizer of the project gets what it gives."""
    return {
        held
        for module in study.project.modules
        for call in optimized_models.optimizers(module, study)
        for held, _ in optimized_models.asked_for(call, module, study)
    }


def _freezing(study: Study) -> frozenset[str]:
    """The names of methods that set ``requires_grad`` of what ``self.head.parameters()`` gives."""
    found: set[str] = set()
    for module in study.project.modules:
        if not module.mentions(*SETTERS):
            continue
        for call in module.table.calls_by_name.of({*METHODS, "requires_grad_"}):
            method = enclosing_function(module, call)
            asked = call.func.value if isinstance(call.func, ast.Attribute) else None
            if not isinstance(asked, ast.Attribute) or not isinstance(method, ast.FunctionDef):
                continue
            is_setter = last_name(call.func) == "requires_grad_" or _freezes(call, module)
            if is_setter and is_self(asked.value, module) and method.name not in BUILDING:
                found.add(method.name)
    return frozenset(found)


def _freezes(call: ast.Call, module: Module) -> bool:
    """Whether a loop over parameters sets ``requires_grad`` of them."""
    found = loop_over(call, module)
    return found is not None and any(is_set(node) for part in found[1] for node in walk(part))


def _whole(part: ast.expr, module: Module, study: Study) -> ast.expr | None:
    """The sharded model that a part is taken out of, unless units alone are in the part.

    What a name was given that is no model where the part is asked, another branch has sharded.
    """
    name = ""
    elsewhere: set[ast.expr | None] = set()
    for owner in owners(part, module, study, DEEP):
        if study.traced(owner, module):
            is_part = owner is not part and owner not in elsewhere
            return owner if is_part and not _are_units(name, owner, module, study) else None
        name = name or (owner.attr if isinstance(owner, ast.Attribute) else "")
        if isinstance(owner, ast.Name):
            given = study.defined_by(owner, module)
            elsewhere.update(d.value for d in given if d.kind is Kind.ASSIGN)
    return None


def _are_units(name: str, model: ast.expr, module: Module, study: Study) -> bool:
    """Whether all that the project stores by the name of a part are units, or lists of some."""
    models = study.models(model, module).constructors
    units = [named_units(each, study) for each in models]
    values = {
        value
        for where in study.project.modules
        if name and where.mentions(name)
        for store in where.table.stored_attributes
        if store.attr == name and isinstance(stored := where.table.parents[store], ast.Assign)
        for value in study.values(stored.value, where)
    }
    return bool(units and values) and all(
        _is_unit(v, each, study) for v in values for each in units
    )


def _is_unit(value: Value, units: set[object], study: Study) -> bool:
    if not isinstance(value, Made):
        return False
    if isinstance(value.callee, Class):
        return any(cls.node in units for cls in study.tracer.lineage(value.callee))
    inside = ModuleValues(study).elements(frozenset({value})) - {value}
    return value.made_by in units or bool(
        inside and all(_is_unit(each, units, study) for each in inside)
    )
