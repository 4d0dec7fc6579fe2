"""What an expression may be, traced to where it was made, over the whole project.

Demand-driven: nothing is computed before a rule asks. :meth:`Tracer.evaluate` returns a set of
:class:`Value`, each with its *origin*: the expression that made it and the module it stands in.
The world is closed (every call of a function is in the given paths); what cannot be followed is an
:class:`Unknown` that says why. One level of call context is kept per call, three levels deep, so
that ``make_policy(Block)`` and ``make_policy(Expert)`` are not mixed up.
"""

from __future__ import annotations

import ast
import builtins
import sys
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import Literal, NamedTuple

from fsdp_migrate.analysis.flow import ELSEWHERE, Definition, access_path
from fsdp_migrate.analysis.module import Module
from fsdp_migrate.analysis.project import Project
from fsdp_migrate.analysis.values import (
    Class,
    Computed,
    Constant,
    Display,
    External,
    Frame,
    Function,
    FunctionNode,
    Made,
    ModuleValue,
    Unknown,
    Value,
    Values,
)
from fsdp_migrate.fsdp1 import api as fsdp1
from fsdp_migrate.syntax.scopes import Binding, Kind, Scope
from fsdp_migrate.syntax.trees import FUNCTIONS, last_part

MAX_FRAMES = 3
MAX_DEPTH = 300  # nested evaluations; each takes some ten Python frames
MAX_STEPS = 2_000  # evaluations for one question; in published code none took 500
MAX_CONTAINERS = 4  # lists of lists that are looked into
RECURSION_LIMIT = 12 * MAX_DEPTH + 1000
# What an expression stands for in a frame; what instances of a class have as an attribute.
Question = tuple[ast.expr, Frame | None] | tuple[ast.ClassDef, str]
_CUT = 1 << (MAX_DEPTH + 2)  # among the questions that an answer waits for: none of them


class _Passing(NamedTuple):
    """An answer that waits for questions not answered yet; good as long as those are open.

    Those of lesser depth stay open for as long as the deepest one does.
    """

    values: Values
    waits: int  # bit n: the active question of depth n
    depth: int  # of the deepest of them
    activation: int  # of that one: the same question may be asked again later


# nn.Module and torch.compile style calls that hand back what they were given.
TRANSPARENT_METHODS = frozenset(
    (
        *("to", "cuda", "cpu", "xpu", "npu", "to_empty", "share_memory"),
        *("half", "bfloat16", "float", "double", "type"),
        *("train", "eval", "requires_grad_", "apply"),
    )
)
TRANSPARENT_CALLS = frozenset({"torch.compile", "torch._dynamo.optimize"})
# Calls whose result has the elements of what they are given.
CONTAINERS = frozenset(
    (
        *("torch.nn.ModuleList", "torch.nn.modules.container.ModuleList"),
        *(f"builtins.{name}" for name in ("list", "tuple", "set", "iter", "reversed", "sorted")),
    )
)
MODULE_DICTS = frozenset({"torch.nn.ModuleDict", "torch.nn.modules.container.ModuleDict"})
DICTS = MODULE_DICTS | {"builtins.dict", "collections.OrderedDict", "collections.defaultdict"}
ADDING = frozenset({"append", "appendleft", "add", "insert", "setdefault"})
BUILDS = frozenset({"build", "build_from_cfg", "create", "make"})  # methods of registries
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


class Tracer:
    def __init__(self, project: Project) -> None:
        self.project = project
        self.outdated: Collection[ast.AST] = project.outdated  # what is taken not to run
        self._memo: dict[Question, Values] = {}
        self._active: dict[Question, int] = {}  # questions not answered yet, and their depth
        self._waits = 0  # bit n: the answer made now waits for the active question of depth n
        self._passing: dict[Question, _Passing] = {}
        self._activations: list[int] = []  # of the active questions, by depth
        self._steps = 0
        self._stored: dict[Module, dict[ast.AST, frozenset[str]]] = {}
        self._stores_found: dict[
            tuple[ast.ClassDef, str],
            list[tuple[ast.FunctionDef | ast.AsyncFunctionDef, Definition]],
        ] = {}
        self._lineages: dict[ast.ClassDef, list[Class]] = {}
        self._families: dict[ast.ClassDef, list[Class]] = {}
        self._frames: dict[tuple[ast.Call, FunctionNode, Frame | None], Frame] = {}
        self._importing: set[tuple[Module, str]] = set()
        self.wraps: set[ast.AST] = set()  # calls of torch's wrap() that make FSDP1 models
        # What is left of the values of a path where tests of it have been passed; and whether
        # these say that it is, or is not, an FSDP1 model.
        self.narrow: Callable[[list[Value], ast.expr, Module], list[Value]] = lambda v, *_: v
        self.told: Callable[[ast.expr, Module], bool | None] = lambda *_: None

    # -- entry points ---------------------------------------------------------------------------

    def evaluate(self, node: ast.expr, module: Module, frame: Frame | None = None) -> Values:
        """The values ``node`` may have. An empty set means unreachable or purely recursive."""
        key = (node, frame)
        known = self._memo.get(key)
        if known is not None:
            return known
        if node in self.outdated:
            return frozenset()
        return self._ask(key, lambda: self._evaluate(node, module, frame), node, module)

    def _ask(
        self,
        key: Question,
        find: Callable[[], Iterable[Value]],
        node: ast.AST,
        module: Module,
    ) -> Values:
        """The answer to a question, found once; while it is looked for, nothing."""
        if key in self._memo:
            return self._memo[key]
        if key in self._active:
            self._waits |= 1 << self._active[key]
            return frozenset()
        known = self._passing.get(key)
        if known is not None and self._is_open(known):
            self._waits |= known.waits
            return known.values
        depth = len(self._active)
        if depth == 0:
            self._steps = self._waits = 0
            self._passing.clear()
        self._steps += 1
        if depth > MAX_DEPTH or self._steps > MAX_STEPS:
            self._waits |= _CUT  # what is known by now is not all there is
            return frozenset({Unknown(node, module, why="the data flow is too long to follow")})
        if depth == 0 and sys.getrecursionlimit() < RECURSION_LIMIT:
            sys.setrecursionlimit(RECURSION_LIMIT)
        self._active[key] = depth
        self._activations.append(self._steps)
        outer, self._waits = self._waits, 0
        try:
            result = frozenset(find())
        finally:
            del self._active[key]
            self._activations.pop()
            waits = self._waits & ~(1 << depth)
            self._waits = outer | waits
        if not waits or depth == 0:
            self._memo[key] = result
        elif not waits & _CUT:
            deepest = waits.bit_length() - 1
            self._passing[key] = _Passing(result, waits, deepest, self._activations[deepest])
        return result

    def _is_open(self, known: _Passing) -> bool:
        activations = self._activations
        return known.depth < len(activations) and activations[known.depth] == known.activation

    def argument(
        self, call: ast.Call, function: FunctionNode, name: str, *, bound: bool
    ) -> ast.expr | None:
        """The expression ``call`` passes for parameter ``name``; None when it passes none."""
        for keyword in call.keywords:
            if keyword.arg == name:
                return keyword.value
        positional = [a.arg for a in (*function.args.posonlyargs, *function.args.args)]
        if name not in positional:
            return None
        index = positional.index(name) - (1 if bound else 0)
        if index < 0 or any(isinstance(a, ast.Starred) for a in call.args[: index + 1]):
            return None
        return call.args[index] if index < len(call.args) else None

    def attribute(self, value: Value, name: str, node: ast.AST, module: Module) -> Values:
        """The values of an attribute of ``value``, asked for by ``node`` in ``module``."""
        return frozenset(self._attribute_of(value, name, node, module))

    # -- expressions ----------------------------------------------------------------------------

    def _evaluate(self, node: ast.expr, module: Module, frame: Frame | None) -> Iterable[Value]:
        match node:
            case ast.Constant():
                return [Constant(node, module, frame, node.value)]
            case ast.Name():
                return self.narrow(self._path(node, module, frame), node, module)
            case ast.Attribute():
                found = self._path(node, module, frame)
                found = found if found else self._attribute(node, module, frame)
                return self.narrow(found, node, module)
            case ast.Subscript():
                found = self._path(node, module, frame)
                found = found if found else self._subscript(node, module, frame)
                return self.narrow(found, node, module)
            case ast.Call():
                return self._call(node, module, frame)
            case ast.IfExp():
                return self._union([node.body, node.orelse], module, frame)
            case ast.BoolOp():
                return self._union(node.values, module, frame)
            case ast.NamedExpr() | ast.Await() | ast.Starred():
                return self.evaluate(node.value, module, frame)
            case ast.Lambda():
                return [Function(node, module, frame)]
            case ast.List() | ast.Tuple() | ast.Set() | ast.Dict():
                return [Display(node, module, frame)]
            case ast.ListComp() | ast.SetComp() | ast.DictComp() | ast.GeneratorExp():
                return [Display(node, module, frame)]
        return [Computed(node, module, frame)]

    def _union(
        self, nodes: Iterable[ast.expr], module: Module, frame: Frame | None
    ) -> Iterator[Value]:
        for node in nodes:
            yield from self.evaluate(node, module, frame)

    def _path(
        self, node: ast.Name | ast.Attribute | ast.Subscript, module: Module, frame: Frame | None
    ) -> list[Value]:
        """Follow the definitions that reach a name or a dotted path in its own scope."""
        scope = module.table.scope_of(node)
        here = scope.home()
        # Flows are dear: that of a scope is asked for only if something in it defines the path.
        if isinstance(node, ast.Name):
            if scope.is_free(node.id):
                return self._free(node, scope, here, module, frame)
        elif last_part(node) not in module.table.written.get(here, ()):
            return []
        reaching = module.flow(here).reaching.get(node)
        result: list[Value] = []
        if reaching:
            for definition in reaching:
                if definition is not ELSEWHERE:
                    result += self._defined(definition, here, module, frame)
            if ELSEWHERE in reaching and isinstance(node, ast.Attribute):
                result += self._attribute(node, module, frame)
            return result or [Unknown(node, module, frame, "it is never given a value")]
        if isinstance(node, ast.Name):
            return self._free(node, scope, here, module, frame)
        return []

    def _free(
        self, node: ast.Name, scope: Scope, here: Scope, module: Module, frame: Frame | None
    ) -> list[Value]:
        """A name no definition of its own scope reaches: enclosing scopes, module, builtins."""
        owner = scope.lookup(node.id)
        if owner is None:
            return self._starred(node, module)
        if owner is module.table.module:
            return self._module_level(module, node.id, node)
        if owner is here:
            return [Unknown(node, module, frame, f"{node.id} may be unbound here")]
        result: list[Value] = []
        for definition in module.flow(owner).definitions:
            if definition.path == node.id:
                # The enclosing call is not the one in frame unless frames nest lexically.
                enclosing = _frame_of(owner.node, frame)
                result += self._defined(definition, owner, module, enclosing)
        return result or [Unknown(node, module, frame, f"{node.id} is never given a value")]

    def _starred(self, node: ast.Name, module: Module) -> list[Value]:
        result: list[Value] = []
        for _, star in module.table.stars:
            resolved = self.project.resolve(star, module)
            if resolved is not None and not resolved[1]:
                result += self._member(resolved[0], node.id, node, module)
        if result:
            return result
        if hasattr(builtins, node.id):
            return [External(node, module, name=f"builtins.{node.id}")]
        for _, star in module.table.stars:
            if self.project.resolve(star, module) is None:
                return [External(node, module, name=f"{star}.{node.id}")]
        return [Unknown(node, module, why=f"{node.id} is not defined")]

    def _module_level(self, module: Module, name: str, node: ast.AST) -> list[Value]:
        top = module.table.module
        final = module.flow(top).final.get(name)
        definitions = list(final) if final else []
        known = {d.node for d in definitions}
        result: list[Value] = []
        for definition in definitions:
            result += self._defined(definition, top, module, None)
        for binding in top.bindings.get(name, []):
            # ``global name`` inside functions binds here too, and no flow of the module sees it.
            if binding.node not in known and _is_global_store(binding, module):
                result += self._from_binding(binding, module)
        return result or [Unknown(node, module, why=f"{name} is never given a value")]

    def _from_binding(self, binding: Binding, module: Module) -> list[Value]:
        definition = Definition(
            binding.name, binding.kind, binding.node, binding.value, binding.unpack
        )
        return self._defined(definition, binding.scope, module, None)

    def _member(self, module: Module, name: str, node: ast.AST, importer: Module) -> list[Value]:
        """``name`` looked up in a module of the project, as ``from module import name`` does."""
        if (module, name) in self._importing:  # a package that imports the name from itself
            return []
        result: list[Value] = []
        self._importing.add((module, name))
        for owner, binding in self.project.exports(module, name):
            if binding.kind is Kind.IMPORT:
                result += self._imported(binding.qualified, node, owner, importer)
            else:
                result += self._module_level(owner, name, node)
                break
        self._importing.discard((module, name))
        if not result:
            submodule = self.project.find(f"{module.name}.{name}", importer)
            if submodule is not None:
                return [ModuleValue(node, importer, target=submodule)]
        return result

    def _imported(self, qualified: str, node: ast.AST, module: Module, user: Module) -> list[Value]:
        """The value of an absolute dotted import path, as seen from ``module``."""
        resolved = self.project.resolve(qualified, module)
        if resolved is None:
            return [External(node, user, name=qualified)]
        target, rest = resolved
        if not rest:
            return [ModuleValue(node, user, target=target)]
        head, _, tail = rest.partition(".")
        found = self._member(target, head, node, module)
        for part in tail.split(".") if tail else []:
            found = [v for value in found for v in self._attribute_of(value, part, node, user)]
        if found:
            return found
        outside = self.project.canonical(qualified, module)
        if outside:
            return [External(node, user, name=name) for name in sorted(outside)]
        return [Unknown(node, user, why=f"{qualified} is not defined in these paths")]

    # -- definitions ----------------------------------------------------------------------------

    def _defined(
        self, definition: Definition, scope: Scope, module: Module, frame: Frame | None
    ) -> list[Value]:
        node = definition.node
        if node in self.outdated:
            return []
        match definition.kind:
            case Kind.IMPORT:
                binding = self._import_binding(node, definition.path, module)
                return self._imported(binding.qualified, node, module, module)
            case Kind.FUNCTION:
                assert isinstance(node, FUNCTIONS)
                return [Function(node, module, frame)]
            case Kind.CLASS:
                assert isinstance(node, ast.ClassDef)
                return [Class(node, module)]
            case Kind.PARAMETER:
                assert isinstance(node, ast.arg)
                return self._parameter(node, scope, module, frame)
            case Kind.ASSIGN if definition.value is not None:
                values = self.evaluate(definition.value, module, frame)
                return self._unpacked(values, definition, module, frame)
            case Kind.ELEMENT if definition.value is not None:
                return self._elements(definition, module, frame)
        why = {
            Kind.DELETE: "it was deleted",
            Kind.AUGMENT: "it is updated in place",
            Kind.ENTER: "it comes from a context manager",
        }.get(definition.kind, "its value is not written in the source")
        return [Unknown(definition.value or node, module, frame, why)]

    def _import_binding(self, alias: ast.AST, name: str, module: Module) -> Binding:
        return module.table.imported_by[alias, name]  # built from the same walk

    def _unpacked(
        self, values: Values, definition: Definition, module: Module, frame: Frame | None
    ) -> list[Value]:
        current = list(values)
        for index in definition.unpack:
            following: list[Value] = []
            for value in current:
                if isinstance(value, Display) and isinstance(value.node, (ast.Tuple, ast.List)):
                    elements = value.node.elts
                    starred = any(isinstance(e, ast.Starred) for e in elements[: index + 1])
                    if index < len(elements) and not starred:
                        following += self.evaluate(elements[index], value.module, value.frame)
                        continue
                origin = definition.value or definition.node
                following.append(
                    Unknown(origin, module, frame, "it is one part of an unpacked value")
                )
            current = following
        return current

    def _elements(self, definition: Definition, module: Module, frame: Frame | None) -> list[Value]:
        """What a loop variable is, one after the other."""
        assert definition.value is not None
        result: list[Value] = []
        for value in self.evaluate(definition.value, module, frame):
            listed = not definition.unpack and self._listed(value)
            found = self._kept_models(value, definition.unpack)
            if found is None:
                found = listed if listed is not False else None
            result += found if found is not None else [Computed(definition.value, module, frame)]
        return result

    def _listed(self, value: Value) -> list[Value] | Literal[False]:
        """The elements of what is written out, one by one."""
        if not isinstance(value, Display):
            return False
        if not isinstance(value.node, (ast.List, ast.Tuple, ast.Set)):
            return False
        return [v for e in value.node.elts for v in self.evaluate(e, value.module, value.frame)]

    def _kept_models(self, value: Value, unpack: tuple[int, ...] = ()) -> list[Value] | None:
        """The elements of a container of FSDP1 models alone, else None.

        Of others too little is told by where they were made: a loop may put a wrapped module in
        the place of each.
        """
        found = list(self._contents(value, unpack))
        return found if found and all(map(self._is_wrapped, found)) else None

    def _contents(
        self, value: Value, unpack: tuple[int, ...], depth: int = MAX_CONTAINERS
    ) -> Iterator[Value]:
        """What iterating over a value gives; of pairs and the like the part that is unpacked."""
        node = value.node
        match node:
            case ast.List() | ast.Tuple() | ast.Set() if not unpack:
                yield from self._listed(value) or ()
                yield from self._put_into(value)
            case ast.ListComp(elt=element) | ast.SetComp(elt=element) if not unpack:
                yield from self.evaluate(element, value.module, value.frame)
            case ast.GeneratorExp(elt=element) if not unpack:
                yield from self.evaluate(element, value.module, value.frame)
            case ast.Call(func=ast.Attribute(value=owner, attr="values"), args=[]) if not unpack:
                yield from self._values_of(owner, value)
            case ast.Call(func=ast.Attribute(value=owner, attr="items"), args=[]) if unpack == (1,):
                yield from self._values_of(owner, value)
            case ast.Call() if isinstance(value, Made):
                if value.made_by in CONTAINERS and not unpack:
                    yield from self._put_into(value)
                within = _iterated(node, value.made_by, unpack)
                if within is not None and depth:  # ``layers = list(layers)`` leads to itself
                    for inner in self.evaluate(within, value.module, value.frame):
                        yield from self._contents(inner, (), depth - 1)

    def _values_of(self, owner: ast.expr, value: Value) -> Iterator[Value]:
        """The values of a dict, or of an ``nn.ModuleDict`` of one."""
        for inner in self.evaluate(owner, value.module, value.frame):
            yield from self._entered(inner)

    def _entered(self, mapping: Value) -> Iterator[Value]:
        made = mapping.made_by if isinstance(mapping, Made) else ""
        if made in DICTS or isinstance(mapping.node, ast.Dict):
            yield from self._put_into(mapping)
        match mapping.node:
            case ast.Call(args=[(ast.Dict() | ast.DictComp()) as given]) if made in MODULE_DICTS:
                yield from self._values_of(given, mapping)
            case ast.Dict(values=elements):
                for element in elements:
                    yield from self.evaluate(element, mapping.module, mapping.frame)
            case ast.DictComp(value=element):
                yield from self.evaluate(element, mapping.module, mapping.frame)

    def _put_into(self, container: Value) -> Iterator[Value]:
        """What is added to a list or a dict after it is made, under the name it is given there."""
        parents = container.module.table.parents
        parent = parents.get(container.node)
        match parent, parents.get(parent) if parent is not None else None:
            case ((ast.Assign(targets=[target]) | ast.AnnAssign(target=target)), _):
                name = _last_name(target)
            case ast.Tuple(elts=given), ast.Assign(targets=[ast.Tuple(elts=targets)]) if len(
                given
            ) == len(targets):  # gains, losses = [], []
                index = next(i for i, each in enumerate(given) if each is container.node)
                name = _last_name(targets[index])
            case _:
                return
        for owner, element, module in self._additions.get(name, ()):
            if any(v.node is container.node for v in self.evaluate(owner, module)):
                yield from self.evaluate(element, module)

    @cached_property
    def _additions(self) -> dict[str, list[tuple[ast.expr, ast.expr, Module]]]:
        """Every ``name.append(x)`` and ``name[key] = x`` of the project, by name."""
        found: dict[str, list[tuple[ast.expr, ast.expr, Module]]] = defaultdict(list)
        for module in self.project.modules:
            table = module.table
            for call in table.calls_by_name.of(ADDING):
                if isinstance(call.func, ast.Attribute) and call.args:
                    owner = call.func.value
                    found[_last_name(owner)].append((owner, call.args[-1], module))
            for entry in table.subscripts:
                stored = table.parents[entry]
                if isinstance(stored, ast.Assign) and entry in stored.targets:
                    name = _last_name(entry.value)
                    if name:
                        found[name].append((entry.value, stored.value, module))
        return found

    def _is_wrapped(self, value: Value) -> bool:
        """Whether a value is, or may turn out to be, an FSDP1 model."""
        if not isinstance(value, Made):
            return False
        names = [value.made_by]
        if isinstance(value.callee, Class):
            names += self.external_bases(value.callee)
        return not {fsdp1.canonical(name) for name in names}.isdisjoint((fsdp1.FSDP, "wrap"))

    # -- parameters and calls -------------------------------------------------------------------

    def _parameter(
        self, arg: ast.arg, scope: Scope, module: Module, frame: Frame | None
    ) -> list[Value]:
        function = scope.node
        assert isinstance(function, FUNCTIONS)
        owner = self._method_owner(function, module)
        first = [*function.args.posonlyargs, *function.args.args][:1]
        if owner is not None and first and first[0] is arg and not _is_static(function):
            if _has_decorator(function, "classmethod"):
                return [Class(owner, module)]
            return [Made(owner, module, callee=Class(owner, module))]
        default = self._default(arg, function)
        if frame is not None and frame.function is function:
            bound = owner is not None and not _is_static(function)
            passed = self.argument(frame.call, function, arg.arg, bound=bound)
            if passed is not None:
                return list(self.evaluate(passed, frame.module, frame.parent))
            if _opaque(frame.call):
                why = "it is passed through *args or **kwargs"
                return [Unknown(frame.call, frame.module, frame.parent, why)]
            return list(self.evaluate(default, module)) if default is not None else []
        if arg in (function.args.vararg, function.args.kwarg):
            return [Unknown(arg, module, None, f"{arg.arg} collects whatever is passed")]
        return self._from_callers(arg, function, default, module)

    def _from_callers(
        self, arg: ast.arg, function: FunctionNode, default: ast.expr | None, module: Module
    ) -> list[Value]:
        result: list[Value] = []
        sites = self.callers(function, module)
        for site in sites:
            passed = site.argument(self, function, arg.arg)
            if passed is not None:
                result += self.evaluate(passed, site.module)
            elif _opaque(site.call):
                why = "it is passed through *args or **kwargs"
                result.append(Unknown(site.call, site.module, None, why))
            elif default is not None:
                result += self.evaluate(default, module)
        if not sites:
            name = getattr(function, "name", "a lambda")
            why = f"{arg.arg} is a parameter of {name}, which nothing here calls"
            result.append(Unknown(arg, module, None, why))
            if default is not None:
                result += self.evaluate(default, module)
        return result

    @staticmethod
    def _default(arg: ast.arg, function: FunctionNode) -> ast.expr | None:
        args = function.args
        positional = [*args.posonlyargs, *args.args]
        if arg in positional:
            index = positional.index(arg) - (len(positional) - len(args.defaults))
            return args.defaults[index] if index >= 0 else None
        if arg in args.kwonlyargs:
            return args.kw_defaults[args.kwonlyargs.index(arg)]
        return None

    def _call(self, node: ast.Call, module: Module, frame: Frame | None) -> list[Value]:
        result: list[Value] = []
        for callee in self.evaluate(node.func, module, frame):
            match callee:
                case Function():
                    result += self._returned(callee, node, module, frame)
                case Class():
                    result.append(Made(node, module, frame, callee))
                case External(name=name) if name in TRANSPARENT_CALLS and node.args:
                    result += self.evaluate(node.args[0], module, frame)
                case External():
                    result.append(Made(node, module, frame, callee))
                case Made(made_by="functools.partial", node=ast.Call(args=[bound, *_])):
                    for inner in self.evaluate(bound, callee.module, callee.frame):
                        if isinstance(inner, (External, Class)):
                            result.append(Made(node, module, frame, inner))
                        else:
                            result.append(Computed(node, module, frame))
                case Unknown() | Computed() | Made():
                    result += self._foreign_method(node, callee, module, frame)
                case _:
                    result.append(Computed(node, module, frame))
        made = self._registered and _last_name(node.func) in BUILDS and self._built(node, module)
        result += [Made(node, module, frame, cls) for cls in made or ()]
        return result

    def _built(self, call: ast.Call, module: Module) -> list[Class]:
        """The registered classes that ``REGISTRY.build(config)`` may make an instance of."""
        if not isinstance(call.func, ast.Attribute):
            return []
        kept_in = self._identities(call.func.value, module)
        given = [k.value for k in call.keywords if k.arg == "default_args"]
        names = {name for node in given for name in self._literal_keys(node, module)}
        return [
            cls
            for cls, registry in self._registered
            if not kept_in.isdisjoint(self._identities(registry, cls.module))
            and (self._takes(cls) is None or names <= {"type", *(self._takes(cls) or ())})
        ]

    def _literal_keys(self, node: ast.expr, module: Module) -> Iterator[str]:
        """The keys that a dict surely is made with."""
        found = self.evaluate(node, module)
        for value in found if len(found) == 1 else ():
            match value.node:
                case ast.Dict(keys=keys):
                    yield from (str(k.value) for k in keys if isinstance(k, ast.Constant))
                case ast.Call(func=ast.Name(id="dict"), keywords=keywords):
                    yield from (k.arg for k in keywords if k.arg)

    def _takes(self, cls: Class) -> frozenset[str] | None:
        """The names of what a class derived from FSDP's is made from; None where that is open."""
        if not any(fsdp1.canonical(n) == fsdp1.FSDP for n in self.external_bases(cls)):
            return None
        for node in cls.node.body:
            if isinstance(node, ast.FunctionDef) and node.name == "__init__":
                own = {a.arg for a in (*node.args.args, *node.args.kwonlyargs)}
                return frozenset(own | set(fsdp1.CONSTRUCTOR_ARGUMENTS) | {"ignored_parameters"})
        return frozenset(fsdp1.CONSTRUCTOR_ARGUMENTS)

    def _identities(self, node: ast.expr, module: Module) -> set[ast.AST | str]:
        """What tells objects of a module apart: where one is made, or its name outside."""
        found = self.evaluate(node, module)
        return {
            v.name if isinstance(v, External) else v.node
            for v in found
            if not isinstance(v, Unknown)
        }

    @cached_property
    def _registered(self) -> list[tuple[Class, ast.expr]]:
        """Classes that may derive from FSDP's, with the registries that they are put into:
        ``@WRAPPERS.register_module()``."""
        return [
            (cls, registry)
            for cls in self._classes_with_bases
            if cls.node.decorator_list and cls.module.mentions(*fsdp1.WORDS)
            for registry in map(registry_of, cls.node.decorator_list)
            if registry is not None
        ]

    def built(self, cls: Class) -> Iterator[tuple[ast.Call, Module]]:
        """Where registries that a class is in make an instance of one of theirs."""
        if any(known.node is cls.node for known, _ in self._registered):
            for call, module in self.calls_named(*BUILDS):
                if any(each.node is cls.node for each in self._built(call, module)):
                    yield call, module

    def _foreign_method(
        self, node: ast.Call, callee: Value, module: Module, frame: Frame | None
    ) -> list[Value]:
        if isinstance(node.func, ast.Attribute) and node.func.attr in TRANSPARENT_METHODS:
            return list(self.evaluate(node.func.value, module, frame))
        if isinstance(callee, Unknown) and not isinstance(node.func, ast.Attribute):
            return [Unknown(node, module, frame, callee.why)]
        if isinstance(callee, Unknown):
            method = node.func.attr if isinstance(node.func, ast.Attribute) else ""
            return [Unknown(node, module, frame, f"{method}() is not defined in these paths")]
        return [Computed(node, module, frame)]

    def _returned(
        self, function: Function, call: ast.Call, module: Module, frame: Frame | None
    ) -> list[Value]:
        """What calling a project function gives, its parameters bound to this call."""
        node = function.node
        key = call, node, frame
        inner = self._frames.get(key)
        if inner is None:
            inner = self._frames[key] = Frame(call, module, node, frame)
        context = inner if inner.depth <= MAX_FRAMES else None
        if isinstance(node, ast.Lambda):
            return list(self.evaluate(node.body, function.module, context))
        returns, yields = exits(node, function.module)
        if yields or isinstance(node, ast.AsyncFunctionDef):
            return [Computed(call, module, frame)]
        result: list[Value] = []
        for statement in returns:
            if statement in self.outdated:
                continue
            if statement.value is None:
                result.append(Constant(statement, function.module, context, None))
            else:
                result += self.evaluate(statement.value, function.module, context)
        return result or [Constant(call, module, frame, None)]

    # -- attributes and elements ----------------------------------------------------------------

    def _attribute(self, node: ast.Attribute, module: Module, frame: Frame | None) -> list[Value]:
        result: list[Value] = []
        seen: set[ast.AST] = set()
        for value in self.evaluate(node.value, module, frame):
            if isinstance(value, Made) and isinstance(value.callee, Class):
                if value.callee.node in seen:
                    continue  # instances of one class, however made, have the same
                seen.add(value.callee.node)
            result += self._attribute_of(value, node.attr, node, module)
        return result

    def _attribute_of(self, value: Value, attr: str, node: ast.AST, module: Module) -> list[Value]:
        match value:
            case External():
                return [External(node, module, name=f"{value.name}.{attr}")]
            case ModuleValue(target=target) if target is not None:
                found = self._member(target, attr, node, module)
                return found or [Unknown(node, module, why=f"{target.name} has no {attr}")]
            case Made(callee=Class() as cls):
                return self._instance_attribute(value, cls, attr, node, module)
            case Class():
                return self._instance_attribute(value, value, attr, node, module)
            case Unknown():
                return [Unknown(node, module, why=value.why)]
        return [Unknown(node, module, why=f"the attribute {attr} is set outside these paths")]

    def _instance_attribute(
        self, value: Value, cls: Class, attr: str, node: ast.AST, module: Module
    ) -> list[Value]:
        key = (cls.node, attr)
        found = self._ask(key, lambda: self._attribute_of_class(value, cls, attr), node, module)
        return list(found) or [Unknown(node, module, why=f"{attr} is set outside these paths")]

    def _attribute_of_class(self, value: Value, cls: Class, attr: str) -> list[Value]:
        result: list[Value] = []
        for related in self.family(cls):
            scope = related.module.table.scopes[related.node]
            for binding in scope.bindings.get(attr, []):
                result += self._class_binding(binding, related, value)
            for method, definition in self._stores(related, attr):
                owner = related.module.table.scopes[method]
                result += self._defined(definition, owner, related.module, None)
            if _is_dataclass(related.node):
                result += self._field_arguments(related, attr)
        for store, store_module in self._outside_stores.get(attr, []):
            receiver = store.value
            if any(
                isinstance(v, (Made, Class)) and self._is_family(v, cls)
                for v in self.evaluate(receiver, store_module)
            ):
                result += self._stored_value(store, store_module)
        return result

    def _is_family(self, value: Made | Class, cls: Class) -> bool:
        found = value if isinstance(value, Class) else value.callee
        return isinstance(found, Class) and found.node in {c.node for c in self.family(cls)}

    def _class_binding(self, binding: Binding, cls: Class, value: Value) -> list[Value]:
        if binding.node in self.outdated:
            return []
        if binding.kind is Kind.FUNCTION:
            assert isinstance(binding.node, FUNCTIONS)
            function = Function(binding.node, cls.module, owner=cls.node)
            property_like = _has_decorator(binding.node, "property", "cached_property")
            if property_like and not isinstance(binding.node, ast.Lambda):
                returns, _ = exits(binding.node, cls.module)
                found: list[Value] = []
                for statement in returns:
                    if statement.value is not None:
                        found += self.evaluate(statement.value, cls.module)
                return found
            return [function]
        if binding.value is None and binding.kind is Kind.ASSIGN:
            return []  # an annotation without a default
        return self._from_binding(binding, cls.module)

    def _stores(
        self, cls: Class, attr: str
    ) -> list[tuple[ast.FunctionDef | ast.AsyncFunctionDef, Definition]]:
        """Every ``self.attr = ...`` in the methods of a class."""
        key = (cls.node, attr)
        if key not in self._stores_found:
            self._stores_found[key] = list(self._find_stores(cls, attr))
        return self._stores_found[key]

    def has_attribute(self, cls: Class, attr: str) -> bool:
        """Whether the project gives instances of a class, or the class, an attribute."""
        return any(
            attr in each.module.table.scopes[each.node].bindings or self._stores(each, attr)
            for each in self.family(cls)
        )

    def assigning(self, cls: Class, attr: str) -> Iterator[ast.FunctionDef | ast.AsyncFunctionDef]:
        """The methods of a class, its bases and its subclasses that assign ``self.attr``."""
        for related in self.family(cls):
            for method, _ in self._stores(related, attr):
                yield method

    def _find_stores(
        self, cls: Class, attr: str
    ) -> Iterator[tuple[ast.FunctionDef | ast.AsyncFunctionDef, Definition]]:
        for method in cls.node.body:
            if not isinstance(method, (ast.FunctionDef, ast.AsyncFunctionDef)):
                continue
            parameters = [*method.args.posonlyargs, *method.args.args]
            if not parameters or attr not in self._stored_names(method, cls.module):
                continue
            path = f"{parameters[0].arg}.{attr}"
            scope = cls.module.table.scopes[method]
            for definition in cls.module.flow(scope).definitions:
                if definition.path == path:
                    yield method, definition

    def _stored_names(self, method: ast.AST, module: Module) -> frozenset[str]:
        """Attributes that a method assigns, on whatever object."""
        known = self._stored.get(module)
        if known is None:
            found: dict[ast.AST, set[str]] = defaultdict(set)
            for attribute in module.table.stored_attributes:
                scope = module.table.within[attribute].function()
                if scope is not None:
                    found[scope.node].add(attribute.attr)
            known = {node: frozenset(names) for node, names in found.items()}
            self._stored[module] = known
        return known.get(method, frozenset())

    @cached_property
    def _outside_stores(self) -> dict[str, list[tuple[ast.Attribute, Module]]]:
        """``x.attr = v`` where ``x`` is not the ``self`` of a method."""
        found: dict[str, list[tuple[ast.Attribute, Module]]] = defaultdict(list)
        for module in self.project.modules:
            for node in module.table.stored_attributes:
                if not self._is_self(node.value, module):
                    found[node.attr].append((node, module))
        return found

    def _is_self(self, node: ast.expr, module: Module) -> bool:
        if not isinstance(node, ast.Name):
            return False
        scope = module.table.within[node].function()
        if scope is None or not isinstance(scope.node, (ast.FunctionDef, ast.AsyncFunctionDef)):
            return False
        parameters = [*scope.node.args.posonlyargs, *scope.node.args.args]
        return bool(
            parameters
            and parameters[0].arg == node.id
            and self._method_owner(scope.node, module) is not None
        )

    def _stored_value(self, node: ast.Attribute, module: Module) -> list[Value]:
        path = access_path(node)
        scope = module.table.within[node]
        while scope.parent is not None and not (scope.is_function or scope.is_class):
            scope = scope.parent
        statement = module.table.statement(node)
        for definition in module.flow(scope).definitions:
            if definition.path == path and definition.node is statement:
                return self._defined(definition, scope, module, None)
        return [Unknown(node, module, why="it is assigned in a way that cannot be followed")]

    def _field_arguments(self, cls: Class, attr: str) -> list[Value]:
        """What the constructor calls of a dataclass pass for one field."""
        fields = [
            s.target.id
            for s in cls.node.body
            if isinstance(s, ast.AnnAssign) and isinstance(s.target, ast.Name)
        ]
        result: list[Value] = []
        for call, module in self._calls.get(cls.node.name, []):
            made = self.evaluate(call.func, module)
            if not any(isinstance(v, Class) and v.node is cls.node for v in made):
                continue
            for keyword in call.keywords:
                if keyword.arg == attr:
                    result += self.evaluate(keyword.value, module)
                elif keyword.arg is None:
                    result.append(Unknown(call, module, why="it is passed through **kwargs"))
            if attr in fields and fields.index(attr) < len(call.args):
                result += self.evaluate(call.args[fields.index(attr)], module)
        return result

    def _subscript(self, node: ast.Subscript, module: Module, frame: Frame | None) -> list[Value]:
        keys = self.evaluate(node.slice, module, frame)
        result: list[Value] = []
        for value in self.evaluate(node.value, module, frame):
            if isinstance(value, Display) and isinstance(value.node, ast.Dict):
                result += self._entries(value, keys)
                added = list(self._put_into(value))
                result += added if all(map(self._is_wrapped, added)) else []
            elif isinstance(value, External):
                # Enum["NAME"]: the member when the key is written out.
                names = [k.value for k in keys if isinstance(k, Constant)]
                if names and len(names) == len(keys):
                    result += [External(node, module, name=f"{value.name}.{n}") for n in names]
                else:
                    result.append(External(node, module, name=f"{value.name}.*"))
            elif (kept := self._element(node, value)) is not None:
                result += kept
            else:
                why = value.why if isinstance(value, Unknown) else "the container is not a literal"
                result.append(Unknown(node, module, frame, why))
        return result

    def _element(self, node: ast.Subscript, container: Value) -> list[Value] | None:
        """One of the elements of a container of FSDP1 models: which, no one asks."""
        if isinstance(node.slice, ast.Slice):
            return None
        found = [*self._contents(container, ()), *self._entered(container)]
        return found if found and all(map(self._is_wrapped, found)) else None

    def _entries(self, value: Display, keys: Values) -> list[Value]:
        """Entries of a dict display under any of ``keys``; all of them when a key is unknown."""
        assert isinstance(value.node, ast.Dict)
        wanted = {k.value for k in keys if isinstance(k, Constant)}
        exact = len(wanted) == len(keys)
        result: list[Value] = []
        for key, entry in zip(value.node.keys, value.node.values, strict=True):
            literal = isinstance(key, ast.Constant)
            if not exact or not literal or (isinstance(key, ast.Constant) and key.value in wanted):
                result += self.evaluate(entry, value.module, value.frame)
        return result

    # -- classes and callers --------------------------------------------------------------------

    def _method_owner(self, function: FunctionNode, module: Module) -> ast.ClassDef | None:
        parent = module.table.parents.get(function)
        return parent if isinstance(parent, ast.ClassDef) else None

    def family(self, cls: Class) -> list[Class]:
        """A class with its bases and subclasses in the project, nearest bases first."""
        return self._kept(self._families, cls, lambda: self._find_family(cls))

    def _find_family(self, cls: Class) -> list[Class]:
        return list({c.node: c for c in (*self._bases(cls), *self.subclasses(cls))}.values())

    def lineage(self, cls: Class) -> list[Class]:
        """A class and its bases in the project, nearest first."""
        return self._bases(cls)

    def _bases(self, cls: Class) -> list[Class]:
        return self._kept(self._lineages, cls, lambda: self._find_bases(cls))

    def _find_bases(self, cls: Class) -> list[Class]:
        found: dict[ast.ClassDef, Class] = {}  # each once, however many ways lead to it

        def visit(this: Class) -> None:
            if this.node in found:
                return
            found[this.node] = this
            for base in this.node.bases:
                for value in self.evaluate(base, this.module):
                    if isinstance(value, Class):
                        visit(value)

        visit(cls)
        return list(found.values())

    def _kept(
        self,
        known: dict[ast.ClassDef, list[Class]],
        cls: Class,
        find: Callable[[], list[Class]],
    ) -> list[Class]:
        """What is found for a class, kept unless it waits for a question that is still open."""
        if cls.node in known:
            return known[cls.node]
        outer, self._waits = self._waits, 0
        found = find()
        if not self._waits:
            known[cls.node] = found
        self._waits |= outer
        return found

    def external_bases(self, cls: Class) -> frozenset[str]:
        """Dotted names of every base class outside the project, however far up."""
        found: set[str] = set()
        for related in self._bases(cls):
            for base in related.node.bases:
                for value in self.evaluate(base, related.module):
                    if isinstance(value, External):
                        found.add(value.name)
        return frozenset(found)

    def derived(self, name: str) -> list[Class]:
        """The project's classes with a base of that dotted name outside the project."""
        return [c for c in self._classes_with_bases if name in self.external_bases(c)]

    def subclasses(self, cls: Class) -> list[Class]:
        """The project's classes that are derived from a class by name, however far down."""
        return self._derived_from.get(cls.node, [])

    @cached_property
    def _derived_from(self) -> dict[ast.ClassDef, list[Class]]:
        named = _Named(self.project)
        found: dict[ast.ClassDef, list[Class]] = defaultdict(list)
        for cls in self._classes_with_bases:
            for base in {b.node for b in named.lineage(cls)} - {cls.node}:
                found[base].append(cls)
        return found

    @cached_property
    def _classes_with_bases(self) -> list[Class]:
        return [
            Class(node, module)
            for module in self.project.modules
            for node in module.table.scopes
            if isinstance(node, ast.ClassDef) and node.bases
        ]

    @cached_property
    def _calls(self) -> dict[str, list[tuple[ast.Call, Module]]]:
        """Every call in the project by the last part of its callee's name."""
        found: dict[str, list[tuple[ast.Call, Module]]] = defaultdict(list)
        for module in self.project.modules:
            renamed = {
                b.name: b.qualified.rpartition(".")[2]
                for b in module.table.imports
                if b.name != b.qualified.rpartition(".")[2]
            }
            for call in module.table.calls:
                name = _last_name(call.func)
                if name:
                    found[name].append((call, module))
                    if name in renamed:
                        found[renamed[name]].append((call, module))
        return found

    def calls_named(self, *names: str) -> Iterator[tuple[ast.Call, Module]]:
        """Every call in the project of what has one of these last names."""
        for name in names:
            yield from self._calls.get(name, [])

    def callers(self, function: FunctionNode, module: Module) -> list[CallSite]:
        """Every call in the project that may run ``function``."""
        known = self._callers.get(function)
        if known is None:
            self._callers[function] = []  # a recursive question is answered with what is known
            known = self._callers[function] = self._find_callers(function, module)
        return known

    @cached_property
    def _callers(self) -> dict[FunctionNode, list[CallSite]]:
        return {}

    def _find_callers(self, function: FunctionNode, module: Module) -> list[CallSite]:
        if isinstance(function, ast.Lambda):
            return []
        owner = self._method_owner(function, module)
        is_init = owner is not None and function.name == "__init__"
        name = owner.name if owner is not None and is_init else function.name
        found: list[CallSite] = []
        names = [name]
        if owner is not None and is_init:
            names += [c.node.name for c in self.subclasses(Class(owner, module))]
        if owner is not None and function.name == "__call__":
            names += self._instance_names(Class(owner, module))
        for each in names:
            for call, where in self._calls.get(each, []):
                if call not in self.outdated and self._may_run(
                    call, where, function, owner, is_init
                ):
                    bound = owner is not None and not _is_static(function)
                    found.append(CallSite(call, where, bound))
        return [*found, *self._spawned(function)]

    def _instance_names(self, cls: Class) -> list[str]:
        """The last parts of the names that instances of a class are given, or are handed on by."""
        found: dict[str, None] = {}
        for each in (cls, *self.subclasses(cls)):
            for call, module in self._calls.get(each.node.name, []):
                parent = module.table.parents[call]
                targets = parent.targets if isinstance(parent, ast.Assign) else []
                found.update(dict.fromkeys(name for t in targets if (name := _last_name(t))))
        waiting = list(found)
        while waiting:
            for name in self._handed_on(waiting.pop()):
                if name not in found:
                    found[name] = None
                    waiting.append(name)
        return list(found)

    def _handed_on(self, name: str) -> Iterator[str]:
        """The parameters that arguments of a name are passed for, and what these are kept as."""
        for given, call, module in self._arguments.get(name, []):
            for value in self.evaluate(call.func, module):
                functions = [value] if isinstance(value, Function) else []
                if isinstance(value, Class):
                    functions = [f for f in self._initializers(value) if isinstance(f, Function)]
                for function in functions:
                    yield from self._kept_as(given, call, function, made=isinstance(value, Class))

    def _initializers(self, cls: Class) -> Iterable[Value]:
        return self._attribute_of_class(cls, cls, "__init__")

    def _kept_as(
        self, given: ast.expr, call: ast.Call, function: Function, *, made: bool
    ) -> Iterator[str]:
        arguments = function.node.args
        bound = made or (function.owner is not None and not _is_static(function.node))
        for each in (*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs):
            if self.argument(call, function.node, each.arg, bound=bound) is not given:
                continue
            yield each.arg
            scope = function.module.table.scopes[function.node]
            for definition in function.module.flow(scope).definitions:
                kept = definition.value
                if isinstance(kept, ast.Name) and kept.id == each.arg:
                    yield definition.path.rpartition(".")[2]

    @cached_property
    def _arguments(self) -> dict[str, list[tuple[ast.expr, ast.Call, Module]]]:
        """Every argument of the project's calls that is a name, by the last part of it."""
        found: dict[str, list[tuple[ast.expr, ast.Call, Module]]] = defaultdict(list)
        for module in self.project.modules:
            for call in module.table.calls:
                for given in (*call.args, *(k.value for k in call.keywords)):
                    name = _last_name(given)
                    if name:
                        found[name].append((given, call, module))
        return found

    def _may_run(
        self,
        call: ast.Call,
        where: Module,
        function: ast.FunctionDef | ast.AsyncFunctionDef,
        owner: ast.ClassDef | None,
        is_init: bool,
    ) -> bool:
        unknown = False
        for value in self.evaluate(call.func, where):
            if isinstance(value, Function) and value.node is function:
                return True
            if is_init and isinstance(value, Class):
                inits = [
                    b.node
                    for c in self._bases(value)
                    for b in c.module.table.scopes[c.node].bindings.get("__init__", [])
                ]
                if inits and inits[0] is function:
                    return True
            if function.name == "__call__" and isinstance(value, Made):
                made = self._bases(value.callee) if isinstance(value.callee, Class) else []
                own = [
                    b.node
                    for c in made
                    for b in c.module.table.scopes[c.node].bindings.get("__call__", [])
                ]
                if own and own[0] is function:
                    return True
            unknown = unknown or isinstance(value, Unknown)
        is_method = owner is not None and isinstance(call.func, ast.Attribute)
        return (
            unknown
            and is_method
            and function.name not in COMMON_METHODS
            and self._method_names.get(function.name) == 1
        )

    @cached_property
    def _method_names(self) -> dict[str, int]:
        found: dict[str, int] = defaultdict(int)
        for module in self.project.modules:
            for node in module.table.scopes:
                if isinstance(node, ast.ClassDef):
                    for child in node.body:
                        if isinstance(child, (ast.FunctionDef, ast.AsyncFunctionDef)):
                            found[child.name] += 1
        return found

    def _spawned(self, function: ast.FunctionDef | ast.AsyncFunctionDef) -> list[CallSite]:
        """``mp.spawn(function, args=(a, b))`` calls ``function(rank, a, b)``."""
        found: list[CallSite] = []
        for call, module in self._calls.get("spawn", []):
            if not call.args or not self.project.external(call.func, module) & SPAWN:
                continue
            for value in self.evaluate(call.args[0], module):
                if isinstance(value, Function) and value.node is function:
                    found.append(CallSite(call, module, bound=False, spawned=True))
        return found


@dataclass(frozen=True)
class CallSite:
    call: ast.Call
    module: Module
    bound: bool  # the first parameter is filled by the receiver
    spawned: bool = False

    def argument(self, tracer: Tracer, function: FunctionNode, name: str) -> ast.expr | None:
        if not self.spawned:
            return tracer.argument(self.call, function, name, bound=self.bound)
        names = [a.arg for a in (*function.args.posonlyargs, *function.args.args)]
        packed = next((k.value for k in self.call.keywords if k.arg == "args"), None)
        if packed is None and len(self.call.args) > 1:
            packed = self.call.args[1]
        if isinstance(packed, ast.Tuple) and name in names[1:]:
            index = names.index(name) - 1
            return packed.elts[index] if index < len(packed.elts) else None
        return self.call.args[0] if name in names[:1] else None


def _iterated(call: ast.Call, name: str, unpack: tuple[int, ...]) -> ast.expr | None:
    """What is gone over in going over the result of a call of ``name``."""
    given = call.args
    match unpack:
        case () if name in CONTAINERS and len(given) == 1:
            return given[0]
        case (1,) if name == "builtins.enumerate" and given:
            return given[0]
        case (index,) if name == "builtins.zip" and index < len(given):
            return None if any(isinstance(g, ast.Starred) for g in given) else given[index]
    return None


def registry_of(decorator: ast.expr) -> ast.expr | None:
    """``WRAPPERS`` of ``@WRAPPERS.register_module()``."""
    method = decorator.func if isinstance(decorator, ast.Call) else decorator
    if isinstance(method, ast.Attribute) and method.attr.startswith("register"):
        return method.value
    return None


def _last_name(node: ast.expr) -> str:
    if isinstance(node, ast.Name):
        return node.id
    return node.attr if isinstance(node, ast.Attribute) else ""


def _opaque(call: ast.Call) -> bool:
    return any(isinstance(a, ast.Starred) for a in call.args) or any(
        k.arg is None for k in call.keywords
    )


def _has_decorator(node: ast.AST, *names: str) -> bool:
    decorators = getattr(node, "decorator_list", [])
    plain = [d.func if isinstance(d, ast.Call) else d for d in decorators]
    return any(_last_name(d) in names for d in plain)


def _is_static(node: FunctionNode) -> bool:
    return _has_decorator(node, "staticmethod")


def _is_dataclass(node: ast.ClassDef) -> bool:
    return _has_decorator(node, "dataclass")


class _Named(Tracer):
    """Follows names, imports and assignments, but neither calls nor what is stored in objects.

    Of a class nearly always all there is to be known; and to ask for the callers of a function
    that makes classes, while the classes of an attribute are looked for, would lead through the
    whole project and back.
    """

    def _parameter(
        self, arg: ast.arg, scope: Scope, module: Module, frame: Frame | None
    ) -> list[Value]:
        return [Unknown(arg, module, frame, f"{arg.arg} is a parameter")]

    def _call(self, node: ast.Call, module: Module, frame: Frame | None) -> list[Value]:
        return [Computed(node, module, frame)]

    def _instance_attribute(
        self, value: Value, cls: Class, attr: str, node: ast.AST, module: Module
    ) -> list[Value]:
        bindings = cls.module.table.scopes[cls.node].bindings.get(attr, [])
        return [v for binding in bindings for v in self._class_binding(binding, cls, value)]


def _is_global_store(binding: Binding, module: Module) -> bool:
    """Bound by a statement inside a function through ``global``."""
    return module.table.scope_of(binding.node).function() is not None


def _frame_of(function: ast.AST, frame: Frame | None) -> Frame | None:
    while frame is not None and frame.function is not function:
        frame = frame.parent
    return frame


def exits(
    function: ast.FunctionDef | ast.AsyncFunctionDef, module: Module
) -> tuple[list[ast.Return], bool]:
    """The return statements of a function, nested functions excluded, and whether it yields."""
    table = module.table
    return table.returns.get(function, []), function in table.generators
