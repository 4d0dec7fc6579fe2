"""States that are changed in place: ``for value in state.values(): value.fill_(0)``.

FSDP1's states were copies, of every kind and on one rank as well. A sharded state has the model's
parameters themselves now, and so has a whole one of a model that every rank has all of.
"""

from __future__ import annotations

import ast

from fsdp_migrate.analysis.module import Module
from fsdp_migrate.analysis.values import Function
from fsdp_migrate.families.checkpoints.loaded_in_place import is_load
from fsdp_migrate.families.parameters.writes import IN_PLACE, INIT
from fsdp_migrate.fsdp1.references import enclosing_function
from fsdp_migrate.fsdp1.site import Site
from fsdp_migrate.planning.context import Study
from fsdp_migrate.syntax.expressions import given_arguments, last_name

DEPTH = 4  # names, loops, calls and callers that a state is followed through
SAME = frozenset({"data", "detach", "view", "flatten", "to_local"})
LISTS = frozenset({"values", "items"})
TAKING = frozenset({"get", "pop"})
DEFINED = (ast.FunctionDef, ast.AsyncFunctionDef)


def is_written_to(site: Site, study: Study, *, loads: bool) -> bool:
    """Whether tensors of the state asked for at ``site`` are changed in place.

    Args:
        loads: what ``torch.distributed.checkpoint`` loads into a state counts. What it loads into
            a sharded one is a question of its own (``loaded_in_place``).
    """
    return _Asked(study, site.module, loads).is_written(site.node, DEPTH)


class _Asked:
    """The uses of a state in one file."""

    def __init__(self, study: Study, module: Module, loads: bool) -> None:
        self.study, self.module, self.loads = study, module, loads

    def is_written(self, node: ast.AST, depth: int, *, is_tensor: bool = False) -> bool:
        """Whether a state, or a tensor of one, is changed by what stands around it."""
        parents = self.module.table.parents
        match parent := parents[node]:
            case ast.Attribute(attr=attr, ctx=ast.Load()):
                call = parents[parent]
                is_called = isinstance(call, ast.Call) and call.func is parent
                whole = call if is_called else parent
                if attr in LISTS and not is_tensor:
                    return self._by_loop(whole, depth)
                if attr in TAKING and not is_tensor:
                    return self.is_written(whole, depth, is_tensor=True)
                if is_called and attr in IN_PLACE:
                    return is_tensor
                return attr in SAME and self.is_written(whole, depth, is_tensor=is_tensor)
            case ast.Subscript(value=value) if value is node:
                if isinstance(parent.ctx, ast.Store):
                    return is_tensor or isinstance(parents[parent], ast.AugAssign)
                return self.is_written(parent, depth, is_tensor=True)
            case ast.AugAssign(target=target):
                return target is node and is_tensor
            case ast.Assign(targets=[ast.Name() as target]) | ast.NamedExpr(target=target):
                return self._by_name(target, parent, depth, is_tensor=is_tensor)
            case ast.Call(func=function) if node is not function:
                return self._by_call(parent, node, depth, is_tensor=is_tensor)
            case ast.Dict() if isinstance(parents[parent], ast.Call):  # dcp.load({"model": state})
                return self.loads and self._is_load(parents[parent])
            case ast.Return() if depth:
                return self._by_callers(node, depth - 1, is_tensor=is_tensor)
        return False

    def _is_load(self, call: ast.AST) -> bool:
        return isinstance(call, ast.Call) and is_load(call, self.study, self.module)

    def _by_loop(self, over: ast.AST, depth: int) -> bool:
        """Whether what a loop over tensors does changes them."""
        parent = self.module.table.parents[over]
        while isinstance(parent, ast.Call) and last_name(parent.func) in {"list", "tuple"}:
            over, parent = parent, self.module.table.parents[parent]
        if not isinstance(parent, (ast.For, ast.comprehension)) or parent.iter is not over:
            return False
        target = parent.target
        if isinstance(target, ast.Tuple) and target.elts:
            target = target.elts[-1]
        return isinstance(target, ast.Name) and self._by_name(target, parent, depth, is_tensor=True)

    def _by_name(self, target: ast.Name, origin: ast.AST, depth: int, *, is_tensor: bool) -> bool:
        """Whether a variable that gets it is written to, where it may still have it."""
        given = getattr(origin, "value", getattr(origin, "iter", None))
        for name in self.module.table.names_by_id.named(target.id):
            if name is target or not depth:
                continue
            is_added = isinstance(self.module.table.parents[name], ast.AugAssign)
            if not isinstance(name.ctx, ast.Load) and not is_added:
                continue
            if enclosing_function(self.module, name) is not enclosing_function(self.module, target):
                continue
            known = [d.value for d in self.study.defined_by(name, self.module)]
            reaches = not known or None in known or given in known
            if reaches and self.is_written(name, depth - 1, is_tensor=is_tensor):
                return True
        return False

    def _by_call(self, call: ast.Call, given: ast.AST, depth: int, *, is_tensor: bool) -> bool:
        """Whether what is called changes what it is given."""
        names = self.study.external(call.func, self.module)
        if is_tensor and any(name.startswith(INIT) for name in names):
            return call.args[:1] == [given]
        if not is_tensor and self._is_load(call):
            return self.loads and not self._is_given_back(given)
        for function in self.study.values(call.func, self.module) if depth else ():
            if not isinstance(function, Function) or not isinstance(function.node, DEFINED):
                continue
            inside = _Asked(self.study, function.module, self.loads)
            callers = self.study.tracer.callers(function.node, function.module)
            own = [c for c in callers if c.call is call]
            arguments = function.node.args
            for parameter in (*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs):
                given_here = any(c.argument(function.node, parameter.arg) is given for c in own)
                if given_here and inside.by_parameter(
                    parameter, function.node, depth - 1, is_tensor
                ):
                    return True
        return False

    def _is_given_back(self, state: ast.AST) -> bool:
        """Whether a model is given the state, so that it has what was loaded in any case."""
        here = enclosing_function(self.module, state)
        return isinstance(state, ast.Name) and any(
            isinstance(given, ast.Name) and given.id == state.id
            for call in self.module.table.calls_by_name.named("load_state_dict")
            if enclosing_function(self.module, call) is here and not self._is_load(call)
            for given in given_arguments(call)
        )

    def by_parameter(
        self, parameter: ast.arg, function: ast.AST, depth: int, is_tensor: bool
    ) -> bool:
        """Whether a function changes what a parameter of it is given."""
        return any(
            self.is_written(name, depth, is_tensor=is_tensor)
            for name in self.module.table.names_by_id.named(parameter.arg)
            if isinstance(name.ctx, ast.Load) and enclosing_function(self.module, name) is function
        )

    def _by_callers(self, node: ast.AST, depth: int, *, is_tensor: bool) -> bool:
        """Whether those to whom a function gives it change it."""
        function = enclosing_function(self.module, node)
        if not isinstance(function, DEFINED):
            return False
        return any(
            _Asked(self.study, caller.module, self.loads).is_written(
                caller.call, depth, is_tensor=is_tensor
            )
            for caller in self.study.tracer.callers(function, self.module)
        )
