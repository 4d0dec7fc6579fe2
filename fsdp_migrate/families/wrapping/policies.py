"""Read FSDP1 auto wrap policies, wherever in the project they were made.

FSDP1 calls a policy per module while it wraps. What is needed here is the set of modules it picks:
from classes, from a predicate, from several policies joined, or, when the policy counts
parameters, only by walking the tree the way ``torch/distributed/fsdp/wrap.py`` does.
"""

from __future__ import annotations

import ast
import contextlib
import itertools
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from enum import Enum, auto

from fsdp_migrate.analysis.flow import access_path
from fsdp_migrate.analysis.module import Module
from fsdp_migrate.analysis.values import (
    Computed,
    Constant,
    Display,
    External,
    Function,
    Made,
    Unknown,
    Value,
    Values,
)
from fsdp_migrate.families.wrapping import policy_lists, policy_signatures
from fsdp_migrate.families.wrapping.policy_functions import (
    answers,
    gives_labels,
    is_truth,
    looks_everywhere,
    minds_order,
)
from fsdp_migrate.fsdp1 import api as fsdp1
from fsdp_migrate.planning.context import Study
from fsdp_migrate.planning.model import Constructor
from fsdp_migrate.syntax.trees import FUNCTIONS, walk


class Kind(Enum):
    NONE = auto()  # no policy: one unit
    CLASSES = auto()
    PREDICATE = auto()
    ANY = auto()
    ALL = auto()
    WALK = auto()  # needs (module, recurse, nonwrapped_numel)


class Unreadable(Exception):
    """The policy cannot be read; the message says why, starting in lower case."""


class NoPolicy(Unreadable):
    """FSDP1 cannot take it for a policy either."""


@dataclass(frozen=True, eq=False)
class Policy:
    """One policy value. ``node`` is its origin; ``argument`` what defines it there: the classes,
    the predicate, or the list of joined policies. ``parts`` are those, or what a function asks."""

    kind: Kind
    module: Module
    node: ast.AST
    argument: ast.expr | None = None
    parts: tuple[tuple[Policy, ...], ...] = field(default=())
    looks_everywhere: bool = False  # of a function that walks: it only tests modules
    labels: bool = False  # ... and writes down at a module what it answers for those in it
    named: bool = False  # the list of joined policies has a name
    is_open: bool = False  # not all that it asks is in sight
    by_size: bool = False  # it only counts: ``argument`` is how many parameters make a unit
    is_called: bool = False  # it is called where FSDP1 wants it handed on, and raises

    @property
    def needs_walk(self) -> bool:
        return self.kind is Kind.WALK or any(p.needs_walk for part in self.parts for p in part)

    @property
    def joined(self) -> list[Policy]:
        """The policies that are joined in it, however far in; itself if it is none of those."""
        if self.kind is not Kind.ANY:
            return [self]
        return [each for part in self.parts for p in part for each in p.joined]

    @property
    def computes_classes(self) -> bool:
        """Whether its classes are computed: those of modules are others once these are sharded,
        ``type(model.layers[-1])``."""
        if self.kind is not Kind.CLASSES or self.argument is None:
            return False
        is_written = isinstance(self.argument, (ast.Set, ast.List, ast.Tuple))
        if not is_written:
            return access_path(self.argument) is None
        return any(
            isinstance(node, ast.Call)
            or (isinstance(node, ast.Attribute) and node.attr == "__class__")
            for node in walk(self.argument)
        )

    @property
    def asks_computed_classes(self) -> bool:
        """Whether it asks for such classes, and other things as well."""
        return self.kind is Kind.ANY and any(p.computes_classes for p in self.joined)

    @property
    def counts_joined(self) -> bool:
        """Whether policies that only count are joined with others, or with nothing."""
        return self.kind is Kind.ANY and any(p.by_size for p in self.joined)


def read(values: Iterable[Value], study: Study) -> list[Policy]:
    """Every policy an expression may be.

    Raises:
        Unreadable: one of them cannot be followed or is of a kind that has no FSDP2 form.
    """
    return [_read_one(value, study) for value in _ordered(values)]


def is_open(value: Value, study: Study) -> bool:
    """A value that is made outside the given paths, or in a way that is not followed."""
    match value:
        case External(name=name):
            return fsdp1.canonical(name) is None
        case Made(made_by="functools.partial", node=ast.Call(args=[bound, *_])):
            called = study.tracer.evaluate(bound, value.module, value.frame)
            return any(is_open(each, study) for each in called)
        case Made(callee=External(name=name)):
            return fsdp1.canonical(name) is None
    return isinstance(value, (Unknown, Computed))


def read_policies(constructor: Constructor, study: Study) -> list[Policy] | None:
    """Every policy that a constructor may be given; None for none, or one that cannot be read."""
    policy = constructor.arguments.get("auto_wrap_policy")
    if policy is None:
        return None
    try:
        return read(study.values(policy, constructor.module), study)
    except Unreadable:
        return None


def refused(values: Iterable[Value], study: Study) -> str:
    """Why FSDP1 stops at one of some policies, in whatever form its constructor is written."""
    for value in _ordered(values):
        try:
            found = [] if is_open(value, study) else [_read_one(value, study)]
        except NoPolicy as problem:
            return str(problem)
        except Unreadable:
            continue
        if any(policy.is_called for policy in found):
            return "the policy is called here, which FSDP1 stops at: bind it by functools.partial"
    return ""


def _ordered(values: Iterable[Value]) -> list[Value]:
    return sorted(
        values, key=lambda v: (v.module.display, *v.module.position(v.node), type(v).__name__)
    )


def _read_one(value: Value, study: Study) -> Policy:
    match value:
        case Constant(value=None):
            return Policy(Kind.NONE, value.module, value.node)
        case External(name=name):
            return _named(fsdp1.canonical(name), value)
        case Function():
            looks = looks_everywhere(value) and not minds_order(value, study)
            labels = looks and gives_labels(value)
            parts = _asked_by(value, study)
            return Policy(
                Kind.WALK,
                value.module,
                value.node,
                None,
                parts,
                looks_everywhere=looks,
                labels=labels,
            )
        case Made(node=ast.Call() as call):
            return _made(value, call, study)
        case Display():
            raise NoPolicy("FSDP1 takes no collection of classes for a policy")
    why = study.unknown([value])
    raise Unreadable(f"the policy: {why}" if why else "the policy is made in a way not known")


def _asked_by(function: Function, study: Study) -> tuple[tuple[Policy, ...], ...]:
    """The policies of torch that a policy function calls, by themselves or as they were made."""
    found = []
    module = function.module
    for call in ast.walk(function.node):
        values = study.values(call.func, module) if isinstance(call, ast.Call) else ()
        for value in _ordered(values):
            if isinstance(value, External) and fsdp1.canonical(value.name) in fsdp1.POLICIES:
                found.append((Policy(Kind.WALK, module, call),))
            elif isinstance(value, Made):
                with contextlib.suppress(Unreadable):
                    found.append((_read_one(value, study),))
    return tuple(found)


def _named(name: str | None, value: Value) -> Policy:
    if name == "always_wrap_policy":
        return Policy(Kind.ALL, value.module, value.node)
    if name == "size_based_auto_wrap_policy":
        return Policy(Kind.WALK, value.module, value.node, by_size=True)
    if name in policy_signatures.PARAMETERS:
        raise NoPolicy(policy_signatures.problem_when_asked(name))
    raise Unreadable("the policy comes from outside the given paths")


def _made(value: Made, call: ast.Call, study: Study) -> Policy:
    module = value.module
    name = fsdp1.canonical(value.made_by)
    if name in policy_signatures.PARAMETERS:
        problem = policy_signatures.problem_when_called(name, call)
        if name not in policy_signatures.CLASSES:
            return _called(value, call, study, name, problem)
        if problem:
            raise NoPolicy(problem)
    if name == "ModuleWrapPolicy":
        return Policy(Kind.CLASSES, module, call, _argument(call, 0, "module_classes"))
    if name == "CustomPolicy":
        function = _argument(call, 0, "lambda_fn")
        _refuse_dicts(study.tracer.evaluate(function, module, value.frame))
        return Policy(Kind.PREDICATE, module, call, function)
    if value.made_by == "functools.partial" and call.args:
        return _partial(value, call, study, call.args[0])
    raise Unreadable(f"the policy comes from {value.made_by or 'a class of the project'}")


def _called(value: Made, call: ast.Call, study: Study, name: str, problem: str) -> Policy:
    """A policy that is called where FSDP1 wants it handed on: what functools.partial would make of
    its keyword arguments, where they say it all."""
    if not problem:
        raise NoPolicy("FSDP1 takes a policy, and is given what one answers")
    if policy_signatures.problem_when_asked(name, ast.Call(call.func, [], call.keywords)):
        raise NoPolicy(problem)
    return replace(_partial(value, call, study, call.func), is_called=True)


def _partial(value: Made, call: ast.Call, study: Study, bound: ast.expr) -> Policy:
    module = value.module
    names = {fsdp1.canonical(q) for q in study.external(bound, module)}
    for name in names & policy_signatures.PARAMETERS.keys() if bound in call.args else ():
        if problem := policy_signatures.problem_when_asked(name or "", call):
            raise NoPolicy(problem)
    match sorted(n for n in names if n):
        case ["transformer_auto_wrap_policy"]:
            return Policy(Kind.CLASSES, module, call, _argument(call, -1, "transformer_layer_cls"))
        case ["_module_wrap_policy"]:
            return Policy(Kind.CLASSES, module, call, _argument(call, -1, "module_classes"))
        case ["lambda_auto_wrap_policy"]:
            function = _argument(call, -1, "lambda_fn")
            asked = study.tracer.evaluate(function, module, value.frame)
            if any(isinstance(v, Function) and minds_order(v, study) for v in asked):
                return Policy(Kind.WALK, module, call)  # FSDP1 asks it while it wraps
            return Policy(Kind.PREDICATE, module, call, function)
        case ["size_based_auto_wrap_policy"]:
            return _by_size(module, call, bound)
        case ["always_wrap_policy"]:
            return Policy(Kind.ALL, module, call)
        case ["_or_policy"]:
            return _joined(value, call, study)
    called = study.tracer.evaluate(bound, module, value.frame)
    if called and all(isinstance(v, Function) for v in called):
        return Policy(Kind.WALK, module, call)
    raise Unreadable("the policy is a partial of a function outside the given paths")


def _by_size(module: Module, call: ast.Call, bound: ast.expr) -> Policy:
    """A policy that counts parameters, with the number that it is bound to alone, if so."""
    given = {keyword.arg: keyword.value for keyword in call.keywords}
    alone = not given.keys() - {"min_num_params", *policy_signatures.NAMES}
    alone &= call.func is bound or call.args == [bound]  # what is called has a model there
    return Policy(Kind.WALK, module, call, given.get("min_num_params"), by_size=alone)


def _joined(value: Made, call: ast.Call, study: Study) -> Policy:
    """Policies of which any may pick a module; walked where their list cannot be read."""
    listed = _argument(call, -1, "policies")
    elements = policy_lists.elements(listed, value, study)
    ask = study.tracer.evaluate
    # What this call does not add is for other calls.
    given = [(e, m, ask(e, m, value.frame) or ask(e, m)) for e, m in elements or ()]
    if elements is None or any(is_open(each, study) for *_, values in given for each in values):
        found = study.tracer.evaluate(listed, value.module, value.frame)
        readable = tuple(_readable(each, study) for each in found)
        return Policy(Kind.WALK, value.module, call, None, readable, is_open=True)
    named = not isinstance(listed, policy_lists.DISPLAYS)
    joined = [tuple(written_here(read(v, study), e, where, study)) for e, where, v in given]
    parts = itertools.chain(*joined)
    if named and any(policy_lists.is_rebound(p.argument or p.node, p.module) for p in parts):
        return Policy(Kind.WALK, value.module, call, None, tuple(joined))
    return Policy(Kind.ANY, value.module, call, listed, tuple(joined), named=named)


def _readable(value: Value, study: Study) -> tuple[Policy, ...]:
    """The policies of a list that can be read, where that is not all of them."""
    shown = policy_lists.spread(value.node)
    shown = [e.elt if isinstance(e, policy_lists.FROM_ONE) else e for e in shown]
    found: list[Policy] = []
    for element, where in [*((e, value.module) for e in shown), *study.tracer.additions(value)]:
        for each in _ordered(study.values(element, where)):
            with contextlib.suppress(Unreadable):
                found += written_here([_read_one(each, study)], element, where, study)
    return tuple(found)


def written_here(
    found: list[Policy], expression: ast.expr, module: Module, study: Study
) -> list[Policy]:
    """The policies read; one of torch's own functions has its origin where its name stands."""
    if len(found) == 1 and any(map(fsdp1.canonical, study.external(expression, module))):
        return [replace(found[0], module=module, node=expression)]
    return found


def _argument(call: ast.Call, index: int, name: str) -> ast.expr:
    for keyword in call.keywords:
        if keyword.arg == name:
            return keyword.value
    if 0 <= index < len(call.args):
        return call.args[index]
    raise Unreadable(f"{name} is not written out where the policy is made")


def _refuse_dicts(values: Values) -> None:
    """A CustomPolicy function may return FSDP1 arguments for single modules."""
    for value in values:
        if not isinstance(value, Function):
            raise Unreadable("the function given to CustomPolicy cannot be followed")
        if not all(map(is_truth, answers(value))):
            raise Unreadable("the CustomPolicy may return arguments for single modules")


def import_of(node: ast.AST, module: Module) -> ast.AST | None:
    """The import behind a plain name. A site of a policy function is the import, not its uses."""
    if not isinstance(node, ast.Name):
        return None
    owner = module.table.within[node].lookup(node.id)
    bindings = owner.bindings[node.id] if owner is not None else []
    return bindings[0].node if len(bindings) == 1 else None


def may_ask_any(values: Values, study: Study) -> bool:
    """Whether some policy asks others that are not all in sight."""
    found: list[Policy] = []
    for value in values:
        with contextlib.suppress(Unreadable):
            found.append(_read_one(value, study))
    return any(policy.is_open for policy in found)


def asked_by_functions(values: Values, study: Study) -> set[ast.AST]:
    """The origins of what the project's own functions among some policies name, and the functions
    that these name in turn: other policies that they ask."""
    found: set[ast.AST] = set()
    functions = [v for v in values if isinstance(v.node, (*FUNCTIONS, ast.Lambda))]
    while functions:
        function = functions.pop()
        names = (n for n in ast.walk(function.node) if isinstance(n, ast.Name))
        for value in (v for n in names for v in study.values(n, function.module)):
            if value.node not in found and isinstance(value.node, (*FUNCTIONS, ast.Lambda)):
                functions.append(value)
            found.add(value.node)
    return found


def policy_origins(values: Values, study: Study) -> set[ast.AST]:
    """The origins of some policies, and of the policies that are joined in them."""
    found: set[ast.AST] = {v.node for v in values}
    for value in values:
        with contextlib.suppress(Unreadable):
            for part in _read_one(value, study).parts:
                for each in part:
                    found |= {each.node, *(p.node for joined in each.parts for p in joined)}
    return found
