"""Look at sharded models the way FSDP2 shows them."""

import ast
import re
from dataclasses import replace
from typing import TypeGuard

from fsdp_migrate.analysis.flow import access_path
from fsdp_migrate.analysis.module import Module
from fsdp_migrate.analysis.values import Class, Constant, Made, Unknown
from fsdp_migrate.families.checkpoints import statedicts
from fsdp_migrate.families.names import passing, surgery
from fsdp_migrate.families.wrapping import strategy
from fsdp_migrate.fsdp1 import unwrapping
from fsdp_migrate.fsdp1.api import PACKAGE
from fsdp_migrate.fsdp1.site import Site
from fsdp_migrate.planning.context import Study
from fsdp_migrate.planning.edits import code, join
from fsdp_migrate.planning.model import Constructor, Decision
from fsdp_migrate.planning.rule import Rule
from fsdp_migrate.syntax.trees import COMPREHENSIONS, FUNCTIONS

RULE = Rule(
    code="FSDP406",
    name="introspection",
    handles=(
        "FullyShardedDataParallel.fsdp_modules",
        "FullyShardedDataParallel.module",
        "FullyShardedDataParallel._fsdp_wrapped_module",
        "FullyShardedDataParallel.process_group",
        "FullyShardedDataParallel.rank",
        "FullyShardedDataParallel.world_size",
        "string(_fsdp_wrapped_module)",
        "string(_fpw_module)",
        "string(_flat_param)",
        "FullyShardedDataParallel.check_is_root",
        "private:_common_utils.clean_tensor_name",
    ),
)


def decide(site: Site, study: Study) -> Decision:
    if site.construct.startswith("string("):
        return _string(site, study)
    if site.construct.endswith(".clean_tensor_name"):
        return _clean(site, study)
    if site.construct.endswith(".check_is_root"):
        assert site.receiver is not None
        return study.left(
            site,
            RULE.code,
            "an FSDP2 model only knows whether it is a root after its first forward",
            "compare with the module that fully_shard was called on last",
            models=study.models(site.receiver, site.module).constructors,
        )
    if site.construct.endswith(".fsdp_modules"):
        return _modules(site, study)
    if site.construct.endswith(".process_group"):
        return _group(site, study)
    if site.construct.endswith((".rank", ".world_size")):
        return _place(site, study)
    return _unwrap(site, study)


def _modules(site: Site, study: Study) -> Decision:
    call = site.node
    bound = None
    if isinstance(call, ast.Call):
        bound = statedicts.arguments(call, ("module", "root_only"))
    model = bound.get("module") if bound else None
    models = study.models_of_static(model, site.module).constructors
    root_only = bound.get("root_only") if bound else None
    flag = study.literal(root_only, site.module) if root_only is not None else None
    if model is None or (root_only is not None and (flag is None or flag.value)):
        return study.left(
            site,
            RULE.code,
            "fsdp_modules(root_only=True) has no one-line form",
            "collect the FSDPModules that lie in no other FSDPModule",
            models=models,
            quiet=True,
        )
    proposal = study.proposal()
    assert isinstance(call, ast.Call)
    kind = proposal.name(site.module, PACKAGE, "FSDPModule", site.reference)
    name = proposal.fresh(site.module, call, "m")
    new = code("[{v} for {v} in {m}.modules() if isinstance({v}, {k})]", v=name, m=model, k=kind)
    proposal.replace(site.module, call, new)
    return study.rewritten(site, RULE.code, "the FSDPModules", proposal, models=models)


def _group(site: Site, study: Study) -> Decision:
    """The group whose ranks hold the shards: of hybrid sharding the smaller one."""
    assert site.receiver is not None
    assert isinstance(site.reference, ast.expr)
    found = study.models(site.receiver, site.module)
    group = _group_in_scope(site, found.constructors, study) if found.certain else None
    if group is not None:
        proposal = study.proposal()
        new = code("{g}", g=group.id)
        if any(isinstance(v, (Constant, Unknown)) for v in study.values(group, site.module)):
            package = proposal.module_name(site.module, "torch.distributed", "dist", site.reference)
            new = code("({g} or {d}.group.WORLD)", g=group.id, d=package)
        proposal.replace(site.module, site.reference, new)
        message = "the group that was given"
        return study.rewritten(site, RULE.code, message, proposal, models=found.constructors)
    if not found.certain or not all(_over_all_ranks(c, study) for c in found.constructors):
        return study.left(
            site,
            RULE.code,
            "an FSDP2 model has no process_group",
            f"take the group of its mesh, between two steps: next({ast.unparse(site.receiver)}"
            ".parameters()).device_mesh.get_group(-1)",
            models=found.constructors,
        )
    proposal = study.proposal()
    package = proposal.module_name(site.module, "torch.distributed", "dist", site.reference)
    proposal.replace(site.module, site.reference, code("{d}.group.WORLD", d=package))
    return study.rewritten(site, RULE.code, "all ranks", proposal, models=found.constructors)


def _place(site: Site, study: Study) -> Decision:
    """``model.rank`` and ``model.world_size``, which are those of the group that shards it."""
    assert site.receiver is not None
    assert isinstance(site.reference, ast.Attribute)
    name = site.reference.attr
    found = study.models(site.receiver, site.module)
    given = _group_in_scope(site, found.constructors, study) if found.certain else None
    known = found.certain and all(_over_all_ranks(c, study) for c in found.constructors)
    if given is None and not known:
        method = "get_local_rank" if name == "rank" else "size"
        return study.left(
            site,
            RULE.code,
            f"an FSDP2 model has no {name}",
            f"ask its mesh, between two steps: next({ast.unparse(site.receiver)}"
            f".parameters()).device_mesh.{method}(-1)",
            models=found.constructors,
            quiet=passing.is_passed_over(site.reference, site.module, study),
        )
    proposal = study.proposal()
    package = proposal.module_name(site.module, "torch.distributed", "dist", site.reference)
    new = code(f"{{d}}.get_{name}({given.id if given is not None else ''})", d=package)
    proposal.replace(site.module, site.reference, new)
    message = "that of the group" if given is not None else "that of all ranks"
    return study.rewritten(site, RULE.code, message, proposal, models=found.constructors)


def _group_in_scope(
    site: Site, constructors: frozenset[Constructor], study: Study
) -> ast.Name | None:
    """The name of the group that the model was given, where it stands for the same still."""
    if len(constructors) != 1:
        return None
    (constructor,) = constructors
    group = constructor.arguments.get("process_group")
    if constructor.module is not site.module or not isinstance(group, ast.Name):
        return None
    if constructor.is_open or constructor.is_context or constructor.has("device_mesh"):
        return None
    if strategy.of(constructor, study) not in {"FULL_SHARD", "SHARD_GRAD_OP"}:
        return None
    table = site.module.table
    for parent in table.ancestors(constructor.call):
        if isinstance(parent, FUNCTIONS):
            break
        if isinstance(parent, (ast.For, ast.AsyncFor, ast.While, *COMPREHENSIONS)):
            return None  # each model may have another group
    owner = table.within[group].lookup(group.id)
    here = table.scope_of(site.statement)
    if owner is None or owner is not here.lookup(group.id) or len(owner.bindings[group.id]) != 1:
        return None
    same = table.scope_of(group).function() is here.function()
    return group if same else None


def _over_all_ranks(constructor: Constructor, study: Study) -> bool:
    given = constructor.has("process_group") or constructor.has("device_mesh")
    if constructor.is_open or constructor.is_context or given:
        return False
    return strategy.of(constructor, study) in {"FULL_SHARD", "SHARD_GRAD_OP", "NO_SHARD"}


def _unwrap(site: Site, study: Study) -> Decision:
    assert site.receiver is not None
    found = study.models(site.receiver, site.module)
    assert isinstance(site.reference, ast.Attribute)
    if found.certain and _asks_inner_state(site, study):
        return study.left(
            site,
            RULE.code,
            "FSDP1 gave the state of the module inside as it held it, in parts of its flat "
            "parameters",
            "use get_model_state_dict(model, options=StateDictOptions(full_state_dict=True))",
            models=found.constructors,
            quiet=True,
        )
    around = {c for c in study.constructors.values() if c.keeps_class}
    if not around.isdisjoint(found.constructors or study.constructors.values()):
        return _of_a_class(site, around, study)
    if unwrapping.is_in_loop(site.reference, site.module):
        message = "kept for other wrappers: no FSDP2 model comes here"
        models = found.constructors or frozenset(study.constructors.values())
        return study.rewritten(site, RULE.code, message, models=models)
    # Nothing but FSDP1's wrapper has that attribute: where the line runs, it is one.
    only_fsdp1s = site.reference.attr == "_fsdp_wrapped_module" and bool(study.constructors)
    if not found.certain and not (only_fsdp1s and not _asks_inner_state(site, study)):
        return _unwrap_any(site, found.constructors, study)
    models = found.constructors or frozenset(study.constructors.values())
    proposal = study.proposal()
    proposal.replace(site.module, site.reference, code("{m}", m=site.receiver))
    return study.rewritten(site, RULE.code, "the model itself", proposal, models=models)


def _of_a_class(site: Site, around: set[Constructor], study: Study) -> Decision:
    """``model.module`` where models are, or may be, of a class around the module."""
    assert site.receiver is not None
    assert isinstance(site.reference, ast.Attribute)
    concerned = study.models(site.receiver, site.module).constructors or around
    if not concerned <= around:
        return study.left(
            site,
            RULE.code,
            "the model may be of a class derived from FSDP's, which keeps the module in it, or not",
            "ask by class which it is",
            models=concerned,
            quiet=unwrapping.is_in_loop(site.reference, site.module),
        )
    proposal = study.proposal()
    if site.reference.attr != "module":
        proposal.replace(site.module, site.reference, code("{m}.module", m=site.receiver))
    message = "kept: the class has the module in it still"
    return study.rewritten(site, RULE.code, message, proposal, models=concerned)


def _unwrap_any(site: Site, models: frozenset[Constructor], study: Study) -> Decision:
    """``model.module`` of what may also be another wrapper, which has an inner module as before."""
    assert isinstance(site.reference, ast.Attribute)
    assert site.receiver is not None
    own = _own_inner_module(models, study)
    if not own and models and _asks_first(site):
        message = "kept: an FSDP2 model has no inner module, which is asked first"
        return study.rewritten(site, RULE.code, message, models=models)
    is_path = access_path(site.receiver) is not None
    named = is_path and site.reference.attr == "module"
    reason = "the wrapper that is taken off here may be FSDP's or another one's"
    help_ = "an FSDP2 model has no inner module: use the model itself"
    if own:
        reason = "the model has an attribute module of its own, which would be taken for FSDP1's"
        help_ = "take the wrapper off by its class: model.module if it is the other one's"
        return study.left(site, RULE.code, reason, help_, models=models, quiet=True)
    if not models or not named or _asks_inner_state(site, study):
        return study.left(site, RULE.code, reason, help_, models=models)
    proposal = study.proposal()
    new = code('getattr({m}, "module", {n})', m=site.receiver, n=ast.unparse(site.receiver))
    proposal.replace(site.module, site.reference, new)
    message = "the model itself, or what another wrapper holds"
    return study.rewritten(site, RULE.code, message, proposal, models=models)


def _asks_first(site: Site) -> bool:
    """Whether ``model.module`` stands under ``hasattr(model, "module")``."""
    assert site.receiver is not None
    path = access_path(site.receiver)
    child: ast.AST = site.node
    for parent in site.module.table.ancestors(site.node):
        if isinstance(parent, FUNCTIONS):
            return False
        body = getattr(parent, "body", None)
        inside = body is child or (isinstance(body, list) and child in body)
        if inside and isinstance(parent, (ast.If, ast.IfExp, ast.While)):
            tests = [parent.test]
            if isinstance(parent.test, ast.BoolOp) and isinstance(parent.test.op, ast.And):
                tests = parent.test.values
            if path is not None and any(_is_question(test, path) for test in tests):
                return True
        child = parent
    return False


def _is_question(test: ast.expr, path: str) -> bool:
    match test:
        case ast.Call(func=ast.Name(id="hasattr"), args=[asked, ast.Constant(value="module")]):
            return access_path(asked) == path
    return False


def _own_inner_module(models: frozenset[Constructor], study: Study) -> bool:
    """Whether a wrapped model may have an attribute ``module`` of its own."""
    known: list[Class] = []
    for wrapped in (w for c in models for w in c.wraps):
        for value in study.values(wrapped.wrapped, wrapped.module):
            if isinstance(value, Made) and isinstance(value.callee, Class):
                known.append(value.callee)
    return any(_defines_module(related) for cls in known for related in study.tracer.family(cls))


def _defines_module(cls: Class) -> bool:
    if "module" in cls.module.table.scopes[cls.node].bindings:
        return True
    for node in ast.walk(cls.node):
        match node:
            case ast.Attribute(value=ast.Name(id="self"), attr="module", ctx=ast.Store()):
                return True
            case ast.Call(
                func=ast.Attribute(attr="add_module" | "register_module" | "register_buffer"),
                args=[ast.Constant(value="module"), *_],
            ):
                return True
    return False


def _asks_inner_state(site: Site, study: Study) -> bool:
    """``model.module.state_dict()``, which would quietly become the shards of the model.

    Also of a name, an attribute, or a function's result that ``model.module`` becomes.
    """
    for module in study.project.modules:
        for method in module.table.attributes_by_name.of(STATE):
            if not _is_state(method, module) or _in_context(method, module, study):
                continue
            if method.value is site.reference:
                return True
            found = study.values(method.value, module)
            inner = any(v.node is site.reference for v in found)
            if inner and not study.traced(method.value, module):
                return True  # else it is a site of its own
    return False


STATE = frozenset({"state_dict", "load_state_dict", "save_pretrained"})


def _is_state(method: ast.Attribute, module: Module) -> bool:
    if method.attr in {"state_dict", "load_state_dict"}:
        return True
    call = module.table.parents[method]
    if method.attr != "save_pretrained" or not isinstance(call, ast.Call):
        return False
    return all(k.arg not in {"state_dict", None} for k in call.keywords)


def _in_context(node: ast.AST, module: Module, study: Study) -> bool:
    return any(
        statedicts.is_context(item.context_expr, module, study)
        for parent in module.table.ancestors(node)
        if isinstance(parent, ast.With)
        for item in parent.items
    )


def _clean(site: Site, study: Study) -> Decision:
    """torch's private function: of FSDP2's names it removes what checkpointing adds."""
    call = site.node
    models = study.constructors.values()
    bound = statedicts.arguments(call, ("tensor_name",)) if isinstance(call, ast.Call) else None
    if not models or not bound:
        return study.left(
            site,
            RULE.code,
            "it belongs to FSDP1's private modules",
            "write it out: name.replace('_checkpoint_wrapped_module.', '')",
        )
    proposal = study.proposal()
    assert isinstance(call, ast.Call)
    new = code('{n}.replace("_checkpoint_wrapped_module.", "")', n=bound["tensor_name"])
    proposal.replace(site.module, call, new)
    return study.rewritten(site, RULE.code, "names are clean", proposal, models=models)


def _string(site: Site, study: Study) -> Decision:
    models = study.constructors.values()
    assert isinstance(site.node, ast.Constant)
    removal = surgery.removal(site.node, site.module)
    if removal is not None:
        return _removed(removal, site, study)
    asked = surgery.asks(site.node, site.module)
    if asked is not None:  # as what it asks for
        removal = surgery.removal(asked[1], site.module)
        assert removal is not None
        of_models = all(surgery.is_models(n, site.module, study) for n in removal.names)
        decision = _removed(removal, site, study)
        gone = of_models and bool(models)
        return replace(decision, edits=(), message="gone with it") if gone else decision
    call = site.module.table.parents[site.node]
    proposal = study.proposal()
    if models and isinstance(call, ast.Call) and _is_unwrapping(site.node, call):
        asked_of = study.models(call.args[0], site.module).constructors or frozenset(models)
        around = {c for c in asked_of if c.keeps_class}
        if around:
            return _unwrapped_by_name(site, asked_of, asked_of == around, study)
        proposal.replace(site.module, call, code("{v}", v=call.args[2]))
        message = "an FSDP2 model has no inner module"
        return study.rewritten(site, RULE.code, message, proposal, models=models)
    clean = str(site.node.value).replace("_fsdp_wrapped_module.", "")
    if clean != site.node.value and PATH.fullmatch(clean) and models and not _in_f_string(call):
        if surgery.meets_models(site.node, site.module, study):
            proposal.replace(site.module, site.node, code("{s}", s=f'"{clean}"'))
            return study.rewritten(site, RULE.code, "the name without it", proposal, models=models)
        return study.left(
            site,
            RULE.code,
            "FSDP2 has no such part in its names, and it is not seen whose name this is",
            "write it without that part where it is for names of a model; what FSDP1 saved keeps "
            "it",
            models=models,
            quiet=True,
        )
    return study.left(
        site,
        RULE.code,
        "FSDP2 has no such part in its names",
        "drop what was done for FSDP1's names",
    )


def _removed(removal: surgery.Removal, site: Site, study: Study) -> Decision:
    """Names of models need it no more; others, in checkpoints of FSDP1's, may."""
    models = study.constructors.values()
    if not models:
        left = study.left(site, RULE.code, study.no_models, "drop it when none is FSDP1's any more")
        return replace(left, edits=(), kept=True)  # it does no harm: nothing to say in the code
    if not all(surgery.is_models(name, site.module, study) for name in removal.names):
        message = "kept: names that come from elsewhere may have it"
        return study.kept_as_is(site, RULE.code, message, models=models)
    proposal = study.proposal()
    if removal.listed is not None:
        listed = join(", ", [code("{o}", o=other) for other in removal.others])
        proposal.replace(site.module, removal.listed, code("({o},)", o=listed))
    elif _repeats(site.statement, removal.calls[0]):
        around = site.module.table.parents[site.statement]
        proposal.delete(site.module, around if _only_asks(around, site) else site.statement)
    else:
        proposal.replace(site.module, removal.calls[0], code("{v}", v=removal.names[0]))
    return study.rewritten(site, RULE.code, "names are clean", proposal, models=models)


def _only_asks(around: ast.AST, site: Site) -> TypeGuard[ast.If]:
    """Whether the statement around a removal asks for nothing but what is removed."""
    if not isinstance(around, ast.If):
        return False
    strings = [n for n in ast.walk(around.test) if isinstance(n, ast.Constant)]
    asked = [surgery.asks(string, site.module) for string in strings]
    return len(asked) == 1 and asked[0] is not None and asked[0][0] is around


def _unwrapped_by_name(
    site: Site, models: frozenset[Constructor], always: bool, study: Study
) -> Decision:
    """``getattr(model, "_fsdp_wrapped_module", model)`` of classes with the module in them."""
    if not always:
        return study.left(
            site,
            RULE.code,
            "the model may be of a class derived from FSDP's, which keeps the module in it, or not",
            "ask by class which it is",
            models=models,
            quiet=True,
        )
    proposal = study.proposal()
    assert isinstance(site.node, ast.expr)
    proposal.replace(site.module, site.node, code('"module"'))
    return study.rewritten(site, RULE.code, "the module in the class", proposal, models=models)


PATH = re.compile(r"[A-Za-z_]\w*(?:\.\w+)*\.?")  # a dotted name, no pattern


def _in_f_string(parent: ast.AST) -> bool:
    return isinstance(parent, (ast.JoinedStr, ast.FormattedValue))


def _repeats(statement: ast.stmt, call: ast.Call) -> bool:
    """``name = name.replace(...)``, which would become ``name = name``."""
    if not isinstance(statement, ast.Assign) or statement.value is not call:
        return False
    assert isinstance(call.func, ast.Attribute)
    paths = [access_path(target) for target in statement.targets]
    alone = len(statement.targets) == 1
    return alone and paths[0] is not None and paths[0] == access_path(call.func.value)


def _is_unwrapping(node: ast.Constant, call: ast.Call) -> bool:
    """``getattr(model, "_fsdp_wrapped_module", default)``."""
    named = call.func.id if isinstance(call.func, ast.Name) else ""
    exact = str(node.value).strip(".") == surgery.PART
    return exact and named == "getattr" and len(call.args) == 3 and call.args[1] is node
