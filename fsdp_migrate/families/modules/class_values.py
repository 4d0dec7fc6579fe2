"""Code that looks something up by the class of a module, or hands the class on.

A sharded module has a class of its own, for which a table has no entry.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator

from fsdp_migrate.analysis.module import Module
from fsdp_migrate.families.modules.class_texts import nodes_of_parts
from fsdp_migrate.families.modules.exact_classes import is_around, is_own, is_said
from fsdp_migrate.families.modules.inside_wrappers import wrapper_of
from fsdp_migrate.families.modules.named_classes import named_subject, uses_of
from fsdp_migrate.families.modules.visited_modules import visited_model, visitors
from fsdp_migrate.fsdp1.class_questions import classified
from fsdp_migrate.fsdp1.construct import Construct
from fsdp_migrate.fsdp1.site import Site
from fsdp_migrate.planning.context import Study
from fsdp_migrate.syntax.expressions import last_name

KEY = Construct.parse("class as a key")
HANDED_ON = Construct.parse("class handed on")
PUT_INTO = (
    *(ast.Assign, ast.Dict, ast.DictComp, ast.GeneratorExp, ast.List, ast.ListComp, ast.Return),
    *(ast.Set, ast.SetComp, ast.Tuple, ast.Yield, ast.keyword),
)


def find_class_keys(study: Study, module: Module) -> Iterator[Site]:
    """Sites for ``table.get(type(m))`` and ``table[type(m)]``: there is no entry for the class of a
    sharded module."""
    keys: list[tuple[ast.expr, ast.expr]] = [
        (call, call.args[0])
        for call in module.table.calls_by_name.named("get")
        if isinstance(call.func, ast.Attribute) and call.args
    ]
    keys += [
        (entry, entry.slice)
        for entry in (module.table.subscripts if study.constructors else ())
        if isinstance(entry.ctx, ast.Load)
    ]
    for call, key in keys:
        subject = classified(key) or named_subject(key, module)
        if subject is None:
            continue
        model = visited_model(subject, study, module, visitors(study, module))
        model = model or wrapper_of(subject, study, module)
        if model is None and is_around(subject, study, module):
            model = subject
        if model is not None or is_own(subject, study, module):
            yield Site(KEY, module, call, call, model)


def find_classes_handed_on(study: Study, module: Module) -> Iterator[Site]:
    """Sites for ``type(m)`` of what may be sharded that is put somewhere, or given to something."""
    if not study.constructors:
        return
    calls = module.table.calls_by_name.named("type")
    kinds: list[ast.expr] = [*calls, *module.table.attributes_by_name.named("__class__")]
    handed = visitors(study, module) if kinds else {}
    parts = nodes_of_parts(study, module) if kinds else set()
    for kind in kinds:
        subject = classified(kind)
        if subject is None or kind in parts or is_said(kind, module):
            continue
        uses: list[ast.expr] = [kind, *uses_of(kind, module)]
        escaping = [use for use in uses if _is_handed_on(use, module)]
        if not escaping:
            continue
        model = visited_model(subject, study, module, handed)
        if model is not None or study.traced(subject, module) or is_own(subject, study, module):
            yield from (Site(HANDED_ON, module, use, use, model) for use in escaping)


def _is_handed_on(use: ast.expr, module: Module) -> bool:
    """Whether a class gets somewhere: not where it is compared, asked for something or called."""
    match module.table.parents[use]:
        case ast.Call(func=func, args=args):
            by_class = {"get", "isinstance", "issubclass", "super", "type"}
            return use in args and last_name(func) not in by_class and not is_said(use, module)
        case ast.Subscript(slice=key, ctx=ctx):
            return key is use and isinstance(ctx, ast.Store)
        case ast.Attribute() | ast.Assign(targets=[ast.Name()]) | ast.Compare():
            return False
    return isinstance(module.table.parents[use], PUT_INTO)
