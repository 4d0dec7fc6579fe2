"""Calls of ``forward`` on parts of a model that is sharded unit by unit.

FSDP1 put its wrapper around each unit, so that ``block.forward(x)`` gathered the unit's parameters
as ``block(x)`` did. FSDP2 gathers in hooks, which run when a unit is called.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass

from fsdp_migrate.analysis.module import Module
from fsdp_migrate.analysis.values import Class, Constant, Made
from fsdp_migrate.families.training_loop.gathered_roots import runs_of
from fsdp_migrate.families.wrapping import enclosing_models, model_contents, policies
from fsdp_migrate.families.wrapping.named_units import named_units
from fsdp_migrate.families.wrapping.stored_models import is_module
from fsdp_migrate.fsdp1.construct import Construct
from fsdp_migrate.fsdp1.references import enclosing_function
from fsdp_migrate.fsdp1.site import Site
from fsdp_migrate.planning.context import Study
from fsdp_migrate.planning.model import Constructor
from fsdp_migrate.syntax.kinds import method_of
from fsdp_migrate.syntax.scopes import Kind
from fsdp_migrate.syntax.trees import FUNCTIONS, position

PART = Construct.parse("forward of a part")
POLICY = "auto_wrap_policy"
CONTAINERS = frozenset(f"torch.nn.{n}" for n in ("ModuleList", "ModuleDict", "Sequential"))
EXTENSION = "torch.utils.cpp_extension."
DEEPEST = 3  # names between a part and the model


@dataclass(frozen=True)
class Whole:
    """The models that a part may be one of."""

    models: frozenset[Constructor]
    model: ast.expr | None  # where the part is taken out of it; None in a class of modules


def find_part_forwards(study: Study, module: Module) -> Iterator[Site]:
    for call in module.table.calls_by_name.named("forward"):
        if isinstance(call.func, ast.Attribute) and whole_of(call, module, study) is not None:
            yield Site(PART, module, call, call.func, call.func.value)


def whole_of(call: ast.Call, module: Module, study: Study) -> Whole | None:
    """What the part whose ``forward`` is called belongs to."""
    units = frozenset(c for c in study.constructors.values() if c.has(POLICY) or c.is_open)
    part = call.func.value if isinstance(call.func, ast.Attribute) else None
    if part is None or not units or study.traced(part, module):
        return None
    found = list(owners(part, module, study, DEEPEST))
    for owner in found:
        if study.traced(owner, module):
            return _whole(
                study.models(owner, module).constructors & units, owner, call, module, study
            )
    root = found[-1] if found else None
    if not isinstance(root, ast.Name) or not _is_self(root, module) or part is root:
        return None
    if any(isinstance(a, ast.Name) and a.id == root.id for a in call.args):
        return None  # ``self.base.forward(self, x)``
    cls = enclosing_models.class_of(call, module)
    if cls is None or not is_module(cls, study):
        return None
    models = frozenset(c for c in units if is_made_of(c, cls, study))
    return _whole(models, None, call, module, study)


def _whole(
    models: frozenset[Constructor],
    model: ast.expr | None,
    call: ast.Call,
    module: Module,
    study: Study,
) -> Whole | None:
    part = method_of(call).value
    if not models or is_no_module(part, study) or not _may_be_unit(part, models, module, study):
        return None
    return Whole(models, model)


def is_no_module(part: ast.expr, study: Study) -> bool:
    """Whether all that the project sets under the name of a part are objects of plain classes, or
    compiled extensions, which are Python modules: nobody can call one."""
    name = part.attr if isinstance(part, ast.Attribute) else ""
    values = [
        value
        for module in study.project.modules
        if name and module.mentions(name)
        for store in module.table.stored_attributes
        if store.attr == name and isinstance(assigned := module.table.parents[store], ast.Assign)
        for value in study.values(assigned.value, module)
    ]
    given = [v for v in values if not (isinstance(v, Constant) and v.value is None)]
    return bool(given) and all(
        isinstance(v, Made)
        and (
            not is_module(v.callee, study)
            if isinstance(v.callee, Class)
            else v.made_by.startswith(EXTENSION)
        )
        for v in given
    )


def _may_be_unit(
    part: ast.expr, models: frozenset[Constructor], module: Module, study: Study
) -> bool:
    """Whether policies may pick a part; they do not where they list classes, and it has another."""
    made = _modules(part, module, study)
    read = [policies.read_policies(each, study) for each in models]
    if not made or not all(
        found and all(policy.kind is policies.Kind.CLASSES for policy in found) for found in read
    ):
        return True
    units = set[object]().union(*(named_units(each, study) for each in models))
    names = {each.rpartition(".")[2] for each in units if isinstance(each, str)}
    for each in made:
        if each.made_by.rpartition(".")[2] in names:
            return True
        if isinstance(each.callee, Class):
            bases = study.tracer.external_bases(each.callee)
            lineage = {cls.node for cls in study.tracer.lineage(each.callee)}
            if lineage & units or names & {base.rpartition(".")[2] for base in bases}:
                return True
    return False


def _modules(part: ast.expr, module: Module, study: Study) -> list[Made]:
    """What makes a part, where all of it is known to be modules."""
    found = [v for v in study.values(part, module) if isinstance(v, Made)]
    known = len(found) == len(study.values(part, module)) and all(
        v.made_by.startswith("torch.nn.")
        or (isinstance(v.callee, Class) and is_module(v.callee, study))
        for v in found
    )
    return found if known else []


def is_certain(part: ast.expr, module: Module, study: Study) -> bool:
    """Whether a part is known to be a module, which can be called: by what makes it, or because it
    is taken out of a list of modules."""
    made = _modules(part, module, study)
    if any(isinstance(v.callee, Class) and _is_called_otherwise(v.callee, study) for v in made):
        return False
    above = owners(part, module, study, DEEPEST)
    return bool(made) or any(
        each.made_by in CONTAINERS for owner in above for each in _modules(owner, module, study)
    )


def _is_called_otherwise(cls: Class, study: Study) -> bool:
    """Whether calling an object of a class runs more than its ``forward``."""
    return any(
        isinstance(statement, ast.FunctionDef) and statement.name == "__call__"
        for each in study.tracer.lineage(cls)
        for statement in each.node.body
    )


def may_come_first(call: ast.Call, whole: Whole, module: Module, study: Study) -> bool:
    """Whether a part may run before the whole model did."""
    function = enclosing_function(module, call)
    return whole.model is not None and not any(
        run.module is module
        and enclosing_function(module, run.call) is function
        and position(run.call) < position(call)
        for run in runs_of(whole.models, study)
    )


def owners(node: ast.expr, module: Module, study: Study, depth: int) -> Iterator[ast.expr]:
    """``model.blocks`` and ``model`` of ``block`` in ``for block in model.blocks``."""
    yield node
    while (holder := _holder(node)) is not None:
        node = holder
        yield node
    if not isinstance(node, ast.Name) or not depth or _is_self(node, module):
        return
    for definition in study.defined_by(node, module):
        if definition.value is not None and definition.kind in {Kind.ELEMENT, Kind.ASSIGN}:
            yield from owners(_listed(definition.value), module, study, depth - 1)


def _holder(node: ast.expr) -> ast.expr | None:
    """``model.blocks`` of ``model.blocks[0]``, ``model`` of ``getattr(model, name)`` and
    ``model.get_submodule(name)``."""
    match node:
        case ast.Attribute(value=holder) | ast.Subscript(value=holder):
            return holder
        case ast.Call(func=ast.Name(id="getattr"), args=[holder, *_]):
            return holder
        case ast.Call(func=ast.Attribute(value=holder, attr="get_submodule")):
            return holder
    return None


def _listed(node: ast.expr) -> ast.expr:
    """``model.blocks`` of ``enumerate(model.blocks)``, and of what its methods list."""
    match node:
        case ast.Call(
            func=ast.Name(id="enumerate" | "reversed" | "list" | "zip"), args=[first, *_]
        ):
            return _listed(first)
        case ast.Call(func=ast.Attribute(value=owner, attr="values" | "items" | "children")):
            return owner
    return node


def _is_self(name: ast.Name, module: Module) -> bool:
    function = enclosing_function(module, name)
    if not isinstance(function, FUNCTIONS) or isinstance(function, ast.Lambda):
        return False
    own = [*function.args.posonlyargs, *function.args.args]
    return bool(own) and own[0].arg == name.id


def is_made_of(constructor: Constructor, cls: Class, study: Study) -> bool:
    """Whether objects of a class may be in what a constructor shards."""
    for wrap in constructor.wraps:
        found = model_contents.contents(wrap.wrapped, wrap.module, study)
        if any(each.node is cls.node for each in found.classes):
            return True
    return False
