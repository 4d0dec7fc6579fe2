"""Where FSDP1's wrappers were counted among a model's modules, or stood in the text of it.

``modules()`` of an FSDP1 model had a wrapper for the model and for each unit, which FSDP2 has not:
of a model with two units 10 modules became 7. The text of a model said
``FullyShardedDataParallel`` and ``_fsdp_wrapped_module``, it says ``FSDPNet`` now. What is only
printed or logged does no harm; a file, an entry or a branch that depends on it is another.
"""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterator

from fsdp_migrate.analysis.module import Module
from fsdp_migrate.families.modules.class_texts import NAMES
from fsdp_migrate.families.modules.exact_classes import OF_WRAPPER, is_looked_into, is_said
from fsdp_migrate.fsdp1 import class_questions
from fsdp_migrate.fsdp1.class_questions import classified
from fsdp_migrate.fsdp1.construct import Construct
from fsdp_migrate.fsdp1.model_values import definitions
from fsdp_migrate.fsdp1.site import Site
from fsdp_migrate.planning.context import Study
from fsdp_migrate.syntax.expressions import last_name, names_in
from fsdp_migrate.syntax.trees import FUNCTIONS

COUNT = Construct.parse("number of a model's modules")
TEXT = Construct.parse("text of a model")
GET_NAME = "_get_name"
METHODS = frozenset({"modules", "named_modules"})
LISTS = frozenset({"list", "tuple", "dict", "set"})
TEXTS = frozenset({"repr", "str", "format"})
SAME_TEXT = frozenset({"encode", "strip", "lower", "upper", "replace", "splitlines", "split"})
KEYS = frozenset(
    {
        *("md5", "sha1", "sha224", "sha256", "sha384", "sha512", "blake2b", "blake2s"),
        *("new", "crc32", "adler32", "hash", "uuid3", "uuid5"),
        *("open", "Path", "join", "makedirs", "mkdir", "save"),
    }
)
IN_WRAPPERS = "fsdp"  # in the text that only one of the two has: ``FSDPNet``, ``_fsdp_wrapped``


def find_counts(study: Study, module: Module) -> Iterator[Site]:
    """Sites for numbers of a sharded model's modules, and for their places among these."""
    for call in module.table.calls_by_name.of(METHODS) if study.constructors else ():
        if not isinstance(call.func, ast.Attribute) or call.args or call.keywords:
            continue
        counted = _counted(call, module)
        if counted is None or not _is_wrapper(call.func.value, study, module):
            continue
        if not _is_only_said(counted, module):
            yield Site(COUNT, module, counted, counted, call.func.value)


def find_texts(study: Study, module: Module) -> Iterator[Site]:
    """Sites for texts of a sharded model that something depends on."""
    for call in module.table.calls_by_name.of(TEXTS) if study.constructors else ():
        if isinstance(call.func, ast.Name) and len(call.args) == 1 and not call.keywords:
            is_key = _any_use(call, module, _is_key)
            if is_key and _is_wrapper(call.args[0], study, module):
                yield Site(TEXT, module, call, call, call.args[0])


def _is_wrapper(model: ast.expr, study: Study, module: Module) -> bool:
    """Whether an expression is a sharded model, which FSDP1's wrapper was around."""
    values = study.values(model, module)
    return bool(study.traced(model, module)) and not class_questions.is_unwrapped(values)


def _counted(call: ast.Call, module: Module) -> ast.expr | None:
    """What counts the modules that a call gives, or takes one of them by its place."""
    node: ast.AST = call
    while True:
        parent = module.table.parents[node]
        match parent:
            case ast.Call(func=ast.Name(id="len" | "enumerate")):
                return parent
            case ast.Call(func=ast.Name(id="sum")) if isinstance(
                node, ast.GeneratorExp | ast.ListComp
            ):
                return parent if isinstance(node.elt, ast.Constant) else None
            case ast.Subscript(value=value) if value is node and node is not call:
                return parent
            case ast.Call(func=ast.Name(id=name)) if name in LISTS:
                pass
            case ast.Starred() | ast.List() | ast.Tuple() | ast.GeneratorExp() | ast.ListComp():
                pass
            case ast.comprehension(iter=entries, ifs=[]) if entries is node:
                pass
            case _:
                return None
        node = parent


def _is_only_said(counted: ast.expr, module: Module) -> bool:
    """Whether a number is printed or logged and nothing else."""
    if isinstance(counted, ast.Call) and last_name(counted.func) == "enumerate":
        loop = module.table.parents[counted]
        target = getattr(loop, "target", None)
        if not isinstance(target, ast.Tuple):
            return False
        places = names_in(target.elts[0])
        around = loop if isinstance(loop, ast.For) else module.table.parents[loop]
        uses = [n for n in ast.walk(around) if isinstance(n, ast.Name) and n.id in places]
        return all(is_said(n, module) for n in uses if isinstance(n.ctx, ast.Load))
    return not _any_use(counted, module, lambda use, _: not is_said(use, module))


def _any_use(node: ast.expr, module: Module, told: Callable[[ast.expr, Module], bool]) -> bool:
    """Whether something holds for an expression, or for a use of the name that it is given."""
    match module.table.parents[node]:
        case ast.Assign(targets=[ast.Name() as target], value=value) if value is node:
            scope = module.table.scope_of(target).lookup(target.id)
            return any(told(use, module) for use in module.table.reads(target.id, scope))
    return told(node, module)


def _is_key(text: ast.expr, module: Module) -> bool:
    """Whether a text names a file or an entry, or is compared with another."""
    node: ast.AST = text
    for parent in module.table.ancestors(text):
        match parent:
            case ast.Attribute(attr=name) if name not in SAME_TEXT:
                return False
            case ast.Call(func=function) if node is not function:
                return last_name(function) in KEYS
            case ast.Compare(left=ast.Constant(value=str(part)), ops=[ast.In() | ast.NotIn()]):
                return IN_WRAPPERS in part.lower()
            case ast.Compare():
                return True
            case ast.Subscript(slice=key):
                return key is node
            case ast.Dict(keys=keys):
                return node in keys
            case ast.stmt():
                return False
        node = parent
    return False


def find_names_in_hooks(study: Study, module: Module) -> Iterator[Site]:
    """Sites for the name of a class that a hook on a sharded model finds in what it is given, and
    for ``model._get_name()``, where something may be looked up by it."""
    if not study.constructors or not module.mentions(GET_NAME, *NAMES):
        return
    hooked = study.cache(_hooked)
    asked = [(n, classified(n.value)) for n in module.table.attributes_by_name.of(NAMES)]
    calls = module.table.calls_by_name.named(GET_NAME)
    got = [(c, c.func.value) for c in calls if isinstance(c.func, ast.Attribute)]
    for node, subject in (*asked, *got):
        around = module.table.parents[node]
        if subject is None or (
            isinstance(around, ast.Compare) and not is_looked_into(node, around)
        ):
            continue  # with the name of the model's own class, which it has in neither
        is_hooked = any(d.node in hooked for d in definitions(subject, module))
        is_model = isinstance(node, ast.Call) and _is_wrapper(subject, study, module)
        if (is_hooked or is_model) and not is_said(node, module):
            yield Site(OF_WRAPPER, module, node, node, subject)


def _hooked(study: Study) -> frozenset[ast.AST]:
    """The parameters of hooks that are a sharded model, and nothing else."""
    models: set[ast.AST] = set()
    others: set[ast.AST] = set()
    for module in study.project.modules:
        for name, calls in module.table.methods.items():
            if not (name.startswith("register_") and name.endswith("hook")):
                continue
            for call in calls:
                if call.args and isinstance(call.func, ast.Attribute):
                    is_model = _is_wrapper(call.func.value, study, module)
                    found = models if is_model else others
                    found.update(_first_parameters(call.args[0], module, study))
    return frozenset(models - others)


def _first_parameters(hook: ast.expr, module: Module, study: Study) -> Iterator[ast.arg]:
    functions: list[ast.AST] = [value.node for value in study.values(hook, module)]
    for function in (*functions, hook):
        if isinstance(function, FUNCTIONS):
            given = [*function.args.posonlyargs, *function.args.args]
            yield from given[given[0].arg in {"self", "cls"} :][:1] if given else ()
