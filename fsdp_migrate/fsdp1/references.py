"""Find every FSDP1 reference in a project and say what construct it is."""

from __future__ import annotations

import ast
import re
from collections.abc import Callable, Iterator

from fsdp_migrate.analysis import reaching_bindings
from fsdp_migrate.analysis.flow import Definition, access_path
from fsdp_migrate.analysis.module import Module
from fsdp_migrate.analysis.project import Project
from fsdp_migrate.analysis.tracing.tracer import Tracer
from fsdp_migrate.analysis.values import Class, Computed, Made, Unknown, Values
from fsdp_migrate.fsdp1 import api as fsdp1
from fsdp_migrate.fsdp1 import declared, unwrapping
from fsdp_migrate.fsdp1.construct import Construct, ConstructKind
from fsdp_migrate.fsdp1.site import Site
from fsdp_migrate.syntax import string_annotations, type_expressions
from fsdp_migrate.syntax.trees import FUNCTIONS


def references(project: Project, module: Module) -> Iterator[tuple[ast.expr, str]]:
    """Every expression that stands for an FSDP1 name through imports, with that name.

    ``FSDP.state_dict_type`` comes once, as ``FullyShardedDataParallel.state_dict_type``.
    """
    possible = _possible_names(project, module)
    for name in module.table.names if possible else ():
        if name.id not in possible and not (possible and "*" in possible):
            continue
        if not isinstance(name.ctx, ast.Load):
            continue  # it gives the name another meaning
        chain: ast.expr = name
        parents = module.table.parents
        while isinstance(parent := parents[chain], ast.Attribute):
            chain = parent
        current: ast.expr = chain
        while True:
            found = {fsdp1.canonical(q) for q in project.external(current, module)} - {None}
            if found:
                canonical = sorted(f for f in found if f is not None)[0]
                yield _known_part(current, canonical)
                break
            if not isinstance(current, ast.Attribute):
                break
            current = current.value


def _known_part(node: ast.expr, canonical: str) -> tuple[ast.expr, str]:
    """Cut ``StateDictType.FULL_STATE_DICT.name`` down to the member, ``FSDP.x.y`` to ``FSDP.x``."""
    depth = 2 if canonical.split(".", maxsplit=1)[0] in {fsdp1.FSDP, *fsdp1.ENUMS} else 1
    if canonical.startswith(fsdp1.PRIVATE):
        return node, canonical
    parts = canonical.split(".")
    while len(parts) > depth and isinstance(node, ast.Attribute):
        parts.pop()
        node = node.value
    return node, ".".join(parts)


def _possible_names(project: Project, module: Module) -> frozenset[str]:
    """Local names through which FSDP1 may be reached."""
    found: set[str] = set()
    for binding in module.table.imports:
        for qualified in project.canonical(binding.qualified, module):
            leads_there = fsdp1.PACKAGE.startswith(f"{qualified}.") or qualified == fsdp1.PACKAGE
            if leads_there or fsdp1.canonical(qualified) or fsdp1.is_module(qualified):
                found.add(binding.name)
    if not project.lent.isdisjoint(module.table.attributes_by_name.names):
        for binding in module.table.imports:
            resolved = project.resolve(binding.qualified, module)
            if resolved is not None and not resolved[1]:  # ``wrapping.FSDP`` of ``wrapping.py``
                found.add(binding.name)
    found |= _aliases(project, module)
    if module.table.stars:
        found.add("*")
    return frozenset(found)


def _aliases(project: Project, module: Module) -> set[str]:
    """Local names through which the project's own names for FSDP1's class may be reached."""
    if not project.aliases:
        return set()
    found = {
        name
        for name, bindings in module.table.module.bindings.items()
        if not project.aliases.keys().isdisjoint(bindings)
    }
    for binding in module.table.imports:
        outer = project.aliased(binding.qualified, module)
        if any(fsdp1.canonical(name) == fsdp1.FSDP for name in outer):
            found.add(binding.name)
    names = {binding.name for binding in project.aliases}
    for node in module.table.attributes:
        head: ast.expr = node
        while node.attr in names and isinstance(head, ast.Attribute):
            head = head.value
        if isinstance(head, ast.Name):
            found.add(head.id)
    return found


def lent(project: Project) -> frozenset[str] | None:
    """Names by which files that do not mention FSDP have parts of FSDP1 from those that do.

    None when they may have any name: a file hands on all that a module of torch's has.
    """
    names: set[str] = set()
    rest: list[Module] = []
    for module in project.modules:
        if not module.mentions(*fsdp1.WORDS):
            rest.append(module)
            continue
        stars = (star for _, star in module.table.stars if star.startswith("torch"))
        if any(project.resolve(star, module) is None for star in stars):
            return None
        for binding in module.table.imports:
            for qualified in project.canonical(binding.qualified, module):
                if fsdp1.canonical(qualified) or fsdp1.is_module(qualified):
                    names.add(binding.name)
    names.update(binding.name for binding in project.aliases)
    known = 0
    while known < len(names):  # they may be handed on under further names
        known = len(names)
        for module in rest:
            for binding in module.table.imports:
                if not names.isdisjoint(binding.qualified.split(".")):
                    names.add(binding.name)
    return frozenset(names)


def is_imported(project: Project) -> bool:
    """Whether something of the project imports ``torch.distributed.fsdp``, or a part of it.

    FSDP2's names count as well: what a run left in a migrated project is found again.
    """
    for module in project.modules:
        if not module.mentions(*fsdp1.WORDS):
            continue
        qualified = {binding.qualified for binding in module.table.imports}
        qualified.update(f"{star}.{fsdp1.FSDP}" for _, star in module.table.stars)
        if any(map(fsdp1.is_in_package, qualified)):
            return True
        outside = {each for name in qualified for each in project.canonical(name, module)}
        if any(map(fsdp1.is_in_package, outside)):
            return True
    return False


def borrows(module: Module, lent: frozenset[str]) -> bool:
    """Whether a file may use one of the names that others lend."""
    table = module.table
    if table.stars or not lent.isdisjoint(table.attributes_by_name.names):
        return True
    return any(not lent.isdisjoint(b.qualified.split(".")) for b in table.imports)


OF_MODELS = fsdp1.METHODS | fsdp1.STATE_METHODS | {fsdp1.FORWARD}


def classify(module: Module, node: ast.expr, canonical: str) -> Site:
    """The site a reference belongs to."""
    table = module.table
    parent = table.parents[node]
    call = parent if isinstance(parent, ast.Call) and parent.func is node else None
    if isinstance(getattr(node, "ctx", None), ast.Store):
        return Site(Construct(ConstructKind.REPLACED, canonical), module, node, node)
    named = Construct.parse(canonical)
    if named.attribute in OF_MODELS:
        # ``FSDP.state_dict(model)``: rules know the method by the model it is called on.
        return Site(Construct(ConstructKind.UNBOUND, canonical), module, call or node, node)
    if call is not None:
        made = Construct(ConstructKind.CONSTRUCTOR, canonical)
        return Site(made if canonical == fsdp1.FSDP else named, module, call, node)
    if type_expressions.is_type(node, table):
        return Site(Construct(ConstructKind.ANNOTATION, canonical), module, node, node)
    check = _type_check(module, node)
    if check is not None:
        return Site(Construct(ConstructKind.ISINSTANCE, canonical), module, check, node)
    if isinstance(parent, ast.ClassDef):
        return Site(Construct(ConstructKind.CLASS, canonical), module, parent, node)
    if isinstance(parent, ast.Call) and parent.args[:1] == [node] and _is_partial(parent):
        bound = Construct(ConstructKind.PARTIAL, canonical)
        return Site(bound if canonical == fsdp1.FSDP else named, module, parent, node)
    if canonical == fsdp1.FSDP and is_tested(node, module):
        return Site(Construct(ConstructKind.TESTED, canonical), module, node, node)
    if canonical == fsdp1.FSDP and isinstance(parent, ast.Compare):
        return Site(Construct(ConstructKind.COMPARED, canonical), module, parent, node)
    if canonical == fsdp1.FSDP and unwrapping.listed_for(node, module):
        return Site(Construct(ConstructKind.LISTED, canonical), module, node, node)
    if canonical == fsdp1.FSDP:
        return Site(Construct(ConstructKind.VALUE, canonical), module, node, node)
    return Site(named, module, node, node)


def is_tested(node: ast.expr, module: Module) -> bool:
    """Whether a name is only asked whether it is there: ``FSDP is None``, ``x if FSDP else y``."""
    match module.table.parents[node]:
        case (
            ast.If(test=test) | ast.While(test=test) | ast.IfExp(test=test) | ast.Assert(test=test)
        ):
            return test is node
        case ast.UnaryOp(op=ast.Not()) | ast.Call(func=ast.Name(id="bool")):
            return True
        case ast.Compare(left=left, comparators=[right]):
            other = right if left is node else left
            return isinstance(other, ast.Constant) and other.value is None
        case ast.BoolOp(op=op, values=values) as both:
            handed_on = isinstance(op, ast.Or) or values[-1] is node
            return not handed_on or is_tested(both, module)
    return False


def of_alias(site: Site, project: Project) -> Site | None:
    """``site``, with regard to the project's own names for FSDP1's class.

    Such a name is a type where it is made, and types and messages written with it follow it.
    """
    if not project.aliases:
        return site
    assert isinstance(site.reference, ast.expr)
    noted = isinstance(site.module.table.parents[site.node], ast.FormattedValue)
    if site.construct.kind is ConstructKind.ANNOTATION or noted:
        return site if project.imported(site.reference, site.module) else None
    made = {binding.value for binding in project.aliases}
    if site.reference in made:
        return Site(
            Construct(ConstructKind.ANNOTATION, fsdp1.FSDP), site.module, site.node, site.reference
        )
    return site


def _is_partial(call: ast.Call) -> bool:
    func = call.func
    name = func.attr if isinstance(func, ast.Attribute) else getattr(func, "id", "")
    return name == "partial"


def _type_check(module: Module, node: ast.expr) -> ast.Call | None:
    """The ``isinstance`` or ``issubclass`` call whose class argument holds ``node``."""
    child: ast.AST = node
    for parent in module.table.ancestors(node):
        if isinstance(parent, (ast.Tuple, ast.BinOp)):
            child = parent
            continue
        if isinstance(parent, ast.Call) and isinstance(parent.func, ast.Name):
            is_check = parent.func.id in {"isinstance", "issubclass"}
            if is_check and len(parent.args) == 2 and parent.args[1] is child:
                return parent
        return None
    return None


def methods(tracer: Tracer, module: Module, *, has_fsdp: bool) -> Iterator[Site]:
    """Attributes of FSDP1 models that mean something else, or nothing, on FSDP2 models.

    In a module that refers to FSDP1 (``has_fsdp``), names that only FSDP1 has are taken for them on
    any object.
    """
    for attribute in module.table.attributes_by_name.of(OF_MODELS | fsdp1.STATICS):
        if not isinstance(attribute.ctx, ast.Load):
            continue
        found = tracer.evaluate(attribute.value, module)
        known = any(is_model(v, tracer) for v in found)
        surely = has_fsdp and (
            attribute.attr in fsdp1.UNMISTAKABLE or _is_strategy(attribute, module, tracer)
        )
        if surely and all(isinstance(v, (Computed, Unknown)) for v in found):
            known = True
        if not known and not is_taken_for_model(attribute.value, module, tracer):
            continue
        if attribute.attr not in OF_STATE and _has_own(
            models(found, tracer), attribute.attr, tracer
        ):
            continue  # of a class derived from FSDP's, under the same name
        parent = module.table.parents[attribute]
        called = isinstance(parent, ast.Call) and parent.func is attribute
        node = parent if called and isinstance(parent, ast.Call) else attribute
        construct = Construct.of_model(attribute.attr)
        yield Site(construct, module, node, attribute, attribute.value)
    yield from _fields(tracer, module, has_fsdp=has_fsdp)


def _fields(tracer: Tracer, module: Module, *, has_fsdp: bool) -> Iterator[Site]:
    """What code reads of the settings that FSDP1 models keep, and of their flat parameters.

    The former have common names, so that they count on what is known to be a model alone, unless
    the project sets them; the latter, in a module that refers to FSDP1 (``has_fsdp``), on whatever
    nothing is known about.
    """
    for attribute in module.table.attributes_by_name.of(fsdp1.FIELDS | fsdp1.FLAT_FIELDS):
        if not isinstance(attribute.ctx, ast.Load):
            continue
        if attribute.attr in fsdp1.FIELDS:
            found = models(tracer.evaluate(attribute.value, module), tracer)
            wrapped = any(not isinstance(v.callee, Class) for v in found)
            inherited = found and not _has_own(found, attribute.attr, tracer)
            if (wrapped or inherited) and not _is_set(attribute.attr, tracer):
                yield Site(
                    Construct.of_model(attribute.attr),
                    module,
                    attribute,
                    attribute,
                    attribute.value,
                )
        elif has_fsdp and attribute.attr in fsdp1.FLAT_FIELDS:
            kinds = tracer.evaluate(attribute.value, module)
            if all(isinstance(v, (Computed, Unknown)) for v in kinds):
                yield Site(
                    Construct(ConstructKind.MEMBER, FLAT, attribute.attr),
                    module,
                    attribute,
                    attribute,
                    attribute.value,
                )


FLAT = "FlatParameter"
OF_STATE = fsdp1.STATE_METHODS | {fsdp1.FORWARD}


def _has_own(found: list[Made], name: str, tracer: Tracer) -> bool:
    """Whether all these models are of classes of the project's that have such an attribute."""
    classes = [v.callee for v in found if isinstance(v.callee, Class)]
    return (
        bool(found)
        and len(classes) == len(found)
        and all(tracer.has_attribute(cls, name) for cls in classes)
    )


def _is_set(name: str, tracer: Tracer) -> bool:
    """Whether the project gives some FSDP1 model an attribute of that name."""
    return any(
        isinstance(attribute.ctx, ast.Store)
        and bool(models(tracer.evaluate(attribute.value, module), tracer))
        for module in tracer.project.modules
        if module.mentions(name)
        for attribute in module.table.attributes_by_name.named(name)
    )


def _is_strategy(attribute: ast.Attribute, module: Module, tracer: Tracer) -> bool:
    """``x.sharding_strategy`` compared with a member of FSDP1's enum."""
    compared = module.table.parents[attribute]
    if attribute.attr != "sharding_strategy" or not isinstance(compared, ast.Compare):
        return False
    return any(
        (fsdp1.canonical(name) or "").startswith("ShardingStrategy.")
        for side in (compared.left, *compared.comparators)
        for name in tracer.project.external(side, module)
    )


def attribute_checks(tracer: Tracer, module: Module) -> Iterator[Site]:
    """``hasattr(model, "clip_grad_norm_")`` and the like: how code tells FSDP1 models."""
    for call in module.table.calls_by_name.named("hasattr"):
        match call:
            case ast.Call(
                func=ast.Name(id="hasattr"), args=[model, ast.Constant(value=str(name))]
            ) if name in TELLING and models(tracer.evaluate(model, module), tracer):
                yield Site(Construct(ConstructKind.HASATTR, fsdp1.FSDP), module, call, call, model)


def state_functions(
    tracer: Tracer, module: Module, has_parts: Callable[[ast.expr], bool]
) -> Iterator[Site]:
    """Calls of other libraries' functions that ask a model for its state, or load one into it.

    ``peft.get_peft_model_state_dict(model)``, ``safetensors.torch.save_model(model, path)``: their
    names say so, and they are given an FSDP1 model, or a module that holds some.
    """
    renamed = {b.name for b in module.table.imports if _is_about_states(b.qualified)}
    for call in module.table.calls:
        func = call.func
        name = func.attr if isinstance(func, ast.Attribute) else getattr(func, "id", "")
        if name not in renamed and not _is_about_states(name):
            continue
        if any(k.arg == "state_dict" for k in call.keywords) and not name.startswith(LOADING):
            continue  # it is given the state
        names = tracer.project.external(func, module)
        if not names or any(n.split(".")[0] in OWN_WAYS for n in names):
            continue
        for given in (*call.args, *(k.value for k in call.keywords)):
            if models(tracer.evaluate(given, module), tracer) or has_parts(given):
                yield Site(STATE_FUNCTION, module, call, func, given)
                break


def _is_about_states(name: str) -> bool:
    last = name.rpartition(".")[2]
    return "state_dict" in last or last in WHOLE_MODELS


STATE_FUNCTION = Construct.parse("function that asks a model for its state")
LOADING = ("load", "set")
WHOLE_MODELS = frozenset({"save_model", "load_model"})
OWN_WAYS = frozenset({"torch", "builtins", "mlflow"})  # which pickles models; torch knows its own


def divide_factors(tracer: Tracer, module: Module) -> Iterator[Site]:
    """What is set, or read, of the factors by which FSDP1 divides gradients.

    Nothing but FSDP1's modules has attributes of these names, so that they count on any object
    that nothing is known about.
    """
    for attribute in module.table.attributes_by_name.of(DIVIDE_FACTORS):
        yield from _divide_factor(attribute, attribute.value, tracer, module)
    for call in module.table.calls_by_name.of(("setattr", "getattr", "hasattr")):
        match call:
            case ast.Call(
                func=ast.Name(id="setattr" | "getattr" | "hasattr"),
                args=[owner, ast.Constant(value=str(name)), *_],
            ) if name in DIVIDE_FACTORS:
                yield from _divide_factor(call, owner, tracer, module)


def _divide_factor(
    node: ast.expr, owner: ast.expr, tracer: Tracer, module: Module
) -> Iterator[Site]:
    found = tracer.evaluate(owner, module)
    unknown = all(isinstance(v, (Computed, Unknown)) for v in found)
    if unknown or any(is_model(v, tracer) for v in found):
        yield Site(DIVIDE_FACTOR, module, node, node, owner)


DIVIDE_FACTOR = Construct.parse("gradient divide factor")
DIVIDE_FACTORS = frozenset({"_gradient_predivide_factor", "_gradient_postdivide_factor"})

TELLING = frozenset({"clip_grad_norm_", "no_sync"})


def is_taken_for_model(node: ast.expr, module: Module, tracer: Tracer) -> bool:
    """Whether an expression nothing is known about is said to be an FSDP1 model, by its type or
    by being given to an FSDP1 static in its function.

    ``with FSDP.state_dict_type(model, ...): model.state_dict()`` tells what ``model`` is, even
    when no call of the function is in the given paths; so does ``isinstance(model, FSDP)``.
    """
    told = tracer.told(node, module)
    if told is not None:
        found = tracer.evaluate(node, module) if told else ()
        return bool(found) and all(isinstance(v, (Computed, Unknown)) for v in found)
    if declared.model(tracer.evaluate(node, module), tracer).model:
        return True
    methods = module.table.methods
    calls = [call for name in fsdp1.STATICS if name in methods for call in methods[name]]
    path = access_path(node) if calls else None
    if path is None or not all(isinstance(v, Unknown) for v in tracer.evaluate(node, module)):
        return False
    here = module.table.scope_of(node).function()
    for call in sorted(calls, key=lambda c: (c.lineno, c.col_offset)):
        if module.table.within[call].function() is not here:
            continue
        assert isinstance(call.func, ast.Attribute)
        given = [*call.args, *(k.value for k in call.keywords)]
        if not any(_may_be_same(g, node, path, module) for g in given[:3]):
            continue
        names = {fsdp1.canonical(q) for q in tracer.project.external(call.func, module)}
        if f"{fsdp1.FSDP}.{call.func.attr}" in names:
            return _is_model_argument(call, path)
    return False


def _may_be_same(given: ast.expr, node: ast.expr, path: str, module: Module) -> bool:
    """Whether two uses of ``path`` may mean one object: ``net = shard(net)`` between them tells
    them apart."""
    if access_path(given) != path:
        return False
    first, second = definitions(given, module), definitions(node, module)
    return not (first and second) or bool(first & second)


def definitions(node: ast.expr, module: Module) -> frozenset[Definition]:
    """The definitions that reach a use of a name or dotted path in its own scope."""
    scope = module.table.scope_of(node)
    while scope.parent is not None and not (scope.is_function or scope.is_class):
        scope = scope.parent
    return module.flow(scope).reaching.get(node, frozenset())


def _is_model_argument(call: ast.Call, path: str) -> bool:
    """Whether ``path`` is passed where a static expects the model."""
    for keyword in call.keywords:
        if keyword.arg in {"model", "module"}:
            return access_path(keyword.value) == path
    assert isinstance(call.func, ast.Attribute)
    if call.func.attr == "optim_state_dict_to_load":
        return False  # torch 2.0 took the state first, later releases the model
    first = call.func.attr in fsdp1.STATE_FIRST
    index = 1 if first else 0
    return len(call.args) > index and access_path(call.args[index]) == path


def is_model(value: object, tracer: Tracer) -> bool:
    """Whether a traced value is an instance of FSDP1's wrapper or of a subclass of it."""
    if not isinstance(value, Made):
        return False
    if isinstance(value.callee, Class):
        bases = tracer.external_bases(value.callee)
        return any(fsdp1.canonical(name) == fsdp1.FSDP for name in bases)
    return value.node in tracer.wraps or fsdp1.canonical(value.made_by) == fsdp1.FSDP


def look_alike(value: object, method: str, tracer: Tracer) -> str:
    """The class of an object that is none of FSDP1's models, and answers to ``method`` as they do:
    others call it FSDP too, or it is the project's own, and has such a method. Or nothing."""
    if not isinstance(value, Made) or is_model(value, tracer):
        return ""
    names = [value.made_by]
    if isinstance(value.callee, Class):
        lineage = tracer.lineage(value.callee)
        own = [cls.node.name for cls in lineage if fsdp1.is_alike(cls.node.name)]
        own += [value.callee.node.name] if tracer.has_attribute(value.callee, method) else []
        if own:
            return f"the project's own {own[0]}"
        names = sorted(tracer.external_bases(value.callee))
    return next((name for name in names if fsdp1.is_alike(name)), "")


def models(values: Values, tracer: Tracer) -> list[Made]:
    return [v for v in values if isinstance(v, Made) and is_model(v, tracer)]


def dead_imports(project: Project, module: Module, used: set[ast.AST]) -> Iterator[Site]:
    """FSDP1 names that are imported and never used in the module, or used where no code tells.

    They are still references: another module may import them from here, ``__all__`` offers them, or
    a type comment names them.
    """
    offered = promised(module) | string_annotations.in_type_comments(module.source)
    in_strings = {n for each in string_annotations.in_annotations(module.table) for n in each.names}
    for binding in module.table.imports:
        alias, canonical = binding.node, fsdp1.canonical(binding.qualified)
        if not isinstance(alias, ast.alias) or not canonical:
            continue
        if reaching_bindings.is_attribute(binding, module):
            continue
        uses = [n for n in reaching_bindings.uses(binding, module) if isinstance(n.ctx, ast.Load)]
        if (not uses and binding.name not in in_strings) or binding.name in offered:
            yield Site(Construct(ConstructKind.IMPORT, canonical), module, alias, alias)


def promised(module: Module) -> frozenset[str]:
    """The names that ``__all__`` lists."""
    listed = module.table.module.bindings.get("__all__", [])
    return frozenset(
        n.value
        for binding in listed
        if binding.value is not None
        for n in ast.walk(binding.value)
        if isinstance(n, ast.Constant) and isinstance(n.value, str)
    )


WRAPPER_NAMES = ("_fsdp_wrapped_module", "_flat_param", "_fpw_module")
FULL_PRECISION_EVAL = "FSDP_USE_FULL_PREC_IN_EVAL"  # an environment variable


def strings(module: Module) -> Iterator[Site]:
    """String literals that spell FSDP1's module or parameter names (key surgery)."""
    table = module.table
    for constant in table.strings:
        assert isinstance(constant.value, str)
        if "_f" not in constant.value:  # as all of them have, and hardly anything else
            continue
        found = next((name for name in WRAPPER_NAMES if name in constant.value), None)
        if found is None or is_docstring(module, constant):
            continue
        yield Site(Construct(ConstructKind.STRING, found), module, constant, constant)


COMMAND = Construct.parse("notebook command")


def commands(project: Project, module: Module, *, has_models: bool) -> Iterator[Site]:
    """What is no Python in a notebook, and speaks of FSDP1 or of what its models have."""
    excerpt = module.source.excerpt
    if excerpt is None or not excerpt.masks:
        return
    known = {
        binding.name
        for binding in module.table.imports
        if any(map(fsdp1.canonical, project.canonical(binding.qualified, module)))
    }
    for name in module.table.names:
        mask = excerpt.masks.get(name.id)
        if mask is None or mask.code:
            continue
        mentioned = mask.shares_names and not known.isdisjoint(re.findall(r"\w+", mask.text))
        used = has_models and mask.shares_names and OF_MODELS_TEXT.search(mask.text) is not None
        if mentioned or used or speaks_of_fsdp1(mask.text):
            yield Site(COMMAND, module, name, name)


OF_MODELS_TEXT = re.compile(r"\.(?:state_dict|load_state_dict|clip_grad_norm_|no_sync)\b")
FROM_TORCH = re.compile(r"\bfrom\s+torch\.distributed\s+import\b[^\n]*\bfsdp\b")


def speaks_of_fsdp1(text: str) -> bool:
    """Whether text that is not read as code has FSDP1's package or names in it."""
    known = any(word in text for word in (fsdp1.PACKAGE, *WRAPPER_NAMES))
    return known or FROM_TORCH.search(text) is not None


def evaluations(module: Module) -> Iterator[Site]:
    """The variable that makes FSDP1 evaluate in full precision."""
    for constant in module.table.strings:
        if constant.value == FULL_PRECISION_EVAL:
            yield Site(
                Construct(ConstructKind.STRING, FULL_PRECISION_EVAL), module, constant, constant
            )


def is_docstring(module: Module, node: ast.Constant) -> bool:
    """Whether a string is a statement by itself."""
    return isinstance(module.table.parents[node], ast.Expr)


def enclosing_function(module: Module, node: ast.AST) -> ast.AST:
    """The innermost function around ``node``, or the module."""
    for parent in module.table.ancestors(node):
        if isinstance(parent, FUNCTIONS):
            return parent
    return module.source.tree
