"""A wrapper around a model that is wrapped already, by the same function or by another one.

``FSDP(shard_model(net))``: FSDP1's second wrapper held no parameters and gathered nothing, while
``fully_shard`` takes a module only once, so that the second call goes. All that it decided was
what the inputs were cast to, as the root; FSDP1 refuses a policy for such a module.
"""

from __future__ import annotations

import ast

from fsdp_migrate.analysis.flow import access_path
from fsdp_migrate.analysis.module import Module
from fsdp_migrate.fsdp1.construct import Construct
from fsdp_migrate.fsdp1.references import enclosing_function
from fsdp_migrate.fsdp1.site import Site
from fsdp_migrate.planning.context import Study
from fsdp_migrate.planning.edits import code
from fsdp_migrate.planning.model import Constructor, Decision
from fsdp_migrate.planning.prose import sentences
from fsdp_migrate.syntax.expressions import last_name
from fsdp_migrate.syntax.scopes import Kind
from fsdp_migrate.syntax.trees import block_of

RULE = "FSDP101"
DEEP = 4  # names and callers that hand a model on
# Whose values are objects of FSDP1's, which have to become something else where they are made.
SETTINGS = ("mixed_precision", "sharding_strategy", "cpu_offload", "backward_prefetch")
# What a wrapper without parameters does to its module all the same, or FSDP1 refuses.
ACTING = ("auto_wrap_policy", "param_init_fn", "sync_module_states")
MAY_BE = (
    "this may be an FSDP model already, of which FSDP1 made nothing new: fully_shard takes a "
    "module only once"
)
CASTS = (
    "the second wrapper goes, and the first one's root casts the inputs to its param_dtype, as it "
    "does for the other callers: here FSDP1 did not cast them"
)


def register(study: Study) -> None:
    """Find the constructors that wrap nothing but what others have wrapped."""
    if len(study.constructors) < 2:
        return
    found = {c: _wrapped_before(c, study) for c in study.constructors.values()}
    for constructor, inner in found.items():
        first = _first(inner, found)
        if first and constructor not in _all_inside(first, study):
            study.second_wrappers[constructor] = first


def _first(
    inner: tuple[Constructor, ...], found: dict[Constructor, tuple[Constructor, ...]]
) -> tuple[Constructor, ...]:
    """The innermost of several wrappers; none where one wraps what it makes, in a loop say."""
    for _ in found:
        if not any(found[each] for each in inner):
            return inner
        inner = tuple(dict.fromkeys(f for each in inner for f in found[each] or (each,)))
    return ()


def _all_inside(constructors: tuple[Constructor, ...], study: Study) -> set[Constructor]:
    """Some constructors and those whose models they may wrap: in a circle, nobody is the second."""
    found: set[Constructor] = set()
    waiting = [*constructors]
    while waiting:
        constructor = waiting.pop()
        if constructor not in found and constructor.has_module:
            found.add(constructor)
            waiting += study.models(constructor.wrapped, constructor.module).constructors
    return found


def _wrapped_before(constructor: Constructor, study: Study) -> tuple[Constructor, ...]:
    """The constructors of all that another one may wrap, if that one does nothing more."""
    plain = not (
        constructor.problem
        or constructor.is_context
        or constructor.is_open
        or constructor.is_function
        or constructor.dictionary is not None
        or constructor.defined_by is not None
        or constructor.choice is not None
        or constructor in study.wrapping.contexts
    )
    if not plain or not constructor.has_module or any(map(constructor.may_have, ACTING)):
        return ()
    models = study.models(constructor.wrapped, constructor.module)
    inner = models.constructors
    if isinstance(constructor.wrapped, ast.Attribute) and _is_spare(constructor):
        inner -= {constructor}  # what an attribute is afterwards counts among what it may be
    if not inner or not models.certain or constructor in inner:
        return ()
    if inner & study.wrapping.constructors:
        return ()
    if any(c.defined_by is not None or c.choice is not None for c in inner):
        return ()
    if any(not _is_theirs(name, constructor, inner, study) for name in SETTINGS):
        return ()
    if constructor.has("mixed_precision") and not _casts_alike(constructor, inner, study):
        return ()
    return tuple(sorted(inner, key=lambda c: c.place))


def _is_theirs(name: str, outer: Constructor, inner: frozenset[Constructor], study: Study) -> bool:
    """Whether an argument is written in the call, or is one that the other wrappers get as well."""
    if name not in outer.arguments:
        return True
    written = set(ast.walk(outer.call))
    elsewhere = _origins(name, outer, study) - written
    return all(elsewhere <= _origins(name, each, study) for each in inner)


def _origins(name: str, constructor: Constructor, study: Study) -> set[ast.AST]:
    if name not in constructor.arguments:
        return set()
    return {v.node for v in study.values(constructor.arguments[name], constructor.module)}


def _casts_alike(outer: Constructor, inner: frozenset[Constructor], study: Study) -> bool:
    """Whether all of these wrappers have the same mixed precision."""
    written = {
        frozenset(map(ast.dump, _origins("mixed_precision", each, study)))
        for each in (outer, *inner)
    }
    return len(written) == 1 and all(len(each) < 2 for each in written)


def casts_inputs(outer: Constructor, study: Study) -> bool:
    """Whether a second wrapper casts the inputs as the wrappers inside of it would as roots."""
    return _casts_alike(outer, frozenset(study.second_wrappers[outer]), study)


def decide(site: Site, study: Study, *, review: bool) -> list[Decision]:
    """``model = FSDP(model)`` goes, and of any other call what is wrapped stays.

    Args:
        review: the inputs are cast now.
    """
    outer = study.constructors[site.node]
    models = frozenset({outer, *study.second_wrappers[outer]})
    proposal = study.proposal()
    following = _next_statement(outer) if _is_spare(outer) else None
    marked = review and following is not None
    if _is_spare(outer) and (marked or not review):
        proposal.delete(site.module, outer.statement)
    else:
        proposal.replace(site.module, outer.call, code("{w}", w=outer.wrapped))
    if marked and following is not None:
        proposal.mark(site.module, following, RULE, sentences(CASTS))
    said = CASTS if review else ""
    message = "the second of two wrappers goes: it held no parameters"
    whole = study.rewritten(
        site, RULE, message, proposal, models=models, review=said, marked=marked
    )
    decided = [whole]
    for name, node in outer.nodes().items():
        if name != "module":
            part = Site(Construct.of_argument(name), site.module, node, node)
            rule = study.registry.find(part.construct)
            code_of_rule = rule.code if rule else RULE
            message = "goes with the wrapper"
            decided.append(study.rewritten(part, code_of_rule, message, models=models))
    return decided


def _is_spare(outer: Constructor) -> bool:
    """``model = FSDP(model)``, or ``FSDP(model)`` whose value nothing takes."""
    path = access_path(outer.wrapped)
    match outer.statement:
        case ast.Assign(targets=[target], value=value) if value is outer.call:
            return path is not None and path == access_path(target)
        case ast.Expr(value=value) if value is outer.call:
            return path is not None
    return False


def _next_statement(outer: Constructor) -> ast.stmt | None:
    block = block_of(outer.module.table.parents[outer.statement], outer.statement)
    later = block[block.index(outer.statement) + 1 :]
    return later[0] if later else None


def doubt(constructor: Constructor, study: Study) -> str:
    """What has to be judged where a module is wrapped that may have been wrapped before."""
    if not constructor.has_module:
        return ""
    models = study.models(constructor.wrapped, constructor.module)
    if not models or models.certain:
        return ""
    return MAY_BE if _is_handed(constructor.wrapped, constructor.module, study, DEEP) else ""


def _is_handed(node: ast.expr, module: Module, study: Study, depth: int) -> bool:
    """Whether a name, or the result of a call, may be a model. What an attribute or an item is,
    others may set: ``layers[i] = shard(layers[i])`` wraps each once, and so does
    ``setattr(self, name, FSDP(getattr(self, name)))``."""
    match node:
        case ast.Call(func=called) if last_name(called) in {"getattr", "get_submodule"}:
            return False
        case ast.Call():
            return bool(study.models(node, module))
        case ast.IfExp(body=one, orelse=other):
            return any(_is_handed(each, module, study, depth) for each in (one, other))
        case ast.Name() if depth:
            for definition in study.defined_by(node, module):
                value = definition.value
                given = [(value, module)] if value is not None else []
                if definition.kind is Kind.PARAMETER:
                    given = _given(node, module, study)
                elif definition.kind is not Kind.ASSIGN or definition.unpack:
                    continue
                if any(_is_handed(each, where, study, depth - 1) for each, where in given):
                    return True
    return False


def _given(name: ast.Name, module: Module, study: Study) -> list[tuple[ast.expr, Module]]:
    """What the callers of the function around a parameter give for it."""
    function = enclosing_function(module, name)
    if not isinstance(function, (ast.FunctionDef, ast.AsyncFunctionDef)):
        return []
    callers = study.tracer.callers(function, module)
    given = [(caller.argument(function, name.id), caller.module) for caller in callers]
    return [(each, where) for each, where in given if each is not None]
