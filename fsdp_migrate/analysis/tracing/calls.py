"""What calls give, and what they give parameters."""

from __future__ import annotations

import ast

from fsdp_migrate.analysis.module import Module
from fsdp_migrate.analysis.tracing import compiled, computed_names, configured, owners
from fsdp_migrate.analysis.tracing.branches_taken import BranchesTaken
from fsdp_migrate.analysis.tracing.call_graph import CallGraph
from fsdp_migrate.analysis.tracing.containers import Containers
from fsdp_migrate.analysis.tracing.evaluator import Evaluator
from fsdp_migrate.analysis.tracing.functions import (
    CallSite,
    asserted,
    class_of_method,
    default_of,
    exits,
    gives_unknown_arguments,
    has_decorator,
    is_static,
)
from fsdp_migrate.analysis.tracing.registries import BUILDS, Registries
from fsdp_migrate.analysis.tracing.sequences import THROUGH_STARS, Missing
from fsdp_migrate.analysis.values import (
    Class,
    Computed,
    Constant,
    External,
    Frame,
    Function,
    FunctionNode,
    Generated,
    Made,
    Partial,
    Unknown,
    Value,
)
from fsdp_migrate.syntax.expressions import last_name
from fsdp_migrate.syntax.kinds import present
from fsdp_migrate.syntax.scopes import Scope
from fsdp_migrate.syntax.trees import FUNCTIONS

MAX_FRAMES = 3
# nn.Module and torch.compile style calls that hand back what they were given.
TRANSPARENT_METHODS = frozenset(
    (
        *("to", "cuda", "cpu", "xpu", "npu", "to_empty", "share_memory"),
        *("half", "bfloat16", "float", "double", "type"),
        *("train", "eval", "requires_grad_", "apply"),
    )
)
TRANSPARENT_CALLS = compiled.COMPILING | {"weakref.proxy"}
HELD_BY = frozenset({"weakref.ref", "weakref.ReferenceType"})
ENTERING = frozenset({"enter_context", "enter_async_context"})  # of ``contextlib.ExitStack``
SET_BY_CONFIGURATIONS = "configurations may set it"
# Methods of containers that give an element.
TAKING = frozenset({"get", "pop", "popleft"})


class Calls:
    """Follows calls into functions, and parameters back to the arguments of callers."""

    def __init__(
        self,
        tracer: Evaluator,
        graph: CallGraph,
        registries: Registries,
        branches: BranchesTaken,
        containers: Containers,
    ) -> None:
        self.tracer = tracer
        self.branches = branches
        self.evaluate = tracer.evaluate
        self.graph = graph
        self.registries = registries
        self.containers = containers
        self.sequences = containers.sequences
        self.or_else = containers.answers.or_else
        self._frames: dict[tuple[ast.Call, FunctionNode, Frame | None, ast.Call | None], Frame] = {}

    def result(self, node: ast.Call, module: Module, frame: Frame | None) -> list[Value]:
        """What a call gives."""
        result: list[Value] = []
        for callee in self.evaluate(node.func, module, frame):
            match callee:
                case Function():
                    result += self._returned(callee, node, module, frame)
                case Class():
                    result.append(Made(node, module, frame, callee))
                case External(name=name) if name in configured.CALLING:
                    result += self._configured(node, callee, module, frame)
                case External(name=name) if name in configured.GETTING:
                    named, are_all = configured.called_by(node, module, self.tracer.project)
                    result += [*named, *([] if are_all else [Made(node, module, frame, callee)])]
                case External(name=name) if name in TRANSPARENT_CALLS and node.args:
                    result += self.evaluate(node.args[0], module, frame)
                case External(name="typing.cast") if len(node.args) == 2:
                    result += self.evaluate(node.args[1], module, frame)
                case External(name="builtins.next") if node.args:
                    taken = self.containers.taken(node.args[0], module, frame)
                    result += [Made(node, module, frame, callee)] if taken is None else taken
                case External(name="builtins.getattr"):
                    result += self._named_attribute(node, callee, module, frame)
                case External():
                    result.append(Made(node, module, frame, callee))
                case Made(made_by=made_by, node=ast.Call(args=[held, *_])) if made_by in HELD_BY:
                    result += self.evaluate(held, callee.module, callee.frame)
                case Made(made_by="functools.partial"):
                    result += self._of_partial(callee, node, module, frame)
                case Made(callee=Class()) if found := self._call_methods(callee, node, module):
                    result += [v for m in found for v in self._returned(m, node, module, frame)]
                case Unknown() | Computed() | Made():
                    result += self._foreign_method(node, callee, module, frame)
                case _:
                    result.append(Computed(node, module, frame))
        built = (
            self.registries.registered
            and last_name(node.func) in BUILDS
            and self.registries.classes_built_at(node, module)
        )
        result += [Made(node, module, frame, cls) for cls in built or ()]
        return result

    def _call_methods(self, called: Made, node: ast.Call, module: Module) -> list[Function]:
        """What runs where an object is called whose class has a ``__call__``."""
        found = self.tracer.attribute_of(called, "__call__", node, module)
        return [value for value in found if isinstance(value, Function)]

    def _configured(
        self, node: ast.Call, callee: External, module: Module, frame: Frame | None
    ) -> list[Value]:
        """What ``hydra.utils.instantiate(cfg.wrapper, model=model)`` gives."""
        functions, are_all = configured.called_by(node, module, self.tracer.project)
        found = [
            v for f in functions for v in self._returned(f, node, module, frame, by_hydra=True)
        ]
        return found if are_all else [*found, Made(node, module, frame, callee)]

    def _of_partial(
        self, made: Made, node: ast.Call, module: Module, frame: Frame | None, depth: int = 0
    ) -> list[Value]:
        """What calling ``functools.partial(function, ...)`` gives, or a partial of a partial."""
        call = made.node
        if not isinstance(call, ast.Call) or not call.args or depth > MAX_FRAMES:
            return [Computed(node, module, frame)]
        partial = Partial(call, made.module, made.frame)
        result: list[Value] = []
        for inner in self.evaluate(call.args[0], made.module, made.frame):
            if isinstance(inner, Function):
                result += self._returned(inner, node, module, frame, partial)
            elif isinstance(inner, (External, Class)):
                result.append(Made(node, module, frame, inner))
            elif isinstance(inner, Made) and inner.made_by == made.made_by:
                result += self._of_partial(inner, node, module, frame, depth + 1)
            else:
                result.append(Computed(node, module, frame))
        return result

    def _named_attribute(
        self, node: ast.Call, callee: External, module: Module, frame: Frame | None
    ) -> list[Value]:
        """What ``getattr(owner, "name")`` gives. With a default it asks whether there is one."""
        match node.args:
            case [owner, ast.Constant(value=compiled.INSIDE), *default]:
                found = compiled.inside(owner, module, frame, self.tracer, self.graph.index)
                if found is not None:
                    given = [v for d in default for v in self.evaluate(d, module, frame)]
                    return [*found, *given]
            case [owner, asked]:
                named = computed_names.names(asked, module, frame, self.tracer)
                if named is not None:
                    held = self.evaluate(owner, module, frame)
                    attribute = self.tracer.attribute_of
                    return [v for n in named for o in held for v in attribute(o, n, node, module)]
        return [Made(node, module, frame, callee)]

    def _submodule(
        self, node: ast.Call, owner: ast.expr, module: Module, frame: Frame | None
    ) -> list[Value]:
        """What ``owner.get_submodule("a.b")`` gives."""
        match node.args:
            case [ast.Constant(value=str(path))] if path:
                found = list(self.evaluate(owner, module, frame))
                for name in path.split("."):
                    each = owners.one_of_each(found, name)
                    found = [
                        v for o in each for v in self.tracer.attribute_of(o, name, node, module)
                    ]
                return found
        return [Computed(node, module, frame)]

    def _foreign_method(
        self, node: ast.Call, callee: Value, module: Module, frame: Frame | None
    ) -> list[Value]:
        """What a method of an unknown object gives: ``model.to(device)`` is the model."""
        if isinstance(node.func, ast.Attribute) and node.func.attr in TRANSPARENT_METHODS:
            return list(self.evaluate(node.func.value, module, frame))
        if isinstance(node.func, ast.Attribute) and node.func.attr == "get_submodule":
            return self._submodule(node, node.func.value, module, frame)
        if isinstance(node.func, ast.Attribute) and node.func.attr in TAKING:
            taken = self.containers.taken(node.func.value, module, frame)
            if taken is not None:
                return taken
        if last_name(node.func) in ENTERING and node.args:
            entered = self.tracer.entered(node.args[0], module, frame)
            if entered is not None:
                return entered
        if isinstance(callee, Unknown) and not isinstance(node.func, ast.Attribute):
            return [Unknown(node, module, frame, callee.why)]
        if isinstance(callee, Unknown):
            method = node.func.attr if isinstance(node.func, ast.Attribute) else ""
            return [Unknown(node, module, frame, f"what {method}() is called on is not known")]
        return [Computed(node, module, frame)]

    def _returned(
        self,
        function: Function,
        call: ast.Call,
        module: Module,
        frame: Frame | None,
        partial: Partial | None = None,
        *,
        by_hydra: bool = False,
    ) -> list[Value]:
        """What calling a project function gives, its parameters bound to this call."""
        node = function.node
        inner = self.frame(call, module, node, frame, partial, by_hydra=by_hydra)
        context = inner if inner.depth <= MAX_FRAMES else None
        if isinstance(node, ast.Lambda):
            return list(self.evaluate(node.body, function.module, context))
        returns, yields = exits(node, function.module)
        if isinstance(node, ast.AsyncFunctionDef):
            return [Computed(call, module, frame)]
        if yields:
            return [Generated(call, module, frame, function=function, inside=context)]
        result: list[Value] = []
        for statement in returns:
            if statement in self.tracer.outdated:
                continue
            if self.branches.passes_by(context, statement, function.module):
                continue
            if statement.value is None:
                result.append(Constant(statement, function.module, context, None))
            else:
                result += self.evaluate(statement.value, function.module, context)
        return self.or_else(result, Constant(call, module, frame, None))

    def frame(
        self,
        call: ast.Call,
        module: Module,
        function: FunctionNode,
        frame: Frame | None = None,
        partial: Partial | None = None,
        *,
        by_hydra: bool = False,
    ) -> Frame:
        key = call, function, frame, partial.call if partial is not None else None
        if key not in self._frames:
            self._frames[key] = Frame(call, module, function, frame, partial, by_hydra)
        return self._frames[key]

    def parameter(
        self,
        arg: ast.arg,
        scope: Scope,
        module: Module,
        frame: Frame | None,
        used: ast.expr | None = None,
    ) -> list[Value]:
        """What a parameter is: what the call of ``frame`` gives, or all callers do.

        Args:
            used: where it is used: what a call that does not get there gives is left out.
        """
        function = scope.node
        assert isinstance(function, FUNCTIONS)
        owner = class_of_method(function, module)
        first = [*function.args.posonlyargs, *function.args.args][:1]
        if owner is not None and first and first[0] is arg and not is_static(function):
            if has_decorator(function, "classmethod"):
                return [Class(owner, module)]
            return [Made(owner, module, callee=Class(owner, module))]
        only = asserted(arg.arg, function)
        if only is not None:
            return list(self.evaluate(only, module, frame))
        default = default_of(arg, function)
        if frame is not None and frame.function is function:
            bound = owner is not None and not is_static(function)
            site = CallSite(
                frame.call,
                frame.module,
                bound,
                partial=frame.partial,
                configured=frame.configured,
            )
            if arg not in (function.args.vararg, function.args.kwarg):
                return self._given(site, arg, function, default, module, frame.parent)
        if arg in (function.args.vararg, function.args.kwarg):
            return [Unknown(arg, module, frame, f"{arg.arg} collects whatever is passed")]
        return self._from_callers(arg, function, default, module, used)

    def _given(
        self,
        site: CallSite,
        arg: ast.arg,
        function: FunctionNode,
        default: ast.expr | None,
        module: Module,
        frame: Frame | None = None,
    ) -> list[Value]:
        """What one call gives a parameter: by itself, with a star, or by leaving it out."""
        asked = Unknown(site.call, site.module, frame, THROUGH_STARS)
        kept = site.kept(function, arg.arg)
        if kept is not None and all(k.arg != arg.arg for k in site.call.keywords):
            partial = present(site.partial)
            over = self._named(site, arg.arg, frame)
            values = self.evaluate(kept, partial.module, partial.frame)
            return [*values, *([asked] if over is None else over)]
        passed = site.argument(function, arg.arg)
        if passed is not None:
            return list(self.evaluate(passed, site.module, frame))
        result: list[Value] = []
        left_out = True
        if site.partial is not None:
            if gives_unknown_arguments(site.call) or gives_unknown_arguments(site.partial.call):
                result.append(asked)
        elif gives_unknown_arguments(site.call) or site.spawned:
            place, left_out = site.place(function, arg.arg), False
            for sequence in self.sequences.spread(site.positional, site.module, frame):
                try:
                    if place is None:
                        raise Missing
                    result += self.sequences.at(sequence, place, asked)
                except Missing:
                    named = self._named(site, arg.arg, frame)
                    result += [asked] if named is None else named
                    left_out = left_out or named == []
        if left_out and site.configured:
            result.append(Unknown(site.call, site.module, frame, SET_BY_CONFIGURATIONS))
        if left_out and default is not None:
            result += self.evaluate(default, module)
        return result

    def _named(self, site: CallSite, name: str, frame: Frame | None) -> list[Value] | None:
        """What ``**dictionaries`` of a call have under a name; None if one cannot be read."""
        result: list[Value] = []
        for keyword in site.call.keywords:
            if keyword.arg is None:
                found = self.containers.named(keyword.value, name, site.module, frame)
                if found is None:
                    return None
                result += found
        return result

    def _from_callers(
        self,
        arg: ast.arg,
        function: FunctionNode,
        default: ast.expr | None,
        module: Module,
        used: ast.expr | None,
    ) -> list[Value]:
        """What the callers of a function give a parameter."""
        result: list[Value] = []
        sites = self.graph.callers(function, module)
        for site in self._getting_to(used, function, module, sites) or sites:
            result += self._given(site, arg, function, default, module)
        if not sites:
            name = getattr(function, "name", "a lambda")
            why = f"{arg.arg} is a parameter of {name}, which nothing here calls"
            result = self.or_else([], Unknown(arg, module, None, why))
            if result and default is not None:
                result += self.evaluate(default, module)
        return result

    def _getting_to(
        self, used: ast.expr | None, function: FunctionNode, module: Module, sites: list[CallSite]
    ) -> list[CallSite]:
        """The calls whose literal arguments let them get to a place in a function."""
        if used is None or not self.branches.asks(used, module, function):
            return sites
        return [
            site
            for site in sites
            if site.spawned
            or not self.branches.passes_by(
                self.frame(
                    site.call,
                    site.module,
                    function,
                    None,
                    site.partial,
                    by_hydra=site.configured,
                ),
                used,
                module,
            )
        ]
