"""What a subclass of FSDP overrides of FSDP1's, and what it asks of ``super()``."""

from __future__ import annotations

import ast
from typing import Final

from fsdp_migrate.analysis.module import Module
from fsdp_migrate.analysis.values import Class
from fsdp_migrate.families.checkpoints import state_dict_settings
from fsdp_migrate.families.wrapping.refused_modules import OF_FSDP2
from fsdp_migrate.fsdp1 import api as fsdp1
from fsdp_migrate.fsdp1.site import Site
from fsdp_migrate.planning.context import Study
from fsdp_migrate.planning.model import Constructor, Decision
from fsdp_migrate.syntax.trees import FUNCTIONS, walk

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


def body_problem(cls: Class, study: Study) -> str:
    """What a class overrides, or calls of FSDP1's methods, that FSDP2 does not have."""
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
    of_fsdp1 = (fsdp1.OF_MODELS | fsdp1.STATICS) - {fsdp1.FORWARD} - set_first
    for attribute in asked:
        if attribute.attr in of_fsdp1:
            return f"it calls super().{attribute.attr}, which is FSDP1's"
    forward = own_method(cls, fsdp1.FORWARD)
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
                setting = state_dict_settings.read_setting(call, module, study)
                of_self = study.models(call.args[0], module).constructors
                return bool(of_self or _is_self(call.args[0], module)) and _is_full(setting)
    return False


def _is_self(node: ast.expr, module: Module) -> bool:
    function = next((p for p in module.table.ancestors(node) if isinstance(p, FUNCTIONS)), None)
    first = function.args.args[:1] if function is not None else []
    return isinstance(node, ast.Name) and [a.arg for a in first] == [node.id]


def _is_full(setting: state_dict_settings.Setting) -> bool:
    """Whether a state is whole, or only the running program knows: then the ``with`` stays."""
    return bool(setting.problem) or setting.kind == "FULL"


def own_states(constructor: Constructor, study: Study) -> frozenset[str]:
    """The state methods that a class around a model, or one derived from it, has itself."""
    return frozenset(name for name in STATES if defines(constructor, name, study))


def decide_own_state(site: Site, study: Study) -> Decision | None:
    """``state_dict()`` of a model whose class overrides that method: the call stays."""
    name = site.construct.attribute
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


def forward_review(lineage: list[Class]) -> str:
    """What may differ where a class has a ``forward`` around FSDP1's."""
    found = [forward for cls in lineage if (forward := own_method(cls, fsdp1.FORWARD)) is not None]
    if all(map(_hands_inputs_on, found)):
        return ""
    return "inputs are now cast before this class's forward, where FSDP1 cast what that hands on"


def _hands_inputs_on(forward: ast.FunctionDef | ast.AsyncFunctionDef) -> bool:
    """Whether a ``forward`` only passes its inputs on to ``super().forward`` as they are."""
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
    return any(own_method(each, name) is not None for each in lineage)


def own_method(cls: Class, name: str) -> ast.FunctionDef | ast.AsyncFunctionDef | None:
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
