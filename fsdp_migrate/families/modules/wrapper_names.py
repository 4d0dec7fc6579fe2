"""The name of FSDP1's class in code that asks for the names of classes.

``"FullyShardedDataParallel" in {type(m).__name__ for m in model.modules()}`` is false of an FSDP2
model, whose modules are called after their own classes. So is whatever else is done with that name:
counted in a list, looked up in a dictionary, compared with what a function gives.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator

from fsdp_migrate.analysis.module import Module
from fsdp_migrate.families.modules import class_texts, exact_classes, own_classes_of_parts
from fsdp_migrate.fsdp1 import spelled_names, unfollowed
from fsdp_migrate.fsdp1.class_questions import classified
from fsdp_migrate.fsdp1.construct import Construct
from fsdp_migrate.fsdp1.site import Site
from fsdp_migrate.planning.context import Study
from fsdp_migrate.syntax import string_annotations
from fsdp_migrate.syntax.expressions import last_name

CONSTRUCT = Construct.parse("name of the wrapper's class")
BEGINNINGS = ("FullyShard", "ShardedData")  # of texts that are a part of no other name here
BY_NAME = frozenset(  # what gets an attribute by its name, or puts something in its place
    {"getattr", "hasattr", "setattr", "delattr", "patch", "object", "import_module", "attrgetter"}
)


def find_wrapper_names(study: Study, module: Module) -> Iterator[Site]:
    """A site for every string with the name of FSDP1's class, or a part of it, that the names of
    classes may be compared with."""
    if not study.constructors or not study.cache(_asks_for_names):
        return
    compared = study.cache(_compared)
    quoted = {each.string for each in string_annotations.in_annotations(module.table)}
    for constant in module.table.strings:
        text = str(constant.value)
        if text not in exact_classes.WRAPPER or not text.startswith(BEGINNINGS):
            continue
        if constant in compared or constant in quoted or _is_another_name(constant, module):
            continue
        if not _is_said(constant, module):
            yield Site(CONSTRUCT, module, constant, constant)


def find_names_of_units(study: Study, module: Module) -> Iterator[Site]:
    """A site for ``type(block).__name__`` of what a policy may have wrapped: FSDP1's wrapper had
    its own."""
    names = module.table.attributes_by_name.of(class_texts.NAMES) if study.constructors else ()
    for name in names:
        subject = classified(name.value)
        compared = isinstance(module.table.parents[name], ast.Compare)
        if subject is None or compared or exact_classes.is_said(name, module):
            continue
        if study.traced(subject, module) or not isinstance(subject, (ast.Name, ast.Subscript)):
            continue
        if exact_classes.is_own(subject, study, module):
            continue
        if any(
            c.may_have("auto_wrap_policy")
            for c in own_classes_of_parts.whole_of(subject, study, module)
        ):
            yield Site(exact_classes.OF_WRAPPER, module, name, name, subject)


def _asks_for_names(study: Study) -> bool:
    """Whether the project asks something for the name of its class."""
    return any(
        classified(name.value) is not None
        for module in study.project.modules
        for name in module.table.attributes_by_name.of(class_texts.NAMES)
    )


def _compared(study: Study) -> set[ast.AST]:
    """The strings of comparisons with a class's name that are sites themselves."""
    return {
        node
        for module in study.project.modules
        if module.mentions(exact_classes.WRAPPER)
        for find in (exact_classes.find_exact_class_tests, exact_classes.find_parts_of_names)
        for test in find(study, module)
        for node in ast.walk(test.node)
    }


def _is_said(constant: ast.Constant, module: Module) -> bool:
    """Whether a string, or one that it is a part of, is printed, logged or raised."""
    parents = module.table.parents
    parent = parents[constant]
    while isinstance(parent, (ast.JoinedStr, ast.BinOp)):
        parent = parents[parent]
    if not isinstance(parent, ast.Call):
        return False
    said = exact_classes.SAYING.search(ast.unparse(parent.func))
    return bool(said) or isinstance(parents[parent], ast.Raise)


def _is_another_name(constant: ast.Constant, module: Module) -> bool:
    """Whether a string names something else than the class of an object: an attribute of a module
    of torch's, an entry of ``__all__``, a setting."""
    if spelled_names.is_docstring(module, constant):
        return True
    for parent in module.table.ancestors(constant):
        match parent:
            case ast.Call(func=function) if last_name(function) in BY_NAME:
                return True
            case ast.Assign(targets=[ast.Name(id="__all__")]):
                return True
            case ast.Compare(left=left, comparators=[right]):
                return any(
                    unfollowed.OTHER_OBJECTS.search(ast.unparse(side))
                    for side in (left, right)
                    if side is not constant
                )
            case ast.stmt():
                return False
    return False
