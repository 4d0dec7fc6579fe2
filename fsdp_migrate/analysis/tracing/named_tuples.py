"""The elements of a named tuple, in the order of its fields: ``model, _ = Pieces(m, o)``."""

from __future__ import annotations

import ast

from fsdp_migrate.analysis.tracing.evaluator import Evaluator
from fsdp_migrate.analysis.values import Class, Computed, External, Made, Value

CLASS = "typing.NamedTuple"
FUNCTION = "collections.namedtuple"


def elements(value: Value, tracer: Evaluator) -> list[ast.expr] | None:
    """What the call that makes a named tuple gives its fields, as far as it gives them one by one;
    None of what is no named tuple."""
    call = value.node
    if not isinstance(call, ast.Call) or not isinstance(value, (Made, Computed)):
        return None
    names = _fields(value, call, tracer)
    if names is None:
        return None
    by_name = {keyword.arg: keyword.value for keyword in call.keywords}
    found: list[ast.expr] = []
    for place, name in enumerate(names):
        given = call.args[place] if place < len(call.args) else by_name.get(name)
        if given is None or isinstance(given, ast.Starred):
            break
        found.append(given)
    return found


def _fields(value: Value, call: ast.Call, tracer: Evaluator) -> list[str] | None:
    if isinstance(value, Made) and isinstance(value.callee, Class):
        cls = value.callee
        bases = (v for base in cls.node.bases for v in tracer.evaluate(base, cls.module))
        if not any(isinstance(base, External) and base.name == CLASS for base in bases):
            return None
        own = (node.target for node in cls.node.body if isinstance(node, ast.AnnAssign))
        return [target.id for target in own if isinstance(target, ast.Name)]
    if not isinstance(value, Computed):
        return None
    for made in tracer.evaluate(call.func, value.module, value.frame):
        match made:
            case Made(made_by=maker, node=ast.Call(args=[_, listed, *_])) if maker in (
                CLASS,
                FUNCTION,
            ):
                return _listed(listed)
    return None


def _listed(names: ast.expr) -> list[str] | None:
    """``"model optimizer"``, ``["model", "optimizer"]`` or ``[("model", Any)]``."""
    try:
        read = ast.literal_eval(names)
    except ValueError:
        pairs = names.elts if isinstance(names, (ast.List, ast.Tuple)) else []
        first = [each.elts[0] for each in pairs if isinstance(each, ast.Tuple) and each.elts]
        texts = [str(each.value) for each in first if isinstance(each, ast.Constant)]
        return texts if texts and len(texts) == len(pairs) else None
    if isinstance(read, str):
        return read.replace(",", " ").split()
    return list(map(str, read)) if isinstance(read, (list, tuple)) else None
