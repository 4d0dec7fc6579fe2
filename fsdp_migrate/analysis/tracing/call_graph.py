"""Which calls of the project may run a function."""

from __future__ import annotations

import ast
from collections.abc import Hashable, Iterator
from functools import cached_property

from fsdp_migrate.analysis.module import Module
from fsdp_migrate.analysis.tracing import configured
from fsdp_migrate.analysis.tracing.answers import Answers
from fsdp_migrate.analysis.tracing.attributes import Attributes
from fsdp_migrate.analysis.tracing.class_hierarchy import ClassHierarchy
from fsdp_migrate.analysis.tracing.computed_names import ANY, texts
from fsdp_migrate.analysis.tracing.evaluator import Evaluator
from fsdp_migrate.analysis.tracing.functions import (
    CallSite,
    class_of_method,
    is_static,
)
from fsdp_migrate.analysis.tracing.other_names import OtherNames
from fsdp_migrate.analysis.tracing.project_index import CallByText, HandedOn, ProjectIndex
from fsdp_migrate.analysis.tracing.settled_index import SettledIndex
from fsdp_migrate.analysis.values import (
    Class,
    Constant,
    Function,
    FunctionNode,
    Made,
    Partial,
    Unknown,
    Values,
    cut_off,
)
from fsdp_migrate.syntax.expressions import last_name
from fsdp_migrate.syntax.trees import DEFINITIONS, FUNCTIONS

PARTIAL = frozenset({"functools.partial"})
SPAWN = frozenset({"torch.multiprocessing.spawn", "torch.multiprocessing.spawn.spawn"})
# Method names so common that a receiver nobody knows must not be taken for a project class.
COMMON_METHODS = frozenset(
    (
        *("train", "eval", "step", "forward", "backward", "parameters", "to", "cuda", "cpu"),
        *("state_dict", "load_state_dict", "save", "load", "run", "reset", "close"),
        *("get", "items", "keys", "values", "update", "append", "add", "pop"),
        *("__init__", "__call__"),
    )
)


def is_on_super(call: ast.Call) -> bool:
    function = call.func
    if type(function) is not ast.Attribute or type(function.value) is not ast.Call:
        return False  # as nearly always
    return isinstance(function.value.func, ast.Name) and function.value.func.id == "super"


def class_around(call: ast.Call, where: Module) -> Class | None:
    """The class of the method that a call stands in."""
    scope = where.table.within[call].function()
    around = scope.node if scope is not None else None
    cls = class_of_method(around, where) if isinstance(around, FUNCTIONS) else None
    return Class(cls, where) if cls is not None else None


class CallGraph:
    """The callers of functions, methods and constructors, found when they are asked for."""

    def __init__(
        self,
        tracer: Evaluator,
        index: ProjectIndex,
        classes: ClassHierarchy,
        attributes: Attributes,
        answers: Answers,
    ) -> None:
        self.tracer = tracer
        self.evaluate = tracer.evaluate
        self.index = index
        self.classes = classes
        self.answers = answers
        self.other_names = OtherNames(tracer, index, classes, attributes)
        self._partials: dict[ast.Call, Partial] = {}
        # What a call may run by the values of what it calls, which are asked for in many rounds.
        self._ran: dict[ast.Call, tuple[Values, set[Hashable]]] = {}
        self._calls = SettledIndex(lambda name: index.calls.get(name, ()), self._run_by)
        self._calls_on_super = SettledIndex(
            lambda name: (c for c in index.calls.get(name, ()) if is_on_super(c[0])), self._run_by
        )
        self._runs_of = SettledIndex(lambda _: index.handed_on, self._given_to)
        self._calls_by_text = SettledIndex(lambda _: index.calls_by_text, self._texts_of)
        self._calls_of_objects = SettledIndex(lambda _: index.calls_by_text, self._received_by)

    def callers(self, function: FunctionNode, module: Module) -> list[CallSite]:
        """Every call in the project that may run ``function``. Where it takes too long to tell, who
        asks from outside gets all calls of its name as well, and values are in doubt."""
        found: tuple[CallSite, ...] = self.answers.ask(
            ("callers", function),
            lambda: self._find_callers(function, module),
            function,
            module,
            gather=tuple,
        )
        if self.is_in_doubt(function) and not self.answers.is_asked:
            return list(dict.fromkeys([*found, *self._calls_by_name(function, module)]))
        return list(found)

    def is_in_doubt(self, function: FunctionNode) -> bool:
        """Whether there may be more callers: it takes too long to tell."""
        return ("callers", function) in self.answers.in_doubt

    def _calls_by_name(self, function: FunctionNode, module: Module) -> Iterator[CallSite]:
        """The calls by the name of a function, whatever they may run."""
        if isinstance(function, ast.Lambda):
            return
        owner = class_of_method(function, module)
        is_init = owner is not None and function.name == "__init__"
        name = owner.name if owner is not None and is_init else function.name
        bound = owner is not None and not is_static(function)
        for call, where in self.index.calls.get(name, ()):
            if call not in self.tracer.outdated:
                yield CallSite(call, where, bound)

    def _find_callers(self, function: FunctionNode, module: Module) -> list[CallSite]:
        if isinstance(function, ast.Lambda):
            return []
        owner = class_of_method(function, module)
        is_init = owner is not None and function.name == "__init__"
        name = owner.name if owner is not None and is_init else function.name
        found: list[CallSite] = []
        names = [name, ""]  # TABLE[key](net)
        if owner is not None and is_init:
            names += [c.node.name for c in self.classes.subclasses(Class(owner, module))]
            names += self.other_names.of_classes(names)
        if owner is not None and function.name == "__call__":
            names += self.other_names.of_instances(Class(owner, module))
        wanted: set[Hashable] = {function}
        if owner is not None:
            wanted |= {owner, Unknown} if self._is_alone(function) else {owner}
        made = [c for each in names for c in self._calls.of(each, wanted)]
        handed_on = self._calls_on_super.of("__init__", {function}) if is_init else []
        for call, where in dict.fromkeys((*made, *handed_on)):
            if call in self.tracer.outdated:
                continue
            if self._may_run(call, where, function, owner, is_init):
                bound = owner is not None and not is_static(function)
                found.append(CallSite(call, where, bound))
        if owner is not None and not is_init:
            found += self._named_by_text(function, owner, module, is_only=not found)
        partials = [] if owner is not None else self._through_partials(function)
        by_hydra = [] if owner is not None else self._configured(function)
        handed = self._handed(function, owner)
        return [*found, *self._spawned(function), *partials, *by_hydra, *handed]

    def decorated(self, function: FunctionNode, module: Module) -> Iterator[Class | Function]:
        """The classes and functions that a function gets as their decorator: ``Net`` below
        ``@register("net")`` for what ``register`` returns."""
        around = (function, *module.table.ancestors(function))
        names = {each.name for each in around if isinstance(each, DEFINITIONS)}
        for name in sorted(names):
            for decorator, given, where in self.index.decorated.get(name, ()):
                if any(value.node is function for value in self.evaluate(decorator, where)):
                    yield given

    def _run_by(self, item: tuple[ast.Call, Module]) -> tuple[set[Hashable], bool]:
        """What a call may run: functions, and classes with their bases, for their methods;
        ``Unknown`` where that is not known."""
        call, where = item
        if call in self.tracer.outdated:
            return set(), True
        if is_on_super(call):
            around = class_around(call, where)
            if around is None:
                return set(), True
            return {self._next(around, last_name(call.func))}, self.classes.is_settled(around)
        values = self.evaluate(call.func, where)
        if call in self._ran and self._ran[call][0] is values:
            return self._ran[call][1], self.answers.is_final(call.func)
        found: set[Hashable] = set()
        for_good = True
        for value in values:
            cls = value.callee if isinstance(value, Made) else value
            if isinstance(cls, Class):
                found |= {base.node for base in self.classes.lineage(cls)}
                for_good = for_good and self.classes.is_settled(cls)
            else:
                found.add(Unknown if isinstance(value, Unknown) else value.node)
        if for_good:
            self._ran[call] = values, found
        return found, for_good and self.answers.is_final(call.func)

    def _texts_of(self, item: CallByText) -> tuple[set[Hashable], bool]:
        """The names that ``getattr`` is asked for, as far as they are known."""
        call, _, name, where = item
        found = texts(self.evaluate(name, where)) if call not in self.tracer.outdated else set()
        return found, self.answers.is_final(name)

    def _received_by(self, item: CallByText) -> tuple[set[Hashable], bool]:
        """The classes, with their bases, of what ``getattr`` is asked of, as far as they are
        known."""
        call, receiver, _, where = item
        values = self.evaluate(receiver, where) if call not in self.tracer.outdated else frozenset()
        found: set[Hashable] = {ANY} if cut_off(values) else set()
        for value in values:
            cls = value.callee if isinstance(value, Made) else value
            if isinstance(cls, Class):
                found |= {base.node for base in self.classes.lineage(cls)}
        return found, self.answers.is_final(receiver)

    def _named_by_text(
        self,
        function: ast.FunctionDef | ast.AsyncFunctionDef,
        owner: ast.ClassDef,
        module: Module,
        *,
        is_only: bool,
    ) -> Iterator[CallSite]:
        """``getattr(callback, name)(self)``, which runs the method of that name. What name that is
        may not be known: then it is any that nothing else runs."""
        calls = self._calls_by_text.of("", {function.name, ANY})
        if is_only:
            of_objects = self._calls_of_objects.of("", {owner, ANY})
            calls += [item for item in of_objects if not self._is_named(item)]
        for call, receiver, _, where in calls:
            found = self.evaluate(receiver, where)
            made = [v.callee for v in found if isinstance(v, Made)]
            runs = any(isinstance(cls, Class) and self._runs(function, cls) for cls in made)
            if runs or (cut_off(found) and self._is_alone(function)):
                yield CallSite(call, where, bound=not is_static(function))

    def _is_named(self, item: CallByText) -> bool:
        """Whether something is known of the name that ``getattr`` is asked for."""
        _, _, name, where = item
        found = self.evaluate(name, where)
        return any(isinstance(v, Constant) for v in found) and not cut_off(found)

    def _may_run(
        self,
        call: ast.Call,
        where: Module,
        function: ast.FunctionDef | ast.AsyncFunctionDef,
        owner: ast.ClassDef | None,
        is_init: bool,
    ) -> bool:
        """Whether a call may run a function, as a method or constructor too."""
        if is_on_super(call):
            return owner is not None and self._is_next(function, call, where)
        unknown = False
        for value in self.evaluate(call.func, where):
            if isinstance(value, Function) and value.node is function:
                return True
            called = value if is_init else None
            if isinstance(value, Made) and function.name == "__call__":
                called = value.callee
            if isinstance(called, Class) and self._runs(function, called):
                return True
            unknown = unknown or isinstance(value, Unknown)
        is_method = owner is not None and isinstance(call.func, ast.Attribute)
        return unknown and is_method and self._is_alone(function)

    def methods_of_any(self, name: str) -> list[Function]:
        """The methods that a call on what nobody knows may run: all of its name, if that is not so
        common that other libraries' objects have it too."""
        return [] if name in COMMON_METHODS else self.index.methods.get(name, [])

    def _is_alone(self, function: ast.FunctionDef | ast.AsyncFunctionDef) -> bool:
        """Whether a call of its name on what nobody knows is taken for one of a method."""
        name = function.name
        return name not in COMMON_METHODS and len(self.index.methods.get(name, ())) == 1

    def _is_next(
        self, function: ast.FunctionDef | ast.AsyncFunctionDef, call: ast.Call, where: Module
    ) -> bool:
        """Whether a function is what ``super()`` finds in the bases of the class around a call."""
        around = class_around(call, where)
        return around is not None and self._next(around, function.name) is function

    def _next(self, cls: Class, name: str) -> ast.AST | None:
        """What ``super()`` finds under a name in the bases of a class."""
        for base in self.classes.lineage(cls)[1:]:
            for binding in base.module.table.scopes[base.node].bindings.get(name, ()):
                return binding.node
        return None

    def _runs(self, function: ast.FunctionDef | ast.AsyncFunctionDef, cls: Class) -> bool:
        """Whether a class has a function for its method of that name, itself or by a base."""
        for each in self.classes.lineage(cls):
            for binding in each.module.table.scopes[each.node].bindings.get(function.name, ()):
                return binding.node is function
        return False

    def _spawned(self, function: ast.FunctionDef | ast.AsyncFunctionDef) -> list[CallSite]:
        """``mp.spawn(function, args=(a, b))`` calls ``function(rank, a, b)``."""
        found: list[CallSite] = []
        for call, module in self.index.calls.get("spawn", []):
            if not call.args or not self.tracer.project.external(call.func, module) & SPAWN:
                continue
            for value in self.evaluate(call.args[0], module):
                if isinstance(value, Function) and value.node is function:
                    found.append(CallSite(call, module, bound=False, spawned=True))
        return found

    def _handed(
        self, function: ast.FunctionDef | ast.AsyncFunctionDef, owner: ast.ClassDef | None
    ) -> Iterator[CallSite]:
        """``pool.submit(function, x)`` and ``Thread(target=function, args=(x,))``, which call
        ``function(x)``."""
        bound = owner is not None and not is_static(function)
        for _, call, module, handed in self._runs_of.of("", {function}):
            yield CallSite(call, module, bound, handed=handed)

    def _given_to(self, item: HandedOn) -> tuple[set[Hashable], bool]:
        """The functions that are handed on to what runs them."""
        given, _, where, _ = item
        return {value.node for value in self.evaluate(given, where)}, self.answers.is_final(given)

    def _configured(self, function: ast.FunctionDef | ast.AsyncFunctionDef) -> Iterator[CallSite]:
        """``hydra.utils.instantiate(cfg.wrapper, x)`` calls ``function(x)``, as does
        ``hydra.utils.get_method(cfg.wrapper)(x)``."""
        for call, module in self._by_hydra.get(function, ()):
            if self.tracer.project.external(call.func, module).isdisjoint(configured.GETTING):
                yield CallSite(call, module, bound=False, configured=True)
                continue
            parent = module.table.parents[call]
            if isinstance(parent, ast.Call) and parent.func is call:
                yield CallSite(parent, module, bound=False)
            for name in self.other_names.of_results([(call, module)]):
                for each, where in self.index.calls.get(name, []):
                    if any(v.node is function for v in self.evaluate(each.func, where)):
                        yield CallSite(each, where, bound=False)

    @cached_property
    def _by_hydra(self) -> dict[ast.AST, list[tuple[ast.Call, Module]]]:
        return configured.calls_by_function(self.index, self.tracer.project)

    def _through_partials(
        self, function: ast.FunctionDef | ast.AsyncFunctionDef
    ) -> Iterator[CallSite]:
        """``run(x)`` of ``run = partial(function, y)``, which calls ``function(y, x)``."""
        for given, made, module in self.index.arguments.get(function.name, []):
            if not made.args or made.args[0] is not given:
                continue
            if self.tracer.project.external(made.func, module).isdisjoint(PARTIAL):
                continue
            if all(value.node is not function for value in self.evaluate(given, module)):
                continue
            partial = self._partials.setdefault(made, Partial(made, module))
            for name in self.other_names.of_results([(made, module)]):
                for call, where in self.index.calls.get(name, []):
                    if any(value.node is made for value in self.evaluate(call.func, where)):
                        yield CallSite(call, where, bound=False, partial=partial)
