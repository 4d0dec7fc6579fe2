"""Where an expression is a type: annotations, type aliases and arguments of typing's functions."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from fsdp_migrate.syntax.expressions import last_name
from fsdp_migrate.syntax.name_table import NameTable

TYPING = ("typing.", "typing_extensions.", "collections.abc.")
GENERIC = frozenset({"list", "dict", "tuple", "set", "frozenset", "type"})
TAKING = frozenset({"cast", "NewType", "TypeVar"})
HOLDING = frozenset(
    (
        *(ast.arg, ast.AnnAssign, ast.FunctionDef, ast.AsyncFunctionDef, ast.Subscript, ast.Tuple),
        *(ast.BinOp, ast.List, ast.Attribute, ast.keyword, ast.ClassDef),
    )
)
CHECKS = frozenset({"isinstance", "issubclass"})


def is_type(node: ast.expr, table: NameTable) -> bool:
    """Whether ``node`` is a type, or a part of one, and no value that the program works with.

    Types are annotations, what ``cast``, ``TypeVar`` and ``NewType`` are given, arguments of
    generic base classes, and aliases (``Model = Union[FSDP, DDP]``) that no ``isinstance`` of the
    module asks for.
    """
    if not _may_hold_type(table.parents.get(node)):
        return False
    child: ast.AST = node
    generic = False  # inside of what is a type wherever it stands
    for parent in table.ancestors(node):
        match parent:
            case ast.arg(annotation=annotation):
                return child is annotation
            case ast.AnnAssign(annotation=annotation):
                return child is annotation or _is_declared_alias(parent, child)
            case ast.FunctionDef(returns=returns) | ast.AsyncFunctionDef(returns=returns):
                return child is returns
            case ast.Subscript(value=value):
                called = last_name(value)
                if child is value or called == "Literal":
                    return False
                if called == "Annotated" and child is not parent.slice:
                    return False
                generic = generic or is_generic(value, table)
            case ast.Tuple(elts=[first, *_]):
                above = table.parents[parent]
                noted = isinstance(above, ast.Subscript) and last_name(above.value) == "Annotated"
                if noted and child is not first:
                    return False
            case ast.BinOp(op=ast.BitOr()):
                generic = True
            case ast.BinOp() | ast.List() | ast.Attribute():
                pass
            case ast.Call(func=func, args=args):
                match last_name(func):
                    case "cast":
                        return args[:1] == [child]
                    case "NewType":
                        return args[1:] == [child]
                    case "TypeVar":
                        return child in args[1:]
                return False
            case ast.keyword(arg="bound"):
                call = table.parents[parent]
                return isinstance(call, ast.Call) and last_name(call.func) == "TypeVar"
            case ast.ClassDef(bases=bases):
                return child in bases and child is not node and not isinstance(child, ast.Attribute)
            case ast.Assign(targets=[ast.Name(id=name)]):
                return generic and not is_checked(name, table)
            case _:
                return False
        child = parent
    return False


def _may_hold_type(parent: ast.AST | None) -> bool:
    """A quick first test: most expressions are arguments of calls that take no types."""
    if parent.__class__ is ast.Call:
        return last_name(parent.func) in TAKING
    return parent.__class__ in HOLDING


def is_generic(node: ast.expr, table: NameTable) -> bool:
    """Whether ``node`` is one of typing's forms or a builtin, of which subscripts are types."""
    if isinstance(node, ast.Name) and node.id in GENERIC:
        return table.scope_of(node).lookup(node.id) is None
    return any(name.startswith(TYPING) for name in table.qualify(node))


def is_checked(name: str, table: NameTable) -> bool:
    """Whether something is asked to be an instance of what goes by this name."""
    return any(
        last_name(call.func) in CHECKS
        and any(
            last_name(part) == name
            for argument in call.args[1:]
            for part in ast.walk(argument)
            if isinstance(part, (ast.Name, ast.Attribute))
        )
        for call in table.calls
    )


def _is_declared_alias(node: ast.AnnAssign, value: ast.AST) -> bool:
    """``Model: TypeAlias = FSDP | None``."""
    return last_name(node.annotation) == "TypeAlias" and node.value is value


def classes(asked: ast.expr) -> Iterator[ast.expr]:
    """``(A, B)`` and ``A | B``, one by one."""
    match asked:
        case ast.Tuple(elts=elements):
            for element in elements:
                yield from classes(element)
        case ast.BinOp(op=ast.BitOr()):
            yield from classes(asked.left)
            yield from classes(asked.right)
        case _:
            yield asked
