"""Hooks on sharded models that see their inputs, under mixed precision.

Hooks on FSDP1's wrapper ran around it: they had the inputs as the program gave them, and the
wrapper cast what they returned. FSDP2 casts in a pre-hook of the module itself, which is there
before those of the program: they get the cast inputs, unless they are put in front.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator

from fsdp_migrate.analysis.module import Module
from fsdp_migrate.analysis.values import Function
from fsdp_migrate.families.precision import precision
from fsdp_migrate.fsdp1.construct import Construct
from fsdp_migrate.fsdp1.site import Site
from fsdp_migrate.planning.context import Study
from fsdp_migrate.planning.model import Constructor
from fsdp_migrate.syntax.trees import FUNCTIONS

BEFORE = Construct.parse("forward pre-hook")
AFTER = Construct.parse("forward hook")
METHODS = {"register_forward_pre_hook": BEFORE, "register_forward_hook": AFTER}


def find_forward_hooks(study: Study, module: Module) -> Iterator[Site]:
    """A site for every hook on a model that casts its inputs."""
    for call in module.table.calls_by_name.of(METHODS):
        method = call.func
        if not isinstance(method, ast.Attribute):
            continue
        model = method.value
        if isinstance(model, ast.Attribute) and model.attr == "module":
            continue  # what FSDP1 had wrapped: its hooks came after the cast
        if not study.traced(model, module):
            continue
        construct = METHODS[method.attr]
        if construct == AFTER and not _reads_inputs(call, study, module):
            continue
        if construct == BEFORE and any(k.arg == "prepend" for k in call.keywords):
            continue
        if any(_casts(c, study) for c in study.models(model, module).constructors):
            yield Site(construct, module, call, call, model)


def is_alone(site: Site, study: Study) -> bool:
    """Whether a hook is the only one of its kind on its models, and is registered once."""
    for parent in site.module.table.ancestors(site.node):
        if isinstance(parent, FUNCTIONS):
            break
        if isinstance(parent, (ast.For, ast.AsyncFor, ast.While, ast.comprehension)):
            return False
    own = study.models(site.subject, site.module).constructors
    others = [
        other
        for module in study.project.modules
        for other in find_forward_hooks(study, module)
        if other.construct == site.construct and other.node is not site.node
    ]
    return not any(
        own & study.models(other.receiver, other.module).constructors
        for other in others
        if other.receiver is not None
    )


def _casts(constructor: Constructor, study: Study) -> bool:
    """Whether a model may cast its inputs, as a root with mixed precision does."""
    if not constructor.has("mixed_precision"):
        return constructor.is_open
    try:
        found, _ = precision.read(
            constructor.arguments["mixed_precision"], constructor.module, study
        )
        return any(each.spelled("param_dtype") and each.casts_root(study) for each in found)
    except precision.Unreadable:
        return True


def _reads_inputs(call: ast.Call, study: Study, module: Module) -> bool:
    """Whether a hook looks at the inputs that it is given; True where it is not known."""
    hook = call.args[0] if call.args else None
    found = study.values(hook, module) if hook is not None else frozenset()
    nodes: list[ast.AST] = [hook] if isinstance(hook, ast.Lambda) else []
    nodes = nodes or [v.node for v in found if isinstance(v, Function)]
    if not nodes or (len(nodes) != len(found) and not isinstance(hook, ast.Lambda)):
        return True
    for node in nodes:
        if not isinstance(node, FUNCTIONS):
            return True
        given = [*node.args.posonlyargs, *node.args.args]
        if given and given[0].arg in {"self", "cls"}:
            given = given[1:]
        if len(given) < 2:
            return True
        with_kwargs = any(k.arg == "with_kwargs" for k in call.keywords)
        inputs = {a.arg for a in given[1 : 3 if with_kwargs else 2]}
        body = node.body if isinstance(node.body, list) else [node.body]
        for part in body:
            if any(isinstance(n, ast.Name) and n.id in inputs for n in ast.walk(part)):
                return True
    return False
