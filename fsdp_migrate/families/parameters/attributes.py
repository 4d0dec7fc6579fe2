"""What projects set on parameters: ``p._no_weight_decay = True``, read when groups are made.

FSDP1 with ``use_orig_params=True`` keeps the parameters with all that is set on them (without it
they go into flat ones, and nothing stays). ``fully_shard`` makes new ones: unless it is carried
over, what reads it finds nothing, and the parameter groups are others, without an error.
"""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator

from fsdp_migrate.analysis.module import Module
from fsdp_migrate.analysis.values import Class, Made, Unknown
from fsdp_migrate.families.parameters.parameter_loops import METHODS
from fsdp_migrate.families.wrapping import model_contents
from fsdp_migrate.fsdp1.construct import Construct
from fsdp_migrate.fsdp1.model_values import definitions
from fsdp_migrate.fsdp1.site import Site
from fsdp_migrate.planning.context import Study
from fsdp_migrate.planning.edits import Code, code, join
from fsdp_migrate.planning.model import Constructor
from fsdp_migrate.planning.shard_plan import ShardPlan
from fsdp_migrate.syntax.scopes import Kind

CONSTRUCT = Construct.parse("parameter attribute")
# Attributes of a tensor that are not kept in its ``__dict__``.
TENSORS = frozenset({"data", "grad", "requires_grad", "names", "real", "imag"})
# And those that cannot be set: what they are assigned to is no parameter.
READ_ONLY = frozenset(
    {"H", "T", "mH", "mT", "device", "dtype", "grad_fn", "is_leaf", "itemsize", "layout", "name"}
    | {
        "nbytes",
        "ndim",
        "output_nr",
        "retains_grad",
        "shape",
        "is_meta",
        "is_nested",
        "is_quantized",
    }
    | {"is_cpu", "is_cuda", "is_mps", "is_xla", "is_xpu", "is_mkldnn", "is_sparse", "is_sparse_csr"}
)
# What stands in a path to something that a mock makes up.
MADE_UP = frozenset({"return_value", "side_effect"})
PARAMETER = frozenset({"torch.nn.Parameter", "torch.nn.parameter.Parameter"})
ONE_LINE = 72  # characters that fit behind a name and some indentation
LAYERS = frozenset({"weight", "bias"})


def find_parameter_attributes(study: Study) -> Iterator[Site]:
    """Sites for attributes that are set on parameters of FSDP models, and read somewhere."""
    if all(keeps_attributes(c, study) is None for c in study.constructors.values()):
        return
    modules = [*study.project.modules, *_defining(study)]
    mentioned = _mentioned(modules)
    stores = [
        (module, node, owner, name)
        for module in modules
        for node, owner, name in _stores(module)
        if name in mentioned
        and name not in TENSORS | READ_ONLY
        and _may_be_parameter(owner, module, study)
    ]
    read = _read({name for _, _, _, name in stores}, modules, study) if stores else set()
    for module, node, owner, name in stores:
        if name not in read:
            continue
        site = Site(CONSTRUCT, module, node, node, owner)
        if any(keeps_attributes(c, study) is not None for c in models_concerned(site, study)):
            yield site


def _defining(study: Study) -> list[Module]:
    """The library modules that define parts of models whose parameters FSDP1 keeps."""
    found: dict[Module, None] = {}
    for constructor in study.constructors.values():
        if constructor.has_module and keeps_attributes(constructor, study) is not None:
            parts = model_contents.contents(constructor.wrapped, constructor.module, study)
            found |= dict.fromkeys(cls.module for cls in parts.classes)
    return [module for module in found if module not in study.project.modules]


def _stores(module: Module) -> Iterator[tuple[ast.expr, ast.expr, str]]:
    """Every ``owner.name = ...`` and ``setattr(owner, "name", ...)``."""
    for attribute in module.table.stored_attributes:
        yield attribute, attribute.value, attribute.attr
    for call in module.table.calls_by_name.named("setattr"):
        match call:
            case ast.Call(
                func=ast.Name(id="setattr"), args=[owner, ast.Constant(value=str(name)), _]
            ):
                yield call, owner, name


def _mentioned(modules: Iterable[Module]) -> set[str]:
    """The attributes that are read, or may be, from whatever object."""
    found: set[str] = set()
    for module in modules:
        found |= {str(s.value) for s in module.table.strings}
        found |= {a.attr for a in module.table.attributes if isinstance(a.ctx, ast.Load)}
    return found


def _read(names: set[str], modules: Iterable[Module], study: Study) -> set[str]:
    """Those of some attributes that the project reads from what may be a parameter."""
    found: set[str] = set()
    for module in modules:
        for call in module.table.calls_by_name.of(("getattr", "hasattr")):
            match call:
                case ast.Call(
                    func=ast.Name(id="getattr" | "hasattr"),
                    args=[_, ast.Constant(value=str(name)), *_],
                ) if name in names:
                    found.add(name)
        for attribute in module.table.attributes_by_name.of(names):
            name = attribute.attr
            if name in found or not isinstance(attribute.ctx, ast.Load):
                continue
            spelled = "param" in ast.unparse(attribute.value)
            if spelled or _may_be_parameter(attribute.value, module, study):
                found.add(name)
    return found


def _may_be_parameter(node: ast.expr, module: Module, study: Study) -> bool:
    if isinstance(node, ast.Attribute) and node.attr in LAYERS:
        return not _is_mocked(node, module, study)
    if isinstance(node, ast.Name) and node.id in {"self", "cls"}:
        return False
    if isinstance(node, ast.Call):  # getattr(self, name)
        return isinstance(node.func, ast.Name) and node.func.id == "getattr"
    if _loop(node, module) is not None:
        return True
    values = study.values(node, module)
    return any(isinstance(v, Made) and v.made_by in PARAMETER for v in values)


def _is_mocked(node: ast.expr, module: Module, study: Study) -> bool:
    """Whether an expression certainly is a mock, or a part of one."""
    while isinstance(node, (ast.Attribute, ast.Subscript, ast.Call)):
        if isinstance(node, ast.Attribute) and node.attr in MADE_UP:
            return True
        node = node.func if isinstance(node, ast.Call) else node.value
    values = study.values(node, module)
    return bool(values) and all(
        isinstance(v, Made) and v.made_by.startswith(("unittest.mock.", "mock.")) for v in values
    )


def _loop(node: ast.expr, module: Module) -> ast.expr | None:
    """The model, if ``node`` is the variable of a loop over its parameters."""
    if not isinstance(node, ast.Name):
        return None
    for definition in definitions(node, module):
        if definition.kind is not Kind.ELEMENT or definition.value is None:
            continue
        for part in ast.walk(definition.value):
            method = part.func if isinstance(part, ast.Call) else None
            if isinstance(method, ast.Attribute) and method.attr in METHODS:
                return method.value
    return None


def attribute_sites(constructor: Constructor, study: Study) -> list[Site]:
    """The sites of attributes that a constructor's model keeps in FSDP1."""
    found = [] if study.found is None else study.found[0]
    if keeps_attributes(constructor, study) is None:
        return []
    return [
        s for s in found if s.construct == CONSTRUCT and constructor in models_concerned(s, study)
    ]


def keeps_attributes(constructor: Constructor, study: Study) -> bool | None:
    """Whether FSDP1 keeps what is set on parameters: True, False for perhaps, None for no."""
    node = constructor.arguments.get("use_orig_params")
    if node is None:
        return False if constructor.is_open else None
    flag = study.literal(node, constructor.module)
    if flag is None:
        return False
    return True if flag.value else None


def models_concerned(site: Site, study: Study) -> list[Constructor]:
    """The constructors of models that may have the parameter."""
    every = list(study.constructors.values())
    looped = _loop(site.subject, site.module)
    source = looped if looped is not None else site.subject
    owner = _class_around(source, site.module)
    if owner is not None:
        return [c for c in every if _may_hold(c, owner, study)]
    if looped is None:
        return every
    if study.traced(looped, site.module):
        return []  # set when the model is sharded already
    given = study.values(looped, site.module)
    made = {v.node for v in given if isinstance(v, Made)}
    unknown = len(made) < len(given)
    return [c for c in every if unknown or _may_be_one_of(c, made, study)]


def _class_around(node: ast.expr, module: Module) -> ast.ClassDef | None:
    """The class of ``self`` in an expression that starts from it: ``self.head.weight``."""
    while isinstance(node, (ast.Attribute, ast.Subscript, ast.Call)):
        if isinstance(node, ast.Call) and not node.args:
            return None
        node = node.args[0] if isinstance(node, ast.Call) else node.value
    for value in module.table.ancestors(node):
        if isinstance(value, (ast.FunctionDef, ast.AsyncFunctionDef)):
            first = [*value.args.posonlyargs, *value.args.args][:1]
            parent = module.table.parents[value]
            is_self = first and isinstance(node, ast.Name) and first[0].arg == node.id
            return parent if is_self and isinstance(parent, ast.ClassDef) else None
    return None


def _may_hold(constructor: Constructor, owner: ast.ClassDef, study: Study) -> bool:
    """Whether a model may have modules of a class, as far as its construction can be followed."""
    if not constructor.has_module:
        return True
    found = model_contents.contents(constructor.wrapped, constructor.module, study)
    return not found.complete or any(c.node is owner for c in found.classes)


def _may_be_one_of(constructor: Constructor, made: set[ast.AST], study: Study) -> bool:
    if not constructor.has_module:
        return True
    return any(
        isinstance(value, Unknown)
        or value.node in made
        or (
            isinstance(value, Made)
            and isinstance(value.callee, Class)
            and value.callee.node in made
        )
        for value in study.values(constructor.wrapped, constructor.module)
    )


def carry_attributes_over(plan: ShardPlan, study: Study) -> None:
    """Write code that sets on the new parameters what was set on the old ones."""
    constructor = plan.constructor
    flag = keeps_attributes(constructor, study)
    if flag is None or "attributes" in plan.names:
        return
    attributes, name = plan.fresh("attributes"), plan.fresh("name")
    parameter = plan.fresh("parameter")
    conditions: list[Code] = []
    if not flag:
        conditions.append(code("{f}", f=constructor.arguments["use_orig_params"]))
    if constructor.has("param_init_fn"):
        # Memory for a parameter on the meta device makes it another one, in FSDP1 too.
        conditions.append(code("not {p}.is_meta", p=parameter))
    parts: dict[str, Code | ast.expr | str] = {"n": name, "p": parameter, "m": plan.model}
    one_line = code("{{{n}: vars({p}) for {n}, {p} in {m}.named_parameters()}}", **parts)
    lines = "{{\n    {n}: vars({p})\n    for {n}, {p} in {m}.named_parameters()"
    if conditions:
        lines += "\n    if {tests}"
        parts["tests"] = join(" and ", conditions)
    short = not conditions and len(one_line.preview()) < ONE_LINE
    collected = one_line if short else Code(lines + "\n}}", parts)
    plan.before.append(
        code(
            "# fully_shard makes new parameters: what is set on them goes along.\n{a} = {c}",
            a=attributes,
            c=collected,
        )
    )
    known = "{a}.get({n}, {{}})" if conditions else "{a}[{n}]"
    plan.finish.append(
        code(
            f"for {{n}}, {{p}} in {{m}}.named_parameters():\n    vars({{p}}).update({known})",
            n=name,
            p=parameter,
            m=plan.model,
            a=attributes,
        )
    )
