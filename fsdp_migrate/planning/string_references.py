"""FSDP1 that is spelled out in strings: dotted names, modules imported by name, code in text."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

from fsdp_migrate.analysis import reaching_bindings
from fsdp_migrate.analysis.module import Module
from fsdp_migrate.analysis.values import Computed, Constant, ModuleValue, Unknown, Values, is_open
from fsdp_migrate.fsdp1 import api as fsdp1
from fsdp_migrate.fsdp1 import model_attributes, model_values, spelled_names
from fsdp_migrate.fsdp1.construct import Construct, ConstructKind
from fsdp_migrate.fsdp1.references import lent
from fsdp_migrate.fsdp1.site import Site
from fsdp_migrate.planning.context import Study
from fsdp_migrate.syntax import string_annotations
from fsdp_migrate.syntax.expressions import last_name
from fsdp_migrate.syntax.kinds import of_kind

TEXT = Construct.parse("code in a string")
QUOTED = Construct.parse("quoted annotation")

IMPORTERS = frozenset({"import_module", "__import__", "importorskip", "lazy_import", "LazyLoader"})
RUNNERS = frozenset(
    (
        *("exec", "eval", "compile", "run", "Popen", "call", "check_call", "check_output"),
        *("system", "write", "write_text", "writelines"),
    )
)
OF_MESSAGES = frozenset({"getLogger", "get_logger", "filterwarnings", "warn_explicit"})
DOCUMENTATION = ("nitpick", "intersphinx", "autodoc", "autosummary")
BY_NAME = frozenset({"getattr", "hasattr", "setattr", "delattr"})
OPERATORS = frozenset({"operator.attrgetter", "operator.methodcaller"})
REPLACERS = frozenset({"delattr", "multiple", "object", "patch", "setattr"})
# Those that FSDP2 models have as well, and those that other sites answer for.
_SHARED = frozenset({"module", *spelled_names.WRAPPER_NAMES})
_UNMISTAKABLE = fsdp1.UNMISTAKABLE | fsdp1.FLAT_FIELDS
ATTRIBUTES = (fsdp1.METHODS | fsdp1.STATICS | fsdp1.FLAT_FIELDS) - _SHARED
DOTTED = re.compile(r"torch\.distributed\.fsdp(?:\.\w+)*")
IMPORT = re.compile(
    r"(?m)^[ \t>.]*(?:from[ \t]+(torch\.distributed\.fsdp[\w.]*)[ \t]+import[ \t]+"
    r"(\([^)]*\)|[\w, \t*]+)|import[ \t]+(torch\.distributed\.fsdp[\w.]*)(?:[ \t]+as[ \t]+\w+)?)"
    r"[ \t;]*(?:#.*)?$"
)


def find(study: Study, module: Module) -> Iterator[Site]:
    """Sites for what strings of a module name of FSDP1."""
    taken: set[ast.AST] = {each.string for each in string_annotations.in_annotations(module.table)}
    for node, named in _looked_up(study, module):
        taken.update(ast.walk(node))
        yield Site(Construct(ConstructKind.NAME_IN_STRING, named), module, node, node)
    for node, named in _replaced(study, module):
        taken.add(node)
        yield Site(Construct(ConstructKind.NAME_IN_STRING, named), module, node, node)
    for constant in module.table.strings:
        text = str(constant.value)
        if fsdp1.PACKAGE not in text:
            continue
        if constant in taken or spelled_names.is_docstring(module, constant):
            continue
        if _is_about_messages(constant, module) or _is_for_documentation(constant, module):
            continue
        known = _canonical(text) if DOTTED.fullmatch(text) else None
        if known is not None:
            yield Site(Construct(ConstructKind.NAME_IN_STRING, known), module, constant, constant)
            continue
        imports = any(map(_imports_fsdp1, IMPORT.finditer(text)))
        if imports and constant in _run_or_written(study, module):
            yield Site(TEXT, module, constant, constant)


def is_mention(site: Site) -> bool:
    """Whether a string names no more than a module of FSDP1's, and nothing is imported by it."""
    return isinstance(site.node, ast.Constant) and fsdp1.is_module(str(site.node.value))


def _is_about_messages(constant: ast.Constant, module: Module) -> bool:
    """Whether a string says whose log records or warnings are meant: nothing is imported by it."""
    for parent in module.table.ancestors(constant):
        if isinstance(parent, ast.Call):
            return last_name(parent.func) in OF_MESSAGES
        if isinstance(parent, ast.Dict):
            above = module.table.parents[parent]
            keys = above.keys if isinstance(above, ast.Dict) and parent in above.values else []
            index = above.values.index(parent) if keys and isinstance(above, ast.Dict) else 0
            key = keys[index] if keys else None
            return isinstance(key, ast.Constant) and key.value == "loggers"
        if isinstance(parent, ast.stmt):
            return False
    return False


def _is_for_documentation(constant: ast.Constant, module: Module) -> bool:
    """Whether a string is in a setting of Sphinx's, such as ``nitpick_ignore``."""
    statement = module.table.statement(constant)
    match statement:
        case ast.Assign(targets=[ast.Name(id=name)]) | ast.AnnAssign(target=ast.Name(id=name)):
            return name.startswith(DOCUMENTATION)
        case ast.AugAssign(target=ast.Name(id=name)):
            return name.startswith(DOCUMENTATION)
        case ast.Expr(value=ast.Call(func=ast.Attribute(value=ast.Name(id=name)))):
            return name.startswith(DOCUMENTATION)
    return False


def in_annotations(study: Study, module: Module) -> Iterator[Site]:
    """Sites for annotations that are strings and name FSDP1."""
    for each in string_annotations.in_annotations(module.table):
        if references(each, study, module):
            yield Site(QUOTED, module, each.string, each.string)


def is_unsure(site: Site, study: Study) -> bool:
    """Whether a quoted annotation has a name that may be something else than FSDP1's."""
    module = site.module
    return site.construct == QUOTED and any(
        study.project.look_alikes(node, module)
        for each in string_annotations.in_annotations(module.table)
        if each.string is site.node
        for node, _ in references(each, study, module)
    )


def references(
    each: string_annotations.Quoted, study: Study, module: Module
) -> list[tuple[ast.expr, str]]:
    """The expressions in a quoted annotation that stand for FSDP1's names, with those."""
    found: list[tuple[ast.expr, str]] = []
    stack: list[ast.AST] = [each.expression]
    while stack:
        node = stack.pop()
        known = _of(node, study, module) if isinstance(node, ast.expr) else None
        if known is not None:
            node = of_kind(node, ast.expr)
            found.append((node, known))
        else:
            stack += ast.iter_child_nodes(node)
    return found


def attributes(study: Study, module: Module, *, has_fsdp: bool) -> Iterator[Site]:
    """Sites for attributes of FSDP1 models that are asked for by name.

    In a module that refers to FSDP1 (``has_fsdp``), names that only FSDP1 has are taken for them on
    objects that nothing is known about.
    """
    yield from _asked_by_operators(study, module)
    for call in module.table.calls_by_name.of(BY_NAME):
        if len(call.args) < 2:
            continue
        name = call.args[1]
        if not isinstance(name, ast.Constant) or name.value not in ATTRIBUTES:
            continue
        if last_name(call.func) == "hasattr" and name.value in model_attributes.TELLING:
            continue
        found = study.values(call.args[0], module)
        known = model_values.models(found, study.tracer)
        unknown = is_open(found)
        if known or (has_fsdp and name.value in _UNMISTAKABLE and unknown):
            yield Site(
                Construct(ConstructKind.ATTRIBUTE_BY_NAME, name.value),
                module,
                call,
                call,
                call.args[0],
            )


def _asked_by_operators(study: Study, module: Module) -> Iterator[Site]:
    """Sites for what ``operator.methodcaller("clip_grad_norm_", 1.0)`` and ``attrgetter`` will ask
    models for, whatever they are called with, unless that is known to be no model."""
    renamed = {b.name for b in module.table.imports if b.qualified in OPERATORS}
    for call in module.table.calls_by_name.of({"attrgetter", "methodcaller", *renamed}):
        if OPERATORS.isdisjoint(study.external(call.func, module)):
            continue
        asked = {part for a in call.args for part in str(getattr(a, "value", "")).split(".")}
        found = sorted(asked & (ATTRIBUTES | _SHARED | fsdp1.STATE_METHODS))
        around = module.table.parents[call]
        used = around.args[:1] if isinstance(around, ast.Call) and around.func is call else []
        known = used and study.values(used[0], module)
        if not found or (known and not _may_be_models(known, study)):
            continue
        construct = Construct(ConstructKind.ATTRIBUTE_BY_NAME, found[0])
        yield Site(construct, module, call, call, used[0] if used else call)


def _may_be_models(found: Values, study: Study) -> bool:
    unknown = any(isinstance(v, (Computed, Unknown)) for v in found)
    return unknown or bool(model_values.models(found, study.tracer))


def in_bytes(module: Module) -> Iterator[Site]:
    """Sites for byte strings that hold parts of FSDP1's parameter names."""
    if not any(module.mentions(name) for name in spelled_names.WRAPPER_NAMES):
        return
    for node in module.table.parents:
        if not isinstance(node, ast.Constant) or not isinstance(node.value, bytes):
            continue
        found = next((n for n in spelled_names.WRAPPER_NAMES if n.encode() in node.value), None)
        if found is not None and not spelled_names.is_docstring(module, node):
            yield Site(Construct(ConstructKind.BYTES, found), module, node, node)


def _run_or_written(study: Study, module: Module) -> set[ast.AST]:
    """The strings that are run as code or put into a file; others are notes."""
    found: set[ast.AST] = set()
    for call in module.table.calls_by_name.of(RUNNERS):
        for given in (*call.args, *(k.value for k in call.keywords)):
            parts = [n for n in ast.walk(given) if isinstance(n, (ast.Name, ast.Constant))]
            found.update(v.node for part in parts for v in study.values(part, module))
    return found


def _looked_up(study: Study, module: Module) -> Iterator[tuple[ast.expr, str]]:
    """Calls and subscripts that get FSDP1, or a part of it, by a name."""
    for call in module.table.calls_by_name.of(IMPORTERS | BY_NAME):
        called = last_name(call.func)
        if called in IMPORTERS and call.args:
            spelled = study.cache(_spelled)  # nothing else can be asked for by name
            given = call.args[:3] if spelled else ()
            names = {_text(v) for a in given for v in study.values(a, module)}
            known = spelled & names
            if known and not _goes_on_to_fsdp2(call, module):
                yield call, sorted(known)[0]
        elif called in BY_NAME and len(call.args) > 1:
            yield from _member(call, call.args[0], call.args[1], study, module)
    if not any(word in module.source.text for word in ("__dict__", "vars", "modules")):
        return
    for node in module.table.subscripts:
        owner = node.value
        if isinstance(owner, ast.Attribute) and owner.attr == "__dict__":
            yield from _member(node, owner.value, node.slice, study, module)
        elif isinstance(owner, ast.Call) and last_name(owner.func) == "vars" and owner.args:
            yield from _member(node, owner.args[0], node.slice, study, module)
        elif isinstance(owner, ast.Attribute) and owner.attr == "modules":
            is_key = isinstance(node.slice, ast.Constant) and isinstance(node.slice.value, str)
            key = node.slice.value if is_key and isinstance(node.slice, ast.Constant) else ""
            if fsdp1.is_module(str(key)) and not _goes_on_to_fsdp2(node, module):
                yield node, str(key)


def _spelled(study: Study) -> frozenset[str]:
    """The strings of the project that are dotted names of FSDP1's."""
    texts = (str(s.value) for module in study.project.modules for s in module.table.strings)
    return frozenset(
        text
        for text in texts
        if text.startswith("torch.") and (fsdp1.is_module(text) or fsdp1.canonical(text))
    )


def _member(
    node: ast.expr, owner: ast.expr, name: ast.expr, study: Study, module: Module
) -> Iterator[tuple[ast.expr, str]]:
    modules = {outer for outer in study.external(owner, module) if fsdp1.is_module(outer)}
    for value in study.values(name, module) if modules else ():
        for outer in sorted(modules):
            known = fsdp1.canonical(f"{outer}.{_text(value)}")
            if known is not None:
                yield node, known
                return
    method = isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute)
    known = None if method else _global(owner, name, study, module)
    if known is not None:
        yield node, known


def _global(owner: ast.expr, name: ast.expr, study: Study, module: Module) -> str | None:
    """What of FSDP1 a module of the project has under a name that is written out."""
    if not isinstance(name, ast.Constant) or not isinstance(name.value, str):
        return None
    if not isinstance(owner, (ast.Name, ast.Attribute)) or not module.table.qualify(owner):
        return None
    handed_on = study.cache(_lent)
    if handed_on is not None and name.value not in handed_on:
        return None  # as nearly always: what the owner is would tell nothing
    for value in study.values(owner, module):
        if isinstance(value, ModuleValue) and value.target is not None:
            for _, binding in study.project.exports(value.target, name.value):
                for outer in study.project.canonical(binding.qualified, value.target):
                    known = fsdp1.canonical(outer)
                    if known is not None:
                        return known
    return None


def _lent(study: Study) -> frozenset[str] | None:
    """The names that FSDP1 has in modules of the project; None where it may have any."""
    return lent(study.project)


def _replaced(study: Study, module: Module) -> Iterator[tuple[ast.expr, str]]:
    """``patch("package.module.FSDP")`` and ``patch.object(module, "FSDP")``."""
    for call in module.table.calls_by_name.of(REPLACERS):
        called = last_name(call.func)
        if not call.args:
            continue
        first = call.args[0]
        if called == "object" or (called in BY_NAME and not isinstance(first, ast.Constant)):
            if len(call.args) > 1 and isinstance(call.func, ast.Attribute):
                known = _global(first, call.args[1], study, module)
                if known is not None:
                    yield call.args[1], known
        elif isinstance(first, ast.Constant) and isinstance(first.value, str):
            several = [f"{first.value}.{k.arg}" for k in call.keywords if called == "multiple"]
            for dotted in several or [first.value]:
                if study.project.resolve(dotted, module) is None:
                    continue  # a name of torch's own is for all strings
                names = study.project.canonical(dotted, module)
                found = sorted(filter(None, map(fsdp1.canonical, names)))
                if found:
                    yield first, found[0]
                    break


def _goes_on_to_fsdp2(node: ast.expr, module: Module) -> bool:
    """``import_module("torch.distributed.fsdp").fully_shard``."""
    parent = module.table.parents[node]
    if isinstance(parent, ast.Attribute):
        return parent.attr in fsdp1.FSDP2
    if not isinstance(parent, ast.Call) or last_name(parent.func) not in BY_NAME:
        return False
    if parent.args[:1] == [node]:
        name = parent.args[1] if len(parent.args) > 1 else None
        return isinstance(name, ast.Constant) and name.value in fsdp1.FSDP2
    return False


def _text(value: object) -> str:
    found = value.value if isinstance(value, Constant) else None
    return found if isinstance(found, str) else ""


def _canonical(dotted: str) -> str | None:
    """What of FSDP1 a dotted name is; the package is nobody's alone."""
    known = fsdp1.canonical(dotted)
    if known is None and dotted != fsdp1.PACKAGE and fsdp1.is_module(dotted):
        return dotted.removeprefix(f"{fsdp1.PACKAGE}.")
    return known


def _imports_fsdp1(found: re.Match[str]) -> bool:
    source, names, whole = found.groups()
    if whole is not None:
        return True
    listed = re.findall(r"\w+", re.sub(r"\bas\s+\w+", "", names))
    return any(fsdp1.canonical(f"{source}.{name}") for name in listed)


def _of(node: ast.expr, study: Study, module: Module) -> str | None:
    """FSDP1's name for a name or dotted path in a quoted annotation."""
    rest: list[str] = []
    head: ast.expr = node
    while isinstance(head, ast.Attribute):
        rest.insert(0, head.attr)
        head = head.value
    if not isinstance(head, ast.Name):
        return None
    top = module.table.module
    every = top.bindings.get(head.id, [])
    replaced = set(every).difference(reaching_bindings.at_end(every, top, module))
    for binding in module.table.imports:
        if binding.name != head.id or binding in replaced:
            continue
        dotted = ".".join([binding.qualified, *rest])
        for outer in study.project.canonical(dotted, module):
            known = fsdp1.canonical(outer)
            if known is not None:
                return known
    return None
