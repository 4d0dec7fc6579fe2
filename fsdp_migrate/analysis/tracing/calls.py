"""What calls give."""

from __future__ import annotations

import ast

from fsdp_migrate.analysis.module import Module
from fsdp_migrate.analysis.tracing import (
    compiled,
    computed_names,
    configured,
    owners,
)
from fsdp_migrate.analysis.tracing.functions import (
    exits,
)
from fsdp_migrate.analysis.tracing.parameters import Parameters
from fsdp_migrate.analysis.tracing.registries import BUILDS
from fsdp_migrate.analysis.values import (
    NOT_KNOWN,
    Class,
    Computed,
    Constant,
    External,
    Frame,
    Function,
    Generated,
    Made,
    Partial,
    Unknown,
    Value,
)
from fsdp_migrate.syntax.expressions import last_name

MAX_FRAMES = 3
# nn.Module and torch.compile style calls that hand back what they were given.
TRANSPARENT_METHODS = frozenset(
    (
        *("to", "cuda", "cpu", "xpu", "npu", "to_empty", "share_memory"),
        *("half", "bfloat16", "float", "double", "type"),
        *("train", "eval", "requires_grad_", "apply"),
    )
)
TRANSPARENT_CALLS = compiled.COMPILING | {
    *("weakref.proxy", "types.MappingProxyType"),
    *(f"asyncio.{name}" for name in ("run", "create_task", "ensure_future", "wait_for", "shield")),
}
HELD_BY = frozenset({"weakref.ref", "weakref.ReferenceType"})
ENTERING = frozenset({"enter_context", "enter_async_context"})  # of ``contextlib.ExitStack``
# Methods of containers that give an element.
TAKING = frozenset({"get", "pop", "popleft"})


class Calls(Parameters):
    """Follows calls into functions, and parameters back to the arguments of callers."""

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
            taken = self._taken(node, node.func.value, module, frame)
            if taken is not None:
                return taken
        if last_name(node.func) in ENTERING and node.args:
            entered = self.tracer.entered(node.args[0], module, frame)
            if entered is not None:
                return entered
        if isinstance(callee, Unknown) and (
            callee.is_cut or not isinstance(node.func, ast.Attribute)
        ):
            return [Unknown(node, module, frame, callee.why)]
        if isinstance(callee, Unknown):
            method = node.func.attr if isinstance(node.func, ast.Attribute) else ""
            return [Unknown(node, module, frame, f"what {method}(){NOT_KNOWN}")]
        return [Computed(node, module, frame)]

    def _taken(
        self, node: ast.Call, owner: ast.expr, module: Module, frame: Frame | None
    ) -> list[Value] | None:
        """What a method of a container takes out of it: ``kwargs.get("name", default)``."""
        match node.args:
            case [ast.Constant(value=str(name)), *default] if not node.keywords:
                found = self.entry(owner, name, module, frame)
                if found is not None:
                    other = default[:1] if found.is_lacking else []
                    given = [v for each in other for v in self.evaluate(each, module, frame)]
                    nothing = [Constant(node, module, frame, None)]
                    return [*found.values, *(given if default or not found.is_lacking else nothing)]
        return self.containers.taken(owner, module, frame)

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
        if isinstance(node, ast.AsyncFunctionDef) and yields:
            return [Computed(call, module, frame)]
        if yields:  # what is awaited is taken for what it gives
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
        return result or self.if_nothing(Constant(call, module, frame, None))
