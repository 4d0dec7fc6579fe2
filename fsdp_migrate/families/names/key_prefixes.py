"""The parts that FSDP1 puts into names, and code that takes them out.

``name.replace("_fsdp_wrapped_module.", "")`` has nothing to do where the name is one of a model's
in the running program, and may go. A name from anywhere else, such as a checkpoint of FSDP1's, may
have that part for as long as the file is kept: there the call stays, and does no harm to others.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass

from fsdp_migrate.analysis.module import Module
from fsdp_migrate.syntax.kinds import of_kind

PART = "_fsdp_wrapped_module"


@dataclass(frozen=True, eq=False)
class Removal:
    """Code that takes a part out of names, and leaves names without that part alone."""

    calls: tuple[ast.Call, ...]
    others: tuple[ast.expr, ...] = ()  # parts that the same loop takes out
    listed: ast.expr | None = None  # what that loop goes over

    @property
    def names(self) -> list[ast.expr]:
        """What the part is taken out of."""
        return [c.func.value for c in self.calls if isinstance(c.func, ast.Attribute)]


def removal(constant: ast.Constant, module: Module) -> Removal | None:
    """The code that takes a string out of names, if it does: ``name.replace(string, "")``."""
    parent = module.table.parents[constant]
    text = constant.value
    if not isinstance(text, str) or PART not in text.split("."):
        return None
    if isinstance(parent, ast.Call):
        rest = text.replace(f"{PART}.", "") if text.strip(".") != PART else ""
        return Removal((parent,)) if _removes(parent, constant, rest) else None
    return _in_loop(parent, constant, module) if text.strip(".") == PART else None


def asked_name(constant: ast.Constant, module: Module) -> ast.expr | None:
    """The name that is asked for a part: ``part in name``, ``name.startswith(part)``."""
    if PART not in str(constant.value):
        return None
    match module.table.parents[constant]:
        case ast.Compare(left=left, ops=[ast.In() | ast.NotIn()], comparators=[name]) if (
            left is constant
        ):
            return name
        case ast.Call(func=ast.Attribute(value=name, attr="startswith"), args=[_]):
            return name
    return None


def question_before_removal(
    constant: ast.Constant, module: Module
) -> tuple[ast.If, ast.Constant] | None:
    """``if part in name:`` before nothing but ``name = name.replace(part, "")``, and that part.

    More may be asked (``if name not in state and part in name``), and ``new = name`` may be done
    otherwise where ``new`` is what the name becomes without the part.
    """
    name = asked_name(constant, module)
    test = module.table.parents[constant]
    if name is None or (isinstance(test, ast.Compare) and isinstance(test.ops[0], ast.NotIn)):
        return None
    whole, question = test, module.table.parents[test]
    if isinstance(question, ast.BoolOp) and isinstance(question.op, ast.And):
        whole, question = question, module.table.parents[question]
    if not isinstance(question, ast.If) or question.test is not whole:
        return None
    for part in _parts_removed(question, name):
        if removal(part, module) is not None:
            return question, part
    return None


def _parts_removed(question: ast.If, name: ast.expr) -> Iterator[ast.Constant]:
    match question:
        case ast.If(
            body=[
                ast.Assign(targets=[target], value=ast.Call(func=ast.Attribute(value=of)) as call)
            ],
            orelse=otherwise,
        ) if ast.unparse(of) == ast.unparse(name):
            match otherwise:
                case []:
                    same = ast.unparse(target) == ast.unparse(name)
                case [ast.Assign(targets=[other], value=value)]:
                    same = ast.unparse(other) == ast.unparse(target)
                    same = same and ast.unparse(value) == ast.unparse(name)
                case _:
                    same = False
            if same:
                yield from (a for a in call.args if isinstance(a, ast.Constant))


def changed_name(constant: ast.Constant, module: Module) -> ast.expr | None:
    """The name that a call changes where it has a part, and gives as it is where it has not:
    ``name.replace(part, other)``."""
    if PART not in str(constant.value):
        return None
    match module.table.parents[constant]:
        case ast.Call(
            func=ast.Attribute(value=name, attr="replace" | "removeprefix" | "removesuffix"),
            args=[first, *_],
        ) if first is constant:
            return name
    return None


def has_twin(constant: ast.Constant, module: Module) -> bool:
    """Whether a string stands in a list of strings that has it without the part as well:
    ``("module.", "module._fsdp_wrapped_module.")``. What is done for one is done for the other,
    where nothing picks one of them."""
    listed = module.table.parents[constant]
    if not isinstance(listed, (ast.Tuple, ast.List, ast.Set)):
        return False
    clean = str(constant.value).replace(f"{PART}.", "")
    texts = [e.value for e in listed.elts if isinstance(e, ast.Constant)]
    return clean != constant.value and clean in texts and not is_picked_from(listed, module)


def is_picked_from(listed: ast.expr, module: Module) -> bool:
    """Whether an element of a list may be taken by its place, there or where the list is kept."""
    table, uses = module.table, [listed]
    match table.parents[listed]:
        case ast.Assign(targets=targets):
            for target in targets:
                if isinstance(target, ast.Name):
                    uses += table.names_by_id.named(target.id)
                elif isinstance(target, ast.Attribute):
                    uses += table.attributes_by_name.named(target.attr)
                else:
                    return True  # unpacked
    for use in uses:
        match table.parents[use]:
            case ast.Subscript(value=value) if value is use:
                return True
            case ast.Assign(targets=[ast.Tuple() | ast.List(), *_]):
                return True
    return False


def changes_follow(constant: ast.Constant, module: Module) -> bool:
    """Whether a question for a part stands before a change of the name that has it."""
    name, test = asked_name(constant, module), module.table.parents[constant]
    question = next((n for n in module.table.ancestors(test) if isinstance(n, ast.stmt)), None)
    if name is None or not isinstance(question, ast.If):
        return False
    inside = (n for s in question.body for n in ast.walk(s) if isinstance(n, ast.Constant))
    changed = (changed_name(n, module) for n in inside if n.value == constant.value)
    return any(c is not None and ast.unparse(c) == ast.unparse(name) for c in changed)


def _removes(call: ast.Call, part: ast.expr, rest: str) -> bool:
    """``name.replace(part, rest)``, perhaps once only, or ``name.removeprefix(part)``."""
    match call:
        case ast.Call(
            func=ast.Attribute(attr="replace"),
            args=[first, ast.Constant(value=new)] | [first, ast.Constant(value=new), _],
            keywords=[],
        ):
            return first is part and new == rest
        case ast.Call(func=ast.Attribute(attr="removeprefix"), args=[first], keywords=[]):
            return first is part and not rest
    return False


def _in_loop(parent: ast.AST, part: ast.Constant, module: Module) -> Removal | None:
    """``for word in (...): name = name.replace(word, "")``."""
    loop = module.table.parents[parent]
    if not isinstance(parent, (ast.Tuple, ast.List)) or not isinstance(loop, ast.For):
        return None
    others = tuple(e for e in parent.elts if e is not part)
    if loop.iter is not parent or not isinstance(loop.target, ast.Name) or not others:
        return None
    calls: list[ast.Call] = []
    for use in (n for s in loop.body for n in ast.walk(s)):
        if getattr(use, "id", "") != loop.target.id:
            continue
        call = module.table.parents[use]
        if not isinstance(call, ast.Call) or not _removes(call, of_kind(use, ast.expr), ""):
            return None
        calls.append(call)
    return Removal(tuple(calls), others, parent) if calls else None
