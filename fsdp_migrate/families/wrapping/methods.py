"""Methods other than ``forward`` that compute with the parameters of a sharded model.

FSDP2's hooks run when a module is called. A method that is called from outside and computes by
itself (``model.encode(x)``, a ``generate`` that calls ``self.forward``) meets shards, unless
``register_fsdp_forward_method`` puts the hooks around it. FSDP1 gathered nothing for such methods
either: what runs there computes with wrapped children only, or is not sharded (``NO_SHARD``).

What a method does is read off its class, as far as that is in the project. Where this cannot be
told, nothing is registered, as in FSDP1: a method that gathers parameters is a collective, and one
that needs none may be called by some ranks only.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from enum import IntEnum
from typing import TYPE_CHECKING

from packaging.version import Version

from fsdp_migrate.analysis.flow import access_path
from fsdp_migrate.analysis.module import Module
from fsdp_migrate.analysis.values import Class, Display, External, Function, Made, Value, Values
from fsdp_migrate.families.wrapping import roles
from fsdp_migrate.fsdp1 import api as fsdp1
from fsdp_migrate.fsdp1.references import models
from fsdp_migrate.fsdp1.site import Site
from fsdp_migrate.planning.edits import Code, Proposal, code
from fsdp_migrate.planning.model import Constructor
from fsdp_migrate.planning.shard_plan import FULLY_SHARD, ShardPlan, placement_problem
from fsdp_migrate.syntax.trees import FUNCTIONS

if TYPE_CHECKING:
    from fsdp_migrate.planning.context import Study

CONSTRUCT = "entry method"
REGISTER = "register_fsdp_forward_method"

# Where the inner call is given something that requires gradients, its backward ends the unit's,
# and what the outer one computed before is never reduced.
# Measured on 2.7.1 (lost) and 2.13.0 (reduced).
NESTING = Version("2.13")
SUMMON = f"{fsdp1.FSDP}.summon_full_params"
INNER = frozenset({"module", "_fsdp_wrapped_module"})  # the wrapped module, by its wrapper
CALLERS_DEEP = 3

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
MODULE_BASES = ("torch.nn.Module", "torch.nn.modules.module.Module")
PARAMETER = re.compile(r"^torch\.nn\.(parameter\.)?(Parameter|ParameterList|ParameterDict)$")
# Layers of torch.nn that have parameters, and what holds layers.
LAYER = re.compile(
    r"^torch\.nn\.(modules\.\w+\.)?(Lazy)?(Linear|Bilinear|NonDynamicallyQuantizableLinear|Conv\w+"
    r"|Embedding\w*|\w*Norm\w*|MultiheadAttention|Transformer\w*|RNN\w*|LSTM\w*|GRU\w*|PReLU"
    r"|AdaptiveLogSoftmaxWithLoss|ModuleList|ModuleDict|Sequential)$|^torch\.nn\.utils\."
)
SEQUENTIAL = re.compile(r"^torch\.nn\.(modules\.container\.)?Sequential$")
# Libraries of models, and what in them is none.
LIBRARIES = frozenset(
    (
        *("transformers", "timm", "peft", "diffusers", "torchvision", "open_clip", "clip"),
        *("sentence_transformers", "xformers", "flash_attn", "apex", "torch_geometric", "monai"),
    )
)
NO_MODEL = re.compile(r"token|process|extract|schedul|transform[s.]|config|loss|metric", re.I)
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
CONTAINER = re.compile(r"^torch\.nn\.(modules\.container\.)?(Sequential|ModuleList|ModuleDict)$")
LEAVES = frozenset({"weight", "bias", "in_proj_weight", "in_proj_bias"})


class Kind(IntEnum):
    NOTHING = 0
    MODULE = 1  # with parameters
    PARAMETER = 2


@dataclass
class Use:
    """What a method does with its own object, and which further methods of it it mentions."""

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


@dataclass(eq=False)
class Entry:
    """A method that computes and is called on sharded models from outside their class."""

    name: str
    site: Site  # the first place
    cls: Class
    function: FunctionNode
    use: Use
    made: dict[ast.Call, Module] = field(default_factory=dict)  # the calls that made the models
    everywhere: bool = True  # all models that these calls make have it
    in_forward: bool = False  # forward may call it as well
    nested: bool = False  # one of the methods may call the other, or the model
    inside: bool = False  # with something that it has computed

    @property
    def has_inputs(self) -> bool:
        args = self.function.args
        named = [*args.posonlyargs, *args.args, *args.kwonlyargs]
        return len(named) > 1 or args.vararg is not None or args.kwarg is not None


# -- what methods do ------------------------------------------------------------------------------


class Methods:
    """Answers about the methods of one project's classes."""

    def __init__(self, study: Study) -> None:
        self.study = study
        self._direct: dict[tuple[ast.ClassDef, FunctionNode], Use] = {}
        self._parametric: dict[ast.ClassDef, bool] = {}

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
            if parameters and not _decorated(function, "staticmethod", "classmethod"):
                _Body(self, cls, owner, function, parameters[0].arg, use).read()
        return self._direct[key]

    def uses(self, receiver: ast.expr, name: str, module: Module) -> Iterator[Use]:
        """What a method does on the models that ``receiver`` may be."""
        for model in _made(receiver, module, self.study):
            for cls in self.classes(model):
                found = self.find(cls, name)
                if found is not None:
                    yield self.use(cls, *found)

    def classes(self, model: Made) -> list[Class]:
        """The classes of the project that the module in an FSDP1 model may be of."""
        assert isinstance(model.node, ast.Call)
        wrapped = _given(model.node)
        if wrapped is None:
            return []
        values = self.study.tracer.evaluate(wrapped, model.module, model.frame)
        found = [v.callee for v in values if isinstance(v, Made) and isinstance(v.callee, Class)]
        return list({cls.node: cls for cls in found}.values())

    # -- what attributes are ----------------------------------------------------------------------

    def kind(self, values: Values, depth: int = 0) -> Kind:
        """The most that an attribute's values may be."""
        return max((self._kind(v, depth) for v in values), default=Kind.NOTHING)

    def _kind(self, value: object, depth: int) -> Kind:
        match value:
            case Made(callee=Class() as cls):
                return Kind.MODULE if self._has_parameters(cls, depth) else Kind.NOTHING
            case Made(callee=External(name=name)):
                return self._external(value, name, depth)
        return Kind.NOTHING

    def _external(self, value: Made, name: str, depth: int) -> Kind:
        if PARAMETER.match(name):
            return Kind.PARAMETER
        if fsdp1.canonical(name) == fsdp1.FSDP:
            return Kind.MODULE
        if SEQUENTIAL.match(name) and isinstance(value.node, ast.Call):
            listed = value.node.args
            if depth < 5 and listed and not any(isinstance(a, ast.Starred) for a in listed):
                evaluate = self.study.tracer.evaluate
                parts = [evaluate(a, value.module, value.frame) for a in listed]
                return max(self.kind(part, depth + 1) for part in parts)
        if LAYER.match(name):
            return Kind.MODULE
        library = name.split(".", maxsplit=1)[0] in LIBRARIES
        return Kind.MODULE if library and not NO_MODEL.search(name) else Kind.NOTHING

    def _has_parameters(self, cls: Class, depth: int) -> bool:
        known = self._parametric.get(cls.node)
        if known is None and depth < 5:
            self._parametric[cls.node] = False
            known = self._parametric[cls.node] = self._find_parameters(cls, depth)
        return bool(known)

    def _find_parameters(self, cls: Class, depth: int) -> bool:
        bases = self.study.tracer.external_bases(cls)
        if not any(b.startswith("torch.nn.") or b.split(".")[0] in LIBRARIES for b in bases):
            return False
        if any(b not in MODULE_BASES for b in bases):
            return any(LAYER.match(b) or b.split(".")[0] in LIBRARIES for b in bases)
        for owner in self.study.tracer.lineage(cls):
            for node in ast.walk(owner.node):
                if not isinstance(node, ast.Assign) or not isinstance(node.value, ast.Call):
                    continue
                stored = any(isinstance(t, (ast.Attribute, ast.Subscript)) for t in node.targets)
                if stored and node.value in owner.module.table.parents:
                    values = self.study.values(node.value, owner.module)
                    if self.kind(values, depth + 1):
                        return True
        return False

    def elements(self, values: Values) -> Values:
        """What containers of modules hold; a container that tells nothing stands for itself."""
        found: set[Value] = set()
        for value in values:
            inside = set(self._elements(value)) if isinstance(value, Made) else set()
            found |= inside or {value}
        return frozenset(found)

    def _elements(self, container: Made) -> Iterator[Value]:
        if not CONTAINER.match(container.made_by) or not isinstance(container.node, ast.Call):
            return
        for argument in container.node.args:
            node = argument.value if isinstance(argument, ast.Starred) else argument
            for value in self.study.tracer.evaluate(node, container.module, container.frame):
                yield from self._displayed(value)

    def _displayed(self, value: Value) -> Iterator[Value]:
        evaluate = self.study.tracer.evaluate
        match value:
            case Display(node=ast.List(elts=nodes) | ast.Tuple(elts=nodes)):
                pass
            case Display(node=ast.ListComp(elt=node) | ast.GeneratorExp(elt=node)):
                nodes = [node]
            case Display(node=ast.Dict(values=nodes)):
                pass
            case Display(node=ast.DictComp(value=node)):
                nodes = [node]
            case _:
                yield value
                return
        for node in nodes:
            yield from evaluate(node, value.module, value.frame)


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
        found = self.methods.elements(self.values(iterated))
        for node in ast.walk(target):
            if isinstance(node, ast.Name):
                self._name(node.id, found)

    def _name(self, name: str, found: Values) -> None:
        if self.methods.kind(found):
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
                return self.methods.elements(self.values(inner))
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
                given = [*call.args, *(k.value for k in call.keywords)]
                self.use.with_computed |= not all(map(self._is_input, given))
            case ast.Name(id="getattr") if self._is_this(call.args[:1]):
                wanted = call.args[1] if len(call.args) > 1 else None
                if isinstance(wanted, ast.Constant):
                    self._further(str(wanted.value))
                else:
                    self.use.dynamic = True
        name = _last(call.func)
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
        of_module = self.methods.kind(frozenset({value})) is Kind.MODULE
        return of_module and COMPUTING.match(name) is not None

    def _is_this(self, arguments: list[ast.expr]) -> bool:
        return any(isinstance(a, ast.Name) and a.id == self.this for a in arguments)

    def _is_module(self, node: ast.expr) -> bool:
        return self.methods.kind(self.values(node)) is Kind.MODULE

    # -- parameters -------------------------------------------------------------------------------

    def _parameter(self, node: ast.expr) -> None:
        leaf = isinstance(node, ast.Attribute) and node.attr in LEAVES
        leaf = leaf and isinstance(node, ast.Attribute) and self._is_module(node.value)
        if leaf or self.methods.kind(self.values(node)) is Kind.PARAMETER:
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
                            assert isinstance(call, ast.Call)
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
        return _last(func) in OPERATIONS or any(isinstance(v, Function) for v in values)


def _last(node: ast.expr) -> str:
    return node.attr if isinstance(node, ast.Attribute) else getattr(node, "id", "")


def _decorated(function: FunctionNode, *names: str) -> bool:
    decorators = [d.func if isinstance(d, ast.Call) else d for d in function.decorator_list]
    return any(_last(d) in names for d in decorators)


# -- where they are called ------------------------------------------------------------------------


def entries(study: Study) -> list[Entry]:
    """The methods of sharded models that compute and are called from outside their class."""
    return study.cache(_find_entries)


def _find_entries(study: Study) -> list[Entry]:
    methods = Methods(study)
    wanted = {name for c in study.constructors.values() for name in _method_names(c, methods)}
    found: dict[FunctionNode, Entry] = {}
    for module in study.project.modules if wanted else ():
        for attribute in module.table.attributes:
            if attribute.attr not in wanted or not isinstance(attribute.ctx, ast.Load):
                continue
            _add(attribute, module, methods, found)
    computing = [e for e in found.values() if e.use.computes]
    for entry in computing:
        forward = methods.find(entry.cls, "forward")
        if forward is not None:
            entry.in_forward = _may_call(methods.use(entry.cls, *forward), entry)
        others = [e for e in computing if e is not entry and e.made.keys() & entry.made.keys()]
        called = any(_may_call(e.use, entry) for e in others)
        entry.nested = called or entry.use.calls_self
        entry.inside = called or entry.use.with_computed
    return computing


def _method_names(constructor: Constructor, methods: Methods) -> set[str]:
    """The methods that models of a constructor may have, by the classes in the project."""
    values = {
        value
        for wrapped, module in wrapped_by(constructor, methods.study)
        for value in methods.study.values(wrapped, module)
    }
    classes = [v.callee for v in values if isinstance(v, Made) and isinstance(v.callee, Class)]
    return {
        node.name
        for cls in classes
        for base in methods.study.tracer.lineage(cls)
        for node in base.node.body
        if isinstance(node, FunctionNode)
        and node.name not in MODULE_API
        and not node.name.startswith("__")
        and not _decorated(node, "staticmethod", "classmethod", "property", "cached_property")
    }


def wrapped_by(constructor: Constructor, study: Study) -> Iterator[tuple[ast.expr, Module]]:
    """What a constructor wraps; of a partial, what the calls of it are given."""
    if "module" in constructor.arguments:
        yield constructor.wrapped, constructor.module
    elif constructor.reference in constructor.call.args:
        for module in study.project.modules:
            for call in module.table.calls:
                wrapped = _given(call)
                if wrapped is None or isinstance(call.func, ast.Call):
                    continue
                if any(v.node is constructor.call for v in study.values(call.func, module)):
                    yield wrapped, module


def _given(call: ast.Call) -> ast.expr | None:
    """The module that a call of a constructor, or of a partial of one, is given."""
    named = [k.value for k in call.keywords if k.arg == "module"]
    first = call.args[0] if call.args else None
    return named[0] if named else first if not isinstance(first, ast.Starred) else None


def unwrapped(node: ast.expr) -> ast.expr:
    """``model`` of ``model.module``."""
    while isinstance(node, ast.Attribute) and node.attr in INNER:
        node = node.value
    return node


def _made(receiver: ast.expr, module: Module, study: Study) -> list[Made]:
    """The sharded models that an expression may be, as far as their making is seen.

    Not those of a class of the project's own around the module: its methods are no part of that,
    and what it hands on to the module runs past its hooks, as it did in FSDP1.
    """
    found = models(study.values(unwrapped(receiver), module), study.tracer)
    made = ((m, list(study.made_by(m))) for m in found if isinstance(m.node, ast.Call))
    return [m for m, by in made if by and not any(c.keeps_class for c in by)]


def _add(
    attribute: ast.Attribute, module: Module, methods: Methods, found: dict[FunctionNode, Entry]
) -> None:
    study = methods.study
    receiver = unwrapped(attribute.value)
    made = _made(receiver, module, study)
    if not made or _is_gathered(attribute, module, study, CALLERS_DEEP):
        return
    for model in made:
        assert isinstance(model.node, ast.Call)
        for cls in methods.classes(model):
            method = methods.find(cls, attribute.attr)
            if method is None:
                continue
            owner, function = method
            if function not in found:
                call = module.table.parents[attribute]
                called = isinstance(call, ast.Call) and call.func is attribute
                site = Site(CONSTRUCT, module, call if called else attribute, attribute, receiver)  # type: ignore[arg-type]
                use = methods.use(cls, owner, function)
                found[function] = Entry(attribute.attr, site, cls, function, use)
            entry = found[function]
            entry.made[model.node] = model.module
            entry.everywhere &= _all_have(attribute.attr, model, methods)


def _all_have(name: str, model: Made, methods: Methods) -> bool:
    """Whether whatever is wrapped where a model was made has a method of that name."""
    assert isinstance(model.node, ast.Call)
    wrapped = _given(model.node)
    for value in methods.study.values(wrapped, model.module) if wrapped is not None else ():
        known = isinstance(value, Made) and isinstance(value.callee, Class)
        if not known or methods.find(value.callee, name) is None:  # type: ignore[attr-defined]
            return False
    return wrapped is not None


def _is_gathered(node: ast.AST, module: Module, study: Study, depth: int) -> bool:
    """Whether ``node`` only runs while ``summon_full_params`` gathers the parameters."""
    for parent in module.table.ancestors(node):
        for item in parent.items if isinstance(parent, (ast.With, ast.AsyncWith)) else ():
            for value in study.values(item.context_expr, module):
                if isinstance(value, Made) and fsdp1.canonical(value.made_by) == SUMMON:
                    return True
        if isinstance(parent, FUNCTIONS) and depth:
            callers = study.tracer.callers(parent, module)
            return bool(callers) and all(
                _is_gathered(c.call, c.module, study, depth - 1) for c in callers
            )
    return False


def _may_call(use: Use, entry: Entry) -> bool:
    return use.dynamic or any(function is entry.function for _, function in use.further)


# -- what is written ------------------------------------------------------------------------------


def problem(entry: Entry, study: Study) -> tuple[str, str]:
    """Why an entry is not registered, and what to do by hand; nothing when it is."""
    name = entry.name
    by_hand = f'call {REGISTER}(model, "{name}") after wrapping'
    if isinstance(entry.function, ast.AsyncFunctionDef) or _yields(entry.function):
        return (
            f"{name}() goes on after FSDP2's hooks are over",
            "register a method that returns what it computes",
        )
    if entry.in_forward:
        return (
            f"forward() may call {name}() too, so it gets no hooks of its own: as in FSDP1, it "
            "must compute with wrapped children only",
            "where it does not, register a method that only calls it",
        )
    if not entry.everywhere:
        return f"other models may be wrapped where this one is, without {name}()", by_hand
    for call, module in entry.made.items():
        constructor = _constructor(call, module, study)
        # Only a root keeps its parameters when a call inside the method ends.
        if entry.nested and roles.role(constructor, study) is not roles.Role.ROOT:
            return (
                f"{name}() and another call of the model stand in each other, and the inner one "
                "frees the parameters of a part",
                "register a method that does all of it",
            )
        if entry.inside and study.target < NESTING and not _without_gradients(entry.function):
            return (
                f"{name}() and another call of the model stand in each other, and torch before "
                f"{NESTING} loses gradients of the outer one",
                "register a method that does all of it",
            )
        written = call is constructor.call and call not in study.run_time
        statement = module.table.statement(call)
        obstacle = placement_problem(constructor) if written else _obstacle(statement, call)
        if _target(statement, call, study) is not None:
            obstacle = ""
        if obstacle:
            return f"nothing can follow the wrapping, because {obstacle}", by_hand
    return "", ""


def _without_gradients(function: FunctionNode) -> bool:
    """Whether a decorator says that nothing of this method is differentiated."""
    decorators = (d.func if isinstance(d, ast.Call) else d for d in function.decorator_list)
    return any(ast.unparse(d).split(".")[-1] in {"no_grad", "inference_mode"} for d in decorators)


def review(entry: Entry, study: Study) -> str:
    """What may differ once an entry is registered."""
    if entry.use.reads:
        return f"{entry.name}() now computes with whole parameters, in FSDP1 it saw flat pieces"
    if entry.has_inputs and casts_inputs(constructors(entry, study), study):
        return (
            f"under mixed precision, floating-point inputs of {entry.name}() are now cast to "
            "param_dtype"
        )
    return ""


def casts_inputs(models: Iterable[Constructor], study: Study) -> bool:
    """Whether some of these models cast what they are called with."""
    return any(
        (c.is_open or c.has("mixed_precision")) and roles.role(c, study) is not roles.Role.PART
        for c in models
    )


def _constructor(call: ast.Call, module: Module, study: Study) -> Constructor:
    made = Made(call, module, callee=External(call, module, name=FULLY_SHARD))
    return next(study.made_by(made))


def constructors(entry: Entry, study: Study) -> frozenset[Constructor]:
    return frozenset(_constructor(call, module, study) for call, module in entry.made.items())


def _names(call: ast.Call, study: Study) -> list[str]:
    """The methods to register on the model that a call makes."""
    return [e.name for e in entries(study) if call in e.made and not problem(e, study)[0]]


def plan_registration(plan: ShardPlan, study: Study) -> None:
    """Register the entry methods of a model, first of all that follows its sharding."""
    constructor = plan.constructor
    names = _names(constructor.call, study)
    if not names:
        return
    register = plan.name(FULLY_SHARD, REGISTER)
    if not placement_problem(constructor):
        plan.after[:0] = [_registration(register, plan.model, name) for name in names]
        return
    target = _target(constructor.statement, constructor.call, study)
    assert target is not None
    lines = [_registration(register, ast.unparse(target), name) for name in names]
    plan.proposal.insert_after(constructor.module, constructor.statement, *lines)


def _registration(register: str, model: Code | str, name: str) -> Code:
    return code('{r}({m}, "{n}")', r=register, m=model, n=name)


def register_made(constructor: Constructor, proposal: Proposal, study: Study) -> None:
    """As :func:`plan_registration`, behind the calls that make a model in the run-time form."""
    calls = {
        call: module
        for entry in entries(study)
        for call, module in entry.made.items()
        if _constructor(call, module, study) is constructor
    }
    for call, module in calls.items():
        names = _names(call, study)
        if not names:
            continue
        statement = module.table.statement(call)
        register = proposal.name(module, FULLY_SHARD, REGISTER, call)
        if isinstance(statement, ast.Return):
            wrapped = _given(call)
            named = isinstance(wrapped, ast.Name)
            model = wrapped.id if named else proposal.fresh(module, call, "model")  # type: ignore[union-attr]
            lines = [_registration(register, model, name) for name in names]
            made = code("{m} = {c}", m=model, c=call)
            back = code("return {m}", m=model)
            proposal.replace_statement(module, statement, made, *lines, back)
        else:
            target = _target(statement, call, study)
            assert target is not None
            model = ast.unparse(target)
            lines = [_registration(register, model, name) for name in names]
            proposal.insert_after(module, statement, *lines)


def _obstacle(statement: ast.stmt, call: ast.Call) -> str:
    returned = isinstance(statement, ast.Return) and statement.value is call
    return "" if returned else "it is a part of a larger expression"


def _target(statement: ast.stmt, call: ast.Call, study: Study) -> ast.expr | None:
    """The name or path that a statement gives to what ``call`` makes, if it runs.

    ``model = FSDP(net) if sharded else net``: registering does nothing to a model that is not
    sharded.
    """
    if isinstance(statement, ast.Assign) and len(statement.targets) == 1:
        target = statement.targets[0]
    elif isinstance(statement, ast.AnnAssign):
        target = statement.target
    else:
        return None
    value = statement.value
    if isinstance(value, ast.IfExp) and call in (value.body, value.orelse):
        other = value.orelse if call is value.body else value.body
        if not any(node in study.constructors for node in ast.walk(other)):
            value = call
    return target if value is call and access_path(target) is not None else None


def _yields(function: FunctionNode) -> bool:
    waiting: list[ast.AST] = list(function.body)
    while waiting:
        node = waiting.pop()
        if isinstance(node, (ast.Yield, ast.YieldFrom)):
            return True
        if not isinstance(node, (*FUNCTIONS, ast.ClassDef)):
            waiting.extend(ast.iter_child_nodes(node))
    return False
