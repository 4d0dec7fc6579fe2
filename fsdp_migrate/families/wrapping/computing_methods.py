"""What the methods of a model's class do: which compute, and what with.

A method computes when it runs submodules or uses parameters, itself or by a method that it calls.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from fsdp_migrate.analysis.module import Module
from fsdp_migrate.analysis.values import Class, Function, Made, Value, Values
from fsdp_migrate.families.wrapping.module_values import Kind, ModuleValues
from fsdp_migrate.families.wrapping.wrapped_modules import models_made, originals
from fsdp_migrate.syntax.expressions import first_argument, given_arguments, last_name
from fsdp_migrate.syntax.kinds import of_kind

if TYPE_CHECKING:
    from fsdp_migrate.planning.context import Study

FunctionNode = ast.FunctionDef | ast.AsyncFunctionDef

# nn.Module's own methods: they run on parameters, never on inputs.
MODULE_API = frozenset(
    (
        *("forward", "train", "eval", "to", "to_empty", "cuda", "cpu", "xpu", "half", "float"),
        *("double", "bfloat16", "type", "apply", "requires_grad_", "zero_grad", "share_memory"),
        *("parameters", "named_parameters", "buffers", "named_buffers", "children", "modules"),
        *("named_children", "named_modules", "state_dict", "load_state_dict", "extra_repr"),
        *("register_buffer", "register_parameter", "register_module", "add_module", "compile"),
        *("register_forward_hook", "register_forward_pre_hook", "register_full_backward_hook"),
        *("get_parameter", "get_buffer", "get_submodule", "get_extra_state", "set_extra_state"),
    )
)
# Methods of models from outside that compute.
COMPUTING = re.compile(r"^(forward\w*|generate|encode\w*|decode\w*|get_\w+_features)$")
AROUND = frozenset({"zip", "enumerate", "list", "tuple", "reversed", "iter", "next"})
HANDS_OUT = frozenset({"items", "values", "children", "named_children", "modules"})
# What can be asked of a parameter, or done with it, without computing.
ABOUT = frozenset(
    (
        *("numel", "nelement", "size", "dim", "ndimension", "stride", "element_size", "data_ptr"),
        *("is_contiguous", "get_device", "type", "storage", "untyped_storage", "backward"),
        *("register_hook", "tolist", "item", "numpy"),
    )
)
# Views and copies of a parameter are still nothing but the parameter.
SAME = frozenset(
    (
        *("T", "mT", "data", "t", "transpose", "view", "reshape", "to", "float", "half", "double"),
        *("bfloat16", "cpu", "cuda", "detach", "clone", "contiguous", "unsqueeze", "squeeze"),
        *("expand", "expand_as", "permute", "flatten", "type_as", "repeat"),
    )
)
OPERATIONS = frozenset(
    {"matmul", "mm", "bmm", "mul", "add", "sub", "div", "dot", "addmm", "einsum"}
)
NO_OPERATION = re.compile(
    r"^torch\.(nn\.init\.|nn\.(parameter\.)?Parameter$|is_|save$|numel$|\w+_like$)"
)
LEAVES = frozenset({"weight", "bias", "in_proj_weight", "in_proj_bias"})


@dataclass
class Use:
    """What a method does with ``self``, and which other methods of ``self`` it mentions."""

    function: FunctionNode
    runs: bool = False  # submodules, or forward
    uses: bool = False  # parameters themselves
    reads: bool = False  # one parameter alone, which a piece of it would allow as well
    calls_self: bool = False
    with_computed: bool = False  # of those calls, one takes something other than an input
    dynamic: bool = False  # it calls methods by names that are computed
    further: list[tuple[Class, FunctionNode]] = field(default_factory=list)

    @property
    def computes(self) -> bool:
        """Whether it needs parameters that are gathered before it is called."""
        return self.runs or self.uses


class Methods:
    """Answers about the methods of one project's classes."""

    def __init__(self, study: Study) -> None:
        self.study = study
        self.attributes = ModuleValues(study)
        self._direct: dict[tuple[ast.ClassDef, FunctionNode], Use] = {}

    def find(
        self, cls: Class, name: str, above: Class | None = None
    ) -> tuple[Class, FunctionNode] | None:
        """The method that an instance of ``cls`` has under a name, if the project defines it.

        With ``above``, the one that ``super()`` gives in a method of that class.
        """
        lineage = self.study.tracer.lineage(cls)
        nodes = [base.node for base in lineage]
        start = nodes.index(above.node) + 1 if above is not None and above.node in nodes else 0
        for base in lineage[start:]:
            for node in base.node.body:
                if isinstance(node, FunctionNode) and node.name == name:
                    return base, node
        return None

    def use(self, cls: Class, owner: Class, function: FunctionNode) -> Use:
        """What ``function`` does on an instance of ``cls``, with all the methods it calls."""
        result = Use(function)
        waiting, seen = [(owner, function)], {function}
        while waiting:
            direct = self._read(cls, *waiting.pop())
            result.runs |= direct.runs
            result.uses |= direct.uses
            result.reads |= direct.reads
            result.calls_self |= direct.calls_self
            # What a further method is given as its input may have been computed.
            result.with_computed |= direct.with_computed
            result.with_computed |= direct.calls_self and function is not direct.function
            result.dynamic |= direct.dynamic
            result.further += direct.further
            for base, further in direct.further:
                if further not in seen:
                    seen.add(further)
                    waiting.append((base, further))
        return result

    def _read(self, cls: Class, owner: Class, function: FunctionNode) -> Use:
        key = (cls.node, function)
        if key not in self._direct:
            self._direct[key] = use = Use(function)
            parameters = [*function.args.posonlyargs, *function.args.args]
            if parameters and not is_decorated(function, "staticmethod", "classmethod"):
                _Body(self, cls, owner, function, parameters[0].arg, use).read()
        return self._direct[key]

    def uses(self, receiver: ast.expr, name: str, module: Module) -> Iterator[Use]:
        """What a method does on the models that ``receiver`` may be."""
        for model in models_made(receiver, module, self.study):
            for cls in self.classes(model):
                found = self.find(cls, name)
                if found is not None:
                    yield self.use(cls, *found)

    def classes(self, model: Made) -> list[Class]:
        """The classes of the project that the module in an FSDP1 model may be of."""
        wrapped = first_argument(of_kind(model.node, ast.Call))
        if wrapped is None:
            return []
        values = self.study.tracer.evaluate(wrapped, model.module, model.frame)
        values = originals(values, self.study)
        found = [v.callee for v in values if isinstance(v, Made) and isinstance(v.callee, Class)]
        return list({cls.node: cls for cls in found}.values())


class _Body:
    """Reads one method: what it calls of its object, and which parameters it uses."""

    def __init__(
        self,
        methods: Methods,
        cls: Class,
        owner: Class,
        function: FunctionNode,
        this: str,
        use: Use,
    ) -> None:
        self.methods, self.cls, self.owner, self.use = methods, cls, owner, use
        self.function, self.this = function, this
        self.module = owner.module
        self.names: dict[str, Values] = {}  # local names of submodules and parameters

    def read(self) -> None:
        for node in ast.walk(self.function):
            self._bind(node)
        for node in ast.walk(self.function):
            if isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Load):
                self._mention(node)
            if isinstance(node, ast.Call):
                self._call(node)
            if isinstance(node, (ast.Attribute, ast.Name, ast.Subscript)):
                self._parameter(node)

    # -- names for submodules ---------------------------------------------------------------------

    def _bind(self, node: ast.AST) -> None:
        match node:
            case ast.Assign(targets=[ast.Name(id=name)], value=value):
                self._name(name, self.values(value))
            case ast.For(target=target, iter=iterated) | ast.AsyncFor(target=target, iter=iterated):
                self._loop(target, iterated)
            case ast.comprehension(target=target, iter=iterated):
                self._loop(target, iterated)

    def _loop(self, target: ast.expr, iterated: ast.expr) -> None:
        found = self.methods.attributes.elements(self.values(iterated))
        for node in ast.walk(target):
            if isinstance(node, ast.Name):
                self._name(node.id, found)

    def _name(self, name: str, found: Values) -> None:
        if self.methods.attributes.kind(found):
            self.names[name] = self.names.get(name, frozenset()) | found

    def values(self, node: ast.expr) -> Values:
        """The submodules or parameters that an expression stands for."""
        match node:
            case ast.Name(id=name) if name != self.this:
                return self.names.get(name, frozenset())
            case ast.Attribute(value=ast.Name(id=name)) if name == self.this:
                return self.methods.study.values(node, self.module)
            case ast.Attribute(value=inner, attr=attr):
                return self._attribute(self.values(inner), attr, node)
            case ast.Subscript(value=inner):
                return self.methods.attributes.elements(self.values(inner))
            case ast.Call(func=ast.Name(id=name), args=arguments) if name in AROUND:
                return frozenset(v for a in arguments for v in self.values(a))
            case ast.Call(func=ast.Attribute(value=inner, attr=attr)) if attr in HANDS_OUT:
                return self.values(inner)
            case ast.IfExp(body=first, orelse=second):
                return self.values(first) | self.values(second)
        return frozenset()

    def _attribute(self, found: Values, attr: str, node: ast.Attribute) -> Values:
        result: set[Value] = set()
        for value in found:
            if isinstance(value, Made) and isinstance(value.callee, Class):
                result |= self.methods.study.tracer.attribute(value, attr, node, self.module)
        return frozenset(result)

    # -- calls ------------------------------------------------------------------------------------

    def _mention(self, node: ast.Attribute) -> None:
        above = None
        match node.value:
            case ast.Name(id=name) if name == self.this:
                pass
            case ast.Call(func=ast.Name(id="super")):
                above = self.owner
            case _:
                return
        self.use.runs |= node.attr == "forward"
        self._further(node.attr, above)

    def _further(self, name: str, above: Class | None = None) -> None:
        found = self.methods.find(self.cls, name, above)
        if found is not None:
            self.use.further.append(found)

    def _is_input(self, node: ast.expr) -> bool:
        """Whether an argument is one of the method's own, or a part of one."""
        while isinstance(node, ast.Attribute | ast.Subscript | ast.Starred):
            node = node.value
        if isinstance(node, ast.Constant):
            return True
        inputs = {a.arg for a in ast.walk(self.function.args) if isinstance(a, ast.arg)}
        stored = (
            n.id
            for n in ast.walk(self.function)
            if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Store)
        )
        return isinstance(node, ast.Name) and node.id in inputs - set(stored)

    def _call(self, call: ast.Call) -> None:
        match call.func:
            case ast.Name(id=name) if name == self.this:
                self.use.calls_self = True
                given = given_arguments(call)
                self.use.with_computed |= not all(map(self._is_input, given))
            case ast.Name(id="getattr") if self._is_this(call.args[:1]):
                wanted = call.args[1] if len(call.args) > 1 else None
                if isinstance(wanted, ast.Constant):
                    self._further(str(wanted.value))
                else:
                    self.use.dynamic = True
        name = last_name(call.func)
        if "checkpoint" in name or name == "functional_call":
            self.use.runs |= any(self._is_module(a) for a in call.args)
        if self._is_module(call.func):
            self.use.runs = True
        elif isinstance(call.func, ast.Attribute) and name not in MODULE_API:
            for value in self.values(call.func.value):
                self.use.runs |= self._computes(value, name)

    def _computes(self, value: Value, name: str) -> bool:
        """Whether a method of a submodule computes."""
        match value:
            case Made(callee=Class() as cls):
                found = self.methods.find(cls, name)
                if found is not None:
                    return self.methods.use(cls, *found).computes
        of_module = self.methods.attributes.kind(frozenset({value})) is Kind.MODULE
        return of_module and COMPUTING.match(name) is not None

    def _is_this(self, arguments: list[ast.expr]) -> bool:
        return any(isinstance(a, ast.Name) and a.id == self.this for a in arguments)

    def _is_module(self, node: ast.expr) -> bool:
        return self.methods.attributes.kind(self.values(node)) is Kind.MODULE

    # -- parameters -------------------------------------------------------------------------------

    def _parameter(self, node: ast.expr) -> None:
        leaf = isinstance(node, ast.Attribute) and node.attr in LEAVES
        leaf = leaf and isinstance(node, ast.Attribute) and self._is_module(node.value)
        if leaf or self.methods.attributes.kind(self.values(node)) is Kind.PARAMETER:
            self._climb(node)

    def _climb(self, node: ast.expr) -> None:
        """Follow a parameter outwards to what is done with it."""
        child: ast.AST = node
        for parent in self.module.table.ancestors(node):
            match parent:
                case ast.Attribute(attr=attr):
                    if attr not in SAME:
                        call = self.module.table.parents[parent]
                        called = isinstance(call, ast.Call) and call.func is parent
                        if called and attr not in ABOUT and not attr.endswith("_"):
                            call = of_kind(call, ast.Call)
                            self._computed(call.args)
                        return
                case ast.Call(func=func, args=arguments) if func is not child:
                    if self._is_operation(func):
                        self._computed([a for a in arguments if a is not child])
                    return
                case ast.BinOp(left=left, right=right):
                    self._computed([right if left is child else left])
                    return
                case ast.Subscript(value=value) if value is not child:
                    return
                case ast.Call() | ast.Subscript() | ast.UnaryOp() | ast.Starred() | ast.IfExp():
                    pass
                case ast.List() | ast.Tuple():
                    pass
                case _:
                    return
            child = parent

    def _computed(self, others: Sequence[ast.expr]) -> None:
        self.use.uses = True
        self.use.reads |= all(isinstance(o, ast.Constant) for o in others)

    def _is_operation(self, func: ast.expr) -> bool:
        names = self.methods.study.external(func, self.module)
        if names:
            return any(n.startswith("torch.") and not NO_OPERATION.match(n) for n in names)
        values = self.methods.study.values(func, self.module)
        return last_name(func) in OPERATIONS or any(isinstance(v, Function) for v in values)


def is_decorated(function: FunctionNode, *names: str) -> bool:
    decorators = [d.func if isinstance(d, ast.Call) else d for d in function.decorator_list]
    return any(last_name(d) in names for d in decorators)
