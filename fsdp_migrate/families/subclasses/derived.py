"""Subclasses of FSDP with behaviour of their own: modules around the module that they shard.

``class Policy(FSDP)`` with methods, or an ``__init__`` that builds the model, stays a class. Its
base becomes ``ShardedModule`` of the support module, which holds the wrapped module as FSDP1's
wrapper did, is called by the same hooks, and takes the same arguments. What such a class says of
FSDP1 itself (an overridden ``no_sync``, ``super().state_dict()`` of no kind) has no counterpart.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from fsdp_migrate.analysis.module import Module
from fsdp_migrate.analysis.tracing.registries import registry_of
from fsdp_migrate.analysis.values import Class, External, Values
from fsdp_migrate.families.checkpoints import statedicts
from fsdp_migrate.families.wrapping import run_time
from fsdp_migrate.families.wrapping.wrapped import OF_FSDP2
from fsdp_migrate.fsdp1 import api as fsdp1
from fsdp_migrate.fsdp1.references import OF_MODELS
from fsdp_migrate.fsdp1.site import Site
from fsdp_migrate.planning.context import Study
from fsdp_migrate.planning.edits import Code, code
from fsdp_migrate.planning.model import Constructor, Decision
from fsdp_migrate.syntax import type_expressions
from fsdp_migrate.syntax.trees import FUNCTIONS, walk

RULE = "FSDP103"
# Bases beside FSDP's that neither run code when an instance is made nor have methods.
PLAIN_BASES = frozenset({"abc.ABC", "typing.Generic", "builtins.object", "typing.Protocol"})
STATES: Final = ("state_dict", "load_state_dict")
# What FSDP1's wrapper answers in its own way; overridden, that answer is what the project changed.
OVERRIDES: Final = (
    fsdp1.STATICS
    | fsdp1.METHODS
    | fsdp1.FIELDS
    | fsdp1.STATE_METHODS
    | {"named_parameters", "named_buffers", "named_modules", "parameters", "_apply", "__new__"}
    | {"__setattr__", "__getattribute__", "__getitem__", "__class__", "_call_impl"}
)
# FSDP1's private methods, which its own code calls on the instance. Read from torch 2.13.
INTERNALS: Final = frozenset(
    (
        *("_assert_state", "_deregister_orig_params_ctx", "_flat_param", "_has_params"),
        *("_is_using_optim_input", "_low_precision_hook_enabled", "_reset_lazy_init"),
        *("_mixed_precision_enabled_for_buffers", "_optim_state_dict_impl", "_unshard"),
        *("_optim_state_dict_to_load_impl", "_use_training_state", "_auto_wrap"),
        *("_wait_unshard_streams_on_current_stream", "_lazy_init", "_post_backward_hook"),
    )
)


@dataclass(frozen=True, eq=False)
class Derived:
    """A subclass that stays a class."""

    definition: ast.ClassDef
    call: ast.Call  # FSDP1's constructor: ``super().__init__(...)``, or what stands for it
    written: bool  # the class has an ``__init__`` with that call
    review: str = ""


def read(site: Site, study: Study) -> Derived | str:
    """The subclass at a site, or why it cannot be a module around a sharded one."""
    definition = site.node
    assert isinstance(definition, ast.ClassDef)
    cls = _as_class(site)
    if definition.keywords:
        return "its definition has keywords"
    if site.reference not in definition.bases:
        return "FSDP1's class is not written among its bases"
    for base in definition.bases:
        if base is not site.reference and not _is_plain(study.values(base, site.module), study):
            return f"what its other base {ast.unparse(base)} does is not seen"
    lineage = [*study.tracer.lineage(cls), *study.tracer.subclasses(cls)]
    for each in lineage:
        problem = _of_body(each, study)
        if problem:
            return problem
    for each in (cls, *study.tracer.subclasses(cls)):
        if _is_made_out_of_sight(each, study):
            return f"{each.node.name} is handed on, and what makes its instances is not seen"
    inits = [n for n in definition.body if isinstance(n, FUNCTIONS) and n.name == "__init__"]
    if not inits:
        call = ast.parse("FSDP(*args, **kwargs)", mode="eval").body
        assert isinstance(call, ast.Call)
        return Derived(definition, call, written=False, review=_of_forward(lineage))
    calls = [c for init in inits for c in site.module.table.calls_in(init) if is_super(c, site)]
    if len(inits) != 1 or len(calls) != 1:
        return "its __init__ does not call FSDP1's once"
    (call,) = calls
    if not isinstance(site.module.table.parents[call], ast.Expr):
        return "its __init__ does not call FSDP1's in a statement"
    return Derived(definition, call, written=True, review=_of_forward(lineage))


def _as_class(site: Site) -> Class:
    assert isinstance(site.node, ast.ClassDef)
    return Class(site.node, site.module)


def is_super(call: ast.Call, site: Site) -> bool:
    """``super().__init__(...)``, also with the arguments that Python 2 wanted."""
    match call.func:
        case ast.Attribute(attr="__init__", value=ast.Call(func=ast.Name(id="super"), args=given)):
            pass
        case _:
            return False
    assert isinstance(site.node, ast.ClassDef)
    if not given:
        return True
    return isinstance(given[0], ast.Name) and given[0].id == site.node.name


def _is_plain(values: Values, study: Study) -> bool:
    """Whether a base beside FSDP's adds methods, and nothing that is done when one is made."""
    if not values:
        return False
    for value in values:
        match value:
            case External(name=name) if name in PLAIN_BASES:
                continue
            case Class() as cls:
                lineage = study.tracer.lineage(cls)
                made = any(
                    isinstance(node, FUNCTIONS) and node.name in {"__init__", "__init_subclass__"}
                    for each in lineage
                    for node in each.node.body
                )
                if made or not study.tracer.external_bases(cls) <= PLAIN_BASES:
                    return False
            case _:
                return False
    return True


def _of_body(cls: Class, study: Study) -> str:
    """What a class overrides, or asks of FSDP1's, that has no counterpart."""
    older = study.project.outdated  # which no release runs that migrated code runs on
    asked = [n for n in walk(cls.node) if isinstance(n, ast.Attribute) and n not in older]
    asked = [n for n in asked if _asks_super(n, n.attr)]
    set_first = {name for name in STATES if _is_set_first(name, asked, cls, study)}
    for name, bindings in cls.module.table.scopes[cls.node].bindings.items():
        if all(binding.node in older for binding in bindings):
            continue
        if (name in OVERRIDES or name in INTERNALS) and name not in set_first:
            return f"it overrides {name}"
        if name in OF_FSDP2:
            return f"it has a {name} of its own, which FSDP2's modules have too"
    of_fsdp1 = (OF_MODELS | fsdp1.STATICS) - {fsdp1.FORWARD} - set_first
    for attribute in asked:
        if attribute.attr in of_fsdp1:
            return f"it calls super().{attribute.attr}, which is FSDP1's"
    forward = _method(cls, fsdp1.FORWARD)
    if forward is not None and forward not in older and not _calls_super(forward, fsdp1.FORWARD):
        return "its forward goes past FSDP1's"
    return ""


def _is_set_first(name: str, asked: list[ast.Attribute], cls: Class, study: Study) -> bool:
    """Whether FSDP1's state is asked of ``super()`` under a ``with`` that says which it is.

    The same ``with`` of the support module makes ``nn.Module``'s own method give that state.
    """
    places = [attribute for attribute in asked if attribute.attr == name]
    return bool(places) and all(_stands_under_type(place, cls.module, study) for place in places)


def _stands_under_type(node: ast.AST, module: Module, study: Study) -> bool:
    for parent in module.table.ancestors(node):
        if isinstance(parent, FUNCTIONS):
            return False
        for item in parent.items if isinstance(parent, ast.With) else ():
            call = item.context_expr
            if not isinstance(call, ast.Call):
                continue
            names = map(fsdp1.canonical, study.external(call.func, module))
            if f"{fsdp1.FSDP}.state_dict_type" in names and call.args:
                setting = statedicts.read(call, module, study)
                of_self = study.models(call.args[0], module).constructors
                return bool(of_self or _is_self(call.args[0], module)) and _is_full(setting)
    return False


def _is_self(node: ast.expr, module: Module) -> bool:
    function = next((p for p in module.table.ancestors(node) if isinstance(p, FUNCTIONS)), None)
    first = function.args.args[:1] if function is not None else []
    return isinstance(node, ast.Name) and [a.arg for a in first] == [node.id]


def _is_full(setting: statedicts.Setting) -> bool:
    """Whole, or known to the running program: then the ``with`` stays."""
    return bool(setting.problem) or setting.kind == "FULL"


def own_states(constructor: Constructor, study: Study) -> frozenset[str]:
    """The state methods that a class around a model, or one derived from it, has itself."""
    return frozenset(name for name in STATES if defines(constructor, name, study))


def of_own_state(site: Site, study: Study) -> Decision | None:
    """A state that the class of a model gives, or takes, in its own way: by FSDP1's first."""
    name = site.construct.removeprefix(f"{fsdp1.FSDP}.")
    if name not in STATES or site.receiver is None:
        return None
    models = study.models(site.receiver, site.module).constructors
    own = {c for c in models if name in c.own_states}
    rule = study.registry.find(site.construct)
    if not own or rule is None:
        return None
    if own != models:
        return study.left(
            site,
            rule.code,
            f"some of the models here have a {name} of their own, and others have FSDP1's",
            "ask by class which it is",
            models=models,
            quiet=True,
        )
    return study.rewritten(site, rule.code, "kept: the class of the model has it", models=models)


def _of_forward(lineage: list[Class]) -> str:
    """What may differ where a class has a ``forward`` around FSDP1's."""
    found = [forward for cls in lineage if (forward := _method(cls, fsdp1.FORWARD)) is not None]
    if all(map(_hands_inputs_on, found)):
        return ""
    return "inputs are now cast before this class's forward, where FSDP1 cast what that hands on"


def _hands_inputs_on(forward: ast.FunctionDef | ast.AsyncFunctionDef) -> bool:
    """Whether what a method is given goes to FSDP1's as it came, and nowhere else."""
    given = forward.args
    names = {a.arg for a in (*given.posonlyargs, *given.args, *given.kwonlyargs)[1:]}
    names |= {a.arg for a in (given.vararg, given.kwarg) if a is not None}
    passed: list[ast.expr] = []
    for node in walk(forward):
        if isinstance(node, ast.Call) and _asks_super(node.func, fsdp1.FORWARD):
            passed += [a.value if isinstance(a, ast.Starred) else a for a in node.args]
            passed += [keyword.value for keyword in node.keywords]
    uses = [n for n in walk(forward) if isinstance(n, ast.Name) and n.id in names]
    return all(isinstance(a, ast.Name) for a in passed) and all(use in passed for use in uses)


def defines(constructor: Constructor, name: str, study: Study) -> bool:
    """Whether a class around a model, or one derived from it, has a method of that name."""
    if not constructor.keeps_class or constructor.defined_by is None:
        return False
    cls = Class(constructor.defined_by, constructor.module)
    lineage = [*study.tracer.lineage(cls), *study.tracer.subclasses(cls)]
    return any(_method(each, name) is not None for each in lineage)


def _method(cls: Class, name: str) -> ast.FunctionDef | ast.AsyncFunctionDef | None:
    for node in cls.node.body:
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)) and node.name == name:
            return node
    return None


def _calls_super(function: ast.AST, name: str) -> bool:
    return any(_asks_super(node, name) for node in walk(function))


def _asks_super(node: ast.AST, name: str) -> bool:
    """``super().name``."""
    match node:
        case ast.Attribute(value=ast.Call(func=ast.Name(id="super")), attr=asked):
            return asked == name
    return False


def _is_made_out_of_sight(cls: Class, study: Study) -> bool:
    """Whether code that cannot be followed may call a class, so that nobody knows its instances."""
    for decorator in cls.node.decorator_list:
        if registry_of(decorator) is None or not any(study.tracer.built(cls)):
            return True
    for module in study.project.modules:
        if not module.mentions(cls.node.name):
            continue
        if not any(study.tracer.built(cls)) and any(
            string.value == cls.node.name and not _is_listed(string, module)
            for string in module.table.strings
        ):
            return True  # getattr(module, "Policy")
        mentions: list[ast.expr] = [n for n in module.table.names if n.id == cls.node.name]
        mentions += [a for a in module.table.attributes if a.attr == cls.node.name]
        for mention in mentions:
            if _hands_on(mention, module) and any(
                v.node is cls.node for v in study.values(mention, module)
            ):
                return True
    return False


def _is_listed(string: ast.Constant, module: Module) -> bool:
    """Whether a string stands in ``__all__`` or is a type."""
    for parent in module.table.ancestors(string):
        match parent:
            case ast.Assign(targets=[ast.Name(id="__all__")]):
                return True
            case ast.AnnAssign() | ast.arg() | ast.FunctionDef() | ast.AsyncFunctionDef():
                return type_expressions.is_type(string, module.table)
    return False


def _hands_on(mention: ast.expr, module: Module) -> bool:
    """Whether a mention of a class is more than a call, a base, a type or a question."""
    if not isinstance(getattr(mention, "ctx", None), ast.Load):
        return False
    child: ast.AST = mention
    for parent in module.table.ancestors(mention):
        match parent:
            case ast.Call(func=func) if func is child:
                return False
            case ast.Call(func=ast.Name(id="isinstance" | "issubclass" | "super")):
                return False
            case ast.ClassDef() | ast.Attribute() | ast.Compare():
                return False
            case ast.Tuple() | ast.BinOp():
                child = parent
            case _:
                return not type_expressions.is_type(mention, module.table)
    return True


def calls(site: Site, study: Study) -> Iterator[tuple[ast.Call, Module]]:
    """Where instances of the class, or of one derived from it, are made."""
    cls = _as_class(site)
    nodes = {each.node: each.node.name for each in (cls, *study.tracer.subclasses(cls))}
    seen: set[ast.Call] = set()
    for each in (cls, *study.tracer.subclasses(cls)):
        for call, module in study.tracer.built(each):
            if call not in seen:
                seen.add(call)
                yield call, module
    for call, module in study.tracer.calls_named(*dict.fromkeys(nodes.values())):
        made = any(
            isinstance(v, Class) and v.node in nodes for v in study.values(call.func, module)
        )
        if made and call not in seen:
            seen.add(call)
            yield call, module


def _has_initializers(definition: ast.ClassDef, site: Site, study: Study) -> bool:
    """Whether a class derived from this one takes arguments of its own."""
    cls = Class(definition, site.module)
    return any(_method(each, "__init__") for each in study.tracer.subclasses(cls))


def register(site: Site, study: Study) -> None:
    """Make the instances of a subclass that stays a class known as FSDP1 models."""
    found = read(site, study)
    if isinstance(found, str):
        return
    constructor = Constructor.read(found.call, site.module, site.reference)
    constructor.defined_by = found.definition
    constructor.keeps_class = True
    constructor.own_states = own_states(constructor, study)
    constructor.made_at = tuple(calls(site, study))
    if not constructor.is_wrong:
        study.constructors[found.definition] = constructor


def construct(site: Site, study: Study) -> list[Decision]:
    """Decide the class together with the arguments it gives FSDP1's constructor."""
    found = read(site, study)
    assert isinstance(found, Derived)
    constructor = study.constructors[site.node]
    models = frozenset({constructor})
    proposal = study.proposal()
    assert isinstance(site.reference, ast.expr)
    base = proposal.support(site.module, run_time.CLASS, site.reference)
    proposal.replace(site.module, site.reference, code("{b}", b=base))
    added: list[Code] = []
    review = run_time.place(constructor, study, added)
    if not review and not constructor.made_at and run_time.may_cast(constructor, study):
        review = run_time.UNSURE
    is_part = bool(added) and not site.module.mentions("cast_forward_inputs")
    if found.review and run_time.may_cast(constructor, study) and not is_part:
        review = ". ".join(filter(None, (review, found.review)))
    if added and not found.written and _has_initializers(found.definition, site, study):
        return [
            study.left(
                site,
                RULE,
                "its instances are parts of other models, and nothing says so where they are made",
                "give it an __init__ that passes is_root=False on",
                models=models,
                final=True,
            )
        ]
    if added and constructor.own_states:
        return [
            study.left(
                site,
                RULE,
                "its instances are parts of other models, and it overrides how a state is given",
                "leave the state to the whole model",
                models=models,
                final=True,
            )
        ]
    made = ((found.call, site.module),) if found.written else constructor.made_at
    for call, module in made if added else ():
        proposal.add_keyword(module, call, "is_root", code("False"))
    if found.written:
        for keyword in found.call.keywords:
            if keyword.arg in fsdp1.EARLIER_NAMES:
                name = fsdp1.EARLIER_NAMES[keyword.arg]
                proposal.rename_keyword(site.module, found.call, keyword, name)
    message = "a module around the sharded one"
    whole = study.rewritten(site, RULE, message, proposal, models=models, review=review)
    return [whole, *run_time.arguments(constructor, site.module, study, models)]
