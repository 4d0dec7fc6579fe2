"""The sharded parts of modules that may not be sharded themselves: in attributes and elements."""

from __future__ import annotations

import ast
from collections import defaultdict
from collections.abc import Callable, Iterable
from dataclasses import dataclass

from fsdp_migrate.analysis.loaded_together import LoadedTogether
from fsdp_migrate.analysis.module import Module
from fsdp_migrate.analysis.tracing.functions import is_self
from fsdp_migrate.analysis.values import Class, Display, Made, Unknown, Value, Values
from fsdp_migrate.families.wrapping import enclosing_models
from fsdp_migrate.families.wrapping.plain_models import is_plain_yet
from fsdp_migrate.families.wrapping.stored_models import is_module
from fsdp_migrate.fsdp1 import model_values, references
from fsdp_migrate.fsdp1.unwrapping import INNER
from fsdp_migrate.planning.context import Study
from fsdp_migrate.planning.model import Constructor
from fsdp_migrate.syntax.expressions import given_arguments
from fsdp_migrate.syntax.trees import LOOPS, walk

MAKING_MODULES = (".from_config", ".from_pretrained")
OF_MODULES = frozenset(
    {
        *("add_module", "register_module", "children", "named_children"),
        *("modules", "named_modules", "named_parameters", "requires_grad_"),
    }
)


@dataclass(frozen=True, eq=False)
class Held:
    """The sharded parts of what an expression may be."""

    constructors: frozenset[Constructor] = frozenset()
    certain: bool = False  # it always has some

    def __bool__(self) -> bool:
        return bool(self.constructors)


def sharded_parts(node: ast.expr, module: Module, study: Study) -> Held:
    """The sharded parts in a module that is not sharded itself, those aside that are made only
    under settings that do not hold here."""
    values = study.values(node, module)
    if not study.constructors or model_values.models(values, study.tracer):
        return Held()
    values = _as_typed(values, node, module, study)
    calls = {call for value in values for call in _parts(value, study)}
    made = [c for call, c in study.constructors.items() if call in calls]
    given = any(_is_given_some(value, study) for value in values)
    if made and not given and is_plain_yet(node, module, study):
        return Held()
    near = (c for c in made if is_loaded_with(c, module, study))
    met = (c for c in near if not study.narrowing.is_never_met(c.node, c.module, node, module))
    found = (
        s for c in met if not _comes_later(c, node, module, study) for s in study.settings_of(c)
    )
    return Held(frozenset(found), all(_is_certain(v, study) for v in values))


def _as_typed(values: Values, node: ast.expr, module: Module, study: Study) -> Values:
    """The values of a parameter, without the modules of the project's that are of another class
    than its type says: a general function gives many things, of which it gets one kind."""
    classes = _said_classes(node, module, study)
    known = {each.node for cls in classes for each in study.tracer.family(cls)}
    return frozenset(
        value
        for value in values
        if not (known and isinstance(value, Made) and isinstance(value.callee, Class))
        or value.callee.node in known
    )


def _said_classes(node: ast.expr, module: Module, study: Study) -> list[Class]:
    """The classes of modules that the type of a parameter names; none where it says more."""
    if not isinstance(node, ast.Name):
        return []
    scope = module.table.scope_of(node).lookup(node.id)
    bound = scope.bindings.get(node.id, []) if scope is not None else []
    said = bound[0].node if len(bound) == 1 else None
    if not isinstance(said, ast.arg) or not isinstance(said.annotation, (ast.Name, ast.Attribute)):
        return []
    found = [*study.values(said.annotation, module)]
    classes = [each for each in found if isinstance(each, Class) and is_module(each, study)]
    return classes if len(classes) == len(found) else []


def is_loaded_with(constructor: Constructor, module: Module, study: Study) -> bool:
    """Whether a program may have loaded a file, and that in which a constructor stands."""
    return study.cache(_loaded).may_meet(constructor.module, module)


def _loaded(study: Study) -> LoadedTogether:
    return LoadedTogether(study.project)


def _is_given_some(value: Value, study: Study) -> bool:
    """Whether a module is made of what is sharded, or has sharded parts: ``Box(model)``."""
    if not isinstance(value.node, ast.Call):
        return False
    known = study.cache(_given_some)
    if value.node not in known:
        known[value.node] = _find_given(value.node, value.module, study)
    return known[value.node]


def _given_some(study: Study) -> dict[ast.AST, bool]:
    return {}


def _find_given(call: ast.Call, module: Module, study: Study) -> bool:
    for each in given_arguments(call):
        for part in study.values(each, module):
            is_made_here = part.node is each and each not in study.constructors
            if _is_given_some(part, study) if is_made_here else _parts(part, study):
                return True
    return False


def _comes_later(constructor: Constructor, node: ast.expr, module: Module, study: Study) -> bool:
    """Whether the function around ``node`` shards a part once, after ``node`` has run: itself, or
    an object that is being made by a method."""
    here = references.enclosing_function(module, node)
    calls = _leading_to(constructor, node, here, module, study)
    for call in calls:
        around = set(module.table.ancestors(call)) & set(module.table.ancestors(node))
        repeated = any(isinstance(n, LOOPS) and here in module.table.ancestors(n) for n in around)
        if call.lineno <= node.lineno or repeated:
            return False
    return bool(calls)


def _leading_to(
    constructor: Constructor, node: ast.expr, here: ast.AST, module: Module, study: Study
) -> list[ast.Call]:
    """The calls of a function that shard a part; none where it may be sharded by others.

    Nobody else has ``self`` while its ``__init__`` runs, if that alone leads to the constructor.
    """
    function = references.enclosing_function(constructor.module, constructor.call)
    if function is here:
        return [constructor.call]
    name, owner = getattr(here, "name", ""), node
    while isinstance(owner, ast.Attribute):
        owner = owner.value
    if name != "__init__" or not isinstance(owner, ast.Name) or not is_self(owner, module):
        return []
    found: list[ast.Call] = []
    waiting, known = [(function, constructor.module)], {function}
    for each, where in waiting:
        if not isinstance(each, (ast.FunctionDef, ast.AsyncFunctionDef)) or each.name == name:
            return []  # of a class that this one is derived from, say
        callers = study.tracer.callers(each, where)
        if not callers:
            return []  # others may call it for what ``__init__`` is given
        for caller in callers:
            around = references.enclosing_function(caller.module, caller.call)
            if around is here:
                found.append(caller.call)
            elif around not in known:
                known.add(around)
                waiting.append((around, caller.module))
    return found


def _parts(value: Value, study: Study) -> set[ast.AST]:
    """The constructor calls of the sharded parts of a module, however deep."""
    if model_values.is_model(value, study.tracer):
        made = {value.node}
        if isinstance(value.node, ast.Call):  # of a partial, or of a class derived from FSDP1's
            made |= {v.node for v in study.values(value.node.func, value.module)}
        return {node for node in made if node in study.constructors}
    match value:
        case Made(callee=Class() as cls) if is_module(cls, study):
            return _kept(cls.node, study, lambda: _of_class(value, cls, study))
        case Made(node=ast.Call() as node) if value.made_by.startswith("torch.nn."):
            return _kept(node, study, lambda: _of_elements(node, value.module, study))
        case Display(node=ast.expr() as node):
            return _kept(node, study, lambda: _of_elements(node, value.module, study))
    stored: set[ast.AST] = set()
    if is_of_unread_class(value):
        stored = study.cache(_stored_by_name).get(value.node, set())
    return stored if stored and _is_taken_for_module(value, study) else set()


def is_of_unread_class(value: Value) -> bool:
    """Whether nobody here reads the class of an object, so that only what is put into it here is
    known of its parts: ``AutoModel.from_pretrained(name)``, a parameter that nobody gives."""
    return isinstance(value, Unknown) or (isinstance(value, Made) and value.made_by != "")


def _is_taken_for_module(value: Value, study: Study) -> bool:
    """Whether an object of an unread class is a module, by what makes it or is asked of it.

    A trainer of a library has a ``state_dict()`` as well.
    """
    made_by = value.made_by if isinstance(value, Made) else ""
    return made_by.endswith(MAKING_MODULES) or value.node in study.cache(_asked_as_modules)


def _asked_as_modules(study: Study) -> set[ast.AST]:
    """What methods that modules alone have are called on, in the files that shard something, and
    the wrappers around these: ``net`` of ``net.module.named_children()``."""
    return {
        value.node
        for module in {c.module for c in study.constructors.values()}
        for attribute in module.table.attributes_by_name.of(OF_MODULES)
        for value in _with_wrappers(attribute.value, module, study)
    }


def _with_wrappers(node: ast.expr, module: Module, study: Study) -> Iterable[Value]:
    """What an expression may be, and what has it as its ``module``."""
    for value in study.values(node, module):
        yield value
        for each in {node, value.node}:
            if isinstance(each, ast.Attribute) and each.attr in INNER:
                where = module if each is node else value.module
                yield from _with_wrappers(each.value, where, study)


def _kept(node: ast.AST, study: Study, find: Callable[[], set[ast.AST]]) -> set[ast.AST]:
    """What ``find`` finds in something, with what is stored in it by name; asked once for each."""
    known = study.cache(_by_holder)
    if node not in known:
        stored = study.cache(_stored_by_name).get(node, ())
        found = known[node] = set(stored)  # it may hold its own kind
        found |= find()
    return known[node]


def _by_holder(study: Study) -> dict[ast.AST, set[ast.AST]]:
    """The constructor calls of the sharded parts of modules, by class or by the call that makes
    them."""
    return {}


def _stored_by_name(study: Study) -> dict[ast.AST, set[ast.AST]]:
    """The calls of constructors, by the object that their model is stored in."""
    found: dict[ast.AST, set[ast.AST]] = defaultdict(set)
    for call, constructor in study.constructors.items():
        if not constructor.is_context:
            for owner in enclosing_models.owners(constructor, study):
                found[owner].add(call)
    return found


def stored_in(holder: ast.AST, study: Study) -> set[ast.AST]:
    """The calls of constructors whose models are stored in an object, as :func:`owners` finds."""
    return study.cache(_stored_by_name).get(holder, set())


def _of_class(value: Value, cls: Class, study: Study) -> set[ast.AST]:
    """The sharded parts that instances of a class have as attributes."""
    found: set[ast.AST] = set()
    for related in study.tracer.family(cls):
        found |= study.cache(_stored_by_name).get(related.node, set())
        for name in stored_names(related.node):
            for part in study.tracer.attribute(value, name, related.node, related.module):
                found |= _parts(part, study)
    return found


def stored_names(cls: ast.ClassDef) -> set[str]:
    """The names of what methods of a class store in ``self``."""
    return {
        node.attr
        for node in walk(cls)
        if isinstance(node, ast.Attribute)
        and isinstance(node.ctx, ast.Store)
        and isinstance(node.value, ast.Name)
        and node.value.id == "self"
    }


def _of_elements(node: ast.expr, module: Module, study: Study) -> set[ast.AST]:
    """What a list, or a module made of others such as ``nn.Sequential``, is given."""
    found = {inner for inner in ast.walk(node) if inner in study.constructors}
    for each in _elements(node):
        if each not in study.constructors:
            for value in study.values(each, module):
                found |= _parts(value, study)
    return found


def _elements(node: ast.expr) -> Iterable[ast.expr]:
    match node:
        case ast.Call(args=given):
            return given
        case ast.List(elts=given) | ast.Tuple(elts=given):
            return given
        case ast.Dict(values=given):
            return given
        case ast.ListComp(elt=each) | ast.GeneratorExp(elt=each):
            return [each]
    return []


def _is_certain(value: Value, study: Study) -> bool:
    """Whether a module certainly has a sharded part as soon as it is made."""
    match value:
        case Made(callee=Class() as cls):
            return any(
                _assigns(statement, study)
                for related in study.tracer.lineage(cls)
                for method in related.node.body
                if isinstance(method, ast.FunctionDef) and method.name == "__init__"
                for statement in method.body
            )
        case Made(node=ast.Call(args=given)):
            return any(each in study.constructors for each in given)
    return False


def _assigns(statement: ast.stmt, study: Study) -> bool:
    match statement:
        case ast.Assign(targets=[ast.Attribute(value=ast.Name(id="self"))], value=value):
            return value in study.constructors
    return False
