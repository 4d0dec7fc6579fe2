"""Read FSDP1 ``MixedPrecision`` values and say what they are in FSDP2.

Field by field, from ``torch/distributed/fsdp/api.py`` and ``_fully_shard/_fsdp_api.py``:
``param_dtype`` and ``reduce_dtype`` mean the same; ``cast_forward_inputs`` is a property of every
unit in FSDP2 (default True), while FSDP1 casts the root's inputs only; ``buffer_dtype`` has no
counterpart; with ``keep_low_precision_grads`` FSDP1 left gradients in ``reduce_dtype``.
"""

from __future__ import annotations

import ast
from collections.abc import Mapping
from dataclasses import dataclass, field

from fsdp_migrate.analysis.module import Module
from fsdp_migrate.analysis.values import Constant, External, Made, Value
from fsdp_migrate.families.wrapping import strategies, vocabulary
from fsdp_migrate.fsdp1 import api as fsdp1
from fsdp_migrate.fsdp1.construct import Construct
from fsdp_migrate.fsdp1.site import Site
from fsdp_migrate.planning.context import Study
from fsdp_migrate.planning.edits import Code, code, join
from fsdp_migrate.planning.model import Constructor
from fsdp_migrate.planning.proposal import Proposal
from fsdp_migrate.planning.shard_plan import ShardPlan
from fsdp_migrate.syntax.kinds import present

FIELDS = (
    "param_dtype",
    "reduce_dtype",
    "buffer_dtype",
    "keep_low_precision_grads",
    "cast_forward_inputs",
    "cast_root_forward_inputs",
    "_module_classes_to_ignore",
)
LOST = frozenset(FIELDS) - {"param_dtype", "reduce_dtype"}  # not in FSDP2's, or of other meaning


class Unreadable(Exception):
    """The policy cannot be converted; the message says why, starting in lower case."""


@dataclass(eq=False)
class MixedPrecision:
    """One ``MixedPrecision(...)`` call."""

    call: ast.Call
    module: Module
    fields: dict[str, ast.expr] = field(default_factory=dict)

    @property
    def is_empty(self) -> bool:
        return not any(name in self.fields for name in FIELDS[:3])

    def flag(self, name: str, study: Study, *, default: bool) -> bool:
        """A boolean field that must be written out."""
        node = self.fields.get(name)
        if node is None:
            return default
        constant = study.literal(node, self.module)
        if constant is None or not isinstance(constant.value, bool):
            raise Unreadable(f"{name}={ast.unparse(node)} is only known at run time")
        return constant.value

    def spelled(self, name: str) -> str:
        """A field's source, normalised; empty when absent or None."""
        node = self.fields.get(name)
        if node is None or (isinstance(node, ast.Constant) and node.value is None):
            return ""
        return ast.unparse(node)

    def casts_units(self, study: Study) -> bool:
        return self.flag("cast_forward_inputs", study, default=False)

    def casts_root(self, study: Study) -> bool:
        """FSDP1's root casts when either flag says so."""
        root = self.flag("cast_root_forward_inputs", study, default=True)
        return root or self.casts_units(study)


def read_call(call: ast.Call, module: Module, study: Study) -> MixedPrecision:
    """Bind the fields of one call.

    Raises:
        Unreadable: unpacked arguments, classes to ignore that differ from the default, fields
            that are set later, which FSDP2's policy forbids, or a function out of sight that is
            given the object.
    """
    result = MixedPrecision(call, module)
    for name, value in zip(FIELDS, call.args, strict=False):
        if isinstance(value, ast.Starred):
            raise Unreadable("its arguments are passed as *args")
        result.fields[name] = value
    for keyword in call.keywords:
        if keyword.arg is None:
            raise Unreadable(f"its arguments come from **{ast.unparse(keyword.value)}")
        if keyword.arg not in FIELDS:
            raise Unreadable(f"{keyword.arg} is not a field of MixedPrecision")
        result.fields[keyword.arg] = keyword.value
    if "_module_classes_to_ignore" in result.fields:
        raise Unreadable("_module_classes_to_ignore has no counterpart in FSDP2")
    result.casts_units(study)
    result.casts_root(study)
    if problem := _used_later(call, study) or vocabulary.given_away(call, module, study):
        raise Unreadable(problem)
    return result


def keeps_low_precision(given: ast.expr, module: Module, study: Study) -> bool:
    """Whether gradients may stay in ``reduce_dtype``, by what a policy is given for it."""
    constant = study.literal(given, module)
    return constant is None or bool(constant.value)


def _used_later(call: ast.Call, study: Study) -> str:
    """What is done with a field of the policy made by ``call`` that FSDP2's does not allow."""
    for module in study.project.modules:
        for attribute in module.table.attributes_by_name.of({*FIELDS, *LOST}):
            stored = isinstance(attribute.ctx, ast.Store)
            if attribute.attr not in (FIELDS if stored else LOST):
                continue
            if any(value.node is call for value in study.values(attribute.value, module)):
                name = attribute.attr
                is_asked = name == "buffer_dtype" and not stored
                if is_asked and (module.is_of_tests or twin(attribute, module, study)):
                    continue
                if stored:
                    return f"its {name} is set after it is made, and an FSDP2 policy is frozen"
                return f"its {name} is asked for, which an FSDP2 policy does not have"
    return ""


def twin(asked: ast.Attribute, module: Module, study: Study) -> str:
    """The field that has the same dtype as the ``buffer_dtype`` that is asked of a policy, or of
    any of several; empty if none has."""
    calls = [v.node for v in study.values(asked.value, module) if _is_policy(v)]
    fields = [
        {k.arg: ast.dump(k.value) for k in call.keywords}
        for call in calls
        if isinstance(call, ast.Call) and not call.args
    ]
    if not fields or len(fields) < len(study.values(asked.value, module)):
        return ""
    same = (n for n in FIELDS[:2] if all(f.get(n) == f.get("buffer_dtype", "") for f in fields))
    return next(same, "")


def _is_policy(value: Value) -> bool:
    return isinstance(value, Made) and fsdp1.canonical(value.made_by) == "MixedPrecision"


def read(node: ast.expr, module: Module, study: Study) -> tuple[list[MixedPrecision], bool]:
    """Every ``MixedPrecision`` an expression may be, and whether it may be None.

    Raises:
        Unreadable: one of the values cannot be followed or converted.
    """
    found: list[MixedPrecision] = []
    nullable = False
    values = study.values(node, module)
    for value in sorted(values, key=lambda v: (v.module.display, *v.module.position(v.node))):
        match value:
            case Constant(value=None):
                nullable = True
            case Made(node=ast.Call() as call) if _is_policy(value):
                found.append(read_call(call, value.module, study))
            case _:
                why = study.unknown([value])
                raise Unreadable(why or "one of the values is not a MixedPrecision")
    return found, nullable


def may_cast_units(constructor: Constructor, study: Study) -> bool:
    """Whether units that are no root may have their inputs cast."""
    given = constructor.arguments.get("mixed_precision")
    if given is None:
        return constructor.is_open and study.project.mentions("cast_forward_inputs")
    try:
        found, _ = read(given, constructor.module, study)
        return any(mixed.casts_units(study) and not mixed.is_empty for mixed in found)
    except Unreadable:
        return True


def policy(
    mixed: MixedPrecision, proposal: Proposal, study: Study, *, root: bool, near: ast.AST
) -> Code:
    """The ``MixedPrecisionPolicy(...)`` of the units, or of the root."""
    name = proposal.name(mixed.module, fsdp1.PACKAGE, "MixedPrecisionPolicy", near)
    items = [
        code("{n}={v}", n=each, v=mixed.fields[each]) for each in FIELDS[:2] if each in mixed.fields
    ]
    casts = mixed.casts_root(study) if root else mixed.casts_units(study)
    if not casts and not mixed.is_empty:
        items.append(code("cast_forward_inputs=False"))
    return code("{n}({items})", n=name, items=join(", ", items))


def convert_in_place(
    mixed: MixedPrecision, proposal: Proposal, study: Study, near: ast.AST, *, root: bool = False
) -> None:
    """Turn a call into the ``MixedPrecisionPolicy`` of the units, or of the root, its layout and
    comments kept."""
    name = proposal.name(mixed.module, fsdp1.PACKAGE, "MixedPrecisionPolicy", near)
    proposal.replace(mixed.module, mixed.call.func, code("{n}", n=name))
    for argument in mixed.call.args[2:]:
        proposal.remove_argument(mixed.module, mixed.call, argument)
    for keyword in mixed.call.keywords:
        if keyword.arg not in FIELDS[:2]:
            proposal.remove_argument(mixed.module, mixed.call, keyword)
    casts = mixed.casts_root(study) if root else mixed.casts_units(study)
    if not casts and not mixed.is_empty:
        proposal.add_keyword(mixed.module, mixed.call, "cast_forward_inputs", code("False"))


# -- buffers --------------------------------------------------------


BUFFER_DTYPE = Construct.parse("MixedPrecision(buffer_dtype=)")
ASKED = Construct.parse("MixedPrecision.buffer_dtype")


def buffer_sites(found: list[MixedPrecision], study: Study) -> list[Site]:
    """The ``buffer_dtype`` arguments among some policies, and where they are asked for them."""
    calls = {each.call for each in found}
    result = [
        Site(ASKED, module, attribute, attribute, attribute.value)
        for module in study.project.modules
        for attribute in module.table.attributes_by_name.named("buffer_dtype")
        if any(value.node in calls for value in study.values(attribute.value, module))
    ]
    for mixed in found:
        node = mixed.fields.get("buffer_dtype")
        if node is None:
            continue
        keyword = next((k for k in mixed.call.keywords if k.value is node), None)
        where = keyword if keyword is not None else node
        result.append(Site(BUFFER_DTYPE, mixed.module, where, where))
    return result


def constructors_casting(site: Site, study: Study) -> list[Constructor]:
    """The constructors that a ``buffer_dtype`` argument reaches."""
    call = site.module.table.parents[site.node]
    conversion = study.conversions.get(call)
    return sorted(
        conversion.constructors if conversion is not None else (),
        key=lambda c: (c.module.display, c.call.lineno),
    )


def cast_buffers(plan: ShardPlan, study: Study) -> bool:
    """Emit the buffer cast of one constructor, once; False when there is nothing to cast.

    Raises:
        Unreadable: the policies that reach it name different buffer dtypes.
    """
    if plan.casts_buffers:
        return True
    module = plan.constructor.module
    found, nullable = read(plan.constructor.arguments["mixed_precision"], module, study)
    dtype, condition = _buffer_dtype(found, plan, study, nullable=nullable)
    if dtype is None:
        return False
    plan.casts_buffers = True
    name = plan.fresh("buffer")
    asked = [code("{b}.is_floating_point()", b=name)]
    template = "for {b} in {m}.buffers():\n    if {t}:\n        {b}.data = {b}.to({d})"
    layer = plan.fresh("layer") if plan.batch_norm or plan.ignored is not None else ""
    if layer:
        template = "for {l} in {m}.modules():\n    " + template.replace("\n", "\n    ")
        template = template.replace("{m}.buffers()", "{l}.buffers(recurse=False)")
    if plan.ignored is not None:  # which FSDP1 left alone
        plan.asks_ignored = True
        asked.append(code("{l} not in {i}", l=layer, i=plan.fresh("ignored")))
    if plan.batch_norm:
        asked.append(plan.unless_batch_norm(layer))
    test = join(" and ", asked)
    loop = code(template, l=layer, m=plan.model, b=name, t=test, d=dtype)
    if condition is not None:
        nested = Code(loop.template.replace("\n", "\n    "), loop.parts)
        loop = code("if {c}:\n    {l}", c=condition, l=nested)
    plan.finish.append(loop)
    return True


def _buffer_dtype(
    found: list[MixedPrecision], plan: ShardPlan, study: Study, *, nullable: bool
) -> tuple[Code | None, Code | None]:
    """The dtype buffers are cast to, and the condition under which they are.

    Without a policy FSDP1 casts nothing, so a policy that may be None, or may lack the field,
    needs a condition that the emitted policy still shows.
    """
    spelled = {each.spelled("buffer_dtype") for each in found}
    if spelled == {""}:
        return None, None
    precision = present(plan.precision)
    if precision.inline:
        return code("{d}", d=found[0].fields["buffer_dtype"]), None
    policy = precision.policy
    always = "" not in spelled
    names = {n for each in found for n in _dtype_names(each, study)}
    if always and len(names) == 1:
        torch = plan.proposal.module_name(
            plan.constructor.module, "torch", "torch", plan.constructor.reference
        )
        dtype = code("{t}.{n}", t=torch, n=names.pop().removeprefix("torch."))
        if not nullable:
            return dtype, None
        for name in FIELDS[:2]:  # set in every policy, absent in the default that replaces None
            if all(each.spelled(name) for each in found):
                return dtype, code("{p}.{n} is not None", p=policy, n=name)
    written = _written_before(found, plan)
    if written and not nullable:
        dtype = code("{d}", d=written)
        certain = names.isdisjoint({"?", "??"})
        return dtype, None if certain else code("{d} is not None", d=dtype)
    for twin in FIELDS[:2]:
        if all(each.spelled(twin) == each.spelled("buffer_dtype") for each in found):
            value = code("{p}.{t}", p=policy, t=twin)
            condition = code("{v} is not None", v=value)
            return value, condition if nullable or not always else None
    for name in FIELDS[:2]:
        if dtypes := _dtypes_by(name, found, study):
            dtype = code("{b}", b=plan.fresh("buffer_dtype"))
            plan.finish.append(_look_up(dtypes, code("{p}.{n}", p=policy, n=name), plan))
            return dtype, code("{b} is not None", b=dtype)
    raise Unreadable("the policies that reach this call cast buffers to different dtypes")


def _dtypes_by(name: str, found: list[MixedPrecision], study: Study) -> dict[str, str]:
    """The dtype of buffers for each dtype that a field of the policies has, which the emitted
    policy still shows; nothing where the field does not tell it."""
    dtypes: dict[str, str] = {}
    for mixed in found:
        keys, values = (_dtype_names(mixed, study, n) for n in (name, "buffer_dtype"))
        if len(keys) != 1 or len(values) > 1 or "?" in keys | values:
            return {}
        key, dtype = _same_dtype(keys.pop()), "".join(values)
        if dtypes.setdefault(key, dtype) != dtype:
            return {}
    return {key: dtype for key, dtype in dtypes.items() if dtype}


def _same_dtype(name: str) -> str:
    """One name for each dtype: torch has two for some."""
    return {"torch.float": "torch.float32", "torch.half": "torch.float16"}.get(name, name)


def _look_up(dtypes: dict[str, str], key: Code, plan: ShardPlan) -> Code:
    """The statement that takes the dtype of buffers out of a table, or None."""
    constructor = plan.constructor
    torch = plan.proposal.module_name(constructor.module, "torch", "torch", constructor.reference)
    pairs = [
        code("{t}.{k}: {t}.{v}", t=torch, k=k.removeprefix("torch."), v=v.removeprefix("torch."))
        for k, v in dtypes.items()
    ]
    return code(
        "{all} = {{{pairs}}}\n{one} = {all}.get({k})",
        all=plan.fresh("buffer_dtypes"),
        pairs=join(", ", pairs),
        one=plan.fresh("buffer_dtype"),
        k=key,
    )


def _written_before(found: list[MixedPrecision], plan: ShardPlan) -> str:
    """The dtype of buffers as the only policy says it in the constructor's own function, if that
    can be asked once more behind it; else nothing."""
    constructor = plan.constructor
    node = found[0].fields.get("buffer_dtype")
    if len(found) > 1 or node is None or found[0].module is not constructor.module:
        return ""
    table = constructor.module.table
    is_same = table.scope_of(node).home() is table.scope_of(constructor.call).home()
    if not is_same or not strategies.says_the_same(node, constructor):
        return ""
    read = {name.id for name in ast.walk(node) if isinstance(name, ast.Name)}
    between = range(present(node.end_lineno) + 1, constructor.call.lineno)
    uses = (use for use in table.names if use.id in read and use.lineno in between)
    if not all(_only_reads(use, table.parents) for use in uses):
        return ""
    return ast.get_source_segment(constructor.module.source.text, node) or ""


def _only_reads(use: ast.Name, parents: Mapping[ast.AST, ast.AST]) -> bool:
    """Whether a use of a name takes nothing but an element or an attribute of what has it."""
    parent = parents[use]
    called = getattr(parents[parent], "func", None) is parent
    is_part = isinstance(parent, (ast.Attribute, ast.Subscript)) and parent.value is use
    return is_part and isinstance(getattr(parent, "ctx", None), ast.Load) and not called


def _dtype_names(mixed: MixedPrecision, study: Study, name: str = "buffer_dtype") -> set[str]:
    node = mixed.fields.get(name)
    values = study.values(node, mixed.module) if node is not None else frozenset()
    names = {v.name if isinstance(v, External) else "?" for v in values}
    return names if all(n.startswith("torch.") for n in names) else {"?", "??"}
