"""Whether a string is a name that a module or parameter of a model has in the running program.

``for name, _ in model.named_parameters(): name.replace(...)`` has such names; the keys of a file
that ``torch.load`` reads are not.
"""

from __future__ import annotations

import ast
from typing import TYPE_CHECKING

from fsdp_migrate.analysis.flow import ELSEWHERE, Definition
from fsdp_migrate.analysis.module import Module
from fsdp_migrate.analysis.tracing.functions import exits
from fsdp_migrate.analysis.values import Function
from fsdp_migrate.families.names.key_prefixes import PART
from fsdp_migrate.syntax.scopes import Kind

if TYPE_CHECKING:
    from fsdp_migrate.planning.context import Study
# Methods of strings that give back the string, or a part of it.
_PARTS = frozenset(
    {"lower", "lstrip", "removeprefix", "removesuffix", "replace", "rstrip", "strip"}
)
_ASKED_OF = frozenset({"count", "endswith", "find", "startswith", *_PARTS})
_NAMED = frozenset({"named_buffers", "named_children", "named_modules", "named_parameters"})
_BY_NAME = frozenset({"get_buffer", "get_parameter", "get_submodule"})
_COPIES = frozenset({"dict", "frozenset", "iter", "list", "reversed", "set", "sorted", "tuple"})
_ADDS = frozenset({"add", "append"})
_READS = frozenset({"copy", "count", "get", "index", "items", "keys", "values"})

NAMES = "names"  # what goes over names
PAIRS = "pairs"  # over pairs that begin with a name
MAPPING = "mapping"  # a dict by name


def is_models(node: ast.expr, module: Module, study: Study) -> bool:
    """Whether a string is surely made of names that models have in the running program."""
    return ModelNames(study).is_name(node, module)


def meets_models(node: ast.expr, module: Module, study: Study) -> bool:
    """Whether a string is only compared with, or used as, names that models have."""
    return ModelNames(study).meets(node, module)


class ModelNames:
    """Follows names of models through the project.

    A value that depends on itself, as in a loop, counts as a name: its other values decide.
    """

    def __init__(self, study: Study) -> None:
        self.study = study
        self.passed: set[tuple[str, ast.AST]] = set()

    # -- where a string comes from --------------------------------------------------------------

    def is_name(self, node: ast.expr, module: Module) -> bool:
        match node:
            case ast.Constant(value=str(text)):
                return PART not in text
            case ast.Call(func=ast.Attribute(value=value, attr=attr)) if attr in _PARTS:
                return self.is_name(value, module)
            case ast.BinOp(op=ast.Add()):
                return self.is_name(node.left, module) and self.is_name(node.right, module)
            case ast.JoinedStr():
                parts = [v.value if isinstance(v, ast.FormattedValue) else v for v in node.values]
                return all(self.is_name(part, module) for part in parts)
            case ast.IfExp():
                return self.is_name(node.body, module) and self.is_name(node.orelse, module)
            case ast.Call():
                return self._is_returned(node, module)
            case ast.Subscript(value=ast.Name() as whole, slice=ast.Slice()):
                return self.is_name(whole, module)
            case ast.Name():
                definitions = self.study.defined_by(node, module)
                return bool(definitions) and all(self._is_named(d, module) for d in definitions)
        return False

    def _is_returned(self, call: ast.Call, module: Module) -> bool:
        """Whether a function of the project's gives nothing but names of models."""
        callees = self.study.values(call.func, module)
        for callee in callees:
            if not isinstance(callee, Function) or not isinstance(callee.node, ast.FunctionDef):
                return False
            key = ("returns", callee.node)
            if key in self.passed:
                continue
            self.passed.add(key)
            returns, yields = exits(callee.node, callee.module)
            given = [r.value for r in returns]
            if yields or not all(g is not None and self.is_name(g, callee.module) for g in given):
                return False
        return bool(callees)

    def _is_named(self, definition: Definition, module: Module) -> bool:
        if definition is ELSEWHERE:
            return False
        key = ("named", definition.node)
        if definition.kind is Kind.ASSIGN and definition.value is not None:
            if key in self.passed:
                return True
            self.passed.add(key)
            return not definition.unpack and self.is_name(definition.value, module)
        if definition.kind is Kind.ELEMENT and definition.value is not None:
            kind, place = self.goes_over(definition.value, module), definition.unpack
            match definition.value:
                case ast.Call(func=ast.Name(id="enumerate"), args=[inner]) if place[:1] == (1,):
                    kind, place = self.goes_over(inner, module), place[1:]
            return (kind in {NAMES, MAPPING} and not place) or (kind == PAIRS and place == (0,))
        if definition.kind is Kind.PARAMETER and isinstance(definition.node, ast.arg):
            if key in self.passed:
                return True
            self.passed.add(key)
            return self._is_given(definition.node, definition.value, module)
        return False

    def _is_given(self, arg: ast.arg, default: ast.expr | None, module: Module) -> bool:
        """Whether every call of a function gives it a model's name for one parameter."""
        function = module.table.parents[module.table.parents[arg]]
        if not isinstance(function, ast.FunctionDef) or arg.arg in {
            extra.arg for extra in (function.args.vararg, function.args.kwarg) if extra
        }:
            return False
        callers = self.study.tracer.callers(function, module)
        called = {id(site.call.func) for site in callers}
        for other in self.study.project.modules:
            mentions: list[ast.expr] = [n for n in other.table.names if n.id == function.name]
            mentions += [a for a in other.table.attributes if a.attr == function.name]
            if any(id(mention) not in called for mention in mentions):
                return False
        for site in callers:
            given = site.argument(function, arg.arg)
            where = site.module if given is not None else module
            given = given if given is not None else default
            spread = any(isinstance(a, ast.Starred) for a in site.call.args)
            spread = spread or any(k.arg is None for k in site.call.keywords)
            if given is None or spread or not self.is_name(given, where):
                return False
        return bool(callers)

    def goes_over(self, node: ast.expr, module: Module) -> str:
        """Whether an iterable gives models' names, or pairs with them, or is a dict by name."""
        match node:
            case ast.Call(func=ast.Attribute(attr=attr), args=[], keywords=[]) if attr in _NAMED:
                return PAIRS
            case ast.Call(func=ast.Attribute(value=model, attr="state_dict"), args=[], keywords=[]):
                return MAPPING if self.study.models(model, module) else ""
            case ast.Call(func=ast.Attribute(value=inner, attr="items" | "keys" as attr), args=[]):
                known = self.goes_over(inner, module) == MAPPING
                return (PAIRS if attr == "items" else NAMES) if known else ""
            case ast.Call(func=ast.Name(id=function), args=[inner, *_]) if function in _COPIES:
                kind = self.goes_over(inner, module)
                if function == "dict":
                    return MAPPING if kind in {PAIRS, MAPPING} and len(node.args) == 1 else ""
                return NAMES if kind == MAPPING else kind
            case ast.Call():
                return self._yielded(node, module)
            case ast.ListComp() | ast.SetComp() | ast.GeneratorExp():
                return self._element(node.elt, module)
            case ast.DictComp():
                return MAPPING if self.is_name(node.key, module) else ""
            case ast.Name():
                return self._collected(node, module)
        return ""

    def _element(self, node: ast.expr, module: Module) -> str:
        first = node.elts[0] if isinstance(node, ast.Tuple) and node.elts else node
        kind = PAIRS if isinstance(node, ast.Tuple) else NAMES
        return kind if self.is_name(first, module) else ""

    def _yielded(self, call: ast.Call, module: Module) -> str:
        """What a generator of the project's gives."""
        kinds: set[str] = set()
        for callee in self.study.values(call.func, module):
            key = ("yields", callee.node)
            if not isinstance(callee, Function) or key in self.passed:
                return ""
            table = callee.module.table
            own = table.scopes[callee.node]
            found = [
                n
                for n in ast.walk(callee.node)
                if isinstance(n, (ast.Yield, ast.YieldFrom)) and table.scope_of(n).function() is own
            ]
            self.passed.add(key)
            for each in found:
                known = isinstance(each, ast.Yield) and each.value is not None
                kinds.add(self._element(each.value, callee.module) if known else "")  # type: ignore[arg-type]
            self.passed.discard(key)
            if not found:
                return ""
        return kinds.pop() if len(kinds) == 1 else ""

    def _collected(self, name: ast.Name, module: Module) -> str:
        """What is in a list, set or dict that has a name, by all that is put into it."""
        definitions = self.study.defined_by(name, module)
        scope = module.table.within[name].lookup(name.id)
        if not definitions or scope is None or not (scope.is_function or scope.parent is None):
            return ""
        kinds: set[str] = set()
        for definition in definitions:
            key = ("collected", definition.node)
            if definition.kind is not Kind.ASSIGN or definition.unpack or key in self.passed:
                return ""
            self.passed.add(key)
            match definition.value:
                case ast.List(elts=[]) | ast.Call(func=ast.Name(id="list" | "set"), args=[]):
                    pass
                case None:
                    return ""
                case value:
                    kinds.add(self.goes_over(value, module))
            self.passed.discard(key)
        for use in module.table.names:
            if use.id == name.id and module.table.within[use].lookup(use.id) is scope:
                added = self._added(use, module)
                if added is not None:
                    kinds.add(added)
        return kinds.pop() if len(kinds) == 1 else ""

    def _added(self, use: ast.Name, module: Module) -> str | None:
        """What a use of a collection puts into it: None for nothing, empty if not known."""
        parent = module.table.parents[use]
        if isinstance(use.ctx, ast.Store) or isinstance(parent, (ast.Compare, ast.For)):
            return None
        if isinstance(parent, (ast.comprehension, ast.Subscript)):
            stored = isinstance(parent, ast.Subscript) and not isinstance(parent.ctx, ast.Load)
            return "" if stored else None
        call = module.table.parents[parent]
        match parent, call:
            case ast.Call(func=ast.Name(id=function)), _ if function in {*_COPIES, "len", "print"}:
                return None
            case ast.Attribute(attr=attr), ast.Call(args=[item]) if attr in _ADDS:
                return self._element(item, module)
            case ast.Attribute(attr=attr), ast.Call() if attr in _READS:
                return None
        return ""

    # -- where a string goes --------------------------------------------------------------------

    def meets(self, node: ast.expr, module: Module) -> bool:
        parent = module.table.parents[node]
        match parent:
            case ast.IfExp(test=test) if node is not test:
                return self.meets(parent, module)
            case ast.Tuple() | ast.List() | ast.Set():
                return self.meets(parent, module)
            case ast.Compare():
                sides = [s for s in (parent.left, *parent.comparators) if s is not node]
                return all(
                    ModelNames(self.study).goes_over(s, module) or self.is_name(s, module)
                    for s in sides
                )
            case ast.Subscript(value=value) if parent.slice is node:
                return self.goes_over(value, module) == MAPPING
            case ast.Call():
                return self._meets_in_call(node, parent, module)
            case ast.Assign(targets=[ast.Name() as target]):
                return self._uses_meet(target, parent, module)
            case (
                ast.For(target=ast.Name() as target)
                | ast.comprehension(target=ast.Name() as target)
            ) if parent.iter is node:
                return self._uses_meet(target, parent, module)
        return False

    def _meets_in_call(self, node: ast.expr, call: ast.Call, module: Module) -> bool:
        match call.func:
            case ast.Name(id="len"):
                return True
            case ast.Attribute(value=value, attr=attr) if attr in _ASKED_OF:
                return self.is_name(value, module)
            case ast.Attribute(value=value, attr=attr) if attr in _BY_NAME:
                return self.study.traced(value, module)
            case ast.Attribute(value=value, attr="get" | "pop"):
                return self.goes_over(value, module) == MAPPING
        callees = self.study.values(call.func, module)
        functions = [c for c in callees if isinstance(c, Function)]
        if not functions or len(functions) < len(callees):
            return False
        return all(self._parameter_meets(node, call, each) for each in functions)

    def _parameter_meets(self, node: ast.expr, call: ast.Call, function: Function) -> bool:
        arguments = function.node.args
        for arg in (*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs):
            bound = function.owner is not None
            given = self.study.tracer.argument(call, function.node, arg.arg, bound=bound)
            if given is node:
                return self._uses_meet(arg, arg, function.module)
        return False

    def _uses_meet(self, target: ast.Name | ast.arg, definition: ast.AST, module: Module) -> bool:
        """Whether a value with a name is only used to look for models' names."""
        key = ("uses", definition)
        if key in self.passed:
            return True
        self.passed.add(key)
        name = target.id if isinstance(target, ast.Name) else target.arg
        uses: list[ast.Name] = []
        for use in module.table.names:
            if use.id != name or not isinstance(use.ctx, ast.Load):
                continue
            reaching = self.study.defined_by(use, module)
            if any(d.node is definition for d in reaching):
                uses.append(use)
            elif not reaching:  # of another scope: which of the values it has there nobody knows
                bound = module.table.within[use].lookup(name)
                own = bound is not None and any(b.node is definition for b in bound.bindings[name])
                uses += [use] if own else []
        if isinstance(target, ast.Name):
            bound = module.table.within[target].lookup(name)
            if (
                bound is None
                or bound.is_class
                or (bound.parent is None and self._seen(name, module))
            ):
                return False
        return bool(uses) and all(self.meets(use, module) for use in uses)

    def _seen(self, name: str, module: Module) -> bool:
        """Whether another file may use a name of a module."""
        if name in self.study.project.asked_for(module):
            return True
        others = (m for m in self.study.project.modules if m is not module and m.mentions(name))
        return any(a.attr == name for other in others for a in other.table.attributes)
