"""Code that writes to one parameter of a sharded model: ``model.head.bias.data.clamp_(0, 1)``.

After an evaluation the root's parameters are still gathered. FSDP1's next forwards did not see what
was written then, but it was kept: after the next backward it was there. An FSDP2 model computes
with it at once, and the next backward frees it for good, unless the model is resharded first.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator

from fsdp_migrate.analysis.flow import access_path
from fsdp_migrate.analysis.module import Module
from fsdp_migrate.families.parameters import other_names
from fsdp_migrate.families.training_loop.gathered_roots import (
    may_be_evaluated,
    may_stay_gathered,
    resharded_first,
)
from fsdp_migrate.families.training_loop.training_before import just_trained
from fsdp_migrate.families.wrapping.gathered import is_gathered
from fsdp_migrate.fsdp1.construct import Construct
from fsdp_migrate.fsdp1.references import enclosing_function
from fsdp_migrate.fsdp1.site import Site
from fsdp_migrate.planning.context import Study
from fsdp_migrate.planning.model import Decision
from fsdp_migrate.syntax.expressions import last_name

RULE = "FSDP408"

WRITE = Construct.parse("parameter write")
IN_PLACE = frozenset(
    f"{name}_"
    for name in (  # of torch.Tensor
        *("abs", "add", "addcdiv", "addcmul", "addmm", "bernoulli", "ceil", "clamp", "clamp_max"),
        *("clamp_min", "clip", "copy", "div", "divide", "exp", "exponential", "fill", "floor"),
        *("lerp", "log", "log_normal", "masked_fill", "mul", "multiply", "nan_to_num", "neg"),
        *("negative", "normal", "pow", "random", "reciprocal", "relu", "renorm", "round", "rsqrt"),
        *("sigmoid", "sign", "sqrt", "square", "sub", "subtract", "tanh", "tril", "triu"),
        *("true_divide", "trunc", "uniform", "zero"),
    )
)
# What is read off a parameter and is the same memory.
SAME = frozenset({"data", "detach"})
INIT = "torch.nn.init."
BUFFERS = frozenset({"running_mean", "running_var", "num_batches_tracked"})


def find_parameter_writes(study: Study, module: Module) -> Iterator[Site]:
    """A site for every write to a single parameter that may follow an evaluation."""
    if not study.constructors:
        return
    table = module.table
    handled: dict[ast.stmt, str] = {}
    for target in written(study, module):
        parameter = parameter_of(target)
        model = _model(parameter, study, module)
        statement = table.statement(target)
        if model is None or _is_buffer(parameter, study) or is_gathered(target, study, module):
            continue
        path = access_path(model)
        done = {each for each, held in handled.items() if held == path}
        if path is None or statement in done:
            continue
        models = study.models(model, module).constructors
        if just_trained(statement, study, module, done, models):
            continue
        if not any(isinstance(parent, ast.Lambda) for parent in table.ancestors(target)):
            handled[statement] = path
        yield Site(WRITE, module, target, statement, model)


def models_of(site: Site, study: Study) -> dict[str, ast.expr]:
    """The models that a statement writes to or reads from, by their paths: ``self.model``."""
    found = {ast.unparse(site.subject): site.subject}
    for node in ast.walk(site.statement):
        owner = node.value if isinstance(node, ast.Attribute) else None
        path = access_path(owner) if owner is not None else None
        if owner is not None and path is not None and study.traced(owner, site.module):
            found.setdefault(path, owner)
    return found


def written(study: Study, module: Module) -> Iterator[ast.expr]:
    """Everything that is written to in place, in the order of the source."""
    found: list[ast.expr] = []
    calls = module.table.calls_by_name
    for call in calls.of([n for n in calls.names if n in IN_PLACE or n.endswith("_")]):
        method = call.func
        if isinstance(method, ast.Attribute) and method.attr in IN_PLACE:
            found.append(method.value)
        elif last_name(method).endswith("_") and call.args:
            names = study.external(method, module)
            if any(name.startswith(INIT) for name in names):
                found.append(call.args[0])
    data = module.table.attributes_by_name.named("data")
    for attribute in data:
        if not isinstance(attribute.ctx, ast.Store):
            continue
        statement = module.table.parents[attribute]
        if isinstance(statement, (ast.Assign, ast.AugAssign)):
            found.append(attribute.value)
    for attribute in data:
        if is_item(attribute, module):
            found.append(attribute)
    yield from sorted(found, key=lambda node: (node.lineno, node.col_offset))


def is_item(node: ast.expr, module: Module) -> bool:
    """Whether items of ``node`` are assigned: ``node[...] = x``."""
    parent = module.table.parents[node]
    stored = isinstance(parent, ast.Subscript) and isinstance(parent.ctx, ast.Store)
    return stored and isinstance(parent, ast.Subscript) and parent.value is node


def parameter_of(node: ast.expr) -> ast.expr:
    """``model.scale`` of ``model.scale.data.mul_(2)``."""
    while True:
        inner = node.func if isinstance(node, ast.Call) else node
        if not isinstance(inner, ast.Attribute):
            return node
        if inner.attr not in SAME and not (inner is not node and inner.attr in IN_PLACE):
            return node
        node = inner.value


def _model(parameter: ast.expr, study: Study, module: Module) -> ast.expr | None:
    """The sharded model that a path leads through, if it is one to a parameter."""
    if not isinstance(parameter, (ast.Attribute, ast.Subscript)):
        return None
    if isinstance(parameter, ast.Attribute) and parameter.attr == "grad":
        return None
    whole = other_names.whole_of(parameter, module, study)
    here = enclosing_function(module, parameter)
    if whole is None or enclosing_function(module, whole) is not here:
        return None  # it has no name here by which it could be resharded
    return whole


def _is_buffer(parameter: ast.expr, study: Study) -> bool:
    name = last_name(parameter)
    if name in BUFFERS:
        return True
    for module in study.project.modules:
        if not module.mentions("register_buffer"):
            continue
        for call in module.table.calls:
            if last_name(call.func) == "register_buffer" and call.args:
                first = call.args[0]
                if isinstance(first, ast.Constant) and first.value == name:
                    return True
    return False


def decide_write(site: Site, study: Study) -> Decision:
    """Reshard the model before one of its parameters is written to.

    After an evaluation FSDP2 would lose what is written. FSDP1 used it from the next backward on.
    """
    if any(isinstance(p, ast.Lambda) for p in site.module.table.ancestors(site.expression)):
        return study.left(
            site,
            RULE,
            "a parameter is written to in a lambda, where the model cannot be resharded first",
            "make it a function",
            models=study.models(site.subject, site.module).constructors,
            quiet=True,
        )
    changed = study.models(site.subject, site.module).constructors
    if is_item(site.expression, site.module):
        return study.left(
            site,
            RULE,
            "items of a sharded parameter cannot be assigned, and of one that an evaluation has "
            "gathered are lost",
            "write to the whole parameter in place, or within full_params of fsdp2_support",
            models=changed,
            quiet=True,
        )
    together = models_of(site, study)
    models = frozenset(
        c for m in together.values() for c in study.models(m, site.module).constructors
    )
    if not may_stay_gathered(models, study):
        return study.kept_as_is(site, RULE, "kept, on sharded parameters", models=models)
    review = LATE if may_be_evaluated(changed, study) else ""
    return resharded_first(site, together.values(), study, RULE, models=models, review=review)


LATE = (
    "after an evaluation, FSDP1's forwards did not see what is written here to the root's "
    "parameters until a backward had freed them; now the next forward does"
)
