"""Code that asks for the exact class of a module of a sharded model.

``fully_shard`` gives a module a class of its own: ``Block`` becomes ``FSDPBlock``, derived from
``FSDPModule`` and ``Block``. ``type(m) is Block`` is false then, without an error. On FSDP1 models
it is true of the wrapped module, which ``modules()`` visits after its wrapper. Looking at one
attribute or at the children of one module finds the wrapper in FSDP1, so that the test is false in
both.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from dataclasses import dataclass

from fsdp_migrate.analysis.module import Module
from fsdp_migrate.analysis.tracing.functions import is_dataclass
from fsdp_migrate.analysis.values import Class, External, is_open
from fsdp_migrate.families.modules import class_texts, visited_modules
from fsdp_migrate.families.modules.class_texts import NAMES
from fsdp_migrate.families.modules.inside_wrappers import wrapper_of
from fsdp_migrate.families.modules.named_classes import uses_of
from fsdp_migrate.families.wrapping import model_contents
from fsdp_migrate.fsdp1 import api as fsdp1
from fsdp_migrate.fsdp1.class_questions import classified
from fsdp_migrate.fsdp1.construct import Construct
from fsdp_migrate.fsdp1.model_values import definitions
from fsdp_migrate.fsdp1.site import Site
from fsdp_migrate.planning.context import Study
from fsdp_migrate.syntax.kinds import of_kind
from fsdp_migrate.syntax.scopes import Kind
from fsdp_migrate.syntax.trees import FUNCTIONS

CONSTRUCT = Construct.parse("exact class")
NAMED = Construct.parse("class name")
PART = Construct.parse("part of a class name")
OF_WRAPPER = Construct.parse("class name of a wrapper")
DERIVED = Construct.parse("bases of a class")
BEFORE = frozenset({"__init__", "__new__"})  # nothing is sharded yet
WRAPPER = "FullyShardedDataParallel"
BASES = frozenset({"__base__", "__bases__", "__mro__"})
# Not ``catalog.get`` or ``blueprint``, but ``logger.info``, ``self.log_dict`` and ``rank0_print``.
SAYING = re.compile(r"(?i)(?:^|[._])(?:p?print|logs?|logger|logging|warn|warnings?)(?![a-z])")


@dataclass(frozen=True, eq=False)
class Test:
    """A comparison of the class of ``subject``, or of its name, with ``other``."""

    node: ast.Compare
    subject: ast.expr
    kind: ast.expr  # ``type(m)``, ``m.__class__``, or the name of it
    other: ast.expr

    @property
    def by_name(self) -> bool:
        return isinstance(self.kind, ast.Attribute) and self.kind.attr in NAMES

    @property
    def is_negated(self) -> bool:
        return isinstance(self.node.ops[0], (ast.IsNot, ast.NotEq, ast.NotIn))

    @property
    def is_membership(self) -> bool:
        return isinstance(self.node.ops[0], (ast.In, ast.NotIn))


def find_exact_class_tests(study: Study, module: Module) -> Iterator[Site]:
    """Sites for tests of the exact class of modules of FSDP models."""
    tests = list(_tests(module))
    handed = visited_modules.visitors(study, module) if tests else {}
    for test in tests:
        model = visited_modules.visited_model(test.subject, study, module, handed)
        if not _compares_with_wrapper(test, study, module):  # which FSDP404 answers
            model = model or wrapper_of(test.subject, study, module)
        asked = names_wrapper(test) and bool(study.constructors)
        if model is None and (asked or is_around(test.subject, study, module)):
            model = test.subject
        if model is not None or is_own(test.subject, study, module):
            yield Site(CONSTRUCT, module, test.node, test.node, model)


def _compares_with_wrapper(test: Test, study: Study, module: Module) -> bool:
    """Whether a test asks for FSDP1's own class."""
    return fsdp1.FSDP in map(fsdp1.canonical, study.external(test.other, module))


def find_class_names(study: Study, module: Module) -> Iterator[Site]:
    """Sites for ``type(m).__name__`` of sharded modules, where something may be looked up by it."""
    if not module.mentions(*NAMES):
        return
    names = module.table.attributes_by_name.of(NAMES)
    asked = [(name, subject) for name in names if (subject := classified(name.value)) is not None]
    handed = visited_modules.visitors(study, module) if asked else {}
    parts = class_texts.nodes_of_parts(study, module) if asked else set()
    for name, subject in asked:
        around = module.table.parents[name]
        if name in parts:
            continue  # find_parts_of_names has it
        compared = isinstance(around, ast.Compare) and not is_looked_into(name, around)
        if compared or _is_taken_off(name, module) or is_said(name, module):
            continue
        model = visited_modules.visited_model(subject, study, module, handed) or wrapper_of(
            subject, study, module
        )
        if model is None and is_around(subject, study, module):
            model = subject
        if model is None and study.traced(subject, module):
            yield Site(OF_WRAPPER, module, name, name, subject)
        elif isinstance(around, ast.Compare):
            continue  # a part of the name is a part of what it is after sharding
        elif model is not None or is_own(subject, study, module):
            yield Site(NAMED, module, name, name, model)


def find_parts_of_names(study: Study, module: Module) -> Iterator[Site]:
    """Sites for questions for a part of a class's name, ``"Parallel" in type(m).__name__``.

    A part that other classes have in their names as well (``"Parallel"``) counts where a sharded
    model is asked.
    """
    for test in class_texts.parts_asked_for(study, module):
        model = visited_modules.visited_model(test.subject, study, module, {})
        model = model or wrapper_of(test.subject, study, module)
        if model is None and study.traced(test.subject, module):
            model = test.subject
        unseen = test.of_wrapper_alone or _is_unknown(test.subject, study, module)
        if model is not None or (test.asks_for_wrapper and unseen):
            yield Site(PART, module, test.node, test.node, model)


def _is_unknown(subject: ast.expr, study: Study, module: Module) -> bool:
    """Whether a part of something in a file that wraps models may be one of them for all that is
    known."""
    if isinstance(subject, ast.Name):
        return False
    values = study.values(subject, module)
    wraps = any(c.module is module for c in study.constructors.values())
    return wraps and is_open(values)


def find_class_bases(study: Study, module: Module) -> Iterator[Site]:
    """Sites for ``type(m).__bases__`` of what may be a sharded module: its own class is one."""
    asked = module.table.attributes_by_name.of(BASES) if study.constructors else ()
    handed = visited_modules.visitors(study, module) if asked else {}
    for bases in asked:
        subject = classified(bases.value)
        if subject is None or is_said(bases, module):
            continue
        values = study.values(subject, module)
        open_ = is_open(values)
        model = visited_modules.visited_model(subject, study, module, handed)
        traced = study.traced(subject, module)
        if model is not None or open_ or traced or is_own(subject, study, module):
            yield Site(DERIVED, module, bases, bases, model)


def is_looked_into(name: ast.expr, around: ast.Compare) -> bool:
    """``"Net" in type(m).__name__``."""
    return around.comparators == [name] and isinstance(around.ops[0], (ast.In, ast.NotIn))


def _is_taken_off(name: ast.expr, module: Module) -> bool:
    method = module.table.parents[name]
    return isinstance(method, ast.Attribute) and method.attr in {"removeprefix", "replace"}


def is_said(name: ast.expr, module: Module) -> bool:
    """Whether a name is only printed or logged, or chooses what an error says."""
    asked: ast.AST = name
    for parent in module.table.ancestors(name):
        if isinstance(parent, (ast.Raise, ast.Assert)):
            return True
        if isinstance(parent, ast.If) and asked is parent.test and _only_fails(parent):
            return True
        asked = parent
        if isinstance(parent, ast.Call) and SAYING.search(ast.unparse(parent.func)):
            return True
        if isinstance(parent, FUNCTIONS):
            return getattr(parent, "name", "") in {"__repr__", "__str__", "extra_repr", "_get_name"}
    return False


def _only_fails(choice: ast.If) -> bool:
    """Whether an error is raised in both cases."""
    return all(block and isinstance(block[0], ast.Raise) for block in (choice.body, choice.orelse))


def is_around(node: ast.expr, study: Study, module: Module) -> bool:
    """Whether ``node`` may be of a class derived from FSDP's, which is a unit itself."""
    if not any(c.keeps_class for c in study.constructors.values()):
        return False
    return any(c.keeps_class for c in study.models(node, module).constructors)


def is_own(node: ast.expr, study: Study, module: Module) -> bool:
    """Whether ``node`` is ``self`` in a module that may be sharded, or be a part of what is."""
    if not isinstance(node, ast.Name):
        return False
    for definition in definitions(node, module):
        function = module.table.parents.get(definition.node)
        method = module.table.parents.get(function) if function is not None else None
        cls = module.table.parents.get(method) if method is not None else None
        if definition.kind is not Kind.PARAMETER or not isinstance(cls, ast.ClassDef):
            continue
        function = of_kind(function, ast.arguments)
        if getattr(method, "name", "") in BEFORE:
            continue
        first = [*function.posonlyargs, *function.args][:1]
        if definition.node in first and cls in study.cache(sharded_classes):
            return True
    return False


def sharded_classes(study: Study) -> set[ast.AST]:
    """The classes of the project that models are made of, with those they are derived from."""
    return {
        base.node
        for constructor in study.constructors.values()
        if constructor.has_module
        for cls in model_contents.contents(constructor.wrapped, constructor.module, study).classes
        if not _is_plain(cls, study)
        for base in study.tracer.lineage(cls)
        if not is_record(base, study)
    }


def _is_plain(cls: Class, study: Study) -> bool:
    """Whether a class is surely no module: all that it is derived from is the project's own. What a
    module is derived from as well may be such a class."""
    for each in study.tracer.lineage(cls):
        for base in each.node.bases:
            values = study.values(base, each.module)
            if not values or not all(isinstance(value, Class) for value in values):
                return False
    return True


def is_record(cls: Class, study: Study) -> bool:
    """Whether a class is a dataclass, and derived from none of torch's: settings that a model keeps
    are no modules."""
    return is_dataclass(cls.node) and not any(
        name.startswith("torch.") for name in study.tracer.external_bases(cls)
    )


def read_test(node: ast.Compare, module: Module) -> Test:
    """The test that a site found by :func:`find_exact_class_tests` is."""
    return next(t for t in _tests(module) if t.node is node)


def _tests(module: Module) -> Iterator[Test]:
    asked: list[tuple[ast.expr, ast.expr]] = []
    for call in module.table.calls_by_name.named("type"):
        if isinstance(call.func, ast.Name) and len(call.args) == 1:
            asked.append((call, call.args[0]))
    asked += [(a, a.value) for a in module.table.attributes_by_name.named("__class__")]
    asked += [(use, subject) for kind, subject in asked for use in uses_of(kind, module)]
    for kind, subject in asked:
        parent = module.table.parents[kind]
        if isinstance(parent, ast.Attribute) and parent.attr in NAMES:
            kind, parent = parent, module.table.parents[parent]  # noqa: PLW2901
        if not isinstance(parent, ast.Compare) or len(parent.ops) != 1:
            continue
        right = parent.comparators[0]
        member = isinstance(parent.ops[0], (ast.In, ast.NotIn))
        other = right if parent.left is kind else parent.left
        of_class = isinstance(other, ast.Call) and getattr(other.func, "id", "") == "type"
        if of_class or (member and right is kind):
            continue  # the classes of two modules; a part of a name
        yield Test(parent, subject, kind, other)


def names_wrapper(test: Test) -> bool:
    """Whether a test asks for the class name of FSDP1's own wrapper."""
    return test.by_name and any(
        isinstance(node, ast.Constant) and node.value == WRAPPER for node in ast.walk(test.other)
    )


def known_subclasses(node: ast.expr, study: Study, module: Module) -> list[str] | None:
    """The subclasses of the classes that ``node`` names; None if it is not known to name any."""
    found: list[str] = []
    for value in study.values(node, module):
        if isinstance(value, Class):
            found += [c.node.name for c in study.tracer.subclasses(value)]
            found += _derived_beside(value, study)
        elif isinstance(value, External) and value.name.split(".")[0] != "builtins":
            found += [c.node.name for c in study.tracer.derived(value.name)]
        else:
            return None
    return found


def _derived_beside(cls: Class, study: Study) -> Iterator[str]:
    """Classes derived from another in its own module, which may be one of a library."""
    for node in cls.module.table.scopes:
        for base in node.bases if isinstance(node, ast.ClassDef) else ():
            if any(v.node is cls.node for v in study.values(base, cls.module)):
                yield of_kind(node, ast.ClassDef).name
