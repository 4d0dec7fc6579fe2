"""Which owners of an attribute have the same: a parameter may be a thousand objects by its callers,
of few kinds."""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator

from fsdp_migrate.analysis.values import Class, External, Made, ModuleValue, Unknown, Value
from fsdp_migrate.fsdp1 import api as fsdp1

# What has its keyword arguments as attributes, and whatever else is set.
NAMESPACES = frozenset(
    {"types.SimpleNamespace", "argparse.Namespace", "threading.local", "easydict.EasyDict"}
)
# What an FSDP1 model has itself, whatever the module inside has.
OWN = fsdp1.OF_MODELS | fsdp1.ONLY_MODELS | fsdp1.FIELDS | fsdp1.UNMISTAKABLE

INNER = frozenset({"module", "_fsdp_wrapped_module"})


def hands_on(made_by: str, attr: str) -> bool:
    """Whether FSDP1's class made an object, which has what the module inside has (its
    ``__getattr__``), and the attribute is none of its own."""
    return fsdp1.canonical(made_by) == fsdp1.FSDP and attr not in OWN


def unwraps(made_by: str, attr: str) -> bool:
    """Whether an attribute of what FSDP1's class made is the module inside."""
    return fsdp1.canonical(made_by) == fsdp1.FSDP and attr in INNER


def inside(call: ast.Call) -> ast.expr | None:
    """What FSDP1's class is given to wrap, as it is written."""
    given = [k.value for k in call.keywords if k.arg == "module"] or call.args[:1]
    return given[0] if given and not isinstance(given[0], ast.Starred) else None


def one_of_each(owners: Iterable[Value], attr: str) -> Iterator[Value]:
    """The owners, but one for all those that have the same as an attribute."""
    seen: set[tuple[type, object]] = set()
    for owner in owners:
        kind = _kind(owner, attr)
        if kind is None:
            yield owner
        elif kind not in seen:
            seen.add(kind)
            yield owner


def _kind(owner: Value, attr: str) -> tuple[type, object] | None:
    """What an owner has in common with all others that have the same as an attribute; None where
    each may have something else. Instances of one class have the same, however made."""
    match owner:
        case Made(callee=Class(node=cls)):
            return Class, cls
        case Unknown(why=why):
            return Unknown, why
        case Made(made_by=made_by) if made_by in NAMESPACES or hands_on(made_by, attr):
            return None
        case Made(made_by=made_by) if unwraps(made_by, attr):
            return None
        case Class() | External() | ModuleValue():
            return None
    return type(owner), None
