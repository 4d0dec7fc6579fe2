"""What calls give parameters: by place, by name, with stars, or by leaving them out."""

from __future__ import annotations

import ast

from fsdp_migrate.analysis.module import Module
from fsdp_migrate.analysis.tracing import collected
from fsdp_migrate.analysis.tracing.branches_taken import BranchesTaken
from fsdp_migrate.analysis.tracing.call_graph import CallGraph
from fsdp_migrate.analysis.tracing.collected import Entry
from fsdp_migrate.analysis.tracing.containers import Containers
from fsdp_migrate.analysis.tracing.evaluator import Evaluator
from fsdp_migrate.analysis.tracing.functions import (
    CallSite,
    asserted,
    class_of_method,
    default_of,
    gives_unknown_arguments,
    has_decorator,
    is_static,
)
from fsdp_migrate.analysis.tracing.registries import Registries
from fsdp_migrate.analysis.tracing.sequences import THROUGH_STARS, Missing
from fsdp_migrate.analysis.values import (
    TOO_LONG,
    UNCALLED,
    Class,
    Frame,
    FunctionNode,
    Made,
    Partial,
    Unknown,
    Value,
)
from fsdp_migrate.syntax.kinds import present
from fsdp_migrate.syntax.scopes import Scope
from fsdp_migrate.syntax.trees import FUNCTIONS

SET_BY_CONFIGURATIONS = "configurations may set it"


class Parameters:
    """Follows parameters back to the arguments of callers."""

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
        self.if_nothing = containers.answers.if_nothing
        self._frames: dict[tuple[ast.Call, FunctionNode, Frame | None, ast.Call | None], Frame] = {}

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
            if getattr(function, "name", "") == "__init_subclass__":
                return list(self.graph.classes.subclasses(Class(owner, module)))
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
            return [*values, *([asked] if over is None else over.values)]
        passed = site.argument(function, arg.arg)
        if passed is not None:
            return list(self.evaluate(passed, site.module, frame))
        result: list[Value] = []
        left_out = True
        if site.partial is not None:
            if gives_unknown_arguments(site.call) or gives_unknown_arguments(site.partial.call):
                result.append(asked)
        elif gives_unknown_arguments(site.call) or site.is_by_another:
            place, left_out = site.place(function, arg.arg), False
            for sequence in self.sequences.spread(site.positional, site.module, frame):
                try:
                    if place is None:
                        raise Missing
                    result += self.sequences.at(sequence, place, asked)
                except Missing:
                    named = self._named(site, arg.arg, frame)
                    result += [asked] if named is None else named.values
                    left_out = left_out or (named is not None and named.is_lacking)
        if left_out and site.configured:
            result.append(Unknown(site.call, site.module, frame, SET_BY_CONFIGURATIONS))
        if left_out and default is not None:
            result += self.evaluate(default, module)
        return result

    def _named(self, site: CallSite, name: str, frame: Frame | None) -> Entry | None:
        """What ``**dictionaries`` of a call have under a name; None if one cannot be read."""
        opened = [k.value for k in site.call.keywords if k.arg is None]
        found = [self.containers.named(each, name, site.module, frame) for each in opened]
        known = [each for each in found if each is not None]
        if len(known) < len(found):
            return None
        is_lacking = all(each.is_lacking for each in known)
        return Entry([v for each in known for v in each.values], is_lacking)

    def entry(
        self, owner: ast.expr, name: str, module: Module, frame: Frame | None
    ) -> Entry | None:
        """What ``**kwargs`` of a function has under a name; None of what is something else."""
        for value in self.evaluate(owner, module, frame):
            if collected.function_of(value.node, value.module) is None:
                return None
        return self.containers.named(owner, name, module, frame)

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
        positional = [*function.args.posonlyargs, *function.args.args]
        is_bound = class_of_method(function, module) is not None and not is_static(function)
        if positional[is_bound:][:1] == [arg]:
            result += self.graph.decorated(function, module)
        if self.graph.is_in_doubt(function):
            result.append(Unknown(arg, module, why=TOO_LONG))
        if not sites and not result:
            name = getattr(function, "name", "a lambda")
            why = f"{arg.arg} is a parameter of {name}{UNCALLED}"
            result = self.if_nothing(Unknown(arg, module, None, why))
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
            if site.is_by_another
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
