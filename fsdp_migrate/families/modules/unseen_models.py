"""What may be a sharded model, or anything else, in a file that shards models:
``self.runner.model``, of which no assignment is in sight. In every file of a package whose wrapping
function, ``wrap_model(model, "fsdp")``, others call alone: they give what it returns to the rest.

What is asked of it there would stop the program, or save pieces, if it is one. No form would be
right for all that it may be: the place is marked.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

from fsdp_migrate.analysis.flow import access_path
from fsdp_migrate.analysis.module import Module
from fsdp_migrate.analysis.tracing import configured
from fsdp_migrate.analysis.values import Computed, Made, Unknown, Value
from fsdp_migrate.families.training_loop.call_order import runs_before_sharding
from fsdp_migrate.families.training_loop.later_wraps import later_wraps
from fsdp_migrate.families.wrapping.own_names import wrapped_by_now
from fsdp_migrate.families.wrapping.sharded_parts import sharded_parts
from fsdp_migrate.fsdp1 import model_values, possible_models, unfollowed
from fsdp_migrate.fsdp1.construct import Construct
from fsdp_migrate.fsdp1.references import enclosing_function
from fsdp_migrate.fsdp1.site import Site
from fsdp_migrate.planning.context import Study
from fsdp_migrate.planning.model import Constructor, Decision
from fsdp_migrate.syntax.expressions import last_name
from fsdp_migrate.syntax.kinds import of_kind
from fsdp_migrate.syntax.scopes import Kind
from fsdp_migrate.syntax.trees import walk

INNER = Construct.parse("inner module of an unseen model")
STATE = Construct.parse("state of an unseen model")
LOAD = Construct.parse("state loaded into an unseen model")
CONTEXT = "state_dict_type"
NAMED = re.compile(r"model|net", re.I)
GETTING = configured.GETTING | {"builtins.getattr"}
REVIEWS = {
    INNER: "if this is a sharded model, it has no inner module now: it is the module itself",
    STATE: (
        "if this is a sharded model, its state has this rank's pieces now: FSDP1 gave whole "
        "tensors, as get_model_state_dict does with full_state_dict=True"
    ),
    LOAD: (
        "if this is a sharded model, it takes no whole tensors now: load them with "
        "set_model_state_dict and full_state_dict=True"
    ),
}


def find_inner_modules(study: Study, module: Module) -> Iterator[Site]:
    """A site for every ``self.runner.model.module``."""
    yield from _find("module", INNER, study, module)


def find_states(study: Study, module: Module) -> Iterator[Site]:
    """A site for every ``self.runner.model.state_dict()``."""
    yield from _find("state_dict", STATE, study, module)


def find_loads(study: Study, module: Module) -> Iterator[Site]:
    """A site for every ``self.runner.model.load_state_dict(state)``."""
    yield from _find("load_state_dict", LOAD, study, module)


def _find(name: str, construct: Construct, study: Study, module: Module) -> Iterator[Site]:
    if not _models(construct, module, study):
        return
    shards = any(c.module is module for c in study.constructors.values())
    for attribute in module.table.attributes_by_name.named(name):
        node = attribute.value
        if not isinstance(attribute.ctx, ast.Load) or not NAMED.search(last_name(node)):
            continue
        known = model_values.models(study.values(node, module), study.tracer)
        if known or _is_asked_about(attribute, module):
            continue
        inside = sharded_parts(node, module, study) or wrapped_by_now(node, module, study)
        if construct != INNER and inside:
            continue  # a site already
        if not shards and not _is_given_by_others(node, module, study):
            continue
        if may_be_sharded(node, module, study):
            called = module.table.parents[attribute]
            is_call = isinstance(called, ast.Call) and called.func is attribute
            place = called if is_call and isinstance(called, ast.Call) else attribute
            yield Site(construct, module, place, attribute, node)


def _models(construct: Construct, module: Module, study: Study) -> frozenset[Constructor]:
    """The models that what is unseen in a file may be: those of the file, or, for their states,
    those that functions give back which nothing here calls."""
    here = frozenset(c for c in study.constructors.values() if c.module is module)
    offered = () if here or construct == INNER else study.cache(_offered)
    return here or frozenset(c for c in study.constructors.values() if c.call in offered)


def _is_given_by_others(node: ast.expr, module: Module, study: Study) -> bool:
    """Whether something is what those give who use the project: to a constructor that nothing here
    calls, or to the function around."""
    values = study.values(node, module)
    if any(isinstance(v, Unknown) and v.is_never_made for v in values):
        return True
    found = study.defined_by(node, module) if isinstance(node, ast.Name) else ()
    return bool(found) and all(d.kind is Kind.PARAMETER for d in found)


def _offered(study: Study) -> frozenset[ast.AST]:
    """The calls that make models for those who use the project: they stand in public functions that
    give back models, and nothing here calls those."""
    found = set()
    for constructor in study.constructors.values():
        function = enclosing_function(constructor.module, constructor.call)
        if constructor.is_context or not isinstance(function, ast.FunctionDef):
            continue
        if function.name.startswith("_") or function.name == "main":
            continue
        called = study.tracer.callers(function, constructor.module)
        if not called and _gives_back(function, constructor, study):
            found.add(constructor.call)
    return frozenset(found)


def _gives_back(function: ast.FunctionDef, constructor: Constructor, study: Study) -> bool:
    returned = (n.value for n in walk(function) if isinstance(n, ast.Return) and n.value)
    return any(
        constructor in study.models(each, constructor.module).constructors for each in returned
    )


def _is_asked_about(attribute: ast.Attribute, module: Module) -> bool:
    """Whether a condition around a use asks what the object is, by its class or its attributes, or
    a context says which kind of state it gives."""
    path = access_path(attribute.value)
    child: ast.AST = attribute
    for parent in module.table.ancestors(attribute):
        if isinstance(parent, (ast.If, ast.IfExp)) and child is not parent.test:
            for call in (node for node in walk(parent.test) if isinstance(node, ast.Call)):
                if any(access_path(given) == path for given in call.args):
                    return True
        for item in parent.items if isinstance(parent, ast.With) else ():
            if last_name(getattr(item.context_expr, "func", item.context_expr)) == CONTEXT:
                return True
        child = parent
    return False


def _is_wrapped_later(node: ast.expr, module: Module, study: Study) -> bool:
    """Whether the function itself shards it further down, or gives it to one that does:
    ``net.load_state_dict(state)``, and then ``FSDP(net)`` or ``net = wrap(net)``. Or what leads to
    both, for all that may shard it: ``self.load(net)``, and then ``self.wrap(net)``."""
    if later_wraps(node, module.table.statement(node), module, study):
        return True
    return runs_before_sharding(node, module, study.reached_from(module), study)


def decide_unseen(site: Site, study: Study, rule: str) -> Decision:
    models = _models(site.construct, site.module, study)
    dropped = isinstance(site.module.table.parents[site.node], ast.Expr)
    review = "" if site.construct == STATE and dropped else REVIEWS[site.construct]
    return study.rewritten(site, rule, "kept", models=models, review=review)


def may_be_sharded(node: ast.expr, module: Module, study: Study) -> bool:
    """Whether something may be a model, or anything else, that is sharded where it stands."""
    return may_be_anything(node, module, study) and not _is_wrapped_later(node, module, study)


def may_be_anything(node: ast.expr, module: Module, study: Study) -> bool:
    """Whether nothing tells that something is no model: neither its values nor its name."""
    if unfollowed.OTHER_OBJECTS.search(ast.unparse(node)) or _is_fsdp2s(node, module):
        return False
    values = study.values(node, module)
    by_name = any(_is_got_by_name(v) or _is_made_by_name(v, study) for v in values)
    by_name = by_name or any(_is_configured_elsewhere(v, study) for v in values)
    return by_name or bool(possible_models.may_be(node, module, study.tracer))


def _is_got_by_name(value: Value) -> bool:
    return isinstance(value, Made) and value.made_by in GETTING


def _is_made_by_name(value: Value, study: Study) -> bool:
    """Whether something is the result of a function that is got by a name which is not followed:
    ``get_method(cfg.shard)(net)``, ``getattr(wrapping, name)(net)``."""
    if not isinstance(value, (Computed, Unknown)) or not isinstance(value.node, ast.Call):
        return False
    return any(_is_got_by_name(each) for each in study.values(value.node.func, value.module))


def _is_configured_elsewhere(value: Value, study: Study) -> bool:
    """Whether hydra makes something of what no configuration in sight names."""
    if not isinstance(value, Made) or value.made_by not in configured.CALLING:
        return False
    names = configured.names_of(of_kind(value.node, ast.Call), study.project)
    return not names or "" in names


def _is_fsdp2s(node: ast.expr, module: Module) -> bool:
    """Whether the function itself shards something with FSDP2: it is no model of FSDP1's, and its
    states are what the program made of them already."""
    path, function = access_path(node), enclosing_function(module, node)
    sharded = module.table.calls_by_name.of(("fully_shard",))
    return path is not None and any(
        enclosing_function(module, call) is function
        and any(access_path(given) == path for given in call.args[:1])
        for call in sharded
    )
