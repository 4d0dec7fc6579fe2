"""Subclasses of FSDP: those that only hand their arguments on are functions in FSDP2.

``class Sharded(FSDP)`` whose ``__init__`` does nothing but call FSDP1's, or that has none, adds no
behaviour. What it makes is an FSDP1 model with some arguments settled, so it becomes a function
that calls ``shard``, and its calls stay as they are. Of the others see :mod:`.module_subclasses`.
"""

from __future__ import annotations

import ast
from dataclasses import dataclass

from fsdp_migrate.analysis.module import Module
from fsdp_migrate.analysis.values import Class
from fsdp_migrate.families.subclasses import module_subclasses
from fsdp_migrate.families.wrapping import forward_registration, run_time
from fsdp_migrate.fsdp1 import api as fsdp1
from fsdp_migrate.fsdp1.construct import Construct, ConstructKind
from fsdp_migrate.fsdp1.site import Site
from fsdp_migrate.planning.context import Study
from fsdp_migrate.planning.edits import Code, code, join
from fsdp_migrate.planning.model import Constructor, Decision
from fsdp_migrate.syntax.kinds import of_kind

RULE = "FSDP103"
SUBCLASS = Construct(ConstructKind.CLASS, fsdp1.FSDP)


@dataclass(frozen=True, eq=False)
class Forwarding:
    """A subclass that could as well be a function: it only hands arguments on."""

    definition: ast.ClassDef
    call: ast.Call  # FSDP1's constructor: ``super().__init__(...)``, or ``FSDP(*args, **kwargs)``
    parameters: ast.arguments | None  # None when it has FSDP1's own


def forwarding(site: Site, study: Study) -> Forwarding | None:
    """The subclass at a site, if it only forwards arguments and is only ever called."""
    definition = site.definition
    if len(definition.bases) != 1 or definition.keywords or definition.decorator_list:
        return None
    if site.module.table.scope_of(definition) is not site.module.table.module:
        return None
    found = _read(definition)
    return found if found is not None and _is_only_called(definition, study) else None


def _read(definition: ast.ClassDef) -> Forwarding | None:
    body = definition.body[1:] if ast.get_docstring(definition) is not None else definition.body
    match body:
        case [] | [ast.Pass()]:
            call = of_kind(ast.parse("FSDP(*args, **kwargs)", mode="eval").body, ast.Call)
            return Forwarding(definition, call, None)
        case [ast.FunctionDef(name="__init__", args=parameters, decorator_list=[]) as init]:
            statements = init.body[1:] if ast.get_docstring(init) is not None else init.body
            named = [*parameters.posonlyargs, *parameters.args]
            match statements:
                case [ast.Expr(value=ast.Call() as call)] if named and _is_super(call):
                    own = named[0].arg
                    uses = (n.id for n in ast.walk(call) if isinstance(n, ast.Name))
                    return None if own in uses else Forwarding(definition, call, parameters)
    return None


def _is_super(call: ast.Call) -> bool:
    match call.func:
        case ast.Attribute(
            attr="__init__", value=ast.Call(func=ast.Name(id="super"), args=[], keywords=[])
        ):
            return True
    return False


def _is_only_called(definition: ast.ClassDef, study: Study) -> bool:
    """Whether the class is only ever called: a function can then take its place."""
    for module in study.project.modules:
        name = definition.name
        mentions: list[ast.expr] = [*module.table.names_by_id.named(name)]
        mentions += module.table.attributes_by_name.named(name)
        for mention in mentions:
            parent = module.table.parents[mention]
            if not (isinstance(parent, ast.Call) and parent.func is mention):
                return False
    return True


def calls(definition: ast.ClassDef, study: Study) -> tuple[tuple[ast.Call, Module], ...]:
    """Where the class is called."""
    return tuple(
        (call, module)
        for call, module in study.tracer.calls_named(definition.name)
        if any(
            isinstance(v, Class) and v.node is definition for v in study.values(call.func, module)
        )
    )


def register(site: Site, study: Study) -> None:
    """Register a subclass as a constructor of FSDP1 models."""
    found = forwarding(site, study)
    if found is None:
        module_subclasses.register(site, study)
        return
    constructor = Constructor.read(found.call, site.module, site.reference)
    constructor.defined_by = found.definition
    constructor.made_at = calls(found.definition, study)
    if not constructor.is_wrong:
        study.constructors[found.definition] = constructor


def construct(site: Site, study: Study) -> list[Decision]:
    """Decide a subclass together with the arguments that it gives FSDP1."""
    constructor = study.constructors[site.node]
    models = frozenset({constructor})
    if site.node not in study.run_time:
        return [leave_subclass(site, study)]
    found = forwarding(site, study)
    if found is None:
        return module_subclasses.construct(site, study)
    proposal = study.proposal()
    shard = proposal.support(site.module, run_time.FUNCTION, site.reference)
    arguments = _arguments(found)
    review = run_time.place_among_models(constructor, study, arguments)
    text = ast.get_docstring(found.definition, clean=False)
    lines = [_header(found)]
    if text is not None:
        first = of_kind(found.definition.body[0], ast.Expr)
        lines.append(code("    {d}", d=first.value))
    lines.append(code("    return {s}({a})", s=shard, a=join(", ", arguments)))
    proposal.replace_statement(site.module, found.definition, join("\n", lines))
    forward_registration.register_made(constructor, proposal, study)
    whole = study.rewritten(
        site, RULE, "a function that calls shard", proposal, models=models, review=review
    )
    return [whole, *run_time.arguments(constructor, site.module, study, models)]


def leave_subclass(site: Site, study: Study) -> Decision:
    reason = "an FSDP2 model is the module itself: there is no wrapper to derive from"
    why = (
        module_subclasses.read_subclass(site, study)
        if site.node not in study.constructors
        else None
    )
    if isinstance(why, str):
        reason = f"it cannot be a module around the sharded one: {why}"
    return study.left(
        site,
        RULE,
        reason,
        "make it a function that builds and shards the module",
        models=[study.constructors[site.node]] if site.node in study.constructors else (),
    )


def _arguments(found: Forwarding) -> list[Code]:
    if found.parameters is None:
        return [code("*args"), code("**kwargs")]
    result = [
        code("{a}", a=a) if not isinstance(a, ast.Starred) else code("*{a}", a=a.value)
        for a in found.call.args
    ]
    for keyword in found.call.keywords:
        name = f"{keyword.arg}=" if keyword.arg else "**"
        result.append(code(name + "{v}", v=keyword.value))
    return result


def _header(found: Forwarding) -> Code:
    name = found.definition.name
    given = found.parameters
    if given is None:
        return code("def {n}(*args, **kwargs):", n=name)
    positional = [*given.posonlyargs, *given.args]
    defaults: list[ast.expr | None] = [None] * (len(positional) - len(given.defaults))
    parts = [
        _parameter(parameter, default)
        for parameter, default in zip(positional, [*defaults, *given.defaults], strict=True)
    ][1:]
    if given.posonlyargs[1:]:
        parts.insert(len(given.posonlyargs) - 1, code("/"))
    if given.vararg is not None:
        parts.append(_parameter(given.vararg, None, "*"))
    elif given.kwonlyargs:
        parts.append(code("*"))
    parts += [_parameter(p, d) for p, d in zip(given.kwonlyargs, given.kw_defaults, strict=True)]
    if given.kwarg is not None:
        parts.append(_parameter(given.kwarg, None, "**"))
    return code("def {n}({p}):", n=name, p=join(", ", parts))


def _parameter(parameter: ast.arg, default: ast.expr | None, star: str = "") -> Code:
    result = code(star + parameter.arg)
    if parameter.annotation is not None:
        result = code("{r}: {a}", r=result, a=parameter.annotation)
    if default is None:
        return result
    template = "{r} = {d}" if parameter.annotation is not None else "{r}={d}"
    return code(template, r=result, d=default)


def is_subclass(site: Site) -> bool:
    return site.construct == SUBCLASS
